"""Memory that an operator makes for somebody to write, who may do so by its address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import coop
from coop._native import _C
from coop.simulate import simulate
from coop.trace import read_trace
from tests.bits import bits

pytestmark = pytest.mark.debug_build

SIZE = 65536
# As C++ takes it: a budget does not hear of it.
ADDRESS = torch.Tensor.data_ptr

MAKERS: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: torch.empty(SIZE),
    "empty_like": lambda: torch.empty_like(torch.zeros(SIZE)),
    "empty_strided": lambda: torch.empty_strided((SIZE,), (1,)),
    "empty_permuted": lambda: torch.empty_permuted((SIZE,), (0,)),
    "new_empty": lambda: torch.zeros(1).new_empty(SIZE),
    "new_empty_strided": lambda: torch.zeros(1).new_empty_strided((SIZE,), (1,)),
    "prims.empty_strided": lambda: torch.ops.prims.empty_strided(
        [SIZE], [1], dtype=torch.float32, device=torch.device("cpu"), requires_grad=False
    ),
    "prims.empty_permuted": lambda: torch.ops.prims.empty_permuted(
        [SIZE], [0], dtype=torch.float32, device=torch.device("cpu"), requires_grad=False
    ),
}
COUNTED = torch.arange(SIZE, dtype=torch.float32)


def write_unseen(x: Tensor) -> None:
    ctypes.memmove(ADDRESS(x), ADDRESS(COUNTED), SIZE * 4)


def take_steps(session: coop.Session) -> None:
    """Enough of them to be quiet, if that is on."""
    for _ in range(3):
        session._engine.begin_step()
        session._engine.end_step(True)


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("name", MAKERS)
def test_memory_to_be_written_stays(name: str) -> None:
    with coop.budget("2MiB", device="cpu") as session:
        x = MAKERS[name]()
        address = ADDRESS(x)
        session._engine.evict_all()
        assert not coop.evict(x)
        assert ADDRESS(x) == address
        write_unseen(x)
        session._engine.evict_all()
        assert same(x, COUNTED)


def test_every_operator_that_makes_any_memory_is_known() -> None:
    """By their names: one that is added to torch is seen here."""
    unknown = [
        (schema.name, schema.overload_name)
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith(("aten::", "prims::"))
        and "empty" in schema.name
        and not any(argument.is_out for argument in schema.arguments)
        and not _C.operator_info(schema.name, schema.overload_name)["undefined"]
    ]
    assert unknown == []


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_written_after_an_unseen_write_stays(quiet: bool) -> None:
    with coop.budget("2MiB", device="cpu", quiet_after=1 if quiet else 0) as session:
        take_steps(session)
        x = torch.empty(SIZE)
        write_unseen(x)
        x.add_(1)
        session._engine.evict_all()
        assert same(x, COUNTED + 1)


def test_what_is_written_in_part_stays() -> None:
    with coop.budget("2MiB", device="cpu"):
        x = torch.empty(SIZE)
        write_unseen(x)
        x[:8].zero_()
        assert not coop.evict(x)
        assert float(x[:8].sum()) == 0
        assert same(x[8:], COUNTED[8:])


def test_what_is_read_after_an_unseen_write_is_read_again() -> None:
    with coop.budget("2MiB", device="cpu"):
        x = torch.empty(SIZE)
        write_unseen(x)
        y = x + 1
        del x  # only what y is made from remains
        assert coop.evict(y)
        torch.zeros(SIZE)
        assert same(y, COUNTED + 1)


def test_what_is_read_and_then_overwritten_is_kept_for_whom_it_was_read() -> None:
    with coop.budget("2MiB", device="cpu"):
        x = torch.empty(SIZE)
        write_unseen(x)
        y = x + 1
        x.zero_()
        coop.evict(x)
        coop.evict(y)
        assert same(y, COUNTED + 1)
        assert float(x.sum()) == 0


OVERWRITERS: dict[str, Callable[[Tensor], object]] = {
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(3),
    "copy_": lambda x: x.copy_(torch.arange(SIZE)),
    "normal_": lambda x: x.normal_(),
    "uniform_": lambda x: x.view(256, 256).uniform_(),
    "out": lambda x: torch.mul(torch.arange(SIZE), 0.5, out=x),
}


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("name", OVERWRITERS)
def test_what_is_overwritten_may_leave_again(name: str, quiet: bool) -> None:
    plain = torch.empty(SIZE)
    torch.manual_seed(0)
    OVERWRITERS[name](plain)
    with coop.budget("2MiB", device="cpu", quiet_after=1 if quiet else 0) as session:
        take_steps(session)
        x = torch.empty(SIZE)
        torch.manual_seed(0)
        OVERWRITERS[name](x)
        assert coop.evict(x)
        assert same(x, plain)
        x.add_(1)
        assert quiet or coop.evict(x)
        assert same(x, plain + 1)


def test_an_overwrite_that_does_not_fit_can_be_tried_again() -> None:
    with coop.budget("1MiB", device="cpu"):
        x = torch.empty(SIZE)
        a = torch.ones(256, 256)
        write_unseen(x)
        with pytest.raises(coop.OutOfBudgetError):
            # With its index it needs more than there is.
            torch.sort(torch.ones(4 * SIZE), out=(x, torch.empty(0, dtype=torch.int64)))
        assert same(x, COUNTED)
        torch.mm(a, a, out=x.view(256, 256))
        assert coop.evict(x)
        assert bool((x == 256).all())


def test_a_trace_says_so_and_the_simulator_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with coop.budget("2MiB", device="cpu"), coop.record(path):
        x = torch.empty(SIZE)
        assert not coop.evict(x)
        x.fill_(3)
        assert coop.evict(x)
    assert path.read_text().count('"undefined":true') == 1
    assert simulate(read_trace(path), 2**21).stats["num_evictions"] == 1
