"""The results as tables, for a terminal or for a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from coop.bench.cells import CONFIGURATIONS, POLICIES
from coop.bench.results import Results

__all__ = ["markdown", "print_tables"]

Row = dict[str, Any]
# Title, header, lines.
Content = tuple[str, list[str], list[list[str]]]


def tables(results: Results) -> Iterator[Content]:
    """Every table there are numbers for."""
    wall = results.header["settings"]["device"] == "cuda"
    time = "overhead_wall" if wall else "overhead_cpu"
    by_ratio: tuple[tuple[str, Callable[[Row], str]], ...] = (
        ("Compute overhead: cost of all operators / of the program's own", _overhead),
        (
            f"Step time / plain step time{'' if wall else ', CPU time'}",
            lambda row: f"{row[time]:.2f}",
        ),
        ("Fragmentation: free / budget after an eviction, mean", _fragmentation),
        ("Search: µs per forced allocation (share of the step)", _search),
        (
            "Evictions / recomputations, all measured steps",
            lambda row: f"{row['num_evictions']} / {row['num_replays']}",
        ),
    )
    ratios = results.ratios
    if ratios:
        header = ["network", "configuration", *(f"{ratio:g}" for ratio in ratios)]
        for title, show in by_ratio:
            yield title, header, _by_ratio(results, ratios, show)
    contents = (
        (
            "Smallest budget",
            ["network", "configuration", "budget / peak", "MiB", "overhead there"],
            _smallest(results),
        ),
        (
            "Without a budget",
            ["network", "mode", "step ms", "peak MiB", "peak / plain", "step / plain", "same bits"],
            _plain(results),
        ),
        (
            "Coop against the better of DTR and DTE",
            ["network", *(f"at {ratio:g}" for ratio in ratios), "fragmentation", "smallest budget"],
            _comparison(results, ratios),
        ),
    )
    for title, header, content in contents:
        lines = list(content)
        if lines:
            yield title, header, lines


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
    reason: str = row["reason"]
    if reason.startswith("out of"):
        return "-"
    return "too slow" if reason.startswith(("gave up", "took")) else "failed"


def _overhead(row: Row) -> str:
    return f"{row['overhead_cost']:.3f}" + ("" if row["identical"] else " (other bits!)")


def _fragmentation(row: Row) -> str:
    return f"{row['fragmentation']:.1%}" if row["num_forced"] else "none"


def _search(row: Row) -> str:
    return f"{row['us_per_forced']:.1f} ({row['search_share']:.2%})"


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
                    f"{row['memory_ratio']:.3f}",
                    f"{row['budget_bytes'] / 2**20:.1f}",
                    f"{row['overhead_cost']:.2f}",
                ]


def _plain(results: Results) -> Iterator[list[str]]:
    for model in results.models:
        for name in ("plain", "checkpoint"):
            for row in results.find(model, name, "plain"):
                if row["status"] != "ok":
                    yield [model, name, "-", "", "", "", row["reason"]]
                    continue
                yield [
                    model,
                    name,
                    f"{row['step_ms']['median']:.1f}",
                    f"{row['peak_bytes'] / 2**20:.1f}",
                    f"{row.get('memory_ratio', 1):.2f}",
                    f"{row.get('overhead_wall', 1):.2f}",
                    "yes" if row.get("identical", row.get("watched_identical", True)) else "no",
                ]


def _comparison(results: Results, ratios: list[float]) -> Iterator[list[str]]:
    """Extra compute of coop minus that of the better baseline, in percent of the plain step."""
    for model in results.models:
        if not all(results.find(model, name, "ratio") for name in POLICIES):
            continue
        cells = []
        for ratio in ratios:
            costs = {}
            for name in POLICIES:
                row = results.at(model, name, ratio)
                if row is not None:
                    costs[name] = row["overhead_cost"]
            others = [cost for name, cost in costs.items() if name != "coop"]
            if "coop" in costs and others:
                cells.append(f"{100 * (costs['coop'] - min(others)):+.1f}%")
            else:
                cells.append("only coop" if "coop" in costs else "lost" if others else "-")
        wasted = [results.mean(model, name, "fragmentation") for name in POLICIES]
        least = [results.smallest(model, name) for name in POLICIES]
        yield [
            model,
            *cells,
            " / ".join("-" if value is None else f"{value:.1%}" for value in wasted),
            " / ".join("-" if value is None else f"{value:.3f}" for value in least),
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
