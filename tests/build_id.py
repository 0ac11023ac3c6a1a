"""Which code a long run is of, so that it never goes on with what another build has found."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from coop._native import _C

ROOT = Path(__file__).resolve().parents[1]


def build_id(tests: str) -> str:
    """A hash of all sources, of `tests/<tests>`, of torch's version and of which of the two builds.

    Of the sources, not of the extension: two compilations of the same are never the same bytes.
    """
    digest = hashlib.sha256(f"{torch.__version__} {_C.__name__}".encode())
    files = [
        ROOT / "setup.py",
        *(ROOT / "csrc").rglob("*.cc"),
        *(ROOT / "csrc").rglob("*.h"),
        *(ROOT / "coop").rglob("*.py"),
        *(ROOT / "tests" / tests).glob("*.py"),
    ]
    for path in sorted(files):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
