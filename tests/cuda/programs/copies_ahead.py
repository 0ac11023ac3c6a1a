"""Schedules that copy activations out in the forward pass, and in ahead of who needs them."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

import coop
from tests.cuda.programs import MIB


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        y: torch.Tensor = x + nn.functional.dropout(self.down(hidden), 0.1, self.training)
        return y


def train(
    budget: str = "", host: str = "0", kind: str = "", num_steps: str = "40", background: str = ""
) -> None:
    """Prints a digest of losses and parameters; with a budget, that schedules copied is asserted.

    Activations of about 4 GiB. `changes`: some steps leave their schedule in the middle;
    `streams`: another stream reads an activation; `busy`: the host is far ahead of the GPU.
    """
    options = {"background": False} if not background else {}
    session = coop.install(budget, host=host, **options) if budget else None
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = nn.Sequential(*(_Block(1024) for _ in range(12))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    side = torch.cuda.Stream()
    losses = []
    for step in range(int(num_steps)):
        x = torch.randn(8192, 1024, device="cuda")
        if kind == "busy":
            torch.cuda._sleep(50_000_000)
        for index, block in enumerate(model):
            if kind == "changes" and step > 8 and step % 5 == 4 and index == 3 + step // 5:
                x = x.sin()
            x = block(x)
            if kind == "streams" and index == 4 and step % 3 == 2:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    losses.append((x.detach() * 2).mean())
                torch.cuda.current_stream().wait_stream(side)
        loss = x.square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if kind == "changes" and step % 7 == 6:
            losses.append(x.detach().sum())  # reads what the schedule has let go of
        optimizer.step()
        losses.append(loss.detach())
    digest = hashlib.sha256()
    for tensor in [*losses, *model.parameters()]:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    print(digest.hexdigest())
    if session is not None and host != "0":
        stats = session.stats()
        assert stats.num_followed > 5, stats
        assert min(stats.num_host_saves, stats.num_host_loads) > 20, stats
        assert stats.peak_bytes <= stats.budget_bytes, stats


def stream(budget: str = "", host: str = "0") -> None:
    """Prints a digest. Parameters, gradients and state of 192, 192 and 384 MiB."""
    session = coop.install(budget, host=host, background=False) if budget else None
    torch.manual_seed(0)
    width = 2048
    layers = [m for _ in range(12) for m in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    losses = []
    for _ in range(24):
        loss = model(torch.randn(2048, width, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    digest = hashlib.sha256()
    states = [t for state in optimizer.state.values() for t in state.values()]
    for tensor in [*losses, *model.parameters(), *states]:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    print(digest.hexdigest())
    if session is not None:
        stats = session.stats()
        assert stats.num_followed > 5, stats
        assert stats.peak_bytes <= stats.budget_bytes, stats


def nobody_waits_for_what_was_begun_ahead() -> None:
    """The host is behind nobody: a whole followed step is given to the GPU while it sleeps."""
    session = coop.install("2200MiB", host="4GiB", background=False)
    torch.manual_seed(0)
    model = nn.Sequential(*(_Block(1024) for _ in range(12))).cuda()
    x = torch.randn(8192, 1024, device="cuda")

    def step() -> None:
        loss = model(x).square().mean()
        model.zero_grad(set_to_none=True)
        loss.backward()
        session._engine.begin_step()
        session._engine.end_step(True)

    num_steps = 0
    followed = -1
    while session.stats().num_followed <= max(followed, 2) and num_steps < 60:
        followed = session.stats().num_followed
        step()
        num_steps += 1
    loads = session.stats().num_host_loads
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    behind = torch.cuda.Event()
    behind.record()
    step()
    assert not behind.query()
    assert session.stats().num_host_loads > loads
    torch.cuda.synchronize()
    assert x.numel() * 4 == 32 * MIB
