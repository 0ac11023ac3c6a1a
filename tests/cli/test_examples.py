"""The examples print the same, to the last digit, plain and in a budget that has to evict."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys

import pytest

import coop
from tests.command_line import ROOT, Coop

NAMES = (
    "pretrain_gpt",
    "finetune_lora",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("train_vision", "train_diffusion", "train_speech", "finetune_trainer")
    ),
)


def run(name: str) -> str:
    """What the example prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    # A Trainer also prints how long it took.
    return "".join(f"{line}\n" for line in printed.getvalue().splitlines() if "runtime" not in line)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_bit_identical_in_less_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    plain = run(name)
    assert plain.count("loss") >= 3
    with coop.budget("1GiB") as session:
        assert run(name) == plain
    needed = session.stats().needed_bytes
    with coop.budget(int(needed * 0.75)) as session:
        assert run(name) == plain
    assert session.stats().num_evictions > 0


def test_an_example_runs_as_a_user_runs_it(coop_command: Coop) -> None:
    path = ROOT / "examples" / "pretrain_gpt.py"
    ran = coop_command("run", "--budget", "24MiB", path, "--steps", "2")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("loss") == 2
    assert [line.split()[1] for line in ran.stderr.splitlines()] == [
        "needed",
        "got",
        "cost",
        "next",
        "report",
    ]
