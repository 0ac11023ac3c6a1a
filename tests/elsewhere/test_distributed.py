"""Programs of two processes are the same bits in two budgets, in each of the processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

from .distributed import DISTRIBUTED, RANKS
from .runs import ROWS, Row

ROOT = Path(__file__).parents[2]
QUICK = ("ddp_with_accumulation",)

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this torch has no gloo"
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in DISTRIBUTED],
)
def test_a_program_is_the_same_bits_in_two_budgets(
    name: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    command = [sys.executable, "-m", "tests.elsewhere.distributed", name]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(errors)
    # The table has the first process's rows.
    rows = json.loads((tmp_path / "rows-0.json").read_text())
    pytestconfig.stash[ROWS] += [Row(**row) for row in rows]
