"""Plans: smallest budgets, knees, advice, batches, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import coop
from coop.planner import Plan, Point, plan_trace, smallest_budget
from coop.profiles import devices, get_device, save_device
from coop.simulate import Options, peak_without_limit, simulate
from coop.trace import read_trace
from tests.people.conftest import InProcess, in_process

__all__ = ["in_process"]  # a fixture

TRACES = Path(__file__).parents[2] / "benchmarks" / "traces"
RESIDUAL = TRACES / "residual.jsonl.gz"
RESNET = TRACES / "paper" / "resnet50.jsonl.gz"


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
    trace = read_trace(RESIDUAL)
    assert len(residual.points) == 30
    for point in residual.points:
        result = simulate(trace, point.budget_bytes, Options(point.policy))
        assert point.fits == result.fitted
        if point.fits:
            step = result.last_step
            assert point.step_ns == step.compute_ns + step.replay_ns
            assert point.num_replays == step.num_replays
            assert point.overhead == 1 + step.replay_ns / step.compute_ns


def test_the_smallest_budget_fits_and_one_just_below_does_not(residual: Plan) -> None:
    trace = read_trace(RESIDUAL)
    for policy, smallest in residual.smallest_bytes.items():
        assert simulate(trace, smallest, Options(policy)).fitted
        assert smallest_budget(trace, policy) == smallest
        below = (int(smallest * (1 - share / 1000)) for share in range(1, 8))
        assert not all(simulate(trace, budget, Options(policy)).fitted for budget in below)


def test_the_knee_is_where_the_curve_bends() -> None:
    times = {100: 10.0, 90: 10.5, 80: 11.0, 70: 12.0, 60: 20.0, 50: 40.0}
    points = [Point("coop", b, True, t, t / 10, 0, 0) for b, t in times.items()]
    from coop.planner import _knee

    assert _knee(points) == 70
    assert _knee(points[:2]) == 90


def test_the_advice_names_the_ends_and_the_knee(residual: Plan) -> None:
    assert residual.advice.startswith("takes ")
    assert residual.advice.endswith(": no")
    assert residual.advice.count(" at +") in (2, 3)


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


def test_the_command_prints_a_table_and_a_sentence(in_process: InProcess) -> None:
    code, out, err = in_process(
        "plan", "--device", "a100-40", "--budgets", "8GiB,1MiB", str(RESNET)
    )
    assert (code, err) == (0, "")
    assert "smallest" in out
    assert "8.00 GiB" in out
    assert out.splitlines()[-1].startswith("takes ")


def test_the_command_as_json_and_a_picture(in_process: InProcess, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plan.png"
    code, out, _ = in_process(
        "plan", "--json", "--policies", "coop", "--picture", str(picture), str(RESNET)
    )
    assert code == 0
    data = json.loads(out)
    assert data["peak_bytes"] == peak_without_limit(read_trace(RESNET))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_plans_a_script(in_process: InProcess, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "model = torch.nn.Linear(4096, 4096)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(2):\n"
        "    loss = model(torch.randn(int(sys.argv[1]), 4096)).square().mean()\n"
        "    loss.backward(); optimizer.step(); optimizer.zero_grad()\n"
        "    print('loss', loss.item())\n"
    )
    code, out, err = in_process("plan", "--policies", "coop", "--json", str(script), "4096")
    assert (code, err) == (0, "loss 1.0\nloss 1.0\n")
    assert json.loads(out)["num_steps"] == 2
    code, out, _ = in_process("plan", "--policies", "coop", str(script), "64")
    assert (code, out.splitlines()[0].split(" on ")[0]) == (0, str(script))
    code, out, _ = in_process("plan", "--batch-for", "1GiB", "--json", str(script), "{batch}")
    assert code == 0
    assert json.loads(out)["batch_size"] > 4096


def test_a_script_that_fails_shows_its_own_frames_and_what_to_do(
    in_process: InProcess, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("def fail():\n    raise OSError('no data')\n\nfail()\n")
    code, out, err = in_process("plan", "train.py")
    assert (code, out) == (1, "")
    lines = err.splitlines()
    assert [line.split(", ")[1:] for line in lines if line.startswith("  File")] == [
        ["line 4", "in <module>"],
        ["line 2", "in fail"],
    ]
    assert lines[-2:] == [
        "OSError: no data",
        "coop plan: train.py failed; if it works with the hardware, record it there: "
        "python -m coop run --budget BYTES --trace FILE.jsonl train.py",
    ]


def test_a_script_without_operators_has_no_plan(in_process: InProcess, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.exit('no such option')\n")
    assert in_process("plan", "train.py") == (
        2,
        "",
        "coop plan: train.py ran no operator of torch; it ended with 'no such option'\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: cannot be read: No such file or directory"),
        (["nowhere.py"], "cannot open 'nowhere.py': No such file or directory"),
        ([str(RESNET), "more"], "unexpected 'more' after the trace"),
        (["--device", "h300", str(RESNET)], "unknown device 'h300': choose cpu, h200"),
        (["--policies", "lru", str(RESNET)], "argument --policies: 'lru' is not a policy"),
        (["--batch-for", "1GiB", "x.py"], "--batch-for needs an argument of the script"),
    ],
)
def test_wrong_input_is_told_in_one_line(
    in_process: InProcess, arguments: list[str], message: str
) -> None:
    code, out, err = in_process("plan", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"coop plan: {message}")
    assert err.count("\n") == 1
