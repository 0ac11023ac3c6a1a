"""What Python and the extension both list is the same list."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import torch

import coop
from coop._native import _C
from coop.events import EVENT_DTYPE, EventKind

STUB = Path(coop.__file__).parent / "_C.pyi"


def stub_keys(name: str) -> list[str]:
    """The keys that `_C.pyi` says a dictionary of the extension has."""
    (found,) = (
        node
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return [node.target.id for node in found.body if isinstance(node, ast.AnnAssign)]  # type: ignore[union-attr]


def test_statistics() -> None:
    with coop.budget("1MiB") as session:
        keys = list(session._engine.stats())
    assert [field.name for field in dataclasses.fields(coop.Stats)] == keys
    assert stub_keys("Stats") == keys
    assert list(_C.Simulator(_C.Config(2**20)).stats()) == keys


def test_statistics_have_the_types_that_are_declared() -> None:
    with coop.budget("1MiB") as session:
        torch.ones(64, 64).sin()
    stats = session.stats()
    for field in dataclasses.fields(stats):
        assert type(getattr(stats, field.name)).__name__ == field.type, field.name


def test_what_a_shortage_knows() -> None:
    with coop.budget("1MiB") as session:
        keys = list(session._engine.shortage(2**20))
    assert stub_keys("Shortage") == keys


def test_kinds_of_events() -> None:
    assert {kind.name: kind.value for kind in EventKind} == _C.event_kinds()


def test_the_fields_of_an_event() -> None:
    assert EVENT_DTYPE.names == (
        "offset", "bytes", "clock", "amount", "value", "op", "kind", "detail", "source",
    )  # fmt: skip
    assert EVENT_DTYPE.itemsize == 48


def test_kinds_of_trace_entries_are_all_documented() -> None:
    text = (Path(__file__).parents[1] / "docs" / "trace-format.md").read_text()
    missing = [kind for kind in _C.entry_kinds() if f'"{kind.split()[-1]}"' not in text]
    assert missing == []


def test_methods_of_the_engine() -> None:
    """`_C.pyi` is what mypy believes."""
    (engine,) = (
        node
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Engine"
    )
    declared = {node.name for node in engine.body if isinstance(node, ast.FunctionDef)}
    assert declared == {name for name in vars(_C.Engine) if not name.startswith("_")}


def test_functions_of_the_extension() -> None:
    tree = ast.parse(STUB.read_text()).body
    declared = {node.name for node in tree if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    declared |= {
        node.target.id
        for node in tree
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    there = {name for name in vars(_C) if not name.startswith("_")}
    only_cuda = {"install_cuda", "cuda_engine", "cuda_engines", "cuda_memory"}
    dictionaries = {"Stats", "Shortage", "SimulationResult"}
    assert declared - dictionaries - (set() if _C.has_cuda else only_cuda) == there
