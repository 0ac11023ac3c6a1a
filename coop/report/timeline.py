"""From the event log to what a report shows: blocks, curves, tables. Numbers only, no drawing.

A *life* is a rectangle of the picture: one value in one block, from when it came to the block until
it left, or became something else (a root). Lives at the same time never overlap in address, so the
picture of all of them is at most as large as the arena times the time.

Everything is done on whole columns: a log of two million events takes seconds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coop.events import EventKind
from coop.recording import Recording

__all__ = ["BlockClass", "End", "Lives", "Timeline", "make_timeline"]

Array = npt.NDArray[Any]

MAX_LIVES = 400_000
MAX_CURVE_POINTS = 65_536
GRAPH = "compiled::"


class BlockClass(enum.IntEnum):
    """What a block is, which is its colour."""

    ROOT = 0  # never evicted: parameters, gradients, optimizer state, inputs
    EXPENSIVE = 1  # can be recomputed, placed at the left end
    CHEAP = 2  # can be recomputed, placed at the right end
    SMALL = 3  # in the area for small values
    TEMPORARY = 4  # made and freed inside one operator


class End(enum.IntEnum):
    """How a life ended."""

    FREED = 0
    EVICTED = 1
    REWRITTEN = 2  # the block went on as another value, or as a root
    ALIVE = 3  # at the end of the log


@dataclass(frozen=True)
class Lives:
    """One column for each property, one row for each life, in the order they began."""

    begin_ns: Array  # of the clock, from the start of the log
    end_ns: Array
    offset: Array
    bytes: Array
    op: Array
    source: Array  # the line of the program that asked for the operator
    value: Array
    cost_ns: Array  # of the operator that made the value; 0 for roots
    number: Array  # of this life among those of the same value, from 1
    block_class: Array
    end: Array
    recomputed: Array  # bool: it began with a replay
    kept: Array  # bool

    def __len__(self) -> int:
        return len(self.begin_ns)

    def take(self, rows: Array) -> Lives:
        """Some of the rows."""
        return Lives(**{name: column[rows] for name, column in vars(self).items()})


@dataclass(frozen=True)
class Timeline:
    """All that a report shows."""

    lives: Lives
    num_lives: int  # also those too small to be kept in `lives`
    end_ns: int
    curve: Array  # (n, 3): time, least and most bytes held from then to the next row
    forced: Array  # (n, 2): time and free / budget at the allocations that needed an eviction
    host_held: Array  # (n, 3): as `curve`, of copies in main memory
    link: Array  # (n, 3): time, bytes out, bytes back
    steps: list[tuple[int, int]]  # time of the end, number
    by_operator: list[dict[str, Any]]
    most_recomputed: list[dict[str, Any]]
    most_copied: list[dict[str, Any]]
    kept: list[dict[str, Any]]
    graphs: list[dict[str, Any]]  # compiled ones, as rows of operators


def make_timeline(recording: Recording, max_lives: int = MAX_LIVES) -> Timeline:
    """Reads the whole log."""
    events = recording.events
    begin_ns = int(events["clock"][0]) if len(events) else 0
    end_ns = int(events["clock"][-1]) - begin_ns if len(events) else 0
    clock = events["clock"] - begin_ns
    lives = _lives(events, clock, end_ns)
    num_lives = len(lives)
    if num_lives > max_lives:
        # The smallest in the picture go: nobody sees them.
        area = lives.bytes * np.maximum(lives.end_ns - lives.begin_ns, 1).astype(np.float64)
        lives = lives.take(np.sort(np.argpartition(-area, max_lives)[:max_lives]))
    held = _held(events)
    steps = events["kind"] == EventKind.STEP
    return Timeline(
        lives=lives,
        num_lives=num_lives,
        end_ns=end_ns,
        curve=_curve(clock, held),
        forced=_forced(events, clock, held, int(recording.stats["budget_bytes"])),
        host_held=_curve(*_host_held(events, clock)),
        link=_link(events, clock),
        steps=list(zip(clock[steps].tolist(), events["value"][steps].tolist(), strict=True)),
        by_operator=_by_operator(events, recording.operator_names),
        most_recomputed=_most_recomputed(events, recording),
        most_copied=_most_copied(events, recording),
        kept=_kept_rows(events, recording),
        graphs=_graphs(events, recording),
    )


def _is_kind(events: Array, *kinds: EventKind) -> Array:
    table = np.zeros(256, dtype=bool)
    table[list(kinds)] = True
    found: Array = table[events["kind"]]
    return found


def _lives(events: Array, clock: Array, end_ns: int) -> Lives:
    kind = EventKind
    # What happens at one address, in order: each of these ends what was there, and most begin anew.
    changes = np.flatnonzero(
        _is_kind(events, kind.ALLOCATE, kind.HAND_OVER, kind.ROOT, kind.FREE, kind.EVICT)
    )
    changes = changes[np.argsort(events["offset"][changes], kind="stable")]
    offset = events["offset"][changes]
    what = events["kind"][changes]
    same_block = np.zeros(len(changes), dtype=bool)
    same_block[:-1] = (offset[1:] == offset[:-1]) & (what[1:] != kind.ALLOCATE)
    begins = (what != kind.FREE) & (what != kind.EVICT)
    recipes = _recipes(events)
    has_recipe = np.isin(events["value"][changes], recipes["value"])

    # When the operator, or the replay, that ran at the time was done.
    finishes = np.flatnonzero(_is_kind(events, kind.OPERATOR, kind.REPLAY))
    finish = np.append(finishes, len(events))[np.searchsorted(finishes, changes)]
    in_replay = np.append(events["kind"], 0)[finish] == kind.REPLAY

    # A replay computes into a new value that is handed over at its end: one life, not two.
    merges = np.zeros(len(changes), dtype=bool)
    merges[:-1] = (what[1:] == kind.HAND_OVER) & (changes[1:] < finish[:-1])
    merges &= same_block & begins & ~has_recipe
    starts = np.ones(len(changes), dtype=bool)
    starts[1:] = ~merges[:-1]
    begun_by = np.maximum.accumulate(np.where(starts, np.arange(len(changes)), 0))
    begins &= ~merges

    rows = np.flatnonzero(begins)
    first = changes[begun_by[rows]]  # the event that began it
    has_end = same_block[rows]
    following = np.minimum(rows + 1, len(changes) - 1)
    last = np.where(has_end, changes[following], len(events))
    end_kind = np.where(has_end, what[following], 255)
    finish, in_replay = finish[begun_by[rows]], in_replay[begun_by[rows]]
    inside_operator = has_end & (last < finish)

    begin = clock[first]
    end = np.where(has_end, clock[np.minimum(last, len(events) - 1)], end_ns)

    value = events["value"][changes[rows]]
    detail = _last_allocate_detail(events, changes, what)[rows]
    is_root_event = what[rows] == kind.ROOT
    is_recorded = has_recipe[rows] & ~is_root_event
    block_class = np.full(len(rows), BlockClass.ROOT, dtype=np.uint8)
    block_class[is_recorded & (detail == 0)] = BlockClass.EXPENSIVE
    block_class[is_recorded & (detail != 0)] = BlockClass.CHEAP
    temporary = inside_operator & (end_kind == kind.FREE) & ~is_recorded & ~is_root_event
    block_class[temporary] = BlockClass.TEMPORARY
    # The clock moves when an operator is done: what it freed would have no width.
    done = clock[np.minimum(finish, len(events) - 1)]
    end = np.where(temporary, np.maximum(end, done), end)
    block_class[detail == 2] = BlockClass.SMALL

    ended = np.full(len(rows), End.REWRITTEN, dtype=np.uint8)
    ended[end_kind == kind.FREE] = End.FREED
    ended[end_kind == kind.EVICT] = End.EVICTED
    ended[~has_end] = End.ALIVE

    recomputed = in_replay & (begun_by[rows] != rows)
    op, source = events["op"][first], events["source"][first]
    cost = np.zeros(len(rows))
    if len(recipes):
        recipe = recipes[np.minimum(np.searchsorted(recipes["value"], value), len(recipes) - 1)]
        cost = np.where(is_recorded, recipe["amount"], 0)
        # Of a value that became a root: what made it, not what ran then.
        made = is_root_event & has_recipe[rows]
        op = np.where(made, recipe["op"], op)
        source = np.where(made, recipe["source"], source)
    order = np.argsort(first, kind="stable")
    return Lives(
        begin_ns=begin,
        end_ns=end,
        offset=offset[rows],
        bytes=events["bytes"][changes[rows]],
        op=op,
        source=source,
        value=value,
        cost_ns=cost,
        number=_life_numbers(value, recomputed, first),
        block_class=block_class,
        end=ended,
        recomputed=recomputed,
        kept=_kept_lives(events, changes, rows),
    ).take(order)


def _recipes(events: Array) -> Array:
    """The RECIPE events, in order of their values."""
    recipes = events[events["kind"] == EventKind.RECIPE]
    in_order: Array = recipes[np.unique(recipes["value"], return_index=True)[1]]
    return in_order


def _last_allocate_detail(events: Array, changes: Array, what: Array) -> Array:
    """For every change, the detail of the allocation that made its block."""
    allocations = np.where(what == EventKind.ALLOCATE, np.arange(len(what)), -1)
    made_by = np.maximum.accumulate(allocations) if len(what) else allocations
    return np.where(made_by >= 0, events["detail"][changes[made_by]], 0)


def _life_numbers(value: Array, recomputed: Array, first: Array) -> Array:
    """How often the value had been recomputed by then, plus one."""
    order = np.lexsort((first, value))
    sorted_value = value[order]
    counts = np.cumsum(recomputed[order])
    starts = np.ones(len(value), dtype=bool)
    starts[1:] = sorted_value[1:] != sorted_value[:-1]
    before = np.where(starts, counts - recomputed[order], 0)
    base = np.maximum.accumulate(before) if len(value) else before
    numbers = np.empty(len(value), dtype=np.int64)
    numbers[order] = counts - base + 1
    return numbers


def _kept_lives(events: Array, changes: Array, rows: Array) -> Array:
    """Which lives were kept at some time."""
    kept = np.zeros(len(rows), dtype=bool)
    keeps = np.flatnonzero(events["kind"] == EventKind.KEEP)
    if len(keeps) == 0 or len(rows) == 0:
        return kept
    # Order by (offset, position in the log): the life that is kept is the last that began.
    starts = changes[rows]
    keys = np.stack([events["offset"][starts], starts])
    rank = np.lexsort((keys[1], keys[0]))
    scale = len(events) + 1
    combined = (events["offset"][starts] * scale + starts)[rank]
    found = np.searchsorted(combined, events["offset"][keeps] * scale + keeps) - 1
    found = found[found >= 0]
    kept[rank[found]] = True
    return kept


def _held(events: Array) -> Array:
    """Bytes held after each event."""
    change = np.zeros(len(events), dtype=np.int64)
    allocate = events["kind"] == EventKind.ALLOCATE
    release = _is_kind(events, EventKind.FREE, EventKind.EVICT)
    change[allocate] = events["bytes"][allocate]
    change[release] = -events["bytes"][release]
    return np.cumsum(change)


def _curve(clock: Array, held: Array) -> Array:
    if len(held) == 0:
        return np.zeros((0, 3))
    bounds = np.unique(np.linspace(0, len(held), MAX_CURVE_POINTS + 1, dtype=np.int64)[:-1])
    if len(held) <= MAX_CURVE_POINTS:
        # Only the last event of an instant is seen, but peaks between them count.
        bounds = np.flatnonzero(np.diff(clock, prepend=-1))
    least, most = np.minimum.reduceat(held, bounds), np.maximum.reduceat(held, bounds)
    return np.stack([clock[bounds], least, most], axis=1).astype(np.float64)


def _host_held(events: Array, clock: Array) -> tuple[Array, Array]:
    """Times, and bytes of copies in main memory then; a log may begin with some there."""
    marks = _is_kind(events, EventKind.SAVE, EventKind.UNSAVE)
    saved = events["kind"][marks] == EventKind.SAVE
    held = np.cumsum(np.where(saved, 1, -1) * events["bytes"][marks])
    return clock[marks], held - min(held.min(initial=0), 0)


def _link(events: Array, clock: Array) -> Array:
    """When bytes were sent, which way; those of a moment together."""
    marks = _is_kind(events, EventKind.SAVE, EventKind.LOAD)
    sent, times = events[marks], clock[marks]
    if len(sent) == 0:
        return np.zeros((0, 3))
    out = np.where(sent["kind"] == EventKind.SAVE, sent["bytes"], 0)
    bounds = np.flatnonzero(np.diff(times, prepend=-1))
    if len(bounds) > MAX_CURVE_POINTS:
        bounds = bounds[np.linspace(0, len(bounds), MAX_CURVE_POINTS, endpoint=False).astype(int)]
    both = [np.add.reduceat(each, bounds) for each in (out, sent["bytes"] - out)]
    return np.stack([times[bounds], *both], axis=1).astype(np.float64)


def _forced(events: Array, clock: Array, held: Array, budget_bytes: int) -> Array:
    """Allocations after a search; what is free then, though something had to be evicted."""
    marks = np.flatnonzero(_is_kind(events, EventKind.SEARCH, EventKind.ALLOCATE))
    kinds = events["kind"][marks]
    forced = np.zeros(len(marks), dtype=bool)
    forced[1:] = (kinds[1:] == EventKind.ALLOCATE) & (kinds[:-1] == EventKind.SEARCH)
    rows = marks[forced]
    return np.stack([clock[rows], 1 - held[rows] / budget_bytes], axis=1)


def _graphs(events: Array, recording: Recording) -> list[dict[str, Any]]:
    """Compiled graphs: each is one operator (coop/regions.py), of a line and with others inside."""
    names = recording.operator_names
    operators = events[events["kind"] == EventKind.OPERATOR]
    seen, first = np.unique(operators["op"], return_index=True)
    lines = dict(zip(seen.tolist(), operators["source"][first].tolist(), strict=True))
    graphs = [op for op in lines if _name(names, op).startswith(GRAPH)]
    lines_by_name = {_name(names, op): recording.sources[lines[op]].place for op in graphs}
    return [
        {
            **row,
            "line": lines_by_name[row["operator"]],
            "inside": recording.contents.get(row["operator"], ""),
        }
        for row in _by_operator(events, names, graphs)
    ]


def _by_operator(
    events: Array, names: list[str], ops: list[int] | None = None
) -> list[dict[str, Any]]:
    """Where the time of recomputation goes, most first; without `ops`, of all that ran again."""
    replays = events[events["kind"] == EventKind.REPLAY]
    operators = events[events["kind"] == EventKind.OPERATOR]
    rows = []
    for op in np.unique(replays["op"]).tolist() if ops is None else ops:
        again = replays["amount"][replays["op"] == op]
        asked = operators["amount"][operators["op"] == op]
        rows.append(
            {
                "operator": _name(names, op),
                "replays": len(again),
                "replay_ns": int(again.sum()),
                "runs": len(asked),
                "compute_ns": int(asked.sum()),
            }
        )
    return sorted(rows, key=lambda row: (-row["replay_ns"], row["operator"]))


def _most_recomputed(events: Array, recording: Recording, count: int = 10) -> list[dict[str, Any]]:
    replays = events[events["kind"] == EventKind.REPLAY]
    values, first, times = np.unique(replays["value"], return_index=True, return_counts=True)
    steps = np.flatnonzero(events["kind"] == EventKind.STEP)
    # By the session's count, whenever the recording began; the last one may not have ended.
    numbers = np.append(events["value"][steps], int(recording.stats["num_steps"]) + 1)
    positions = np.flatnonzero(events["kind"] == EventKind.REPLAY)
    cost = replays["amount"][first] * times
    order = np.lexsort((values, -cost, -times))[:count]
    return [
        {
            "value": int(values[i]),
            "operator": _name(recording.operator_names, int(replays["op"][first[i]])),
            "source": int(replays["source"][first[i]]),
            "bytes": int(replays["bytes"][first[i]]),
            "replays": int(times[i]),
            "replay_ns": int(cost[i]),
            "step": int(numbers[np.searchsorted(steps, positions[first[i]])]),
        }
        for i in order.tolist()
    ]


def _most_copied(events: Array, recording: Recording, count: int = 10) -> list[dict[str, Any]]:
    """The values with the most bytes over the link, and what they are."""
    sent = events[_is_kind(events, EventKind.SAVE, EventKind.LOAD)]
    values, first, of = np.unique(sent["value"], return_index=True, return_inverse=True)
    loads = np.bincount(of, weights=sent["kind"] == EventKind.LOAD, minlength=len(values))
    times = np.bincount(of, minlength=len(values))
    num_bytes = sent["bytes"][first]
    recipes = _recipes(events)
    ops = dict(zip(recipes["value"].tolist(), recipes["op"].tolist(), strict=True))
    order = np.lexsort((values, -num_bytes * times))[:count]
    return [
        {
            "value": int(values[i]),
            "operator": _name(recording.operator_names, ops[value]) if value in ops else "a root",
            "bytes": int(num_bytes[i]),
            "out": int(times[i] - loads[i]),
            "back": int(loads[i]),
        }
        for i in order.tolist()
        for value in (int(values[i]),)
    ]


def _kept_rows(events: Array, recording: Recording) -> list[dict[str, Any]]:
    """Kept bytes by reason and operator: the most at one time, and at the end of the log."""
    marks = np.flatnonzero(
        _is_kind(events, EventKind.KEEP, EventKind.UNKEEP, EventKind.FREE, EventKind.EVICT)
    )
    marks = marks[np.argsort(events["offset"][marks], kind="stable")]
    offset, is_keep = events["offset"][marks], events["kind"][marks] == EventKind.KEEP
    # A block that is kept again stays kept for its first reason.
    again = np.zeros(len(marks), dtype=bool)
    again[1:] = is_keep[1:] & is_keep[:-1] & (offset[1:] == offset[:-1])
    marks, offset, is_keep = marks[~again], offset[~again], is_keep[~again]
    begins = np.flatnonzero(is_keep)
    following = np.minimum(begins + 1, max(len(marks) - 1, 0))
    has_end = (following > begins) & (offset[following] == offset[begins]) if len(begins) else []
    ends = np.where(has_end, marks[following], len(events)) if len(begins) else begins
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for begin, end in zip(marks[begins].tolist(), np.asarray(ends).tolist(), strict=True):
        event = events[begin]
        changes = groups.setdefault((int(event["amount"]), int(event["op"])), [])
        changes += [(begin, int(event["bytes"])), (end, -int(event["bytes"]))]
    rows = []
    for (reason, op), changes in groups.items():
        held = most = 0
        for position, change in sorted(changes):
            if position < len(events):
                held += change
            most = max(most, held)
        rows.append(
            {
                "reason": recording.keep_reasons[reason],
                "operator": _name(recording.operator_names, op),
                "blocks": len(changes) // 2,
                "peak_bytes": most,
                "final_bytes": held,
            }
        )
    return sorted(rows, key=lambda row: -row["peak_bytes"])


def _name(names: list[str], op: int) -> str:
    return names[op] if 0 <= op < len(names) else "outside of operators"
