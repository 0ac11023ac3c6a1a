"""Runs one program: MODULE:FUNCTION, with strings as its arguments."""

from __future__ import annotations

import importlib
import sys

import torch


def main() -> None:
    module, function = sys.argv[1].split(":")
    torch.use_deterministic_algorithms(True, warn_only=True)
    getattr(importlib.import_module(f"tests.cuda.programs.{module}"), function)(*sys.argv[2:])


if __name__ == "__main__":
    main()
