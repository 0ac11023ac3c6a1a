"""Compiled blocks on a GPU."""

from __future__ import annotations

import pytest

from tests.cuda.cuda_programs import needs_gpu, run
from tests.cuda.programs import compiled

pytestmark = needs_gpu


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_blocks_are_the_same_bits_in_less_memory(backend: str) -> None:
    roomy, needed_bytes, *_ = run(compiled.train_compiled, backend, "4GiB").split()
    (plain,) = run(compiled.train_compiled, backend).split()
    budget = str(int(needed_bytes) * 7 // 10)
    inside, _, num_evictions, num_replays = run(compiled.train_compiled, backend, budget).split()
    assert inside == roomy == plain
    assert int(num_evictions) > 0
    assert int(num_replays) > 0


def test_kinds_of_graphs_are_the_same_bits_with_everything_evicted_after_each() -> None:
    """Flex attention, a Triton kernel of the program's, generators as inputs, no CUDA graphs."""
    plain = run(compiled.train_kinds).splitlines()
    *inside, counts = run(compiled.train_kinds, "4GiB").splitlines()
    assert inside == plain
    num_evictions, num_replays = map(int, counts.split())
    assert min(num_evictions, num_replays) > 0


def test_what_autotuning_takes_is_the_budgets() -> None:
    """It times kernels on buffers of its own, one of which is as large as the GPU's caches."""
    plain, tuned, peak = map(int, run(compiled.autotune, "2GiB").split())
    assert tuned > plain + 64
    assert peak <= 2048
