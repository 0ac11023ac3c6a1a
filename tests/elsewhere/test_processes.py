"""Programs of two processes are the same bits in two budgets, in each of the processes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed

from .processes import DISTRIBUTED, DOES_NOT_FIT, LEFT_ALONE, RANKS
from .runs import ROWS, Row

ROOT = Path(__file__).parents[2]

# tests/adapter/test_distributed.py has DDP, and starts its processes once for all of its programs.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo"),
]


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_a_program_is_the_same_bits_in_two_budgets(
    name: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    command = [sys.executable, "-m", "tests.elsewhere.processes", name]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]
    errors = [process.communicate()[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [0] * RANKS or (
        DOES_NOT_FIT in codes and set(codes) <= {DOES_NOT_FIT, LEFT_ALONE}
    ), "\n".join(errors)
    found = [json.loads((tmp_path / f"rows-{rank}.json").read_text()) for rank in range(RANKS)]
    # The last one is known to be right only where all processes have it.
    number = min(len(rows) for rows in found)
    assert number >= 2, "fits one budget below its peak, or none"
    # The table has the first process's rows.
    moderate, tight = (Row(**row) for row in (found[0][0], found[0][number - 1]))
    rows = [replace(moderate, budget="moderate"), replace(tight, budget="tight")]
    pytestconfig.stash[ROWS] += rows
