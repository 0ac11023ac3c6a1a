"""Programs that need torch alone are the same bits in two budgets."""

from __future__ import annotations

import pytest

from tests.adapter.harness import try_budget

from .around_the_loop import AROUND_THE_LOOP
from .differentiation import DIFFERENTIATION
from .images_and_games import IMAGES_AND_GAMES
from .kinds_of_tensors import KINDS_OF_TENSORS
from .runs import ROWS, check
from .sequences import SEQUENCES

PROGRAMS = SEQUENCES | IMAGES_AND_GAMES | DIFFERENTIATION | KINDS_OF_TENSORS | AROUND_THE_LOOP
# In tests/adapter and tests/compiled there is much the same, or it is one of several of a kind.
SLOW = (
    "a_profiled_loop",
    "a_scripted_module",
    "a_traced_module",
    "fourier_layers_with_complex_weights",
    "graph_network_over_a_sparse_matrix",
    "hidden_matrices_by_muon_the_rest_by_adamw",
    "learning_to_learn",
    "selective_checkpointing",
    "sparse_embedding_gradients",
    "speech_with_the_ctc_loss",
    "style_transfer_with_lbfgs",
    "a_run_that_is_saved_and_resumed",
    "activations_saved_on_the_cpu",
    "adversarial_training_with_a_gradient_penalty",
    "an_ensemble_by_vmap",
    "an_optimizer_inside_of_the_backward_pass",
    "compiled_by_an_eager_backend",
    "data_loader_workers_and_mixed_up_images",
    "deep_q_learning_with_a_target_network",
    "gradients_per_sample",
    "hand_written_gradients",
    "language_model_with_accumulation_and_clipping",
    "message_passing_by_scatter",
    "mixed_precision_with_a_gradient_scaler",
    "moving_average_model_with_batch_norm",
    "normalized_and_orthogonal_weights",
    "packed_sequences_of_many_steps",
    "quantization_aware_training",
    "sequences_as_a_jagged_tensor",
    "policy_gradient_with_distributions",
    "predictions_collected_as_arrays",
    "truncated_backpropagation_through_time",
    "variational_autoencoder",
)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in PROGRAMS]
)
def test_a_program_is_the_same_bits_in_two_budgets(
    name: str, pytestconfig: pytest.Config, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = check(name, PROGRAMS[name])
    pytestconfig.stash[ROWS] += rows
    if name == "a_profiled_loop":
        capfd.readouterr()  # of budgets that it does not fit
        for row in rows:
            assert try_budget(PROGRAMS[name], row.budget_bytes) is not None
        # As torch prints what a profiler's callback raised, and goes on.
        assert "Exception" not in capfd.readouterr().err
