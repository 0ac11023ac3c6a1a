"""What a benchmark needs to know about one network at one size, and nothing about how it is run.

A workload repeats exactly. `make_model(seed)` seeds torch's generators, so weights and every
dropout that follows are fixed by that one number; `make_batch(step)` has a generator of its own, so
the data of a step does not depend on what ran before it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

Size = Literal["tiny", "paper"]
Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Workload:
    """One network at one size: how to build it, feed it, train it and cut it into blocks.

    `num_parameters` is the count the built model must have; at size `paper` it is the published
    one, or the derivation that `parameters_source` tells. At size `tiny` there is nothing to
    compare with: it is None.
    """

    name: str
    size: Size
    batch_size: int
    build: Callable[[], nn.Module]
    sample: Callable[[torch.Generator], Batch]
    objective: Callable[[nn.Module, Batch], Tensor]
    optimize: Callable[[Iterable[nn.Parameter]], Optimizer]
    block_types: tuple[type[nn.Module], ...] = ()
    # How the library that the network is from does it, where its blocks are not known here.
    enable_checkpointing: Callable[[nn.Module], None] | None = None
    num_parameters: int | None = None
    parameters_source: str = ""
    # Positions in the batch that stay on the host because Python reads them (the shape of a tree).
    host_inputs: frozenset[int] = frozenset()

    def make_model(self, seed: int = 0) -> nn.Module:
        """Seed torch and build the network in training mode, on the default device.

        The global generator stays where building left it, so the dropout of the steps repeats too.
        """
        torch.manual_seed(seed)
        return self.build().train()

    def make_batch(self, step: int, device: torch.device | str = "cpu") -> Batch:
        """The synthetic batch of a step. The same step gives the same batch on every device."""
        generator = torch.Generator(device="cpu")
        generator.manual_seed(zlib.crc32(f"{self.name}/{step}".encode()))
        # Under `with torch.device("cuda")` a factory would refuse a CPU generator.
        with torch.device("cpu"):
            tensors = self.sample(generator)
        return tuple(
            tensor if position in self.host_inputs else tensor.to(device)
            for position, tensor in enumerate(tensors)
        )

    def with_batch(self, size: int) -> Workload:
        """The same with as many samples: its own ones again and again, or the first of them."""

        def sample(generator: torch.Generator) -> Batch:
            tensors = self.sample(generator)
            assert all(tensor.shape[0] == self.batch_size for tensor in tensors), self.name
            times = -(-size // self.batch_size)
            return tuple(torch.cat([tensor] * times)[:size] for tensor in tensors)

        return replace(self, batch_size=size, sample=sample)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Forward pass and training loss, a scalar."""
        return self.objective(model, batch)

    def make_optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer this network is usually trained with."""
        return self.optimize(model.parameters())

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The modules to wrap in `torch.utils.checkpoint`, in forward order; empty if it has none.

        No block contains another, and none writes to its own input, so each can be checkpointed.
        """
        return [module for module in model.modules() if isinstance(module, self.block_types)]

    @property
    def can_checkpoint(self) -> bool:
        """Whether there is anything to wrap."""
        return bool(self.block_types) or self.enable_checkpointing is not None

    def checkpoint(self, model: nn.Module) -> None:
        """Wraps every block in `torch.utils.checkpoint`."""
        if self.enable_checkpointing is not None:
            self.enable_checkpointing(model)
        for block in self.blocks(model):
            checkpoint_module(block)


def checkpoint_module(module: nn.Module, **options: Any) -> None:
    """Wraps one module in `torch.utils.checkpoint`, with options of that."""
    forward = module.forward

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)

    module.forward = checkpointed


def count_parameters(model: nn.Module) -> int:
    """Trainable elements, each shared parameter once; works on the meta device."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def image_sampler(
    batch_size: int, height: int, width: int, num_classes: int
) -> Callable[[torch.Generator], Batch]:
    """Normal images with uniform labels."""

    def sample(generator: torch.Generator) -> Batch:
        images = torch.randn(batch_size, 3, height, width, generator=generator)
        labels = torch.randint(num_classes, (batch_size,), generator=generator)
        return images, labels

    return sample


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of `model(inputs)` against the labels, for a batch of (inputs, labels)."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """SGD with momentum, as image classifiers are trained; one state tensor per parameter."""
    # Small enough that a sweep of many steps on random labels stays finite without a warm-up.
    return SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """AdamW, as transformers are trained; two state tensors per parameter."""
    parameters = list(parameters)
    # What torch does by default on a GPU makes temporaries as large as all parameters together.
    fused = all(parameter.is_cuda for parameter in parameters)
    return AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=fused)
