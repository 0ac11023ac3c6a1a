"""For `lightning.Trainer`: training inside a budget, by one argument or by the environment alone.

Trainer(callbacks=[CoopCallback("8GiB")], ...).fit(model, data)

With `COOP_BUDGET=8GiB` in the environment every Trainer has such a callback, also in a program that
knows nothing of coop: Lightning finds `from_environment` by the entry points of the package.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from typing_extensions import Unpack

from coop.config import ConfigChanges
from coop.errors import LostTensorError
from coop.integrations._metrics import Metrics
from coop.integrations._own_budget import OwnBudget
from coop.options import option
from coop.session import current_session

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:  # the package's other name
    from pytorch_lightning import Callback, LightningModule, Trainer

__all__ = ["CoopCallback", "from_environment"]


class CoopCallback(Callback):  # type: ignore[misc]
    """Runs training inside a budget, and logs what that costs after every optimizer step.

    That is `coop/step_seconds`, `coop/overhead`, `coop/num_evictions`... Where the program is in a
    budget already, that one is meant. On a GPU, its memory is given from now on.

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

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enter the budget."""
        self._metrics.start(self._budget.enter())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the mean of the steps since the last time."""
        metrics = self._metrics.take()
        if metrics:
            pl_module.log_dict(metrics)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the budget."""
        self._metrics.stop()
        self._budget.leave(says_so=trainer.is_global_zero)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The same. The error is the program's to see, not what could not be given back."""
        with contextlib.suppress(LostTensorError):
            self.teardown(trainer, pl_module, "")


def from_environment() -> list[CoopCallback]:
    """A callback if the environment gives a budget, and the program is in none yet."""
    is_wanted = bool(os.environ.get(option("budget").variable)) and current_session() is None
    return [CoopCallback()] if is_wanted else []
