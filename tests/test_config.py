"""One configuration, one signature, and which device is meant where none is named."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import Any

import pytest
import torch

import coop
from coop import config as config_module
from coop.config import ConfigChanges, choose_device

FIELDS = [field.name for field in dataclasses.fields(coop.Config)]


def test_budget_and_install_take_the_same_arguments() -> None:
    budget, install = inspect.signature(coop.budget), inspect.signature(coop.install)
    assert list(budget.parameters) == ["size", "device", "config", "changes"]
    assert budget.parameters == install.parameters


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        coop.Config().policy = "dtr"  # type: ignore[misc]


def test_keyword_arguments_are_the_fields_of_the_configuration() -> None:
    assert typing.get_type_hints(ConfigChanges) == typing.get_type_hints(coop.Config)


def test_every_field_is_documented() -> None:
    text = inspect.getdoc(coop.Config) or ""
    assert [name for name in FIELDS if f"    {name}: " not in text] == []


def test_a_session_has_the_configuration_with_its_changes() -> None:
    given = coop.Config(policy="dtr", small_bytes=0)
    with coop.budget("1MiB", config=given, events=True, small_bytes=64) as session:
        assert session.config == coop.Config(policy="dtr", small_bytes=64, events=True)
        assert session.events.recording().policy == "dtr"
    assert given == coop.Config(policy="dtr", small_bytes=0)


@pytest.mark.parametrize("enter", [lambda **a: coop.budget("1MiB", **a).__enter__(), coop.install])
def test_an_unknown_argument_names_the_known_ones(enter: Any) -> None:
    arguments = {"windows": False} if enter is not coop.install else {"size": 1, "windows": False}
    with pytest.raises(TypeError) as caught:
        enter(**arguments)
    assert "has no argument 'windows'" in str(caught.value)
    assert f"(policy, window, partition, {', '.join(FIELDS[3:])})" in str(caught.value)
    assert coop.current_session() is None


def test_a_configuration_that_is_none_is_told() -> None:
    with pytest.raises(TypeError, match=r"config is a coop\.Config, not \{\}"):
        coop.budget("1MiB", config={}).__enter__()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy": "lru"}, "unknown policy 'lru'; choose coop, coop-paper, dtr or dte"),
        ({"small_bytes": -1}, "small_bytes is a number of bytes, not -1"),
        ({"quiet_after": -1}, "quiet_after is a number of steps, or 0 for never, not -1"),
    ],
)
def test_a_wrong_value_is_told_at_once(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        coop.Config(**wrong)
    assert str(caught.value) == message


def test_without_a_gpu_the_device_is_the_cpu() -> None:
    assert choose_device(None) == torch.device("cpu")
    with coop.budget("1MiB") as session:
        assert session.stats() == session.stats("cpu")


def test_with_a_gpu_it_is_the_one_of_this_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert choose_device(None) == torch.device("cuda:0")
    assert choose_device("cpu") == torch.device("cpu")
    for rank, index in (("1", 1), ("5", 0)):  # 5: this worker sees only its own
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert choose_device(None) == choose_device("cuda") == torch.device("cuda", index)
    assert choose_device("cuda:0") == torch.device("cuda:0")


def test_a_device_without_budgets_is_told() -> None:
    with pytest.raises(ValueError, match="a budget is for 'cpu' or 'cuda', not for 'meta'"):
        coop.budget("1MiB", device="meta").__enter__()


def test_install_says_that_it_is_for_gpus() -> None:
    with pytest.raises(ValueError, match=r"for GPUs, there is none here: use `with coop\.budget"):
        coop.install("1MiB")
    with pytest.raises(ValueError, match=r"for GPUs, not for 'cpu': use `with coop\.budget"):
        coop.install("1MiB", device="cpu")


@pytest.mark.parametrize(("old", "new"), [("pin", "keep"), ("unpin", "unkeep")])
def test_the_old_names_work_and_warn(old: str, new: str) -> None:
    with coop.budget("1MiB") as session:
        x = torch.arange(4096).sin()
        if old == "unpin":
            coop.keep(x)
        with pytest.warns(DeprecationWarning, match=f"coop.{old}") as caught:
            assert getattr(coop, old)(x) is x
        assert session._engine.is_kept(x) == (old == "pin")
    (warning,) = caught
    assert str(warning.message) == (
        f"coop.{old} is now called coop.{new}; the old name goes away in the next release"
    )
    assert warning.filename == __file__


def test_so_does_the_old_name_of_kept_operators() -> None:
    with coop.budget("1MiB") as session:
        torch.ones(3).data_ptr()
    with pytest.warns(DeprecationWarning, match=r"Session\.kept_operators"):
        assert session.pinned_operators() == session.kept_operators()


def test_so_do_the_old_names_of_numbers() -> None:
    with coop.budget("1MiB") as session:
        kept = coop.keep(torch.zeros(4096).sin())
        with pytest.raises(coop.OutOfBudgetError) as caught:
            torch.zeros(2**20)
        shortage = caught.value.shortage
        assert shortage["kept_bytes"] >= kept.nbytes
        for old, new in (("pins", "kept"), ("pinned_bytes", "kept_bytes")):
            with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}"):
                assert shortage[old] == shortage[new]
        with pytest.raises(KeyError, match="other"):
            shortage["other"]
        stats = session.stats()
        with pytest.warns(DeprecationWarning, match=r"Stats\.num_recipes"):
            assert stats.num_records == stats.num_recipes
