"""Plans of programs whose parameters may leave: the link in device profiles, updates in parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import coop
from coop.planner import plan_trace, record_function
from coop.profiles import LINKS, Link, cuda_link, devices, get_device, save_device
from coop.sizes import LARGEST_BYTES
from coop.trace import Trace
from tests.command_line import InProcess, coop_command, in_process

__all__ = ["coop_command", "in_process"]  # fixtures

MIB = 2**20
WIDTH, DEPTH = 512, 8


def train(fused: bool = True) -> None:
    """8 MiB of parameters; with gradients and state it is 32."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused, foreach=not fused)
    for _ in range(3):
        model(torch.randn(64, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record_function(train, in_parts=True)


def num_updates(trace: Trace, name: str) -> int:
    return sum(op >= 0 and trace.op_names[op].startswith(name) for op in trace.entry_ops)


@pytest.mark.parametrize("fused", [True, False])
def test_an_update_is_recorded_in_parts(fused: bool) -> None:
    name = "aten::_fused_adamw_" if fused else "aten::_foreach_addcdiv_.ScalarList"
    whole = record_function(train, fused)
    parts = record_function(train, fused, in_parts=True)
    assert num_updates(whole, name) == 3
    assert num_updates(parts, name) == 3 * DEPTH
    # A part has a weight, and the biases before it. Small tensors are the same in both.
    assert parts.num_operators > whole.num_operators


def test_with_copies_what_cannot_be_recomputed_may_leave(trace: Trace) -> None:
    without = plan_trace(trace, policies=("coop",))
    planned = plan_trace(trace, policies=("coop",), host="64MiB", budgets=["16MiB", "10MiB"])
    assert without.smallest_bytes["coop"] > 24 * MIB
    assert planned.smallest_bytes["coop"] < 10 * MIB
    assert (without.host_bytes, planned.host_bytes) == (0, 64 * MIB)
    for point in planned.points:
        assert point.fits
        assert point.host_wait_ns > 0
        assert 8 * MIB < point.host_peak_bytes <= 64 * MIB
    assert plan_trace(trace, host="auto", policies=("coop",)).host_bytes == LARGEST_BYTES


def test_a_slower_link_takes_longer(trace: Trace, tmp_path: Path) -> None:
    device = get_device("h200")
    slow = replace(device, link=Link(1e9, 1e9, 10e3))
    save_device(slow, tmp_path / "slow.json")
    assert get_device(str(tmp_path / "slow.json")) == slow
    fast_ns, slow_ns = (
        plan_trace(trace, device=name, policies=("coop",), host="64MiB", budgets=["10MiB"])
        .points[0]
        .step_ns
        for name in ("h200", str(tmp_path / "slow.json"))
    )
    assert slow_ns > 5 * fast_ns


def test_every_device_has_a_link(tmp_path: Path) -> None:
    assert devices()["cpu"].link == LINKS["cpu"]
    assert cuda_link("NVIDIA H200") == devices()["h200"].link
    assert cuda_link("Tesla T4").out_bytes_per_second < 13e9
    assert cuda_link("NVIDIA GeForce RTX 5090") == devices()["b200"].link
    assert cuda_link("another") == LINKS["cuda"]
    # Files of before it was measured.
    path = tmp_path / "old.json"
    save_device(devices()["l4"], path)
    data = json.loads(path.read_text())
    del data["link"]
    path.write_text(json.dumps(data))
    assert get_device(str(path)).link == LINKS["cuda"]
    data["link"] = {"out_bytes_per_second": 0, "in_bytes_per_second": 1, "latency_ns": 1}
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="is not a file that"):
        get_device(str(path))


@pytest.mark.parametrize("room", ["64MiB", "auto"])
def test_the_command_tells_how_much_is_in_main_memory(
    room: str, in_process: InProcess, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    record_function(train, in_parts=True, path=path)
    options = ("--host", room, "--policies", "coop", "--budgets", "10MiB")
    code, out, _ = in_process("plan", "--device", "l4", *options, str(path))
    assert code == 0
    assert "copies in main memory: at most " in out
    code, out, _ = in_process("plan", *options, "--json", str(path))
    (point,) = json.loads(out)["points"]
    assert point["fits"]
    assert point["host_wait_ns"] > 0
    code, out, _ = in_process(
        "simulate", str(path), "--budget", "10MiB", "--host", room, "--device", "v100"
    )
    assert code == 0
    assert "waited for it" in out


def test_a_plan_of_a_function_with_copies() -> None:
    planned = coop.plan(train, host="64MiB", policies=("coop",), budgets=["10MiB"])
    assert planned.points[0].fits
    assert planned.device == "h200"
