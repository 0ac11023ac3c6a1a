"""transformers' Trainer and Lightning's inside a budget: one argument, or one variable."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Any

import pytest
import torch

import coop
from coop.session import current_session

pytest.importorskip("transformers", reason="transformers is not installed (extra `hf`)")
pytest.importorskip("accelerate", reason="accelerate is not installed (extra `hf`)")
pytest.importorskip("lightning", reason="lightning is not installed (extra `lightning`)")

from coop.integrations import hf as coop_hf
from coop.integrations import lightning as coop_lightning

ROOT = Path(__file__).resolve().parents[2]


class Network(torch.nn.Module):
    """As the Trainer wants it: the loss first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [each for _ in range(8) for each in (torch.nn.Linear(128, 128), torch.nn.GELU())]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Some number."""
        return {"loss": self.layers(x).square().mean()}


def train_by_transformers(folder: Path, *callbacks: Any) -> list[dict[str, float]]:
    """The log of a training of six steps."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=512, max_steps=6, logging_steps=2, use_cpu=True,
        save_strategy="no", report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    data = [{"x": row} for row in torch.randn(3072, 128, generator=generator)]
    trainer = Trainer(Network(), arguments, train_dataset=data, callbacks=list(callbacks))
    trainer.train()
    return [line for line in trainer.state.log_history if "loss" in line]


def test_one_argument_is_all_that_transformers_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = train_by_transformers(tmp_path)
    tight = train_by_transformers(tmp_path, coop_hf.CoopCallback("3MiB", device="cpu"))
    assert current_session() is None
    assert [line["loss"] for line in tight] == [line["loss"] for line in plain]
    assert all(line["coop/num_evictions"] > 0 for line in tight)
    err = capsys.readouterr().err
    assert "coop: got     3.00 MiB on the CPU" in err
    assert "no budget given" not in err


def test_in_a_budget_the_callback_means_that_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = coop_hf.CoopCallback("3MiB", device="cpu")
    with coop.budget("1GiB", device="cpu") as session:
        lines = train_by_transformers(tmp_path, callback)
        assert current_session() is session
    assert all(line["coop/num_evictions"] == 0 for line in lines)
    assert "coop:" not in capsys.readouterr().err


# A program that knows nothing of coop.
PROGRAM = """
import sys
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        layers = [each for _ in range(8) for each in (torch.nn.Linear(128, 128), torch.nn.GELU())]
        self.layers = torch.nn.Sequential(*layers)
    def training_step(self, batch, index):
        loss = self.layers(batch[0]).square().mean()
        self.log("loss", loss)
        if index == FAILS_AT:
            raise ValueError("of the program")
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

def train(*callbacks):
    torch.manual_seed(0)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False, callbacks=list(callbacks),
    )
    data = TensorDataset(torch.randn(2048, 128, generator=torch.Generator().manual_seed(0)))
    trainer.fit(Model(), DataLoader(data, batch_size=512))
    return trainer.callback_metrics
"""


def lightning_program(fails_at: int = -1) -> dict[str, Any]:
    """Its names."""
    names: dict[str, Any] = {"__name__": "program", "FAILS_AT": fails_at}
    exec(compile(PROGRAM, "program.py", "exec"), names)
    return names


def test_one_argument_is_all_that_lightning_takes(capsys: pytest.CaptureFixture[str]) -> None:
    train = lightning_program()["train"]
    plain, tight = train(), train(coop_lightning.CoopCallback("3MiB", device="cpu"))
    assert current_session() is None
    assert torch.equal(plain["loss"], tight["loss"])
    assert tight["coop/num_evictions"] > 0
    assert "coop: got     3.00 MiB on the CPU" in capsys.readouterr().err


def test_after_an_error_of_the_program_the_budget_is_left() -> None:
    train = lightning_program(fails_at=2)["train"]
    with pytest.raises(ValueError, match="of the program"):
        train(coop_lightning.CoopCallback("3MiB", device="cpu"))
    assert current_session() is None


def test_the_environment_is_all_that_lightning_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the entry points of the package, as pip would install them."""
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    train = lightning_program()["train"]
    plain = train()
    file = configparser.ConfigParser()
    file.read_dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"])
    installed = tmp_path / "torch_coop-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-coop\nVersion: 0\n")
    with (installed / "entry_points.txt").open("w") as stream:
        file.write(stream)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COOP_DEVICE", "cpu")
    assert train().keys() == plain.keys()
    monkeypatch.setenv("COOP_BUDGET", "3MiB")
    tight = train()
    assert torch.equal(plain["loss"], tight["loss"])
    assert tight["coop/num_evictions"] > 0
    err = capsys.readouterr().err
    assert err.count("coop: got     3.00 MiB on the CPU") == 1
