"""No cliff is silent (Rule 20): a slow step says so once, and an interrupt is seen meanwhile."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import warnings

import pytest
import torch

import coop
from tests.adapter.thrashing import BUDGET_BYTES, DEPTH, NUMEL
from tests.cuda.cuda_programs import ROOT


def chain(depth: int) -> None:
    """Two backward passes over values that are all the same size."""
    for _ in range(2):
        x = torch.linspace(0, 1, NUMEL, requires_grad=True)
        for _ in range(depth):
            x = x.sin()
        x.sum().backward()


def run_in(budget_bytes: int) -> tuple[list[str], coop.Stats]:
    """What it warned of, and what happened."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with coop.budget(budget_bytes, device="cpu") as session:
            chain(depth=600)
    slow = [str(w.message) for w in caught if issubclass(w.category, coop.SlowStepWarning)]
    return slow, session.stats()


def test_recomputing_for_longer_than_the_program_is_told_once_with_a_budget_that_helps() -> None:
    said, stats = run_in(2**28)
    assert said == []
    assert stats.num_evictions == 0
    said, stats = run_in(BUDGET_BYTES)
    assert stats.replay_ns > stats.compute_ns
    assert len(said) == 1
    advised = re.search(r"--budget (\d+)", said[0])
    assert advised is not None, said[0]
    said, stats = run_in(int(advised[1]))
    assert said == []
    assert stats.num_evictions == 0


def test_a_little_recomputation_is_not_worth_a_warning() -> None:
    _, stats = run_in(2**28)
    said, stats = run_in(stats.needed_bytes // 2)
    assert stats.num_replays > 0
    assert said == []


@pytest.mark.parametrize("where", ["on the main thread", "elsewhere"])
def test_an_interrupt_is_seen_in_the_middle_of_recomputing(where: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.adapter.thrashing", where],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        # As if at a terminal: a background job of a shell has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    if where == "elsewhere":
        assert process.stdout.readline() == "main thread: False\n"
    warned = process.stdout.readline()
    assert warned.startswith("warned: coop: this step has recomputed for"), warned
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    last = process.stdout.readline().split()
    assert process.wait(timeout=600) == 0
    assert last[:2] == ["whole:", "True"]
    # Left alone it replays a million.
    assert int(last[3]) < 50 * DEPTH
