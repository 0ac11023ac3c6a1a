"""A budget above what the machine has is a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

import coop
from coop.machine import available_bytes, memory_bytes


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


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   2048 kB\n"}, 2 * 2**20),
        (
            {
                "proc/meminfo": "MemAvailable: 9 kB\nCommitLimit: 10 kB\nCommitted_AS: 4 kB",
                "proc/sys/vm/overcommit_memory": "2\n",
            },
            3 * 1024,
        ),
        (
            {
                "proc/meminfo": "MemAvailable:   2048 kB\n",
                "proc/self/cgroup": "0::/jobs/one\n",
                "sys/fs/cgroup/jobs/one/memory.max": "1048576\n",
                "sys/fs/cgroup/jobs/one/memory.current": "600000\n",
                "sys/fs/cgroup/jobs/one/memory.stat": "anon 1\ninactive_file 500000\n",
            },
            2**20 - 100000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/one\n",
                "sys/fs/cgroup/memory/one/memory.limit_in_bytes": "1048576\n",
                "sys/fs/cgroup/memory/one/memory.usage_in_bytes": "600000\n",
                "sys/fs/cgroup/memory/one/memory.stat": "inactive_file 7\ntotal_inactive_file 8\n",
            },
            2**20 - 600000 + 8,
        ),
    ],
    ids=["the machine", "no overcommitment", "version 2", "version 1"],
)
def test_what_is_available_is_less_what_is_used(
    files: dict[str, str], available: int, tmp_path: Path
) -> None:
    assert available_bytes(write(tmp_path, files)) == available


def test_a_limit_of_addresses_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`ulimit -v`, less what is mapped, and halved: an arena reserves twice its size."""
    files = {"proc/self/status": "VmSize:    1024 kB\n", "proc/meminfo": "MemAvailable: 9999 kB\n"}
    monkeypatch.setattr("coop.machine._address_limits", lambda: iter([3 * 2**20]))
    assert available_bytes(write(tmp_path, files)) == 2**20
