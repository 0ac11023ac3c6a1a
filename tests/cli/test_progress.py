"""Per-step dictionaries, and the callbacks made of them."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from typing import Any

import pytest
import torch

import coop
from coop.progress import Step
from tests.adapter.slices import first
from tests.command_line import ROOT
from tests.report.recordings import train_a_little


def test_steps_add_up_to_the_statistics() -> None:
    steps: list[Step] = []
    with coop.budget("9MiB") as session:
        session.on_step(steps.append)
        train_a_little(3)
        stats = session.stats()
    assert [step["step"] for step in steps] == [1, 2, 3]
    for name in ("num_operators", "num_replays", "num_evictions", "evicted_bytes", "num_searches"):
        # What comes after the last step (a loss is read) is in no step.
        total = sum(step[name] for step in steps)  # type: ignore[literal-required]
        assert 0 < total <= getattr(stats, name), name
    assert all(step["step_seconds"] > 0 for step in steps)
    assert all(step["overhead"] > 1 for step in steps)
    assert steps[-1]["peak_bytes"] == stats.peak_bytes
    assert math.isclose(
        sum(step["search_seconds"] for step in steps), stats.search_ns / 1e9, rel_tol=0.01
    )


def test_a_callback_can_be_taken_back() -> None:
    steps: list[Step] = []
    with coop.budget("9MiB") as session:
        stop = session.on_step(steps.append)
        train_a_little(1)
        stop()
        train_a_little(1)
    assert len(steps) == 1


def test_the_session_is_known_inside_only() -> None:
    assert coop.current_session() is None
    with coop.budget("1MiB") as session:
        assert coop.current_session() is session
    assert coop.current_session() is None


def example(name: str) -> Any:
    """A module of examples/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hugging_face_trains_and_logs_the_same_loss_in_a_budget() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (extra `hf`)")
    pytest.importorskip("accelerate", reason="accelerate is not installed (extra `hf`)")
    module = example("hf_trainer")
    roomy, tight = (module.main(budget).state.log_history for budget in ("1GiB", "48MiB"))
    losses = [[line["loss"] for line in history if "loss" in line] for history in (roomy, tight)]
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]
    logged = [line for line in tight if "loss" in line]
    assert all(line["coop/num_evictions"] > 0 and line["coop/overhead"] > 1 for line in logged)
    assert all(line["coop/num_evictions"] == 0 for line in roomy if "loss" in line)


def test_lightning_trains_and_logs_the_same_loss_in_a_budget() -> None:
    pytest.importorskip("lightning", reason="lightning is not installed (extra `lightning`)")
    module = example("lightning_fit")
    roomy, tight = (module.main(budget).callback_metrics for budget in ("1GiB", "24MiB"))
    assert torch.equal(roomy["loss"], tight["loss"])
    assert tight["coop/num_evictions"] > 0
    assert tight["coop/overhead"] > 1
    assert roomy["coop/num_evictions"] == 0


@pytest.mark.parametrize("name", first(1, ["plain_loop", "smallest_budget"]))
def test_an_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    example(name)
    out = capsys.readouterr().out
    if name == "plain_loop":
        assert " evictions, " in out
    else:
        assert "the smallest budget: " in out
    assert name not in sys.modules


def test_the_ten_line_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text()
    code = readme.split("## Or ten lines of Python\n```python\n")[1].split("```")[0]
    assert f"```python\n{code}```\n" in (ROOT / "docs" / "getting-started.md").read_text()
    assert len([line for line in code.splitlines() if line]) <= 10
    exec(compile(code, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == [
        "needed",
        "got",
        "cost",
        "next",
        "report",
    ]
    assert re.search(r"^cost    about \d+\.\d% more compute .*, [1-9]\d* evictions of ", out, re.M)
    # "This takes 77 MiB without a budget."
    assert re.search(r"^needed  7[6-8]\.\d\d MiB ", out, re.M), out
