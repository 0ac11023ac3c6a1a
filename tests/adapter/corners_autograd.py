"""Autograd's corners: graphs that are kept, differentiated again, hooked into, or recomputed."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vjp, vmap
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from . import models
from .outcome import Outcome, Registry, collect

CORNERS = Registry()


def wide(rows: int = 512, width: int = 64) -> Tensor:
    """128 KiB of random numbers."""
    return torch.randn(rows, width)


# Graphs that outlive one backward


@CORNERS
def retain_graph(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=5)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        output = model(wide())
        optimizer.zero_grad()
        for part in (output.square().mean(), output.tanh().sum(), output[:, :3].exp().mean()):
            part.backward(retain_graph=True)
            losses.append(part.detach())
        optimizer.step()
        del output, part
    return collect(losses, modules=[model])


@CORNERS
def double_backward(seed: int) -> Outcome:
    """A gradient penalty: the loss contains a gradient with respect to the input."""
    torch.manual_seed(seed)
    model = models.mlp(depth=3)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        x = wide().requires_grad_()
        optimizer.zero_grad()
        output = model(x).square().mean()
        (slope,) = torch.autograd.grad(output, x, create_graph=True)
        loss = output + (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[model])


@CORNERS
def autograd_grad(seed: int) -> Outcome:
    """Given output gradients, unused inputs, gradients of intermediate results, and batched."""
    torch.manual_seed(seed)
    model = models.mlp(depth=4)
    x, unused = wide().requires_grad_(), wide().requires_grad_()
    middle = model[:6](x)
    output = model[6:](middle)
    some = torch.autograd.grad(
        output,
        [middle, x, unused],
        torch.ones_like(output),
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    directions = torch.randn(4, *output.shape)
    batched = torch.autograd.grad(output, x, directions, is_grads_batched=True)
    return collect([], modules=[model], some=some, batched=batched)


# Hooks


@CORNERS
def hooks_on_tensors_and_modules(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=5)
    seen: list[Tensor] = []
    kept: list[Tensor] = []

    def keep_output(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        output.register_hook(lambda gradient: gradient.clamp(-1e-4, 1e-4) * 2)
        output.retain_grad()
        kept.append(output)

    def double_input(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x * 2 for x in inputs)

    def note_gradient(module: nn.Module, into: Any, out: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.append(out[0].abs().sum())
        return tuple(gradient * 0.5 for gradient in into)

    model[2].register_forward_hook(keep_output)
    model[3].register_forward_pre_hook(double_input)
    model[5].register_full_backward_hook(note_gradient)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(wide()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    gradients = [output.grad for output in kept if output.grad is not None]
    return collect(losses, modules=[model], seen=seen, gradients=gradients)


@CORNERS
def optimizer_step_inside_backward(seed: int) -> Outcome:
    """Every parameter is updated, and its gradient dropped, the moment that gradient is ready."""
    torch.manual_seed(seed)
    model = models.mlp(depth=6)
    optimizers = {p: SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    losses = []
    for _ in range(3):
        loss = model(wide()).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return collect(losses, modules=[model], optimizers=optimizers.values())


@CORNERS
def saved_tensor_hooks(seed: int) -> Outcome:
    """Saved activations are kept in half precision, packed and unpacked by Python."""
    torch.manual_seed(seed)
    model = models.mlp(depth=6)

    def pack(tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, nn.Parameter) else tensor.detach().bfloat16()

    def unpack(packed: Tensor) -> Tensor:
        return packed if isinstance(packed, nn.Parameter) else packed.float()

    losses = []
    for _ in range(2):
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = F.mse_loss(model(wide()), wide(width=16))
        loss.backward()
        losses.append(loss.detach())
    return collect(losses, modules=[model])


# Custom functions


class ScaledTanh(Function):
    """Saves its output and, against advice, keeps its input on the context as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        y = torch.tanh(x * scale)
        ctx.save_for_backward(y)
        ctx.x, ctx.scale = x.detach(), scale
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return dy * (1 - y * y) * ctx.scale + 1e-3 * ctx.x, None


class InplaceSquare(Function):
    """Writes its input and says so; saves a copy of what was there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.clone())
        ctx.mark_dirty(x)
        return x.mul_(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * dy


@CORNERS
def custom_autograd_functions(seed: int) -> Outcome:
    torch.manual_seed(seed)
    weights = [nn.Parameter(torch.randn(64, 64) / 8) for _ in range(6)]
    losses = []
    for _ in range(2):
        x = wide()
        for weight in weights:
            x = InplaceSquare.apply(ScaledTanh.apply(x @ weight, 1.5) + 0.1) - 0.5
        loss = x.square().mean()
        loss.backward()
        losses.append(loss.detach())
        with torch.no_grad():
            for weight in weights:
                weight.sub_(weight.grad)
    return collect(losses, weights=weights, gradients=[w.grad for w in weights])


# Recomputation of PyTorch's own, inside ours


def checkpointed(seed: int, *, use_reentrant: bool) -> Outcome:
    torch.manual_seed(seed)
    blocks = nn.ModuleList(models.TransformerBlock(48, 4, 0.1) for _ in range(4))
    optimizer = SGD(blocks.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        x = torch.randn(8, 32, 48).requires_grad_()
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=use_reentrant)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return collect(losses, modules=[blocks])


CORNERS.add("checkpoint_without_reentry", partial(checkpointed, use_reentrant=False))
CORNERS.add("checkpoint_with_reentry", partial(checkpointed, use_reentrant=True))


@CORNERS
def checkpoint_of_segments(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=8)
    losses = []
    for _ in range(2):
        output = checkpoint_sequential(model, 3, wide().requires_grad_(), use_reentrant=False)
        loss = output.square().mean()
        loss.backward()
        losses.append(loss.detach())
    return collect(losses, modules=[model])


# torch.func


@CORNERS
def func_grad_and_vmap_per_sample(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(width=48, depth=3)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = functional_call(model, parameters, (x,))
        return output.square().mean()

    gradients: list[Tensor] = []
    for _ in range(2):
        per_sample = vmap(grad(loss), in_dims=(None, 0))(parameters, torch.randn(32, 48))
        parameters = {n: p - 0.1 * per_sample[n].mean(dim=0) for n, p in parameters.items()}
        gradients += per_sample.values()
    return collect([], gradients=gradients, parameters=list(parameters.values()))


@CORNERS
def func_jvp_vjp_and_jacrev(seed: int) -> Outcome:
    torch.manual_seed(seed)
    weights = [torch.randn(64, 64) / 8 for _ in range(4)]

    def chain(x: Tensor) -> Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight)
        return x

    x, tangent = wide(), wide()
    output, forward = jvp(chain, (x,), (tangent,))
    _, pull = vjp(chain, x)
    (backward,) = pull(tangent)
    jacobian = jacrev(chain)(x[0])
    return collect([], output=output, forward=forward, backward=backward, jacobian=jacobian)


@CORNERS
def func_ensemble_with_random_dropout(seed: int) -> Outcome:
    torch.manual_seed(seed)
    members = [nn.Sequential(nn.Linear(48, 48), nn.Dropout(0.2), nn.ReLU()) for _ in range(4)]
    parameters, buffers = stack_module_state(members)

    def forward(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
        output: Tensor = functional_call(members[0], (parameters, buffers), (x,))
        return output

    x = torch.randn(4, 128, 48)
    for _ in range(4):
        x = x + vmap(forward, randomness="different")(parameters, buffers, x)
    loss = x.square().mean()
    loss.backward()
    return collect([loss.detach()], gradients=[p.grad for p in parameters.values()])


@CORNERS
def forward_mode_dual_numbers(seed: int) -> Outcome:
    torch.manual_seed(seed)
    model = models.mlp(depth=4)
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(wide(), wide())
        output, tangent = torch.autograd.forward_ad.unpack_dual(model(x))
        loss = output.square().mean()
        loss.backward()
    return collect([loss.detach()], modules=[model], output=output, tangent=tangent)


# Anomaly mode


@CORNERS
def anomaly_mode(seed: int) -> Outcome:
    """A NaN in backward is found where it is born; the next step trains on."""
    torch.manual_seed(seed)
    model = models.mlp(depth=4)
    optimizer = SGD(model.parameters(), lr=0.1)
    losses, found = [], 0
    for step in range(3):
        optimizer.zero_grad()
        with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the forward traceback that comes with the error
            output = model(wide())
            loss = (output * 0 if step == 1 else output.square()).sqrt().mean()
            losses.append(loss.detach())
            try:
                loss.backward()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                assert "returned nan values" in str(error)  # noqa: PT017
                found += 1
            else:
                optimizer.step()
    assert found == 1
    return collect(losses, modules=[model])
