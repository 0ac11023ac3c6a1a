"""Runs programs of tests on a GPU, each in a process of its own: a process has one allocator."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"
)

PRELUDE = """
import os
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch, coop
torch.use_deterministic_algorithms(True, warn_only=True)
MIB = 2**20
def value(n=0, device="cuda", mib=8):
    return torch.arange(mib * MIB // 4, dtype=torch.float32, device=device).add(n).sin()
def same(a, b):
    return torch.equal(a.cpu(), b.cpu())
"""


def run(program: str, environment: dict[str, str] | None = None) -> str:
    """Runs the program; its output."""
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
