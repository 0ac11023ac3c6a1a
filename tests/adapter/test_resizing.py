"""Storages that are resized to nothing and back without an operator, as FSDP2's unsharded
parameters are."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import coop
from coop.simulate import simulate
from coop.trace import read_trace
from tests.bits import bits

pytestmark = pytest.mark.debug_build

SIZE = 65536
# As C++ takes it: a budget does not hear of it.
ADDRESS = torch.Tensor.data_ptr
COUNTED = torch.arange(SIZE, dtype=torch.float32)


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def root() -> Tensor:
    x = torch.empty(SIZE)
    ctypes.memmove(ADDRESS(x), ADDRESS(COUNTED), SIZE * 4)
    return x


def give_back(x: Tensor) -> None:
    x.untyped_storage().resize_(0)


def take(x: Tensor) -> None:
    x.untyped_storage().resize_(SIZE * 4)


def test_a_root_that_is_given_back_stays_for_what_is_made_from_it_without_a_copy() -> None:
    with coop.budget("4MiB", device="cpu") as session:
        x = root()
        y = torch.cat([x, x]).sin()
        give_back(x)
        assert x.untyped_storage().nbytes() == 0
        assert coop.evict(y)
        assert same(y, torch.cat([COUNTED, COUNTED]).sin())
        assert session.stats().num_copies == 0


def test_what_takes_less_than_the_root_it_is_made_from_stays_instead() -> None:
    with coop.budget("4MiB", device="cpu") as session:
        x = root()
        y = x[: SIZE // 4].sin()
        assert coop.evict(y)
        held = session.stats().held_bytes
        give_back(x)
        assert session.stats().held_bytes == held - SIZE * 4 + SIZE
        assert not coop.evict(y)
        assert same(y, COUNTED[: SIZE // 4].sin())


def test_what_a_backward_pass_made_from_a_root_stays_instead() -> None:
    """It is not evicted anyway, and the root would stay for it until the end of the step."""
    with coop.budget("4MiB", device="cpu") as session:
        x, made = root(), list[Tensor]()
        weight = torch.ones(8, requires_grad=True)
        y = weight * 2
        y.register_hook(lambda _: made.append(torch.cat([x, x]).sin()))
        y.sum().backward()
        held = session.stats().held_bytes
        give_back(x)
        assert session.stats().held_bytes <= held - SIZE * 4
        assert not coop.evict(made[0])
        assert same(made[0], torch.cat([COUNTED, COUNTED]).sin())


def test_what_is_evicted_can_be_given_back() -> None:
    with coop.budget("4MiB", device="cpu") as session:
        x = COUNTED.sin()
        x = x * 2
        assert coop.evict(x)
        replays = session.stats().num_replays
        give_back(x)
        assert session.stats().num_replays == replays
        take(x)
        x.copy_(COUNTED)
        assert same(x, COUNTED)


def test_what_is_taken_and_overwritten_may_leave() -> None:
    with coop.budget("4MiB", device="cpu"):
        x = COUNTED.clone()
        y = COUNTED.sin()
        give_back(x)
        take(x)
        x.copy_(y)
        z = x * 2
        assert coop.evict(x)
        assert coop.evict(z)
        assert same(z, COUNTED.sin() * 2)
        assert same(x, COUNTED.sin())


def test_what_is_taken_and_written_unseen_stays() -> None:
    with coop.budget("4MiB", device="cpu"):
        x = COUNTED.clone()
        give_back(x)
        take(x)
        ctypes.memmove(ADDRESS(x), ADDRESS(COUNTED), SIZE * 4)
        x[:8].zero_()
        assert not coop.evict(x)
        assert same(x[8:], COUNTED[8:])


def test_what_is_not_the_budgets_is_resized_as_without_one() -> None:
    x = COUNTED.clone()
    with coop.budget("4MiB", device="cpu"):
        y = x * 2
        give_back(x)
        assert x.untyped_storage().nbytes() == 0
        coop.evict(y)
        assert same(y, COUNTED * 2)
        take(x)
        x.copy_(y)
        assert same(x, COUNTED * 2)


def test_a_trace_tells_it_and_the_simulator_does_the_same(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with coop.budget("4MiB", device="cpu") as session, coop.record(path):
        x, y = COUNTED.clone(), COUNTED.sin()
        for _ in range(2):
            give_back(x)
            take(x)
            x.copy_(y)
            assert coop.evict(x)
            z = torch.cat([x, x])
        del z
        replays = session.stats().num_replays
    entries = path.read_text().splitlines()
    assert sum('{"give_back"' in entry for entry in entries) == 2
    assert sum('{"undefine"' in entry for entry in entries) == 2
    result = simulate(read_trace(path), 2**22)
    assert result.fitted
    assert result.stats["num_replays"] == replays > 0


@pytest.fixture
def one_rank() -> Iterator[None]:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch was built without gloo")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def train_sharded(steps: int) -> list[str]:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Tanh())]
    model = nn.Sequential(*layers)
    mesh = init_device_mesh("cpu", (1,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(512, 64)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses


@pytest.mark.usefixtures("one_rank")
def test_steps_of_fsdp2_get_a_schedule_that_is_followed() -> None:
    plain = train_sharded(8)
    with coop.budget("64MiB", device="cpu") as session:
        train_sharded(3)
    budget = int(0.6 * session.stats().peak_bytes)
    with coop.budget(budget, device="cpu") as session:
        assert train_sharded(8) == plain
    stats = session.stats()
    assert stats.num_evictions > 0
    assert stats.num_followed >= 4
    assert stats.num_left == 0
