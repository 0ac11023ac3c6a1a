"""A Lightning `Trainer` inside a budget; what that costs is logged with the other metrics.

pip install lightning
python examples/lightning_fit.py
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from coop.integrations.lightning import CoopCallback


class Classifier(LightningModule):
    """Some layers and a loss; nothing in it knows of coop."""

    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.GELU())]
        self.layers = nn.Sequential(*layers, nn.Linear(256, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The usual one."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(budget: str = "24MiB") -> Trainer:
    """Trains on random pictures."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(6 * 1024, 256, generator=generator)
    labels = torch.randint(10, (6 * 1024,), generator=generator)
    torch.manual_seed(0)
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[CoopCallback(budget, device="cpu")],
    )
    trainer.fit(Classifier(), DataLoader(TensorDataset(images, labels), batch_size=1024))
    return trainer


if __name__ == "__main__":
    for name, value in main().callback_metrics.items():
        print(f"{name}: {value.item():.6g}")
