"""Copies in main memory, here a mapped file: the same bits, whatever leaves and whatever fails.

`paranoid` with a pool makes parameters, gradients and optimizer state leave after every operator.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import coop

from .faults import Training, same_bits
from .harness import assert_identical, reference
from .programs import PROGRAMS

pytestmark = pytest.mark.debug_build
MIB = 2**20
# Those whose roots are written, read and handed on in the most ways; all others are slow tests.
QUICK = ("deepcopy_mid_run", "state_dict_saved_and_loaded_mid_run")


def train(num_steps: int = 3, width: int = 256, depth: int = 6) -> list[Tensor]:
    """Parameters, gradients and state of 1.5 MiB each."""
    torch.manual_seed(0)
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.Tanh())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(num_steps):
        loss = (model(torch.randn(64, width)) - torch.randn(64, width)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    states = [t for state in optimizer.state.values() for t in state.values()]
    return [*losses, *model.parameters(), *states]


def cloned(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in PROGRAMS],
)
def test_programs_have_the_same_bits_when_everything_leaves(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    with coop.budget(
        "1GiB", device="cpu", host="512MiB", host_dir=str(tmp_path), paranoid=True, small_bytes=0
    ) as session:
        outcome = program(0)
    assert_identical(reference(program).outcome, outcome.cloned())
    assert session.stats().num_host_saves > 0


def test_a_model_trains_whose_parameters_and_state_do_not_fit(tmp_path: Path) -> None:
    expected = cloned(train())
    with (
        pytest.raises(coop.OutOfBudgetError, match="room for copies of roots"),
        coop.budget("3MiB", device="cpu"),
    ):
        train()
    for size in ("3MiB", "2MiB"):
        with coop.budget(size, device="cpu", host="16MiB", host_dir=str(tmp_path)) as session:
            result = train()
        assert same_bits(expected, cloned(result))
        stats = session.stats()
        assert stats.peak_bytes <= stats.budget_bytes
        assert stats.host_bytes == 16 * MIB
        assert 3 * MIB < stats.host_peak_bytes <= stats.host_bytes
        assert stats.num_host_loads > 0
    assert not list(tmp_path.iterdir())


def test_a_pool_that_is_too_small_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(coop.OutOfBudgetError, match=r"host='1.00 MiB' has no room") as caught,
        coop.budget("3MiB", device="cpu", host="1MiB", host_dir=str(tmp_path)),
    ):
        train()
    assert caught.value.shortage["refused_bytes"] > 0


def test_a_copy_that_fails_at_any_point_changes_no_bit(tmp_path: Path) -> None:
    """After it main memory is as small as it was then: the rest stays, or is recomputed."""
    expected = Training()
    expected.step(0)
    expected.step(2)
    failing = 1
    while True:
        with coop.budget(
            "64MiB", device="cpu", host="4MiB", host_dir=str(tmp_path), paranoid=True, small_bytes=0
        ) as session:
            training = Training()
            training.step(0)
            session._engine.fail_copy(failing)
            training.step(2)
            left = session._engine.fail_copy(0)
            assert session._engine.is_valid()
        assert same_bits(expected.state(), cloned(training.state())), failing
        if left > 0:
            break
        assert session.stats().num_host_refusals > 0
        failing += 3
    assert failing > 10


def test_a_copy_that_throws_at_any_point_changes_no_bit(tmp_path: Path) -> None:
    """There it is a copy that failed; on the way back the operator does not run."""
    expected = Training()
    expected.step(0)
    expected.step(2)
    throwing, num_thrown = 1, 0
    while True:
        with coop.budget(
            "64MiB", device="cpu", host="64MiB", host_dir=str(tmp_path), paranoid=True,
            small_bytes=0,
        ) as session:  # fmt: skip
            training = Training()
            training.step(0)
            saved = cloned([*training.model.state_dict().values()])
            session._engine.throw_in_copy(throwing)
            try:
                training.forward_backward(1)
            except RuntimeError as error:
                num_thrown += "a copy failed" in str(error)
            left = session._engine.throw_in_copy(0)
            assert session._engine.is_valid()
            with torch.no_grad():
                for tensor, content in zip(
                    training.model.state_dict().values(), saved, strict=True
                ):
                    tensor.copy_(content)
            training.step(2)
            assert session._engine.is_valid()
        assert same_bits(expected.state(), cloned(training.state())), throwing
        if left > 0:
            break
        throwing += 3
    assert throwing > 10
    assert num_thrown > 3


@pytest.mark.parametrize("half", ["passes", "update"])
def test_a_placement_that_fails_with_copies_changes_no_bit(half: str, tmp_path: Path) -> None:
    expected = Training()
    expected.step(0)
    expected.step(2)
    failing = 0
    while True:
        failing += 11
        with coop.budget(
            64 * MIB, device="cpu", host="64MiB", host_dir=str(tmp_path), paranoid=True,
            small_bytes=0,
        ) as session:  # fmt: skip
            training = Training()
            training.step(0)
            saved = cloned([*training.model.state_dict().values()])
            optimizer = {k: v.clone() for k, v in _state(training).items()}
            if half == "update":
                training.forward_backward(1)
            session._engine.fail_placement(failing)
            try:
                if half == "update":
                    training.optimizer.step()
                else:
                    training.forward_backward(1)
            except coop.OutOfBudgetError:
                pass
            left = session._engine.fail_placement(0)
            assert session._engine.is_valid()
            with torch.no_grad():
                model = training.model.state_dict().values()
                for tensor, content in zip(model, saved, strict=True):
                    tensor.copy_(content)
                for key, tensor in _state(training).items():
                    tensor.copy_(optimizer[key])
            training.step(2)
        assert same_bits(expected.state(), cloned(training.state())), failing
        if left > 0:
            return


def _state(training: Training) -> dict[tuple[int, str], Tensor]:
    state = training.optimizer.state
    return {(i, k): t for i, s in enumerate(state.values()) for k, t in s.items()}


def test_what_is_away_comes_back_on_leaving(tmp_path: Path) -> None:
    with coop.budget("1MiB", device="cpu", host="8MiB", host_dir=str(tmp_path)) as session:
        tensors = [torch.full((64, 1024), float(i)) for i in range(8)]
        for tensor in tensors:
            tensor.add_(1)
        session._engine.begin_step()
        session._engine.end_step(True)
        session._engine.begin_step()
        session._engine.end_step(True)
        assert not all(coop.is_resident(tensor) for tensor in tensors)
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full((64, 1024), i + 1.0))


def test_an_exception_and_the_next_budget(tmp_path: Path) -> None:
    expected = cloned(train())
    options = {"device": "cpu", "host": "16MiB", "host_dir": str(tmp_path)}

    def fail() -> None:
        with coop.budget("3MiB", **options):
            train(num_steps=1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with coop.budget("3MiB", **options):
        result = train()
    assert same_bits(expected, cloned(result))


def test_what_is_handed_out_by_its_address_stays(tmp_path: Path) -> None:
    with coop.budget("4MiB", device="cpu", host="8MiB", host_dir=str(tmp_path)) as session:
        weight = nn.Linear(256, 256).weight
        assert coop.evict(weight)
        assert weight.detach().numpy().shape == (256, 256)
        assert not coop.evict(weight)
        other = nn.Linear(256, 256).weight
        assert coop.evict(other)
        address = other.data_ptr()
        assert not coop.evict(other)
        assert other.data_ptr() == address
        assert session.stats().num_host_saves == 2
        # Whoever has an address may write: their copies are worth nothing.
        assert session.stats().host_held_bytes == 0


def test_empty_memory_that_is_filled_by_parts_stays(tmp_path: Path) -> None:
    with coop.budget("4MiB", device="cpu", host="8MiB", host_dir=str(tmp_path)):
        x = torch.empty(64, 1024)
        x[0] = 1
        assert not coop.evict(x)


DISK_FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import torch, coop
from tests.adapter.test_host_copies import cloned, same_bits, train
expected = cloned(train(1, depth=2))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
options = {"host": "16MiB", "host_dir": sys.argv[1], "paranoid": True}
with coop.budget("16MiB", device="cpu", **options) as session:
    result = train(1, depth=2)
assert same_bits(expected, cloned(result))
assert session.stats().num_host_saves == 0
assert session.stats().num_host_refusals > 0
print("the same")
"""


def test_a_disk_that_is_full_is_no_error_where_there_is_another_way(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DISK_FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "the same\n", ran.stderr
    assert ran.stderr.count("coop: the system has no more than 0 MiB for copies (host=)") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": "1GiB"}, "name its folder"),
        ({"host": "1GiB", "host_dir": "/nowhere/at/all"}, "is no folder"),
        ({"host": "1000TiB", "host_dir": "."}, "is more than"),
        ({"host": "much", "host_dir": "."}, "is not a size"),
    ],
)
def test_what_is_wrong_with_a_pool_is_said_at_once(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message), coop.budget("8MiB", device="cpu", **changes):
        pass


def test_without_a_pool_there_are_no_copies() -> None:
    assert coop.Config().host_bytes("cpu") == 0
    with coop.budget("16MiB", device="cpu") as session:
        train(num_steps=1)
    stats = session.stats()
    assert (stats.host_bytes, stats.num_host_saves, stats.host_wait_ns) == (0, 0, 0.0)
