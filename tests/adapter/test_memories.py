"""Main memory, and no memory at all, pass the suite that all memories pass."""

from coop._native import _C
from tests.memory_contract import BYTES, PAGE, MemoryContract


class TestCpuMemory(MemoryContract):
    device = "cpu"
    has_outside = True

    def make(self) -> _C.TestMemory:
        return _C.TestMemory.cpu(BYTES)

    def test_pages_that_are_discarded_go_back_to_the_system(self) -> None:
        memory, _ = self.filled()
        memory.discard(64, 3 * PAGE)  # of which two pages are whole
        assert memory.read(PAGE, 2 * PAGE) == bytes(2 * PAGE)


class TestMetaMemory(MemoryContract):
    device = "meta"
    has_bytes = False

    def make(self) -> _C.TestMemory:
        return _C.TestMemory.meta(BYTES)
