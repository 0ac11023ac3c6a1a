"""`python -m coop doctor` and `demo`, and the command line itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import coop
from coop.commands import doctor
from tests.checkout import FORGET_INSTALLED, copy_without_extension
from tests.command_line import Coop, InProcess, environment


def test_without_a_command_it_says_so(in_process: InProcess) -> None:
    code, out, err = in_process()
    assert (code, out) == (2, "")
    assert err == "coop: the following arguments are required: COMMAND\n"


def test_an_unknown_command_is_named(in_process: InProcess) -> None:
    code, _, err = in_process("jump")
    assert code == 2
    assert err.startswith("coop: argument COMMAND: invalid choice: 'jump' (choose from")
    assert err.count("\n") == 1


def test_doctor_finds_this_installation_healthy(in_process: InProcess) -> None:
    code, out, err = in_process("doctor")
    assert (code, err) == (0, "")
    found = {line.split()[1]: line for line in out.splitlines() if not line.startswith(" ")}
    assert found["torch"].startswith(f"ok      torch         {torch.__version__} (")
    assert found["extension"].startswith(f"ok      extension     {coop._native._C.__name__} for ")
    assert found["budget"].startswith("ok      budget        a test run is bit-identical at ")
    # What is missing comes with the command that fixes it, or with the reason why none does.
    code, out, _ = in_process("doctor", "--json")
    report = json.loads(out)
    assert (code, report["works"]) == (0, True)
    for finding in report["findings"]:
        assert finding["state"] in ("ok", "missing")
        assert finding["state"] == "ok" or finding["fix"] or finding["name"] == "cuda"


def test_doctor_tests_a_gpu_in_another_process() -> None:
    # The way a GPU is tested, with the CPU.
    result = doctor._in_another_process("cpu")
    assert result["weights"] == doctor._train("cpu")
    assert result["num_evictions"] > 0


@pytest.mark.slow
def test_doctor_explains_a_missing_extension(tmp_path: Path) -> None:
    copy_without_extension(tmp_path)
    program = (
        "import runpy; sys.argv = ['-m', 'doctor']; runpy.run_module('coop', None, '__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", FORGET_INSTALLED + program],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": "", "COOP_DEBUG": "0"},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (1, "")
    lines = ran.stdout.splitlines()
    (row,) = (row for row, line in enumerate(lines) if " extension " in line)
    assert lines[row].startswith("broken  extension     coop._C is not built for this Python (")
    assert lines[row + 1].strip() == (
        f"fix: {sys.executable} -m pip install --no-build-isolation -e {tmp_path}"
    )


@pytest.mark.slow
def test_demo_is_bit_identical_and_prints_json(coop_command: Coop, tmp_path: Path) -> None:
    ran = coop_command("demo", "--steps", "4", "--json")
    assert ran.returncode == 0, ran.stderr
    demo = json.loads(ran.stdout)
    assert [row["name"] for row in demo["rows"]] == ["plain", "coop", "dtr", "dte"]
    plain, *others = demo["rows"]
    for row in others:
        assert row["fitted"], row
        assert row["identical"], row
        assert row["budget_bytes"] == plain["peak_bytes"] // 2 >= row["peak_bytes"]
        assert row["num_evictions"] > 0
        assert row["final_loss"] == plain["final_loss"]
    assert demo["report"] == str(tmp_path / "coop-demo.html")
    assert "the last 3 of 4 steps" in (tmp_path / "coop-demo.html").read_text()


def test_any_command_can_be_interrupted(
    in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> Iterator[doctor.Finding]:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "CHECKS", (interrupted,))
    assert in_process("doctor") == (130, "", "coop doctor: interrupted\n")


@pytest.mark.parametrize("command", ["demo", "doctor", "run", "simulate"])
def test_an_unknown_option_is_one_line(in_process: InProcess, command: str) -> None:
    needed = {"run": ["--budget", "1MiB"], "simulate": ["--budget", "1MiB", "t.jsonl"]}
    code, out, err = in_process(command, *needed.get(command, []), "--frobnicate")
    assert (code, out) == (2, "")
    assert err.startswith("coop")
    assert err.endswith("unrecognized arguments: --frobnicate\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--steps", "x"], "argument --steps: 'x' is not a number of steps: from 4 to 10000"),
        (
            ["--report", "/no/x.html"],
            "argument --report: cannot write '/no/x.html': there is no directory '/no'",
        ),
    ],
)
def test_demo_refuses_wrong_input(in_process: InProcess, arguments: list[str], line: str) -> None:
    assert in_process("demo", *arguments) == (2, "", f"coop demo: {line}\n")


@pytest.mark.slow
def test_demo_can_be_interrupted(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "coop", "demo"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not children.read_text():
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, errors = process.communicate()
    assert (process.returncode, out, errors) == (130, "", "coop demo: interrupted\n")
    assert list(tmp_path.iterdir()) == []
