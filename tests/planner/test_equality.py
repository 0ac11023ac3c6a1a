"""What the simulator predicts is what the engine does, number for number."""

import pytest

from tests.adapter.slices import covering_pairs

from .equality import POLICIES, differences

# One of each kind: in-place and statistics, foreach optimizers and dropout, memory of NumPy.
SOME = ("cnn_with_batch_norm_and_inplace_relu", "adamw_foreach", "mixture_of_experts")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "policy"), covering_pairs(SOME, POLICIES, every=3))
def test_the_simulator_decides_as_the_engine_does(name: str, policy: str) -> None:
    assert differences(name, (policy,)) == []
