"""Several GPUs, each with an arena of its own.

Where there is but one, it is shown to the programs as two (one_gpu_as_two.c): allocators, engines,
streams and autograd's threads are then those of two devices, and copies between them are real.
"""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

from tests.cuda.cuda_programs import needs_gpu
from tests.cuda.cuda_programs import run as run_program

pytestmark = needs_gpu

PRELUDE = """
if "LD_PRELOAD" in os.environ:
    torch.cuda._device_count_nvml = lambda: -1  # the driver's tools know better
DEVICES = ("cuda:0", "cuda:1")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of a machine with two GPUs."""
    if torch.cuda.device_count() > 1:
        return dict(os.environ)
    library = tmp_path_factory.mktemp("devices") / "one_gpu_as_two.so"
    source = Path(__file__).with_name("one_gpu_as_two.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


def run(program: str, environment: dict[str, str]) -> str:
    """Runs the program where there are two GPUs; its output."""
    return run_program(PRELUDE + textwrap.dedent(program), environment)


def test_each_device_has_an_arena_and_gets_it_when_it_is_used(environment: dict[str, str]) -> None:
    run(
        """
        session = coop.install("256MiB")
        assert torch.cuda.device_count() == 2
        # Asking does not take memory.
        assert torch.cuda.memory_reserved(1) == torch.cuda.memory_allocated(1) == 0
        torch.cuda.reset_peak_memory_stats(1)
        try:
            session.stats("cuda:1")
        except ValueError as error:
            assert "cuda:1" in str(error)
        else:
            raise AssertionError
        before = torch.cuda.memory_allocated(0)
        kept = value(0, "cuda:1", mib=64)
        assert torch.cuda.memory_reserved(0) == torch.cuda.memory_reserved(1) == 256 * MIB
        assert torch.cuda.memory_allocated(0) == before
        assert 64 * MIB <= torch.cuda.memory_allocated(1) == session.stats(1).held_bytes
        assert session.stats("cuda:0") == session.stats()
        segments = torch.cuda.memory_snapshot()
        assert [s["device"] for s in segments] == [0, 1]
        assert segments[0]["address"] != segments[1]["address"]
        """,
        environment,
    )


def test_a_session_may_be_of_the_second_device(environment: dict[str, str]) -> None:
    run(
        """
        for repeat in range(2):
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
        """,
        environment,
    )


def test_values_of_each_device_are_evicted_and_come_back(environment: dict[str, str]) -> None:
    run(
        """
        session = coop.install("128MiB")
        made = {d: [value(n, d) for n in range(32)] for d in DEVICES}
        for device in DEVICES:
            stats = session.stats(device)
            assert stats.num_evictions > 0 and stats.peak_bytes <= 128 * MIB
        for n in range(32):
            for device in DEVICES:
                assert torch.equal(made[device][n].cpu(), value(n, device).cpu()), (n, device)
        assert torch.equal(made["cuda:0"][5].cpu(), made["cuda:1"][5].cpu())
        assert all(session.stats(device).num_replays > 0 for device in DEVICES)
        """,
        environment,
    )


def test_random_numbers_of_the_current_device_come_back(environment: dict[str, str]) -> None:
    run(
        """
        session = coop.install("128MiB")
        torch.manual_seed(0)
        with torch.cuda.device(1):
            drawn = [torch.randn(2 * MIB, device="cuda") for _ in range(32)]
            sums = [float(tensor.double().sum()) for tensor in drawn]
        assert {str(tensor.device) for tensor in drawn} == {"cuda:1"}
        assert session.stats().num_evictions == 0 and session.stats(1).num_evictions > 0
        # Brought back from the other device.
        assert [float(tensor.double().sum()) for tensor in drawn] == sums
        assert session.stats(1).num_replays > 0
        """,
        environment,
    )


@pytest.mark.parametrize("peers", [True, False])
def test_copies_between_devices_read_what_was_evicted(
    environment: dict[str, str], peers: bool
) -> None:
    run(
        """
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
            others = [value(n, "cuda:0") for n in range(2, 20)]
        assert session.stats(0).num_replays >= 4
        """,
        environment if peers else {**environment, "NO_PEERS": "1"},
    )


def test_a_write_by_the_other_device_is_not_undone(environment: dict[str, str]) -> None:
    run(
        """
        @torch.library.custom_op("devices::put", mutates_args={"target"})
        def put(source: torch.Tensor, target: torch.Tensor) -> None:
            target.copy_(source)
        coop.install("128MiB")
        source, target = value(1, "cuda:0"), value(2, "cuda:1")
        put(source, target)
        coop.evict(target)
        others = [value(n, "cuda:1") for n in range(3, 40)]
        assert torch.equal(target.cpu(), value(1, "cuda:0").cpu())
        """,
        environment,
    )


TRAINING = """
import hashlib
def blocks(device):
    return torch.nn.Sequential(*[
        torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Dropout(0.1))
        for _ in range(8)
    ]).to(device)

def train():
    torch.manual_seed(0)
    halves = [blocks(device) for device in DEVICES]
    parameters = [p for half in halves for p in half.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    digest = hashlib.sha256()
    for step in range(4):
        x = torch.randn(8192, 512, device="cuda:0")
        loss = halves[1](halves[0](x).to("cuda:1")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.update(loss.detach().cpu().numpy().tobytes())
    for parameter in parameters:
        for tensor in (parameter.detach(), parameter.grad, *optimizer.state[parameter].values()):
            digest.update(tensor.cpu().numpy().tobytes())
    print("digest", digest.hexdigest())
"""


def test_a_model_on_two_devices_trains_to_the_same_bits(environment: dict[str, str]) -> None:
    plain = run(TRAINING + "train()\n", environment)
    budgeted = run(
        TRAINING
        + textwrap.dedent("""
        with coop.budget("256MiB", device="cuda") as session:
            train()
        for device in DEVICES:
            stats = session.stats(device)
            assert stats.num_evictions > 0 and stats.num_replays > 0, (device, stats)
            assert stats.num_steps == 4, stats.num_steps
        """),
        environment,
    )
    assert plain == budgeted != ""


def test_leaving_a_budget_gives_back_what_was_evicted_on_each(environment: dict[str, str]) -> None:
    run(
        """
        with coop.budget("128MiB", device="cuda") as session:
            made = [value(n, device) for n, device in enumerate(DEVICES)]
            expected = [tensor.cpu() for tensor in made]
            assert all(coop.evict(tensor) for tensor in made)
        assert [torch.equal(a.cpu(), b) for a, b in zip(made, expected)] == [True, True]
        assert session.stats("cuda:1").num_evictions == 1
        """,
        environment,
    )
