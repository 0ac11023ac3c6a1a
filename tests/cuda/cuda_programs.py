"""Runs programs of `tests/cuda/programs`, each in a process of its own."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and there is none here"
)

Program = Callable[..., None]


def programs_of(module: ModuleType) -> pytest.MarkDecorator:
    """Runs a test with each program of the module that takes no arguments."""
    found = [
        function
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and not inspect.signature(function).parameters
    ]
    return pytest.mark.parametrize("program", found, ids=lambda function: function.__name__)


def run(program: Program, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Runs the program; its output."""
    name = f"{program.__module__.rpartition('.')[2]}:{program.__name__}"
    result = subprocess.run(
        [sys.executable, "-m", "tests.cuda.programs", name, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**(environment or os.environ), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
