"""Whatever a trace file holds, it is read or refused. `make fuzz-core` looks for more."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from .fuzz_words import KEYS, SEED
from .trace_input import read_anything

NUMBERS = st.one_of(st.integers(-2, 6), st.sampled_from([2**50, 2**53, 2**64, 10**400]))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        NUMBERS, st.none(), st.booleans(), st.floats(), st.text(max_size=3), st.sampled_from(KEYS)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=2)
    ),
    max_leaves=6,
)
ENTRIES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)


@given(content=st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    read_anything(content)
    read_anything(SEED + content)


@given(entries=st.lists(ENTRIES, max_size=4), position=st.integers(0, 13))
@settings(max_examples=150, deadline=None)
def test_any_entries_are_read_or_refused(entries: list[dict[str, Any]], position: int) -> None:
    lines = SEED.decode().splitlines()
    lines[position:position] = [json.dumps(entry) for entry in entries]
    read_anything("\n".join(lines).encode())


@given(cut=st.integers(0, len(SEED)), byte=st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_a_trace_with_one_other_byte_is_read_or_refused(cut: int, byte: int) -> None:
    read_anything(SEED[:cut] + bytes([byte]) + SEED[cut + 1 :])
    read_anything(SEED[:cut])


def test_the_trace_that_is_varied_is_one() -> None:
    assert read_anything(SEED)
