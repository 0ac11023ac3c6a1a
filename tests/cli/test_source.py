"""Operators know the line of the program that asked for them, while events are recorded."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import coop
from coop.events import EventKind
from coop.recording import Recording, SourceLine
from coop.report import make_timeline


class Net(nn.Module):
    """Every line that asks for something has a mark to be found by."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.GELU())  # weights

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()  # sine
        return self.layers(x)  # layers


class Doubled(torch.autograd.Function):
    """Has a backward pass of its own."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2  # doubled

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 2  # doubled again


def step(inside: Callable[[Net, Tensor], Tensor]) -> Recording:
    """One training step; `inside` is the model's part of it."""
    with coop.budget("64MiB", events=True) as session:
        model = Net()  # made
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = inside(model, torch.ones(512, 64)).mean()  # loss
        loss.backward()  # backward
        optimizer.step()  # step
    return session.recording()


def asked(recording: Recording) -> set[tuple[str, str, bool]]:
    """Operator, the mark of the line that asked for it, and whether for its gradient."""
    found = set()
    for event in recording.events[recording.events["kind"] == EventKind.OPERATOR]:
        source = recording.sources[event["source"]]
        mark = source.text.rpartition("  # ")[2]
        found.add((recording.operator_names[event["op"]], mark, source.backward))
    return found


def test_operators_know_who_asked() -> None:
    found = asked(step(lambda model, x: Doubled.apply(model(x))))
    assert found >= {
        ("aten::sin", "sine", False),
        ("aten::addmm", "layers", False),
        ("aten::gelu", "layers", False),
        ("aten::mul.Tensor", "doubled", False),
        ("aten::mean", "loss", False),
        # A gradient belongs to the line of the forward pass, not to the call of backward().
        ("aten::div.Scalar", "loss", True),
        ("aten::mul.Tensor", "doubled again", False),
        ("aten::gelu_backward", "layers", True),
        ("aten::mm", "layers", True),
        ("aten::ones_like", "backward", False),
        # In torch all the way down: the line that called it.
        ("aten::uniform_", "weights", False),
        ("aten::add_.Tensor", "step", False),
    }
    assert not any(mark == "backward" and name == "aten::mm" for name, mark, _ in found)


def test_what_a_checkpoint_runs_again_is_the_line_that_runs() -> None:
    found = asked(step(lambda model, x: checkpoint(model, x, use_reentrant=False)))
    assert ("aten::sin", "sine", False) in found
    assert ("aten::gelu_backward", "layers", True) in found
    assert {mark for name, mark, _ in found if name == "aten::gelu"} == {"layers"}


def test_recomputed_values_and_blocks_know_it_too() -> None:
    with coop.budget("64MiB", events=True) as session:
        ones = torch.ones(512, 64)
        kept = ones.sin()
        assert coop.evict(kept)
        kept.cos()  # asks for it again
        recording = session.recording()
    (replay,) = recording.events[recording.events["kind"] == EventKind.REPLAY]
    made = recording.sources[replay["source"]]
    assert made.text == "kept = ones.sin()"
    lines, first = inspect.getsourcelines(test_recomputed_values_and_blocks_know_it_too)
    number = first + next(row for row, line in enumerate(lines) if "kept = " in line)
    function = test_recomputed_values_and_blocks_know_it_too.__name__
    assert made == SourceLine(__file__, function, number, False)
    lives = make_timeline(recording).lives
    names = [recording.operator_names[op] for op in lives.op]
    by_name = dict(zip(names, lives.source, strict=True))
    assert by_name["aten::sin"] == replay["source"]
    assert recording.sources[by_name["aten::cos"]].line == number + 2


def test_what_was_there_before_the_recording_belongs_to_no_line() -> None:
    with coop.budget("64MiB") as session:
        x = torch.ones(512, 64, requires_grad=True)
        loss = x.sin().sum()
        session.record_events()
        with torch.no_grad():
            x + 1  # makes no node of autograd's, and must not be taken for the last one's maker
        loss.backward()  # type: ignore[no-untyped-call]
        recording = session.recording()
    (expand,) = {mark for name, mark, _ in asked(recording) if name == "aten::mul.Tensor"}
    assert expand == "type: ignore[no-untyped-call]"  # the call of backward(), for want of better


def test_a_place_is_called_as_it_is_here_or_where_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/library/site", "/library"])
    places = {
        str(tmp_path / "train.py"): "train.py:3 in main",
        "/library/site/zoo/gpt.py": "zoo/gpt.py:3 in main",
        "/elsewhere/other.py": "/elsewhere/other.py:3 in main",
        "<stdin>": "<stdin>:3 in main",
    }
    for file, place in places.items():
        assert SourceLine(file, "main", 3, False).place == place
        assert SourceLine(file, "main", 3, True).place == f"{place}, backward"
