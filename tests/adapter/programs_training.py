"""Training programs: every optimizer and loop that the engine must carry."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from . import models
from .loops import images, rows, train
from .outcome import Outcome, Program, Registry, collect

PROGRAMS = Registry()


# Optimizers, each as a Python loop over parameters, as foreach operators, and fused


def optimize(make: Callable[..., Optimizer], seed: int, **options: bool) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=5)
    optimizer = make(model.parameters(), **options)
    losses = train(model, optimizer, rows(3))
    return collect(losses, modules=[model], optimizers=[optimizer])


def _optimizer_programs() -> Iterator[tuple[str, Program]]:
    makers: dict[str, Callable[..., Optimizer]] = {
        "sgd_with_momentum": partial(SGD, lr=0.1, momentum=0.9, weight_decay=1e-3),
        "adam": partial(Adam, lr=1e-3, amsgrad=True),
        "adamw": partial(AdamW, lr=1e-3, weight_decay=0.1),
    }
    for name, maker in makers.items():
        yield f"{name}_for_loop", partial(optimize, maker, foreach=False, fused=False)
        yield f"{name}_foreach", partial(optimize, maker, foreach=True)
        yield f"{name}_fused", partial(optimize, maker, fused=True)


for _name, _program in _optimizer_programs():
    PROGRAMS.add(_name, _program)


# What people do around the step


@PROGRAMS
def gradient_accumulation_over_16_micro_batches(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=6)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        for inputs, targets in rows(16, count=512):
            loss = F.cross_entropy(model(inputs), targets) / 16
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    return collect(losses, modules=[model], optimizers=[optimizer])


@PROGRAMS
def gradient_clipping(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=5)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses, norms = [], []
    for inputs, targets in rows(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        nn.utils.clip_grad_value_(model.parameters(), 0.001)
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], norms=norms)


def zero_grad(seed: int, *, set_to_none: bool) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=5)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for inputs, targets in rows(3):
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer])


PROGRAMS.add("zero_grad_to_none", partial(zero_grad, set_to_none=True))
PROGRAMS.add("zero_grad_to_zero", partial(zero_grad, set_to_none=False))


@PROGRAMS
def moving_average_of_the_weights(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.SmallCNN(depth=4)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses, evaluations = [], []
    for pixels, classes in images(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pixels), classes)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        with torch.no_grad():
            evaluations.append(F.cross_entropy(average(pixels), classes))
        losses.append(loss.detach())
    return collect(losses, modules=[model, average], evaluations=evaluations)


@PROGRAMS
def learning_rate_schedulers(seed: int) -> Outcome:
    """One sets a float, one cycles Adam's betas, one reads the loss, one a learning-rate tensor."""
    torch.manual_seed(seed)
    model = models.mlp(depth=4)
    layers = list(model.children())
    optimizers: list[Optimizer] = [
        SGD(layers[0].parameters(), lr=0.1),
        Adam(layers[3].parameters(), lr=1e-3),
        SGD(layers[6].parameters(), lr=0.1, momentum=0.9),
        AdamW(layers[9].parameters(), lr=torch.tensor(1e-3), foreach=False),
    ]
    cosine = lr_scheduler.CosineAnnealingLR(optimizers[0], T_max=4)
    cycle = lr_scheduler.OneCycleLR(optimizers[1], max_lr=1e-2, total_steps=6)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizers[2], patience=0)
    decay = lr_scheduler.ExponentialLR(optimizers[3], gamma=0.5)
    losses = []
    for inputs, targets in rows(4):
        model.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        cosine.step()
        cycle.step()
        plateau.step(loss.item())
        decay.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=optimizers)


# Precision


def autocast(seed: int, *, scaled: bool) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=6)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**40, growth_interval=2)
    losses, scales = [], []
    for step, (inputs, targets) in enumerate(rows(4)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
            if scaled and step == 1:
                loss = loss * float("inf")  # one step is skipped by the scaler
        if scaled:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(torch.tensor(scaler.get_scale()))
        else:
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], scales=scales)


PROGRAMS.add("bf16_autocast", partial(autocast, scaled=False))
PROGRAMS.add("bf16_autocast_with_scaler", partial(autocast, scaled=True))


@PROGRAMS
def bf16_autocast_cnn(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.SmallCNN(depth=4)
    optimizer = SGD(model.parameters(), lr=0.1)
    forward = torch.autocast("cpu", dtype=torch.bfloat16)(model)
    losses = train(forward, optimizer, images(2))
    return collect(losses, modules=[model])


# Copies of the model during a run


@PROGRAMS
def state_dict_saved_and_loaded_mid_run(seed: int) -> Outcome:
    """Save model and optimizer, train on, load into new ones, and train those instead."""
    torch.manual_seed(seed)
    model = models.SmallCNN(depth=5)
    optimizer = Adam(model.parameters(), lr=1e-3)
    losses = train(model, optimizer, images(2))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    losses += train(model, optimizer, images(1))
    file.seek(0)
    saved = torch.load(file)
    resumed = models.SmallCNN(depth=5)
    resumed.load_state_dict(saved["model"])
    resumed_optimizer = Adam(resumed.parameters(), lr=1e-3)
    resumed_optimizer.load_state_dict(saved["optimizer"])
    losses += train(resumed, resumed_optimizer, images(2))
    return collect(losses, modules=[model, resumed], optimizers=[optimizer, resumed_optimizer])


@PROGRAMS
def deepcopy_mid_run(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=5)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = train(model, optimizer, rows(2))
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    losses += train(model, optimizer, rows(1))
    losses += train(twin, twin_optimizer, rows(2))
    return collect(losses, modules=[model, twin], optimizers=[optimizer, twin_optimizer])


# Training and evaluation


@PROGRAMS
def training_and_evaluation_interleaved(seed: int) -> Outcome:
    """The evaluation runs between forward and backward, while activations are held."""
    torch.manual_seed(seed)
    model = models.SmallCNN(depth=4, dropout=0.2)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses, evaluations = [], []
    for pixels, classes in images(3):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pixels), classes)
        model.eval()
        with torch.no_grad():
            evaluations.append(F.cross_entropy(model(pixels), classes))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], evaluations=evaluations)


@PROGRAMS
def no_grad(seed: int) -> Outcome:
    """Kept intermediate results without a graph, and an optimizer written by hand."""
    torch.manual_seed(seed)
    model = models.mlp(depth=5)
    losses, features = [], []
    for inputs, targets in rows(2):
        model.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad
            for layer in model:
                inputs = layer(inputs)
                features.append(inputs)
        losses.append(loss.detach())
    means = [feature.mean(dim=0) for feature in features]
    return collect(losses, modules=[model], means=means)


@PROGRAMS
def inference_mode(seed: int) -> Outcome:
    """Inference tensors have no version counter; they are written in place all the same."""
    torch.manual_seed(seed)
    model = models.mlp(depth=5)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = train(model, optimizer, rows(1))
    kept: list[Tensor] = []
    with torch.inference_mode():
        x = torch.randn(2048, 64)
        for layer in model:
            x = layer(x)
            kept.append(x.mul(2.0))
            kept[-1].add_(x)
        means = [tensor.mean(dim=0) for tensor in reversed(kept)]
    losses += train(model, optimizer, rows(1))
    return collect(losses, modules=[model], means=means)
