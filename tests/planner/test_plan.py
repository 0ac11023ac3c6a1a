"""Plans: smallest budgets, knees, advice, batches, devices."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import coop
from coop.planner import (
    _MOST_REPLAY,
    Plan,
    Point,
    _knee,
    _Sweep,
    plan_trace,
    smallest_budget,
)
from coop.profiles import cuda_profile, devices, get_device, save_device
from coop.simulate import STEADY_STEPS, Options, peak_without_limit, simulate
from coop.sizes import parse_bytes
from coop.trace import read_trace
from tests.adapter.slices import first
from tests.command_line import InProcess, coop_command, in_process

__all__ = ["coop_command", "in_process"]  # fixtures

TRACES = Path(__file__).parents[2] / "benchmarks" / "traces"
RESIDUAL = TRACES / "residual.jsonl.gz"
RESNET = TRACES / "paper" / "resnet50.jsonl.gz"
DENSENET = TRACES / "paper" / "densenet121.jsonl.gz"


@pytest.fixture(scope="module")
def residual() -> Plan:
    return plan_trace(read_trace(RESIDUAL))


def train(batch: int = 64) -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(batch, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_every_point_is_what_the_simulator_says(residual: Plan) -> None:
    trace = read_trace(RESIDUAL).repeated(STEADY_STEPS)
    assert len(residual.points) == 30
    for point in residual.points:
        result = simulate(
            trace, point.budget_bytes, Options(point.policy), most_replay=_MOST_REPLAY
        )
        assert point.fits == result.fitted
        if point.fits:
            step = result.last_step
            assert point.step_ns == step.compute_ns + step.replay_ns
            assert point.num_replays == step.num_replays
            assert point.overhead == point.step_ns / step.compute_ns


def test_the_smallest_budget_fits_and_one_just_below_does_not(residual: Plan) -> None:
    trace = read_trace(RESIDUAL)
    for policy, smallest in residual.smallest_bytes.items():
        sweep = _Sweep(trace)
        assert sweep.smallest(policy, residual.peak_bytes) == smallest
        assert smallest_budget(trace, policy) == smallest
        assert simulate(trace, smallest, Options(policy), most_replay=5).fitted
        below = max(p.budget_bytes for p in sweep.points.values() if not p.fits)
        assert 0 < smallest - below <= 0.005 * smallest
        assert not simulate(trace, below, Options(policy), most_replay=5).fitted


def test_progress_knows_of_the_points_to_come() -> None:
    told: list[tuple[int, int]] = []
    trace = read_trace(RESIDUAL)
    planned = plan_trace(trace, policies=("coop",), progress=lambda *state: told.append(state))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert all(known >= min(done + 1, len(told)) for done, known in told)
    assert told[0][1] >= 1 + len(planned.points)
    assert told[-1] == (len(told), len(told))


@pytest.mark.slow
def test_points_that_are_known_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one here is: with one worker it was still waited for when the others were done."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    told: list[tuple[int, int]] = []
    trace = read_trace(RESIDUAL)
    smallest = smallest_budget(trace)
    for budgets in ([2 * smallest, smallest], [smallest]):
        told.clear()
        plan_trace(
            trace, budgets=budgets, policies=("coop",), progress=lambda *state: told.append(state)
        )
        done, known = told[-1]
        assert done == known


def test_the_knee_is_where_the_curve_bends() -> None:
    times = {100: 10.0, 90: 10.5, 80: 11.0, 70: 12.0, 60: 20.0, 50: 40.0}
    points = [Point("coop", b, True, t, t / 10, 0, 0) for b, t in times.items()]
    assert _knee(points) == 70
    assert _knee(points[:2]) == 90


def test_the_advice_names_the_ends_and_the_knee(residual: Plan) -> None:
    assert residual.advice.startswith("nothing is evicted from ")
    assert residual.advice.endswith(": no")
    assert residual.advice.count(" at +") in (2, 3)


@pytest.mark.parametrize("policy", first(1, ["coop", "dtr", "dte"]))
def test_nothing_is_evicted_in_the_budget_that_is_said_to_do(policy: str) -> None:
    trace = read_trace(RESIDUAL)
    planned = plan_trace(trace, budgets=[2**40], policies=(policy,))
    assert planned.needed_bytes >= planned.peak_bytes
    told = planned.advice.split(" on")[0].removeprefix("nothing is evicted from ")
    for budget_bytes in (planned.needed_bytes, parse_bytes(told)):
        result = simulate(trace, budget_bytes, Options(policy))
        assert result.fitted
        assert result.stats["num_evictions"] == 0


def test_a_function_is_planned_without_hardware() -> None:
    planned = coop.plan(train, 4096, device="a100-40", policies=("coop",))
    assert planned.device == "a100-40"
    assert planned.is_estimated
    assert planned.num_steps == 2
    assert planned.smallest_bytes["coop"] < planned.peak_bytes
    # Parameters and gradients of eight layers, at least.
    assert planned.smallest_bytes["coop"] > 2 * 8 * 4 * 512 * 513


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    found = coop.largest_batch(lambda batch: coop.record_function(train, batch), "24MiB")
    assert found.batch_size > 1
    assert found.point is not None
    assert found.point.fits
    assert not found.tried[found.batch_size + 1].fits


def test_a_budget_that_recomputes_for_more_than_five_steps_does_not_fit() -> None:
    trace = read_trace(DENSENET)
    options = Options("dtr", alignment=512)
    budget = 2_403_880_960  # everything fits, but the same values are recomputed again and again
    longest_ns = max(step.compute_ns for step in simulate(trace, 2**40, options).steps)
    given_up = simulate(trace, budget, options, most_replay=5)
    assert not given_up.fitted
    assert given_up.shortage is None
    replayed_ns = given_up.stats["replay_ns"] - sum(s.replay_ns for s in given_up.steps)
    assert 5 * longest_ns < replayed_ns < 5.1 * longest_ns
    assert "given up at aten::" in given_up.failure
    (point,) = plan_trace(trace, budgets=[budget], policies=("dtr",)).points
    assert not point.fits
    assert point.failure == given_up.failure


def test_replays_are_counted_by_operator() -> None:
    result = simulate(read_trace(RESIDUAL), 2**28, Options("coop"))
    assert result.fitted
    assert len(result.num_replays) == result.trace.num_operators
    assert sum(result.num_replays) == result.stats["num_replays"] > 0


def test_a_device_with_less_memory_than_the_peak_is_planned_up_to_that() -> None:
    trace = read_trace(RESNET)
    memory_bytes = peak_without_limit(trace) * 2 // 3
    device = replace(devices()["l4"], memory_bytes=memory_bytes)

    def largest(path: str) -> int:
        planned = plan_trace(trace, device=path, policies=("coop",))
        assert len(planned.points) == 10
        return planned.points[0].budget_bytes

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "small.json")
        save_device(device, path)
        assert largest(path) == memory_bytes // 4096 * 4096
        save_device(replace(device, memory_bytes=2**20), path)  # nothing fits it
        assert largest(path) > peak_without_limit(trace)


def test_the_same_trace_costs_more_on_a_slower_device() -> None:
    trace = read_trace(RESNET)
    times = [
        plan_trace(trace, device=name, budgets=["200GB"], policies=("coop",)).step_ns
        for name in ("h200", "a100-80", "t4")
    ]
    assert times == sorted(times)
    assert times[0] * 5 < times[2]


def test_a_trace_without_prices_stays_with_its_own(residual: Plan) -> None:
    with pytest.raises(ValueError, match="no price on another device"):
        plan_trace(read_trace(RESIDUAL), device="h200")


def test_a_device_is_written_and_read(tmp_path: Path) -> None:
    device = devices()["l4"]
    save_device(device, tmp_path / "mine.json")
    assert get_device(str(tmp_path / "mine.json")) == device
    with pytest.raises(ValueError, match="unknown device 'l5'"):
        get_device("l5")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "else"},
        {"profile": {}},
        {"profile": [1]},
        {"profile": {"flops_per_ns": 1, "half_flops_per_ns": 1, "bytes_per_ns": 0, "launch_ns": 1}},
        {"profile": {"flops_per_ns": "x", "half_flops_per_ns": 1, "bytes_per_ns": 1}},
        {"more": 1},
    ],
)
def test_a_file_that_is_no_device_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save_device(devices()["l4"], path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(
        ValueError, match=r"mine\.json is not a file that `python -m coop calibrate`"
    ):
        get_device(str(path))


@pytest.mark.parametrize(
    ("driver", "device"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA GB200", "b200"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("another", "a100-80"),
    ],
)
def test_a_driver_s_name_leads_to_its_profile(driver: str, device: str) -> None:
    assert cuda_profile(driver) is devices()[device].profile


def test_calibrate_measures_a_device_that_prices_a_trace(
    in_process: InProcess, tmp_path: Path
) -> None:
    path = tmp_path / "here.json"
    code, out, err = in_process("calibrate", "--device", "cpu", str(path))
    assert (code, err) == (0, "")
    assert out.splitlines()[0].strip() == "this CPU"
    assert out.endswith(f"use it: python -m coop plan --device {path.name} TRACE\n")
    device = get_device(str(path))
    assert (device.name, device.memory_bytes, device.match) == ("this CPU", 0, "")
    # Any machine that runs this computes 1 GFLOP/s to 10 TFLOP/s and moves 100 MB/s to 1 TB/s.
    assert 1 < device.profile.flops_per_ns < 10_000
    assert 1 < device.profile.half_flops_per_ns < 100_000
    assert 0.1 < device.profile.bytes_per_ns < 1000
    assert 100 < device.profile.launch_ns < 1_000_000

    with coop.record(tmp_path / "t.jsonl"):
        a = torch.ones(512, 512)
        b = a @ a
        del a, b
    trace = read_trace(tmp_path / "t.jsonl")
    profile = device.profile
    ones_ns = 512 * 512 * 4 / profile.bytes_per_ns + profile.launch_ns
    moved_ns = 3 * 512 * 512 * 4 / profile.bytes_per_ns
    product_ns = max(2 * 512**3 / profile.flops_per_ns, moved_ns) + profile.launch_ns
    planned = plan_trace(trace, device=str(path), budgets=["64MiB"], policies=("coop",))
    assert planned.step_ns == round(ones_ns) + round(product_ns)


def test_calibrate_without_a_gpu_or_a_folder(in_process: InProcess, tmp_path: Path) -> None:
    code, out, err = in_process("calibrate", str(tmp_path / "no" / "x.json"))
    assert (code, out) == (2, "")
    assert err.startswith("coop calibrate: argument FILE: cannot write")
    if not torch.cuda.is_available():
        path = tmp_path / "x.json"
        code, out, err = in_process("calibrate", "--device", "cuda", str(path))
        assert (code, out, err) == (2, "", "coop calibrate: there is no CUDA device here\n")
        assert not path.exists()
