"""What a trace is once it has been read, and what can be wrong with a file."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from coop._native import _C
from coop.profiles import Profile

__all__ = ["FORMAT", "VERSION", "Header", "Trace", "TraceError", "is_compressed"]

VERSION: Final = 2
FORMAT: Final = "coop-trace"


class TraceError(ValueError):
    """A trace that cannot be read; names the file and, where there is one, the line."""

    def __init__(self, path: str | Path, line: int, message: str) -> None:
        """`line` counts from 1; 0 when no line is to blame."""
        super().__init__(f"{path}:{line}: {message}" if line else f"{path}: {message}")
        self.path = str(path)
        self.line = line
        self.message = message


@dataclass(frozen=True)
class Header:
    """What is known of all entries of a trace; every field may be missing from a file."""

    comment: str = ""
    device: str = ""  # where it ran
    alignment: int = 64  # of the blocks there, in bytes
    header_bytes: int = 0  # that the engine puts before every block there
    estimated: bool = False  # recorded without the hardware: temporaries are estimates


@dataclass(frozen=True)
class Trace:
    """A checked trace."""

    path: str
    header: Header
    native: "_C.Trace"
    op_names: list[str]  # by operator number
    entry_ops: list[int]  # by entry: its operator number, -1 for other entries
    sources: dict[int, str]  # by entry: the line of the user's code, where it is known
    is_priceable: bool  # every operator says what it computes and moves: `priced` works

    @property
    def num_operators(self) -> int:
        return sum(op >= 0 for op in self.entry_ops)

    def describe(self, entry: int) -> str:
        """What entry number `entry` is, for messages."""
        op = self.entry_ops[entry]
        if op < 0:
            return "a root"
        source = self.sources.get(entry)
        return f"{self.op_names[op]} ({source})" if source else self.op_names[op]

    def priced(self, profile: Profile) -> "Trace":
        """The same trace with the costs that its operators would have on another device."""
        if not self.is_priceable:
            raise ValueError(
                f"{self.path} does not say what its operators compute and move (flops, "
                "moved_bytes), so it has no price on another device: record it with coop.record"
            )
        native = self.native.priced(_C.DeviceProfile(**asdict(profile)))
        return replace(self, native=native)

    def repeated(self, num_steps: int) -> "Trace":
        """The trace with its last step repeated until it has so many.

        A schedule is followed only after a few steps that are the same, so what a program costs in
        the long run is what its last step costs then. Needs three steps, of which the last two are
        the same; else this is the same trace.
        """
        native, origins = self.native.repeated(num_steps)
        entry_ops = [self.entry_ops[origin] for origin in origins]
        sources = {
            entry: self.sources[origin]
            for entry, origin in enumerate(origins)
            if origin in self.sources
        }
        return replace(self, native=native, entry_ops=entry_ops, sources=sources)


def is_compressed(path: str | Path) -> bool:
    """Whether a file of this name is."""
    return str(path).endswith(".gz")
