"""How quickly bytes go between a GPU and main memory, measured."""

from __future__ import annotations

import contextlib

import torch

from coop.profiles import Link

__all__ = ["measure_link"]

_SMALL_BYTES = 4096
_NUM_SMALL = 32


def measure_link(device: torch.device, num_bytes: int = 2**26, *, both: bool = False) -> Link:
    """Of page-locked memory; a few milliseconds, most of them to lock it.

    Args:
        device: a GPU.
        num_bytes: of one copy; there are four each way.
        both: the other way is busy meanwhile, each in a stream of its own. Else all of it is in
            the current stream.
    """
    there, here = (
        [torch.empty(num_bytes, dtype=torch.uint8, **where) for _ in range(2)]
        for where in ({"device": device}, {"pin_memory": True})
    )
    ways = ((here[0], there[0]), (there[1], here[1]))  # (to, from): out, in
    streams = [
        torch.cuda.Stream(device) if both else None  # type: ignore[no-untyped-call]
        for _ in ways
    ]
    for to, of in ways:  # the first copy of memory is slower
        to.copy_(of, non_blocking=True)
    torch.cuda.synchronize(device)
    timers = []
    for (to, of), stream in zip(ways, streams, strict=True):
        with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
            timers.append(_timed(to, of, 4))
    small = _timed(here[0][:_SMALL_BYTES], there[0][:_SMALL_BYTES], _NUM_SMALL)
    torch.cuda.synchronize(device)
    latency_ns = small[0].elapsed_time(small[1]) * 1e6 / _NUM_SMALL
    seconds = [begin.elapsed_time(end) / 1e3 for begin, end in timers]
    out, back = (4 * num_bytes / max(each, 1e-9) for each in seconds)
    return Link(out, back, max(latency_ns, 1.0))


def _timed(
    to: torch.Tensor, of: torch.Tensor, count: int
) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    begin.record()
    for _ in range(count):
        to.copy_(of, non_blocking=True)
    end.record()
    return begin, end
