"""Bytes that are read, written or replaced without an operator."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import coop
from coop.runtime import runtime

pytestmark = pytest.mark.debug_build


def assert_same_bits(expected: list[Tensor], actual: list[Tensor]) -> None:
    assert [t.shape for t in expected] == [t.shape for t in actual]
    for a, b in zip(expected, actual, strict=True):
        assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def product() -> Tensor:
    """256 KiB that can be recomputed."""
    x = torch.arange(65536, dtype=torch.float32).view(256, 256) / 65536
    return x @ x


def saved(t: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(t, file, **options)
    file.seek(0)
    return torch.load(file)


COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "save": saved,
    "save in the old format": lambda t: saved(t, _use_new_zipfile_serialization=False),
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "deepcopy": copy.deepcopy,
    "copy of the storage": lambda t: t.new_empty(0).set_(t.untyped_storage().clone(), 0, t.shape),
    "to and from a list": lambda t: torch.tensor(t.tolist()),
    "list of the storage": lambda t: (
        torch.tensor(t.untyped_storage().tolist(), dtype=torch.uint8)
        .view(torch.float32)
        .view(t.shape)
    ),
}


@pytest.mark.parametrize("name", COPIES)
def test_an_evicted_tensor_is_brought_back_to_be_read(name: str) -> None:
    plain = product()
    with coop.budget("8MiB"):
        t = product()
        assert coop.evict(t)
        copied = COPIES[name](t).clone()
        # Nothing stays kept.
        assert coop.evict(t)
    assert_same_bits([plain, plain], [copied, t])


def test_a_checkpoint_of_more_than_the_budget_at_once_says_so() -> None:
    with coop.budget("1MiB"):
        tensors = [product() * i for i in range(8)]
        with pytest.raises(coop.OutOfBudgetError):
            saved(tensors)
        # What had been kept until then is not any more.
        assert [coop.evict(t) for t in tensors] == [True] * 8
        del tensors
        gc.collect()


def test_storages_are_told_apart_although_they_took_turns_at_an_address() -> None:
    # torch.save knows a storage by its address, and refuses one address with two types.
    with coop.budget("8MiB"):
        one, two = product(), product().double()
        assert coop.evict(one)
        assert coop.evict(two)
        back = saved([one, two, one.t()])
        assert [t.dtype for t in back] == [torch.float32, torch.float64, torch.float32]
        assert_same_bits([one, two, one.t()], back)
        assert back[0].data_ptr() == back[2].data_ptr()


def test_questions_about_the_memory_of_an_evicted_tensor() -> None:
    with coop.budget("8MiB"):
        t = product()
        assert coop.evict(t)
        assert not t.is_pinned()
        assert not coop.is_resident(t)
        assert not t.is_shared()
        assert t.is_set_to(t)


def test_a_tensor_moves_to_shared_memory() -> None:
    plain = product()
    with coop.budget("8MiB"):
        t = product()
        twice = t * 2
        assert coop.evict(t)
        t.share_memory_()
        assert t.is_shared()
        assert coop.evict(twice)
        assert_same_bits([plain, plain * 2], [t, twice.clone()])


# Writes


def of_the_outside() -> Tensor:
    return torch.arange(65536, dtype=torch.float32)


def changed(change: Callable[[Tensor], object], x: Tensor) -> list[Tensor]:
    """What was made of x before and after."""
    before = x.sin()
    change(x)
    if coop.current_session() is not None:
        coop.evict(before)  # unless it became a root
    return [before + 0, x.cos() if x.untyped_storage().nbytes() else torch.zeros(1)]


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "freed": lambda x: x.untyped_storage().resize_(0),
    "freed and back": lambda x: (
        x.untyped_storage().resize_(0),
        x.untyped_storage().resize_(x.numel() * 4),
        x.fill_(3),
    ),
    "grown": lambda x: x.untyped_storage().resize_(2 * x.untyped_storage().nbytes()),
    "byteswapped": lambda x: x.untyped_storage().byteswap(torch.int16),
    "filled": lambda x: x.untyped_storage().fill_(1),
    "copied": lambda x: x.untyped_storage().copy_(torch.ones(65536).untyped_storage()),
    "set": lambda x: x.untyped_storage().__setitem__(0, 1),
    "applied": lambda x: x.apply_(lambda a: a + 1),
    "mapped": lambda x: x.map_(torch.ones(65536) * 2, lambda a, b: a + b),
    "mapped with two": lambda x: x.map2_(x.sin(), x.cos(), lambda a, b, c: a + b * c),
}


@pytest.mark.parametrize("outside", [True, False], ids=["outside", "inside"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_was_made_before_a_storage_changed_stays(name: str, outside: bool) -> None:
    plain = changed(CHANGES[name], of_the_outside())
    x = of_the_outside()
    with coop.budget("8MiB"):
        results = changed(CHANGES[name], x if outside else of_the_outside())
    assert_same_bits(plain, results)


def test_an_array_taken_before_the_budget_is_written_inside_it() -> None:
    x = of_the_outside()
    array = x.numpy()
    with coop.budget("8MiB"):
        y = x.sin()
        array[:] = 5
        assert not coop.evict(y)  # nothing is recomputed from what others may write
        assert_same_bits([of_the_outside().sin()], [y])
        assert_same_bits([torch.full((65536,), 5.0).cos()], [x.cos()])


def test_so_is_an_array_of_memory_from_an_earlier_budget() -> None:
    with coop.budget("8MiB"):
        inside, between = of_the_outside(), of_the_outside()
        arrays = [inside.numpy()]
    arrays.append(between.numpy())
    with coop.budget("8MiB"):
        results = [x.sin() for x in (inside, between)]
        for array in arrays:
            array[:] = 5
        assert [coop.evict(y) for y in results] == [False, False]
        assert_same_bits([of_the_outside().sin()] * 2, results)


def test_what_dlpack_shares_between_budgets_is_written_inside_one() -> None:
    with coop.budget("8MiB"):
        pass
    x = of_the_outside()
    alias = torch.from_dlpack(x)
    with coop.budget("8MiB"):
        y = x.sin()
        alias.fill_(5)
        assert not coop.evict(y)
        assert_same_bits([of_the_outside().sin()], [y])


def test_an_array_taken_before_the_first_budget_of_a_process_is_written_inside_it() -> None:
    program = """
import torch, coop
x = torch.arange(65536, dtype=torch.float32)
plain = x.sin()
array = x.numpy()
with coop.budget("8MiB", device="cpu"):
    y = x.sin()
    array[:] = 5
    assert not coop.evict(y)
    assert torch.equal(y, plain)
    assert torch.equal(x.cos(), torch.full((65536,), 5.0).cos())
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_memory_that_nobody_shares_is_recomputed_from() -> None:
    x = of_the_outside()
    with coop.budget("8MiB"):
        y = x.sin()
        assert coop.evict(y)
        assert_same_bits([of_the_outside().sin()], [y])


def test_what_was_shared_and_is_gone_is_forgotten() -> None:
    with coop.budget("8MiB"):
        pass
    for _ in range(1000):
        torch.zeros(4).__dlpack__()
    assert len(runtime.memory._shared) < 200


def test_a_guarded_method_says_that_it_is_torchs() -> None:
    plain = torch.Tensor.tolist
    with coop.budget("8MiB"):
        guarded = torch.Tensor.tolist
        assert guarded.__wrapped__ is plain  # type: ignore[attr-defined]
        assert (guarded.__name__, guarded.__doc__) == ("tolist", plain.__doc__)


def test_methods_are_torchs_own_again_after_the_budget() -> None:
    before = [torch.save, torch.Tensor.tolist, torch.UntypedStorage.resize_]
    with coop.budget("8MiB"):
        assert torch.Tensor.tolist is not before[1]
    assert [torch.save, torch.Tensor.tolist, torch.UntypedStorage.resize_] == before


# Steps


def test_an_output_alive_while_the_optimizer_steps_costs_no_copy_of_the_parameters() -> None:
    with coop.budget("64MiB") as session:
        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            out = model(torch.ones(512, 256))  # larger than any one parameter
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            print(float(loss), float(out.mean()))
        assert session.stats().num_copies == 0


def test_what_is_copied_in_from_outside_is_an_input() -> None:
    """It was recomputable; once evicted, it made one neighbourhood of all that reads it."""
    x, shared = of_the_outside(), torch.from_numpy(of_the_outside().numpy())
    with coop.budget("8MiB") as session:
        copies = [x.clone(), x.to("cpu", copy=True), shared.clone()]
        assert [coop.evict(t) for t in copies] == [False] * 3
        assert [coop.evict(t) for t in (x.double(), copies[0].clone())] == [True] * 2
        assert session.kept_operators() == {}
