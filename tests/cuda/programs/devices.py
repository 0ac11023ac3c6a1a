"""Two GPUs, or one that is shown as two."""

import hashlib
import os

import pytest
import torch

import coop
from tests.cuda.programs import MIB, same, value

DEVICES = ("cuda:0", "cuda:1")

if "LD_PRELOAD" in os.environ:
    torch.cuda._device_count_nvml = lambda: -1  # the driver's tools know better


def each_device_has_an_arena_and_gets_it_when_it_is_used() -> None:
    session = coop.install("256MiB")
    assert torch.cuda.device_count() == 2
    # Asking does not take memory.
    assert torch.cuda.memory_reserved(1) == torch.cuda.memory_allocated(1) == 0
    torch.cuda.reset_peak_memory_stats(1)
    with pytest.raises(ValueError, match="cuda:1"):
        session.stats("cuda:1")
    before = torch.cuda.memory_allocated(0)
    made = value(0, "cuda:1", mib=64)
    assert torch.cuda.memory_reserved(0) == torch.cuda.memory_reserved(1) == 256 * MIB
    assert torch.cuda.memory_allocated(0) == before
    assert 64 * MIB <= torch.cuda.memory_allocated(1) == session.stats(1).held_bytes
    assert session.stats("cuda:0") == session.stats()
    segments = torch.cuda.memory_snapshot()
    assert [s["device"] for s in segments] == [0, 1]
    assert segments[0]["address"] != segments[1]["address"]
    assert same(made, value(0, "cuda:0", mib=64))


def a_session_may_be_of_the_second_device() -> None:
    for _ in range(2):
        with coop.budget("128MiB", device="cuda:1") as session:
            assert session.stats("cuda:1") == session.stats()
            made = [value(n, "cuda:1") for n in range(32)]
            assert session.stats().num_evictions > 0
            assert {s["device"] for s in torch.cuda.memory_snapshot()} == {1}
            for n in range(32):
                assert same(made[n], value(n, "cuda:1"))
            assert session.stats().num_replays > 0
            del made[2:]  # there is room for these, beside cuBLAS's workspaces
        assert all(same(made[n], value(n, "cuda:1")) for n in range(2))
    # The first one has a budget too, once it is used.
    assert torch.cuda.memory_reserved(0) == 0
    value(0, "cuda:0")
    assert torch.cuda.memory_reserved(0) == 128 * MIB


def values_of_each_device_are_evicted_and_come_back() -> None:
    session = coop.install("128MiB")
    made = {d: [value(n, d) for n in range(32)] for d in DEVICES}
    for device in DEVICES:
        stats = session.stats(device)
        assert stats.num_evictions > 0
        assert stats.peak_bytes <= 128 * MIB
    for n in range(32):
        for device in DEVICES:
            assert torch.equal(made[device][n].cpu(), value(n, device).cpu()), (n, device)
    assert torch.equal(made["cuda:0"][5].cpu(), made["cuda:1"][5].cpu())
    assert all(session.stats(device).num_replays > 0 for device in DEVICES)


def random_numbers_of_the_current_device_come_back() -> None:
    session = coop.install("128MiB")
    torch.manual_seed(0)
    with torch.cuda.device(1):
        drawn = [torch.randn(2 * MIB, device="cuda") for _ in range(32)]
        sums = [float(tensor.double().sum()) for tensor in drawn]
    assert {str(tensor.device) for tensor in drawn} == {"cuda:1"}
    assert session.stats().num_evictions == 0
    assert session.stats(1).num_evictions > 0
    # Brought back from the other device.
    assert [float(tensor.double().sum()) for tensor in drawn] == sums
    assert session.stats(1).num_replays > 0


def copies_between_devices_read_what_was_evicted() -> None:
    session = coop.install("128MiB")
    side = 1024
    source = value(1, "cuda:0").view(2 * side, side)
    expected = source.cpu()
    # Room for what a copy needs besides is made by evicting: not what it reads.
    others = [value(n, "cuda:0") for n in range(2, 20)]
    for target in (
        lambda: source.to("cuda:1"),
        lambda: torch.empty(2 * side, side, device="cuda:1").copy_(source),
        lambda: torch.empty(2 * side, side, device="cuda:1", dtype=torch.float64).copy_(source),
        lambda: torch.empty(side, 2 * side, device="cuda:1").copy_(source.t()).t(),
    ):
        coop.evict(source)
        assert not coop.is_resident(source)
        assert torch.equal(target().cpu().float(), expected)
        others[:] = [value(n, "cuda:0") for n in range(2, 20)]
    assert session.stats(0).num_replays >= 4


def a_write_by_the_other_device_is_not_undone() -> None:
    @torch.library.custom_op("devices::put", mutates_args={"target"})
    def put(source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source)

    coop.install("128MiB")
    source, target = value(1, "cuda:0"), value(2, "cuda:1")
    put(source, target)
    coop.evict(target)
    others = [value(n, "cuda:1") for n in range(3, 40)]
    assert len(others) == 37
    assert torch.equal(target.cpu(), value(1, "cuda:0").cpu())


def leaving_a_budget_gives_back_what_was_evicted_on_each() -> None:
    with coop.budget("128MiB", device="cuda") as session:
        made = [value(n, device) for n, device in enumerate(DEVICES)]
        expected = [tensor.cpu() for tensor in made]
        assert all(coop.evict(tensor) for tensor in made)
    assert [torch.equal(a.cpu(), b) for a, b in zip(made, expected, strict=True)] == [True, True]
    assert session.stats("cuda:1").num_evictions == 1


def train_on_two(budget: str = "") -> None:
    """Trains a model of two halves, in a budget if there is one, and prints a checksum."""
    if not budget:
        print(_train())
        return
    with coop.budget(budget, device="cuda") as session:
        print(_train())
    for device in DEVICES:
        stats = session.stats(device)
        assert stats.num_evictions > 0, (device, stats)
        assert stats.num_replays > 0, (device, stats)
        assert stats.num_steps == 4, stats.num_steps


def _blocks(device: str) -> torch.nn.Module:
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Dropout(0.1))
        for _ in range(8)
    ]
    return torch.nn.Sequential(*blocks).to(device)


def _train() -> str:
    torch.manual_seed(0)
    halves = [_blocks(device) for device in DEVICES]
    parameters = [p for half in halves for p in half.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    digest = hashlib.sha256()
    for _ in range(4):
        x = torch.randn(8192, 512, device="cuda:0")
        loss = halves[1](halves[0](x).to("cuda:1")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.update(loss.detach().cpu().numpy().tobytes())
    for parameter in parameters:
        for tensor in (parameter.detach(), parameter.grad, *optimizer.state[parameter].values()):
            digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()
