"""What budget a program needs and what it costs there, before anything is rented or run.

`plan_trace` sweeps a trace over budgets and policies through the simulator, which decides as the
engine does; `plan` records a function without the hardware first; `largest_batch` asks the other
way round. Times are rooflines of the device: estimates.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from coop.plans import NO_ROOM, Checkpointed, Plan, Point, Room
from coop.profiles import get_device
from coop.simulate import (
    STEADY_STEPS,
    Options,
    Simulation,
    StepCost,
    peak_without_limit,
    simulate,
)
from coop.sizes import LARGEST_BYTES, parse_bytes
from coop.trace import Trace, read_trace, write_recorded
from coop.tracing import record_without_hardware

__all__ = [
    "BatchPlan",
    "Checkpointed",
    "Plan",
    "Point",
    "default_budgets",
    "largest_batch",
    "plan",
    "plan_trace",
    "record_function",
    "smallest_budget",
]

DEFAULT_POLICIES = ("coop", "dtr", "dte")
DEFAULT_DEVICE = "h200"
NUM_BUDGETS = 10
# The smallest budget is searched down to this share of itself.
_TOLERANCE = 0.005
# A step that recomputes for more steps than these is of no use to anyone, and would take long to
# simulate: near the limit of what fits it can be hundreds.
_MOST_REPLAY = 5.0

Progress = Callable[[int, int], None]  # simulations done, simulations known of


@dataclass
class _Sweep:
    """Simulations on all cores, with progress; none is run twice."""

    trace: Trace
    progress: Progress | None = None
    room: Room = NO_ROOM
    done: int = 0
    begun: int = 0
    waiting: int = 0  # those that will be begun, as far as is known
    pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=os.cpu_count())
    )
    points: dict[tuple[str, int], Point] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def run(self, policy: str, budget_bytes: int, *, was_waiting: bool = False) -> Point:
        point = self.points.get((policy, budget_bytes))
        if point is not None:
            return point
        with self.lock:
            self.waiting -= was_waiting
            self.begun += 1
        point = _point(_simulate(self.trace, policy, budget_bytes, self.room))
        with self.lock:
            self.points[policy, budget_bytes] = point
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, self.begun + self.waiting)
        return point

    def run_all(self, cells: Sequence[tuple[str, int]]) -> tuple[Point, ...]:
        """Those of them that were run already are not waited for, so that the total is right."""
        new = [cell for cell in cells if cell not in self.points]
        self.waiting = len(new)
        for _ in self.pool.map(lambda cell: self.run(*cell, was_waiting=True), new):
            pass
        if not new and self.progress is not None:
            self.progress(self.done, self.done)
        return tuple(self.points[cell] for cell in cells)

    def smallest(self, policy: str, peak_bytes: int) -> int:
        """Whether it fits is not strictly monotonic in the budget: see `smallest_budget`."""
        low, best = 0, _rounded_up(peak_bytes * 1.02)
        while not self.run(policy, best).fits:  # alignment and fragmentation
            low, best = best, _rounded_up(best * 1.25)
        while best - low > max(4096, _TOLERANCE * best):
            middle = _rounded_up((best + low) / 2)
            if self.run(policy, middle).fits:
                best = middle
            elif middle >= best:
                break
            else:
                low = middle
        return best


def _room(host: int | str, device: str) -> Room:
    num_bytes = LARGEST_BYTES if host == "auto" else parse_bytes(host) if host else 0
    try:
        return Room(num_bytes, get_device(device).link)
    except ValueError:
        return Room(num_bytes)  # recorded where it ran


def _simulate(trace: Trace, policy: str, budget_bytes: int, room: Room = NO_ROOM) -> Simulation:
    options = Options(
        policy, alignment=trace.header.alignment, host_bytes=room.host_bytes, link=room.link
    )
    return simulate(trace, budget_bytes, options, most_replay=_MOST_REPLAY)


def _unlimited(trace: Trace, policy: str, peak_bytes: int) -> Simulation:
    """With room for everything."""
    return _simulate(trace, policy, _rounded_up(4 * peak_bytes + 2**26))


def _needed(trace: Trace, unlimited: Simulation) -> int:
    """A budget without an eviction: what the run with room says it needs, which is tried."""
    policy = unlimited.options.policy
    needed_bytes = _rounded_up(unlimited.stats["needed_bytes"])
    while True:
        result = _simulate(trace, policy, needed_bytes)
        if result.fitted and result.stats["num_evictions"] == 0:
            return needed_bytes
        needed_bytes = _rounded_up(needed_bytes * 1.01)


def _rounded_up(num_bytes: float) -> int:
    return math.ceil(num_bytes / 4096) * 4096


def smallest_budget(trace: Trace, policy: str = "coop") -> int:
    """A budget that the trace fits and, within 0.5%, has one below it that it does not fit."""
    return _Sweep(trace).smallest(policy, peak_without_limit(trace))


def default_budgets(smallest_bytes: int, most_bytes: int, count: int = NUM_BUDGETS) -> list[int]:
    """Evenly spaced from the most down to the smallest."""
    step = (most_bytes - smallest_bytes) / max(count - 1, 1)
    return [_rounded_up(most_bytes - k * step) for k in range(count - 1)] + [smallest_bytes]


def plan_trace(
    trace: Trace,
    *,
    device: str | None = None,
    budgets: Iterable[int | str] | None = None,
    policies: Sequence[str] = DEFAULT_POLICIES,
    host: int | str = 0,
    checkpointed: Trace | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Sweep a trace over budgets and policies.

    Args:
        trace: what `coop.trace.read_trace` read.
        device: prices the operators anew for this device (`coop.profiles.devices()`, or a file
            that `python -m coop calibrate` wrote); None keeps the recorded costs.
        budgets: bytes, or sizes such as `"24GiB"`; by default ten from where nothing is evicted, or
            what the device has, to the smallest that fits.
        policies: the first is the one that the advice is for.
        host: room in main memory for copies of what leaves, in bytes or as a size; 0: none;
            `"auto"`: as much as it takes.
        checkpointed: a trace of the same program with `torch.utils.checkpoint`, to compare with.
        progress: called with the numbers of simulations done and known of.
    """
    if not policies:
        raise ValueError("no policy to plan for")
    if trace.num_operators == 0:
        raise ValueError(f"{trace.path} ran no operators: there is nothing to plan")
    sizes = None if budgets is None else [parse_bytes(size) for size in budgets]
    memory_bytes = 0
    room = _room(host, device or trace.header.device)
    if device is not None:
        profile, memory_bytes = get_device(device).profile, get_device(device).memory_bytes
        trace = trace.priced(profile)
        checkpointed = None if checkpointed is None else checkpointed.priced(profile)
    peak_bytes = peak_without_limit(trace)
    sweep = _Sweep(trace.repeated(STEADY_STEPS), progress, room)
    sweep.waiting = len(policies) * (NUM_BUDGETS if sizes is None else len(sizes))
    with sweep.pool as pool:
        unlimited = _unlimited(trace, policies[0], peak_bytes)
        needed_bytes = _needed(trace, unlimited)
        smallest = dict(
            zip(policies, pool.map(lambda p: sweep.smallest(p, peak_bytes), policies), strict=True)
        )
        if sizes is None:
            fitting = min(smallest.values())
            # What the device does not have is of no use, unless nothing else fits.
            is_less = fitting < memory_bytes < needed_bytes
            most = memory_bytes // 4096 * 4096 if is_less else needed_bytes
            sizes = default_budgets(fitting, most)
        sizes = sorted(set(sizes), reverse=True)
        cells = [(policy, size) for policy in policies for size in sizes]
        points = sweep.run_all(cells)
    return Plan(
        trace=trace.path,
        device=device or trace.header.device,
        is_estimated=trace.header.estimated,
        num_operators=trace.num_operators,
        num_steps=len(unlimited.steps),
        peak_bytes=peak_bytes,
        needed_bytes=needed_bytes,
        step_ns=unlimited.last_step.compute_ns,
        points=points,
        smallest_bytes=smallest,
        knee_bytes=_knee([p for p in points if p.policy == policies[0] and p.fits]),
        checkpointed=None if checkpointed is None else _checkpointed(checkpointed),
        host_bytes=room.host_bytes,
    )


def _point(result: Simulation) -> Point:
    step = result.last_step
    step_ns = step.compute_ns + step.replay_ns + step.host_wait_ns
    return Point(
        policy=result.options.policy,
        budget_bytes=result.stats["budget_bytes"],
        fits=result.fitted,
        step_ns=step_ns if result.fitted else math.inf,
        overhead=step_ns / max(step.compute_ns, 1) if result.fitted else math.inf,
        num_evictions=step.num_evictions,
        num_replays=step.num_replays,
        failure=result.failure,
        host_wait_ns=step.host_wait_ns if result.fitted else 0,
        host_peak_bytes=result.stats["host_peak_bytes"],
        num_steps_until_steady=_steps_until_steady(result),
    )


def _steps_until_steady(result: Simulation) -> int:
    """How many steps come before those that cost as much as the last."""
    last = result.last_step
    differ = [
        number
        for number, step in enumerate(result.steps, 1)
        if abs(_extra_ns(step) - _extra_ns(last)) > 0.01 * last.compute_ns
    ]
    return max(differ, default=0)


def _extra_ns(step: StepCost) -> float:
    return step.replay_ns + step.host_wait_ns


def _checkpointed(trace: Trace) -> Checkpointed:
    peak_bytes = peak_without_limit(trace)
    return Checkpointed(peak_bytes, _unlimited(trace, "coop", peak_bytes).last_step.compute_ns)


def _knee(points: Sequence[Point]) -> int:
    """The point farthest below the straight line between the ends of the curve."""
    if not points:
        return 0
    first, last = points[0], points[-1]
    width = first.budget_bytes - last.budget_bytes
    height = last.step_ns - first.step_ns
    if len(points) < 3 or width <= 0 or height <= 0:
        return last.budget_bytes

    def below_the_line(point: Point) -> float:
        along = (first.budget_bytes - point.budget_bytes) / width
        return along - (point.step_ns - first.step_ns) / height

    return max(points, key=below_the_line).budget_bytes


def record_function(
    fn: Callable[..., Any],
    *args: Any,
    device: str = DEFAULT_DEVICE,
    path: str | Path | None = None,
    in_parts: bool = False,
    **kwargs: Any,
) -> Trace:
    """The trace of `fn(*args, **kwargs)`, recorded without the hardware.

    `fn` builds its model and runs one or more training steps; two are better than one, since the
    first also makes the optimizer's state. With `path`, the trace is kept there. `in_parts` is for
    plans with `host`: see `coop.tracing.record_without_hardware`.
    """
    name = getattr(fn, "__name__", "a function")
    with record_without_hardware(device=device, comment=name, in_parts=in_parts) as (
        header,
        entries,
    ):
        fn(*args, **kwargs)
    if path is not None:
        write_recorded(path, header, bytes(entries))
        return read_trace(path)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.jsonl"
        write_recorded(file, header, bytes(entries))
        return replace(read_trace(file), path=name)


def plan(
    fn: Callable[..., Any],
    *args: Any,
    device: str = DEFAULT_DEVICE,
    budgets: Iterable[int | str] | None = None,
    policies: Sequence[str] = DEFAULT_POLICIES,
    host: int | str = 0,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Plan:
    """What `fn(*args, **kwargs)` needs on `device`, and what it costs in less.

    `fn` is recorded without the hardware: it builds its model and its data inside, and runs one or
    two training steps. Nothing is computed, so the numbers in it mean nothing.
    """
    trace = record_function(fn, *args, device=device, in_parts=bool(host), **kwargs)
    planned = plan_trace(trace, budgets=budgets, policies=policies, host=host, progress=progress)
    return replace(planned, device=device)


@dataclass(frozen=True)
class BatchPlan:
    """The largest batch for a budget."""

    batch_size: int  # 0: not even one fits
    point: Point | None
    tried: dict[int, Point]  # by batch size


def largest_batch(
    record: Callable[[int], Trace],
    budget: int | str,
    *,
    policy: str = "coop",
    device: str | None = None,
    most_overhead: float = math.inf,
    largest: int = 65536,
) -> BatchPlan:
    """The largest batch that fits the budget, at an overhead of at most `most_overhead`.

    Args:
        record: the trace of the program with this batch size, such as
            `lambda batch: coop.record_function(train, batch)`.
        budget: bytes, or a size such as `"24GiB"`.
        policy: what chooses the evictions.
        device: prices the operators anew, as for `plan_trace`.
        most_overhead: for example 1.2: no more than 20% of recomputation.
        largest: no batch above this is tried.
    """
    num_bytes = parse_bytes(budget)
    tried: dict[int, Point] = {}

    def fits(batch_size: int) -> bool:
        trace = record(batch_size)
        if device is not None:
            trace = trace.priced(get_device(device).profile)
        tried[batch_size] = _point(_simulate(trace, policy, num_bytes))
        return tried[batch_size].fits and tried[batch_size].overhead <= most_overhead

    low, high = 0, 1
    while high <= largest and fits(high):
        low, high = high, 2 * high
    while high - low > 1 and low > 0:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return BatchPlan(low, tried.get(low), tried)
