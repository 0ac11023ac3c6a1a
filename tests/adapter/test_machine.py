"""A budget above what the machine has is a mistake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import coop
from coop.machine import available_bytes, is_wsl, memory_bytes, room_for_copies


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
    """`ulimit -v` and `ulimit -d`, each less what counts for it."""
    files = {
        "proc/self/status": "VmSize:    1024 kB\nVmData:     512 kB\n",
        "proc/meminfo": "MemAvailable: 9999 kB\n",
    }
    limits = [("VmSize", 3 * 2**20), ("VmData", 2 * 2**20)]
    monkeypatch.setattr("coop.machine._address_limits", lambda: iter(limits))
    assert available_bytes(write(tmp_path, files)) == 3 * 2**19


LIMITED = """
import resource, sys
import torch
import coop
from coop.machine import available_bytes

with open("/proc/self/status") as file:
    used = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
try:
    torch.ones(2**29)
except RuntimeError as error:
    print("plain:", "not enough memory" in str(error) or "can't allocate memory" in str(error))
with coop.budget(device="cpu") as session:
    x = torch.ones(2**20, requires_grad=True)
    kept = [x * i for i in range(2**8)]  # 4 MiB each
    heap = bytearray(300 * 2**20)
    stats = session.stats()
    print("budget:", 0.45 * 2**30 < stats.budget_bytes <= 0.5 * 2**30, stats.num_evictions > 0)
    del kept[:200]
print(all((y == i).all() for i, y in enumerate(kept, 200)))
"""


def test_where_addresses_are_limited_the_default_budget_leaves_the_heap_half_a_gibibyte() -> None:
    """None are reserved for the end; and what lives then comes back all the same."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # a thread takes 72 MiB of addresses
    command = [sys.executable, "-c", LIMITED]
    ran = subprocess.run(command, env=alone, capture_output=True, text=True)
    assert ran.stdout.split("\n") == ["plain: True", "budget: True True", "True", ""], ran.stderr


def test_room_for_copies_is_a_share_of_what_is_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "1048576\n",
        "sys/fs/cgroup/memory.current": "0\n",
        "proc/sys/kernel/osrelease": "6.6.0-generic\n",
    }
    root = write(tmp_path, files)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert not is_wsl(root)
    assert room_for_copies(root) == 2**19
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert room_for_copies(root) == 2**17
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    write(root, {"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"})
    assert is_wsl(root)
    assert room_for_copies(root) == 2**18


def test_auto_is_room_on_a_gpu_and_none_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    config = coop.Config(host="auto")
    assert config.host_bytes("cpu") == 0
    assert 0 < config.host_bytes("cuda") <= available_bytes()
    with coop.budget("8MiB", device="cpu", host="auto") as session:
        assert session.stats().host_bytes == 0
    monkeypatch.setenv("COOP_HOST", "auto")
    with coop.budget("8MiB", device="cpu") as session:
        assert session.config.host == "auto"
