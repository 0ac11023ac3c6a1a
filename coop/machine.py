"""What this machine has."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "addresses_left",
    "available_bytes",
    "is_wsl",
    "memory_bytes",
    "num_workers",
    "room_for_copies",
]

# Of the main memory that is available, what copies may take by themselves; under WSL, where Windows
# lets half of its memory be locked at most.
_ROOM, _ROOM_IN_WSL = 0.5, 0.25


def memory_bytes(root: Path = Path("/")) -> int:
    """Main memory that this process may use: the machine's, or its control group's if that is less.

    `root` is where the system's files lie, for tests.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(group.limit for group in _groups(root))])


def available_bytes(root: Path = Path("/")) -> int:
    """Main memory that this process can still take without swapping or being killed for it.

    What the machine has left, what its control groups have, and, where the process's addresses are
    limited (`ulimit -v`), what is left of these.
    """
    left = [group.limit - group.used for group in _groups(root)]
    addresses = addresses_left(root)
    if addresses is not None:
        left.append(addresses)
    meminfo = _numbers(root / "proc/meminfo", ":")
    if "MemAvailable" in meminfo:
        left.append(meminfo["MemAvailable"] * 1024)
    if _text(root / "proc/sys/vm/overcommit_memory") == "2":
        left.append((meminfo["CommitLimit"] - meminfo["Committed_AS"]) * 1024 // 2)
    return max(min([memory_bytes(root), *left]), 0)


def addresses_left(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still map (`ulimit -v`, `ulimit -d`); None: there is no limit."""
    process = _numbers(root / "proc/self/status", ":")
    left = [limit - process.get(used, 0) * 1024 for used, limit in _address_limits()]
    return max(min(left), 0) if left else None


def is_wsl(root: Path = Path("/")) -> bool:
    """Whether this Linux runs inside of Windows."""
    return "microsoft" in _text(root / "proc/sys/kernel/osrelease").lower()


def room_for_copies(root: Path = Path("/")) -> int:
    """A share of the main memory that is available, for this worker of the machine's.

    Page-locked memory is taken in pieces as it is needed: where the system locks less, there is
    less. CUDA's driver locks it, for which `ulimit -l` does not count.
    """
    share = _ROOM_IN_WSL if is_wsl(root) else _ROOM
    return int(available_bytes(root) * share) // num_workers()


def num_workers() -> int:
    """That share this machine's main memory, by torchrun."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(int(text), 1) if text.isdigit() else 1


@dataclass(frozen=True)
class _Group:
    """A control group that limits memory."""

    limit: int
    used: int  # without what the kernel gives back by itself


@dataclass(frozen=True)
class _Names:
    """What a version of control groups calls its files, and the entry of its statistics."""

    limit: str
    used: str
    cache: str


_VERSION_1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Names("memory.max", "memory.current", "inactive_file")


def _groups(root: Path) -> Iterator[_Group]:
    """The process's control group and all that it is part of, of either version."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            folder, names = mount, _VERSION_2
        elif "memory" in controllers.split(","):
            folder, names = mount / "memory", _VERSION_1
        else:
            continue
        # In a container the upper groups may be hidden, and its own be the root.
        own = folder / path.lstrip("/")
        for group in (own, *own.parents):
            limit = _text(group / names.limit)
            if limit.isdigit() and int(limit) > 0:  # "max": no limit
                cache = _numbers(group / "memory.stat", " ").get(names.cache, 0)
                yield _Group(int(limit), int(_text(group / names.used) or 0) - cache)
            if group == folder:
                break


def _address_limits() -> Iterator[tuple[str, int]]:
    """What the kernel calls the bytes that count for each limit, and the limit."""
    for used, kind in (("VmSize", resource.RLIMIT_AS), ("VmData", resource.RLIMIT_DATA)):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield used, limit


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _numbers(path: Path, separator: str) -> dict[str, int]:
    """Of lines such as `MemAvailable:   123 kB`."""
    pairs = (line.partition(separator) for line in _text(path).splitlines())
    words = ((name, rest.split()) for name, _, rest in pairs)
    return {name: int(rest[0]) for name, rest in words if rest and rest[0].isdigit()}
