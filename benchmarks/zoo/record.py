"""Records the networks without the hardware, and knows what a recording has to be.

`recorded.json` says of each network what its trace is (a checksum), and what checkpointing by block
takes: its peak and the compute of its step. With other versions of torch or transformers a network
may be recorded differently.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from benchmarks.traces.paper import DEVICE, record_workload
from coop.files import write_whole
from coop.simulate import Options, peak_without_limit, simulate
from coop.sizes import LARGEST_BYTES
from coop.trace import Trace, read_trace

from .networks import NETWORKS, Network

FOLDER = Path("build/zoo")
TABLE = Path(__file__).parent / "recorded.json"
# The first step makes the optimizer's states, the second is the first like all others, and the
# third is the first that a policy has seen before.
NUM_STEPS = 3


@dataclass(frozen=True)
class Checkpointed:
    """What checkpointing by block takes."""

    peak_bytes: int
    compute_ns: int


@dataclass(frozen=True)
class Recorded:
    """What is known of a network's trace. Costs are of its last step."""

    sha256: str
    num_operators: int  # of all steps
    peak_bytes: int
    compute_ns: int
    checkpoint: Checkpointed | None  # None: it has no blocks


def trace_path(folder: Path, network: Network) -> Path:
    """Where its trace is."""
    return folder / network.half / f"{network.name}.jsonl.gz"


def checksum(path: Path) -> str:
    """Of what is in it, not of how it is compressed."""
    return hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()


def sort_frees(path: Path) -> None:
    """Storages that die at once are freed in the order of their ids.

    The weights that autocast has cast die together, in the order of their addresses: without this
    no recording would repeat.
    """
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    ordered: list[bytes] = []
    for are_frees, group in groupby(lines, lambda line: line.startswith(b'{"free":')):
        together = list(group)
        ordered += sorted(together, key=_freed) if are_frees else together
    write_whole(path, gzip.compress(b"".join(ordered), 9, mtime=0))


def _freed(line: bytes) -> int:
    return int(json.loads(line)["free"])


def measured(trace: Trace) -> Checkpointed:
    """Its peak, and the compute of its last step."""
    options = Options("coop", alignment=trace.header.alignment)
    compute_ns = simulate(trace, LARGEST_BYTES, options).last_step.compute_ns
    return Checkpointed(peak_without_limit(trace), round(compute_ns))


def record(network: Network, folder: Path) -> tuple[Recorded, float]:
    """Writes its trace; also how many seconds it took."""
    begin = time.perf_counter()
    workload = network.make()
    path = trace_path(folder, network)
    path.parent.mkdir(parents=True, exist_ok=True)
    record_workload(workload, NUM_STEPS, path, fused=network.fused)
    sort_frees(path)
    trace = read_trace(path)
    plain, checkpoint = measured(trace), None
    if workload.can_checkpoint:
        with tempfile.TemporaryDirectory() as temporary:
            other = Path(temporary) / "trace.jsonl.gz"
            record_workload(workload, 2, other, checkpoint=True, fused=network.fused)
            checkpoint = measured(read_trace(other))
    recorded = Recorded(
        checksum(path), trace.num_operators, plain.peak_bytes, plain.compute_ns, checkpoint
    )
    return recorded, time.perf_counter() - begin


def record_named(name: str, folder: Path) -> tuple[Recorded, float]:
    """The same for another process, which a network cannot be sent to."""
    return record(NETWORKS[name], folder)


def read_table() -> dict[str, Recorded]:
    """What was recorded, by network."""
    if not TABLE.exists():
        return {}
    rows: dict[str, dict[str, Any]] = json.loads(TABLE.read_text())["networks"]
    return {name: _recorded(row) for name, row in rows.items()}


def _recorded(row: dict[str, Any]) -> Recorded:
    checkpoint = row["checkpoint"]
    return Recorded(**row | {"checkpoint": Checkpointed(**checkpoint) if checkpoint else None})


def write_table(table: dict[str, Recorded]) -> None:
    """Says what this recording is, from now on."""
    import transformers

    content = {
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "device": DEVICE,
        "steps": NUM_STEPS,
        "networks": {name: asdict(recorded) for name, recorded in sorted(table.items())},
    }
    TABLE.write_text(json.dumps(content, indent=1) + "\n")


def versions() -> str:
    """With which the table was made."""
    content = json.loads(TABLE.read_text())
    return f"torch {content['torch']} and transformers {content['transformers']}"


def is_recorded(network: Network, folder: Path, table: dict[str, Recorded]) -> bool:
    """Its trace is there, and is what the table says."""
    path, known = trace_path(folder, network), table.get(network.name)
    return known is not None and path.exists() and checksum(path) == known.sha256
