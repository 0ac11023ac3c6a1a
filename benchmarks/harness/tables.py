"""The results as tables, for a terminal or for a document."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.cells import CONFIGURATIONS, POLICIES
from benchmarks.harness.predict import mean_error
from benchmarks.harness.results import Results

__all__ = ["markdown", "print_tables"]

Row = dict[str, Any]
# Title, header, lines.
Content = tuple[str, list[str], list[list[str]]]


def tables(results: Results) -> Iterator[Content]:
    """Every table there are numbers for."""
    if results.header["check"] == "zoo":
        yield from _zoo(results)
        return
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
            "The same bits as plain torch: shares of what plain torch reserves",
            ["network", "share", "GiB", "bits", "evictions a step", "recomputations a step"],
            _same_bits(results),
        ),
        (
            "In a budget of bytes",
            [
                "network",
                "mode",
                "budget",
                "GiB",
                "step ms",
                "step / plain",
                "evictions / recomputations a step",
                "fragmentation",
                "driver GiB",
            ],
            _budgets(results),
        ),
        (
            "With room for everything, in turn with plain torch",
            [
                "network",
                "pair",
                "plain ms",
                "coop ms",
                "coop / plain",
                "of rounds (quartiles)",
                "of first deciles",
                "us an operator",
            ],
            _pairs(results),
        ),
        (
            "Predicted against measured",
            [
                "network",
                "share",
                "measured ms",
                "predicted ms",
                "error",
                "with the roofline",
                "evictions, recomputations a step",
            ],
            _predictions(results),
        ),
        (
            "Microseconds to call an operator",
            ["operator", *(row["configuration"] for row in _of_kind(results, "operators"))],
            _operators(results),
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
                same = row.get("identical", row.get("watched_identical"))
                yield [
                    model,
                    name,
                    f"{row['step_ms']['median']:.1f}",
                    f"{row['peak_bytes'] / 2**20:.1f}",
                    f"{row.get('memory_ratio', 1):.2f}",
                    f"{row.get('overhead_wall', 1):.2f}",
                    "" if same is None else "yes" if same else "no",
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


def _same_bits(results: Results) -> Iterator[list[str]]:
    for row in _of_kind(results, "reserved"):
        if row["status"] != "ok":
            yield [_name(row), f"{row['ratio']:g}", _gib(row), _shown(row, str), "", ""]
            continue
        same = "identical" if row["identical"] else "OTHER BITS"
        yield [_name(row), f"{row['ratio']:g}", _gib(row), same, *_a_step(row)]


def _budgets(results: Results) -> Iterator[list[str]]:
    """Rows with a budget in bytes, below those that they are compared with."""
    if not _of_kind(results, "budget"):
        return
    for row in results.rows.values():
        if row["kind"] not in ("plain", "budget"):
            continue
        name = [_name(row), row["configuration"], row.get("label", "")]
        if row["status"] != "ok":
            yield [*name, _gib(row), _shown(row, str), "", "", "", ""]
            continue
        evicted = "num_evictions" in row
        yield [
            *name,
            _gib(row),
            f"{row['step_ms']['median']:.1f}",
            f"{row['overhead_wall']:.2f}" if "overhead_wall" in row else "",
            " / ".join(_a_step(row)) if evicted else "",
            f"{row['fragmentation']:.1%}" if "fragmentation" in row else "",
            f"{row['driver_bytes'] / 2**30:.2f}" if "driver_bytes" in row else "",
        ]


def _pairs(results: Results) -> Iterator[list[str]]:
    for row in _of_kind(results, "pair"):
        if row["status"] != "ok":
            yield [_name(row), row["label"], "", "", row["reason"], "", "", ""]
            continue
        rounds = row["overhead_rounds"]
        decile = row.get("overhead_first_decile")
        yield [
            _name(row),
            row["label"],
            f"{row['plain_step_ms']['median']:.1f}",
            f"{row['step_ms']['median']:.1f}",
            f"{row['overhead_wall']:.3f}",
            f"{rounds['median']:.3f} ({rounds['first_quartile']:.3f} to "
            f"{rounds['third_quartile']:.3f})",
            "" if decile is None else f"{decile:.3f}",
            f"{row['us_per_operator']:.2f}",
        ]


def _predictions(results: Results) -> Iterator[list[str]]:
    field = "step_ms" if results.header["settings"]["device"] == "cuda" else "step_cpu_ms"
    num_steps = results.header["settings"]["steps"]
    for row in _of_kind(results, "predicted"):
        predicted = row["predicted"]
        measured = f"{row[field]['median']:.1f}" if row["status"] == "ok" else _shown(row, str)
        counts = [each for each in (row, predicted) if "num_evictions" in each]
        yield [
            _name(row),
            f"{row['ratio']:g}",
            measured,
            f"{predicted['step_ms']:.1f}" if predicted["fits"] else "-",
            *(f"{row[name]:+.1%}" if name in row else "" for name in ("error", "error_roofline")),
            " against ".join(", ".join(_a_step(each, num_steps)) for each in counts),
        ]
    for name in ("error", "error_roofline"):
        mean = mean_error(results.rows.values(), name)
        if mean is not None:
            yield [f"mean absolute {name.replace('_', ', ')}", "", "", "", f"{mean:.1%}", "", ""]


def _operators(results: Results) -> Iterator[list[str]]:
    rows = _of_kind(results, "operators")
    for operator in next((row["us_per_call"] for row in rows if row["status"] == "ok"), ()):
        times = (row.get("us_per_call", {}).get(operator) for row in rows)
        yield [operator, *("-" if us is None else f"{us:.2f}" for us in times)]


def _a_step(row: Row, num_steps: int | None = None) -> list[str]:
    """Evictions and recomputations."""
    steps = num_steps or row["steps"]
    return [f"{row[name] / steps:.4g}" for name in ("num_evictions", "num_replays")]


def _of_kind(results: Results, kind: str) -> list[Row]:
    return [row for row in results.rows.values() if row["kind"] == kind]


def _name(row: Row) -> str:
    return (
        f"{row['model']}, batch {row['batch_size']}" if "batch_size" in row else str(row["model"])
    )


def _gib(row: Row) -> str:
    num_bytes = row.get("budget_bytes", row.get("peak_reserved_bytes", row.get("peak_bytes")))
    return "" if num_bytes is None else f"{num_bytes / 2**30:.3g}"


def print_tables(results: Results) -> None:
    """All tables, to standard output."""
    width = None if sys.stdout.isatty() else 200  # a file has room for every column
    console = Console(highlight=False, soft_wrap=True, width=width)
    for title, header, lines in tables(results):
        table = Table(title=title, title_justify="left", box=None, header_style="bold")
        for column in header:
            table.add_column(column)
        for line in lines:
            table.add_row(*line)
        console.print()
        console.print(table)


def _zoo(results: Results) -> Iterator[Content]:
    from benchmarks.zoo import networks, report

    rows = list(results.rows.values())
    for half in networks.HALVES:
        header, *lines = report.cells(rows, half)
        if lines:
            yield f"The zoo, extra compute of a step: the half to {half}", header, lines


def markdown(results: Results) -> str:
    """All tables, for a document."""
    parts = []
    for title, header, lines in tables(results):
        rows = [header, ["---"] * len(header), *lines]
        parts.append(f"### {title}\n" + "\n".join("| " + " | ".join(row) + " |" for row in rows))
    return "\n\n".join(parts) + "\n"
