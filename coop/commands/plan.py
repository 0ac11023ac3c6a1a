"""`python -m coop plan`: what budget a program needs, and what it costs there."""

import argparse
import importlib.util
import json
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from coop.commands._arguments import output_path, room, size
from coop.commands.run import WrongInput, module_program, print_traceback, script_program
from coop.planner import DEFAULT_DEVICE, DEFAULT_POLICIES, Plan, Point, largest_batch, plan_trace
from coop.pretend import DataDependentError
from coop.pretend_ranks import Ranks
from coop.profiles import devices, get_device
from coop.scripts import DEFAULT_NUM_STEPS, Outcome, record_script
from coop.simulate import POLICIES
from coop.sizes import format_budget, format_bytes
from coop.trace import Trace, TraceError, read_trace

EPILOG = """
A script runs without the hardware and without memory: nothing is computed, a GPU is pretended, and
what reads a number gets 1. It is ended after two steps of its optimizers: the first makes their
state, the second is like all that follow. With --steps 3 the last one is repeated, if it is as the
one before, and the plan tells what a step costs once a schedule is followed, and after how many. It
changes no file: what it writes, removes or renames before that happens in a temporary folder, and
is told in one line. Where an argument of the script
contains {batch}, --batch-for BYTES finds the largest batch:
coop plan --batch-for 24GiB train.py --batch-size {batch}. With --world-size 8 the script is rank 0
of 8, with DDP or FSDP2: no launcher is needed.
"""


DEFAULT_LINK = 25 * 10**9


class ScriptFailed(Exception):
    """The script raised; its traceback is printed already."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, then the trace, or the script and what belongs to it."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        help=f"{', '.join(devices())}, or a file of `coop calibrate` (default: as recorded; "
        f"{DEFAULT_DEVICE} for a script)",
    )
    parser.add_argument(
        "--budgets", metavar="BYTES,...", type=_sizes, help="e.g. 24GiB,16GiB (default: ten)"
    )
    parser.add_argument(
        "--policies", metavar="POLICY,...", type=_policies, default=DEFAULT_POLICIES
    )
    parser.add_argument("--picture", metavar="FILE", type=output_path, help="write a PNG")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--checkpoint", metavar="TRACE", help="the same program with torch.utils.checkpoint"
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        type=_num_steps,
        default=DEFAULT_NUM_STEPS,
        help="end a script after so many steps of its optimizers; 0: let it end by itself "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--world-size",
        metavar="N",
        type=_world_size,
        help="a script is one of so many ranks; its collectives move nothing, and take as long as "
        "--link says",
    )
    parser.add_argument(
        "--link",
        metavar="BYTES",
        type=size,
        default=DEFAULT_LINK,
        help="what goes from one rank to the next in a second (default: 25GB)",
    )
    parser.add_argument(
        "--host",
        metavar="BYTES",
        type=room,
        default=0,
        help="room in main memory for copies of what leaves; auto: as much as it takes",
    )
    parser.add_argument("--save-trace", metavar="FILE", type=output_path, help="of a script")
    parser.add_argument(
        "--batch-for", metavar="BYTES", type=size, help="the largest {batch} that fits"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument("target", metavar="TRACE|SCRIPT")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER)


def run(args: argparse.Namespace) -> int:
    """Plans and prints. Exit code 1: nothing fits, or the script failed."""
    try:
        if args.picture is not None and importlib.util.find_spec("matplotlib") is None:
            raise WrongInput("--picture needs matplotlib: pip install matplotlib")
        if args.device is not None:
            get_device(args.device)
        if args.batch_for is not None:
            return _run_batches(args)
        trace = _trace(args)
        checkpointed = None if args.checkpoint is None else read_trace(args.checkpoint)
        with _Bar(shown=not args.json and sys.stderr.isatty()) as progress:
            result = plan_trace(
                trace,
                device=args.device,
                budgets=args.budgets,
                policies=args.policies,
                host=args.host,
                checkpointed=checkpointed,
                progress=progress,
            )
    except (TraceError, WrongInput, DataDependentError, ValueError) as error:
        print(f"coop plan: {error}", file=sys.stderr)
        return 2
    except ScriptFailed as error:
        print(f"coop plan: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(result.as_json()))
    else:
        _print(result)
    if args.picture is not None:
        from coop.report.curve import save_curve

        try:
            save_curve(result, args.picture)
        except OSError as error:
            print(f"coop plan: {error}", file=sys.stderr)
            return 1
    return 0 if any(point.fits for point in result.points) else 1


def _trace(args: argparse.Namespace) -> Trace:
    if args.target.endswith((".jsonl", ".jsonl.gz")) and not args.module:
        if args.arguments:
            raise WrongInput(
                f"unexpected {args.arguments[0]!r} after the trace: options come before it"
            )
        if args.save_trace is not None:
            raise WrongInput("--save-trace is for a script: this is a trace already")
        return read_trace(args.target)
    return _record_script(args, args.arguments, args.save_trace)


def _record_script(args: argparse.Namespace, arguments: list[str], path: Path | None) -> Trace:
    name = args.target
    trace, outcome, changes = record_script(
        module_program(name) if args.module else script_program(name),
        [name, *arguments],
        device=args.device or DEFAULT_DEVICE,
        num_steps=args.steps,
        path=path,
        on_error=print_traceback,
        ranks=None if args.world_size is None else Ranks(args.world_size, args.link / 1e9),
        in_parts=args.host > 0,
    )
    if changes:
        print(f"coop plan: {name} changes no file: {changes}", file=sys.stderr)
    if outcome.failure:
        how = "failed" if trace is None else f"failed after {_steps(outcome)}"
        program = shlex.join([*(["-m"] if args.module else []), name, *arguments])
        if trace is None and outcome.is_data_dependent:
            raise WrongInput(outcome.failure)
        if trace is None:
            if outcome.failure.startswith("died"):
                how = outcome.failure
            raise ScriptFailed(
                f"{name} {how}; if it works with the hardware, record it there: "
                f"python -m coop run --budget BYTES --trace FILE.jsonl {program}"
            )
        print(f"coop plan: {name} {how}: the plan is of what came before", file=sys.stderr)
    if trace is None or trace.num_operators == 0:
        ended = f"; it ended with {outcome.exit_code!r}" if outcome.exit_code else ""
        raise WrongInput(f"{name} ran no operator of torch{ended}")
    if outcome.is_ended:
        print(
            f"coop plan: {name} was ended after {_steps(outcome)} (--steps says how many)",
            file=sys.stderr,
        )
    return trace


def _steps(outcome: Outcome) -> str:
    steps = "1 step" if outcome.num_steps == 1 else f"{outcome.num_steps} steps"
    if outcome.num_optimizers == 1:
        return f"{steps} of its optimizer"
    return f"{steps} of each of its {outcome.num_optimizers} optimizers"


def _run_batches(args: argparse.Namespace) -> int:
    if not any("{batch}" in argument for argument in args.arguments):
        raise WrongInput("--batch-for needs an argument of the script that contains {batch}")
    for option in ("budgets", "checkpoint", "picture", "save_trace"):
        if getattr(args, option) is not None:
            raise WrongInput(f"--batch-for has no use for --{option.replace('_', '-')}")

    def record(batch_size: int) -> Trace:
        arguments = [a.replace("{batch}", str(batch_size)) for a in args.arguments]
        return _record_script(args, arguments, None)

    found = largest_batch(record, args.batch_for, policy=args.policies[0])
    if args.json:
        tried = {size: _cell(point) for size, point in sorted(found.tried.items())}
        print(json.dumps({"batch_size": found.batch_size, "tried": tried}))
    else:
        for batch_size, point in sorted(found.tried.items()):
            print(f"batch {batch_size}: {_cell(point)}")
        print(f"the largest batch in {format_bytes(args.batch_for)}: {found.batch_size}")
    return 0 if found.batch_size else 1


def _cell(point: Point | None) -> str:
    if point is None or not point.fits:
        return "no"
    return f"{_time(point.step_ns)} (+{point.overhead - 1:.1%})"


def _time(time_ns: float) -> str:
    if time_ns >= 1e9:
        return f"{time_ns / 1e9:.2f} s"
    return f"{time_ns / 1e6:.1f} ms" if time_ns >= 1e5 else f"{time_ns / 1e3:.1f} us"


def _print(plan: Plan) -> None:
    console = Console(soft_wrap=True, highlight=False)
    policies = list(plan.smallest_bytes)
    estimated = " (temporaries are estimates)" if plan.is_estimated else ""
    console.print(
        f"{plan.trace} on {plan.device or 'the device it was recorded on'}: "
        f"{plan.num_operators} operators, {plan.num_steps} steps{estimated}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("budget", justify="right")
    for policy in policies:
        table.add_column(policy, justify="right")
    by_cell = {(point.policy, point.budget_bytes): point for point in plan.points}
    for budget_bytes in sorted({point.budget_bytes for point in plan.points}, reverse=True):
        cells = (_cell(by_cell[policy, budget_bytes]) for policy in policies)
        table.add_row(format_bytes(budget_bytes), *cells)
    smallest = (format_budget(plan.smallest_bytes[policy]) for policy in policies)
    table.add_row("smallest", *smallest, style="dim")
    console.print(table)
    if plan.checkpointed is not None:
        extra = plan.checkpointed.step_ns / plan.step_ns - 1
        console.print(
            f"torch.utils.checkpoint: {format_bytes(plan.checkpointed.peak_bytes)}, "
            f"{_time(plan.checkpointed.step_ns)} (+{extra:.1%})"
        )
    if plan.host_bytes:
        used = max(point.host_peak_bytes for point in plan.points)
        console.print(f"copies in main memory: at most {format_bytes(used)}")
    if plan.knee_bytes:
        console.print(f"knee: {format_bytes(plan.knee_bytes)}")
    if plan.num_steps_until_steady > 1:
        console.print(f"steps cost that after the first {plan.num_steps_until_steady}, or sooner")
    console.print(plan.advice)


class _Bar:
    """Progress on standard error, where somebody can see it."""

    def __init__(self, shown: bool) -> None:
        self.bar = Progress(
            TextColumn("simulating"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not shown,
        )
        self.task = self.bar.add_task("", total=None)

    def __enter__(self) -> "_Bar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, done: int, known: int) -> None:
        self.bar.update(self.task, completed=done, total=known)


def _sizes(text: str) -> list[int]:
    return [size(part) for part in text.split(",")]


def _world_size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks")
    return int(text)


def _num_steps(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps")
    return int(text)


def _policies(text: str) -> tuple[str, ...]:
    policies = tuple(text.split(","))
    for policy in policies:
        if policy not in POLICIES:
            raise argparse.ArgumentTypeError(
                f"{policy!r} is not a policy; choose from {', '.join(POLICIES)}"
            )
    return policies
