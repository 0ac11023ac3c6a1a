"""An ordinary training loop inside a budget: one line more than without.

python examples/plain_loop.py
"""

import torch
from torch import nn

import coop

with coop.budget("24MiB", device="cpu") as session:  # this line is all there is to it
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(8):
        images, labels = torch.randn(1024, 256), torch.randint(10, (1024,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}")

stats = session.stats()
print(
    f"peak {stats.peak_bytes / 2**20:.1f} MiB, {stats.num_evictions} evictions, "
    f"{stats.num_replays} recomputations, estimated overhead {stats.overhead - 1:.1%}"
)
