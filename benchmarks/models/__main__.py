"""Measure the networks where they run: `python -m benchmarks.models [--size tiny] [NAME ...]`.

Prints, per network, the median step time, the bytes autograd saves for backward (parameters and
inputs excluded), how much of that is in tensors the engine may evict, and the parameters' bytes.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from . import count_parameters, get, names
from .workload import Batch, Workload

# Tensors up to this size live in the engine's slab and are never evicted.
SMALL_BYTES = 10 * 1024
MIB = 1024 * 1024


def saved_storages(workload: Workload, model: nn.Module, batch: Batch) -> list[int]:
    """Bytes of each distinct storage that one forward pass saves for backward."""
    held = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), *batch)}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        # Keep the graph: the address of a freed storage could come back and hide another one.
        loss = workload.loss(model, batch)
    del loss
    return list(saved.values())


def step_seconds(workload: Workload, model: nn.Module, device: str, num_steps: int) -> list[float]:
    """Wall time of each training step, its batch made beforehand; two steps of warm-up left out."""
    optimizer = workload.make_optimizer(model)
    times = []
    for step in range(num_steps + 2):
        batch = workload.make_batch(step, device)
        _synchronize(device)
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(workload.loss(model, batch))
        optimizer.step()
        _synchronize(device)
        times.append(time.perf_counter() - start)
    return times[2:]


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names())}")
    parser.add_argument("--size", choices=["tiny", "paper"], default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    header = ("step ms", "saved MiB", "tensors", ">10 KiB", "params MiB")
    print(f"{'network':14}" + "".join(f"{column:>12}" for column in header))
    for name in arguments.names or names():
        workload = get(name, arguments.size)
        with torch.device(arguments.device):
            model = workload.make_model()
        saved = saved_storages(workload, model, workload.make_batch(0, arguments.device))
        large = sum(num_bytes for num_bytes in saved if num_bytes > SMALL_BYTES)
        times = step_seconds(workload, model, arguments.device, arguments.steps)
        print(
            f"{name:14}{statistics.median(times) * 1e3:12.1f}"
            f"{sum(saved) / MIB:12.1f}{len(saved):12d}"
            f"{large / sum(saved):12.1%}{count_parameters(model) * 4 / MIB:12.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
