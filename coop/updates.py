"""Optimizers that update all tensors at once, where these do not fit together.

With room for copies in main memory (`host`), an operator on all parameters is run in parts
(csrc/adapter/call/parts.h). torch's `foreach` optimizers are a dozen of them, so that each part
would come and go a dozen times: here the whole update is given a part at a time instead. Every
tensor gets the same operators in the same order, so the bits are the same.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from coop.errors import OutOfBudgetError, say_what_was_updated
from coop.patches import Patches
from coop.sizes import LARGEST_BYTES

__all__ = ["UpdatesPatch", "find_parts"]

# Their `_multi_tensor_*` functions take lists of tensors, and treat each index by itself.
_MODULES = (
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
)

Lists = tuple[list[Tensor | None], ...]
# Of operands of so many bytes in all, on the device of this tensor: the most in one part; 0: any.
PartBytes = Callable[[Tensor, int], int]


class UpdatesPatch:
    """In place while a budget is active."""

    def __init__(self, part_bytes: PartBytes) -> None:
        self._part_bytes = part_bytes
        self._patches = Patches()

    def enter(self) -> None:
        """A budget begins."""
        for name in _MODULES:
            module = importlib.import_module(f"torch.optim.{name}")
            for attribute in list(vars(module)):
                if attribute.startswith("_multi_tensor_"):
                    self._patches.replace(module, attribute, self._in_parts)

    def leave(self) -> None:
        """The budget ends."""
        self._patches.undo()

    def _in_parts(self, update: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(update)
        def run(*lists: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling():
                return update(*lists, **options)
            parts = find_parts(lists, self._part_bytes)
            if not parts:
                return update(*lists, **options)
            done = 0
            for part in parts:
                slices = [each[part] for each in lists]
                try:
                    update(*slices, **options)
                except OutOfBudgetError as error:
                    say_what_was_updated(error, done, len(lists[0]))
                    raise
                for whole, changed in zip(lists, slices, strict=True):
                    whole[part] = changed  # the first step makes momentum buffers
                done += part.stop - part.start
            return None

        return run


def find_parts(lists: tuple[Any, ...], part_bytes: PartBytes) -> list[slice]:
    """Slices of the lists, the largest first; none: all at once.

    torch runs a slice as it would run the whole only if all tensors are alike: one that is not
    sends all of them another way, whose last bits may differ.
    """
    if not all(isinstance(each, list) for each in lists) or not lists[0]:
        return []
    filled: Lists = tuple(each for each in lists if each)
    num_tensors = len(filled[0])
    if num_tensors < 2 or any(len(each) != num_tensors for each in filled):
        return []
    first = filled[0][0]
    if first is None or part_bytes(first, LARGEST_BYTES) == 0 or not _are_alike(filled):
        return []
    sizes = [
        sum(t.nbytes for t in entry if t is not None and t.device == first.device)
        for entry in zip(*filled, strict=True)
    ]
    most = part_bytes(first, sum(sizes))
    if most == 0:
        return []
    parts: list[slice] = []
    held = spare = 0  # spare: of it, what is above `most`
    largest, largest_bytes = 0, 0
    for index, num_bytes in enumerate(sizes):
        # A bias stays with its weight, however large that is.
        joins = held + num_bytes <= most or spare + num_bytes <= most // 8
        if not parts or not joins:
            parts.append(slice(index, index))
            held = spare = 0
        if held and held + num_bytes > most:
            spare += num_bytes
        held += num_bytes
        parts[-1] = slice(parts[-1].start, index + 1)
        if held > largest_bytes:
            largest, largest_bytes = len(parts) - 1, held
    if len(parts) < 2:
        return []
    # What cannot fit fails before anything is updated.
    return [parts.pop(largest), *parts]


def _are_alike(lists: Lists) -> bool:
    params = lists[0]
    dtypes: dict[tuple[int, torch.dtype], torch.dtype] = {}
    for number, each in enumerate(lists):
        if all(tensor is None for tensor in each):
            continue
        for param, tensor in zip(params, each, strict=True):
            if (
                param is None
                or tensor is None
                or not tensor.is_floating_point()
                or tensor.is_sparse
            ):
                return False
            # torch's lists of one type are made by the parameters' type.
            if dtypes.setdefault((number, param.dtype), tensor.dtype) != tensor.dtype:
                return False
        if not _are_like(params, each) and not _are_numbers(each):
            return False
    return True


def _are_like(params: Iterable[Tensor | None], tensors: Iterable[Tensor | None]) -> bool:
    return all(
        param is not None
        and tensor is not None
        and tensor.device == param.device
        and tensor.shape == param.shape
        and tensor.stride() == param.stride()
        and _is_dense(tensor)
        for param, tensor in zip(params, tensors, strict=True)
    )


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements lie one after the other, in whatever order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _are_numbers(tensors: Iterable[Tensor | None]) -> bool:
    """One for each parameter: the number of its steps."""
    return all(tensor is not None and tensor.dim() == 0 for tensor in tensors)
