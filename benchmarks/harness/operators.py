"""Times single operators, in the process of a cell."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import coop
from benchmarks.models import Batch

__all__ = ["overhead", "timed_steps"]

TIMED_STEPS = 3
# An operator's kernels wait this long for the next ones to be queued behind them.
HEAD_START_CYCLES = 2 * 10**8
OVERHEAD_BUDGET = "4GiB"


class OperatorTimer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The time of every operator: on the device's own clock, or CPU time."""

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.names: list[str] = []
        self.ends: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        overload = f".{schema.overload_name}" if schema.overload_name else ""
        self.names.append(schema.name + overload)
        begin = self._now()
        result = func(*args, **(kwargs or {}))
        self.ends.append((begin, self._now()))
        return result

    def _now(self) -> Any:
        if self.device == "cpu":
            return time.process_time_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def times_ns(self) -> list[float]:
        """In the order of `names`."""
        if self.device == "cpu":
            return [end - begin for begin, end in self.ends]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e6 for begin, end in self.ends]


def timed_steps(
    batch: Callable[[], Batch], train: Callable[[Batch], object], device: str
) -> dict[str, Any]:
    """Names and times of the operators of a step, in order; medians of some steps."""
    times = []
    for _ in range(TIMED_STEPS):
        with OperatorTimer(device) as timer:
            data = batch()
            if device == "cuda":  # so that the device never waits for Python: kernels alone count
                torch.cuda._sleep(HEAD_START_CYCLES)  # type: ignore[no-untyped-call]
            train(data)
        times.append(timer.times_ns())
    return {
        "names": timer.names,
        "ns": [statistics.median(ns) for ns in zip(*times, strict=True)],
    }


def overhead(device: str, configuration: str) -> dict[str, Any]:
    """Microseconds on the clock that an operator takes to be called, best of five.

    `plain` is torch's allocator, `allocator` ours with interception off, `coop` the whole engine.
    """
    if configuration == "plain":
        return _per_operator(device)
    if device == "cpu":
        with coop.budget(OVERHEAD_BUDGET, device="cpu"):
            return _per_operator(device)
    from coop._native import _C

    coop.install(OVERHEAD_BUDGET)
    _C.set_thread_enabled(configuration == "coop")
    return _per_operator(device)


def _per_operator(device: str) -> dict[str, Any]:
    small, large = (torch.randn(size, device=device) for size in (64, 4096))
    image = torch.randn(8, 16, 16, 16, device=device)
    norm = torch.nn.BatchNorm2d(16).to(device)
    convolution = torch.nn.Conv2d(16, 16, 1, bias=False).to(device)
    weights = [torch.nn.Parameter(torch.randn(64, 64, device=device)) for _ in range(160)]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.AdamW(weights, fused=True)
    optimizer.step()

    def backward() -> None:
        y = image.detach().requires_grad_()
        for _ in range(10):
            y = y + image
        y.sum().backward()  # type: ignore[no-untyped-call]

    cases: dict[str, tuple[Callable[[], object], int]] = {
        "empty": (lambda: torch.empty(4096, device=device), 2000),
        "add small": (lambda: torch.add(small, small), 2000),
        "add": (lambda: torch.add(large, large), 2000),
        "view": (lambda: large.view(64, 64), 2000),
        "add_": (lambda: small.add_(small), 2000),
        "to bf16": (lambda: large.to(torch.bfloat16), 2000),
        "batch norm": (lambda: norm(image), 2000),
        "convolution": (lambda: convolution(image), 2000),
        "10 adds and backward": (backward, 200),
        "fused AdamW of 160": (lambda: optimizer.step(), 100),
    }
    return {
        "status": "ok",
        "us_per_call": {
            name: round(_per_call_us(call, count, device), 2)
            for name, (call, count) in cases.items()
        },
    }


def _per_call_us(call: Callable[[], object], count: int, device: str) -> float:
    best = float("inf")
    for _ in range(6):  # the first one warms up
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - begin) / count)
    if device == "cuda":
        torch.cuda.synchronize()
    return best * 1e6
