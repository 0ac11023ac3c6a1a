"""Which code a long run is of, so that it never goes on with what another build has found."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from coop._native import _C

ROOT = Path(__file__).resolve().parents[1]


def build_id(tests: str) -> str:
    """A hash of the extension, of the Python face, of torch's version and of `tests/<tests>`."""
    digest = hashlib.sha256(torch.__version__.encode())
    files = [
        Path(_C.__file__),
        *(ROOT / "coop").rglob("*.py"),
        *(ROOT / "tests" / tests).glob("*.py"),
    ]
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
