"""The zoo: its split, what is recorded, and what is said of a policy."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.zoo import record
from benchmarks.zoo.measure import RATIOS, measure
from benchmarks.zoo.networks import NETWORKS, chosen
from benchmarks.zoo.report import Cliffs, counted, summary, table, told
from coop.simulate import POLICIES


def test_no_family_is_in_both_halves() -> None:
    halves: dict[str, set[str]] = {}
    for network in NETWORKS.values():
        halves.setdefault(network.family, set()).add(network.half)
    assert [family for family, found in halves.items() if len(found) > 1] == []
    assert len(NETWORKS) >= 40
    for half in ("tune", "judge"):
        assert len(chosen([], half)) >= 20


def test_every_network_is_in_the_table_of_recordings() -> None:
    recorded = record.read_table()
    assert sorted(recorded) == sorted(NETWORKS)
    for network in NETWORKS.values():
        assert network.make().name == network.name
        checkpoint = recorded[network.name].checkpoint
        assert (checkpoint is not None) == network.make().can_checkpoint


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no network named 'lama'; there are: resnet50"):
        chosen(["lama"], None)


def test_a_network_is_recorded_as_the_table_says_and_its_rows_are_in_order(tmp_path: Path) -> None:
    network = NETWORKS["dcn"]
    recorded, _ = record.record(network, tmp_path)
    if record.versions().startswith(f"torch {torch.__version__.partition('+')[0]} "):
        assert recorded == record.read_table()["dcn"]
        assert record.is_recorded(network, tmp_path, record.read_table())
    rows = [row for _, row in measure("dcn", tmp_path, POLICIES[0], scan=True)]
    assert len(rows) == len(RATIOS) + 2
    for row in rows[:-1]:
        if row["status"] == "ok":
            assert row["extra_floor"] <= row["extra_sketch"] * (1 + 1e-9)
            assert row["extra_floor"] <= row["extra"]
    assert recorded.checkpoint is not None
    assert rows[-2]["budget_bytes"] == recorded.checkpoint.peak_bytes
    assert list(rows[-1]["extras"])[:2] == ["99", "98"]
    # Floor and sketch are kept: the second time gives the same.
    assert [row for _, row in measure("dcn", tmp_path, POLICIES[0], scan=True)] == rows


def cell(half: str, model: str, budget: int, extra: float | None, **more: Any) -> dict[str, Any]:
    row = {
        "key": f"{model} {budget}",
        "model": model,
        "half": half,
        "kind": "ratio",
        "budget_bytes": budget,
        "memory_ratio": budget / 10,
        "extra_floor": 0.10,
        "extra_sketch": 0.12,
    }
    return row | ({} if extra is None else {"extra": extra}) | more


def test_the_summary_counts_what_is_within_the_target() -> None:
    checkpoint = {"kind": "budget", "label": "checkpoint", "extra_checkpoint": 0.25}
    cannot_run = cell("tune", "b", 1, None)
    del cannot_run["extra_floor"], cannot_run["extra_sketch"]
    rows = [
        cell("tune", "a", 9, 0.10, ratio=0.9),
        cell("tune", "a", 7, 0.18, ratio=0.7),  # 1.6 x 0.10 + 2%
        cell("tune", "a", 6, 0.26, **checkpoint),  # more than checkpointing
        cell("tune", "a", 5, None, ratio=0.5),  # less memory than checkpointing takes: not counted
        cell("tune", "b", 9, 0.19, ratio=0.9),
        cell("tune", "b", 2, None, ratio=0.2),
        cannot_run,
        cell("judge", "c", 9, 0.20, ratio=0.9),
    ]
    assert [row["key"] for row in counted(rows)] == ["a 9", "a 7", "a 6", "b 9", "b 2", "c 9"]
    found = summary(rows)
    assert found["tune"]["cells"] == 5
    assert found["tune"]["unfit"] == ["b 2"]
    assert found["tune"]["too_much"] == ["a 6", "b 9", "b 2"]
    assert found["tune"]["too_much_for_sketch"] == ["a 6", "b 2"]
    assert found["tune"]["median_times"] == pytest.approx(1.9)
    assert found["tune"]["not_beaten"] == ["a"]
    assert found["judge"]["too_much"] == ["c 9"]
    assert "judge over tune: 1.05" in told(rows)
    assert "| a | 10.0% / 12.0% / 10.0% |" in table(rows, "tune")


def test_cliffs_are_jumps_and_budgets_that_do_not_fit() -> None:
    extras = {"99": 0.0, "98": 0.01, "97": None, "96": 0.11, "95": 0.10, "94": None, "93": None}
    found = Cliffs.of({"extras": extras})
    assert found == Cliffs(pytest.approx(0.10), 96, 5, 1)
    assert Cliffs.of({"extras": {"99": None}}).most_jump == 0
