"""Programs that train through the packages of requirements-dev.txt."""

from __future__ import annotations

import logging
import tempfile
import warnings
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.adapter.outcome import Outcome, Program, Registry, collect

PACKAGES = Registry()


def quiet(program: Program) -> Program:
    """Without what these packages say about themselves."""

    @wraps(program)
    def run(seed: int) -> Outcome:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program(seed)

    return run


def llama(**options: Any) -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=101,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        **options,
    )
    return transformers.LlamaForCausalLM(config)


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Random tokens, the same for every index."""

    def __init__(self, count: int, seed: int) -> None:
        self.tokens = torch.randint(101, (count, 32), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def trainer(seed: int, model: Any, **options: Any) -> Outcome:
    """What `transformers.Trainer` does with three steps, an evaluation and a prediction."""
    import transformers

    losses: list[Tensor] = []

    class Losses(transformers.TrainerCallback):
        def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any, **_: Any) -> None:
            if "loss" in logs:
                losses.append(torch.tensor(logs["loss"], dtype=torch.float64))

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            seed=seed,
            max_steps=3,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            **options,
        )
        train, check = Sentences(48, seed), Sentences(8, seed + 1)
        run = transformers.Trainer(
            model, arguments, train_dataset=train, eval_dataset=check, callbacks=[Losses()]
        )
        run.train()
        evaluated = torch.tensor(run.evaluate()["eval_loss"], dtype=torch.float64)
        predicted = torch.from_numpy(run.predict(check).predictions)
    return collect(losses, modules=[model], evaluated=evaluated, predicted=predicted)


@PACKAGES
@quiet
def transformers_trainer(seed: int) -> Outcome:
    torch.manual_seed(seed)
    return trainer(seed, llama(), gradient_accumulation_steps=2, lr_scheduler_type="cosine")


@PACKAGES
@quiet
def transformers_trainer_with_checkpointing_in_bf16(seed: int) -> Outcome:
    torch.manual_seed(seed)
    return trainer(seed, llama(use_cache=False), bf16=True, gradient_checkpointing=True)


@PACKAGES
@quiet
def transformers_encoder_by_hand_then_generation(seed: int) -> Outcome:
    """BERT with a padding mask in an own loop, then a decoder that generates with its cache."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=101,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        num_labels=3,
    )
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 1, 3)
    losses = []
    for _ in range(2):
        tokens = torch.randint(101, (16, 32))
        mask = torch.arange(32) < torch.randint(8, 32, (16, 1))
        loss = model(tokens, attention_mask=mask.long(), labels=torch.randint(3, (16,))).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    decoder = llama().eval()
    tokens = decoder.generate(
        torch.randint(3, 101, (8, 16)), max_new_tokens=6, do_sample=True, top_k=20, pad_token_id=0
    )
    return collect(losses, modules=[model], optimizers=[optimizer], tokens=tokens)


def images(seed: int) -> DataLoader[tuple[Tensor, ...]]:
    source = torch.Generator().manual_seed(seed)
    pixels = torch.randn(48, 3, 16, 16, generator=source)
    return DataLoader(TensorDataset(pixels, torch.arange(48) % 4), batch_size=16)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(inplace=True),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.GroupNorm(3, 12),
        nn.SiLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(192, 4),
    )


@PACKAGES
@quiet
def lightning_with_torchmetrics(seed: int) -> Outcome:
    """Automatic optimization, logged metrics, a validation loop, clipping, accumulation."""
    import lightning
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

    losses: list[Tensor] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.accuracy, self.f1 = MulticlassAccuracy(4), MulticlassF1Score(4)

        def training_step(self, batch: Any, _index: int) -> Tensor:
            logits = self.network(batch[0])
            self.accuracy(logits, batch[1])
            loss = F.cross_entropy(logits, batch[1])
            self.log("loss", loss, prog_bar=True)
            self.log("accuracy", self.accuracy, on_epoch=True)
            losses.append(loss.detach())
            return loss

        def validation_step(self, batch: Any, _index: int) -> None:
            self.f1.update(self.network(batch[0]), batch[1])

        def on_validation_epoch_end(self) -> None:
            losses.append(self.f1.compute())
            self.f1.reset()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    lightning.seed_everything(seed, verbose=False)
    module = Module()
    fit = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        num_sanity_val_steps=0,
    )
    fit.fit(module, images(seed), images(seed + 1))
    return collect(losses, modules=[module], optimizers=fit.optimizers)


@PACKAGES
@quiet
def torchmetrics_alone(seed: int) -> Outcome:
    """A collection of metrics that keep states, some of them lists, over an evaluation."""
    from torchmetrics import MeanMetric, MetricCollection
    from torchmetrics.classification import (
        MulticlassAUROC,
        MulticlassCalibrationError,
        MulticlassConfusionMatrix,
    )

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
    metrics = MetricCollection(
        [MulticlassAUROC(4), MulticlassConfusionMatrix(4), MulticlassCalibrationError(4)]
    )
    mean = MeanMetric()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        rows, labels = torch.randn(1024, 64), torch.randint(4, (1024,))
        logits = model(rows)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics.update(logits.softmax(1), labels)
        mean.update(loss)
        losses.append(loss.detach())
    computed = metrics.compute()
    return collect(losses, modules=[model], mean=mean.compute(), **computed)


@PACKAGES
@quiet
def accelerate_loop(seed: int) -> Outcome:
    """`prepare`, `accumulate`, clipping through it, gathered metrics, its mixed precision."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import set_seed

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    set_seed(seed)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, optimizer, images(seed), scheduler
    )
    losses = []
    for pixels, labels in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(pixels), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather_for_metrics(loss.detach()))
    return collect(losses, modules=[accelerator.unwrap_model(model)])


@PACKAGES
@quiet
def safetensors_saved_and_loaded(seed: int) -> Outcome:
    from safetensors import safe_open
    from safetensors.torch import load_file, load_model, save_file, save_model

    def steps(model: nn.Module, count: int) -> list[Tensor]:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for pixels, labels in list(images(seed))[:count]:
            loss = F.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    torch.manual_seed(seed)
    model, other = network(), network()
    losses = steps(model, 2)
    features = [model[:6](pixels).detach() for pixels, _ in images(seed)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        save_model(model, str(path))
        load_model(other, str(path))
        losses += steps(other, 3)
        # Last: what it saves stays, since its address was taken.
        held = Path(folder, "features.safetensors")
        save_file({str(index): each for index, each in enumerate(features)}, held)
        loaded = load_file(held)
        with safe_open(held, framework="pt") as file:
            piece = file.get_slice("1")[2:5]
    return collect(losses, modules=[model, other], loaded=list(loaded.values()), piece=piece)
