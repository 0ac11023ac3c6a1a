"""`python -m benchmarks`: the checks that run on a GPU, on one small network on the CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks.harness import checks, tables
from benchmarks.harness.cells import BenchError
from benchmarks.harness.predict import mean_error
from benchmarks.harness.results import Results
from tests.adapter.slices import first
from tests.checkout import FORGET_INSTALLED, copy_without_extension

BENCHMARKS = Path(command.__file__).parent
COMMITTED = sorted((BENCHMARKS / "results").glob("*.json"))
TINY = ("--device", "cpu", "--size", "tiny", "--models", "lstm")


def check(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> dict[str, dict[str, Any]]:
    """The rows of a check, by their keys."""
    out = folder / f"{name}.json"
    line = ["benchmarks", name, *TINY, *arguments, "--out", str(out)]
    monkeypatch.setattr(sys, "argv", line)
    assert command.main() == 0
    return Results.read(out).rows


@pytest.mark.slow
def test_identical_compares_every_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = check(
        "identical",
        tmp_path,
        monkeypatch,
        "--ratios",
        "1,0.6,0.1",
        "--steps",
        "1",
        "--at-once",
        "2",
    )
    plain = rows["lstm plain"]
    for ratio in ("1", "0.6"):
        row = rows[f"lstm coop reserved {ratio}"]
        assert row["identical"]
        assert row["digest"] == plain["digest"]
        assert row["buffers_digest"] == plain["buffers_digest"]
    assert rows["lstm coop reserved 0.6"]["num_evictions"] > 0
    assert rows["lstm coop reserved 0.1"]["reason"].startswith("out of budget: coop: aten::")


@pytest.mark.slow
def test_other_bits_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check("identical", tmp_path, monkeypatch, "--ratios", "1", "--steps", "1")
    out = tmp_path / "identical.json"
    content = json.loads(out.read_text())
    content["rows"].pop()
    content["rows"][0]["buffers_digest"] = "others"
    out.write_text(json.dumps(content))
    line = ["benchmarks", "identical", *TINY, "--ratios", "1", "--steps", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", line)
    assert command.main() == 1
    assert "OTHER BITS than plain torch: lstm coop reserved 1" in capsys.readouterr().err


@pytest.mark.slow
def test_full_runs_two_processes_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = check("full", tmp_path, monkeypatch, "--rounds", "2", "--cores", "0")
    row = rows["lstm coop pair 1"]
    assert row["steps"] == 2 * checks.STEPS_OF_A_TURN
    assert row["budget_bytes"] == rows["lstm plain"]["peak_bytes"]
    medians = row["step_ms"]["median"], row["plain_step_ms"]["median"]
    assert row["overhead_wall"] == medians[0] / medians[1]
    assert row["overhead_rounds"]["first_quartile"] <= row["overhead_rounds"]["third_quartile"]


@pytest.mark.slow
def test_a_pair_that_does_not_fit_says_which_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_whole_bytes", lambda plain: plain["peak_bytes"] // 10)
    row = check("full", tmp_path, monkeypatch, "--rounds", "1", "--cores", "0")["lstm coop pair 1"]
    assert row["status"] == "failed"
    assert row["reason"].startswith("the coop process: out of budget: coop: aten::")


@pytest.mark.slow
def test_curve_starts_from_what_checkpointing_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = check("curve", tmp_path, monkeypatch, "--steps", "1")
    checkpointed = rows["lstm checkpoint"]
    assert checkpointed["identical"]
    row = rows["lstm coop budget checkpoint allocated"]
    assert 0 <= row["budget_bytes"] - checkpointed["peak_bytes"] < 4096
    assert rows["lstm coop budget 70% of that"]["kind"] == "budget"


@pytest.mark.slow
def test_limits_measures_batches_in_one_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = check(
        "limits", tmp_path, monkeypatch,
        "--batches", "lstm:4:256", "--budget", "4MiB", "--large", "", "--at-once", "1",
    )  # fmt: skip
    assert rows["lstm batch 4 coop budget 4 MiB"]["status"] == "ok"
    assert rows["lstm batch 256 coop budget 4 MiB"]["reason"].startswith("out of budget")
    assert "no budget on the CPU" in rows["lstm batch 4 plain budget 4 MiB"]["reason"]


@pytest.mark.slow
def test_predict_counts_what_the_engine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = check("predict", tmp_path, monkeypatch, "--steps", "2")
    # Torch takes another operator now and then while somebody watches.
    assert rows["lstm coop traced"]["found_operators"] > 0.99
    for share in ("0.8", "0.7", "0.6", "0.5"):
        row = rows[f"lstm coop predicted {share}"]
        assert row["num_evictions"] == row["predicted"]["num_evictions"] > 0
        assert row["num_replays"] == row["predicted"]["num_replays"] > 0
    assert mean_error(rows.values(), "error") is not None


@pytest.mark.slow
def test_overhead_times_operators_with_and_without_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = check("overhead", tmp_path, monkeypatch)
    plain, coop = (rows[f"lstm {name} operators"]["us_per_call"] for name in ("plain", "coop"))
    assert list(plain) == list(coop)
    assert "fused AdamW of 160" in plain


def test_a_file_of_another_check_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(COMMITTED[0].read_bytes())
    header = Results.read(path).header
    with pytest.raises(BenchError, match="has the rows of 'predict', not of 'curve'"):
        Results.open(path, "a command", "curve", header["settings"])


# What was measured


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_every_committed_row_is_in_the_format_that_is_written_down(path: Path) -> None:
    if json.loads(path.read_text())["format"] == "coop-device":
        return
    text = (BENCHMARKS / "README.md").read_text()
    documented = set(re.findall(r"`([a-z_]+)`", text))
    results = Results.read(path)
    for row in results.rows.values():
        assert row["status"] == "ok" or row["reason"]
        assert 0 <= row["run"] < len(results.header["runs"])
        assert set(row) <= documented
    assert tables.markdown(results).startswith("### ")


# Without a checkout


@pytest.mark.parametrize("name", first(1, ["bench", "plot"]))
def test_an_installed_package_says_that_it_needs_a_checkout(tmp_path: Path, name: str) -> None:
    copy_without_extension(tmp_path)
    # What the path of this Python has of a checkout is left out.
    program = (
        f"{FORGET_INSTALLED}sys.path[:] = [{str(tmp_path)!r}] + "
        f"[each for each in sys.path if each not in ('', {str(BENCHMARKS.parent)!r})]; "
    )
    extension = next((BENCHMARKS.parent / "coop").glob("_C.*.so"))
    (tmp_path / "coop" / extension.name).symlink_to(extension)
    program += f"from coop.__main__ import main; sys.exit(main([{name!r}, '--anything']))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"coop {name}: the benchmarks are not part of the installed")
    assert f".venv/bin/python -m coop {name}" in done.stderr
    assert done.stderr.count("\n") == 1
