"""The arena against a list of blocks, the searches against looking at everything."""

from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coop._native import _C

pytestmark = pytest.mark.debug_build

ALIGNMENT = 64
ARENA_BYTES = 256 * ALIGNMENT


class ListArena:
    """Blocks as a plain list of [offset, bytes, held]."""

    def __init__(self, best_fit: bool) -> None:
        self.best_fit = best_fit
        self.blocks = [[0, ARENA_BYTES, False]]

    def place(self, num_bytes: int, left: bool) -> int | None:
        num_bytes = max(-(-num_bytes // ALIGNMENT), 1) * ALIGNMENT
        fits = [block for block in self.blocks if not block[2] and block[1] >= num_bytes]
        if not fits:
            return None
        if self.best_fit:
            chosen = min(fits, key=lambda block: (block[1], block[0]))
        else:
            chosen = fits[0] if left else fits[-1]
        index = self.blocks.index(chosen)
        rest = chosen[1] - num_bytes
        offset = chosen[0] if left else chosen[0] + rest
        held = [offset, num_bytes, True]
        free = [chosen[0] + num_bytes if left else chosen[0], rest, False]
        pieces = [held, free] if left else [free, held]
        self.blocks[index : index + 1] = [piece for piece in pieces if piece[1]]
        return offset

    def free(self, offset: int) -> None:
        next(block for block in self.blocks if block[0] == offset)[2] = False
        merged: list[list] = []
        for block in self.blocks:
            if merged and not merged[-1][2] and not block[2]:
                merged[-1][1] += block[1]
            else:
                merged.append(block)
        self.blocks = merged


SIZES = st.one_of(st.integers(0, 6 * ALIGNMENT), st.integers(0, 40 * ALIGNMENT))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("place"), SIZES, st.booleans()),
        st.tuples(st.just("free"), st.integers(0, 1000), st.just(False)),
    ),
    max_size=300,
)


@given(actions=ACTIONS, best_fit=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_arena_places_and_frees_as_a_list_of_blocks_does(
    actions: list[tuple[str, int, bool]], best_fit: bool
) -> None:
    arena = _C.TestArena(ARENA_BYTES, ALIGNMENT, best_fit)
    model = ListArena(best_fit)
    offsets: list[int] = []
    peak = 0
    for action, number, left in actions:
        if action == "place":
            offset = arena.place(number, left)
            assert offset == model.place(number, left)
            if offset is not None:
                offsets.append(offset)
        elif offsets:
            offset = offsets.pop(number % len(offsets))
            arena.free(offset)
            model.free(offset)
        assert [[o, b, h] for o, b, _, _, h in arena.blocks()] == model.blocks
        held = sum(block[1] for block in model.blocks if block[2])
        peak = max(peak, held)
        assert arena.is_valid()
        assert arena.held() == held
        assert arena.free_bytes() == ARENA_BYTES - held
        assert arena.peak() == peak
        free = [block[1] for block in model.blocks if not block[2]]
        assert arena.largest_free() == max(free, default=0)


def score(cost: float, last_access: float, clock: float) -> int:
    """`score` of csrc/core/policy/window.h, in the same arithmetic."""
    return int(min(cost / (clock - last_access + 1.0), 1048576.0) * 4294967296.0)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[_C.TestArena, float]:
    """An arena with holes, barriers and costs, and a clock no block was used after."""
    arena = _C.TestArena(ARENA_BYTES, ALIGNMENT)
    offsets = []
    for num_bytes in draw(st.lists(st.integers(1, 12 * ALIGNMENT), min_size=1, max_size=120)):
        offset = arena.place(num_bytes, True)
        if offset is not None:
            offsets.append(offset)
    # Few different costs, so that ties happen; large ones reach the clamp.
    costs = st.sampled_from((None, None, 0.0, 1.0, 5.0, 1000.0, 123456.0, 1e15))
    for offset in offsets:
        if draw(st.integers(0, 3)) == 0:
            arena.free(offset)
        else:
            arena.set_block(offset, draw(costs), float(draw(st.sampled_from((0, 7, 500, 999)))))
    return arena, float(draw(st.sampled_from((999, 1000, 10**6))))


def shortest_windows(
    arena: _C.TestArena, num_bytes: int, clock: float
) -> Iterator[tuple[int, int, int]]:
    """The shortest window that ends with each block.

    A block with a cost below 0 is moved, so that it is no room.
    """
    blocks = arena.blocks()
    for last in range(len(blocks)):
        room = total_score = 0
        for first in range(last, -1, -1):
            offset, block_bytes, cost, last_access, _ = blocks[first]
            if cost is None:
                break
            room += block_bytes if cost >= 0 else 0
            total_score += score(abs(cost), last_access, clock)
            if room >= num_bytes:
                yield offset, blocks[last][0] + blocks[last][1], total_score
                break


def cheapest_of_all(
    arena: _C.TestArena, num_bytes: int, clock: float
) -> tuple[int, int, int] | None:
    """The first of the cheapest ones."""
    return min(shortest_windows(arena, num_bytes, clock), key=itemgetter(2), default=None)


@given(layout=layouts(), num_bytes=st.integers(1, 300 * ALIGNMENT))
@settings(max_examples=400, deadline=None)
def test_the_window_is_the_cheapest_of_all_windows(
    layout: tuple[_C.TestArena, float], num_bytes: int
) -> None:
    arena, clock = layout
    assert arena.cheapest_window(num_bytes, clock) == cheapest_of_all(arena, num_bytes, clock)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_what_a_search_finds_besides(seed: int) -> None:
    """In a large map: windows apart from each other that cost more, the cheapest last."""
    random = Random(seed)
    arena = _C.TestArena(8000 * ALIGNMENT, ALIGNMENT)
    clock = 1000.0
    while (offset := arena.place(random.randint(1, 8) * ALIGNMENT, True)) is not None:
        if random.random() < 0.95:
            sign = random.choice((1, 1, 1, -1))  # -1: it is moved
            cost = sign * random.uniform(1e4, 1e6)
            arena.set_block(offset, cost, clock - random.choice((0, 5, 500)))
    assert len(arena.blocks()) >= 1024
    num_bytes = random.randint(1, 40) * ALIGNMENT
    found = arena.cheapest_window(num_bytes, clock)
    assert found == cheapest_of_all(arena, num_bytes, clock)
    others = arena.runners_up(num_bytes)
    assert len(others) <= 64
    if not others:
        assert found is not None
        for begin, end, cost in shortest_windows(arena, num_bytes, clock):
            assert (begin < found[1] and end > found[0]) or cost > 16 * found[2]
        return
    windows = sorted([found, *others])
    assert all(first[1] <= second[0] for first, second in pairwise(windows))
    keys = [window[2] for window in others]
    assert keys == sorted(keys, reverse=True)
    assert keys[-1] >= found[2]
    blocks = {block[0]: block for block in arena.blocks()}
    for begin, end, key in others:
        inside = [blocks[o] for o in sorted(blocks) if begin <= o < end]
        assert sum(block[1] for block in inside) == end - begin
        assert sum(block[1] for block in inside if block[2] >= 0) >= num_bytes
        total = sum(score(abs(cost), access, clock) for _, _, cost, access, _ in inside)
        assert float(total) == key
    assert arena.runners_up(num_bytes + ALIGNMENT) == []


@given(layout=layouts(), num_bytes=st.integers(1, 300 * ALIGNMENT))
@settings(max_examples=100, deadline=None)
def test_no_window_at_all_is_cheaper_than_the_one_found(
    layout: tuple[_C.TestArena, float], num_bytes: int
) -> None:
    """Also among windows that are longer than they need be."""
    arena, clock = layout
    blocks = arena.blocks()
    scores = []
    for first in range(len(blocks)):
        total_bytes = total_score = 0
        for _, block_bytes, cost, last_access, _ in blocks[first:]:
            if cost is None:
                break
            total_bytes += block_bytes
            total_score += score(cost, last_access, clock)
            if total_bytes >= num_bytes:
                scores.append(total_score)
    found = arena.cheapest_window(num_bytes, clock)
    assert (found[2] if found else None) == min(scores, default=None)


@given(layout=layouts(), count_free_neighbours=st.booleans())
@settings(max_examples=400, deadline=None)
def test_the_block_is_the_cheapest_of_all_blocks(
    layout: tuple[_C.TestArena, float], count_free_neighbours: bool
) -> None:
    """dtr, and dte with the free neighbours."""
    arena, clock = layout
    blocks = arena.blocks()
    best = None
    for index, (offset, block_bytes, cost, last_access, held) in enumerate(blocks):
        if not held or cost is None:
            continue
        neighbours = [blocks[i] for i in (index - 1, index + 1) if 0 <= i < len(blocks)]
        free = sum(block[1] for block in neighbours if not block[4])
        size = block_bytes + (free if count_free_neighbours else 0)
        h = cost / ((clock - last_access + 1.0) * float(size))
        if best is None or h < best[0]:
            best = (h, offset)
    assert arena.cheapest_block(count_free_neighbours, clock) == (best[1] if best else None)
