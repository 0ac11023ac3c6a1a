"""For `transformers.Trainer`: training inside a budget, by one argument.

trainer = Trainer(model, arguments, ..., callbacks=[CoopCallback("8GiB")])
trainer.train()
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from typing_extensions import Unpack

from coop.config import ConfigChanges
from coop.integrations._metrics import Metrics
from coop.integrations._own_budget import OwnBudget

__all__ = ["CoopCallback"]


class CoopCallback(TrainerCallback):  # type: ignore[misc]
    """Runs training inside a budget, and adds what that costs to every log line.

    The lines get `coop/step_seconds`, `coop/overhead`, `coop/num_evictions`... Where the program is
    in a budget already, that one is meant. On a GPU make it before `TrainingArguments`, which
    starts CUDA: its memory is given from then on.

    Args:
        budget: as for `coop.budget`; None is what `COOP_BUDGET` says, else what is free.
        device: `"cpu"` or `"cuda"`; None is the GPU if there is one.
        **changes: fields of `coop.Config`.
    """

    def __init__(
        self,
        budget: int | str | None = None,
        *,
        device: str | torch.device | None = None,
        **changes: Unpack[ConfigChanges],
    ) -> None:
        self._budget = OwnBudget(budget, device, changes)
        self._metrics = Metrics()

    def add_to(self, trainer: Any) -> None:
        """Use it in `trainer`, before its reporters (`callbacks=` would come after them)."""
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Enter the budget."""
        self._metrics.start(self._budget.enter())

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        """Add the mean of the steps since the last log."""
        metrics = self._metrics.take()
        if logs is not None:
            logs.update(metrics)
        # The trainer has put this line into the history already, as a copy.
        if state.log_history:
            state.log_history[-1].update(metrics)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Leave the budget."""
        self._metrics.stop()
        self._budget.leave(says_so=state.is_world_process_zero)
