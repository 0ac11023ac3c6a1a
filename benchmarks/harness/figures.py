"""The results as the paper's figures: SVG for documents, PNG for everything else.

Every line and bar carries its own name, so no figure needs a legend or a caption; the colours are
those of Okabe and Ito, which colour-blind readers can tell apart, and every line has its marker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from benchmarks.harness.cells import ABLATIONS, POLICIES
from benchmarks.harness.results import Results

__all__ = ["PUBLISHED_DTR", "draw"]

Row = dict[str, Any]

TITLES = {
    "resnet50": "ResNet-50",
    "resnet152": "ResNet-152",
    "inception_v3": "Inception V3",
    "unet": "U-Net",
    "swin": "Swin",
    "bert_large": "BERT Large",
    "gpt3": "GPT-3 style",
    "bilstm": "BiLSTM",
    "bilstm_fused": "BiLSTM, fused",
    "spos": "SPOS (random path)",
    "densenet121": "DenseNet-121",
    "treelstm": "TreeLSTM",
}
LABELS = {
    "coop": "Coop",
    "coop-paper": "Coop as published",
    "dtr": "DTR",
    "dte": "DTE",
    "no-window": "no window",
    "no-partition": "no partition",
    "no-inplace": "no in-place",
    "checkpoint": "checkpointing",
}
STYLES = {
    "coop": ("#0072b2", "o"),
    "coop-paper": ("#56b4e9", "P"),
    "dtr": ("#d55e00", "s"),
    "dte": ("#009e73", "^"),
    "no-window": ("#cc79a7", "v"),
    "no-partition": ("#b07d00", "<"),
    "no-inplace": ("#777777", ">"),
    "checkpoint": ("#000000", "*"),
}
PARTS = ("coop", *ABLATIONS)

# DTR's published slowdowns by budget ratio (arXiv 2006.09616, Titan V), for the same networks.
PUBLISHED_DTR = {
    "unet": ((0.71, 1.14), (0.48, 1.25)),
    "densenet121": ((0.73, 1.22), (0.54, 1.29), (0.36, 1.52)),
    "treelstm": ((0.67, 1.85), (0.45, 2.09), (0.22, 3.02)),
}
NOTHING_IN_COMMON = "(no measured budget that all three fit)"
GOAL_FRAGMENTATION = 0.05  # Coop is to waste at most this on average


def draw(results: Results, folder: Path) -> list[Path]:
    """Draws every figure there are numbers for; returns the files."""
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "coop",
            "font.size": 9,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    figures = {
        "overhead": _curves(
            results,
            POLICIES,
            "overhead_cost",
            "Extra compute by memory budget: estimated cost of what is run again",
        ),
        "fragmentation": _fragmentation(results),
        "search": _search(results),
        "smallest-budget": _smallest(results, [*POLICIES, "checkpoint"], "shorter is better"),
        "ablation": _curves(
            results,
            PARTS,
            "overhead_cost",
            "What each part of Coop brings: extra compute with one part switched off",
        ),
        "ablation-smallest-budget": _smallest(
            results, PARTS, "Coop, and Coop without one of its parts"
        ),
    }
    if results.header["settings"]["device"] == "cuda":
        figures["step-time"] = _curves(
            results, POLICIES, "overhead_wall", "Longer steps by memory budget: measured step time"
        )
    written = []
    for name, figure in figures.items():
        if figure is None:
            continue
        figure.supxlabel(_source(results), size=6.5, color="#666666", x=0.995, ha="right")
        for path in (folder / f"{name}.svg", folder / f"{name}.png"):
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=150, metadata=metadata, facecolor="white")
            written.append(path)
    return written


def _source(results: Results) -> str:
    settings, runs = results.header["settings"], results.header["runs"]
    machines = {f"{run.get('gpu') or run['cpu']}, torch {run['torch']}" for run in runs}
    return (
        f"Size “{settings['size']}”, {settings['steps']} steps, {'; '.join(sorted(machines))}, "
        f"{max(run['date'] for run in runs)[:10]}"
    )


def _title(model: str) -> str:
    return TITLES.get(model, model)


def _measured(results: Results, names: Sequence[str], kind: str) -> list[str]:
    return [name for name in names if any(results.find(m, name, kind) for m in results.models)]


# --- curves: one panel a network, the budget shrinks to the right --------------------------------


def _curves(results: Results, names: Sequence[str], field: str, title: str) -> Figure | None:
    names = _measured(results, names, "ratio")
    models = [m for m in results.models if any(results.find(m, name, "ratio") for name in names)]
    if len(names) < 2 or not models:
        return None
    columns = min(4, len(models))
    num_rows = math.ceil(len(models) / columns)
    figure = Figure(figsize=(3.1 * columns, 2.6 * num_rows + 0.7), layout="constrained")
    figure.suptitle(f"{title}\n", weight="bold")
    figure.text(
        0.5,
        1 - 0.36 / figure.get_figheight(),
        "Crosses along the foot: does not fit, or was given up. Lower is better, "
        "further right is less memory.",
        ha="center",
        color="#444444",
    )
    for index, model in enumerate(models):
        axes = figure.add_subplot(num_rows, columns, index + 1)
        axes.set_title(_title(model), loc="left", size=10)
        _panel(axes, results, model, names, field)
        if index % columns == 0:
            what = "longer step" if field == "overhead_wall" else "extra compute"
            axes.set_ylabel(f"{what}, %")
        if index >= len(models) - columns:
            axes.set_xlabel("budget, % of plain peak")
    return figure


def _panel(axes: Axes, results: Results, model: str, names: Sequence[str], field: str) -> None:
    # Where at least two were measured: one alone says nothing.
    shown = [
        ratio
        for ratio in results.ratios
        if sum(bool(results.row(model, name, ratio)) for name in names) > 1
    ]
    ratios = [100 * ratio for ratio in shown]
    labels: list[tuple[float, float, str, str]] = []
    heights = [10.0]
    for name in names:
        rows = [row for row in (results.at(model, name, ratio) for ratio in shown) if row]
        points = [(100 * row["ratio"], 100 * (row[field] - 1)) for row in rows]
        color, marker = STYLES[name]
        if points:
            axes.plot(*zip(*points, strict=True), color=color, marker=marker, ms=5, lw=1.4)
            labels.append((*points[-1], LABELS[name], color))
            heights += [y for _, y in points]
    extra: list[tuple[float, float]] = []
    if "dtr" in names:
        extra += _others(axes, results, model, field)
    heights += [y for _, y in extra]
    high = 1.22 * max(heights)
    lines = len(names)
    foot = 0.055 * high  # height of one row of crosses
    axes.set_ylim(-foot * (lines + 0.6), high)
    for position, name in enumerate(names):
        failed = [
            100 * row["ratio"]
            for row in results.find(model, name, "ratio")
            if row["status"] != "ok" and row["ratio"] in shown
        ]
        y = -foot * (position + 0.9)
        axes.plot(failed, [y] * len(failed), "x", color=STYLES[name][0], ms=4.5, mew=1.3)
    axes.axhline(0, color="#888888", lw=0.6)
    places = [*ratios, *(x for x, _ in extra)] or [100.0]
    left, right = max(places), min(places)
    axes.set_xlim(left + 3, right - 0.28 * (left - right) - 2)
    axes.set_xticks([tick for tick in range(100, 0, -20) if right - 1 <= tick <= left + 1])
    step = _nice_step(high)
    axes.set_yticks([step * i for i in range(int(high // step) + 1)])
    _label_ends(axes, labels, 0.075 * high * (1 + 0.06 * lines))


def _nice_step(high: float) -> float:
    rough = high / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _others(axes: Axes, results: Results, model: str, field: str) -> list[tuple[float, float]]:
    """Checkpointing, and what DTR's authors published; their points, for the limits."""
    points: list[tuple[float, float]] = []
    for row in results.find(model, "checkpoint", "plain"):
        if row["status"] != "ok" or field not in row:
            continue
        x, y = 100 * row["memory_ratio"], 100 * (row[field] - 1)
        color, marker = STYLES["checkpoint"]
        axes.plot([x], [y], color=color, marker=marker, ms=9, ls="none")
        if "peak_reserved_bytes" in row:
            # What torch's allocator took from the driver for it: that, too, has to fit.
            reserved = x * row["peak_reserved_bytes"] / row["peak_bytes"]
            axes.plot([x, reserved], [y, y], color=color, marker="|", ms=6, lw=0.8)
        _say(axes, LABELS["checkpoint"], (x, y), color, (0, 6), "center", "bottom")
        points.append((x, y))
    published = [(100 * ratio, 100 * (slow - 1)) for ratio, slow in PUBLISHED_DTR.get(model, ())]
    if published:
        color = STYLES["dtr"][0]
        axes.plot(*zip(*published, strict=True), "D", mfc="none", mec=color, ms=6)
        text = "DTR as published\n(Titan V, step time)"
        _say(axes, text, published[-1], color, (6, -3), "left", "top")
        points += published
    return points


def _say(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    color: str,
    away: tuple[float, float],
    side: str,
    foot: str,
) -> None:
    axes.annotate(
        text, at, color=color, size=7, xytext=away, textcoords="offset points", ha=side, va=foot
    )


def _label_ends(axes: Axes, labels: list[tuple[float, float, str, str]], gap: float) -> None:
    """Names at the ends of lines, moved apart where they would lie on each other."""
    below = -math.inf
    for x, y, text, color in sorted(labels, key=lambda label: label[1]):
        y = max(y, below + gap)
        below = y
        axes.annotate(
            text,
            (x, y),
            color=color,
            size=8,
            weight="bold",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            annotation_clip=False,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )


# --- bars: one group a network, every bar with its name and number ------------------------------


def _bars(
    results: Results,
    names: Sequence[str],
    title: str,
    axis: str,
    value: Callable[[str, str], float | None],
    text: Callable[[str, str], str],
) -> Figure:
    models = results.models
    height = 0.19 * len(names) * len(models) + 0.16 * len(models) + 1.3
    figure = Figure(figsize=(8.5, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, weight="bold", loc="left", size=10)
    pitch = len(names) + 0.8
    largest = max((value(m, n) or 0.0 for m in models for n in names), default=0.0) or 1.0
    for index, model in enumerate(models):
        for position, name in enumerate(names):
            y = index * pitch + position
            length = value(model, name)
            color = STYLES[name][0]
            if length is None:
                note = f"{LABELS[name]} {text(model, name)}"
                axes.text(0.004 * largest, y, note, va="center", size=7.5, color=color)
                continue
            axes.barh(y, length, 0.86, color=color)
            note = f"{LABELS[name]} {text(model, name)}"
            end = length + 0.008 * largest
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
            axes.text(end, y, note, va="center", size=7.5, color=color, bbox=box)
    middle = (len(names) - 1) / 2
    ticks = [index * pitch + middle for index in range(len(models))]
    axes.set_yticks(ticks, [_title(model) for model in models])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlim(0, largest * 1.3)
    axes.set_xlabel(axis)
    return figure


def _mean_text(results: Results, field: str, show: Callable[[float], str]) -> Any:
    def text(model: str, name: str) -> str:
        value = results.mean(model, name, field)
        return NOTHING_IN_COMMON if value is None else show(value)

    return text


def _fragmentation(results: Results) -> Figure | None:
    names = _measured(results, POLICIES, "ratio")
    if not names:
        return None

    def percent(model: str, name: str) -> float | None:
        value = results.mean(model, name, "fragmentation")
        return None if value is None else 100 * value

    figure = _bars(
        results,
        names,
        "Fragmentation: memory that is free, yet in pieces too small, after each eviction",
        "mean of free bytes, % of the budget, over the budgets that all policies fit",
        percent,
        _mean_text(results, "fragmentation", lambda value: f"{value:.1%}"),
    )
    axes = figure.axes[0]
    axes.axvline(100 * GOAL_FRAGMENTATION, color="#444444", lw=1, ls="--")
    axes.annotate(
        f"goal: {GOAL_FRAGMENTATION:.0%}",
        (100 * GOAL_FRAGMENTATION, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, 0),
        textcoords="offset points",
        size=7,
        color="#444444",
    )
    return figure


def _search(results: Results) -> Figure | None:
    names = _measured(results, POLICIES, "ratio")
    if not names:
        return None

    def text(model: str, name: str) -> str:
        latency = results.mean(model, name, "us_per_forced")
        share = results.mean(model, name, "search_share")
        if latency is None or share is None:
            return NOTHING_IN_COMMON
        return f"{latency:.1f} µs, {share:.2%} of the step"

    return _bars(
        results,
        names,
        "Search: time to choose what to evict, for each allocation that does not fit",
        "µs per forced allocation, mean over the budgets that all policies fit",
        lambda model, name: results.mean(model, name, "us_per_forced"),
        text,
    )


def _smallest(results: Results, names: Sequence[str], what: str) -> Figure | None:
    names = [
        name
        for name in names
        if _measured(results, [name], "plain" if name == "checkpoint" else "smallest")
    ]
    if not set(names) - {"coop", "checkpoint"}:
        return None

    def percent(model: str, name: str) -> float | None:
        if name == "checkpoint":
            good = [r for r in results.find(model, name, "plain") if r["status"] == "ok"]
            return 100 * good[0]["memory_ratio"] if good else None
        value = results.smallest(model, name)
        return None if value is None else 100 * value

    def text(model: str, name: str) -> str:
        value = percent(model, name)
        if value is not None:
            return f"{value:.0f}%"
        if name == "checkpoint":
            return "(has no blocks)"
        return "(none found)" if results.find(model, name, "smallest") else "(not searched)"

    return _bars(
        results,
        names,
        f"Smallest budget that trains: {what}",
        "% of the peak without a budget"
        + (" (checkpointing: the peak it has)" if "checkpoint" in names else ""),
        percent,
        text,
    )
