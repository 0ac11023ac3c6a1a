"""Plans of compiled programs: regions are operators of a trace, and the simulator decides alike."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import coop
from coop.tracing import record_without_hardware
from tests.planner.equality import decisions_of_the_engine, decisions_of_the_simulator, record

from .compiled_programs import by_block, train


@pytest.fixture(autouse=True)
def compiled_afresh() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")
def test_the_simulator_decides_as_the_engine_does(tmp_path: Path) -> None:
    program = functools.partial(by_block, backend="aot_eager")
    with coop.budget("64 MiB", device="cpu"):
        program(0)  # what torch makes once, it makes before
    trace, peak_bytes = record(program, tmp_path / "trace.jsonl")
    names = {trace.describe(i) for i in range(len(trace.native))}
    assert any("compiled::Block.forward[0/0].backward" in name for name in names)
    for share in (0.8, 0.6):
        budget_bytes = int(peak_bytes * share)
        engine = decisions_of_the_engine(program, budget_bytes, "coop")
        assert engine is not None
        assert engine["num_replays"] > 0
        assert decisions_of_the_simulator(trace, budget_bytes, "coop") == engine


def test_without_the_hardware_a_program_is_recorded_as_it_runs_uncompiled() -> None:
    def run(compiles: bool) -> bytes:
        with record_without_hardware() as (_, entries):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
            if compiles:
                model[0].compile(fullgraph=True)
                train(model, torch.compile(model), steps=2)
            else:
                train(model, model, steps=2)
        return bytes(entries)

    with pytest.warns(UserWarning, match="recorded as it runs without torch.compile"):
        entries = run(True)
    assert entries == run(False)
