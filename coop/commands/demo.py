"""`python -m coop demo`: a small GPT, plain and then at half of its memory."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from coop.commands._arguments import output_path

POLICIES = ("coop", "dtr", "dte")
# No limit in practice; addresses of the CPU's arena cost nothing until they are used.
ROOMY_BYTES = 2**33


@dataclass(frozen=True)
class Row:
    """One run, as the table shows it."""

    name: str
    fitted: bool
    failure: str
    budget_bytes: int | None
    peak_bytes: int | None
    step_seconds: float | None  # median; on the CPU of CPU time, by one thread
    overhead: float | None  # of the measured time, over the plain run's
    num_evictions: int
    num_replays: int
    fragmentation: float
    final_loss: float | None
    identical: bool  # every loss and every weight, to the last bit


class _Stopped(Exception):
    """A run ended in a way it should not."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long, where the report goes, how to print."""
    parser.add_argument("--steps", metavar="N", type=_steps, default=8, help="default: 8")
    parser.add_argument(
        "--report",
        metavar="FILE",
        type=output_path,
        default="coop-demo.html",
        help="where the HTML report goes (default: coop-demo.html)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """0: everything was bit-identical; 1: something was not, or coop did not fit."""
    try:
        rows, device, machine = _measure(args.steps, args.report)
    except _Stopped as error:
        print(f"coop demo: {error}", file=sys.stderr)
        return 1
    if args.json:
        result = {
            "device": device,
            "machine": machine,
            "report": str(args.report),
            "rows": [asdict(row) for row in rows],
        }
        print(json.dumps(result))
    else:
        _print(rows, machine)
        print(f"report: {args.report}")
    ran = [row for row in rows if row.fitted]
    return 0 if rows[1].fitted and all(row.identical for row in ran) else 1


def _measure(num_steps: int, report: Path) -> tuple[list[Row], str, str]:
    """The rows, the device, and the machine in words."""
    from coop.demo.worker import supported_device

    device = supported_device()
    job = {
        "device": device,
        "budget_bytes": None,
        "policy": "coop",
        "report": None,
        "num_steps": num_steps,
    }
    columns = (
        TextColumn("{task.description:28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        def work(description: str, **changes: Any) -> dict[str, Any]:
            task = progress.add_task(
                description, total=changes.get("num_steps", num_steps), loss=""
            )

            def show(step: int, loss: float) -> None:
                progress.update(task, completed=step, loss=f"loss {loss:.4f}")

            return _work({**job, **changes}, show)

        plain = work("plain")["result"]
        plain_bytes = plain["peak_bytes"]
        if plain_bytes is None:
            # What it holds without a limit; the first of two steps makes the optimizer's state.
            roomy = work("plain, measuring its memory", budget_bytes=ROOMY_BYTES, num_steps=2)
            plain_bytes = int(roomy["result"]["stats"]["peak_bytes"])
        rows = [_row("plain", None, {"result": plain}, plain, plain_bytes)]
        for policy in POLICIES:
            ended = work(
                f"{policy}, half of the memory",
                budget_bytes=plain_bytes // 2,
                policy=policy,
                report=str(report) if policy == "coop" else None,
            )
            rows.append(_row(policy, plain_bytes // 2, ended, plain, None))
    return rows, device, plain["machine"]


def _work(job: dict[str, Any], show: Callable[[int, float], None]) -> dict[str, Any]:
    """Runs a worker to its end; returns its last message."""
    # The worker has to find the same coop, whatever its working directory says.
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    message: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+") as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "coop.demo.worker", json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert worker.stdout is not None
        try:
            for line in worker.stdout:
                message = json.loads(line)
                if "step" in message:
                    show(message["step"], message["loss"])
            worker.wait()
        finally:
            worker.kill()
            worker.wait()
        errors.seek(0)
        last_line = (errors.read().strip().splitlines() or ["no message"])[-1]
    if worker.returncode != 0 or not ("result" in message or "failed" in message):
        raise _Stopped(f"a training run ended with exit code {worker.returncode}: {last_line}")
    return message


def _row(
    name: str,
    budget_bytes: int | None,
    ended: dict[str, Any],
    plain: dict[str, Any],
    peak_bytes: int | None,
) -> Row:
    result = ended.get("result")
    stats = (result or {}).get("stats") or {}
    return Row(
        name=name,
        fitted=result is not None,
        failure=ended.get("failed", ""),
        budget_bytes=budget_bytes,
        peak_bytes=stats.get("peak_bytes", peak_bytes),
        step_seconds=result and result["step_seconds"],
        overhead=result and result["step_seconds"] / plain["step_seconds"] - 1,
        num_evictions=stats.get("num_evictions", 0),
        num_replays=stats.get("num_replays", 0),
        fragmentation=stats.get("fragmentation", 0.0),
        final_loss=result and float.fromhex(result["losses"][-1]),
        identical=bool(
            result
            and result["losses"] == plain["losses"]
            and result["weights_sha256"] == plain["weights_sha256"]
        ),
    )


def _print(rows: list[Row], machine: str) -> None:
    title = f"a small GPT on {machine}"
    table = Table(title=title, title_justify="left", box=None, collapse_padding=True)
    table.add_column("run", no_wrap=True)
    for heading in ("peak", "s/step", "overhead", "evictions", "recomputed", "fragm.", "loss"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("identical", no_wrap=True)
    for row in rows:
        if row.peak_bytes is None or row.step_seconds is None or row.overhead is None:
            table.add_row(row.name, "did not fit")
            continue
        table.add_row(
            row.name,
            f"{row.peak_bytes / 2**20:.0f} MiB",
            f"{row.step_seconds:.3f}",
            f"{row.overhead:+.1%}" if row.budget_bytes else "",
            str(row.num_evictions) if row.budget_bytes else "",
            str(row.num_replays) if row.budget_bytes else "",
            f"{row.fragmentation:.1%}" if row.budget_bytes else "",
            f"{row.final_loss:.4f}",
            ("yes" if row.identical else "NO") if row.budget_bytes else "",
        )
    # Wider than a narrow terminal, where its lines wrap: cut off, it would say nothing.
    Console(highlight=False, soft_wrap=True, width=100).print(table)
    print("identical: every loss and every weight, to the last bit")
    for row in rows:
        if not row.fitted:
            print(f"{row.name}: {row.failure}")


def _steps(text: str) -> int:
    if not text.isdecimal() or not 4 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps: from 4 to 10000")
    return int(text)
