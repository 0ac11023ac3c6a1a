"""The native extension. The same nouns as csrc/, see docs/architecture.md for the glossary."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

torch_version: str

# --- csrc/torch/bind_core.cc: traces, the simulator, and what tests compare with oracles ---------

class Stats(TypedDict):
    """Not a class of the extension: the keys of the dictionaries it returns."""

    budget_bytes: int
    held_bytes: int
    peak_bytes: int
    free_bytes: int
    largest_free_bytes: int
    num_operators: int
    num_replays: int
    num_evictions: int
    evicted_bytes: int
    num_searches: int
    search_ns: int
    searched_blocks: int
    num_forced: int
    fragmentation: float
    num_copies: int
    copied_bytes: int
    num_steps: int
    compute_ns: float
    replay_ns: float
    num_records: int
    num_values: int
    num_blocks: int

class Shortage(TypedDict):
    """Not a class of the extension: what an allocation that does not fit knows (Rule 15)."""

    wanted_bytes: int
    budget_bytes: int
    held_bytes: int
    largest_window_bytes: int
    sufficient_budget_bytes: int
    root_bytes: int
    pinned_bytes: int
    locked_bytes: int
    temporary_bytes: int
    pins: list[tuple[str, int]]

class SimulationResult(TypedDict):
    """Not a class of the extension: the keys of the dictionaries it returns."""

    fitted: bool
    stats: Stats
    shortage: Shortage | None
    failed_entry: int

# offset, bytes, cost (None: a barrier), clock of the last access, held
Block = tuple[int, int, float | None, float, bool]

class Config:
    def __init__(
        self,
        budget: int,
        policy: str = "coop",
        window: bool = True,
        partition: bool = True,
        inplace: bool = True,
        alignment: int = 64,
        small_bytes: int = 10240,
    ) -> None: ...
    @property
    def budget(self) -> int: ...

class Trace:
    def __init__(self) -> None: ...
    def add_operator(
        self,
        op: int,
        cost: float,
        left: bool,
        replayable: bool,
        inputs: Sequence[int],
        outputs: Sequence[int],
        output_bytes: Sequence[int],
        writes: Sequence[int],
        overwrites: Sequence[int],
        memory: Sequence[tuple[int, int]],
        line: int,
    ) -> None: ...
    def add(self, kind: int, storage: int, num_bytes: int, line: int, /) -> None: ...
    def line(self, entry: int, /) -> int: ...
    def __len__(self) -> int: ...

def simulate(trace: Trace, config: Config) -> SimulationResult: ...

class Simulator:
    def __init__(self, config: Config, /) -> None: ...
    def apply_last(self, trace: Trace, /) -> bool: ...
    def run(self, trace: Trace, /) -> SimulationResult: ...
    def stats(self) -> Stats: ...
    def shortage(self, num_bytes: int, /) -> Shortage: ...
    def is_resident(self, storage: int, /) -> bool: ...
    def is_root(self, storage: int, /) -> bool: ...
    def offset(self, storage: int, /) -> int: ...
    def cookie(self, storage: int, /) -> int: ...
    def neighbourhood(self, storage: int, exact: bool, /) -> float: ...
    def blocks(self) -> list[Block]: ...
    def is_valid(self) -> bool: ...
    def log_events(self, on: bool, /) -> None: ...
    def events(self) -> npt.NDArray[np.uint8]: ...

class TestArena:
    def __init__(self, bytes: int, alignment: int, best_fit: bool = False) -> None: ...
    def place(self, bytes: int, left: bool) -> int | None: ...
    def free(self, offset: int, /) -> None: ...
    def set_block(self, offset: int, cost: float | None, last_access: float, /) -> None: ...
    def cheapest_window(self, num_bytes: int, clock: float, /) -> tuple[int, int, int] | None: ...
    def cheapest_block(self, count_free_neighbours: bool, clock: float, /) -> int | None: ...
    def blocks(self) -> list[Block]: ...
    def held(self) -> int: ...
    def free_bytes(self) -> int: ...
    def largest_free(self) -> int: ...
    def peak(self) -> int: ...
    def is_valid(self) -> bool: ...

# --- csrc/torch/: the engine ---------------------------------------------------------------------
