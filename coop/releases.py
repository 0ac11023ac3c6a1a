"""What differs between releases of torch, in Python: which ones were tested.

In C++ it is csrc/adapter/torch_releases.h. Nothing else tests torch's version.
"""

from __future__ import annotations

import re
import warnings

__all__ = ["NEWEST_TESTED", "OLDEST", "is_newer", "is_older", "warn_if_newer"]

OLDEST = (2, 11)
NEWEST_TESTED = (2, 15)


def is_newer(version: str) -> bool:
    """Whether this torch is newer than all that the tests have been run with."""
    return _numbers(version) > NEWEST_TESTED


def is_older(version: str) -> bool:
    """Whether this torch is older than all that are supported."""
    return _numbers(version) < OLDEST


def warn_if_newer(version: str) -> None:
    """For the first budget of a process."""
    if is_newer(version):
        warnings.warn(
            f"coop: torch {version} is newer than what coop was tested with: "
            "`python -m coop doctor` tries it out",
            stacklevel=2,
        )


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else OLDEST
