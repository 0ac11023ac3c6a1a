"""A long run holds no more at its end than soon after its beginning."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import coop

from . import models
from .harness import peak_bytes, rounded
from .long_run import resident_bytes, train

ROOT = Path(__file__).parents[2]
MIB = 2**20
WARM_UP = 200
NUM_STEPS = 1000  # `make no-growth` takes 10,000

Sample = dict[str, float]


def long_run(**arguments: int) -> list[Sample]:
    """The samples of `long_run`, from a process of its own."""
    command = [sys.executable, "-m", "tests.adapter.long_run"]
    command += [f"--{name}={number}" for name, number in arguments.items()]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    samples: list[Sample] = json.loads(ran.stdout)
    return samples


# A thousand steps


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Every hundredth of 1,000 steps inside 60% of the peak, after the warm-up."""
    peak = peak_bytes(lambda seed: train(3, rows=512, depth=5))
    budget = rounded(0.6 * peak)
    taken = long_run(steps=NUM_STEPS, rows=512, depth=5, every=100, budget=budget)
    return [sample for sample in taken if sample["step"] >= WARM_UP]


def test_1000_steps_are_all_run_and_all_evict(samples: list[Sample]) -> None:
    assert samples[-1]["step"] == NUM_STEPS
    evictions = [sample["num_evictions"] for sample in samples]
    assert evictions == sorted(set(evictions))


@pytest.mark.parametrize("count", ["num_recipes", "num_values"])
def test_records_and_values_after_1000_steps_are_those_of_the_warm_up(
    samples: list[Sample], count: str
) -> None:
    assert {sample[count] for sample in samples} == {samples[0][count]}


@pytest.mark.parametrize("count", ["num_blocks", "held_bytes"])
def test_blocks_and_held_bytes_do_not_grow_over_1000_steps(
    samples: list[Sample], count: str
) -> None:
    """Where blocks lie may change from step to step; that they become more may not."""
    half = len(samples) // 2
    early = max(sample[count] for sample in samples[:half])
    assert max(sample[count] for sample in samples[half:]) <= early


def test_the_resident_set_does_not_grow_over_1000_steps(samples: list[Sample]) -> None:
    assert samples[-1]["resident_bytes"] - samples[0]["resident_bytes"] <= 1 * MIB


# The resident set


@pytest.mark.slow
def test_the_resident_set_is_the_plain_process_without_activations_plus_the_budget() -> None:
    """At its largest: what an allocator gives back afterwards depends on the machine."""
    shape = {"depth": 12, "steps": 1, "every": 1}
    budget_bytes = 64 * MIB
    (empty,) = long_run(rows=1, **shape)
    (plain,) = long_run(rows=32768, **shape)
    (inside,) = long_run(rows=32768, budget=budget_bytes, **shape)
    bound_bytes = empty["most_resident_bytes"] + budget_bytes + 24 * MIB
    assert plain["most_resident_bytes"] > bound_bytes  # or else the bound would say nothing
    assert inside["num_evictions"] > 0
    assert inside["most_resident_bytes"] <= bound_bytes


# Without an optimizer's step


def test_gradient_accumulation_does_not_grow_from_micro_batch_to_micro_batch() -> None:
    counts = []
    with coop.budget(3 * MIB // 2) as session:
        torch.manual_seed(0)
        model = models.mlp(depth=4)
        for micro_batch in range(120):
            loss = F.cross_entropy(model(torch.randn(512, 64)), torch.randint(16, (512,)))
            loss.backward()
            if micro_batch >= 20:
                stats = session.stats()
                counts.append((stats.num_recipes, stats.num_values))
    assert session.stats().num_evictions > 0
    assert set(counts) == {counts[0]}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_does_not_grow_from_batch_to_batch(mode: type) -> None:
    counts = []
    with coop.budget(8 * MIB) as session, mode():
        torch.manual_seed(0)
        model = nn.Sequential(models.mlp(depth=4), nn.Softmax(dim=-1)).eval()
        total = torch.zeros(16)
        for batch in range(120):
            total += model(torch.randn(512, 64)).sum(dim=0)
            if batch >= 20:
                stats = session.stats()
                counts.append((stats.num_recipes, stats.num_values, stats.held_bytes))
    assert set(counts) == {counts[0]}


def test_sessions_one_after_the_other_do_not_grow() -> None:
    program = partial(train, 2, rows=512, depth=4)
    sizes = []
    for number in range(60):
        with coop.budget(2 * MIB):
            program()
        if number >= 20:
            sizes.append(resident_bytes())
    assert sizes[-1] - sizes[0] <= 1 * MIB
