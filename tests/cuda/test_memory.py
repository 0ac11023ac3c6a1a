"""A GPU's memory passes the suite that all memories pass, and other streams are waited for."""

from __future__ import annotations

import torch

from coop._native import _C
from tests.cuda.cuda_programs import needs_gpu
from tests.memory_contract import BYTES, MemoryContract

pytestmark = needs_gpu


class TestCudaMemory(MemoryContract):
    device = "cuda:0"

    def make(self) -> _C.TestMemory:
        torch.cuda.init()
        return _C.TestMemory.cuda(BYTES)

    def test_what_another_stream_takes_waits_for_that_stream(self) -> None:
        memory = self.make()
        with torch.cuda.stream(torch.cuda.Stream()):
            assert not memory.on_main_stream()
            memory.allocated(1)
            torch.cuda._sleep(100_000_000)
        fence = memory.after_last_use(1)
        assert fence is not None
        assert not fence.passed(wait=False)
        assert fence.passed(wait=True)
        assert fence.passed(wait=False)
        # What is told of a storage ends with it: another one may have its number.
        assert memory.after_last_use(1) is None

    def test_a_block_waits_for_all_streams_that_use_it(self) -> None:
        memory = self.make()
        for cycles in (1, 100_000_000):
            with torch.cuda.stream(torch.cuda.Stream()):
                memory.used(1)
                memory.used(1)
                torch.cuda._sleep(cycles)
        fence = memory.after_last_use(1)
        assert fence is not None
        assert not fence.passed(wait=False)
        torch.cuda.synchronize()
        assert fence.passed(wait=False)

    def test_copies_of_another_stream_are_in_the_order_of_the_main_one(self) -> None:
        memory, content = self.filled()
        torch.cuda._sleep(10_000_000)
        memory.copy(0, 4096, 4096)
        with torch.cuda.stream(torch.cuda.Stream()):
            memory.copy(8192, 0, 4096)
        memory.write(0, content[:4096])
        assert memory.read(8192, 4096) == content[4096:8192]
