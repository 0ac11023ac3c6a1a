"""A slice of torch's operator database with everything evicted after every operator.

The whole runs by `make test-operators`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's databases import it")

from .cases import OPERATORS, Case, cases
from .verdict import judge

# Every 28th operator (every seventh, with the slow ones), and those with something special
# about them, or a kernel of their own.
SPECIAL = (
    "_native_batch_norm_legit",
    "add",
    "addmm",
    "bernoulli",
    "cat",
    "cumsum",
    "div.no_rounding_mode",
    "empty",
    "fill",
    "index_put",
    "linalg.lstsq",
    "log_softmax",
    "mean",
    "native_batch_norm",
    "native_dropout_backward",
    "native_layer_norm",
    "nn.functional.batch_norm",
    "nn.functional.conv2d",
    "nn.functional.ctc_loss",
    "nn.functional.dropout",
    "nn.functional.embedding",
    "nn.functional.gelu",
    "nn.functional.relu",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.silu",
    "normal",
    "randint_like",
    "resize_",
    "sigmoid",
    "softmax",
    "sort",
    "sparse.sampled_addmm",
    "stack",
    "tanh",
    "to_sparse",
    "zero_",
)
# Its samples take four seconds.
QUICK = {*sorted(OPERATORS)[::28], *SPECIAL} - {"sparse.sampled_addmm"}
SLICE = sorted({*sorted(OPERATORS)[::7], *(name for name in SPECIAL if name in OPERATORS)})
MODULES = (
    "nn.BatchNorm2d",
    "nn.CTCLoss",
    "nn.Conv1d",
    "nn.Embedding",
    "nn.GRUCell",
    "nn.LayerNorm",
)
MAX_CASES = 12  # of one operator


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def spread(operator: str) -> list[Case]:
    """Evenly over all of its cases."""
    all_cases = list(cases(operator, torch.float32))
    return all_cases[:: max(1, -(-len(all_cases) // MAX_CASES))]


@pytest.mark.parametrize(
    "operator",
    [
        *(
            pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
            for name in SLICE
            if OPERATORS[name].supports_dtype(torch.float32, "cpu")
        ),
        *MODULES,
    ],
)
def test_an_operator_is_the_same_bits_with_everything_evicted(operator: str) -> None:
    for case in spread(operator):
        verdict = judge(case)
        assert verdict.kind in ("same", "refused", "varies"), f"{case.name}: {verdict.detail}"
