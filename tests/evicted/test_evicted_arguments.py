"""A slice of what takes tensors, with every argument evicted first.

All of it runs by `make test-evicted-arguments`. `calls.names()` is the list of what is covered:
what is written out in `written.py`, torch's operator database, and every function and method that
torch lets others override.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .calls import calls, names
from .verdict import judge
from .written import WRITTEN

# Those of the rest that are looked at above the dispatcher.
SPECIAL = (
    "database:nn.functional.ctc_loss",
    "database:nn.functional.embedding_bag",
    "database:tensor_split",
    "public:torch.Tensor.__array__",
    "public:torch.Tensor.__dlpack__",
    "public:torch.Tensor.is_pinned",
    "public:torch.Tensor.tolist",
)
SLICE = [*SPECIAL, *names()[len(WRITTEN) :: 60]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_is_the_same_with_every_argument_evicted(name: str) -> None:
    for call in calls(f"written:{name}"):
        assert judge(call) is None


@pytest.mark.parametrize("name", SLICE)
def test_a_function_of_torch_never_meets_an_evicted_argument(name: str) -> None:
    for call in calls(name):
        assert judge(call) is None, call.name


def test_what_is_covered_is_what_there_is() -> None:
    sources = [name.partition(":")[0] for name in names()]
    assert sources.count("written") == len(WRITTEN)
    assert sources.count("database") > 500
    assert sources.count("public") > 1000
