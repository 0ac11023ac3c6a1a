"""`python -m coop bench` and `plot`, on one network of tiny size."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import server, worker
from benchmarks.harness.cells import Cell
from benchmarks.harness.results import Results
from benchmarks.harness.runner import smallest
from benchmarks.harness.tables import markdown
from coop.__main__ import main

pytest.importorskip("matplotlib")

SWEEP = ("--models", "unet", "--policies", "coop,dtr", "--steps", "1")
RATIOS = ("--ratios", "0.9,0.2")
KEYS = [
    "unet plain",
    "unet checkpoint",
    "unet coop ratio 0.9",
    "unet dtr ratio 0.9",
    "unet coop ratio 0.2",
    "unet dtr ratio 0.2",
]


def bench(out: Path, *arguments: str) -> int:
    return main(["bench", *SWEEP, *arguments, "--out", str(out)])


def rows(path: Path) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in json.loads(path.read_text())["rows"]}


def counts(path: Path) -> dict[str, Any]:
    """All of a sweep that does not depend on the machine's speed."""
    fields = ("status", "reason", "digest", "num_evictions", "num_replays", "num_searches")
    fields += ("searched_blocks", "num_forced", "evicted_bytes", "peak_bytes", "budget_bytes")
    fields += ("overhead_cost", "fragmentation", "copied_bytes")
    return {key: {field: row.get(field) for field in fields} for key, row in rows(path).items()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one sweep."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    assert bench(path, *RATIOS) == 0
    return path


@pytest.mark.slow
def test_a_sweep_has_a_row_for_every_cell(swept: Path) -> None:
    found = rows(swept)
    assert list(found) == KEYS
    plain = found["unet plain"]
    assert plain["watched_identical"]
    for key in KEYS[1:4]:
        row = found[key]
        assert row["status"] == "ok"
        assert row["identical"]
        assert row["digest"] == plain["digest"]
        assert row["step_ms"]["least"] <= row["step_ms"]["median"] <= row["step_ms"]["most"]
        assert row["overhead_wall"] == row["step_ms"]["median"] / plain["step_ms"]["median"]
        assert row["overhead_cost"] > 1
    for name in ("coop", "dtr"):
        row = found[f"unet {name} ratio 0.9"]
        assert row["stats"]["budget_bytes"] == row["budget_bytes"]
        assert row["stats"]["num_operators"] > row["num_operators"]
        assert row["budget_bytes"] == -(-int(0.9 * plain["peak_bytes"]) // 4096) * 4096
        assert row["peak_bytes"] <= row["budget_bytes"]
        assert row["num_evictions"] > 0
        assert row["num_replays"] > 0
    # coop followed its schedule: it had nothing to search for.
    assert found["unet coop ratio 0.9"]["num_searches"] == 0
    assert found["unet coop ratio 0.9"]["fragmentation"] == 0
    searched = found["unet dtr ratio 0.9"]
    assert 0 < searched["fragmentation"] < 1
    assert searched["us_per_search"] == searched["search_us"] / searched["num_searches"]


@pytest.mark.slow
def test_a_cell_that_fails_is_a_row_with_its_reason(swept: Path) -> None:
    for name in ("coop", "dtr"):
        row = rows(swept)[f"unet {name} ratio 0.2"]
        assert row["status"] == "failed"
        assert row["reason"].startswith("out of budget: coop: aten::")


def test_the_file_says_how_it_was_made(swept: Path) -> None:
    header = json.loads(swept.read_text())
    assert header["check"] == "sweep"
    assert header["settings"] == {
        "size": "tiny",
        "device": "cpu",
        "steps": 1,
        "warmup": 2,
        "threads": 1,
        "deterministic": True,
    }
    (run,) = header["runs"]
    assert set(run) == {"command", "date", "cpu", "cores", "python", "torch", "commit"}


@pytest.mark.slow
def test_the_same_command_decides_the_same(swept: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    assert bench(again, *RATIOS) == 0
    assert counts(again) == counts(swept)


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(
    swept: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "part.json"
    content = json.loads(swept.read_text())
    dropped = content["rows"].pop(2)
    path.write_text(json.dumps(content))
    # No time for a single cell: nothing is measured, and nothing is lost.
    assert bench(path, *RATIOS, "--time-limit", "1") == 0
    assert "out of time; the same command goes on" in capfd.readouterr().err
    assert json.loads(path.read_text()) == content
    assert bench(path, *RATIOS) == 0
    assert "5 of 6 cells are in" in capfd.readouterr().err
    found = json.loads(path.read_text())
    assert found["rows"][:5] == content["rows"]
    (new,) = found["rows"][5:]
    assert (new["key"], new["run"]) == (dropped["key"], 1)
    assert new["num_evictions"] == dropped["num_evictions"]
    assert len(found["runs"]) == 2


@pytest.mark.slow
def test_the_smallest_budget_is_found_from_what_is_known(swept: Path, tmp_path: Path) -> None:
    path = tmp_path / "smallest.json"
    path.write_text(swept.read_text())
    assert bench(path, "--policies", "coop", "--min-budget") == 0
    row = rows(path)["unet coop smallest"]
    assert row["status"] == "ok"
    assert 0.2 < row["memory_ratio"] < 0.9


def test_the_smallest_budget_may_lie_below_one_that_does_not_fit() -> None:
    tried = []

    def measure(ratio: float) -> dict[str, Any]:
        tried.append(round(ratio, 4))
        fits = ratio >= 0.5 or 0.475 <= ratio <= 0.482 or 0.44 <= ratio <= 0.45
        return {"status": "ok" if fits else "failed", "ratio": round(ratio, 4)}

    found = smallest(measure, 0.46, 0.54, {"status": "ok", "ratio": 0.54})
    assert found["ratio"] == 0.445
    assert tried == [0.5, 0.48, 0.47, 0.475, 0.455, 0.445, 0.435, 0.425, 0.415, 0.405]


def test_other_settings_do_not_mix(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(swept, *RATIOS, "--steps", "2") == 2
    err = capsys.readouterr().err
    assert "was measured with other settings" in err
    assert err.count("\n") == 1


def test_an_unknown_network_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(tmp_path / "a.json", "--models", "alexnet") == 2
    assert capsys.readouterr().err.startswith("coop bench: no network named 'alexnet'; there are: ")
    assert not (tmp_path / "a.json").exists()


def serve(timeout_s: float) -> dict[str, Any]:
    request = {"model": "unet", "size": "tiny", "warmup": 2, "steps": 1, "timeout_s": timeout_s}
    return server._serve(request, io.StringIO())


def test_a_process_that_dies_is_a_row_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        os.write(2, b"first\nlast words\n")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(worker, "measure", die)
    assert serve(600) == {"status": "failed", "reason": "killed by SIGKILL: last words"}


def test_a_process_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "measure", lambda *_: signal.pause())
    assert serve(0.01) == {"status": "failed", "reason": "took longer than 0.01 s"}


def test_tables_have_what_was_measured(swept: Path) -> None:
    text = markdown(Results.read(swept))
    overhead = rows(swept)["unet coop ratio 0.9"]["overhead_cost"]
    assert f"| unet | coop | {overhead:.3f} | - |" in text


def test_plot_draws_every_figure_there_are_numbers_for(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plot", str(swept), "--out", str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    drawn = ("overhead", "fragmentation", "search")
    assert names == {f"{name}.{kind}" for name in drawn for kind in ("svg", "png")}
    assert sorted(capsys.readouterr().out.split()) == sorted(str(tmp_path / name) for name in names)
    # The same numbers give the same file.
    first = (tmp_path / "overhead.svg").read_bytes()
    assert main(["plot", str(swept), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "overhead.svg").read_bytes() == first


def test_plot_refuses_what_is_no_results_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    path.write_text("[]")
    assert main(["plot", str(path)]) == 2
    assert "not a results file of `python -m coop bench`" in capsys.readouterr().err


def test_keys_tell_cells_apart() -> None:
    assert Cell("unet", "coop", "ratio", 0.5).key == "unet coop ratio 0.5"
    assert Cell("unet", "coop", "smallest").key == "unet coop smallest"
    assert Cell("unet", "plain", "plain").key == "unet plain"
    assert Cell("unet", "coop", "budget", None, "16384 MiB", 2**34, 8).key == (
        "unet batch 8 coop budget 16384 MiB"
    )


def test_a_cell_may_take_the_row_of_another(tmp_path: Path) -> None:
    settings = {"size": "tiny", "device": "cpu", "steps": 1, "threads": 1}
    results = Results.open(tmp_path / "a.json", "a command", "sweep", settings)
    results.add(Cell("unet", "coop", "ratio", 0.5), {"status": "ok", "memory_ratio": 0.5})
    results.add(Cell("unet", "coop", "smallest"), results.rows["unet coop ratio 0.5"])
    again = Results.read(tmp_path / "a.json")
    assert list(again.rows) == ["unet coop ratio 0.5", "unet coop smallest"]
    assert again.smallest("unet", "coop") == 0.5
    assert again.ratios == [0.5]
