"""What a training program leaves behind, and the list of programs.

A program is an ordinary PyTorch function of a seed. It knows nothing of coop: it builds its own
model and data, so that run inside a budget all of it lives in the arena, and it returns an
`Outcome`: every tensor that must be bitwise the same with and without a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class Outcome:
    """Named tensors, in the order in which they are compared."""

    tensors: Mapping[str, Tensor]

    def cloned(self) -> Outcome:
        """The same tensors with memory of their own; call it after leaving the budget."""
        return Outcome({name: tensor.detach().clone() for name, tensor in self.tensors.items()})


Program = Callable[[int], Outcome]


class Registry(dict[str, Program]):
    """Programs by name; as a decorator it adds a function under its own name."""

    def __call__(self, program: Program) -> Program:
        self.add(program.__name__, program)
        return program

    def add(self, name: str, program: Program) -> None:
        if name in self:
            raise ValueError(f"two programs are called {name}")
        self[name] = program


def collect(
    losses: Sequence[Tensor] = (),
    *,
    modules: Iterable[nn.Module] = (),
    optimizers: Iterable[Optimizer] = (),
    **others: Tensor | Sequence[Tensor],
) -> Outcome:
    """Losses, then gradients, parameters, buffers and optimizer state, then the global generator.

    Nothing is copied: inside a budget what is collected may well be evicted when the program ends.
    """
    tensors: dict[str, Tensor] = {f"loss {step}": loss for step, loss in enumerate(losses)}
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                tensors[f"module {number} gradient {name}"] = parameter.grad
        for name, parameter in module.named_parameters():
            tensors[f"module {number} parameter {name}"] = parameter.detach()
        for name, buffer in module.named_buffers():
            tensors[f"module {number} buffer {name}"] = buffer
    for number, optimizer in enumerate(optimizers):
        for index, state in enumerate(optimizer.state.values()):
            for key, entry in state.items():
                if isinstance(entry, Tensor):
                    tensors[f"optimizer {number} parameter {index} {key}"] = entry
    for name, other in others.items():
        if isinstance(other, Tensor):
            tensors[name] = other
        else:
            tensors.update({f"{name} {index}": tensor for index, tensor in enumerate(other)})
    tensors["global generator"] = torch.get_rng_state()
    return Outcome(tensors)
