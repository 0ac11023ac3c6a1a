"""One argument gives the GPU's memory to coop, in trainers that start CUDA themselves."""

from __future__ import annotations

import pytest

from tests.cuda.cuda_programs import needs_gpu, run
from tests.cuda.programs import integrations

pytestmark = needs_gpu
# The layers' inputs and activations take 500 MiB.
BUDGET = "448MiB"


def last(output: str) -> str:
    """Before it the trainers may say what they like."""
    return output.splitlines()[-1]


def test_transformers_trains_in_a_budget_to_the_same_losses() -> None:
    pytest.importorskip("transformers")
    plain = last(run(integrations.train_by_transformers, ""))
    assert last(run(integrations.train_by_transformers, BUDGET)) == plain


def test_lightning_trains_in_a_budget_to_the_same_loss() -> None:
    pytest.importorskip("lightning")
    plain = last(run(integrations.train_by_lightning, ""))
    assert last(run(integrations.train_by_lightning, BUDGET)) == plain
