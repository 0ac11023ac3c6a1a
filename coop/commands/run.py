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
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import torch

import coop
from coop._native import _C
from coop.config import Config, choose_device
from coop.live import LiveLine
from coop.machine import addresses_left
from coop.options import (
    CONFIG_OPTIONS,
    OPTIONS,
    Option,
    config_from_environment,
    from_environment,
)
from coop.progress import Step
from coop.ranks import Ending, Rank, current_rank, summary, write_index
from coop.sizes import format_bytes
from coop.status import StatusFile

EPILOG = """
Every option may also come from the environment, --budget from COOP_BUDGET and so on: for workers,
as in `COOP_BUDGET=8GiB torchrun --nproc-per-node 2 -m coop run train.py`.
"""


class WrongInput(Exception):
    """Input that is wrong, in one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, then the script and what belongs to it."""
    parser.usage = "coop run [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]"
    parser.epilog = EPILOG
    of_config = parser.add_argument_group("how the budget works, as in coop.Config")
    for option in OPTIONS:
        _add_option(of_config if option.is_field else parser, option)
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER)


def _add_option(parser: argparse._ActionsContainer, option: Option) -> None:
    """None is for what is not given: then the environment is asked."""
    text = option.help.replace("%", "%%")
    if option.is_switch:
        action = argparse.BooleanOptionalAction if option.is_field else "store_true"
        parser.add_argument(option.flag, action=action, default=None, help=text)
        return

    def parse(word: str) -> object:
        try:
            return option.parse(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    choices = "{" + ",".join(option.choices) + "}" if option.choices else option.metavar
    parser.add_argument(option.flag, metavar=choices, type=parse, help=text)


def _ask_environment(args: argparse.Namespace) -> None:
    """What is not given, from the environment; and what is, into it, for workers.

    Not the files that are written: a worker would write the same ones.
    """
    for option in OPTIONS:
        value = getattr(args, option.name)
        if value is None:
            setattr(args, option.name, from_environment(option.name))
        elif not option.is_for_run:
            os.environ[option.variable] = str(int(value)) if option.is_switch else str(value)
        if option.is_for_run:
            os.environ.pop(option.variable, None)


def _config(args: argparse.Namespace) -> Config:
    given = {option.name: getattr(args, option.name) for option in CONFIG_OPTIONS}
    given = {name: value for name, value in given.items() if value is not None}
    return replace(config_from_environment(), **given)


def run(args: argparse.Namespace) -> int:
    """Runs it in this process, so that its exit code and signals are this process's."""
    try:
        _ask_environment(args)
        config = _config(args)
        device = _device(args.device)
        if args.script is None:
            raise WrongInput("nothing to run: give a script, or -m and a module, after the options")
        program = module_program(args.script) if args.module else script_program(args.script)
        ran = _Run(args, config, device)
        if not _awaits_tensors(args, device):
            ran.begin()
    except (WrongInput, ValueError, RuntimeError) as error:
        line = str(error).partition("\n")[0].removeprefix("coop: ")
        print(f"coop run: {line}", file=sys.stderr)
        return 2
    os.environ["COOP_DEVICE"] = device
    sys.argv = [args.script, *args.arguments]
    process = os.getpid()
    begin = time.perf_counter()
    exit_code: int | str | None = 0
    failure = ""
    rank = current_rank()
    if rank is not None:
        rank.watch()
    try:
        if ran.session is None:
            ran.begin_at_first_tensors()
        program()
    except SystemExit as error:
        exit_code = error.code
        failure = f"exit code {exit_code}" if exit_code else ""
    except KeyboardInterrupt:
        exit_code = 128 + signal.SIGINT
        failure = "interrupted"
        if os.getpid() == process:
            print("coop run: interrupted", file=sys.stderr)
    except BaseException as error:
        exit_code = 1
        failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        print_traceback(error)
        if isinstance(error, coop.OutOfBudgetError):
            enough = error.shortage["sufficient_budget_bytes"]
            print(
                f"coop run: out of budget; try --budget {enough} ({format_bytes(enough)}); "
                f"`{_plan_command(args, device)}` says what all of it needs",
                file=sys.stderr,
            )
    seconds = time.perf_counter() - begin
    if failure and rank is not None and os.getpid() == process:
        rank.fail(failure)
    if os.getpid() != process:
        ran.stack.pop_all()  # a fork of the script: the budget is its parent's
        sys.exit(exit_code)
    try:
        session = ran.end()
        if rank is None:
            _finish(ran.stack, session, args)
        else:
            _finish_rank(ran.stack, session, rank, seconds, args, failure)
    except KeyboardInterrupt:
        exit_code = 128 + signal.SIGINT  # again: what was not written by now is not wanted
    if exit_code == 128 + signal.SIGINT:
        _die_of_interrupt()
    sys.exit(exit_code)


# So much is no constant of a module that is imported any more, but what a program computes with.
FIRST_TENSORS_BYTES = 2**20


def _awaits_tensors(args: argparse.Namespace, device: str) -> bool:
    """Whether the budget has to wait until the program has imported what it needs.

    Where addresses are limited, a budget takes its own for good, and imports take many: those of
    `datasets` and pyarrow alone 1.3 GiB. What is left after them can be the budget's.
    """
    return device == "cpu" and args.budget is None and addresses_left() is not None


class _Run:
    """The budget of the run and who watches it, from when it begins."""

    def __init__(self, args: argparse.Namespace, config: Config, device: str) -> None:
        self.stack = contextlib.ExitStack()
        self.session: coop.Session | None = None
        self._args, self._config, self._device = args, config, device
        self._process = os.getpid()
        self._progress: _Progress | None = None
        self._is_awaiting = False

    def begin(self) -> coop.Session:
        args = self._args
        if self._device == "cpu":
            inside = coop.budget(args.budget, device="cpu", config=self._config)
            session = self.stack.enter_context(inside)
        else:
            # To its very end: a GPU has no room to bring back what is evicted then.
            session = coop.install(args.budget, device="cuda", config=self._config)
        self.session = session
        if any(path is not None for path in (args.report, args.snapshot, args.chrome_trace)):
            session.events.record()
        if args.trace is not None:
            session.trace.start(source_lines=bool(args.source_lines))
        self._progress = _Progress(session, self._device, args)
        return session

    def begin_at_first_tensors(self) -> None:
        """On this thread, as soon as the program has made some."""

        def call() -> None:
            if self.session is None and os.getpid() == self._process:
                self.begin()

        self._is_awaiting = True
        _C.call_at_first_tensors(call, FIRST_TENSORS_BYTES)

    def end(self) -> coop.Session:
        """Nobody watches any more. A program without tensors has had its budget all the same."""
        if self._is_awaiting:
            _C.call_at_no_tensors()
        session = self.begin() if self.session is None else self.session
        assert self._progress is not None
        self._progress.end()
        return session


def _plan_command(args: argparse.Namespace, device: str) -> str:
    """Of this very program."""
    of_cpu = ["--device", "cpu"] if device == "cpu" else []
    module = ["-m"] if args.module else []
    words = ["python", "-m", "coop", "plan", *of_cpu, *module, args.script, *args.arguments]
    return shlex.join(words)


def _device(given: str | None) -> str:
    if given is None:
        return choose_device(None).type
    if given == "cuda" and not torch.cuda.is_available():
        raise WrongInput("there is no CUDA device here: `coop doctor` says more")
    return given


class _Progress:
    """While it runs: the file that `coop watch` reads, and the line of --live."""

    def __init__(self, session: coop.Session, device: str, args: argparse.Namespace) -> None:
        title = " ".join([Path(args.script).name, *args.arguments])
        self._file = StatusFile(title, device)
        self._session = session
        self._line = LiveLine() if args.live else None
        session.on_step(self._stepped)

    def _stepped(self, step: Step) -> None:
        is_slower = self._session.stats().num_evictions > 0
        status = self._file.update(step, self._session.next_better() if is_slower else "")
        if self._line is not None:
            self._line.show(status)

    def end(self) -> None:
        if self._line is not None:
            self._line.end()
        self._file.remove()


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


def _finish_rank(
    stack: contextlib.ExitStack,
    session: coop.Session,
    rank: Rank,
    seconds: float,
    args: argparse.Namespace,
    failure: str,
) -> None:
    """Files of its own; the last rank of this machine sums up for all, and links the reports."""
    report = args.report
    for name in ("report", "snapshot", "chrome_trace", "trace"):
        path = getattr(args, name)
        setattr(args, name, None if path is None else rank.path_of(path))
    _close(stack)
    written = _write_outputs(session, args)
    own_report = args.report.name if args.report in written else ""
    endings = rank.end(Ending.of(rank.rank, session.stats(), seconds, failure, own_report))
    if not endings:
        return
    lines = summary(endings)
    if report is not None:
        try:
            write_index(report, " ".join([Path(args.script).name, *args.arguments]), endings)
            lines.append(f"wrote {report}, which links the reports of all ranks")
        except OSError as error:
            print(f"coop run: {error}", file=sys.stderr)
    if not args.quiet:
        for line in lines:
            print(f"coop: {line}", file=sys.stderr)


def _close(stack: contextlib.ExitStack) -> None:
    try:
        stack.close()
    except coop.LostTensorError as error:
        print(f"coop run: {error}", file=sys.stderr)


def _finish(stack: contextlib.ExitStack, session: coop.Session, args: argparse.Namespace) -> None:
    _close(stack)
    written = _write_outputs(session, args)
    if args.quiet:
        return
    for line in session.summary(", ".join(str(path) for path in written)):
        print(f"coop: {line}", file=sys.stderr)


def _write_outputs(session: coop.Session, args: argparse.Namespace) -> list[Path]:
    written: list[Path] = []
    title = " ".join([Path(args.script).name, *args.arguments])
    for path, save in (
        (args.report, lambda path: session.events.save_report(path, title)),
        (args.snapshot, session.events.save_snapshot),
        (args.chrome_trace, session.events.save_chrome_trace),
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
