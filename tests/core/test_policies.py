"""Decisions on the shipped traces: golden, repeatable, and better than the baselines where told."""

import pytest

from coop.simulate import Options, peak_without_limit
from core.decisions import GOLDEN, LOGS, NAMES, decision_log, overheads, shipped
from core.neighbourhoods import measure

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


def table() -> dict[tuple[str, str], dict[float, float]]:
    """(trace, configuration): ratio: overhead, as the golden table says; did not fit: absent."""
    header, *lines = (GOLDEN / "overheads.txt").read_text().splitlines()
    ratios = [float(ratio) for ratio in header.split()[2:]]
    result: dict[tuple[str, str], dict[float, float]] = {}
    for line in lines:
        name, configuration, *cells = line.split()
        result[name, configuration] = {
            ratio: float(cell) for ratio, cell in zip(ratios, cells, strict=True) if cell != "-"
        }
    return result


def test_the_table_of_overheads_is_the_golden_one() -> None:
    assert overheads() == (GOLDEN / "overheads.txt").read_text(), UPDATE


def test_at_half_the_memory_and_below_coop_loses_only_where_the_note_says() -> None:
    """Less extra compute than both baselines, or it fits where they do not.

    docs/decisions/0003-where-coop-loses.md says why not, where not.
    """
    overhead = table()
    won, lost = 0, set()
    for name in NAMES:
        for ratio in (0.5, 0.45, 0.4, 0.35, 0.3):
            ours = overhead[name, "coop"].get(ratio)
            others = [overhead[name, policy].get(ratio) for policy in ("dtr", "dte")]
            best = min((other for other in others if other is not None), default=None)
            if best is None and ours is None:
                continue
            if ours is not None and (best is None or ours < best):
                won += 1
            else:
                lost.add((name, ratio))
    assert lost == {
        ("chain", 0.35),
        ("chain", 0.3),
        ("inplace", 0.5),
        ("inplace", 0.4),
        ("residual", 0.5),
    }
    assert won == 16


def test_coop_fits_where_the_baselines_do_not() -> None:
    overhead = table()
    fits = {c: sum(len(overhead[name, c]) for name in NAMES) for c in ("coop", "dtr", "dte")}
    assert fits == {"coop": 33, "dtr": 25, "dte": 28}


@pytest.mark.parametrize(
    ("without", "name", "ratio", "with_it", "without_it"),
    [
        ("no-window", "ushape", 0.45, 1.214912, 1.424765),
        ("no-window", "rnn", 0.7, 1.235702, 1.350944),
        ("no-window", "residual", 0.35, 1.241054, None),
        ("no-partition", "ushape", 0.45, 1.214912, 1.242555),
        ("no-partition", "random_path", 0.5, 1.147580, None),
        ("no-inplace", "inplace", 0.5, 1.124998, 1.143077),
        ("no-inplace", "rnn", 0.4, 1.512536, 1.542560),
    ],
)
def test_without_one_of_its_parts_coop_is_worse(
    without: str, name: str, ratio: float, with_it: float, without_it: float | None
) -> None:
    overhead = table()
    assert overhead[name, "coop"][ratio] == with_it
    assert overhead[name, without].get(ratio) == without_it  # None: does not fit


def test_union_find_is_close_to_the_exact_neighbourhood() -> None:
    """The numbers of docs/architecture.md."""
    assert [measure(name) for name in NAMES] == [
        "chain looks 1618 exact 1.000 under 0.000 median 1.000 mean 1.000 largest 1.00",
        "inplace looks 3332 exact 0.625 under 0.000 median 1.000 mean 4.018 largest 451.57",
        "random_path looks 1753 exact 1.000 under 0.000 median 1.000 mean 1.000 largest 1.00",
        "residual looks 3843 exact 0.662 under 0.000 median 1.000 mean 1.593 largest 102.34",
        "rnn looks 57087 exact 0.095 under 0.000 median 1.274 mean 5.657 largest 922.36",
        "ushape looks 2267 exact 0.812 under 0.000 median 1.000 mean 1.078 largest 15.17",
    ]
