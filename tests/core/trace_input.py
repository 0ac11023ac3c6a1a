"""Any bytes at all as a trace: read, or refused with a `TraceError` that can be printed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from coop.simulate import simulate
from coop.trace import TraceError, read_trace

BUDGETS = (64 * 1024, 1 << 40)


def read_anything(content: bytes) -> bool:
    """Whether it was a trace. One that is read is simulated too."""
    suffix = ".jsonl.gz" if content[:2] == b"\x1f\x8b" else ".jsonl"
    with tempfile.NamedTemporaryFile(suffix=suffix, dir=_directory()) as file:
        file.write(content)
        file.flush()
        try:
            trace = read_trace(file.name)
        except TraceError as error:
            str(error).encode()
            return False
    trace.header.comment.encode()
    for budget_bytes in BUDGETS:
        result = simulate(trace, budget_bytes)
        result.failure.encode()
        assert result.stats["peak_bytes"] <= budget_bytes
    return True


def _directory() -> str | None:
    """Not on a disk, where that can be had."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
