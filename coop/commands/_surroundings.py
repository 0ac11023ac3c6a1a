"""What goes wrong in practice around a budget: containers, WSL, limits, neighbours on the GPU.

Each check looks at the system's files below `root`, or at what a tool of the driver's printed, and
gives findings: (name, state, text, fix).
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from coop.machine import available_bytes, memory_bytes
from coop.sizes import format_bytes

OK, WARNING = "ok", "warning"
Found = tuple[str, str, str, str]

# What another process may have on a GPU before it is worth a word: a desktop has some.
_LITTLE_BYTES = 256 * 2**20
# Workers of a data loader hand over batches through it; docker gives 64 MiB.
_LEAST_SHARED_BYTES = 512 * 2**20
_PINNED_BYTES = 64 * 2**20


def look_at_container(root: Path = Path("/")) -> Iterator[Found]:
    """A limit of memory, by control groups; and the shared memory of data loaders."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory_bytes(root) < physical:
        limit, left = format_bytes(memory_bytes(root)), format_bytes(available_bytes(root))
        yield (
            "container",
            OK,
            f"main memory is limited to {limit} (control group), {left} are left",
            "",
        )
    shared = root / "dev/shm"
    if shared.is_dir():
        status = os.statvfs(shared)
        size = status.f_frsize * status.f_blocks
        if size < _LEAST_SHARED_BYTES:
            yield (
                "shared memory",
                WARNING,
                f"{format_bytes(size)} in /dev/shm: workers of a DataLoader may die of it",
                "docker run --shm-size=8g (or --ipc=host)",
            )


def look_at_wsl(root: Path = Path("/")) -> Iterator[Found]:
    """Windows' Linux: the driver moves a GPU's memory to main memory without a word."""
    try:
        kernel = (root / "proc/version").read_text().lower()
    except OSError:
        return
    if "microsoft" in kernel:
        yield (
            "wsl",
            WARNING,
            "pinned memory is scarce here, and what does not fit the GPU is moved to main memory "
            "by the driver, slowly: a budget below the GPU's memory avoids that",
            "in the NVIDIA control panel: CUDA - Sysmem Fallback Policy, Prefer No Sysmem Fallback",
        )


def look_at_locked_memory() -> Iterator[Found]:
    """`ulimit -l`. CUDA's pinned memory does not count for it, but that of NCCL over RDMA does."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield "locked memory", OK, "without a limit", ""
    else:
        yield (
            "locked memory",
            OK,
            f"at most {format_bytes(soft)} (ulimit -l): enough for CUDA, too little for NCCL over "
            "InfiniBand",
            "",
        )


def look_at_pinned_memory() -> Iterator[Found]:
    """Whether main memory can be pinned for copies. Starts CUDA."""
    import torch

    try:
        torch.empty(_PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        yield (
            "pinned memory",
            WARNING,
            f"{format_bytes(_PINNED_BYTES)} could not be pinned: {error}".splitlines()[0],
            "a larger limit of the container's memory, or ulimit -l unlimited",
        )
    else:
        yield "pinned memory", OK, f"{format_bytes(_PINNED_BYTES)} can be pinned", ""


def look_at_neighbours(index: int, used_by_others: int, apps: Sequence[str]) -> Iterator[Found]:
    """Other processes on a GPU.

    Args:
        index: of the GPU.
        used_by_others: bytes.
        apps: lines of `nvidia-smi --query-compute-apps=pid,process_name,used_memory`; in a
            container there may be none.
    """
    others = [line for line in apps if line.split(",")[0].strip() != str(os.getpid())]
    if used_by_others < _LITTLE_BYTES:
        return
    who = f" ({'; '.join(others[:3])})" if others else ""
    yield (
        f"cuda:{index}",
        WARNING,
        f"others use {format_bytes(used_by_others)} of this GPU{who}: what is free changes while "
        "you run",
        "end them, or give a budget, as in --budget 8GiB",
    )


def look_at_mig(index: int, name: str, visible: str) -> Iterator[Found]:
    """A part of a GPU: its memory is what counts."""
    if "MIG" in name or visible.startswith("MIG-"):
        yield (
            f"cuda:{index}",
            OK,
            "a MIG part of a GPU: budgets are of the part's memory, and one part is all that a "
            "process can use",
            "",
        )


def list_apps(index: int) -> list[str]:
    """What nvidia-smi says of the processes on a GPU; nothing where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = "--query-compute-apps=pid,process_name,used_memory"
    ran = subprocess.run(
        [tool, query, "--format=csv,noheader", f"--id={index}"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return ran.stdout.splitlines() if ran.returncode == 0 else []
