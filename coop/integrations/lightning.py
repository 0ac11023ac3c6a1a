"""For `lightning.Trainer`: logs what the budget cost, with the other metrics.

with coop.budget("8GiB"):
    Trainer(callbacks=[CoopCallback()], ...).fit(model, data)
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from coop.integrations._metrics import Metrics
from coop.session import Session

__all__ = ["CoopCallback"]


class CoopCallback(Callback):  # type: ignore[misc]
    """Logs `coop/step_seconds`, `coop/overhead`, `coop/num_evictions`... after optimizer steps."""

    def __init__(self, session: Session | None = None) -> None:
        self._metrics = Metrics(session)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen to the budget that training runs in."""
        self._metrics.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the mean of the steps since the last time."""
        metrics = self._metrics.take()
        if metrics:
            pl_module.log_dict(metrics)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen no more."""
        self._metrics.stop()
