"""A script recorded without the hardware, in a process of its own that changes no file.

That process is ended, not unwound: nothing of the script runs after the steps that are needed, nor
anything it left for its exit.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from coop._native import _C
from coop.confinement import confine
from coop.files import write_whole
from coop.overlay import Overlay
from coop.pretend import DataDependentError
from coop.pretend_ranks import Ranks, price_collectives
from coop.profiles import get_device
from coop.trace import Header, Trace, read_trace, write_recorded
from coop.tracing import pretending

__all__ = ["DEFAULT_NUM_STEPS", "Outcome", "record_script"]

# The first makes gradients and the optimizer's state; the second is like all that follow.
DEFAULT_NUM_STEPS = 2
# An optimizer that steps so many times more often than another one: that one is not waited for.
_MOST_AHEAD = 8


@dataclass(frozen=True)
class Outcome:
    """How it ended."""

    is_ended: bool = False  # by us, after the steps that were wanted
    num_steps: int = 0  # of each optimizer that made any
    num_optimizers: int = 0
    exit_code: int | str | None = 0
    failure: str = ""  # what it raised, or died of
    is_data_dependent: bool = False
    removed: tuple[str, ...] = ()  # keys of the overlay


def record_script(
    program: Callable[[], None],
    arguments: Sequence[str],
    *,
    device: str,
    num_steps: int,
    path: Path | None,
    on_error: Callable[[BaseException], None],
    ranks: Ranks | None = None,
    in_parts: bool = False,
) -> tuple[Trace | None, Outcome, str]:
    """Runs the program with these arguments until every optimizer made `num_steps` steps.

    Args:
        program: what to run.
        arguments: `sys.argv`, the name first.
        device: whose roofline prices the operators.
        num_steps: 0 is to the program's end.
        path: where to keep the trace.
        on_error: called there with what the program raises.
        ranks: the program is one of these; None: it is alone.
        in_parts: updates of all parameters at once are several operators (`coop.tracing`).

    Returns the trace, if there is one; how it ended; and, in a line, which files stayed as they
    were. After a failure the trace is of the complete steps before.
    """
    with _without_gpus(), tempfile.TemporaryDirectory(prefix="coop-plan-") as folder:
        _import_what_is_needed()
        overlay = Overlay(folder)
        file = Path(overlay.folder) / ("trace.jsonl" if path is None else path.name)
        report = Path(overlay.folder) / "outcome.json"
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: none is needed there
            process = os.fork()
        if process == 0:
            try:
                sys.argv = list(arguments)
                child = _Child(overlay, file, report, num_steps, ranks, in_parts)
                child.run(program, device, on_error)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)
        status = _wait(process)
        if report.exists():
            outcome = Outcome(**json.loads(report.read_text()))
        else:
            outcome = Outcome(failure=_death(status))
        overlay.hidden |= set(outcome.removed)
        trace = None
        if file.exists():
            if path is not None:
                write_whole(path, file.read_bytes())
            trace = replace(read_trace(file), path=arguments[0] if path is None else str(path))
        return trace, outcome, overlay.summary()


@contextlib.contextmanager
def _without_gpus() -> Iterator[None]:
    """CUDA cannot be used in a forked process, and the script is to see a pretended GPU only."""
    name = "CUDA_VISIBLE_DEVICES"
    before = os.environ.get(name)
    os.environ[name] = ""
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@functools.cache
def _import_what_is_needed() -> None:
    """By the first step without hardware: it takes seconds, here once for all processes.

    No backward pass: where there is a GPU that starts threads, and autograd refuses to run in a
    process that was forked after that.
    """
    with (
        tempfile.TemporaryDirectory(prefix="coop-plan-") as folder,
        pretending(Overlay(folder), "cpu"),
    ):
        model = torch.nn.Linear(1, 1)
        model(torch.ones(1))
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.optim.AdamW(model.parameters()).step()


def _wait(process: int) -> int:
    try:
        return os.waitpid(process, 0)[1]
    except BaseException:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise


def _death(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class _Child:
    """The process that runs the script."""

    def __init__(
        self,
        overlay: Overlay,
        file: Path,
        report: Path,
        num_steps: int,
        ranks: Ranks | None,
        in_parts: bool,
    ) -> None:
        self.overlay = overlay
        self.ranks = ranks
        self.in_parts = in_parts
        self.bytes_per_ns = 0.0
        self.file = file
        self.report = report
        self.wanted = num_steps
        self.process = os.getpid()
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.num_steps: Counter[int] = Counter()
        self.engine: _C.Engine | None = None
        self.header = Header()

    def run(
        self,
        program: Callable[[], None],
        device: str,
        on_error: Callable[[BaseException], None],
    ) -> NoReturn:
        os.environ["TMPDIR"] = self.overlay.temporary
        os.environ["HF_HUB_DISABLE_XET"] = "1"  # it writes files by code that is not Python's
        os.dup2(2, 1)  # what the script prints is not the plan
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        comment = " ".join(sys.argv)
        if self.ranks is not None:
            self.ranks.pretend()
            self.bytes_per_ns = get_device(device).profile.bytes_per_ns
        with (
            contextlib.redirect_stdout(sys.stderr),
            pretending(self.overlay, device, comment=comment, in_parts=self.in_parts) as (
                self.header,
                self.engine,
            ),
        ):
            confine(self.overlay)
            self._count_steps()
            try:
                program()
                self.end(Outcome())
            except SystemExit as error:
                code = error.code
                self.end(Outcome(exit_code=code if isinstance(code, int | None) else str(code)))
            except KeyboardInterrupt:
                os._exit(128 + signal.SIGINT)
            except BaseException as error:
                is_data_dependent = isinstance(error, DataDependentError)
                if not is_data_dependent:
                    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                    on_error(error)
                failure = str(error) if is_data_dependent else type(error).__name__
                self.end(Outcome(failure=failure, is_data_dependent=is_data_dependent))

    def _count_steps(self) -> None:
        init = torch.optim.Optimizer.__init__

        def counted_init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self.optimizers.add(optimizer)

        torch.optim.Optimizer.__init__ = counted_init  # type: ignore[assignment, method-assign]
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.num_steps[id(optimizer)] += 1
        all_did = all(self.num_steps[id(made)] >= self.wanted for made in self.optimizers)
        is_ahead = self.num_steps[id(optimizer)] >= _MOST_AHEAD * self.wanted
        if self.wanted and os.getpid() == self.process and (all_did or is_ahead):
            self.end(Outcome(is_ended=True))

    def end(self, outcome: Outcome) -> NoReturn:
        """Here, whatever else the program has in mind."""
        if os.getpid() != self.process:
            os._exit(0)  # a fork of the script
        with self.overlay.passing():
            counts = [count for count in self.num_steps.values() if count]
            outcome = replace(
                outcome,
                num_steps=min(counts, default=0),
                num_optimizers=len(counts),
                removed=tuple(self.overlay.hidden),
            )
            entries = b"" if self.engine is None else self.engine.stop_recording()
            if outcome.failure:
                entries = _complete_steps(entries)
            if self.ranks is not None:
                entries = price_collectives(entries, self.ranks, self.bytes_per_ns)
            if entries:
                write_recorded(self.file, self.header, entries)
            self.report.write_text(json.dumps(asdict(outcome)))
        for worker in multiprocessing.active_children():
            worker.kill()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


def _complete_steps(entries: bytes) -> bytes:
    """Without what began after the last step that ended; none: nothing."""
    lines = entries.splitlines(keepends=True)
    ends = [n for n, line in enumerate(lines) if b'"step"' in line and b'"end"' in line]
    return b"".join(lines[: ends[-1] + 1]) if ends else b""
