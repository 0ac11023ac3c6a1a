"""Mistakes get a message that says what to do, and leave everything as it was."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest
import torch
from torch import Tensor

import coop
from coop import naming

from .harness import assert_identical, peak_bytes, rounded, run_plain
from .programs import PROGRAMS

MIB = 2**20

pytestmark = pytest.mark.debug_build


def value() -> Tensor:
    """256 KiB that can be recomputed."""
    return torch.arange(65536, dtype=torch.float32).view(256, 256).sin()


# Sizes, policies, nesting


@pytest.mark.parametrize(
    ("size", "budget_bytes"),
    [
        (12_345_678, 12_345_678),
        ("512KiB", 512 * 2**10),
        ("8MiB", 8 * 2**20),
        ("8MB", 8 * 10**6),
        ("8GiB", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("1.5GiB", 3 * 2**29),
    ],
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(size: int | str, budget_bytes: int) -> None:
    with coop.budget(size) as session:
        assert session.stats().budget_bytes == budget_bytes


@pytest.mark.parametrize(
    "size", [0, -1, 2**70, "", "GiB", "eight", "8XiB", "8GiBGiB", "0GiB", "-8GiB", "nanGiB"]
)
def test_a_size_that_means_nothing_is_refused_and_named(size: int | str) -> None:
    with pytest.raises(ValueError) as caught, coop.budget(size):  # noqa: PT011
        pass
    assert str(size) in str(caught.value)


@pytest.mark.parametrize("size", [1.5, b"8GiB", [8]])
def test_a_size_of_another_type_is_refused(size: object) -> None:
    with pytest.raises(TypeError), coop.budget(size):  # type: ignore[arg-type]
        pass


def test_an_unknown_policy_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match="lru") as caught, coop.budget(8 * MIB, policy="lru"):
        pass
    assert all(policy in str(caught.value) for policy in ("coop", "dtr", "dte"))


def test_a_budget_inside_a_budget_is_refused_and_the_outer_one_goes_on() -> None:
    with coop.budget(4 * MIB) as outer:
        t = value()
        with pytest.raises(RuntimeError, match="budget"), coop.budget(8 * MIB):
            pass
        assert outer.stats().budget_bytes == 4 * MIB
        made = [t + number for number in range(32)]
        assert outer.stats().num_evictions > 0
    assert torch.equal(made[5], value() + 5)


# Out of budget


def test_out_of_budget_is_an_ordinary_out_of_memory_error() -> None:
    assert issubclass(coop.OutOfBudgetError, torch.OutOfMemoryError)
    with pytest.raises(torch.OutOfMemoryError), coop.budget(1 * MIB):
        torch.zeros(2 * MIB, dtype=torch.uint8)


def test_out_of_budget_names_the_operator_and_the_bytes() -> None:
    with coop.budget(1 * MIB):
        t = value()
        with pytest.raises(coop.OutOfBudgetError) as caught:
            torch.cat([t, t, t, t])
    message = str(caught.value)
    assert "aten::cat" in message
    assert str(4 * t.nbytes) in message.replace(",", "")


def test_a_budget_smaller_than_what_is_kept_names_what_is_kept() -> None:
    with coop.budget(1 * MIB) as session:
        kept = [value() for _ in range(2)]
        for one in kept:
            coop.keep(one)
        with pytest.raises(coop.OutOfBudgetError, match="Kept: "):
            torch.zeros(3 * MIB // 4, dtype=torch.uint8)
        assert all(coop.is_resident(one) for one in kept)
        for one in kept:
            coop.unkeep(one)
        large = torch.zeros(3 * MIB // 4, dtype=torch.uint8)
        assert session.stats().num_evictions > 0
    assert int(large.count_nonzero()) == 0
    assert all(torch.equal(one, value()) for one in kept)


def test_parameters_larger_than_the_budget_do_not_fit() -> None:
    with coop.budget(1 * MIB):
        model = torch.nn.Linear(256, 256)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 256)).sum().backward()
        optimizer.step()  # from here on its parameters and gradients are roots
        with pytest.raises(coop.OutOfBudgetError):
            torch.nn.Linear(512, 512)
        assert model.weight.isfinite().all()


def test_after_out_of_budget_training_starts_again_in_the_same_session() -> None:
    program = PROGRAMS["mlp"]
    expected = run_plain(program)
    with coop.budget(rounded(0.6 * peak_bytes(program))) as session:
        before = session.stats()
        with pytest.raises(coop.OutOfBudgetError):
            torch.zeros(before.budget_bytes + 1, dtype=torch.uint8)
        after = session.stats()
        assert after.held_bytes == before.held_bytes
        assert after.num_blocks == before.num_blocks
        outcome = program(0)
    assert_identical(expected, outcome.cloned())
    assert session.stats().num_evictions > 0


# Rule 13: the raw pointer of an evicted tensor

RAW_READS: dict[str, Callable[[Tensor], object]] = {
    "numpy": lambda t: t.numpy(),
    "asarray": lambda t: np.asarray(t),
    "data_ptr": lambda t: t.data_ptr(),
    "storage_data_ptr": lambda t: t.untyped_storage().data_ptr(),
    "dlpack": lambda t: torch.utils.dlpack.to_dlpack(t),
    "from_dlpack": np.from_dlpack,
    "view": lambda t: t[3:].t().numpy(),
}


@pytest.mark.parametrize("read", RAW_READS.values(), ids=RAW_READS)
def test_who_has_a_raw_pointer_of_an_evicted_tensor_has_its_bytes_for_good(
    read: Callable[[Tensor], object],
) -> None:
    with coop.budget(8 * MIB):
        t = value()
        coop.evict(t)
        read(t)
        assert coop.is_resident(t)
        assert not coop.evict(t)
        np.testing.assert_array_equal(t.numpy(), t.clone().numpy())
    assert torch.equal(t, value())


READS: dict[str, Callable[[Tensor], object]] = {
    "tolist": lambda t: t.tolist(),
    "item": lambda t: t.item(),
    "repr": repr,
}


@pytest.mark.parametrize("name", READS)
def test_other_reads_of_an_evicted_tensor_are_right(name: str) -> None:
    read = READS[name]
    one = value()[:1, :1]
    with coop.budget(8 * MIB):
        t = value()
        coop.evict(t)
        assert read(t[:1, :1]) == read(one)


def test_an_error_that_is_caught_leaves_nothing_for_the_garbage_collector() -> None:
    """A cycle with frames in it would keep their tensors for a while."""
    with coop.budget("1MiB", device="cpu"):
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            with pytest.raises(coop.OutOfBudgetError):
                torch.ones(1 << 20)
            gc.collect()
            frames = [thing for thing in gc.garbage if isinstance(thing, FrameType)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert [f for f in frames if f.f_code.co_filename == naming.__file__] == []
