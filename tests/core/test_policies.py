"""Decisions on the shipped traces: golden, repeatable, and better than the baselines where told."""

import pytest

from coop.simulate import Options, peak_without_limit
from tests.adapter.slices import first
from tests.core.decisions import (
    CONFIGURATIONS,
    GOLDEN,
    LOGS,
    NAMES,
    decision_log,
    overheads,
    paper,
    shipped,
)
from tests.core.neighbourhoods import measure

UPDATE = "decisions changed; if that is meant, run `python -m tests.core.decisions --update`"


@pytest.mark.debug_build
@pytest.mark.parametrize("file", LOGS)
def test_decisions_are_the_golden_ones(file: str) -> None:
    name, ratio, options = LOGS[file]
    trace = shipped(name)
    log = decision_log(trace, int(ratio * peak_without_limit(trace)), options)
    assert log == (GOLDEN / file).read_text(), UPDATE


def test_the_same_trace_twice_gives_the_same_log() -> None:
    logs = [decision_log(shipped("ushape"), 150 << 20, Options()) for _ in range(2)]
    assert logs[0] == logs[1]


Cell = tuple[int, float]  # how many of nine budgets fitted, and their median overhead


def table() -> dict[tuple[str, str], dict[float, Cell]]:
    """(trace, configuration): ratio: cell, as the golden table says."""
    header, *lines = (GOLDEN / "overheads.txt").read_text().splitlines()
    ratios = [float(ratio) for ratio in header.split()[2:]]
    result: dict[tuple[str, str], dict[float, Cell]] = {}
    for line in lines:
        name, configuration, *cells = line.split()
        parts = [cell.partition(":") for cell in cells]
        result[name, configuration] = {
            ratio: (int(fitted), float(median or "inf"))
            for ratio, (fitted, _, median) in zip(ratios, parts, strict=True)
        }
    return result


def test_decisions_on_networks_of_paper_size_are_the_golden_ones() -> None:
    assert paper() == (GOLDEN / "paper.txt").read_text(), UPDATE


@pytest.mark.slow
@pytest.mark.parametrize("name", first(2, ["ushape", *(n for n in NAMES if n != "ushape")]))
def test_the_table_of_overheads_is_the_golden_one(name: str) -> None:
    header, *lines = (GOLDEN / "overheads.txt").read_text().splitlines()
    golden = [header, *(line for line in lines if line.split()[0] == name)]
    assert overheads([name]).splitlines() == golden, UPDATE


def test_at_half_the_memory_and_below_coop_loses_only_where_the_note_says() -> None:
    """It fits more often than both baselines, or as often and with less extra compute.

    docs/decisions/0002-where-coop-loses.md says why not, where not.
    """
    cells = table()
    won, lost = 0, set()
    for name in NAMES:
        for ratio in (0.5, 0.4, 0.3):
            ours, *others = (cells[name, policy][ratio] for policy in ("coop", "dtr", "dte"))
            if all(fitted == 0 for fitted, _ in (ours, *others)):
                continue
            if all((-ours[0], ours[1]) < (-fitted, median) for fitted, median in others):
                won += 1
            else:
                lost.add((name, ratio))
    assert lost == {("random_path", 0.5)}
    assert won == 15


def test_coop_fits_more_often_than_the_baselines() -> None:
    cells = table()
    fitted = {
        configuration: sum(n for name in NAMES for n, _ in cells[name, configuration].values())
        for configuration in CONFIGURATIONS
    }
    assert fitted == {
        "coop": 252,
        "no-window": 249,
        "no-partition": 251,
        "no-inplace": 252,
        "dtr": 195,
        "dte": 239,
    }


@pytest.mark.parametrize(
    ("without", "name", "ratio", "with_it", "without_it"),
    [
        ("no-window", "ushape", 0.4, (9, 1.241139), (9, 1.346836)),
        ("no-window", "rnn", 0.6, (9, 1.284995), (9, 1.372543)),
        ("no-partition", "ushape", 0.5, (9, 1.159524), (9, 1.179654)),
        ("no-partition", "random_path", 0.4, (9, 1.215972), (8, 1.214047)),
        ("no-inplace", "inplace", 0.4, (9, 1.145708), (9, 1.15683)),
        ("no-inplace", "rnn", 0.5, (9, 1.371743), (9, 1.404528)),
    ],
)
def test_without_one_of_its_parts_coop_is_worse(
    without: str, name: str, ratio: float, with_it: Cell, without_it: Cell
) -> None:
    cells = table()
    assert cells[name, "coop"][ratio] == with_it
    assert cells[name, without][ratio] == without_it


def test_union_find_is_close_to_the_exact_neighbourhood() -> None:
    """The numbers of docs/results/2026-11-18-core.md."""
    assert [measure(name) for name in NAMES] == [
        "chain looks 1518 exact 1.000 under 0.000 median 1.000 mean 1.000 largest 1.00",
        "inplace looks 3572 exact 0.642 under 0.000 median 1.000 mean 1.113 largest 2.80",
        "random_path looks 1866 exact 1.000 under 0.000 median 1.000 mean 1.000 largest 1.00",
        "residual looks 4301 exact 0.644 under 0.000 median 1.000 mean 1.130 largest 10.80",
        "rnn looks 56084 exact 0.064 under 0.000 median 1.345 mean 6.697 largest 576.03",
        "ushape looks 2015 exact 0.885 under 0.000 median 1.000 mean 1.076 largest 6.40",
    ]
