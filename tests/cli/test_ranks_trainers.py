"""Two ranks of what people train with: the same losses in a budget that evicts."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import environment

from .test_ranks import launch, needs_gloo

pytestmark = [needs_gloo, pytest.mark.slow]

# Trainer shards on GPUs alone: on the CPU it makes DistributedDataParallel of that too.
TRANSFORMERS = """\
import torch, torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=4,
    num_attention_heads=4, max_position_embeddings=64, use_cache=False))
data = [{"input_ids": row, "labels": row} for row in torch.randint(64, (48, 64))]

class Printing(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print("step", total.item().hex(), flush=True)
        return loss

arguments = TrainingArguments(
    "out", use_cpu=True, max_steps=3, per_device_train_batch_size=8, report_to=[],
    save_strategy="no", logging_strategy="no", disable_tqdm=True)
Printing(model=model, args=arguments, train_dataset=data).train()
"""
LIGHTNING = """\
import sys
import lightning, torch, torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = [layer for _ in range(8) for layer in (nn.Linear(128, 128), nn.GELU())]
        self.model = nn.Sequential(*layers)

    def configure_model(self):
        if sys.argv[1] == "fsdp2":
            mesh = self.device_mesh["data_parallel"]
            for layer in self.model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)

    def training_step(self, batch, number):
        loss = self.model(batch).square().mean()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print("step", total.item().hex(), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

torch.manual_seed(1)
data = torch.utils.data.DataLoader(torch.randn(6 * 1024, 128), batch_size=1024)
sharded = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
lightning.Trainer(
    accelerator="cpu", devices=2, strategy=sharded if sys.argv[1] == "fsdp2" else "ddp",
    max_steps=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
).fit(Model(), data)
"""
PROGRAMS = {
    "transformers, ddp": ("transformers", TRANSFORMERS, (), "9MiB"),
    "lightning, ddp": ("lightning", LIGHTNING, ("ddp",), "12MiB"),
    "lightning, fsdp2": ("lightning", LIGHTNING, ("fsdp2",), "12MiB"),
}


def _steps(printed: str) -> list[str]:
    return re.findall(r"^step \S+$", printed, re.MULTILINE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trainer_prints_the_same_on_two_ranks(tmp_path: Path, name: str) -> None:
    library, program, words, budget = PROGRAMS[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    (tmp_path / "train.py").write_text(program)
    plain, _ = launch(tmp_path, "train.py", *words)
    assert len(_steps(plain)) == 3
    found, errors = launch(tmp_path, "-m", "coop", "run", "--budget", budget, "train.py", *words)
    assert _steps(found) == _steps(plain), errors
    assert re.search(r"coop: 2 ranks, [\d.]+ s, 3 steps, [1-9]\d* evictions", errors), errors


SLURMS = """\
import torch
x = torch.ones(512, 512)
for _ in range(20):
    x = (x * 1.5).tanh()
print(x.sum().item())
"""


def test_ranks_of_slurm_sum_up_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLURMS)
    common = {"SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "coop", "run", "--budget", "8MiB", "train.py"],
            cwd=tmp_path,
            env=environment(**common, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = [process.communicate(timeout=1000) for process in processes]
    assert found[0][0] == found[1][0] != ""
    printed = found[0][1] + found[1][1]
    assert len(re.findall(r"coop: 2 ranks, ", printed)) == 1, printed
