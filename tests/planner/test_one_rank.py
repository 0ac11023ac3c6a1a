"""`coop plan --world-size N`: one rank of many, recorded without the others."""

from __future__ import annotations

import json
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


def _plan(in_process: InProcess, example: str, ranks: int, *more: str) -> dict[str, Any]:
    script = str(ROOT / "examples" / f"{example}.py")
    code, out, errors = in_process(
        "plan", "--device", "cpu", "--world-size", str(ranks), "--policies", "coop", "--json",
        "--budgets", "64MiB", *more, script, *SMALL,
    )  # fmt: skip
    assert code == 0, errors
    result: dict[str, Any] = json.loads(out)
    return result


@pytest.mark.slow
def test_more_ranks_need_less_memory_each(in_process: InProcess) -> None:
    peaks = [_plan(in_process, "fsdp2_llama", n)["needed_bytes"] for n in (1, 8)]
    assert peaks[1] < peaks[0]


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
