"""The benchmark harness, which is no part of the installed package."""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import coop

__all__ = ["harness"]

_MISSING = (
    "the benchmarks are not part of the installed package: this command needs a checkout of the "
    "repository that it was built from; there run `make build`, and then "
    "`.venv/bin/python -m coop {command}` with the same arguments"
)


def harness(command: str, module: str, parser: argparse.ArgumentParser) -> Any:
    """A module of benchmarks.harness; without a checkout the parser ends the command."""
    # An editable install has the package alone on its path.
    root = Path(coop.__file__).resolve().parents[1]
    if (root / "benchmarks" / "harness").is_dir() and str(root) not in sys.path:
        sys.path.append(str(root))
    try:
        return importlib.import_module(f"benchmarks.harness.{module}")
    except ModuleNotFoundError as error:
        if error.name not in ("benchmarks", "benchmarks.harness", f"benchmarks.harness.{module}"):
            raise
        parser.error(_MISSING.format(command=command))
