"""What graphs read, write, save and return may leave by a copy in main memory, as any value."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import coop
from coop._native import _C
from tests.adapter.harness import assert_identical, run_plain

from .compiled_programs import EVICTING, OTHERS

ALL = {**EVICTING, **OTHERS}
# Statistics and parameters that graphs write; saved tensors, results that are views, an optimizer.
QUICK = ("batch_norm_by_block", "inputs_are_written", "views_come_out", "whole_model")


def check(name: str, backend: str, folder: Path) -> None:
    plain = run_plain(lambda seed: ALL[name](seed, backend))
    with coop.budget(
        "1GiB", device="cpu", host="512MiB", host_dir=str(folder), paranoid=True, small_bytes=0
    ) as session:
        outcome = ALL[name](0, backend)
    assert_identical(plain, outcome.cloned())
    stats = session.stats()
    assert min(stats.num_host_saves, stats.num_host_loads) > 0


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in ALL]
)
def test_compiled_programs_when_everything_leaves(name: str, tmp_path: Path) -> None:
    check(name, "aot_eager", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_programs_of_inductor_when_everything_leaves(name: str, tmp_path: Path) -> None:
    check(name, "inductor", tmp_path)


def test_a_result_that_is_expensive_comes_back_by_its_copy(tmp_path: Path) -> None:
    calls = []

    def once(args: list[Tensor]) -> list[Tensor]:
        calls.append(len(args))
        x, total = args
        x.data_ptr()  # as kernels ask; no address stays taken
        total += x
        return [x * 2, x + total]

    region = _C.Region(once, "compiled::expensive", [1], True, 1e12, 0.0)
    with coop.budget("8MiB", device="cpu", host="8MiB", host_dir=str(tmp_path)) as session:
        x, total = torch.randn(256, 64), torch.zeros(256, 64)
        doubled, summed = region.call([x, total])
        given = [x, total, doubled, summed]
        expected = [tensor.clone() for tensor in given]
        assert all(coop.evict(tensor) for tensor in given)
        assert all(torch.equal(t, e) for t, e in zip(given, expected, strict=True))
        # To draw numbers again is cheaper than to copy them.
        assert session.stats().num_host_saves == session.stats().num_host_loads == 3
        assert session.stats().num_replays == 1
    assert calls == [2]
