"""Networks of the transformers library, made from a configuration: nothing is downloaded.

The library is imported when a network is built, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.models.workload import Batch, Workload, adamw, checkpoint_module

# How numbers are kept: weights in bf16, or in float32 with what is computed cast to bf16, or not.
Precision = Literal["bf16", "autocast", "float32"]


@dataclass(frozen=True)
class Numbers:
    """An argument of the network: whole numbers below `below`, or normal ones."""

    shape: tuple[int, ...]
    below: int | None = None

    def sample(self, precision: Precision, generator: torch.Generator) -> Tensor:
        """The argument of one step."""
        if self.below is not None:
            return torch.randint(self.below, self.shape, generator=generator)
        numbers = torch.randn(self.shape, generator=generator)
        return numbers.bfloat16() if precision == "bf16" else numbers


Arguments = dict[str, Numbers]
Change = Callable[[nn.Module], None]


def transformer(
    name: str,
    model: str,
    arguments: Arguments,
    config: dict[str, Any],
    *,
    precision: Precision = "bf16",
    blocks: tuple[str, ...] = (),
    change: Change | None = None,
) -> Workload:
    """A network with a loss of its own: `model(**arguments).loss`.

    Checkpointed are its `blocks`, classes by name; without any, what the library checkpoints, which
    sends gradients through frozen layers. `change` may freeze parts of it, or add some.
    """
    shape = next(iter(arguments.values())).shape
    return Workload(
        name=name,
        size="paper",
        batch_size=shape[0],
        build=partial(_build, model, config, precision, change),
        sample=partial(_sample, arguments, precision),
        objective=partial(_loss, tuple(arguments), precision),
        optimize=_adamw_of_the_trained,
        enable_checkpointing=partial(_checkpoint, blocks),
    )


def tokens(batch: int, length: int, vocabulary: int) -> Arguments:
    """Of a language model that predicts its own input."""
    words = Numbers((batch, length), vocabulary)
    return {"input_ids": words, "labels": words}


def images(batch: int, side: int, num_classes: int = 1000) -> Arguments:
    """Of an image classifier."""
    return {
        "pixel_values": Numbers((batch, 3, side, side)),
        "labels": Numbers((batch,), num_classes),
    }


def _build(
    model: str, config: dict[str, Any], precision: Precision, change: Change | None
) -> nn.Module:
    import transformers

    made = getattr(transformers, model)
    # A part's configuration comes as the name of its class and what is said of it.
    said = {
        key: getattr(transformers, value[0])(**value[1]) if _is_part(value) else value
        for key, value in config.items()
    }
    # As the library does it: weights that are cast, and never written again, would need those that
    # they were cast from to come back.
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if precision == "bf16" else before)
    try:
        network: nn.Module = made(made.config_class(**said))
    finally:
        torch.set_default_dtype(before)
    if change is not None:
        change(network)
    return network


def _is_part(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict)


def _sample(arguments: Arguments, precision: Precision, generator: torch.Generator) -> Batch:
    return tuple(numbers.sample(precision, generator) for numbers in arguments.values())


def _loss(names: tuple[str, ...], precision: Precision, model: nn.Module, batch: Batch) -> Tensor:
    arguments = dict(zip(names, batch, strict=True))
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "autocast"):
        loss: Tensor = model(**arguments).loss
    return loss


def _adamw_of_the_trained(parameters: Any) -> torch.optim.Optimizer:
    return adamw(parameter for parameter in parameters if parameter.requires_grad)


def _checkpoint(blocks: tuple[str, ...], model: nn.Module) -> None:
    if not blocks:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    for module in list(model.modules()):
        if type(module).__name__ in blocks:
            checkpoint_module(module)


def freeze(*parts: str) -> Change:
    """Parameters whose names begin with one of `parts` are not trained."""

    def change(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if name.startswith(parts):
                parameter.requires_grad_(False)

    return change


class LowRank(nn.Module):
    """A frozen linear map and a trained one of low rank beside it (LoRA, Hu et al. 2021)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        options = {"bias": False, "dtype": base.weight.dtype}
        self.down = nn.Linear(base.in_features, rank, **options)
        self.up = nn.Linear(rank, base.out_features, **options)
        self.dropout = nn.Dropout(0.05)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both."""
        added: Tensor = self.base(x) + self.up(self.down(self.dropout(x))) * 2.0
        return added


def low_rank(rank: int, *names: str) -> Change:
    """Everything is frozen; linear maps that are called one of `names` get a trained one beside."""

    def change(model: nn.Module) -> None:
        model.requires_grad_(False)
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if name in names and isinstance(child, nn.Linear):
                    setattr(parent, name, LowRank(child, rank))

    return change
