"""Rule 9: an operator that coop does not know may write all that it is given, whatever it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import coop
from coop._native import _C

LIBRARY = torch.library.Library("coop_custom", "DEF")
COUNT = 0
MADE_OF_OTHERS = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp")


def define(schema: str, kernel: object) -> str:
    """A new operator: what is known of one is kept for good."""
    global COUNT
    COUNT += 1
    name = f"op{COUNT}"
    LIBRARY.define(name + schema)
    LIBRARY.impl(name, kernel, "CPU")
    return name


def call(name: str, *args: object) -> Any:
    return getattr(torch.ops.coop_custom, name)(*args)


def made() -> Tensor:
    return torch.arange(40_000.0) * 2


@pytest.mark.debug_build
@pytest.mark.parametrize("settings", [{}, {"paranoid": True}, {"quiet_after": 1}])
def test_what_it_wrote_without_saying_so_stays_and_what_was_made_before_is_right(
    settings: dict[str, object],
) -> None:
    name = define("(Tensor x) -> ()", _scribble)
    with coop.budget("8MiB", small_bytes=0, **settings):  # type: ignore[arg-type]
        y = made()
        before = y + 1
        call(name, y)
        after = y + 2
        coop.evict(before)
        coop.evict(after)
        assert not coop.evict(y)
        expected = torch.arange(40_000.0)
        assert torch.equal(y, expected * 20)
        assert torch.equal(before, expected * 2 + 1)
        assert torch.equal(after, expected * 20 + 2)


def _scribble(x: Tensor) -> None:
    x.mul_(10)


@pytest.mark.debug_build
def test_all_that_it_is_given_is_brought_back_and_stays_wherever_it_is() -> None:
    lists = define("(Tensor y, Tensor[][] x) -> Tensor", lambda y, x: y + x[0][0] + x[1][1])
    table = define("(Tensor y, Dict(str, Tensor) x) -> Tensor", lambda y, x: y + x["a"])
    maybe = define("(Tensor?[] x) -> Tensor", lambda x: x[1] * 3)
    expected = torch.arange(40_000.0) * 2
    with coop.budget("8MiB", small_bytes=0):
        tensors = [made() for _ in range(7)]
        assert all(coop.evict(x) for x in tensors)
        a, b, c, d, e, f, g = tensors
        assert torch.equal(call(lists, a, [[b], [c, d]]), expected * 3)
        assert torch.equal(call(table, e, {"a": f}), expected * 2)
        assert torch.equal(call(maybe, [None, g]), expected * 3)
        assert not any(coop.evict(x) for x in tensors)


@pytest.mark.debug_build
def test_a_gradient_that_it_was_given_does_not_move_any_more() -> None:
    name = define("(Tensor x) -> ()", lambda x: None)
    with coop.budget("8MiB", small_bytes=0) as session:
        weight = torch.zeros(40_000, requires_grad=True)
        other = torch.zeros(40_000, requires_grad=True)
        ((weight + other) * made()).sum().backward()
        call(name, weight.grad)
        assert session._engine.is_kept(weight.grad)
        assert not session._engine.is_kept(other.grad)
        # Parameters are roots: they neither leave nor move, and are not counted as kept.
        call(name, weight.detach())
        assert not session._engine.is_kept(weight)


@pytest.mark.debug_build
def test_one_that_is_vouched_for_fixes_nothing() -> None:
    name = define("(Tensor x) -> Tensor", lambda x: x + 1)
    coop.allow_replay(f"coop_custom::{name}")
    with coop.budget("8MiB", small_bytes=0):
        y = made()
        z = call(name, y)
        assert coop.evict(y)
        assert coop.evict(z)
        assert torch.equal(z, torch.arange(40_000.0) * 2 + 1)


def warned(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> str:
    """What has been warned of since the last time: before torch 2.15 on stderr."""
    text = capfd.readouterr().err + "".join(str(each.message) for each in recwarn)
    recwarn.clear()
    return text


def test_a_warning_names_it_once_with_the_bytes_that_stay(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    name = define("(Tensor x) -> Tensor", lambda x: x + 1)
    with coop.budget("8MiB", small_bytes=0):
        call(name, made())
        call(name, made())
    err = warned(capfd, recwarn)
    assert err.count("coop: ") == 1
    assert (
        f"coop: what coop_custom::{name} is given and makes stays in memory (320000 bytes now): "
        "custom operators are not replayed unless allowed. If it is deterministic and writes only "
        f'what its schema says, coop.allow_replay("coop_custom::{name}") lets it be recomputed.'
    ) in err


def test_there_is_no_warning_where_nothing_stays_that_would_not_anyway(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    name = define("(Tensor x) -> ()", lambda x: None)
    group = define("(Tensor x, str group_name) -> Tensor", lambda x, group_name: x + 1)
    outside = torch.zeros(40_000)
    with coop.budget("8MiB", small_bytes=0):
        inside = torch.zeros(40_000, requires_grad=True)
        (inside * 2).sum().backward()
        call(name, outside)
        call(name, inside.detach())
        call(group, made(), "")  # nothing can be done about a collective
        assert "coop: " not in warned(capfd, recwarn)
        # The first time that something does, it says so.
        call(name, made())
        assert "(160000 bytes now)" in warned(capfd, recwarn)


def test_a_custom_operator_that_names_a_group_is_a_collective() -> None:
    name = define("(Tensor x, str group_name) -> Tensor", lambda x, group_name: x + 1)
    with pytest.raises(ValueError, match=f"coop_custom::{name} is a collective, which is never"):
        coop.allow_replay(f"coop_custom::{name}")
    assert _C.operator_info(f"coop_custom::{name}", "")["refusal"] == (
        "collectives are never replayed"
    )


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without it")
def test_every_collective_of_torch_is_known_as_one() -> None:
    import torch.distributed._functional_collectives
    import torch.distributed.fsdp

    spaces: dict[str, list[str]] = {}
    for schema in torch._C._jit_get_all_schemas():
        space = schema.name.partition("::")[0]
        spaces.setdefault(space, []).append(schema.name)
        if space not in ("c10d", *MADE_OF_OTHERS):
            continue
        info = _C.operator_info(schema.name, schema.overload_name)
        if space == "c10d" and schema.name != "c10d::check_for_nan":
            assert info["refusal"] == "collectives are never replayed", schema
            with pytest.raises(ValueError, match="never replayed"):
                coop.allow_replay(schema.name)
        if space == "c10d":
            # What each of them writes: test_collectives.py.
            assert not info["passes_through"], schema
        else:
            assert info["passes_through"], schema
    assert len(spaces["c10d"]) >= 20
    assert len(spaces["_c10d_functional"]) >= 14
    assert len(spaces["fsdp"]) >= 4
