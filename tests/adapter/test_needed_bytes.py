"""The budget that a run reports is one in which nothing is evicted."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coop

from .harness import AMPLE_BYTES
from .outcome import Outcome, Program, collect
from .programs import PROGRAMS
from .slices import quick_every


def vae(seed: int) -> Outcome:
    """Two large layers at either end and a code between them that is drawn."""
    torch.manual_seed(seed)
    encoder = nn.Linear(784, 400)
    mean, spread = nn.Linear(400, 20), nn.Linear(400, 20)
    decoder = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))
    modules = [encoder, mean, spread, decoder]
    optimizer = torch.optim.Adam([p for m in modules for p in m.parameters()], lr=1e-3)
    losses: list[Tensor] = []
    for _ in range(3):
        images = torch.rand(128, 784)
        optimizer.zero_grad()
        hidden = F.relu(encoder(images))
        mu, log_variance = mean(hidden), spread(hidden)
        code = mu + torch.randn_like(mu) * torch.exp(0.5 * log_variance)
        made = torch.sigmoid(decoder(code))
        loss = F.binary_cross_entropy(made, images, reduction="sum")
        loss = loss - 0.5 * torch.sum(1 + log_variance - mu**2 - log_variance.exp())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=modules, optimizers=[optimizer])


EVERY: dict[str, Program] = {**PROGRAMS, "vae": vae}


def run(name: str, budget_bytes: int, small_bytes: int = 10 * 1024) -> coop.Stats | None:
    """None where it does not fit."""
    fitted = True
    with coop.budget(budget_bytes, small_bytes=small_bytes) as session:
        try:
            EVERY[name](0)
        except coop.OutOfBudgetError:
            fitted = False
        gc.collect()
    return session.stats() if fitted else None


def evicts(stats: coop.Stats | None) -> bool:
    return stats is None or stats.num_evictions > 0


@pytest.mark.parametrize("name", quick_every(6, EVERY))
def test_what_a_run_with_room_needs_is_a_budget_without_evictions(name: str) -> None:
    ample = run(name, AMPLE_BYTES)
    assert ample is not None
    assert ample.peak_bytes <= ample.needed_bytes < AMPLE_BYTES
    assert not evicts(run(name, ample.needed_bytes))


# The VAE, which is the last one, was the first program whose peak was no budget that it fits.
@pytest.mark.parametrize("name", quick_every(18, EVERY, start=(len(EVERY) - 1) % 18))
def test_what_a_run_that_evicts_needs_is_a_budget_without_evictions(name: str) -> None:
    ample = run(name, AMPLE_BYTES)
    assert ample is not None
    for share in (0.9, 0.7):
        tight = run(name, int(share * ample.peak_bytes))
        if tight is None:
            continue
        assert tight.num_evictions > 0
        assert tight.needed_bytes > tight.budget_bytes
        assert not evicts(run(name, tight.needed_bytes))


@pytest.mark.parametrize("name", quick_every(18, EVERY, start=3))
def test_without_an_area_for_small_tensors_both_say_the_same_and_it_is_exact(name: str) -> None:
    """Blocks lie as without a limit; with 64 bytes less one of them does not."""
    ample = run(name, AMPLE_BYTES, small_bytes=0)
    assert ample is not None
    needed = ample.needed_bytes
    exact = run(name, needed, small_bytes=0)
    assert exact is not None
    assert (exact.num_evictions, exact.needed_bytes) == (0, needed)
    less = run(name, needed - 64, small_bytes=0)
    # Without an eviction only if a hole at the other end has taken it.
    assert less is None or less.needed_bytes <= needed
    for share in (0.9, 0.7):
        tight = run(name, int(share * ample.peak_bytes), small_bytes=0)
        assert tight is None or tight.needed_bytes == needed
