"""`coop run` without a budget where addresses are limited (`ulimit -v`)."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import environment

Script = Callable[[str], Path]

LIMITED = """\
import mmap
taken_by_imports = mmap.mmap(-1, 2**30)
import torch
x = torch.ones(2**20, requires_grad=True)
kept = [x * i for i in range(2**8)]  # 4 MiB each
print(all((y == i).all().item() for i, y in enumerate(kept)))
del kept
"""
RUN_LIMITED = """\
import resource, sys
import coop.__main__
with open("/proc/self/status") as file:
    used = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + 7 * 2**28, used + 7 * 2**28))
coop.__main__.main(["run", *sys.argv[1:]])
"""


@pytest.mark.parametrize("options", [[], ["--report", "out.html"]], ids=["", "with a report"])
def test_where_addresses_are_limited_the_budget_is_what_imports_have_left(
    script: Script, tmp_path: Path, options: list[str]
) -> None:
    script(LIMITED)
    ran = subprocess.run(
        [sys.executable, "-c", RUN_LIMITED, *options, "train.py"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
    got = re.search(r"coop: got     ([\d.]+) MiB on the CPU", ran.stderr)
    assert got is not None, ran.stderr
    # Half of what is left: at most half of 1.75 GiB without that 1 GiB, threads and libraries.
    assert 128 < float(got[1]) <= 384
    assert int(re.search(r"(\d+) evictions", ran.stderr)[1]) > 100  # type: ignore[index]
    assert (tmp_path / "out.html").exists() == bool(options)


def test_where_addresses_are_limited_a_program_without_tensors_ends_as_ever(
    script: Script, tmp_path: Path
) -> None:
    script("import sys\nprint('none')\nsys.exit(3)\n")
    ran = subprocess.run(
        [sys.executable, "-c", RUN_LIMITED, "train.py"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (3, "none\n"), ran.stderr
    assert [line.split()[1] for line in ran.stderr.splitlines()[1:]] == [
        "needed", "got", "cost", "next", "report",
    ]  # fmt: skip
