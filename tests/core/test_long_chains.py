"""Chains of 100,000 recipes: no deep recursion, nothing quadratic (Rule 12)."""

import time

from coop._native import _C

NUM_RECIPES = 100_000


def test_a_chain_of_100_000_records_replays_in_room_for_a_handful_of_values() -> None:
    trace = _C.Trace()
    trace.add(1, 0, 64, 0)
    for i in range(1, NUM_RECIPES + 1):
        trace.add_operator(0, 10, True, True, [i - 1], [i], [64], [], [], [], 0)
        if i > 1:
            trace.add(2, i - 1, 0, 0)
    trace.add(5, NUM_RECIPES, 0, 0)
    trace.add(6, NUM_RECIPES, 0, 0)
    begin = time.process_time()
    result = _C.simulate(trace, _C.Config(6 * 64, small_bytes=0))
    seconds = time.process_time() - begin
    assert result["fitted"]
    assert result["stats"]["num_operators"] == NUM_RECIPES
    assert result["stats"]["num_replays"] == NUM_RECIPES
    assert result["stats"]["num_evictions"] == NUM_RECIPES - 4
    assert result["stats"]["peak_bytes"] <= 6 * 64
    assert seconds < 30  # anything quadratic takes longer


def test_100_000_evicted_storages_die_in_any_order() -> None:
    trace = _C.Trace()
    trace.add(1, 0, 64, 0)
    for i in range(1, NUM_RECIPES + 1):
        trace.add_operator(0, 10, True, True, [i - 1], [i], [64], [], [], [], 0)
    for i in range(1, NUM_RECIPES + 1):
        trace.add(2, i * 7919 % NUM_RECIPES + 1, 0, 0)
    begin = time.process_time()
    simulator = _C.Simulator(_C.Config(6 * 64, small_bytes=0))
    assert simulator.run(trace)["fitted"]
    seconds = time.process_time() - begin
    assert simulator.stats()["num_recipes"] == 0
    assert simulator.stats()["held_bytes"] == 64
    assert seconds < 30
