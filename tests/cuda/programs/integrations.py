"""Trainers of others with one argument: a network of eight layers, plain or in a budget."""

import tempfile

import torch

import coop

torch.use_deterministic_algorithms(True)
ROWS, WIDTH, STEPS = 16384, 512, 6


class Network(torch.nn.Module):
    """As transformers' Trainer wants it: the loss first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [
            each for _ in range(8) for each in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
        ]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Some number."""
        return {"loss": self.layers(x).square().mean()}


def _rows() -> torch.Tensor:
    return torch.randn(ROWS * STEPS, WIDTH, generator=torch.Generator().manual_seed(0))


def _in_use(budget: str) -> None:
    session = coop.current_session()
    assert (session is None) == (not budget)
    assert session is None or session.stats().num_evictions > 0


def train_by_transformers(budget: str) -> None:
    """Prints the losses."""
    from transformers import Trainer, TrainingArguments

    from coop.integrations.hf import CoopCallback

    callbacks = [CoopCallback(budget)] if budget else []
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=ROWS, max_steps=STEPS, logging_steps=1,
            save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        data = [{"x": row} for row in _rows()]
        trainer = Trainer(Network(), arguments, train_dataset=data, callbacks=callbacks)
        trainer.train()
    _in_use(budget)
    print([line["loss"] for line in trainer.state.log_history if "loss" in line])


def train_by_lightning(budget: str) -> None:
    """Prints the last loss."""
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader, TensorDataset

    from coop.integrations.lightning import CoopCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Network()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            loss: torch.Tensor = self.network(batch[0])["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    trainer = Trainer(
        max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False,
        callbacks=[CoopCallback(budget)] if budget else [],
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(TensorDataset(_rows()), batch_size=ROWS))
    _in_use(budget)
    print(trainer.callback_metrics["loss"].item())
