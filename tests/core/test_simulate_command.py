"""`python -m coop simulate`: its output, its messages and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coop.__main__ import main
from coop.trace import TraceWriter
from tests.core.decisions import ROOT, TRACES


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three results of 12 KiB, each made from a root of 12 KiB."""
    path = tmp_path / "three.jsonl"
    with TraceWriter(path) as writer:
        writer.root(0, 12288)
        for storage in (1, 2, 3):
            writer.operator("aten::mul", 1000, inputs=[0], outputs=[(storage, 12288)])
        writer.operator("aten::relu_", 500, writes=[1])
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, output, errors."""
    try:
        code = main([str(argument) for argument in ("simulate", *arguments)])
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_trace_that_fits_prints_its_numbers(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    code, out, err = run(capsys, trace, "--budget", "36KiB")
    assert (code, err) == (0, "")
    rows = {line.split("  ")[0]: line.split("  ", 1)[1].split() for line in out.splitlines()}
    assert rows["policy"] == ["coop"]
    assert rows["budget"] == ["36.00", "KiB", "36864", "B"]
    assert rows["fitted"] == ["yes"]
    assert rows["operators"] == ["4", "0", "steps"]
    assert rows["recomputed"] == ["1"]
    assert rows["overhead"][0] == "1.2857"
    assert rows["evictions"] == ["2", "24.00", "KiB"]
    assert rows["searches"][0] == "2"
    assert rows["fragmentation"][0] == "0.0000"
    assert rows["peak"] == ["36.00", "KiB", "36864", "B"]


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    code, out, _ = run(capsys, trace, "--ratio", "0.75", "--json", "--no-inplace")
    data = json.loads(out)
    assert code == 0
    assert data["trace"] == str(trace)
    assert data["stats"]["budget_bytes"] == int(0.75 * 49152)
    assert data["stats"]["num_copies"] == 1
    assert (data["policy"], data["inplace"], data["window"]) == ("coop", False, True)
    assert (data["fitted"], data["shortage"], data["failure"]) == (True, None, "")
    assert data["overhead"] == 4500 / 3500


def test_a_trace_that_does_not_fit_names_the_numbers(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    code, out, err = run(capsys, trace, "--budget", 20480)
    assert code == 1
    assert "no" in out
    assert err == (
        f"{trace}:3: out of budget at aten::mul: 12288 B (12.00 KiB) wanted, at most "
        "8192 B (8.00 KiB) in one piece can be freed of a budget of 20480 B (20.00 KiB); held "
        "are 12288 B (12.00 KiB) (roots 0 B, kept 0 B, locked by the operator 12288 B "
        "(12.00 KiB), its temporaries and results 0 B); a budget of 24576 B (24.00 KiB) would "
        "have passed this point\n"
    )


def test_the_budget_named_as_sufficient_passes_that_point(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    assert run(capsys, trace, "--budget", 24576)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "8XB"), "argument --budget: '8XB' is not a size"),
        (("--budget", "0"), "argument --budget: a size must be at least 1 byte, not '0'"),
        (("--ratio", "x"), "argument --ratio: 'x' is not a ratio"),
        (("--ratio", "-1"), "argument --ratio: '-1' is not a ratio"),
        (("--ratio", "nan"), "argument --ratio: 'nan' is not a ratio"),
        ((), "one of the arguments --budget --ratio is required"),
        (("--ratio", "1", "--budget", "1"), "not allowed with argument"),
        (("--ratio", "1", "--policy", "lru"), "argument --policy: invalid choice: 'lru'"),
    ],
)
def test_wrong_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], trace: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, trace, *arguments)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]


def test_a_malformed_trace_ends_with_one_line_and_code_2(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"format": "coop-trace", "version": 2}\n{"root": 1, "bytes": -5}\n')
    ran = subprocess.run(
        [sys.executable, "-m", "coop", "simulate", str(path), "--ratio", "0.5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == f"coop simulate: {path}:2: bytes must not be negative, not -5\n"


def test_a_budget_smaller_than_a_block_is_refused(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    code, out, err = run(capsys, trace, "--budget", 10)
    assert (code, out) == (2, "")
    assert err == f"coop simulate: {trace}: a budget of 10 bytes is smaller than one block\n"


@pytest.mark.parametrize("policy", ["coop", "dtr", "dte"])
def test_every_policy_runs_a_shipped_trace(capsys: pytest.CaptureFixture[str], policy: str) -> None:
    code, out, _ = run(
        capsys, TRACES / "ushape.jsonl.gz", "--ratio", "0.6", "--policy", policy, "--json"
    )
    assert code == 0
    assert json.loads(out)["stats"]["num_operators"] == 1422
