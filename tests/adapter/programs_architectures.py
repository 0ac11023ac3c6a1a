"""Training programs: every architecture that the engine must carry."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

from . import models
from .loops import Batch, images, rows, train
from .outcome import Outcome, Registry, collect

PROGRAMS = Registry()


@PROGRAMS
def mlp(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    return collect(train(model, optimizer, rows(3)), modules=[model])


@PROGRAMS
def cnn_with_batch_norm_and_inplace_relu(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.SmallCNN()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = train(model, optimizer, images(3))
    return collect(losses, modules=[model], optimizers=[optimizer])


@PROGRAMS
def cnn_in_channels_last(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.SmallCNN().to(memory_format=torch.channels_last)
    optimizer = SGD(model.parameters(), lr=0.1)
    batches = (
        (pixels.to(memory_format=torch.channels_last), classes) for pixels, classes in images(3)
    )
    return collect(train(model, optimizer, batches), modules=[model])


@PROGRAMS
def residual_net(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.ResidualNet()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    losses = train(model, optimizer, images(2))
    return collect(losses, modules=[model], optimizers=[optimizer])


@PROGRAMS
def transformer_with_dropout_and_sdpa(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.Transformer()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    texts = (torch.randint(128, (16, 49)) for _ in range(2))
    batches = ((text[:, :-1], text[:, 1:]) for text in texts)
    return collect(train(model, optimizer, batches), modules=[model], optimizers=[optimizer])


@PROGRAMS
def torch_transformer_encoder(seed: int) -> Outcome:
    """torch's own encoder: it packs q, k, v, and in evaluation takes its fused fast path."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 3)
    optimizer = Adam(model.parameters(), lr=1e-3)
    losses, evaluations = [], []
    for _ in range(2):
        x = torch.randn(16, 32, 48)
        model.train()
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            evaluations.append(model(x).square().mean(dim=-1))
    return collect(losses, modules=[model], evaluations=evaluations)


def sequences(steps: int, width: int) -> Iterator[Batch]:
    for _ in range(steps):
        yield torch.randn(16, 128, width), torch.randint(16, (16, 128))


@PROGRAMS
def lstm(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.SequenceModel(bidirectional=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    return collect(train(model, optimizer, sequences(3, 32)), modules=[model])


@PROGRAMS
def bidirectional_lstm(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.SequenceModel(bidirectional=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    return collect(train(model, optimizer, sequences(2, 32)), modules=[model])


@PROGRAMS
def unrolled_lstm(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.UnrolledLSTM()
    optimizer = SGD(model.parameters(), lr=0.1)
    return collect(train(model, optimizer, sequences(2, 48)), modules=[model])


@PROGRAMS
def unet_with_long_skips(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.UNet()
    optimizer = Adam(model.parameters(), lr=1e-3)
    losses = []
    for pixels, _ in images(2, count=4, side=32):
        optimizer.zero_grad()
        mask = (pixels.mean(dim=1, keepdim=True) > 0).float()
        loss = F.binary_cross_entropy_with_logits(model(pixels), mask)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer])


@PROGRAMS
def tree_lstm_over_random_trees(seed: int) -> Outcome:
    torch.manual_seed(seed)
    chooser = random.Random(seed)
    model = models.TreeLSTM()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        leaves = chooser.randrange(6, 12)
        tree = models.random_tree(list(range(leaves)), chooser)
        optimizer.zero_grad()
        logits = model(tree, torch.randn(leaves, 128, 48))
        loss = F.cross_entropy(logits, torch.randint(16, (128,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=[optimizer])


@PROGRAMS
def random_path_supernet(seed: int) -> Outcome:
    torch.manual_seed(seed)
    chooser = random.Random(seed)
    model = models.SuperNet()
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, targets in rows(4, count=1024):
        path = [chooser.randrange(5) for _ in range(chooser.randrange(6, 11))]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs, path), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model])


@PROGRAMS
def mixture_of_experts(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.MixtureOfExperts()
    optimizer = SGD(model.parameters(), lr=0.1)
    return collect(train(model, optimizer, rows(2, count=1024, width=48)), modules=[model])
