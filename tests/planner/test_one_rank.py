"""`coop plan --world-size N`: one rank of many, recorded without the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from coop.pretend_ranks import Ranks, price_collectives
from tests.command_line import ROOT, InProcess, in_process

__all__ = ["in_process"]  # a fixture
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)
SMALL = ("--width", "64", "--batch", "2")


def _plan(
    in_process: InProcess, example: str, ranks: int, *more: str, arguments: tuple[str, ...] = ()
) -> dict[str, Any]:
    script = str(ROOT / "examples" / f"{example}.py")
    code, out, errors = in_process(
        "plan", "--device", "cpu", "--world-size", str(ranks), "--policies", "coop", "--json",
        "--budgets", "64MiB", *more, script, *SMALL, *arguments,
    )  # fmt: skip
    assert code == 0, errors
    result: dict[str, Any] = json.loads(out)
    return result


def _live_after_a_step(path: Path) -> int:
    """Bytes of all storages that live when the first optimizer step of a trace has ended."""
    live: dict[int, int] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry.get("step") == "end":
            return sum(live.values())
        live |= dict(entry.get("outputs", ()))
        live |= {step[1]: step[2] for step in entry.get("memory", ()) if step[0] == "root"}
        if "bytes" in entry:
            live[entry["root"]] = entry["bytes"]
        live.pop(entry.get("free"), None)
    raise AssertionError("no optimizer ran")


@pytest.mark.slow
def test_parameters_gradients_and_states_are_in_shards(
    in_process: InProcess, tmp_path: Path
) -> None:
    tiny = ("--layers", "1", "--words", "64")
    num_bytes = {}
    for ranks in (2, 4):
        path = tmp_path / f"{ranks}.jsonl"
        trace = ("--save-trace", str(path))
        _plan(in_process, "fsdp2_llama", ranks, *trace, arguments=tiny)
        num_bytes[ranks] = _live_after_a_step(path)
    # One block and the root: what is whole, and what the 12 parameters have in shards. Each is a
    # parameter, a gradient and two moments, in single precision.
    width, words, hidden = 64, 64, 64 * 8 // 3 // 64 * 64 + 64
    numel = 2 * words * width + 3 * width + 4 * width * width + 3 * width * hidden
    assert num_bytes[2] - num_bytes[4] == 4 * 4 * (numel // 2 - numel // 4)


WITHOUT_A_MESH = """\
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
with torch.device("cpu"):
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.rand(256, 64)).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_fully_shard_makes_a_mesh_of_all_ranks(in_process: InProcess, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WITHOUT_A_MESH)
    trace = tmp_path / "trace.jsonl"
    code, _, errors = in_process(
        "plan", "--world-size", "4", "--save-trace", str(trace), "--budgets", "8MiB", str(script)
    )
    assert code == 0, errors
    assert trace.read_text().count('"c10d::_allgather_base_') > 0


@pytest.mark.slow
def test_a_slower_link_takes_longer(in_process: InProcess) -> None:
    fast, slow = (
        _plan(in_process, "ddp", 4, "--link", link)["step_ns"] for link in ("25GB", "25MB")
    )
    assert slow > 2 * fast


@pytest.mark.parametrize(
    ("op", "moved", "on_the_link"),
    [
        ("c10d::allreduce_", 400, 2 * 300),  # a ring: all but one part, twice
        ("c10d::_allgather_base_", 500, 300),  # four parts and its own: three of others
        ("c10d::_reduce_scatter_base_", 500, 300),
        ("c10d::alltoall_base_", 800, 300),  # of four parts out and four in
        ("c10d::send", 100, 100),
        ("aten::mm", 100, 50),  # is not one: as it was, at the rate of memory
    ],
)
def test_a_collective_takes_what_its_ring_moves(op: str, moved: int, on_the_link: int) -> None:
    line = json.dumps({"op": op, "cost_ns": 0, "moved_bytes": moved}, separators=(",", ":"))
    priced = price_collectives(line.encode() + b"\n", Ranks(4, 1.0), bytes_per_ns=2.0)
    assert json.loads(priced)["moved_bytes"] / 2.0 == on_the_link
