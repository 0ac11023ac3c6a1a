"""Programs that train through other people's packages are the same bits in two budgets."""

from __future__ import annotations

import pytest

from .packages import PACKAGES
from .runs import ROWS, check

# Trainer and Lightning are in tests/cli/test_progress.py too.
SLOW = (
    "lightning_with_torchmetrics",
    "transformers_trainer",
    "transformers_trainer_with_checkpointing_in_bf16",
    "torchmetrics_alone",
    "safetensors_saved_and_loaded",
    "transformers_encoder_by_hand_then_generation",
)
NEEDS = ("accelerate", "lightning", "safetensors", "torchmetrics", "transformers")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in PACKAGES]
)
def test_a_program_is_the_same_bits_in_two_budgets(name: str, pytestconfig: pytest.Config) -> None:
    for package in NEEDS:
        if package in name:
            pytest.importorskip(package)
    pytestconfig.stash[ROWS] += check(name, PACKAGES[name])
