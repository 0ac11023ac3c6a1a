"""A picture of a plan: step time against budget. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from coop.files import write_whole
from coop.planner import Plan
from coop.sizes import format_budget, format_bytes

__all__ = ["save_curve"]

COLORS = ("#de842d", "#4696d6", "#9669be", "#5b6b8c")
MARKERS = ("o", "s", "^", "D")
GIB = 2**30


def save_curve(plan: Plan, path: str | Path) -> None:
    """Write a PNG: a line for every policy, its smallest budget, and checkpointing where known."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(9, 5.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    # The first policy comes last, on top of the others.
    styles = zip(plan.smallest_bytes, COLORS, MARKERS, strict=False)
    for policy, color, marker in reversed(list(styles)):
        fitting = [point for point in plan.curve(policy) if point.fits]
        axes.plot(
            [point.budget_bytes / GIB for point in fitting],
            [point.step_ns / 1e6 for point in fitting],
            marker=marker,
            color=color,
            label=f"{policy}, fits down to {format_bytes(plan.smallest_bytes[policy])}",
        )
        axes.axvline(plan.smallest_bytes[policy] / GIB, color=color, ls=":", lw=1)
    axes.axhline(plan.step_ns / 1e6, color="grey", lw=1)
    axes.axvline(
        plan.needed_bytes / GIB,
        color="grey",
        lw=1,
        label=f"nothing is evicted from {format_budget(plan.needed_bytes)} on",
    )
    if plan.checkpointed is not None:
        axes.axhline(plan.checkpointed.step_ns / 1e6, color="green", ls="--", lw=1)
        axes.plot(
            [plan.checkpointed.peak_bytes / GIB],
            [plan.checkpointed.step_ns / 1e6],
            marker="*",
            markersize=12,
            color="green",
            ls="none",
            label="torch.utils.checkpoint",
        )
    for point in plan.curve(plan.points[0].policy):
        if point.fits and point.budget_bytes == plan.knee_bytes:
            axes.annotate(
                "knee",
                (point.budget_bytes / GIB, point.step_ns / 1e6),
                xytext=(0, 14),
                textcoords="offset points",
                ha="center",
            )
    axes.set_xlabel("budget, GiB")
    axes.set_ylabel("predicted step, ms")
    axes.margins(y=0.12)
    _add_percent_axis(axes, plan.step_ns / 1e6)
    axes.set_title(f"{Path(plan.trace).name} on {plan.device or 'the recorded device'}")
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_whole(path, buffer.getvalue())


def _add_percent_axis(axes: Any, step_ms: float) -> None:
    def percent(ms: Any) -> Any:
        return (ms / step_ms - 1) * 100

    def time_ms(percent: Any) -> Any:
        return (percent / 100 + 1) * step_ms

    axis = axes.secondary_yaxis("right", functions=(percent, time_ms))
    axis.set_ylabel("more than without a limit, %")
