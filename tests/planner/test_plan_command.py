"""`python -m coop plan`: what it prints, of traces and of scripts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from coop.simulate import peak_without_limit
from coop.trace import read_trace
from tests.command_line import Coop, InProcess, coop_command, in_process

__all__ = ["coop_command", "in_process"]  # fixtures

RESNET = Path(__file__).parents[2] / "benchmarks" / "traces" / "paper" / "resnet50.jsonl.gz"


CHECKPOINTED = """
import sys, torch
from torch.utils.checkpoint import checkpoint
def block():
    return torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)
    )
blocks = torch.nn.ModuleList(block() for _ in range(6)).cuda()
optimizer = torch.optim.AdamW(blocks.parameters())
for _ in range(2):
    x = torch.randn(8192, 512, device="cuda")
    for block in blocks:
        x = x + (checkpoint(block, x, use_reentrant=False) if "-c" in sys.argv else block(x))
    x.square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""


def planned(ended: subprocess.CompletedProcess[str]) -> str:
    """A script runs in a fork of the command, which is not to have started CUDA: this process may
    have.
    """
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_the_command_compares_with_checkpointing(coop_command: Coop, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    script, trace = tmp_path / "train.py", tmp_path / "checkpointed.jsonl.gz"
    script.write_text(CHECKPOINTED)
    common = ("plan", "--policies", "coop", "--budgets", "4GiB")
    out = planned(coop_command(*common, "--json", "--save-trace", str(trace), str(script), "-c"))
    checkpointed = json.loads(out)
    arguments = ("--checkpoint", str(trace), "--picture", str(tmp_path / "p.png"), str(script))
    out = planned(coop_command(*common, "--json", *arguments))
    plain = json.loads(out)
    assert plain["trace"] == str(script)
    assert plain["checkpointed"] == {
        "peak_bytes": checkpointed["peak_bytes"],
        "step_ns": checkpointed["step_ns"],
    }
    # Every block's forward runs twice, and only what is between blocks is kept.
    assert 1.1 < checkpointed["step_ns"] / plain["step_ns"] < 1.4
    assert checkpointed["peak_bytes"] < 0.8 * plain["peak_bytes"]
    out = planned(coop_command(*common, *arguments))
    extra = checkpointed["step_ns"] / plain["step_ns"] - 1
    (line,) = [line for line in out.splitlines() if line.startswith("torch.utils.checkpoint: ")]
    assert line.endswith(f"(+{extra:.1%})")


def test_the_command_prints_a_table_and_a_sentence(in_process: InProcess) -> None:
    code, out, err = in_process(
        "plan", "--device", "a100-40", "--budgets", "8GiB,1MiB", str(RESNET)
    )
    assert (code, err) == (0, "")
    assert "smallest" in out
    assert "8.00 GiB" in out
    assert out.splitlines()[-1].startswith("nothing is evicted from ")


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


LINEAR = """\
import sys, torch
model = torch.nn.Linear(4096, 4096)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(int(sys.argv[1]), 4096)).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    print('loss', loss.item())
"""


def test_the_command_plans_a_script(coop_command: Coop, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LINEAR)
    ended = coop_command("plan", "--policies", "coop", "--json", str(script), "4096")
    assert (ended.returncode, ended.stderr) == (
        0,
        f"loss 1.0\ncoop plan: {script} was ended after 2 steps of its optimizer "
        "(--steps says how many)\n",
    )
    assert json.loads(ended.stdout)["num_steps"] == 2
    out = planned(coop_command("plan", "--policies", "coop", str(script), "64"))
    assert out.splitlines()[0].split(" on ")[0] == str(script)


@pytest.mark.slow
def test_the_command_finds_a_batch_size_for_a_script(coop_command: Coop, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LINEAR)
    out = planned(coop_command("plan", "--batch-for", "1GiB", "--json", str(script), "{batch}"))
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
        (["--device", "h300", str(RESNET)], "unknown device 'h300': choose cpu, b200"),
        (["--policies", "lru", str(RESNET)], "argument --policies: 'lru' is not a policy"),
        (["--batch-for", "1GiB", "x.py"], "--batch-for needs an argument of the script"),
        (["--batch-for", "1GiB", "--budgets", "1GiB", "x.py", "{batch}"], "--batch-for has no use"),
        (["--save-trace", "t.jsonl", str(RESNET)], "--save-trace is for a script"),
        (["--checkpoint", "nowhere.jsonl", str(RESNET)], "nowhere.jsonl: cannot be read"),
        (["--steps", "-1", "x.py"], "argument --steps: '-1' is not a number of steps"),
        (["-m", "no.such"], "there is no module named 'no.such'"),
        (["--budgets", "2GiB,some", str(RESNET)], "argument --budgets: 'some' is not a size"),
    ],
)
def test_wrong_input_is_told_in_one_line(
    in_process: InProcess,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = in_process("plan", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"coop plan: {message}")
    assert err.count("\n") == 1
