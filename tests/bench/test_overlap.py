"""What the picture of overlap is drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.overlap import STEP, draw, merged, read_step


def event(category: str, name: str, begin: float, end: float) -> dict[str, Any]:
    """Times in ms."""
    times = {"ts": 1e3 * begin, "dur": 1e3 * (end - begin)}
    return {"ph": "X", "cat": category, "name": name, **times}


def trace() -> dict[str, Any]:
    return {
        "traceEvents": [
            {"ph": "M", "name": "process_name"},
            event("user_annotation", STEP, 100, 120),
            event("kernel", "before the step", 90, 95),
            event("kernel", "gemm", 100, 104),
            event("kernel", "gemm", 103, 108),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 108, 109),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 102, 106),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 106, 112),
            event("kernel", "adam", 112, 115),
            event("cpu_op", "aten::mm", 100, 120),
        ]
    }


def test_lanes_and_what_ran_beside_what(tmp_path: Path) -> None:
    step = read_step(trace())
    assert step.ms == 20
    assert step.busy_ms("operators") == pytest.approx(12)
    assert step.busy_ms("copies out") == pytest.approx(4)
    assert step.busy_ms("copies back") == pytest.approx(6)
    assert step.waited_ms == pytest.approx(3)
    assert step.beside == pytest.approx(0.7)
    draw(step, tmp_path / "picture.svg", "a title")
    assert "a title" in (tmp_path / "picture.svg").read_text()


def test_spans_are_merged_where_they_touch() -> None:
    spans = np.array([[5.0, 6.0], [0.0, 2.0], [1.0, 1.5], [2.0, 3.0]])
    assert merged(spans).tolist() == [[0, 3], [5, 6]]
    assert merged(np.zeros((0, 2))).tolist() == []
