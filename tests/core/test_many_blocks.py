"""From 512 blocks on, values join their sets soon; a search leaves runners-up (decision 0005)."""

import pytest

from tests.core.driver import Driver

pytestmark = pytest.mark.debug_build

NUM_STEPS = 1500
BYTES = 64


def test_a_long_recurrence_is_the_same_with_half_of_its_states() -> None:
    core = Driver(NUM_STEPS // 2 * BYTES)
    core.root(1, BYTES)
    state, gate = 1, NUM_STEPS + 1
    for number in range(NUM_STEPS):
        # What lies between two states is gone as soon as it was used.
        assert core.op([state], [(gate + number, BYTES)], cost=1)
        assert core.op([state, gate + number], [(number + 2, BYTES)], cost=10)
        assert core.free(gate + number)
        state = number + 2
    simulator = core.simulator
    states = range(2, NUM_STEPS + 2)
    cookies = {}
    for state in states:
        if not simulator.is_resident(state):
            continue
        cookies[state] = simulator.cookie(state)
        # What joined early is counted as well as what joins now.
        assert simulator.neighbourhood(state, False) >= simulator.neighbourhood(state, True)
    assert len(cookies) >= 512
    assert simulator.stats()["num_evictions"] == NUM_STEPS - len(cookies)
    for state in reversed(states):
        assert core.op([state])
    assert simulator.stats()["num_replays"] > NUM_STEPS - len(cookies)
    for state, cookie in cookies.items():
        assert core.materialize(state)
        assert simulator.cookie(state) == cookie
