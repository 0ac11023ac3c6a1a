"""A budget above what the machine has is a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

import coop
from coop.machine import memory_bytes


def test_a_budget_above_main_memory_is_an_error_that_says_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"of main memory that there are here: choose less"):
        coop.budget(memory_bytes() + 1).__enter__()
    with coop.budget(memory_bytes()) as session:
        assert session.stats().budget_bytes == memory_bytes()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/jobs/one\n",
            "sys/fs/cgroup/jobs/one/memory.max": "max\n",
            "sys/fs/cgroup/jobs/memory.max": "1048576\n",
        },
        {
            "proc/self/cgroup": "5:cpu,memory:/one\n1:cpuset:/\n",
            "sys/fs/cgroup/memory/one/memory.limit_in_bytes": "1048576\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        {
            "proc/self/cgroup": "0::/../hidden\n",
            "sys/fs/cgroup/memory.max": "1048576\n",
        },
    ],
    ids=["version 2, of a group above", "version 1", "in a container"],
)
def test_the_limit_of_a_control_group_counts(files: dict[str, str], tmp_path: Path) -> None:
    assert memory_bytes(write(tmp_path, files)) == 2**20


def test_without_control_groups_it_is_the_machines_memory(tmp_path: Path) -> None:
    physical = memory_bytes(tmp_path)
    unlimited = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}
    assert memory_bytes(write(tmp_path, unlimited)) == physical > 2**20
