"""How much is trained in a second in so much memory, every peer at its best batch.

    python -m benchmarks.peers --within 24GiB --batches 2,4,8,16 --out build/within.json
    python -m benchmarks.peers.throughput build/within.json --out build/within

Writes a table, and a picture for each model and memory (light and dark, SVG and PNG).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.peers.pareto import STYLES, Pictures, pages, read_arguments, write_pictures
from coop.files import write_whole
from coop.sizes import format_bytes


def per_second(row: dict[str, Any]) -> float:
    """Samples."""
    return float(1000 * row["batch_size"] / row["ms"])


def best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each way the row that trains most in a second, the best way first."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if "why_not" not in row:
            known = found.setdefault(row["way"], row)
            if per_second(row) > per_second(known):
                found[row["way"]] = row
    return sorted(found.values(), key=per_second, reverse=True)


def table(rows: list[dict[str, Any]]) -> str:
    """As Markdown, for each model and memory; a way that never fitted is there too."""
    lines = [
        "| model | memory | way | samples a second | batch |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (model, within), group in groups(rows).items():
        name = f"| {model} | {format_bytes(within)} |"
        ranked = best(group)
        lines += [
            f"{name} {row['way']} | {per_second(row):.2f} | {row['batch_size']} |" for row in ranked
        ]
        fitted = {row["way"] for row in ranked}
        failed = {row["way"]: row["why_not"] for row in group if row["way"] not in fitted}
        lines += [f"{name} {way} | {why[:90]} | |" for way, why in failed.items()]
    return "\n".join(lines) + "\n"


def groups(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """By model and memory."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        if row["within_bytes"] is not None:
            found.setdefault((row["model"], row["within_bytes"]), []).append(row)
    return found


def draw(model: str, within: int, rows: list[dict[str, Any]], theme: str) -> Pictures:
    """SVG and PNG: a bar for each way."""
    ranked = best(rows)[::-1]
    with pages(theme, (9, 1.2 + 0.34 * len(ranked))) as (axes, save):
        styles = [STYLES[row["peer"]] for row in ranked]
        colors = [light if theme == "light" else dark for _, light, dark in styles]
        names = [f"{row['way']} (batch {row['batch_size']})" for row in ranked]
        bars = axes.barh(names, [per_second(row) for row in ranked], color=colors, height=0.7)
        axes.bar_label(bars, [f"{per_second(row):.1f}" for row in ranked], padding=4)
        axes.margins(x=0.1)
        axes.set_xlabel("samples a second, each at its best batch")
        axes.set_title(f"{model} in {format_bytes(within)}")
        return save()


def main() -> None:
    """Prints what it wrote."""
    rows, out = read_arguments(__doc__)
    write_whole(out / "throughput.md", table(rows).encode())
    for (model, within), group in groups(rows).items():
        if best(group):
            name = f"{model}-{format_bytes(within)}".replace(" ", "-")
            write_pictures(out, name, partial(draw, model, within, group))


if __name__ == "__main__":
    main()
