"""Compiled blocks on a GPU: graphs of Triton kernels are evicted and replayed as a whole."""

from __future__ import annotations

import pytest

from tests.cuda.cuda_programs import needs_gpu, run

pytestmark = needs_gpu

TRAINING = """
import hashlib
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(512)
        self.wide, self.narrow = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)
        self.dropout = torch.nn.Dropout(0.1)
    def forward(self, x):
        return x + self.dropout(self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x)))))
def train(num_steps=8):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(8))).cuda()
    for block in model:
        block.compile(backend=BACKEND)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    losses = []
    for number in range(num_steps):
        x = torch.randn(4096, 512, device="cuda")
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    digest = hashlib.sha256()
    for tensor in losses + list(model.state_dict().values()):
        digest.update(tensor.cpu().numpy().tobytes())
    print(digest.hexdigest())
"""


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_blocks_are_the_same_bits_in_less_memory(backend: str) -> None:
    training = f"BACKEND = {backend!r}\n" + TRAINING
    roomy = run(
        training
        + """
session = coop.install("4GiB")
train()
print(session.stats().needed_bytes)
"""
    ).split()
    plain = run(training + "train()").split()
    inside = run(
        training
        + f"""
session = coop.install({int(roomy[1])} * 7 // 10)
train()
assert session.stats().num_evictions > 0 and session.stats().num_replays > 0, session.stats()
"""
    ).split()
    assert inside[0] == roomy[0] == plain[0]
