"""Data parallel training of a small transformer: `torchrun --nproc-per-node 2 examples/ddp.py`.

Inside a budget of its own for every process, on the CPU or on GPUs, without a change here:

    torchrun --nproc-per-node 2 -m coop run --budget 64MiB examples/ddp.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(args.width, 4, 4 * args.width, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device.index] if gpu else None)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)

    torch.manual_seed(1 + dist.get_rank())  # every process has its own data
    for step in range(args.steps):
        x = torch.randn(args.batch, 64, args.width, device=device)
        loss = (parallel(x) - x.sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {total.item() / dist.get_world_size():.6f}", flush=True)


if __name__ == "__main__":
    main()
    dist.barrier()  # nobody closes a connection that another one still uses
    dist.destroy_process_group()
