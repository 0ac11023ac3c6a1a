"""Updates of all parameters at once, run in parts: the same bits in less than they take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coop
from coop.updates import find_parts

from .faults import same_bits

pytestmark = pytest.mark.debug_build
KIB, MIB = 2**10, 2**20
# 1.1 MiB of float32 in all; one with an odd number of elements, one much larger, one of one.
SHAPES = [(64, 128)] * 20 + [(255, 257), (1,), (33,), (16, 4, 3, 3), (512, 128)]

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
optim = torch.optim
FOREACH: dict[str, Make] = {
    "adadelta": lambda p: optim.Adadelta(p, foreach=True, weight_decay=0.01),
    "adagrad": lambda p: optim.Adagrad(p, foreach=True, lr_decay=0.1, weight_decay=0.01),
    "adam": lambda p: optim.Adam(p, foreach=True, weight_decay=0.01),
    "adam-amsgrad": lambda p: optim.Adam(p, foreach=True, amsgrad=True, maximize=True),
    "adamax": lambda p: optim.Adamax(p, foreach=True),
    "adamw": lambda p: optim.AdamW(p, foreach=True),
    "asgd": lambda p: optim.ASGD(p, foreach=True),
    "nadam": lambda p: optim.NAdam(p, foreach=True, decoupled_weight_decay=True, weight_decay=0.1),
    "radam": lambda p: optim.RAdam(p, foreach=True),
    "rmsprop": lambda p: optim.RMSprop(p, foreach=True, momentum=0.9, centered=True),
    "rprop": lambda p: optim.Rprop(p, foreach=True),
    "sgd": lambda p: optim.SGD(p, lr=0.1, foreach=True, momentum=0.9, nesterov=True),
}
FUSED: dict[str, Make] = {
    "adagrad": lambda p: optim.Adagrad(p, fused=True, lr_decay=0.1, weight_decay=0.01),
    "adam": lambda p: optim.Adam(p, fused=True, weight_decay=0.01, maximize=True),
    "adam-amsgrad": lambda p: optim.Adam(p, fused=True, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, fused=True),
    "adamw-tensor-lr": lambda p: optim.AdamW(p, fused=True, lr=torch.tensor(0.01)),
    "sgd": lambda p: optim.SGD(p, lr=0.1, fused=True, momentum=0.9, weight_decay=0.01),
    "sgd-plain": lambda p: optim.SGD(p, lr=0.1, fused=True),
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def update(make: Make, dtype: torch.dtype = torch.float32, num_steps: int = 3) -> list[Tensor]:
    """Parameters and state after a few steps with any gradients."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]
    optimizer = make(params)
    for _ in range(num_steps):
        for param in params:
            param.grad = torch.randn(param.shape).to(dtype)
        optimizer.step()
    state = [t for p in params for t in optimizer.state[p].values() if isinstance(t, Tensor)]
    return [*params, *[p.grad for p in params if p.grad is not None], *state]


def cloned(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def room(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "device": "cpu",
        "host": "64MiB",
        "host_dir": str(tmp_path),
        "small_bytes": 0,
        **changes,
    }


def check_update(make: Make, dtype: torch.dtype, tmp_path: Path) -> None:
    """In less than the parameters, their gradients and their state take together."""
    expected = cloned(update(make, dtype))
    num_bytes = sum(tensor.nbytes for tensor in expected)
    budget = int(max(0.7 * num_bytes, 0.4 * num_bytes + 5 * 512 * 128 * dtype.itemsize))
    with coop.budget(budget, **room(tmp_path)) as session:
        result = update(make, dtype)
    assert same_bits(expected, cloned(result))
    assert session.stats().num_evictions > 0


# With momentum in 16 bits torch's kernel of main memory reads what nobody has written: two runs of
# plain torch differ.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in FUSED for d in DTYPES if n != "sgd" or d.itemsize > 2],
    ids=str,
)
def test_fused_updates_have_the_same_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    check_update(FUSED[name], dtype, tmp_path)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FOREACH)
def test_foreach_updates_have_the_same_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    check_update(FOREACH[name], dtype, tmp_path)


def test_without_room_for_copies_an_update_is_one_operator(tmp_path: Path) -> None:
    tensors = [torch.ones(64, 64) for _ in range(8)]
    with coop.budget("4MiB", device="cpu") as session:
        assert session._engine.part_bytes(2**40) == 0
        assert session._engine.find_parts("aten::_foreach_add_", "Scalar", (tensors, 1.0), {}) == []
    with coop.budget("4MiB", **room(tmp_path)) as session:
        assert session._engine.part_bytes(MIB) == 0
        assert session._engine.part_bytes(MIB + 1) == 4 * MIB // 16


FOREACH_CALLS: dict[str, Callable[[list[Tensor], list[Tensor], list[Tensor]], Any]] = {
    "add_.Scalar": lambda a, _b, _c: torch._foreach_add_(a, 1.5),
    "add_.List": lambda a, b, _c: torch._foreach_add_(a, b, alpha=0.3),
    "add.ScalarList": lambda a, _b, _c: torch._foreach_add(a, [i / 7 for i in range(len(a))]),
    "mul_.Tensor": lambda a, _b, _c: torch._foreach_mul_(a, torch.tensor(0.3)),
    "div.List": lambda a, b, _c: torch._foreach_div(a, b),
    "addcdiv_.ScalarList": lambda a, b, c: torch._foreach_addcdiv_(
        a, b, c, [i / 7 for i in range(len(a))]
    ),
    "addcmul.Scalar": lambda a, b, c: torch._foreach_addcmul(a, b, c, 0.7),
    "lerp_.Scalar": lambda a, b, _c: torch._foreach_lerp_(a, b, 0.1),
    "lerp.List": lambda a, b, c: torch._foreach_lerp(a, b, c),
    "sqrt": lambda a, _b, _c: torch._foreach_sqrt(torch._foreach_abs(a)),
    "norm": lambda a, _b, _c: torch._foreach_norm(a),
    "norm.1": lambda a, _b, _c: torch._foreach_norm(a, 1),
    "pow.ScalarAndTensor": lambda a, _b, _c: torch._foreach_pow(2.0, a),
    "copy_": lambda a, b, _c: torch._foreach_copy_(a, b),
    "zero_": lambda a, _b, _c: torch._foreach_zero_(a),
    "maximum_": lambda a, b, _c: torch._foreach_maximum_(a, b),
}


@pytest.mark.parametrize("name", FOREACH_CALLS)
def test_operators_on_lists_have_the_same_bits(name: str, tmp_path: Path) -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        lists = [[torch.randn(shape) for shape in SHAPES] for _ in range(3)]
        made = FOREACH_CALLS[name](*lists)
        return [*lists[0], *(made or [])]

    expected = cloned(run())
    with coop.budget("3MiB", **room(tmp_path)) as session:
        session.trace.start()
        result = run()
        session.trace.save(tmp_path / "trace.jsonl")
    assert same_bits(expected, cloned(result))
    assert (tmp_path / "trace.jsonl").read_text().count('"aten::_foreach_') >= 1
    assert session.stats().num_operators > 3 * len(SHAPES) + 4


def test_gradients_that_are_unscaled_on_the_way(tmp_path: Path) -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(shape)) for shape in SHAPES]
        optimizer = optim.SGD(params, lr=0.1, fused=True, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(3):
            for param in params:
                param.grad = torch.randn(param.shape) * 1024
            if step == 1:  # this one is left out
                params[3].grad = torch.full(SHAPES[3], torch.inf)
            scaler.scale(torch.ones(()))
            scaler.step(optimizer)
            scaler.update()
        return [*params, *[p.grad for p in params if p.grad is not None]]

    expected = cloned(run())
    with coop.budget("3MiB", **room(tmp_path)):
        result = run()
    assert same_bits(expected, cloned(result))


def test_what_is_not_alike_is_not_sliced(tmp_path: Path) -> None:
    """One tensor that is not like the others sends all of them another way through torch."""
    with coop.budget("512KiB", **room(tmp_path)) as session:

        def parts(*lists: list[Tensor], name: str = "aten::_foreach_add_") -> list[tuple[int, int]]:
            overload = "List" if len(lists) == 2 else "Scalar"
            arguments = lists if len(lists) == 2 else (*lists, 1.0)
            return session._engine.find_parts(name, overload, arguments, {})

        def many(count: int = 8) -> list[Tensor]:
            return [torch.zeros(64, 128) for _ in range(count)]

        assert parts(many()) == [(i, i + 1) for i in range(8)]
        assert parts(many(), many()) == [(i, i + 1) for i in range(8)]
        assert parts([*many(), torch.zeros(64, 128, dtype=torch.float64)]) == []
        assert parts([torch.zeros(64, 128, dtype=torch.int32) for _ in range(8)]) == []
        assert parts(many(), [*many(7), torch.zeros(128, 64).t()]) == []
        assert parts(many(), [*many(7), torch.zeros(128)]) == []
        assert parts(many(), many(7)) == []
        assert parts([*many(), torch.zeros(64, 256)[:, ::2]]) == []
        # What one writes, another reads or writes.
        flat = torch.zeros(8 * 64 * 128)
        assert parts([each.view(64, 128) for each in flat.chunk(8)]) == []
        tensors = many()
        assert parts(tensors, [*many(7), tensors[0]]) == []
        assert parts(tensors, tensors) == [(i, i + 1) for i in range(8)]
        # The largest first.
        sizes = [torch.zeros(32, 128) for _ in range(20)]
        sizes[13] = torch.zeros(512, 128)
        assert parts(sizes)[0] == (13, 14)
        assert sorted(parts(sizes))[0] == (0, 2)
        # Reductions over all of them, and what has a number for each in one tensor.
        assert parts(many(), name="aten::_foreach_mul_") != []
        assert session._engine.find_parts("aten::_foreach_max", "", (many(),), {}) == []
        packed = (many(), many(), many(), torch.ones(8))
        assert session._engine.find_parts("aten::_foreach_addcdiv_", "Tensor", packed, {}) == []


def test_lists_of_an_optimizer_that_are_not_alike_are_not_sliced() -> None:
    def parts(*lists: list[Tensor | None]) -> list[slice]:
        return find_parts(lists, lambda _, num_bytes: num_bytes // 4)

    def many() -> list[Tensor | None]:
        return [torch.zeros(8, 8) for _ in range(8)]

    quarters = [slice(i, i + 2) for i in (0, 2, 4, 6)]
    steps: list[Tensor | None] = [torch.zeros(()) for _ in range(8)]
    assert parts(many(), many(), steps) == quarters
    assert parts(many(), many(), [], steps) == quarters
    assert parts(many(), many(), [None] * 8) == quarters  # the first step makes them
    assert parts(many(), many(), [None, *many()[1:]]) == []
    assert parts(many(), [*many()[1:], torch.zeros(8, 8).t()]) == []
    assert parts([*many()[1:], torch.zeros(8, 8, dtype=torch.complex64)]) == []
    assert parts(many(), many()[1:]) == []


@pytest.mark.parametrize("host", ["0", "64MiB"])
def test_gradients_of_few_rows_are_updated_as_without_a_budget(host: str, tmp_path: Path) -> None:
    """Sparse ones have no storage, and their lists are not sliced."""

    def run() -> list[Tensor]:
        torch.manual_seed(0)
        layers = [nn.Embedding(512, 64, sparse=True) for _ in range(6)]
        params = [param for layer in layers for param in layer.parameters()]
        optimizer = optim.SGD(params, lr=0.1, foreach=True)
        for _ in range(2):
            loss = torch.stack([layer(torch.arange(0, 512, 7)).sum() for layer in layers]).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch._foreach_mul_([p.grad for p in params if p.grad is not None], 0.5)
            optimizer.step()
        return [*params]

    expected = cloned(run())
    with coop.budget("2MiB", **room(tmp_path, host=host)):
        result = run()
    assert same_bits(expected, cloned(result))


def adamw(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return optim.AdamW(params, fused=True)


def test_what_cannot_fit_fails_before_anything_is_updated(tmp_path: Path) -> None:
    """The largest tensor is last, and comes first."""
    torch.manual_seed(0)
    with coop.budget("1MiB", **room(tmp_path)):
        params = [nn.Parameter(torch.randn(64, 64)) for _ in range(8)]
        params.append(nn.Parameter(torch.randn(256, 256)))
        optimizer = adamw(params)
        for param in params:
            param.grad = torch.randn(param.shape)
        before = cloned(list(params))
        with pytest.raises(coop.OutOfBudgetError) as caught:
            optimizer.step()
        assert caught.value.shortage["updated"] == 0
        assert "half done" not in str(caught.value)
        assert same_bits(before, cloned(list(params)))


def step_told(optimizer: torch.optim.Optimizer) -> int | None:
    """How many tensors it says were updated before it failed; None: it did not fail."""
    shortage: dict[str, Any] = {}
    message = ""
    try:
        optimizer.step()
    except coop.OutOfBudgetError as error:
        shortage, message = error.shortage, str(error)
    if not shortage:
        return None
    updated: int = shortage["updated"]
    assert ("The update is half done: " in message) == (updated > 0)
    assert shortage["updated_of"] == (8 if updated else 0)
    return updated


@pytest.mark.parametrize("foreach", [False, True])
def test_an_update_that_fails_in_the_middle_says_so(foreach: bool, tmp_path: Path) -> None:
    """At any placement: nothing was updated by then, or the error says how many were."""
    told = set()
    for failing in range(1, 200):
        torch.manual_seed(0)
        with coop.budget("2MiB", **room(tmp_path, paranoid=True, small_bytes=1024)) as session:
            params = [nn.Parameter(torch.randn(256, 64)) for _ in range(8)]
            optimizer = optim.AdamW(params, foreach=foreach, fused=not foreach)
            for step in range(2):
                for param in params:
                    param.grad = torch.randn(param.shape)
                before = cloned(list(params))
                session._engine.fail_placement(failing * step)
                updated = step_told(optimizer)
                if updated is not None:
                    told.add(updated)
                if updated is not None and not foreach:
                    pairs = zip(before, cloned(list(params)), strict=True)
                    assert sum(not torch.equal(old, new) for old, new in pairs) == updated
            left = session._engine.fail_placement(0)
            assert session._engine.is_valid()
        if left > 0:
            break
    assert told == set(range(8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_torchs_kernels_leave_gradients_that_they_do_not_unscale(
    name: str, dtype: torch.dtype
) -> None:
    """Its schemas say that they are written; the engine knows better."""
    params = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]
    gradients = [torch.randn(shape).to(dtype) for shape in SHAPES]
    optimizer = FUSED[name](params)
    for _ in range(2):
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient.clone()
        optimizer.step()
        now = [param.grad for param in params if param.grad is not None]
        assert same_bits(now, gradients)


def test_gradients_that_an_update_only_reads_are_not_copied_again(tmp_path: Path) -> None:
    """Its schema says that it writes them, which it does only where it unscales them."""
    with coop.budget("8MiB", **room(tmp_path)) as session:
        param = nn.Parameter(torch.randn(64, 64))
        param.grad = torch.randn(64, 64) + 1
        optimizer = adamw([param])
        assert coop.evict(param.grad)
        optimizer.step()
        saves = session.stats().num_host_saves
        assert coop.evict(param.grad)
        assert session.stats().num_host_saves == saves
        assert coop.evict(param)
        assert session.stats().num_host_saves == saves + 1
