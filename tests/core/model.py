"""A slow, obvious model of what the simulator's storages hold.

It knows nothing of memory: only which storages live, and what content each must have. Contents are
the same 64-bit cookies that csrc/core/simulate/recipes.h computes, reimplemented here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

_MASK = 2**64 - 1


def mix(hash_: int, word: int) -> int:
    """`mix` of csrc/core/simulate/recipes.h."""
    hash_ ^= (word + 0x9E3779B97F4A7C15 + (hash_ << 6) + (hash_ >> 2)) & _MASK
    hash_ = hash_ * 0xFF51AFD7ED558CCD & _MASK
    return hash_ ^ (hash_ >> 33)


@dataclass
class Live:
    """A storage that lives."""

    bytes: int
    cookie: int
    keeps: int = 0


@dataclass
class Model:
    """What must be true of the storages."""

    storages: dict[int, Live] = field(default_factory=dict)
    # Executions are numbered. One that fails may or may not have used up its number.
    num_executed: set[int] = field(default_factory=lambda: {0})

    def failed(self) -> None:
        self.num_executed |= {number + 1 for number in self.num_executed}

    def _next_number(self, contents: dict[int, int]) -> int:
        """Picks, among the possible numbers, the one that explains the content that was seen."""
        (number,) = (n for n, seen in contents.items() if seen)
        self.num_executed = {number}
        return number

    def root(self, storage: int, num_bytes: int, seen: int) -> None:
        """A root was made; `seen` is its content."""
        numbers = {n + 1: mix(1, n + 1) == seen for n in self.num_executed}
        self.storages[storage] = Live(num_bytes, mix(1, self._next_number(numbers)))

    def operator(
        self,
        read: Sequence[int],
        outputs: Sequence[tuple[int, int]],
        written: Sequence[int],
        seen: Sequence[int],
    ) -> None:
        """An operator ran. `seen` are the contents of what it made and wrote, in this order."""

        def results(number: int) -> list[int]:
            hash_ = mix(0, number)
            for storage in read:
                hash_ = mix(hash_, self.storages[storage].cookie)
            return [mix(hash_, index + 1) for index in range(len(outputs) + len(written))]

        if not outputs and not written:
            # Nothing to see: it certainly used up one number.
            self.num_executed = {number + 1 for number in self.num_executed}
            return
        numbers = {n + 1: results(n + 1) == list(seen) for n in self.num_executed}
        cookies = results(self._next_number(numbers))
        for (storage, num_bytes), cookie in zip(outputs, cookies, strict=False):
            self.storages[storage] = Live(num_bytes, cookie)
        for storage, cookie in zip(written, cookies[len(outputs) :], strict=True):
            self.storages[storage].cookie = cookie
