"""Long runs go on where they were stopped, and their shards never get into each other's way."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tests.surveys import Entry, State, parsed_shard, run_survey


def entry(name: str) -> Entry:
    return {"name": name, "kinds": {"same": 1}, "findings": []}


def names(state: State) -> list[str]:
    return sorted(each["name"] for each in state.entries())


def test_a_run_goes_on_with_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    State(path, "build", (1, 1)).add(entry("a"))
    again = State(path, "build", (1, 1))
    again.add(entry("b"))
    assert names(again) == ["a", "b"]


def test_what_another_build_has_found_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    State(path, "old", (1, 1)).add(entry("a"))
    other = State(path, "old", (1, 2))
    other.add(entry("b"))
    assert names(State(path, "new", (1, 1))) == []


def test_a_line_that_was_being_written_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    State(path, "build", (1, 1)).add(entry("a"))
    with path.open("a") as file:
        file.write(json.dumps(entry("b"))[:9])
    state = State(path, "build", (1, 1))
    assert names(state) == ["a"]
    state.add(entry("b"))
    assert names(state) == ["a", "b"]


def test_shards_write_files_of_their_own_and_are_read_together(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first, second = (State(path, "build", (number, 2)) for number in (1, 2))
    first.add(entry("a"))
    second.add(entry("b"))
    assert names(first) == names(second) == ["a", "b"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "run.1-of-2.jsonl",
        "run.2-of-2.jsonl",
    ]


def test_the_last_shard_has_all_entries(tmp_path: Path) -> None:
    # A worker that answers is any module with `answer_names`: here the names are done already.
    everything = ["a", "b", "c"]
    for number, expected in ((1, False), (2, True)):
        options = argparse.Namespace(
            names=[], shard=(number, 2), state=tmp_path / "run.jsonl", jobs=1, seconds=0
        )
        state = State(options.state, "build", options.shard)
        for name in everything[number - 1 :: 2]:
            state.add(entry(name))
        entries = run_survey("no.module", options, everything, "build")
        assert (entries is not None) == expected
    assert entries is not None
    assert [each["name"] for each in entries] == ["a", "c", "b"]


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "x/2"])
def test_a_shard_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"[12x]|literal"):
        parsed_shard(text)
    assert parsed_shard("2/2") == (2, 2)
