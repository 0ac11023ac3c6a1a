"""What a session promises about tensors: evicting, materializing, keeping, and leaving."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import coop

from .corners_runtime import Stop
from .programs import PROGRAMS

MIB = 2**20
HEADER_BYTES = 64  # before every block in main memory: the way back to its storage

pytestmark = pytest.mark.debug_build


def value() -> Tensor:
    """256 KiB that can be recomputed."""
    return torch.arange(65536, dtype=torch.float32).view(256, 256).sin()


def test_an_evicted_tensor_comes_back_when_an_operator_needs_it() -> None:
    expected = value() + 1
    with coop.budget(8 * MIB) as session:
        t = value()
        coop.evict(t)
        assert not coop.is_resident(t)
        held_bytes = session.stats().held_bytes
        result = t + 1
        assert coop.is_resident(t)
        scalar_bytes = 64 + HEADER_BYTES  # the 1, which the recipe of the result reads
        assert session.stats().held_bytes == held_bytes + scalar_bytes + sum(
            tensor.nbytes + HEADER_BYTES for tensor in (t, result)
        )
        assert session.stats().num_replays == 2  # the sine, and the range that it was taken of
    assert torch.equal(result, expected)


def test_an_evicted_tensor_comes_back_with_all_its_views() -> None:
    with coop.budget(8 * MIB):
        t = value()
        row, turned = t[3], t.t()
        coop.evict(row)  # by storage, never by tensor
        assert [coop.is_resident(view) for view in (t, row, turned)] == [False, False, False]
        coop.materialize(turned)
        assert [coop.is_resident(view) for view in (t, row, turned)] == [True, True, True]
        assert row.data_ptr() == t.data_ptr() + 3 * 256 * 4
        assert torch.equal(turned[:, 3], row)


def test_a_kept_tensor_stays_until_it_is_kept_no_more() -> None:
    with coop.budget(2 * MIB):
        kept = value()
        # Torch's own method: whoever asks the usual way has the tensor stay for good.
        address = torch._C.TensorBase.data_ptr(kept)
        coop.keep(kept)
        others = [value() for _ in range(16)]
        assert coop.is_resident(kept)
        assert torch._C.TensorBase.data_ptr(kept) == address
        assert not all(coop.is_resident(other) for other in others)
        coop.unkeep(kept)
        others += [value() for _ in range(16)]
        assert not coop.is_resident(kept)
        assert torch.equal(kept, others[0])


def test_a_tensor_made_outside_is_resident_and_usable_as_input() -> None:
    outside = value()
    with coop.budget(2 * MIB):
        assert coop.is_resident(outside)
        made = [outside + number for number in range(16)]
    assert all(torch.equal(made[number], outside + number) for number in range(16))


def test_leaving_gives_back_every_live_tensor() -> None:
    with coop.budget(2 * MIB):
        made = [value() + number for number in range(32)]
        assert not all(coop.is_resident(one) for one in made)
    for number, one in enumerate(made):
        assert torch.equal(one, value() + number)
        assert one.numpy().shape == (256, 256)  # the raw pointer is ordinary memory again
        one.add_(1)


def test_leaving_by_an_exception_gives_back_every_live_tensor() -> None:
    made: list[Tensor] = []

    def make_and_raise() -> None:
        with coop.budget(2 * MIB):
            made.extend(value() + number for number in range(32))
            raise Stop

    with pytest.raises(Stop):
        make_and_raise()
    for number, one in enumerate(made):
        assert torch.equal(one, value() + number)


def test_a_graph_made_inside_is_differentiated_outside() -> None:
    weight = torch.full((256, 256), 0.01, requires_grad=True)

    def forward() -> Tensor:
        x = value()
        for _ in range(8):
            x = torch.tanh(x @ weight)
        return x.square().mean()

    (expected,) = torch.autograd.grad(forward(), weight)
    with coop.budget(3 * MIB // 2) as session:
        loss = forward()
    assert session.stats().num_evictions > 0
    (actual,) = torch.autograd.grad(loss, weight)
    assert torch.equal(actual, expected)


def test_a_second_session_starts_from_nothing() -> None:
    program = PROGRAMS["mlp"]
    counts = []
    for _ in range(2):
        with coop.budget(8 * MIB) as session:
            program(0)
        stats = session.stats()
        counts.append((stats.num_operators, stats.num_evictions, stats.peak_bytes))
    assert counts[0] == counts[1]


def test_outside_a_session_torch_allocates_as_ever() -> None:
    with coop.budget(8 * MIB) as session:
        value()
    before = session.stats()
    value()
    assert session.stats() == before


def test_stats_are_of_a_device_that_was_used() -> None:
    with coop.budget(8 * MIB) as session:
        value()
        assert session.stats("cpu") == session.stats()
        with pytest.raises(ValueError, match="nothing was allocated on 'cuda:1'"):
            session.stats("cuda:1")
    assert session.stats("cpu") == session.stats()
    with pytest.raises(ValueError, match="nothing was allocated on 'cuda:1'"):
        session.stats("cuda:1")


def test_stats_are_frozen_and_turn_into_a_dictionary() -> None:
    with coop.budget(8 * MIB) as session:
        kept = value()
        stats = session.stats()
    assert stats.as_dict() == dataclasses.asdict(stats)
    assert stats.budget_bytes == 8 * MIB
    assert stats.held_bytes >= kept.nbytes
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.peak_bytes = 0  # type: ignore[misc]
