"""Step time against memory, all peers of a model in one picture, with the Pareto front drawn.

    python -m benchmarks.peers.pareto build/peers.json --out build/peers

Writes MODEL-light.svg, MODEL-dark.svg and the same as PNG. The colours are Okabe and Ito's, which
people who do not see all colours can tell apart; every peer also has a mark of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from coop.files import write_whole

# Mark and colour (in the light, in the dark) by peer.
STYLES = {
    "plain": ("*", "#000000", "#ffffff"),
    "checkpoint": ("s", "#0072b2", "#56b4e9"),
    "checkpoint, selective": ("D", "#0072b2", "#56b4e9"),
    "compile": ("^", "#009e73", "#00c291"),
    "compile, memory budget": ("v", "#009e73", "#00c291"),
    "compile, checkpoint": ("<", "#009e73", "#00c291"),
    "save_on_cpu": ("x", "#a35d86", "#cc79a7"),
    "offload hooks": ("+", "#a35d86", "#cc79a7"),
    "torchao CPU-offload optimizer": ("1", "#8c6d00", "#e69f00"),
    "FSDP2 CPU offload": ("2", "#8c6d00", "#e69f00"),
    "coop": ("o", "#d55e00", "#ff8a3d"),
    "coop, compiled": ("P", "#d55e00", "#ff8a3d"),
}
THEMES = {"light": ("#ffffff", "#1d2433", "#d8dde6"), "dark": ("#14171f", "#e4e8f0", "#343b49")}
GIB, MIB = 2**30, 2**20
Pictures = tuple[bytes, bytes]  # SVG and PNG


def front(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that no other beats in both, from the least memory on."""
    best: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["memory_bytes"], row["ms"])):
        if not best or row["ms"] < best[-1]["ms"]:
            best.append(row)
    return best


@contextlib.contextmanager
def pages(theme: str, size: tuple[float, float]) -> Iterator[tuple[Any, Callable[[], Pictures]]]:
    """Axes in the colours of a theme, and what saves them."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    page, ink, line = THEMES[theme]
    settings = {
        "svg.hashsalt": "coop", "text.color": ink, "axes.labelcolor": ink, "axes.edgecolor": line,
        "xtick.color": ink, "ytick.color": ink, "axes.facecolor": page, "legend.facecolor": page,
        "legend.edgecolor": line, "font.size": 11,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, facecolor=page, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.grid(color=line, linewidth=0.6)
        axes.set_axisbelow(True)

        def save() -> Pictures:
            pictures = []
            for kind, extra in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 110})):
                content = io.BytesIO()
                figure.savefig(content, format=kind, facecolor=page, **extra)
                pictures.append(content.getvalue())
            return pictures[0], pictures[1]

        yield axes, save


def write_pictures(folder: Path, name: str, draw: Callable[[str], Pictures]) -> None:
    """In both themes; prints where."""
    for theme in THEMES:
        svg, png = draw(theme)
        write_whole(folder / f"{name}-{theme}.svg", svg)
        write_whole(folder / f"{name}-{theme}.png", png)
        print(folder / f"{name}-{theme}.svg")


def draw(model: str, rows: list[dict[str, Any]], theme: str) -> Pictures:
    """SVG and PNG."""
    unit, name = (GIB, "GiB") if max(r["memory_bytes"] for r in rows) > 2 * GIB else (MIB, "MiB")
    with pages(theme, (9, 5.4)) as (axes, save):
        best = front(rows)
        across = [row["memory_bytes"] / unit for row in best]
        axes.step(
            across,
            [row["ms"] for row in best],
            where="post",
            color=THEMES[theme][1],
            lw=1,
            alpha=0.5,
        )
        for peer, (mark, light, dark) in STYLES.items():
            own = sorted(
                (row for row in rows if row["peer"] == peer), key=lambda row: row["memory_bytes"]
            )
            if not own:
                continue
            x = [row["memory_bytes"] / unit for row in own]
            y = [row["ms"] for row in own]
            least, most = zip(*(row["ms_range"] for row in own), strict=True)
            color = light if theme == "light" else dark
            axes.vlines(x, least, most, color=color, lw=1, alpha=0.6)
            axes.plot(
                x, y, mark, ls="-" if len(own) > 1 else "", lw=1.2, ms=8, color=color, label=peer
            )
        axes.set_xlabel(f"memory taken from the {'driver' if is_gpu(rows) else 'system'}, {name}")
        of = "" if is_gpu(rows) else " of CPU time"
        axes.set_ylabel(f"step, ms{of} (a bar: from the quickest to the slowest)")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_title(f"{model}: below and to the left is better; the thin line is the front")
        axes.figure.legend(loc="outside right upper", frameon=False)
        return save()


def is_gpu(rows: list[dict[str, Any]]) -> bool:
    """Whether they were measured on one."""
    return rows[0]["device"] == "cuda"


def table(rows: list[dict[str, Any]]) -> str:
    """All rows as Markdown; what did not run says why."""
    lines = [
        "| model | way | step, ms | memory, MiB | over plain |",
        "| --- | --- | --- | --- | --- |",
    ]
    plain = {row["model"]: row for row in rows if row["way"] == "plain" and "ms" in row}
    for row in rows:
        if "ms" not in row:
            lines.append(f"| {row['model']} | {row['way']} | {row['why_not']} | | |")
            continue
        over = f"{row['ms'] / plain[row['model']]['ms'] - 1:+.0%}" if row["model"] in plain else ""
        memory = row["memory_bytes"] / MIB
        lines.append(f"| {row['model']} | {row['way']} | {row['ms']:.1f} | {memory:.0f} | {over} |")
    return "\n".join(lines) + "\n"


def read_arguments(description: str | None) -> tuple[list[dict[str, Any]], Path]:
    """The rows, and the folder to write to."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    return json.loads(args.rows.read_text()), args.out


def main() -> None:
    """Prints what it wrote."""
    rows, out = read_arguments(__doc__)
    write_whole(out / "table.md", table(rows).encode())
    for model in dict.fromkeys(row["model"] for row in rows):
        measured = [row for row in rows if row["model"] == model and "ms" in row]
        if not measured:
            continue
        write_pictures(out, model, partial(draw, model, measured))


if __name__ == "__main__":
    main()
