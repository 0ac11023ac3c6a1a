"""The arenas of GPUs: a process has one allocator for all of them, and one budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch

from coop._native import _C
from coop.budget_size import budget_bytes, check_size
from coop.config import Config
from coop.links import measure_link
from coop.profiles import Link, cuda_link, cuda_profile

__all__ = ["Gpus"]

# Of an arena of so many bytes, behind that link.
Configure = Callable[[int, Link | None], _C.Config]


# Of one copy, when a budget begins.
_MEASURED_BYTES = 2**23


class Gpus:
    """The budget of this process's GPUs, once they have one."""

    def __init__(self) -> None:
        self.is_installed = False  # whether the memory of GPUs is ours
        self._size: int | str | None = None

    def make_engine(
        self, size: int | str | None, device: torch.device, configure: Configure, config: Config
    ) -> _C.Engine:
        """The engine of a GPU, with an arena of `size`.

        The first call gives every GPU an allocator of ours; `configure(num_bytes, link)` is the
        native side's configuration of an arena.
        """
        if not _C.has_cuda:
            raise RuntimeError(
                "coop was built without CUDA: `coop doctor` says why, and the command that fixes it"
            )
        is_new = not self.is_installed
        if is_new:
            _install(size, device, configure, config)
            self.is_installed, self._size = True, size
        elif size != self._size:
            has, wanted = (
                "all free memory" if each is None else repr(each) for each in (self._size, size)
            )
            raise RuntimeError(
                f"this process has a CUDA budget of {has}, which cannot be changed to {wanted}"
            )
        _warm_up(device.index)
        engine = _C.cuda_engine(device.index)
        if is_new and engine.stats()["host_bytes"] > 0:
            link = measure_link(device, _MEASURED_BYTES)
            engine.set_link(_C.LinkProfile(**asdict(link)))
        return engine


def _install(
    size: int | str | None, device: torch.device, configure: Configure, config: Config
) -> None:
    # Mistakes are told now.
    check_size(size)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(
            "CUDA is already started, and torch cannot change its allocator any more: call "
            "coop.install(...) (or enter coop.budget(..., device='cuda')) at the top of the "
            "program, before the first use of a CUDA tensor"
        )
    configure(budget_bytes(size, device), None)

    def configure_device(used: int) -> tuple[_C.Config, _C.DeviceProfile, bool, bool]:
        num_bytes = budget_bytes(size, torch.device("cuda", used))
        name = torch.cuda.get_device_name(used)
        profile = _C.DeviceProfile(**asdict(cuda_profile(name)))
        native = configure(num_bytes, cuda_link(name))
        return native, profile, config.measures_costs("cuda"), config.paranoid

    _C.install_cuda(configure_device)


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
