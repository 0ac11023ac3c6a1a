"""A still picture of the arena, for documents. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coop.files import write_whole
from coop.recording import Recording
from coop.report.timeline import BlockClass, Timeline, make_timeline
from coop.sizes import format_bytes

__all__ = ["save_still"]

# The colours of page.data.js.
COLORS = {
    BlockClass.ROOT: (91, 107, 140),
    BlockClass.EXPENSIVE: (222, 132, 45),
    BlockClass.CHEAP: (70, 150, 214),
    BlockClass.SMALL: (150, 105, 190),
    BlockClass.TEMPORARY: (176, 176, 140),
}
RECOMPUTED = 0.45  # towards white
MIB = 2**20


def save_still(
    recording: Recording, path: str | Path, title: str = "", size: tuple[int, int] = (1600, 900)
) -> None:
    """Write a PNG of about `size` pixels: the arena, and the bytes held, over time."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise ImportError("a still picture needs matplotlib: pip install matplotlib") from None
    timeline = make_timeline(recording)
    budget = recording.stats["budget_bytes"]
    figure = Figure(figsize=(size[0] / 100, size[1] / 100), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    held, arena = figure.subplots(2, 1, sharex=True, height_ratios=(1, 4))
    seconds = timeline.curve[:, 0] / 1e9
    held.fill_between(seconds, timeline.curve[:, 2] / MIB, step="post", color="#6b8fc4", lw=0)
    label = f"budget {format_bytes(int(budget))}"
    held.axhline(budget / MIB, color="#b42318", ls="--", label=label)
    held.set_ylabel("held, MiB")
    held.set_ylim(0, budget / MIB * 1.1)
    held.legend(loc="lower right")
    held.set_title(title)
    arena.imshow(
        _raster(timeline, int(budget), size[0], size[1]),
        extent=(0, max(timeline.end_ns, 1) / 1e9, 0, budget / MIB),
        aspect="auto",
        origin="lower",
        interpolation="none",
    )
    arena.set_xlabel("time, s (estimated cost of all operators that ran)")
    arena.set_ylabel("address, MiB")
    patches = [
        Patch(color=[part / 255 for part in color], label=kind.name.lower())
        for kind, color in COLORS.items()
    ]
    patches.append(Patch(color="#b2d3ee", label="lighter: recomputed"))
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_whole(path, content.getvalue())


def _raster(timeline: Timeline, budget: int, width: int, height: int) -> npt.NDArray[Any]:
    image = np.full((height, width, 3), 255, dtype=np.uint8)
    lives = timeline.lives
    across, up = width / max(timeline.end_ns, 1), height / budget
    left = (lives.begin_ns * across).astype(int)
    right = np.maximum((lives.end_ns * across).astype(int), left + 1)
    low = (lives.offset * up).astype(int)
    high = np.maximum(((lives.offset + lives.bytes) * up).astype(int), low + 1)
    table = np.array([COLORS[kind] for kind in BlockClass])
    color = table[lives.block_class].astype(float)
    color[lives.recomputed] += (255 - color[lives.recomputed]) * RECOMPUTED
    columns = (left, right, low, high, color.astype(np.uint8))
    for x0, x1, y0, y1, paint in zip(*columns, strict=True):
        image[y0:y1, x0:x1] = paint
    return image
