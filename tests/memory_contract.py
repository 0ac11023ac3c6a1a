"""What every device's memory must do. `make` and the attributes say which one; it is a test where
a class derives from this one (tests/adapter/test_memories.py, tests/cuda/test_memory.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from coop._native import _C

BYTES = 2**20
PAGE = 4096


class MemoryContract(ABC):
    """The suite; a memory of `BYTES` bytes."""

    device: str
    has_bytes = True
    has_outside = False

    @abstractmethod
    def make(self) -> _C.TestMemory: ...

    def filled(self) -> tuple[_C.TestMemory, bytes]:
        """A memory whose first four pages are told apart, and what is in them."""
        memory = self.make()
        content = b"".join(bytes([n]) * PAGE for n in (1, 2, 3, 4))
        memory.write(0, content)
        return memory, content

    def see(self, memory: _C.TestMemory, offset: int, expected: bytes) -> None:
        """These bytes are there, if the memory has any."""
        if self.has_bytes:
            assert memory.read(offset, len(expected)) == expected

    def test_it_is_on_its_device_and_aligned_and_has_room_for_the_budget(self) -> None:
        memory = self.make()
        assert memory.device() == self.device
        assert memory.base() % 64 == 0
        assert memory.header_bytes() % 64 == 0
        assert memory.reserved_bytes() >= BYTES + memory.header_bytes()

    def test_what_is_written_is_read_up_to_the_last_byte(self) -> None:
        memory, content = self.filled()
        memory.write(BYTES - 3, b"end")
        self.see(memory, 0, content)
        self.see(memory, BYTES - 3, b"end")

    def test_a_copy_leaves_its_source_and_its_neighbours(self) -> None:
        memory, content = self.filled()
        memory.copy(64, 2 * PAGE, 128)
        expected = content[:64] + content[2 * PAGE : 2 * PAGE + 128] + content[192:]
        self.see(memory, 0, expected)

    def test_a_copy_of_nothing_changes_nothing(self) -> None:
        memory, content = self.filled()
        memory.copy(0, PAGE, 0)
        self.see(memory, 0, content)

    def test_copies_happen_in_the_order_in_which_they_were_asked_for(self) -> None:
        memory, _ = self.filled()
        for n in range(64):
            memory.copy(0, PAGE, PAGE)
            memory.write(PAGE, bytes([n]) * PAGE)
        self.see(memory, 0, bytes([62]) * PAGE + bytes([63]) * PAGE)

    def test_what_is_discarded_leaves_its_neighbours_and_can_be_written_again(self) -> None:
        memory, content = self.filled()
        memory.discard(PAGE - 64, 2 * PAGE + 128)
        self.see(memory, 0, content[: PAGE - 64])
        self.see(memory, 3 * PAGE + 64, content[3 * PAGE + 64 :])
        memory.write(0, content)
        self.see(memory, 0, content)

    def test_memory_for_what_outlives_it_is_not_its_own(self) -> None:
        memory = self.make()
        outside = memory.outside(PAGE)
        assert (outside is not None) == self.has_outside
        if outside is not None:
            assert not memory.base() <= outside < memory.base() + memory.reserved_bytes()

    def test_what_the_main_stream_alone_has_used_waits_for_nothing(self) -> None:
        memory = self.make()
        assert memory.on_main_stream()
        memory.allocated(1)
        memory.used(1)
        assert memory.after_last_use(1) is None
        assert memory.after_last_use(2) is None
