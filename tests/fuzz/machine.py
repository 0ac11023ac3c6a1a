"""Runs a random program on torch. It knows nothing of budgets, except for the calls to coop.

Every instruction either does something or raises an error of torch's; both are logged, so that two
runs of a program can be compared instruction by instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from .operators import (
    BINARY,
    CASTS,
    INPLACE,
    INPLACE_BINARY,
    LAYERS,
    RANDOM,
    RANDOM_INPLACE,
    REDUCTIONS,
    SEVERAL,
    UNARY,
    VIEWS,
)
from .program import Program

# What a setting is set with; its value at the beginning, and another one.
SETTINGS: tuple[tuple[Callable[[Any], object], Any, Any], ...] = (
    (torch._C._set_mkldnn_enabled, True, False),
    (torch._C._set_nnpack_enabled, True, False),
    (lambda kind: setattr(torch.backends.mkldnn.matmul, "fp32_precision", kind), "none", "bf16"),
    (lambda kind: setattr(torch.backends.mkldnn.conv, "fp32_precision", kind), "none", "bf16"),
    (torch.set_flush_denormal, False, True),
    (torch.set_default_dtype, torch.float32, torch.float64),
    (torch.set_grad_enabled, True, False),
)
SHAPES = ((4, 64), (16, 16), (64, 16), (32, 64), (64, 64), (1, 512), (3, 5, 64), (2048,))
MAX_TENSORS = 24
NUM_OUTSIDE = 4


class Coop(Protocol):
    """What a program may ask of coop; all of it does nothing in a plain run."""

    def evict(self, tensor: Tensor) -> object: ...
    def materialize(self, tensor: Tensor) -> object: ...
    def keep(self, tensor: Tensor) -> object: ...
    def unkeep(self, tensor: Tensor) -> object: ...


class Nothing:
    """Coop for the plain run."""

    def evict(self, tensor: Tensor) -> object:
        return None

    materialize = keep = unkeep = evict


class StopProgram(Exception):
    """The program is over before its end: `instruction` did not fit.

    Or it would have read the memory of an evicted tensor without an operator, and torch said so
    (`raw`): some of torch's own code above the operators does (Rule 13).
    """

    def __init__(self, instruction: int, raw: bool = False) -> None:
        self.instruction = instruction
        self.raw = raw


@dataclass
class Pool:
    """Tensors, how instructions pick theirs, and what was seen on the way."""

    coop: Coop
    outside: list[Tensor]  # made before the budget was entered
    tensors: list[Tensor] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    generator: torch.Generator = field(default_factory=torch.Generator)

    def everything(self) -> dict[str, Tensor]:
        """All that must be the same bits."""
        result = {f"tensor {i}": t.detach() for i, t in enumerate(self.tensors)}
        for i, leaf in enumerate(self.leaves):
            result[f"leaf {i}"] = leaf.detach()
            if leaf.grad is not None:
                result[f"gradient {i}"] = leaf.grad
        result |= {f"outside {i}": t for i, t in enumerate(self.outside)}
        result["global generator"] = torch.get_rng_state()
        result["own generator"] = self.generator.get_state()
        return result

    # --- choosing operands ----------------------------------------------------------------------

    def pick(self, number: int) -> Tensor:
        if not self.tensors:
            self.tensors.append(torch.ones(16, 16))
        return self.tensors[number % len(self.tensors)]

    def partner(self, tensor: Tensor, number: int) -> Tensor:
        """Another one of the same shape where there is one, or a part of another, expanded."""
        same = [t for t in self.tensors if t.shape == tensor.shape and t.dtype == tensor.dtype]
        if same and number % 4:
            return same[number % len(same)]
        other = self.pick(number).to(tensor.dtype).flatten()
        return (other[:1] if len(other) else tensor.new_ones(1)).expand(tensor.shape)

    def keep(self, result: Any) -> None:
        results = [result] if isinstance(result, Tensor) else list(result)
        self.tensors += [t for t in results if 0 < t.numel() <= 16384]

    def apply(self, table: list[Callable[..., Any]], which: int, *operands: Any) -> None:
        self.keep(table[which % len(table)](*operands))

    def written(self, number: int) -> Tensor:
        """Sometimes a detached one: autograd does not see the write then."""
        tensor = self.pick(number)
        return tensor.detach() if number % 2 else tensor

    def differentiable(self, numbers: tuple[int, ...]) -> list[Tensor]:
        able = [t for t in self.tensors if t.requires_grad and t.grad_fn is not None]
        return [able[n % len(able)] for n in numbers] if able else []


@dataclass
class Machine(Pool):
    """Runs programs: an instruction of kind K is the method do_K."""

    def run(self, program: Program, stop: int | None = None) -> None:
        """Runs the program, or its first `stop` instructions."""
        torch.manual_seed(0)
        self.generator.manual_seed(1)
        try:
            for number, (kind, numbers) in enumerate(program[:stop]):
                self.step(number, kind, numbers)
        finally:
            for put, first, _ in SETTINGS:
                put(first)

    def step(self, number: int, kind: str, numbers: tuple[int, ...]) -> None:
        try:
            getattr(self, "do_" + kind)(*numbers)
        except torch.OutOfMemoryError:
            raise StopProgram(number) from None
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if "coop.materialize" in str(error):
                raise StopProgram(number, raw=True) from None
            self.log.append(f"{number} {kind}: {type(error).__name__}")
        if len(self.tensors) > MAX_TENSORS:
            del self.tensors[0]

    # --- making tensors -------------------------------------------------------------------------

    def do_factory(self, which: int, shape: int, *_: int) -> None:
        size = SHAPES[shape % len(SHAPES)]
        makers: list[Callable[[], Tensor]] = [
            lambda: torch.zeros(size),
            lambda: torch.ones(size),
            lambda: torch.full(size, shape / 7),
            lambda: torch.rand(size),
            lambda: torch.randn(size, generator=self.generator),
            lambda: torch.arange(2048, dtype=torch.float32),
            lambda: torch.linspace(-1, 1, 512),
            lambda: torch.eye(32),
        ]
        self.keep(makers[which % len(makers)]())

    def do_root(self, value: int, *_: int) -> None:
        self.keep(torch.tensor([[float(value % 97 + i - j) for i in range(64)] for j in range(16)]))

    def do_outside(self, which: int, *_: int) -> None:
        self.keep(self.outside[which % len(self.outside)])

    def do_leaf(self, which: int, shape: int, *_: int) -> None:
        if len(self.leaves) < 6:
            leaf = torch.randn(SHAPES[shape % len(SHAPES)])
        else:
            leaf = self.leaves.pop(0).detach().clone()
        leaf.requires_grad_()
        self.leaves.append(leaf)
        self.keep(leaf)

    # --- operators ------------------------------------------------------------------------------

    def do_unary(self, which: int, a: int, *_: int) -> None:
        self.apply(UNARY, which, self.pick(a))

    def do_several(self, which: int, a: int, *_: int) -> None:
        self.apply(SEVERAL, which, self.pick(a))

    def do_reduce(self, which: int, a: int, *_: int) -> None:
        self.apply(REDUCTIONS, which, self.pick(a))

    def do_cast(self, which: int, a: int, *_: int) -> None:
        self.apply(CASTS, which, self.pick(a))

    def do_binary(self, which: int, a: int, b: int, *_: int) -> None:
        left = self.pick(a)
        self.apply(BINARY, which, left, self.partner(left, b))

    def do_matmul(self, a: int, b: int, *_: int) -> None:
        left = self.pick(a).reshape(-1, 16)[:64]
        right = self.pick(b).to(left.dtype).reshape(-1, 16)[:64]
        self.keep(left @ right.t())

    def do_layer(self, which: int, a: int, b: int, *_: int) -> None:
        x = self.pick(a).to(torch.float32).reshape(-1, 16)[:64]
        weight = self.pick(b).to(torch.float32).reshape(-1, 16)[:16]
        self.apply(LAYERS, which, x, weight)

    def do_view(self, which: int, a: int, b: int, c: int, *_: int) -> None:
        self.apply(VIEWS, which, self.pick(a), b, c)

    # --- writes ---------------------------------------------------------------------------------

    def do_inplace(self, which: int, a: int, *_: int) -> None:
        INPLACE[which % len(INPLACE)](self.written(a))

    def do_inplace_binary(self, which: int, a: int, b: int, *_: int) -> None:
        target = self.written(a)
        INPLACE_BINARY[which % len(INPLACE_BINARY)](target, self.partner(target, b))

    def do_assign(self, a: int, b: int, c: int, how: int, *_: int) -> None:
        target = self.written(a)
        begin, end = sorted((b % (len(target) + 1), c % (len(target) + 1)))
        if how % 3 == 0:
            target[begin:end] = how / 3
        elif how % 3 == 1:
            target[begin:end] = self.partner(target[begin:end], c)
        else:
            target[..., ::2] = self.pick(b).flatten()[0].to(target.dtype)

    def do_scatter(self, which: int, a: int, b: int, c: int, *_: int) -> None:
        target = self.written(a).flatten() if which % 2 else self.written(a).view(-1)
        index = torch.arange(c % 7, len(target), 3)
        source = self.pick(b).to(target.dtype).flatten()[: len(index)]
        index = index[: len(source)]
        writers: list[Callable[[], Any]] = [
            lambda: target.index_add_(0, index, source),
            lambda: target.scatter_(0, index, source),
            lambda: target.index_copy_(0, index, source),
            lambda: target.index_put_((index,), source, accumulate=True),
            lambda: target.masked_fill_(target > 0, 2),
            lambda: target.index_fill_(0, index, 3),
        ]
        writers[which % len(writers)]()
        self.keep(target)

    def do_foreach(self, which: int, a: int, b: int, c: int, *_: int) -> None:
        targets = [self.pick(n).detach() for n in (a, b, c)]
        if which % 3 == 0:
            torch._foreach_add_(targets, 0.5)
        elif which % 3 == 1:
            torch._foreach_mul_(targets, [1.5, 0.5, 2.0])
        else:
            self.keep(torch._foreach_add(targets, targets))

    def do_out(self, which: int, a: int, b: int, c: int, *_: int) -> None:
        left = self.pick(a).detach()
        right = self.partner(left, b).detach()
        targets: list[Callable[[], Tensor]] = [
            lambda: torch.empty(0, dtype=left.dtype),
            lambda: torch.zeros_like(left),
            lambda: self.partner(left, 4 * c + 1).detach(),
            lambda: left,
            lambda: left.new_zeros(2, left.numel())[1].view(left.shape),
        ]
        target = targets[c % len(targets)]()
        if which % 4 == 0:
            torch.mul(left, right, out=target)
        elif which % 4 == 1:
            torch.sin(left, out=target)
        elif which % 4 == 2:
            torch.cumsum(left, 0, out=target)
        else:
            torch.cat([left, right], out=target)
        self.keep(target)

    def do_swap_data(self, a: int, b: int, *_: int) -> None:
        target = self.pick(a)
        if target.grad_fn is None and not target._is_view():
            target.data = self.pick(b).detach().to(target.dtype).reshape(-1)[: target.numel()]

    def do_resize(self, a: int, size: int, *_: int) -> None:
        target = self.pick(a).detach().clone().flatten()
        target.resize_(size % target.numel() + 1)
        self.keep(target)

    def do_numpy(self, a: int, value: int, *_: int) -> None:
        tensor = self.pick(a).detach()
        before = tensor * 2
        self.coop.materialize(tensor)
        tensor.numpy()[...] = value % 5
        self.keep([before, tensor + 1])

    # --- random ---------------------------------------------------------------------------------

    def do_random(self, which: int, a: int, *_: int) -> None:
        self.apply(RANDOM, which, self.pick(a), self.generator)

    def do_random_inplace(self, which: int, a: int, *_: int) -> None:
        target = self.written(a)
        RANDOM_INPLACE[which % len(RANDOM_INPLACE)](target, self.generator)

    def do_seed(self, value: int, *_: int) -> None:
        torch.manual_seed(value)

    def do_setting(self, which: int, value: int, *_: int) -> None:
        put, *values = SETTINGS[which % len(SETTINGS)]
        put(values[value % 2])
        # Results that depend on them.
        image = torch.linspace(-1, 1, 16384, dtype=torch.float32).view(16, 4, 16, 16)
        tiny = torch.full((32, 64), 1e-38, dtype=torch.float32)
        self.keep([F.conv2d(image, image[:4, :, :3, :3], padding=1), tiny * 0.01])

    # --- looking and forgetting -------------------------------------------------------------------

    def do_delete(self, a: int, *_: int) -> None:
        if self.tensors:
            del self.tensors[a % len(self.tensors)]

    def do_read(self, a: int, *_: int) -> None:
        tensor = self.pick(a).detach()
        first = tensor.flatten()[0]
        self.log.append(f"{first.item()!r} {tensor.double().sum().item()!r}")

    # --- autograd -------------------------------------------------------------------------------

    def do_backward(self, a: int, b: int, retain: int, *_: int) -> None:
        outputs = self.differentiable((a, b))
        if outputs:
            loss = torch.stack([t.float().sum() for t in outputs]).mean()
            loss.backward(retain_graph=bool(retain % 2))

    def do_grad(self, a: int, b: int, create: int, *_: int) -> None:
        outputs = self.differentiable((a,))
        if outputs and self.leaves:
            gradients = torch.autograd.grad(
                outputs,
                self.leaves,
                [torch.ones_like(t) for t in outputs],
                create_graph=bool(create % 2),
                retain_graph=bool(b % 2),
                allow_unused=True,
            )
            self.keep([g for g in gradients if g is not None])

    def do_checkpoint(self, a: int, *_: int) -> None:
        def block(x: Tensor) -> Tensor:
            return F.dropout(torch.tanh(x) * x, 0.3).sin()

        self.keep(torch.utils.checkpoint.checkpoint(block, self.pick(a), use_reentrant=False))

    def do_step(self, which: int, *_: int) -> None:
        leaves = [leaf for leaf in self.leaves if leaf.grad is not None]
        if leaves:
            make = torch.optim.Adam if which % 2 else torch.optim.SGD
            optimizer = make(leaves, lr=0.01)
            optimizer.step()
            optimizer.zero_grad(set_to_none=bool(which % 4))

    def do_round(self, *_: int) -> None:
        """The end of a step: the next one begins with what all begin with."""
        self.tensors.clear()
        optimizer = torch.optim.SGD(self.leaves, lr=0.01)
        optimizer.step()
        optimizer.zero_grad()
        self.keep([*self.leaves, *self.outside])

    # --- coop -----------------------------------------------------------------------------------

    def do_evict(self, a: int, *_: int) -> None:
        self.coop.evict(self.pick(a))

    def do_materialize(self, a: int, *_: int) -> None:
        self.coop.materialize(self.pick(a))

    def do_keep(self, a: int, *_: int) -> None:
        self.coop.keep(self.pick(a))

    def do_unkeep(self, a: int, *_: int) -> None:
        self.coop.unkeep(self.pick(a))
