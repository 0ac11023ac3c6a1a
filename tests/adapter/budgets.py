"""How large and how slow the programs are, in plain PyTorch: `python -m tests.adapter.budgets`.

Peak is the most bytes of storages alive at once, as seen from Python, so without the temporaries
inside an operator. Left is what lives on at the end: parameters, their state and the outcome. Large
is how much of all allocated bytes came in pieces above 10 KiB, below which nothing is evicted.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .corners import CORNERS
from .identity import first_difference
from .outcome import Program
from .programs import PROGRAMS

SMALL_BYTES = 10 * 1024
MIB = 2**20


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every storage that an operator returned and that is still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = self.peak_bytes = self.all_bytes = self.large_bytes = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._track(leaf.untyped_storage())
        return result

    def _track(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()

        def died(_: Any) -> None:
            self.live_bytes -= size
            del self._seen[key]

        self._seen[key] = weakref.ref(storage, died)
        self.live_bytes += size
        self.all_bytes += size
        self.large_bytes += size if size > SMALL_BYTES else 0
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def survey(name: str, program: Program) -> str:
    """One line about one program, and a complaint where two runs differ."""
    first = program(0).cloned()
    start = time.perf_counter()
    second = program(0).cloned()
    seconds = time.perf_counter() - start
    gc.collect()
    with LiveBytes() as live:
        outcome = program(0)
        left_bytes = live.live_bytes
    del outcome
    difference = first_difference(first, second)
    return (
        f"{name:48} {1e3 * seconds:6.0f} ms  peak {live.peak_bytes / MIB:6.2f} MiB"
        f"  left {left_bytes / max(1, live.peak_bytes):4.0%}"
        f"  large {live.large_bytes / max(1, live.all_bytes):4.0%}"
        + (f"  NOT DETERMINISTIC: {difference}" if difference else "")
    )


def main() -> None:
    torch.set_num_threads(1)  # as the tests do
    wanted = sys.argv[1:]
    for name, program in {**PROGRAMS, **CORNERS}.items():
        if not wanted or name in wanted:
            print(survey(name, program), flush=True)


if __name__ == "__main__":
    main()
