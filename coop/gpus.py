"""The arenas of GPUs: a process has one allocator for all of them, and one budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch

from coop._native import _C
from coop.profiles import cuda_profile
from coop.sizes import format_bytes, parse_bytes

__all__ = ["Gpus"]

Configure = Callable[[int], _C.Config]


class Gpus:
    """The budget of this process's GPUs, once they have one."""

    def __init__(self) -> None:
        self._size: int | str | None = None

    @property
    def is_installed(self) -> bool:
        """Whether the memory of GPUs is ours."""
        return self._size is not None

    def make_engine(
        self, size: int | str, index: int, configure: Configure, paranoid: bool
    ) -> _C.Engine:
        """The engine of a GPU, with an arena of `size`.

        The first call gives every GPU an allocator of ours; `configure(num_bytes)` is the native
        side's configuration of an arena.
        """
        if not _C.has_cuda:
            raise RuntimeError(
                "coop was built without CUDA: build it where torch has CUDA and nvcc is installed"
            )
        if self._size is None:
            _install(size, index, configure, paranoid)
            self._size = size
        elif size != self._size:
            raise RuntimeError(
                f"this process has a CUDA budget of {self._size!r}, which cannot be changed to "
                f"{size!r}"
            )
        _warm_up(index)
        return _C.cuda_engine(index)


def _install(size: int | str, index: int, configure: Configure, paranoid: bool) -> None:
    share = _parse_share(size)
    if share is None:
        # Mistakes are told now.
        num_bytes = parse_bytes(size)
        configure(num_bytes)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(
            "CUDA is already started, and torch cannot change its allocator any more: call "
            "coop.install(...) (or enter coop.budget(..., device='cuda')) at the top of the "
            "program, before the first use of a CUDA tensor"
        )
    if share is None:
        free_bytes, total_bytes = _C.cuda_memory(index)
        if num_bytes > free_bytes:
            raise ValueError(
                f"a budget of {format_bytes(num_bytes)} does not fit this GPU, which has "
                f"{format_bytes(free_bytes)} of its {format_bytes(total_bytes)} free: choose "
                "less, or a share such as 80%"
            )

    def configure_device(used: int) -> tuple[_C.Config, _C.DeviceProfile, bool, bool]:
        num_bytes = parse_bytes(size) if share is None else int(_C.cuda_memory(used)[0] * share)
        profile = _C.DeviceProfile(**asdict(cuda_profile(torch.cuda.get_device_name(used))))
        return configure(num_bytes), profile, False, paranoid

    _C.install_cuda(configure_device)


def _parse_share(size: int | str) -> float | None:
    if not isinstance(size, str) or not size.strip().endswith("%"):
        return None
    try:
        share = float(size.strip()[:-1]) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{size!r} is not a share of the free memory: write '1%' to '100%'")
    return share


def _warm_up(index: int) -> None:
    """Makes the arena, and has cuBLAS take its workspaces while they can lie at the left end.

    Each thread has its own, so autograd's thread must do a product too.
    """
    with torch.enable_grad():
        for dtype in (torch.float32, torch.bfloat16):
            a = torch.ones(16, 16, device=f"cuda:{index}", dtype=dtype, requires_grad=True)
            total = torch.nn.functional.linear(a, a, a[0]).sum()
            total.backward()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(index)
