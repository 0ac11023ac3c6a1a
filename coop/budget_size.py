"""How many bytes a budget has: as it was asked for, or what there is, less a margin."""

from __future__ import annotations

import sys

import torch

from coop._native import _C
from coop.machine import addresses_left, available_bytes, memory_bytes, num_workers
from coop.sizes import format_bytes, parse_bytes, parse_share

__all__ = ["announce", "budget_bytes", "check_size", "memory_of"]

# Of what is available in main memory, where no budget is given. The rest is for Python, for data
# loaders, and for others.
CPU_SHARE = 0.8
# Where addresses are limited (`ulimit -v`), a budget takes all of its own at once, and the program
# needs some beside it: for threads and their pools of memory (72 MiB each), NumPy, libraries that
# are imported late. The share is for large limits; never more than half of what is left.
HEAP_BYTES = 512 * 2**20
HEAP_SHARE = 0.2
# Of a GPU, where no budget is given: kernels that are loaded later, handles and workspaces of
# libraries, and NCCL's buffers are outside of an arena. A part of its memory, and at least so much.
GPU_MARGIN = 1 / 32
LEAST_GPU_MARGIN_BYTES = 512 * 2**20


def check_size(size: int | str | None) -> None:
    """Raises for what is no size of a budget."""
    if size is not None and parse_share(size) is None:
        parse_bytes(size)


def budget_bytes(size: int | str | None, device: torch.device) -> int:
    """The bytes of a budget of this size on the device, as it is now; None: what there is."""
    free, total = memory_of(device)
    share = None if size is None else parse_share(size)
    if share is not None:
        return int(free * share)
    if size is None:
        if device.type == "cpu":
            return min(int(free * CPU_SHARE) // num_workers(), _most_addresses())
        return max(free - margin_bytes(total), 0)
    num_bytes = parse_bytes(size)
    if device.type == "cpu" and num_bytes > total:
        raise ValueError(
            f"a budget of {format_bytes(num_bytes)} is more than the {format_bytes(total)} of main "
            "memory that there are here: choose less"
        )
    if device.type == "cuda" and num_bytes > free:
        raise ValueError(
            f"a budget of {format_bytes(num_bytes)} does not fit this GPU, which has "
            f"{format_bytes(free)} of its {format_bytes(total)} free: choose less, or a share such "
            "as 80%"
        )
    return num_bytes


def margin_bytes(total: int) -> int:
    """Of a GPU with so much memory: what is left to others."""
    return max(int(total * GPU_MARGIN), LEAST_GPU_MARGIN_BYTES)


def _most_addresses() -> int:
    """Bytes for a budget, of the addresses that this process has left."""
    left = addresses_left()
    if left is None:
        return sys.maxsize
    return left - min(max(HEAP_BYTES, int(left * HEAP_SHARE)), left // 2)


def memory_of(device: torch.device) -> tuple[int, int]:
    """Bytes: what is free there, and all of it."""
    if device.type == "cuda":
        return _C.cuda_memory(device.index)
    return available_bytes(), memory_bytes()


def announce(num_bytes: int, device: torch.device) -> None:
    """Says which budget it is, where none was given. COOP_QUIET=1 keeps it quiet."""
    if device.type == "cpu":
        of = f"{CPU_SHARE:.0%} of the main memory that is available"
        if num_workers() > 1:
            of += f", by {num_workers()} workers"
        if addresses_left() is not None:
            of += ", or less where `ulimit` leaves too few addresses beside the program's own"
    else:
        of = f"the free memory of {device} less {format_bytes(margin_bytes(memory_of(device)[1]))}"
    print(
        f"coop: no budget given: it is {format_bytes(num_bytes)}, {of} "
        "(--budget or COOP_BUDGET gives another)",
        file=sys.stderr,
    )
