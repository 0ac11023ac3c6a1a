"""The ways to train in less memory, each as its own documents set it up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from benchmarks.models import Workload
from benchmarks.models.workload import checkpoint_module

__all__ = ["WAYS", "WAYS_WITHIN", "WAYS_WITH_COPIES", "CannotRun", "Setup", "Way"]


class CannotRun(Exception):
    """Why a peer cannot run here; the row says so."""


@dataclass
class Setup:
    """A training that a way may change before its first step."""

    workload: Workload
    model: nn.Module
    optimizer: torch.optim.Optimizer
    device: str
    # Entered for the forward and the backward pass of every step.
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


@dataclass(frozen=True)
class Way:
    """One peer, at one setting."""

    name: str  # of the peer, as in the legend
    setting: str = ""
    apply: Callable[[Setup], None] = lambda setup: None
    share: float = 0.0  # of what `of` takes, or of a limit: the budget of coop; 0: no budget
    of: str = "plain"  # another way's label
    is_quick: bool = True  # also at tiny size on a CPU
    turn: int = 1  # the ways of turn 0 are measured first on all models, then those of 1, ...
    host: int | str = 0  # coop's room for copies
    only_copies: bool = False  # coop's model of the link says that copies cost nothing
    config: dict[str, Any] = field(default_factory=dict)  # of torch._functorch.config

    @property
    def label(self) -> str:
        """Of its rows."""
        return f"{self.name} {self.setting}".strip()


def blocks_of(workload: Workload, model: nn.Module) -> list[nn.Module]:
    """What repeats: known, or the outermost modules of one type in a row."""

    def repeated(module: nn.Module) -> list[nn.Module]:
        found: list[nn.Module] = []
        for child in module.children():
            among = list(child.children())
            is_row = isinstance(child, nn.ModuleList | nn.Sequential)
            if is_row and len(among) > 1 and len({type(each) for each in among}) == 1:
                found += among
            else:
                found += repeated(child)
        return found

    return workload.blocks(model) or repeated(model)


# --- checkpointing --------------------------------------------------------------------------------

# What is expensive for its bytes is kept, the rest is recomputed: torchtitan's way.
_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
}
_OTHERS = {
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def by_block(setup: Setup) -> None:
    """`torch.utils.checkpoint`, as the library of the model does it."""
    setup.workload.checkpoint(setup.model)


def selectively(setup: Setup) -> None:
    """Matrix products, convolutions and attention are kept, every second one of the products."""

    def contexts() -> tuple[Any, Any]:
        counts = {False: 0, True: 0}  # of products, in the forward pass and when it runs again

        def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            counts[context.is_recompute] += operator in _PRODUCTS
            is_second = operator in _PRODUCTS and counts[context.is_recompute] % 2 == 0
            is_kept = operator in _PRODUCTS | _OTHERS and not is_second
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    for block in blocks_of(setup.workload, setup.model):
        checkpoint_module(block, context_fn=contexts)


# --- compiled -------------------------------------------------------------------------------------


def compiled(setup: Setup) -> None:
    """Every block."""
    torch._dynamo.config.recompile_limit = 64
    for block in blocks_of(setup.workload, setup.model) or [setup.model]:
        block.compile()


def compiled_and_checkpointed(setup: Setup) -> None:
    """The strongest by hand: every block compiled, and recomputed as a whole."""
    torch._dynamo.config.recompile_limit = 64
    for block in blocks_of(setup.workload, setup.model):
        checkpoint_module(block)
        block.compile()


# --- elsewhere ------------------------------------------------------------------------------------


def saved_on_the_host(setup: Setup) -> None:
    """`save_on_cpu`: what users try first. On a CPU it copies from main memory to main memory."""
    pinned = setup.device == "cuda"
    setup.around = lambda: torch.autograd.graph.save_on_cpu(pin_memory=pinned)


def offloaded(share: float) -> Callable[[Setup], None]:
    """Hooks with streams of their own, a prefetch, and pinned memory that is used again."""

    def apply(setup: Setup) -> None:
        if setup.device != "cuda":
            raise CannotRun("there is no other memory than main memory here")
        from benchmarks.offload_hooks import OffloadHooks

        hooks = OffloadHooks(share)
        setup.around = lambda: hooks

    return apply


def optimizer_on_the_host(setup: Setup) -> None:
    """torchao's optimizer whose states stay in main memory."""
    if setup.device != "cuda":
        raise CannotRun("torchao's CPUOffloadOptimizer needs a GPU")
    try:
        from torchao.optim import CPUOffloadOptimizer
    except ImportError as error:
        raise CannotRun(f"torchao: {error}") from None
    groups = [dict(group) for group in setup.optimizer.param_groups]
    kept = {key: value for key, value in setup.optimizer.defaults.items() if key in ("lr", "betas")}
    parameters = [parameter for group in groups for parameter in group["params"]]
    setup.optimizer = CPUOffloadOptimizer(parameters, type(setup.optimizer), fused=True, **kept)


def sharded_on_the_host(setup: Setup) -> None:
    """FSDP2's `CPUOffloadPolicy`, on one rank."""
    if setup.device != "cuda":
        raise CannotRun("FSDP2's CPU offload needs a GPU")
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    for block in blocks_of(setup.workload, setup.model):
        fully_shard(block, offload_policy=CPUOffloadPolicy())
    fully_shard(setup.model, offload_policy=CPUOffloadPolicy())
    setup.optimizer = setup.workload.make_optimizer(setup.model)


_BUDGET = "activation_memory_budget"
WAYS = (
    Way("plain", turn=0),
    Way("checkpoint", apply=by_block, turn=0),
    Way("checkpoint, selective", apply=selectively),
    Way("compile", apply=compiled),
    Way("compile, memory budget", "0.7", compiled, is_quick=False, turn=2, config={_BUDGET: 0.7}),
    Way("compile, memory budget", "0.5", compiled, config={_BUDGET: 0.5}),
    Way("compile, memory budget", "0.3", compiled, is_quick=False, turn=2, config={_BUDGET: 0.3}),
    Way("compile, checkpoint", apply=compiled_and_checkpointed),
    Way("save_on_cpu", apply=saved_on_the_host, turn=2),
    *(
        Way("offload hooks", f"{share:.0%}", offloaded(share), is_quick=share == 1, turn=turn)
        for share, turn in ((1.0, 1), (0.5, 1), (0.25, 2))
    ),
    Way("torchao CPU-offload optimizer", apply=optimizer_on_the_host, turn=2),
    Way("FSDP2 CPU offload", apply=sharded_on_the_host, turn=2),
    *(
        Way("coop", f"{share:.0%}", share=share, is_quick=share in (0.8, 0.6, 0.5), turn=turn)
        for share, turn in ((0.9, 2), (0.8, 0), (0.7, 1), (0.6, 0), (0.5, 0), (0.4, 0), (0.3, 1))
    ),
    Way("coop", "as checkpoint", share=1.0, of="checkpoint", turn=0),
    *(
        Way("coop, compiled", f"{share:.0%}", compiled, share=share, is_quick=is_quick, turn=turn)
        for share, is_quick, turn in ((0.8, False, 2), (0.6, True, 1), (0.45, False, 2))
    ),
    Way(
        "coop, compiled",
        "as compile, checkpoint",
        compiled,
        share=1.0,
        of="compile, checkpoint",
        is_quick=False,
    ),
)

# Each with all of the memory that there is, and the batch that suits it best.
WAYS_WITHIN = (
    *(way for way in WAYS if not way.share),
    Way("coop", share=1.0),
    Way("coop, compiled", apply=compiled, share=1.0),
)

# What copies are compared with (copies.py): these at what they take, and coop in a budget.
WAYS_WITH_COPIES = (
    *(way for way in WAYS if way.name in ("plain", "checkpoint", "offload hooks")),
    Way("coop, recompute only", share=1.0),
    Way("coop, copies only", share=1.0, host="auto", only_copies=True),
    Way("coop, both", share=1.0, host="auto"),
)
