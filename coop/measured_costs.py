"""What operators took on a device, kept for the next run on such a device.

The engine times operators in the first steps (Note [Measured costs]). With what a run has measured
the next one decides well from its first step on. A file for each kind of device and release of
torch, in the user's cache directory; without one, or where it cannot be written, nothing is lost
but that.
"""

from __future__ import annotations

import json
import os
import re
import weakref
from pathlib import Path

import torch

from coop._native import _C
from coop.files import write_whole

__all__ = ["MeasuredCosts", "load", "path_for", "save"]

_FORMAT = "coop-measured-costs"
# A program whose shapes never repeat must not fill the disk.
_MOST = 50_000


def path_for(device: torch.device) -> Path:
    """Where the costs of such a device are kept."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", f"{name}-torch{torch.__version__}").lower()
    return Path(cache, "coop", f"costs-{plain}.json")


def load(path: Path) -> dict[int, float]:
    """What `save` wrote; empty where that is not there, or not readable."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != _FORMAT:
            return {}
        return {int(key): float(ns) for key, ns in data["ns"].items() if float(ns) > 0}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def save(path: Path, costs: dict[int, float]) -> None:
    """Add the costs to what is there."""
    merged = load(path) | costs
    if not costs or len(merged) > _MOST:
        return
    data = {"format": _FORMAT, "ns": {str(key): merged[key] for key in sorted(merged)}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(data) + "\n").encode())
    except OSError:
        pass  # the next run measures again


class MeasuredCosts:
    """Gives an engine what earlier runs have measured; `save` keeps what it has measured itself."""

    def __init__(self, engine: _C.Engine, device: torch.device) -> None:
        self._path = path_for(device)
        self._known = load(self._path)
        self._engine = weakref.ref(engine)  # its arena must not live on for this
        engine.set_measured_costs(self._known)

    def save(self) -> None:
        """Adds what is new to the file."""
        engine = self._engine()
        if engine is None:
            return
        measured = engine.measured_costs()
        save(self._path, {key: ns for key, ns in measured.items() if key not in self._known})
