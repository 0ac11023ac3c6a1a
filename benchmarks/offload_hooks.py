"""Activations offloaded by hooks, as strong as others do it: what to compare copies with.

As torchtune's `OffloadActivations` with streams: everything large that autograd saves is copied to
page-locked memory by a stream of its own, and comes back by another, a few ahead of the backward
pass. The page-locked memory is kept from step to step. Parameters stay, and what autocast makes of
them; what several operators save is copied once each way. (torchtune's hooks do not prefetch, copy
for each operator, and take page-locked memory in each step.)

All that a large model saves takes the link longer than a step. So a share of it can be offloaded:
what is saved first, which is needed last, and whose copies have the most time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

__all__ = ["OffloadHooks"]

LEAST_BYTES = 2**20
# Copies out that may be under way while the forward pass goes on.
MOST_LEAVING = 5
# Copies back that are under way before they are needed.
MOST_AHEAD = 3


@dataclass
class _Saved:
    host: Tensor
    copied: torch.cuda.Event
    uses: int = 1  # by operators of the backward pass that have not run yet
    device: Tensor | None = None
    loaded: torch.cuda.Event | None = None


@dataclass
class _Pool:
    """Page-locked memory, by bytes."""

    free: dict[int, list[Tensor]] = field(default_factory=dict)
    used: list[Tensor] = field(default_factory=list)

    def take(self, like: Tensor) -> Tensor:
        num_bytes = like.numel() * like.element_size()
        found = self.free.get(num_bytes)
        if found:
            buffer = found.pop()
        else:
            buffer = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        self.used.append(buffer)
        return buffer.view(like.dtype).view(like.shape)

    def reset(self) -> None:
        for buffer in self.used:
            self.free.setdefault(buffer.numel(), []).append(buffer)
        self.used.clear()


class OffloadHooks(torch.autograd.graph.saved_tensors_hooks):
    """A context for one step's forward and backward pass; enter it again for the next.

    Args:
        share: Of the bytes that a step saves; the first step tells how many that are.
    """

    def __init__(self, share: float = 1.0) -> None:
        super().__init__(self._pack, self._unpack)
        self._share = share
        self._most_bytes = float("inf")
        self._num_bytes = 0  # offloaded in this step
        self._out = torch.cuda.Stream()
        self._in = torch.cuda.Stream()
        self._pool = _Pool()
        self._saved: list[_Saved] = []
        self._leaving: deque[tuple[tuple[Any, ...], int, Tensor]] = deque()

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._let_go(0)
        torch.cuda.current_stream().wait_stream(self._in)
        self._out.wait_stream(self._in)  # before the same memory is written again
        self._saved.clear()
        self._pool.reset()
        if self._most_bytes == float("inf"):
            self._most_bytes = self._share * self._num_bytes
        self._num_bytes = 0

    def _let_go(self, num_left: int) -> None:
        """Who uses the memory next waits for the copy."""
        while len(self._leaving) > num_left:
            _, number, _ = self._leaving.popleft()
            torch.cuda.current_stream().wait_event(self._saved[number].copied)

    def _pack(self, tensor: Tensor) -> Tensor | int:
        num_bytes = tensor.numel() * tensor.element_size()
        if not tensor.is_cuda or num_bytes < LEAST_BYTES or _is_weight(tensor):
            return tensor
        # Saved by several operators: copied once.
        key = (tensor.data_ptr(), tensor._version, tensor.dtype, tensor.shape, tensor.stride())
        for other, number, _ in self._leaving:
            if other == key:
                self._saved[number].uses += 1
                return number
        if self._num_bytes + num_bytes > self._most_bytes:
            return tensor
        self._num_bytes += num_bytes
        host = self._pool.take(tensor)
        self._out.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._out):
            host.copy_(tensor, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        self._saved.append(_Saved(host, copied))
        self._leaving.append((key, len(self._saved) - 1, tensor))
        self._let_go(MOST_LEAVING)
        return len(self._saved) - 1

    def _load(self, number: int) -> None:
        saved = self._saved[number]
        if saved.loaded is not None:
            return
        saved.device = torch.empty(saved.host.shape, dtype=saved.host.dtype, device="cuda")
        self._in.wait_stream(torch.cuda.current_stream())  # it may have used that memory
        self._in.wait_event(saved.copied)
        with torch.cuda.stream(self._in):
            saved.device.copy_(saved.host, non_blocking=True)
            saved.loaded = torch.cuda.Event()
            saved.loaded.record()

    def _unpack(self, packed: Tensor | int) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        self._let_go(0)
        saved = self._saved[packed]
        self._load(packed)
        assert saved.loaded is not None
        torch.cuda.current_stream().wait_event(saved.loaded)
        tensor = saved.device
        assert tensor is not None
        saved.uses -= 1
        if saved.uses == 0:
            saved.device = saved.loaded = None
        for number in range(packed - 1, max(packed - 1 - MOST_AHEAD, -1), -1):
            if self._saved[number].uses > 0:
                self._load(number)
        return tensor


def _is_weight(tensor: Tensor) -> bool:
    """A parameter, a view of one, or what autocast makes of one and keeps for the whole step."""
    base = tensor if tensor._base is None else tensor._base
    if isinstance(base, torch.nn.Parameter):
        return True
    function = base.grad_fn
    if function is None or function.name() != "ToCopyBackward0":
        return False
    ((source, _),) = function.next_functions
    return hasattr(source, "variable")
