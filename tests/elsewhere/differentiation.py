"""What torch offers to differentiate by: saved tensors, checkpoints, torch.func, hooks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim import SGD, Adam
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from tests.adapter.outcome import Outcome, Registry, collect

from .training import mlp, train

DIFFERENTIATION = Registry()


@DIFFERENTIATION
def activations_saved_on_the_cpu(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = mlp()

    def run(rows: Tensor) -> Tensor:
        with save_on_cpu():
            return model(rows)

    return train(model, run)


@DIFFERENTIATION
def selective_checkpointing(seed: int) -> Outcome:
    """Products are saved, everything else is computed again."""
    torch.manual_seed(seed)
    model = mlp()
    saved = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]

    def policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        must = operator in saved
        return CheckpointPolicy.MUST_SAVE if must else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)
    dropout = nn.Dropout(0.1)

    def run(rows: Tensor) -> Tensor:
        for index in range(0, 8, 4):
            part = nn.Sequential(*model[index : index + 4], dropout)
            rows = checkpoint(part, rows, use_reentrant=False, context_fn=contexts)
        return model[8](rows)

    return train(model, run)


@DIFFERENTIATION
def gradients_per_sample(seed: int) -> Outcome:
    """torch.func: a gradient for each row, clipped, with noise."""
    torch.manual_seed(seed)
    model = mlp(depth=2)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, weights, (row.unsqueeze(0),))
        return F.cross_entropy(logits, label.unsqueeze(0))

    for _ in range(2):
        rows, labels = torch.randn(24, 64), torch.randint(10, (24,))
        each = vmap(grad(loss), in_dims=(None, 0, 0))(weights, rows, labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        scales = (1.0 / norms).clamp(max=1.0)
        for name, g in each.items():
            mean = torch.einsum("n,n...->...", scales, g) / len(rows)
            weights[name] = weights[name] - 0.1 * (mean + 0.01 * torch.randn_like(mean))
    return collect(norms=norms, **weights)


@DIFFERENTIATION
def an_ensemble_by_vmap(seed: int) -> Outcome:
    torch.manual_seed(seed)
    models = [mlp(depth=2) for _ in range(4)]
    parameters, buffers = stack_module_state(models)
    optimizer = Adam(parameters.values(), lr=1e-3)
    losses = []
    for _ in range(3):
        rows, labels = torch.randn(64, 64), torch.randint(10, (64,))
        logits = vmap(partial(functional_call, models[0]), in_dims=((0, 0), None))(
            (parameters, buffers), rows
        )
        loss = F.cross_entropy(logits.flatten(0, 1), labels.repeat(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, optimizers=[optimizer], logits=logits.detach())


@DIFFERENTIATION
def learning_to_learn(seed: int) -> Outcome:
    """The outer gradient goes through the inner steps."""
    torch.manual_seed(seed)
    model = mlp(depth=2)
    optimizer = Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        outer = torch.zeros(())
        for _ in range(2):
            fast = dict(model.named_parameters())
            rows, labels = torch.randn(64, 64), torch.randint(10, (64,))
            for _ in range(2):
                inner = F.cross_entropy(functional_call(model, fast, (rows,)), labels)
                slopes = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
                fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), slopes, strict=True)}
            outer = outer + F.cross_entropy(functional_call(model, fast, (rows.flip(0),)), labels)
        optimizer.zero_grad()
        outer.backward()
        optimizer.step()
        losses.append(outer.detach())
    return collect(losses, modules=[model], optimizers=[optimizer])


@DIFFERENTIATION
def normalized_and_orthogonal_weights(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = mlp()
    parametrizations.weight_norm(model[0])
    parametrizations.spectral_norm(model[2])
    parametrizations.orthogonal(model[4])
    return train(model, model)


class Swish(torch.autograd.Function):
    """Saves its input and a result; the gradient is written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gate = torch.sigmoid(x)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        x, gate = ctx.saved_tensors
        return slope * gate * (1 + x * (1 - gate))


@DIFFERENTIATION
def hand_written_gradients(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = mlp()
    return train(model, lambda rows: model[8](Swish.apply(model[2](Swish.apply(model[0](rows))))))


@DIFFERENTIATION
def an_optimizer_inside_of_the_backward_pass(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = mlp()
    each = {p: SGD([p], lr=0.05, momentum=0.9) for p in model.parameters()}

    def update(parameter: Tensor) -> None:
        each[parameter].step()  # type: ignore[index]
        each[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(model(torch.randn(256, 64)), torch.randint(10, (256,)))
        loss.backward()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=each.values())
