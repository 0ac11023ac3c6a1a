"""What coop adds to the published policy can be turned off, one switch at a time."""

import pytest

from coop._native import _C
from tests.core.decisions import shipped

BUDGET_RATIO = 0.5


def replay_ns(policy: str, without: list[str]) -> float:
    trace = shipped("rnn")
    peak = _C.simulate(trace.native, _C.Config(1 << 40))["stats"]["peak_bytes"]
    config = _C.Config(int(BUDGET_RATIO * peak), policy=policy, without=without)
    result = _C.simulate(trace.native, config)
    assert result["fitted"]
    return float(result["stats"]["replay_ns"])


def test_coop_without_all_of_its_switches_is_the_published_one() -> None:
    assert replay_ns("coop", _C.policy_switches()) == replay_ns("coop-paper", [])


def test_a_switch_makes_a_difference_by_itself() -> None:
    assert replay_ns("coop", ["move_expensive"]) != replay_ns("coop", [])


def test_a_switch_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no switch 'magic'"):
        _C.Config(1 << 20, without=["magic"])


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown policy 'magic'"):
        _C.Config(1 << 20, policy="magic")
