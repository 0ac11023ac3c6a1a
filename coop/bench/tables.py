"""The results as tables, for a terminal or for a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from coop.bench.cells import CONFIGURATIONS
from coop.bench.results import Results

__all__ = ["markdown", "print_tables"]

Row = dict[str, Any]


def tables(results: Results) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, header and cells of every table there are numbers for."""
    ratios = sorted({row["ratio"] for row in results.rows.values() if row["ratio"]}, reverse=True)
    columns = [f"{ratio:g}" for ratio in ratios]
    by_ratio: tuple[tuple[str, Callable[[Row], str]], ...] = (
        ("Compute overhead (cost with / without recomputation)", _overhead),
        ("Step time / plain step time", lambda row: f"{row['overhead_wall']:.2f}"),
        ("Fragmentation (free / budget, mean over forced allocations)", _fragmentation),
        ("Time per search, µs (share of the step)", _search),
        (
            "Evictions / recomputations",
            lambda row: f"{row['num_evictions']} / {row['num_replays']}",
        ),
    )
    if ratios:
        for title, show in by_ratio:
            yield title, ["network", "configuration", *columns], _by_ratio(results, ratios, show)
    smallest = list(_smallest(results))
    if smallest:
        header = ["network", "configuration", "budget / peak", "MiB", "overhead there"]
        yield "Smallest budget", header, smallest
    plain = list(_plain(results))
    if plain:
        header = ["network", "mode", "step ms", "peak MiB", "peak / plain", "step / plain"]
        yield "Without a budget", header, plain


def _by_ratio(results: Results, ratios: list[float], show: Callable[[Row], str]) -> list[list[str]]:
    lines = []
    for model in results.models:
        for name in CONFIGURATIONS:
            rows = {row["ratio"]: row for row in results.find(model, name, "ratio")}
            if not rows:
                continue
            cells = ["" if ratio not in rows else _shown(rows[ratio], show) for ratio in ratios]
            lines.append([model, name, *cells])
    return lines


def _shown(row: Row, show: Callable[[Row], str]) -> str:
    if row["status"] == "ok":
        return show(row)
    return "too slow" if row["reason"].startswith(("gave up", "took")) else "-"


def _overhead(row: Row) -> str:
    return f"{row['overhead_cost']:.3f}" + ("" if row["identical"] else " (other results!)")


def _fragmentation(row: Row) -> str:
    return f"{row['fragmentation']:.1%}"


def _search(row: Row) -> str:
    return f"{row['us_per_search']:.1f} ({row['search_share']:.2%})"


def _smallest(results: Results) -> Iterator[list[str]]:
    for model in results.models:
        for name in CONFIGURATIONS:
            for row in results.find(model, name, "smallest"):
                if row["status"] != "ok":
                    yield [model, name, "-", "", row["reason"]]
                    continue
                yield [
                    model,
                    name,
                    f"{row['memory_ratio']:.2f}",
                    f"{row['budget_bytes'] / 2**20:.1f}",
                    f"{row['overhead_cost']:.2f}",
                ]


def _plain(results: Results) -> Iterator[list[str]]:
    for model in results.models:
        for name in ("plain", "checkpoint"):
            for row in results.find(model, name, "plain"):
                if row["status"] != "ok":
                    yield [model, name, "-", "", "", row["reason"]]
                    continue
                yield [
                    model,
                    name,
                    f"{row['step_ms']['median']:.1f}",
                    f"{row['peak_bytes'] / 2**20:.1f}",
                    f"{row.get('memory_ratio', 1):.2f}",
                    f"{row.get('overhead_wall', 1):.2f}",
                ]


def print_tables(results: Results, console: Console) -> None:
    """All tables, to a terminal."""
    for title, header, lines in tables(results):
        table = Table(title=title, title_justify="left", box=None, header_style="bold")
        for column in header:
            table.add_column(column)
        for line in lines:
            table.add_row(*line)
        console.print()
        console.print(table)


def markdown(results: Results) -> str:
    """All tables, for a document."""
    parts = []
    for title, header, lines in tables(results):
        rows = [header, ["---"] * len(header), *lines]
        parts.append(f"### {title}\n" + "\n".join("| " + " | ".join(row) + " |" for row in rows))
    return "\n\n".join(parts) + "\n"
