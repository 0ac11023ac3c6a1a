"""One model, one mode, one budget, on one GPU; prints a JSON line.

Runs in a process of its own, because an allocator can be chosen only once:

    python -m benchmarks.gpu.cell --model resnet50 --mode coop --budget 6GiB --steps 10
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

MIB = 2**20


class Task:
    """A model with its optimizer, and one training step of it."""

    def __init__(self, model: nn.Module, loss: Callable[[int], Tensor], lr: float = 1e-4) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    def step(self, number: int) -> Tensor:
        """Forward, backward, update; returns the loss (not synchronized)."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(number)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def _generator(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def _checkpointed(modules: list[nn.Module]) -> None:
    for module in modules:
        forward = module.forward
        module.forward = lambda *args, _forward=forward, **kwargs: checkpoint(  # type: ignore[method-assign]
            _forward, *args, use_reentrant=False, **kwargs
        )


def resnet50(batch: int, checkpointing: bool) -> Task:
    """torchvision's ResNet-50 in bf16 autocast and channels_last."""
    import torchvision

    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    if checkpointing:
        _checkpointed(
            [b for n in ("layer1", "layer2", "layer3", "layer4") for b in getattr(model, n)]
        )

    x = torch.randn(batch, 3, 224, 224, generator=_generator(0)).cuda()
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,), generator=_generator(1)).cuda()

    def loss(_number: int) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return nn.functional.cross_entropy(model(x), y)

    return Task(model, loss)


def _language_task(model: nn.Module, vocabulary: int, shape: tuple[int, int]) -> Task:
    def loss(number: int) -> Tensor:
        ids = torch.randint(vocabulary, shape, generator=_generator(number)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            result: Tensor = model(ids, labels=ids).loss
        return result

    return Task(model, loss)


def gpt2(batch: int, checkpointing: bool, length: int = 1024, large: bool = False) -> Task:
    """transformers' GPT-2 medium (or a 2.7B one) with dropout and SDPA, bf16 autocast."""
    from transformers import GPT2Config, GPT2LMHeadModel

    size = (
        {"n_embd": 2560, "n_layer": 32, "n_head": 32}
        if large
        else {"n_embd": 1024, "n_layer": 24, "n_head": 16}
    )
    config = GPT2Config(**size, attn_implementation="sdpa", use_cache=False)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return _language_task(model, 50257, (batch, length))


def bert(batch: int, checkpointing: bool, length: int = 512) -> Task:
    """transformers' BERT Large for masked language modelling, bf16 autocast."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="sdpa",
    )
    model = BertForMaskedLM(config).cuda()
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return _language_task(model, 30000, (batch, length))


def unet(batch: int, checkpointing: bool) -> Task:
    """The U-Net of benchmarks/models at paper size, float32."""
    from benchmarks import models

    workload = models.get("unet", "paper", batch_size=batch)
    model = workload.make_model(0).cuda()
    if checkpointing:
        _checkpointed(list(workload.blocks(model)))
    # Once: on the CPU it takes as long as a step.
    data = workload.make_batch(0, torch.device("cuda"))
    return Task(model, lambda _number: workload.loss(model, data))


def lstm(batch: int, checkpointing: bool) -> Task:
    """Eight cuDNN LSTM layers of 1024 over 256 positions."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.LSTM(1024, 1024, batch_first=True) for _ in range(8)])
            self.head = nn.Linear(1024, 256)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x)[0])
            return self.head(x)  # type: ignore[no-any-return]

    model = Model().cuda()
    if checkpointing:
        _checkpointed(list(model.layers))

    x = torch.randn(batch, 256, 1024, generator=_generator(0)).cuda()

    def loss(_number: int) -> Tensor:
        return model(x).square().mean()

    return Task(model, loss)


TASKS: dict[str, tuple[Callable[..., Task], int]] = {
    "resnet50": (resnet50, 256),
    "gpt2": (gpt2, 16),
    "bert": (bert, 32),
    "unet": (unet, 5),
    "lstm": (lstm, 128),
    "gpt3_2.7b": (lambda batch, checkpointing: gpt2(batch, checkpointing, large=True), 4),
}


def used_bytes() -> int:
    """What the driver says the whole device has in use."""
    output = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return int(output.strip()) * MIB


def limit_plain(budget: str) -> None:
    """Torch's own allocator reserves no more than that."""
    from coop.sizes import parse_bytes

    total_bytes = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(parse_bytes(budget) / total_bytes)


def digest(task: Task, losses: list[float]) -> str:
    """Of all losses, and of the last gradients, parameters and buffers, bit for bit."""
    sha = hashlib.sha256(repr(losses).encode())
    for tensor in [*task.model.parameters(), *task.model.buffers()]:
        sha.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        if tensor.grad is not None:
            sha.update(tensor.grad.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def timed_steps(task: Task, first: int, count: int) -> tuple[list[float], list[float]]:
    """Step times in ms, and the losses."""
    times, losses = [], []
    for number in range(first, first + count):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = task.step(number)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
        losses.append(float(loss))
    return times, losses


def commands() -> Iterator[int]:
    """Numbers of steps to run, one a line."""
    for line in sys.stdin:
        yield int(line)


def main() -> int:
    """Runs the cell; the result is the last line of the output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=TASKS, required=True)
    parser.add_argument("--mode", default="plain")
    parser.add_argument("--budget", help="of coop, or the most that plain torch may reserve")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("--cores", help="run on these only, such as 2,3")
    parser.add_argument("--serve", action="store_true", help="run steps as standard input says")
    args = parser.parse_args()
    if args.cores:
        os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    make, default_batch = TASKS[args.model]
    batch = args.batch or default_batch
    result: dict[str, Any] = {
        "model": args.model,
        "batch": batch,
        "mode": args.mode,
        "budget": args.budget,
    }
    base_used = used_bytes()
    if args.deterministic:
        torch.use_deterministic_algorithms(True)  # an error where an operator is not
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.enable_cudnn_sdp(False)  # its backward is not deterministic
    session = None
    nondeterministic = set()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if args.mode not in ("plain", "checkpoint"):
                import coop

                session = coop.install(args.budget, policy=args.mode)
            elif args.budget:
                limit_plain(args.budget)
            torch.manual_seed(0)
            task = make(batch, args.mode == "checkpoint")
            times, losses = timed_steps(task, 0, args.warmup)
            before = session.stats() if session else None
            torch.cuda.reset_peak_memory_stats()
            if args.serve:
                done = args.warmup
                print("ready", flush=True)
                for count in commands():
                    more, _ = timed_steps(task, done, count)
                    done += count
                    times += more
                    print(json.dumps(more), flush=True)
            else:
                more, losses2 = timed_steps(task, args.warmup, args.steps)
                times += more
                losses += losses2
            nondeterministic = {
                str(w.message).split(" does not have")[0]
                for w in caught
                if "deterministic" in str(w.message)
            }
            result["warnings"] = sorted(
                {str(w.message)[:160] for w in caught if "coop" in str(w.message)}
            )
        steady = sorted(times[args.warmup :])
        result["ms"] = steady[len(steady) // 2] if steady else None
        result["ms_spread"] = [steady[0], steady[-1]] if steady else None
        result["peak_allocated"] = torch.cuda.max_memory_allocated()
        result["peak_reserved"] = torch.cuda.max_memory_reserved()
        result["driver_bytes"] = used_bytes() - base_used
        if session and before:
            stats = session.stats()
            steps = max(len(times) - args.warmup, 1)
            result["stats"] = stats.as_dict()
            result["per_step"] = {
                key: (getattr(stats, key) - getattr(before, key)) / steps
                for key in (
                    "num_operators",
                    "num_evictions",
                    "num_replays",
                    "num_searches",
                    "search_ns",
                    "replay_ns",
                    "compute_ns",
                    "num_copies",
                    "num_retries",
                    "moved_bytes",
                )
            }
        if args.digest:
            result["losses"] = losses
            result["digest"] = digest(task, losses)
    except torch.OutOfMemoryError as error:
        result["error"] = str(error)[:700]
    result["nondeterministic"] = sorted(nondeterministic)
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
