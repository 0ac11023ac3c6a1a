"""For `transformers.Trainer`: every log line says what the budget cost.

with coop.budget("8GiB"):
    model = AutoModel...
    trainer = Trainer(model, ...)
    CoopCallback().add_to(trainer)
    trainer.train()
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from coop.integrations._metrics import Metrics
from coop.session import Session

__all__ = ["CoopCallback"]


class CoopCallback(TrainerCallback):  # type: ignore[misc]
    """Adds `coop/step_seconds`, `coop/overhead`, `coop/num_evictions`... to what is logged."""

    def __init__(self, session: Session | None = None) -> None:
        self._metrics = Metrics(session)

    def add_to(self, trainer: Any) -> None:
        """Use it in `trainer`, before its reporters (`callbacks=` would come after them)."""
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Listen to the budget that training runs in."""
        self._metrics.start()

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
        """Listen no more."""
        self._metrics.stop()
