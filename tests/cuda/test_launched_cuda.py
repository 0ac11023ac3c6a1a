"""Launched on a GPU, one rank: the examples as they are, and transformers' Trainer with FSDP2."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import environment
from tests.cuda.cuda_programs import ROOT, needs_gpu

pytestmark = needs_gpu

TRAINER = """\
import torch, torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=512, hidden_size=512, intermediate_size=1024, num_hidden_layers=6,
    num_attention_heads=8, max_position_embeddings=256, use_cache=False))
data = [{"input_ids": row, "labels": row} for row in torch.randint(512, (48, 256))]

class Printing(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        assert any(isinstance(p, DTensor) for p in self.model_wrapped.parameters())
        print("step", loss.item().hex(), flush=True)
        return loss

arguments = TrainingArguments(
    "out", max_steps=3, per_device_train_batch_size=16, report_to=[], save_strategy="no",
    logging_strategy="no", disable_tqdm=True, fsdp="full_shard auto_wrap",
    fsdp_config={"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]})
Printing(model=model, args=arguments, train_dataset=data).train()
dist.destroy_process_group()
"""


def _launch(folder: Path, *words: object) -> tuple[list[str], str]:
    """The steps it printed, and its errors."""
    one = ["torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    ran = subprocess.run(
        [sys.executable, "-m", *one, *map(str, words)],
        cwd=folder,
        env=environment(CUBLAS_WORKSPACE_CONFIG=":4096:8"),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return re.findall(r"^step .*$", ran.stdout, re.MULTILINE), ran.stderr


@pytest.mark.parametrize(("example", "budget"), [("ddp", "192MiB"), ("fsdp2_llama", "192MiB")])
def test_an_example_runs_as_it_is(tmp_path: Path, example: str, budget: str) -> None:
    script = ROOT / "examples" / f"{example}.py"
    plain, _ = _launch(tmp_path, script, "--steps", 3)
    found, errors = _launch(tmp_path, "-m", "coop", "run", "--budget", budget, script, "--steps", 3)
    assert len(found) == len(plain) == 3, errors
    assert "coop: " in errors


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_trainer_shards_as_it_does_without_a_budget(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    plain, _ = _launch(tmp_path, "train.py")
    found, errors = _launch(tmp_path, "-m", "coop", "run", "--budget", "1GiB", "train.py")
    assert found == plain
    assert len(found) == 3
    assert re.search(r"[1-9]\d* evictions", errors), errors
