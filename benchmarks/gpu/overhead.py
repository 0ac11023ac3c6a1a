"""What the engine adds to an operator on a GPU, in microseconds of CPU time; prints a JSON line.

`plain` is torch's allocator, `allocator` ours with interception off, `coop` the whole engine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch


def per_call_us(f: Callable[[], object], calls: int = 2000) -> float:
    """Best of five."""
    best = float("inf")
    for _ in range(6):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            f()
        best = min(best, (time.perf_counter() - begin) / calls)
    torch.cuda.synchronize()
    return best * 1e6


def main(mode: str) -> None:
    """Measures one mode."""
    if mode != "plain":
        import coop
        from coop._native import _C

        coop.install("4GiB")
        _C.set_thread_enabled(mode == "coop")
    small, large = (torch.randn(size, device="cuda") for size in (64, 4096))
    image = torch.randn(8, 16, 16, 16, device="cuda")
    norm = torch.nn.BatchNorm2d(16).cuda()
    convolution = torch.nn.Conv2d(16, 16, 1, bias=False).cuda()
    weights = [torch.nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(160)]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.AdamW(weights, fused=True)
    optimizer.step()

    def backward() -> None:
        y = image.detach().requires_grad_()
        for _ in range(10):
            y = y + image
        y.sum().backward()

    cases: dict[str, Callable[[], object]] = {
        "empty": lambda: torch.empty(4096, device="cuda"),
        "add small": lambda: torch.add(small, small),
        "add": lambda: torch.add(large, large),
        "view": lambda: large.view(64, 64),
        "add_": lambda: small.add_(small),
        "to bf16": lambda: large.to(torch.bfloat16),
        "batch norm": lambda: norm(image),
        "convolution": lambda: convolution(image),
    }
    result = {name: per_call_us(f) for name, f in cases.items()}
    result["10 adds and backward"] = per_call_us(backward, 200)
    result["fused AdamW of 160"] = per_call_us(lambda: optimizer.step(), 100)
    print(json.dumps({"mode": mode, **{k: round(v, 2) for k, v in result.items()}}))


if __name__ == "__main__":
    main(sys.argv[1])
