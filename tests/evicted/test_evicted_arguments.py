"""A slice of what takes tensors, with every argument evicted first.

All of it runs by `make test-evicted-arguments`. `calls.names()` is the list of what is covered:
what is written out in `written.py`, torch's databases of operators, modules and optimizers, and
every function and method that torch lets others override.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's databases import it")

from tests.adapter.slices import quick_every

from .calls import calls, names
from .compare import FINDINGS, judge
from .written import WRITTEN

# Those of the rest that are looked at above the dispatcher.
SPECIAL = (
    "database:nn.functional.ctc_loss",
    "database:nn.functional.embedding_bag",
    "database:tensor_split",
    "module:nn.CTCLoss",
    "module:nn.LSTM",
    "optimizer:Adam",
    "optimizer:SparseAdam",
    "public:torch.Tensor.__array__",
    "public:torch.Tensor.__dlpack__",
    "public:torch.Tensor.is_pinned",
    "public:torch.Tensor.tolist",
)
SLICE = [*SPECIAL, *quick_every(4, names()[len(WRITTEN) :: 60])]


@pytest.fixture(autouse=True, scope="module")
def one_thread_and_little_garbage() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Each call is followed by a collection, which is for what the call left.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_is_the_same_with_every_argument_evicted(name: str) -> None:
    for call in calls(f"written:{name}"):
        judgement = judge(call)
        assert judgement.kind == "same", judgement
        assert judgement.num_evicted == judgement.num_arguments > 0


@pytest.mark.parametrize("name", SLICE)
def test_a_function_of_torch_never_meets_an_evicted_argument(name: str) -> None:
    for call in itertools.islice(calls(name), 40):
        judgement = judge(call)
        assert judgement.kind not in FINDINGS, (call.name, judgement)


def test_what_is_covered_is_what_there_is() -> None:
    sources = [name.partition(":")[0] for name in names()]
    assert sources.count("written") == len(WRITTEN)
    assert sources.count("database") > 500
    assert sources.count("module") > 100
    assert sources.count("optimizer") > 10
    assert sources.count("public") > 1000
