from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import coop


@pytest.fixture(autouse=True)
def compiled_afresh() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with coop.budget("1 MiB", device="cpu"):
        pass  # what is compiled from now on is seen
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)
