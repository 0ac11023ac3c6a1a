"""A program whose cheapest evictions are known by hand."""

from __future__ import annotations

from pathlib import Path

from benchmarks.program import Program, read_program
from coop.trace import TraceWriter

UNIT = 6400  # bytes


def program(path: Path, dead_bytes: int) -> Program:
    """Expensive and cheap values that are read again, and a dead one in between."""
    with TraceWriter(path) as writer:
        writer.operator("expensive", 100, outputs=[(1, UNIT)])
        writer.operator("dead", 20, outputs=[(2, dead_bytes)])
        writer.operator("cheap", 10, inputs=[2], outputs=[(3, UNIT)])
        writer.free(2)
        writer.operator("large", 1, outputs=[(4, 10 * UNIT)])
        writer.free(4)
        writer.operator("reads", 69, inputs=[1, 3])
    return read_program(path)
