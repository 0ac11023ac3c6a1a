"""The event log in the form of `torch.cuda.memory._snapshot()`, which PyTorch's memory_viz opens.

The arena is one segment. Evictions and recomputations are frees and allocations there; the operator
and the line that asked for it stand where memory_viz shows stack frames.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from coop.events import EventKind
from coop.files import write_whole
from coop.recording import Recording

__all__ = ["make_snapshot", "save_snapshot"]

# Addresses are offsets; memory_viz wants them to look like addresses.
BASE = 0x7F0000000000


def save_snapshot(recording: Recording, path: str | Path) -> None:
    """Write the snapshot as a pickle; open it at https://pytorch.org/memory_viz."""
    write_whole(path, pickle.dumps(make_snapshot(recording), protocol=4))


def make_snapshot(recording: Recording) -> dict[str, Any]:
    """The dictionary that `torch.cuda.memory._snapshot()` documents."""
    budget = int(recording.stats["budget_bytes"])
    held: dict[int, dict[str, Any]] = {}  # by address
    trace: list[dict[str, Any]] = [_entry("segment_alloc", BASE, budget, 0, [])]
    begin = int(recording.events["clock"][0]) if len(recording.events) else 0
    kinds = (EventKind.ALLOCATE, EventKind.FREE, EventKind.EVICT)
    relevant = recording.events[np.isin(recording.events["kind"], kinds)]
    for event in relevant.tolist():
        offset, num_bytes, clock, amount, _, op, kind, _, source = event
        address, time_us = BASE + offset, (clock - begin) // 1000
        if kind == EventKind.ALLOCATE:
            frames = _frames(recording, op, source)
            held[address] = {
                "address": address,
                "size": num_bytes,
                "requested_size": amount,
                "state": "active_allocated",
                "frames": frames,
            }
            trace.append(_entry("alloc", address, num_bytes, time_us, frames))
        elif address in held:
            frames = held.pop(address)["frames"]
            if kind == EventKind.EVICT:
                frames = [_frame("coop", 0, "evicted"), *frames]
            trace.append(_entry("free_requested", address, num_bytes, time_us, frames))
            trace.append(_entry("free_completed", address, num_bytes, time_us, frames))
    blocks = _with_gaps([held[address] for address in sorted(held)], budget)
    active = sum(block["size"] for block in blocks if block["state"] != "inactive")
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": budget,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "allocated_size": active,
        "active_size": active,
        "requested_size": sum(block["requested_size"] for block in held.values()),
        "frames": [],
        "blocks": blocks,
    }
    return {
        "segments": [segment],
        "device_traces": [trace],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "coop"},
        "external_annotations": [],
    }


def _with_gaps(held: list[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    """All blocks of the arena: a segment's blocks have to fill it."""
    blocks: list[dict[str, Any]] = []
    position = BASE
    for block in [*held, {"address": BASE + budget}]:
        gap = block["address"] - position
        if gap > 0:
            blocks.append(
                {
                    "address": position,
                    "size": gap,
                    "requested_size": 0,
                    "state": "inactive",
                    "frames": [],
                }
            )
        if "size" in block:
            blocks.append(block)
            position = block["address"] + block["size"]
    return blocks


def _entry(
    action: str, address: int, size: int, time_us: int, frames: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "device": 0,
        "frames": frames,
    }


def _frames(recording: Recording, op: int, source: int) -> list[dict[str, Any]]:
    """The operator, then the line that asked for it; nothing for what was held before."""
    if op < 0:
        return []
    frames = [_frame("operator", 0, recording.operator_names[op])]
    if source:
        line = recording.sources[source]
        frames.append(_frame(line.file, line.line, line.function))
    return frames


def _frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}
