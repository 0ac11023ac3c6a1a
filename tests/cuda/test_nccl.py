"""torch.distributed on a GPU: NCCL, one rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.cuda_programs import ROOT, needs_gpu
from tests.cuda.programs.train_nccl import STYLES

pytestmark = needs_gpu


@pytest.mark.parametrize("style", STYLES)
def test_training_with_nccl_is_bit_identical_in_a_budget(style: str, tmp_path: Path) -> None:
    def run(*options: str) -> list[str]:
        command = [sys.executable, "-m", "tests.cuda.programs.train_nccl", "--style", style]
        result = subprocess.run(
            [*command, *options, str(tmp_path / f"store{len(options)}")],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout.split()

    (plain,) = run()
    budgeted, num_evictions = run("--budget", "512MiB")
    assert budgeted == plain
    assert int(num_evictions) > 0
