"""`python -m coop run`: an unmodified script, or module, inside a budget."""

import argparse
import atexit
import contextlib
import os
import runpy
import shlex
import signal
import sys
import time
import types
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import torch

import coop
from coop.commands._arguments import budget_size, output_path
from coop.config import PolicyName, choose_device
from coop.sizes import format_bytes

POLICIES: tuple[PolicyName, ...] = ("coop", "dtr", "dte")
DEVICES = ("cpu", "cuda")
EPILOG = """
The budget may also come from COOP_BUDGET (the policy from COOP_POLICY, the room for copies from
COOP_HOST and COOP_HOST_DIR), for workers that inherit the environment:
`COOP_BUDGET=8GiB torchrun --nproc-per-node 2 -m coop run train.py`.
"""


class WrongInput(Exception):
    """Input that is wrong, in one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, then the script and what belongs to it."""
    parser.usage = (
        "coop run --budget BYTES [--device DEVICE] [--policy POLICY] "
        "[--host BYTES --host-dir FOLDER] [--report FILE] "
        "[--snapshot FILE] [--trace FILE] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    )
    parser.epilog = EPILOG
    parser.add_argument(
        "--budget", metavar="BYTES", type=budget_size, help="e.g. 8GiB, 600MB; on a GPU also 80%%"
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="whose memory (default: the GPU's, if there is one)"
    )
    parser.add_argument("--policy", choices=POLICIES, help="what to evict (default: coop)")
    parser.add_argument(
        "--host",
        metavar="BYTES",
        help="room for copies of what leaves the budget, parameters and optimizer state included",
    )
    parser.add_argument("--host-dir", metavar="FOLDER", help="where that room is: on a local disk")
    parser.add_argument("--report", metavar="FILE", type=output_path, help="write an HTML report")
    parser.add_argument(
        "--snapshot", metavar="FILE", type=output_path, help="write a memory_viz snapshot"
    )
    parser.add_argument(
        "--trace", metavar="FILE", type=output_path, help="write a trace for `coop plan`"
    )
    parser.add_argument(
        "--source-lines", action="store_true", help="in the trace, the lines of your code"
    )
    parser.add_argument("--quiet", action="store_true", help="no summary at the end")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER)


def run(args: argparse.Namespace) -> int:
    """Runs it in this process, so that its exit code and signals are this process's."""
    try:
        budget = _budget(args.budget)
        device = _device(args.device)
        policy = _policy(args.policy)
        host = args.host or os.environ.get("COOP_HOST") or "0"
        host_dir = args.host_dir or os.environ.get("COOP_HOST_DIR")
        config = coop.Config(policy=policy, host=host, host_dir=host_dir)
        if device == "cpu" and budget.strip().endswith("%"):
            raise WrongInput(f"{budget!r}: a share is of a GPU's free memory; here give bytes")
        if args.script is None:
            raise WrongInput("nothing to run: give a script, or -m and a module, after the options")
        program = module_program(args.script) if args.module else script_program(args.script)
        events = args.report is not None or args.snapshot is not None
        stack = contextlib.ExitStack()
        if device == "cpu":
            session = stack.enter_context(coop.budget(budget, device="cpu", config=config))
        else:
            # To its very end: a GPU has no room to bring back what is evicted then.
            session = coop.install(budget, device="cuda", config=config)
        if events:
            session.events.record()
        if args.trace is not None:
            session.trace.start(source_lines=args.source_lines)
    except (WrongInput, ValueError, RuntimeError) as error:
        line = str(error).partition("\n")[0].removeprefix("coop: ")
        print(f"coop run: {line}", file=sys.stderr)
        return 2
    os.environ |= {"COOP_BUDGET": budget, "COOP_DEVICE": device, "COOP_POLICY": policy}
    os.environ |= {"COOP_HOST": host, "COOP_HOST_DIR": host_dir or ""}
    sys.argv = [args.script, *args.arguments]
    process = os.getpid()
    begin = time.perf_counter()
    exit_code: int | str | None = 0
    try:
        program()
    except SystemExit as error:
        exit_code = error.code
    except KeyboardInterrupt:
        exit_code = 128 + signal.SIGINT
        if os.getpid() == process:
            print("coop run: interrupted", file=sys.stderr)
    except BaseException as error:
        exit_code = 1
        print_traceback(error)
        if isinstance(error, coop.OutOfBudgetError):
            enough = error.shortage["sufficient_budget_bytes"]
            print(
                f"coop run: out of budget; try --budget {enough} ({format_bytes(enough)}); "
                f"`{_plan_command(args, device)}` says what all of it needs",
                file=sys.stderr,
            )
    seconds = time.perf_counter() - begin
    if os.getpid() != process:
        stack.pop_all()  # a fork of the script: the budget is its parent's
        sys.exit(exit_code)
    try:
        _finish(stack, session, policy, seconds, args)
    except KeyboardInterrupt:
        exit_code = 128 + signal.SIGINT  # again: what was not written by now is not wanted
    if exit_code == 128 + signal.SIGINT:
        _die_of_interrupt()
    sys.exit(exit_code)


def _plan_command(args: argparse.Namespace, device: str) -> str:
    """Of this very program."""
    of_cpu = ["--device", "cpu"] if device == "cpu" else []
    module = ["-m"] if args.module else []
    words = ["python", "-m", "coop", "plan", *of_cpu, *module, args.script, *args.arguments]
    return shlex.join(words)


def _budget(given: str | None) -> str:
    if given is not None:
        return given
    text = os.environ.get("COOP_BUDGET")
    if not text:
        raise WrongInput("no budget: give one, as in --budget 8GiB, or set COOP_BUDGET")
    try:
        return budget_size(text)
    except argparse.ArgumentTypeError as error:
        raise WrongInput(f"COOP_BUDGET: {error}") from None


def _device(given: str | None) -> str:
    text = given or os.environ.get("COOP_DEVICE")
    if not text:
        return choose_device(None).type
    if text not in DEVICES:
        raise WrongInput(f"COOP_DEVICE: {text!r} is not a device; choose cpu or cuda")
    if text == "cuda" and not torch.cuda.is_available():
        raise WrongInput("there is no CUDA device here: `coop doctor` says more")
    return text


def _policy(given: PolicyName | None) -> PolicyName:
    text = given or os.environ.get("COOP_POLICY") or "coop"
    for policy in POLICIES:
        if policy == text:
            return policy
    raise WrongInput(f"COOP_POLICY: {text!r} is not a policy; choose coop, dtr or dte")


# --- what runs ------------------------------------------------------------------------------------


def script_program(name: str) -> Callable[[], None]:
    """As `python NAME` would run it."""
    path = Path(name)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        if path.is_dir() and not (path / "__main__.py").exists():
            raise WrongInput(f"cannot run {name!r}: there is no __main__.py in this directory")
        return lambda: _discard(runpy.run_path(name, run_name="__main__"))
    try:
        source = path.read_bytes()
    except OSError as error:
        raise WrongInput(f"cannot open {name!r}: {error.strerror}") from None

    def program() -> None:
        # Not runpy.run_path: the module stays sys.modules["__main__"] until the very end, for
        # pickle, for worker processes, and for what runs at exit.
        main = types.ModuleType("__main__")
        main.__file__ = name
        main.__loader__ = SourceFileLoader("__main__", name)
        main.__builtins__ = __builtins__  # type: ignore[attr-defined]
        code = compile(source, name, "exec", dont_inherit=True)
        sys.modules["__main__"] = main
        if not sys.flags.safe_path:
            sys.path[0] = str(path.resolve().parent)
        exec(code, main.__dict__)

    return program


def module_program(name: str) -> Callable[[], None]:
    """As `python -m NAME` would run it."""
    folder = str(Path.cwd())
    if not sys.flags.safe_path and sys.path[0] not in ("", folder):
        sys.path.insert(0, folder)
    try:
        found = find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise WrongInput(f"there is no module named {name!r}")

    return lambda: _discard(runpy.run_module(name, run_name="__main__", alter_sys=True))


def _discard(_: object) -> None:
    pass


def print_traceback(error: BaseException) -> None:
    """What a script's failure shows without coop: from the script's first frame on."""
    commands = str(Path(__file__).parent)
    rest = error.__traceback__
    while rest is not None:
        file = rest.tb_frame.f_code.co_filename
        if not file.startswith(commands) and file not in (runpy.__file__, "<frozen runpy>"):
            break
        rest = rest.tb_next
    error.__traceback__ = rest
    sys.excepthook(type(error), error, rest)


def _die_of_interrupt() -> NoReturn:
    """So that a shell sees what it would see without coop: death by SIGINT."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError("not reached")


# --- the end --------------------------------------------------------------------------------------


def _finish(
    stack: contextlib.ExitStack,
    session: coop.Session,
    policy: str,
    seconds: float,
    args: argparse.Namespace,
) -> None:
    try:
        stack.close()
    except coop.LostTensorError as error:
        print(f"coop run: {error}", file=sys.stderr)
    written = _write_outputs(session, args)
    if not args.quiet:
        _print_summary(session, policy, seconds, written)


def _write_outputs(session: coop.Session, args: argparse.Namespace) -> list[Path]:
    written: list[Path] = []
    title = " ".join([Path(args.script).name, *args.arguments])
    for path, save in (
        (args.report, lambda path: session.events.save_report(path, title)),
        (args.snapshot, session.events.save_snapshot),
        (args.trace, lambda path: session.trace.save(path, title)),
    ):
        if path is None:
            continue
        try:
            save(path)
            written.append(path)
        except OSError as error:
            print(f"coop run: {error}", file=sys.stderr)
    return written


def _print_summary(session: coop.Session, policy: str, seconds: float, written: list[Path]) -> None:
    stats = session.stats()
    per_step = f" ({seconds / stats.num_steps:.3g} s each)" if stats.num_steps else ""
    search_us = stats.search_ns / max(stats.num_searches, 1) / 1e3
    copies = (
        f"{format_bytes(stats.host_saved_bytes)} copied to {format_bytes(stats.host_bytes)} of "
        f"main memory (at most {format_bytes(stats.host_peak_bytes)} held), "
        f"{format_bytes(stats.host_loaded_bytes)} back, waited {stats.host_wait_ns / 1e9:.3g} s "
        "(estimated)"
    )
    lines = (
        f"budget {format_bytes(stats.budget_bytes)}, policy {policy}: peak "
        f"{format_bytes(stats.peak_bytes)} ({stats.peak_bytes / stats.budget_bytes:.1%}); "
        f"nothing is evicted from {format_bytes(stats.needed_bytes)} on "
        f"(--budget {stats.needed_bytes})",
        f"{stats.num_steps} steps{per_step}, {stats.num_operators} operators, {seconds:.1f} s",
        f"{stats.num_evictions} evictions ({format_bytes(stats.evicted_bytes)}), "
        f"{stats.num_replays} recomputations, overhead {stats.overhead - 1:.1%} (estimated)",
        *([copies] if stats.host_bytes else []),
        f"{stats.num_searches} searches of {search_us:.1f} us, "
        f"fragmentation {stats.fragmentation:.1%}",
        "wrote " + ", ".join(str(path) for path in written)
        if written
        else "no report (--report FILE writes one)",
    )
    for line in lines:
        print(f"coop: {line}", file=sys.stderr)
