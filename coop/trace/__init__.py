"""Traces: what a program did to memory, as JSON lines. The format is docs/trace-format.md.

`read_trace` checks a file completely and hands it to the native side; `TraceWriter` writes one,
`coop.record` writes what a program does.
"""

from .reader import read_trace
from .types import VERSION, Header, Trace, TraceError
from .writer import MemoryStep, Side, TraceWriter, write_recorded

__all__ = [
    "VERSION",
    "Header",
    "MemoryStep",
    "Side",
    "Trace",
    "TraceError",
    "TraceWriter",
    "read_trace",
    "write_recorded",
]
