"""The results as the paper's figures: SVG for documents, PNG for everything else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coop.bench.results import Results

__all__ = ["draw"]

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
    "coop": "Coop (ours)",
    "coop-paper": "Coop as published",
    "dtr": "DTR",
    "dte": "DTE",
    "no-window": "without sliding window",
    "no-partition": "without partitioning",
    "no-inplace": "without in-place",
    "checkpoint": "torch.utils.checkpoint",
}
# Told apart without colours too: every configuration has a marker of its own.
STYLES: dict[str, tuple[str, str]] = {
    "coop": ("#0072b2", "o"),
    "coop-paper": ("#56b4e9", "P"),
    "dtr": ("#d55e00", "s"),
    "dte": ("#009e73", "^"),
    "no-window": ("#cc79a7", "v"),
    "no-partition": ("#e69f00", "<"),
    "no-inplace": ("#999999", ">"),
    "checkpoint": ("#000000", "*"),
}
POLICIES = ("coop", "coop-paper", "dtr", "dte")
PARTS = ("coop", "coop-paper", "no-window", "no-partition", "no-inplace")

# DTR's published slowdowns (arXiv 2006.09616, Titan V), where the network is the same.
PUBLISHED_DTR = {
    "unet": ((0.71, 1.14), (0.48, 1.25)),
    "densenet121": ((0.73, 1.22), (0.54, 1.29), (0.36, 1.52)),
    "treelstm": ((0.67, 1.85), (0.45, 2.09), (0.22, 3.02)),
}
# Beyond this an overhead is drawn at the upper edge, as an arrow.
MOST_OVERHEAD = 2.0


def draw(results: Results, folder: Path) -> list[Path]:
    """Draws every figure there are numbers for; returns the files."""
    matplotlib.rcParams.update({"svg.hashsalt": "coop", "font.size": 9, "axes.grid": True})
    matplotlib.rcParams.update({"grid.alpha": 0.3, "axes.axisbelow": True})
    figures = {
        "overhead": _overhead(results),
        "fragmentation": _fragmentation(results),
        "search": _search(results),
        "smallest-budget": _smallest(results),
        "ablation": _ablation(results),
    }
    written = []
    for name, figure in figures.items():
        if figure is None:
            continue
        figure.text(
            0.995, 0.005, _source(results), ha="right", va="bottom", size=6, color="#666666"
        )
        for path in (folder / f"{name}.svg", folder / f"{name}.png"):
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=150, metadata=metadata, facecolor="white")
            written.append(path)
    return written


def _source(results: Results) -> str:
    settings, environment = results.header["settings"], results.header["environment"]
    device = environment.get("gpu") or environment["cpu"]
    return (
        f"size {settings['size']}, {settings['steps']} steps, {device}, "
        f"torch {environment['torch']}, {environment['date'][:10]}"
    )


def _title(model: str) -> str:
    return TITLES.get(model, model)


def _measured(results: Results, names: Sequence[str], kind: str) -> list[str]:
    return [n for n in names if any(results.find(m, n, kind) for m in results.models)]


def _overhead(results: Results) -> Figure | None:
    names = _measured(results, POLICIES, "ratio")
    models = [m for m in results.models if results.find(m, "coop", "ratio")]
    if not names or not models:
        return None
    columns = min(4, len(models))
    rows = math.ceil(len(models) / columns)
    figure = Figure(figsize=(3.0 * columns, 2.5 * rows + 0.9), layout="constrained")
    figure.suptitle(
        "Compute overhead against memory: the cost of all operators over that of the program's own"
    )
    for index, model in enumerate(models):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_title(_title(model))
        for name in names:
            _overhead_line(axes, results, model, name)
        _checkpoint_point(axes, results, model)
        if model in PUBLISHED_DTR:
            ratios, slowdowns = zip(*PUBLISHED_DTR[model], strict=True)
            axes.plot(
                ratios,
                slowdowns,
                "D",
                mfc="none",
                mec="#d55e00",
                label="DTR, published time",
            )
        axes.invert_xaxis()
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.99), min(max(high, 1.1), MOST_OVERHEAD + 0.05))
        if index % columns == 0:
            axes.set_ylabel("overhead")
        if index >= len(models) - columns:
            axes.set_xlabel("memory ratio (budget / peak)")
    _legend(figure)
    return figure


def _overhead_line(axes: Axes, results: Results, model: str, name: str) -> None:
    rows = sorted(results.find(model, name, "ratio"), key=lambda row: -row["ratio"])
    good = [row for row in rows if row["status"] == "ok"]
    color, marker = STYLES[name]
    axes.plot(
        [row["ratio"] for row in good],
        [min(row["overhead_cost"], MOST_OVERHEAD) for row in good],
        color=color,
        marker=marker,
        ms=5,
        lw=1.4,
        label=LABELS[name],
    )
    for row in good:
        if row["overhead_cost"] > MOST_OVERHEAD:
            axes.annotate(
                f"{row['overhead_cost']:.1f} ↑",
                (row["ratio"], MOST_OVERHEAD),
                color=color,
                size=7,
                xytext=(0, -9),
                textcoords="offset points",
                ha="center",
            )


def _checkpoint_point(axes: Axes, results: Results, model: str) -> None:
    for row in results.find(model, "checkpoint", "plain"):
        if row["status"] == "ok" and "overhead_cost" in row:
            color, marker = STYLES["checkpoint"]
            axes.plot(
                [row["memory_ratio"]],
                [row["overhead_cost"]],
                color=color,
                marker=marker,
                ms=8,
                ls="none",
                label=LABELS["checkpoint"],
            )


def _legend(figure: Figure) -> None:
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=6, frameon=False
    )


def _bars(
    results: Results,
    names: Sequence[str],
    value: Callable[[str, str], float | None],
    axes: Axes,
    form: str,
) -> None:
    """One group of bars a network; a cross where there is nothing to show a bar for."""
    models = results.models
    width = 0.8 / len(names)
    for position, name in enumerate(names):
        color, _ = STYLES[name]
        for index, model in enumerate(models):
            x = index + (position - (len(names) - 1) / 2) * width
            height = value(model, name)
            label = LABELS[name] if index == 0 else None
            if height is None:
                axes.bar([x], [0], width, color=color, label=label)
                axes.plot([x], [axes.get_ylim()[0]], "x", color=color, ms=5, clip_on=False)
                continue
            bars = axes.bar([x], [height], width * 0.92, color=color, label=label)
            axes.bar_label(bars, fmt=form, size=5.5, rotation=90, padding=2)
    axes.set_xticks(range(len(models)), [_title(model) for model in models])
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.16)


def _mean(results: Results, field: str) -> Callable[[str, str], float | None]:
    """Over the budgets below the peak that every policy fits, so that all are compared alike."""

    def mean(model: str, name: str) -> float | None:
        names = _measured(results, POLICIES, "ratio")
        fitting: set[float] | None = None
        for other in names:
            good = {
                row["ratio"]
                for row in results.find(model, other, "ratio")
                if row["status"] == "ok" and row["ratio"] < 1
            }
            fitting = good if fitting is None or other == "coop-paper" else fitting & good
        rows = [
            row
            for row in results.find(model, name, "ratio")
            if row["status"] == "ok" and row["ratio"] < 1
        ]
        common = [row for row in rows if row["ratio"] in (fitting or ())] or rows
        return sum(row[field] for row in common) / len(common) if common else None

    return mean


def _fragmentation(results: Results) -> Figure | None:
    names = _measured(results, POLICIES, "ratio")
    if not names:
        return None
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title("Fragmentation: memory that is free and yet does not fit, after an eviction")
    mean = _mean(results, "fragmentation")

    def percent(model: str, name: str) -> float | None:
        value = mean(model, name)
        return None if value is None else 100 * value

    _bars(results, names, percent, axes, "%.1f")
    axes.set_ylabel("% of the budget, mean")
    _legend(figure)
    return figure


def _search(results: Results) -> Figure | None:
    names = _measured(results, POLICIES, "ratio")
    if not names:
        return None
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    latency, share = figure.subplots(2, 1)
    latency.set_title("Search latency: time to choose what to evict, per forced allocation")
    _bars(results, names, _mean(results, "us_per_forced"), latency, "%.1f")
    latency.set_ylabel("µs")
    mean = _mean(results, "search_share")

    def percent(model: str, name: str) -> float | None:
        value = mean(model, name)
        return None if value is None else 100 * value

    share.set_title("Search as a share of the step")
    _bars(results, names, percent, share, "%.2f")
    share.axhline(1.0, color="#666666", lw=0.8, ls="--")
    share.set_ylabel("% of the step")
    _legend(figure)
    return figure


def _smallest(results: Results) -> Figure | None:
    names = _measured(results, POLICIES, "smallest")
    if not names:
        return None
    names = [*names, "checkpoint"]
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title("Smallest budget that trains (checkpointing: the peak it has)")

    def ratio(model: str, name: str) -> float | None:
        kind = "plain" if name == "checkpoint" else "smallest"
        rows = [row for row in results.find(model, name, kind) if row["status"] == "ok"]
        return rows[0]["memory_ratio"] if rows else None

    _bars(results, names, ratio, axes, "%.2f")
    axes.set_ylabel("share of the plain peak")
    _legend(figure)
    return figure


def _ablation(results: Results) -> Figure | None:
    names = _measured(results, PARTS, "ratio")
    if len(names) < 3:
        return None
    ratios = sorted({row["ratio"] for row in results.rows.values() if row["ratio"]}, reverse=True)
    ratios = [ratio for ratio in ratios if ratio < 1][:3]
    figure = Figure(figsize=(11, 2.5 * len(ratios) + 0.6), layout="constrained")
    figure.suptitle("Coop without one of its parts: extra compute, % (cross: does not fit)")
    for index, budget_ratio in enumerate(ratios):
        axes = figure.add_subplot(len(ratios), 1, index + 1)
        axes.set_title(f"memory ratio {budget_ratio:g}", size=9)

        def extra(model: str, name: str, budget_ratio: float = budget_ratio) -> float | None:
            for row in results.find(model, name, "ratio"):
                if row["ratio"] == budget_ratio and row["status"] == "ok":
                    return min(100 * (float(row["overhead_cost"]) - 1), 100.0)
            return None

        _bars(results, names, extra, axes, "%.0f")
        axes.set_ylabel("extra compute, %")
    _legend(figure)
    return figure
