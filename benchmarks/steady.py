"""Step time of a network once its steps are followed: one process, one row of JSON.

    python -m benchmarks.steady llama_1b                       # plain torch
    python -m benchmarks.steady llama_1b --checkpoint
    python -m benchmarks.steady llama_1b --budget 14.5GiB
    python -m benchmarks.steady llama_1b --budget 14.5GiB --bits
    python -m benchmarks.steady llama_1b --budget 14.5GiB --host 64GiB --optimizer loop
    python -m benchmarks.steady llama_1b --offload-hooks 0.5
    python -m benchmarks.steady llama_1b --compile block --budget 12GiB
    python -m benchmarks.steady llama_1b --compile whole --activation-memory-budget 0.5
    python -m benchmarks.steady llama_1b --budget 14GiB --parallel fsdp2

With `--bits` kernels are deterministic, and the row has a checksum of all parameters: runs of the
same network with and without a budget must have the same. With `--parallel` the process is the only
rank of a group (`python -m benchmarks.one_rank` measures those). Networks are those of the zoo and
of `benchmarks.models.PRACTICE`, at full size on a GPU; `--tiny` is for a look on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo.utils
import torch._functorch.config
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import coop
from benchmarks import models
from benchmarks.models import Workload
from benchmarks.offload_hooks import OffloadHooks
from benchmarks.peers.ways import blocks_of
from benchmarks.zoo.networks import NETWORKS

# Steps after which a schedule is followed, and a few more.
WARM_UP = 8

# Statistics of the last step that a row has.
LAST = (
    "num_operators",
    "num_replays",
    "num_evictions",
    "num_searches",
    "search_ns",
    "moved_bytes",
    "copied_bytes",
    "host_saved_bytes",
    "host_loaded_bytes",
    "num_host_refusals",
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def workload_named(name: str, tiny: bool) -> Workload:
    """Of the practice models, or of the zoo."""
    if tiny:
        return models.get(name, "tiny")
    return models.get(name, "paper") if name in models.PRACTICE else NETWORKS[name].make()


def compile_model(workload: Workload, model: nn.Module, how: str) -> None:
    """As a whole, or each of its blocks, which share what is compiled."""
    # Blocks that differ in a number are compiled each; torch would give up after eight.
    torch._dynamo.config.recompile_limit = 64
    for module in [model] if how == "whole" else blocks_of(workload, model):
        module.compile()


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)
        backend = "nccl" if DEVICE == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def make_parallel(workload: Workload, model: nn.Module, how: str) -> nn.Module:
    """As people do: gradients in buckets, or each block's parameters in shards."""
    if how == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    for block in blocks_of(workload, model):
        fully_shard(block)
    fully_shard(model)
    return model


def train(workload: Workload, args: argparse.Namespace) -> tuple[Callable[[], Tensor], Any]:
    """A function that does one step and returns its loss; and the model."""
    model = workload.make_model(0)
    if args.checkpoint:
        workload.checkpoint(model)
    if args.compile is not None:
        compile_model(workload, model, args.compile)
    if args.parallel is not None:
        model = make_parallel(workload, model, args.parallel)
    optimizer = workload.make_optimizer(model)
    for group in optimizer.param_groups:
        group |= {
            "foreach": args.optimizer == "foreach",
            "fused": args.optimizer == "fused" and torch.cuda.is_available(),
        }
    share = args.offload_hooks
    hooks = OffloadHooks(share) if share is not None else contextlib.nullcontext()
    batch = workload.make_batch(0, DEVICE)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with hooks:
            loss = workload.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step, model


def checksum(model: torch.nn.Module, losses: list[float]) -> str:
    """Of all parameters and losses."""
    found = hashlib.sha256(repr(losses).encode())
    for parameter in model.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        found.update(local.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def make_parser() -> argparse.ArgumentParser:
    """Of what a row is of."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--budget")
    parser.add_argument("--host", default="0", help="room for copies in main memory")
    parser.add_argument("--optimizer", choices=("fused", "foreach", "loop"), default="fused")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--offload-hooks", type=float, metavar="SHARE", help="of what is saved")
    parser.add_argument("--compile", choices=("block", "whole"))
    parser.add_argument("--activation-memory-budget", type=float, metavar="SHARE")
    parser.add_argument("--parallel", choices=("ddp", "fsdp2"))
    parser.add_argument("--bits", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=WARM_UP + 8)
    return parser


def main() -> None:
    """Prints the row."""
    args = make_parser().parse_args()
    session = None
    if args.budget is not None and DEVICE == "cuda":
        session = coop.install(args.budget, host=args.host)
    print(json.dumps(row_of(args, session)), flush=True)


def row_of(args: argparse.Namespace, session: coop.Session | None) -> dict[str, Any]:
    """What is measured; on a GPU `session` is that of its budget."""
    if args.bits:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
    if args.activation_memory_budget is not None:
        torch._functorch.config.activation_memory_budget = args.activation_memory_budget
    workload = workload_named(args.name, args.tiny)
    row: dict[str, Any] = {"model": args.name, "budget": args.budget}
    row |= {"host": args.host, "optimizer": args.optimizer}
    for option in (
        "checkpoint",
        "offload_hooks",
        "compile",
        "activation_memory_budget",
        "parallel",
    ):
        if getattr(args, option) not in (None, False):
            row[option] = getattr(args, option)
    with contextlib.ExitStack() as stack:
        if args.budget is not None and DEVICE == "cpu":
            session = stack.enter_context(coop.budget(args.budget, device=DEVICE))
        if args.parallel is not None:
            stack.enter_context(one_rank())
        measure(workload, args, session, row)
    return row


def measure(
    workload: Workload, args: argparse.Namespace, session: coop.Session | None, row: dict[str, Any]
) -> None:
    """Adds what was measured to the row."""
    with torch.device(DEVICE):
        step, model = train(workload, args)
        seconds: list[float] = []
        launching: list[float] = []  # of them, until all is launched
        computing: list[float] = []  # CPU time of all threads
        losses: list[float] = []
        before: dict[str, Any] = {}
        first: dict[str, Any] = {} if session is None else session.stats().as_dict()
        for number in range(args.steps):
            if number + 1 == args.steps and session is not None:
                before = session.stats().as_dict()
            begin, begin_cpu = time.perf_counter(), time.process_time()
            loss = step()
            launching.append(time.perf_counter() - begin)
            losses.append(float(loss))
            seconds.append(time.perf_counter() - begin)
            computing.append(time.process_time() - begin_cpu)
    warm = max(WARM_UP, args.steps // 2)  # in longer runs a better schedule is found meanwhile
    measured = seconds[warm:] or seconds
    row["ms"] = round(1e3 * statistics.median(measured), 1)
    row["ms_range"] = [round(1e3 * min(measured), 1), round(1e3 * max(measured), 1)]
    row["cpu_ms"] = round(1e3 * statistics.median(computing[warm:] or computing), 1)
    row["launch_ms"] = round(1e3 * statistics.median(launching[warm:] or launching), 1)
    row["first_ms"] = [round(1e3 * s) for s in seconds[:warm]]
    if DEVICE == "cuda":
        row["reserved_gib"] = round(torch.cuda.max_memory_reserved() / 2**30, 2)
    if args.compile is not None:
        row["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    if session is not None:
        after = session.stats().as_dict()
        last = {key: after[key] - before[key] for key in ("replay_ns", "compute_ns")}
        row["replay_share"] = round(last["replay_ns"] / last["compute_ns"], 4)
        for key in LAST:
            row[f"last_{key}"] = after[key] - before[key]
        row["host_peak_bytes"] = after["host_peak_bytes"]
        for key in ("num_schedules", "num_followed", "num_left"):
            row[key] = after[key] - first[key]
        for key in ("peak_bytes", "needed_bytes"):
            row[key] = after[key]
        row["kept"] = session._engine.shortage(0)["kept"]
    if args.bits:
        row["bits"] = checksum(model, losses)


if __name__ == "__main__":
    main()
