"""What this machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["memory_bytes"]


def memory_bytes(root: Path = Path("/")) -> int:
    """Main memory that this process may use: the machine's, or its control group's if that is less.

    `root` is where the system's files lie, for tests.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """Of the process's control group and all that it is part of, of either version."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            folder, file = mount, "memory.max"
        elif "memory" in controllers.split(","):
            folder, file = mount / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the upper groups may be hidden, and its own be the root.
        own = folder / path.lstrip("/")
        for group in (own, *own.parents):
            try:
                text = (group / file).read_text().strip()
            except OSError:
                text = ""
            if text.isdigit() and int(text) > 0:  # "max": no limit
                yield int(text)
            if group == folder:
                break
