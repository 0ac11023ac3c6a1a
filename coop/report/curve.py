"""A picture of a plan: step time against budget. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from pathlib import Path

from coop.files import write_whole
from coop.planner import Plan

__all__ = ["save_curve"]

COLORS = ("#de842d", "#4696d6", "#9669be", "#5b6b8c")
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
    for policy, color in zip(plan.smallest_bytes, COLORS, strict=False):
        fitting = [point for point in plan.curve(policy) if point.fits]
        axes.plot(
            [point.budget_bytes / GIB for point in fitting],
            [point.step_ns / 1e6 for point in fitting],
            marker="o",
            color=color,
            label=policy,
        )
        axes.axvline(plan.smallest_bytes[policy] / GIB, color=color, ls=":", lw=1)
    axes.axhline(plan.step_ns / 1e6, color="grey", lw=1, label="without a limit")
    axes.axvline(plan.peak_bytes / GIB, color="grey", lw=1)
    if plan.checkpointed is not None:
        axes.axhline(plan.checkpointed.step_ns / 1e6, color="green", ls="--", lw=1)
        axes.plot(
            [plan.checkpointed.peak_bytes / GIB],
            [plan.checkpointed.step_ns / 1e6],
            marker="s",
            color="green",
            ls="none",
            label="torch.utils.checkpoint",
        )
    axes.set_xlabel("budget, GiB")
    axes.set_ylabel("predicted step, ms")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{Path(plan.trace).name} on {plan.device or 'the recorded device'}")
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_whole(path, buffer.getvalue())
