"""Costs are measured in the first steps, by operator and sizes, and kept for the next run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coop
from coop import measured_costs
from coop.measured_costs import load, path_for, save

pytestmark = pytest.mark.debug_build


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def train(num_steps: int, width: int = 64) -> coop.Stats:
    """A few operators a step, in a budget with measured costs."""
    with coop.budget("4MiB", device="cpu", measure_costs=True) as session:
        weight = torch.nn.Parameter(torch.ones(width, width))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(num_steps):
            (weight.sin() @ weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return session.stats()


def test_what_has_run_once_has_no_cost_yet() -> None:
    train(1)
    path = path_for(torch.device("cpu"))
    # The first run of an operator loads and tunes, so only what a step does twice is known.
    assert len(load(path)) < 3


def test_costs_are_kept_for_the_next_run_and_are_used_from_its_first_step() -> None:
    train(4)
    path = path_for(torch.device("cpu"))
    known = load(path)
    assert known
    assert all(ns >= 1 for ns in known.values())
    # Whatever was measured is replaced by a number that no clock gives.
    path.unlink()
    save(path, dict.fromkeys(known, 1e12))
    told = train(2)
    assert told.compute_ns > 2e12
    assert load(path) == dict.fromkeys(known, 1e12)


def test_without_measuring_nothing_is_written(cache: Path) -> None:
    with coop.budget("4MiB", device="cpu"):
        torch.ones(64, 64).sin()
    assert list(cache.iterdir()) == []


def test_a_file_that_is_not_one_counts_as_none(cache: Path) -> None:
    path = path_for(torch.device("cpu"))
    path.parent.mkdir(parents=True)
    for text in ("", "[]", "{}", '{"format": "coop-measured-costs", "ns": {"x": 1}}'):
        path.write_text(text)
        assert load(path) == {}
    save(path, {7: 3.0})
    assert load(path) == {7: 3.0}


def test_costs_are_added_to_what_is_there_up_to_a_limit(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache / "costs.json"
    save(path, {1: 10.0})
    save(path, {2: 20.0})
    assert load(path) == {1: 10.0, 2: 20.0}
    monkeypatch.setattr(measured_costs, "_MOST", 2)
    save(path, {3: 30.0})
    assert load(path) == {1: 10.0, 2: 20.0}


def test_results_are_the_same_bits() -> None:
    def losses(**changes: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        found = []
        with coop.budget("3MiB", device="cpu", **changes) as session:  # type: ignore[arg-type]
            model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(8)))
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(6):
                loss = model(torch.randn(256, 128)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.detach())
            assert session.stats().num_evictions > 0
        return found

    assert torch.equal(torch.stack(losses()), torch.stack(losses(measure_costs=True)))
