"""Operators that Python runs (`__torch_dispatch__` of classes and modes) are seen where it calls
them: what they read comes back, what they write is known, what they do not run has no recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import coop
from tests.bits import bits

pytestmark = pytest.mark.debug_build


class Halves(Tensor):
    """Two tensors, one of which is computed with; it has no memory of its own."""

    first: Tensor
    second: Tensor

    @staticmethod
    def __new__(cls, first: Tensor, second: Tensor) -> Halves:
        made = torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)
        made.first, made.second = first, second
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        evict_all()  # whatever Python calls meets evicted tensors
        itself = next(leaf for leaf in tree_leaves(args) if isinstance(leaf, Halves))
        plain = tree_map(lambda leaf: leaf.first if isinstance(leaf, Halves) else leaf, args)
        result = func(*plain, **(kwargs or {}))
        return result if result is plain[0] else result + itself.second.sum()


@pytest.fixture(autouse=True)
def session() -> Iterator[coop.Session]:
    with coop.budget("8MiB", small_bytes=0) as session:
        yield session


def evict_all() -> None:
    session = coop.current_session()
    assert session is not None
    session._engine.evict_all()


def halves() -> Halves:
    return Halves(torch.arange(64.0).view(8, 8) * 2, torch.ones(8, 8) * 3)


@pytest.mark.parametrize(
    "use",
    [
        lambda t: t * 2,  # an operator that is taken as C++ arguments
        lambda t: t.sinh(),  # one of the fallback
        lambda t: t.t(),  # a view, which is passed over
        lambda t: torch.cat([t, t]),
        lambda t: t.view(4, 16),
    ],
    ids=["typed", "fallback", "view", "list", "another view"],
)
def test_what_a_class_of_pythons_computes_with_comes_back(use: Callable[[Tensor], Tensor]) -> None:
    result = use(halves())
    evict_all()
    plain = use(torch.arange(64.0).view(8, 8) * 2) + 192
    assert torch.equal(bits(result), bits(plain))


@pytest.mark.parametrize(
    "write",
    [lambda t: t.mul_(3), lambda t: t.copy_(torch.ones(8, 8)), lambda t: t.sinh_()],
    ids=["typed", "copy", "fallback"],
)
def test_what_a_class_of_pythons_writes_is_not_undone(write: Callable[[Tensor], Tensor]) -> None:
    written, expected = halves(), torch.arange(64.0).view(8, 8) * 2
    evict_all()
    write(written)
    write(expected)
    assert coop.evict(written.first)
    assert torch.equal(bits(written.first), bits(expected))


class Remembering(TorchDispatchMode):
    """Answers an operator with what it made the first time, as selective checkpointing does."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[Any, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func not in self.made:
            self.made[func] = func(*args, **(kwargs or {}))
        return self.made[func]


@pytest.mark.parametrize("use", [torch.mm, torch.atan2, torch.addmm], ids=lambda f: f.__name__)
def test_what_a_mode_answers_was_not_made_by_the_operator(use: Callable[..., Tensor]) -> None:
    x, y = torch.randn(8, 8) * 1, torch.randn(8, 8) * 1
    arguments = (x, x, y) if use is torch.addmm else (x, y)
    expected = use(*arguments).tolist()
    mode = Remembering()
    with mode:
        use(*arguments)
        evict_all()
        again = use(*arguments)
        evict_all()
        third = (again * 2).tolist()
    assert again.tolist() == expected
    assert third == [[2 * value for value in row] for row in expected]
    evict_all()
    assert again.tolist() == expected
