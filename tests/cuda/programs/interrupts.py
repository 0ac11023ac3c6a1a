"""Ctrl-C while a GPU recomputes: its backward passes run on autograd's threads, where Python runs
no signal handlers."""

from __future__ import annotations

import os
import signal
import threading

import torch

import coop
from tests.cuda.programs import same

DEPTH = 8000
NUMEL = 2**22


def _at_a_terminal() -> None:
    """A background job of a shell has it ignored. Before the budget, as in any program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _press_when_it_recomputes(session: coop.Session) -> None:
    before = session.stats().num_replays
    while session.stats().num_replays < before + 100:
        pass
    os.kill(os.getpid(), signal.SIGINT)


def a_pass_that_recomputes_for_long_ends() -> None:
    _at_a_terminal()
    session = coop.install("200MiB")  # cuBLAS takes 64 MiB of it
    start = torch.linspace(0, 1, NUMEL)
    leaf = start.cuda().requires_grad_()
    kept = leaf.detach().mul(2)
    x: torch.Tensor = leaf
    for _ in range(DEPTH):
        x = x.sin()
    is_main = []
    x.register_hook(  # type: ignore[no-untyped-call]
        lambda gradient: is_main.append(threading.current_thread() is threading.main_thread())
    )
    user = threading.Thread(target=_press_when_it_recomputes, args=(session,), daemon=True)
    user.start()
    try:
        x.sum().backward()
        raise AssertionError("it ran to its end")
    except KeyboardInterrupt:
        pass
    user.join()
    num_replays = session.stats().num_replays
    assert is_main == [False]
    assert num_replays < 50 * DEPTH, num_replays  # left alone it replays a million
    # All is as it was, and goes on.
    del x
    assert leaf.grad is None
    assert same(kept, start.cuda().mul(2))
    leaf.sin().sum().backward()
    assert leaf.grad is not None
    assert same(leaf.grad, start.cuda().cos())


def a_batch_is_skipped(budget: str = "") -> None:
    """Prints what comes of training in which the third batch is interrupted in its backward pass;
    without a budget, of training that skips it."""
    _at_a_terminal()
    if budget:
        session = coop.install(budget)
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(12)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    num_skipped = 0
    for step in range(6):
        batch = torch.randn(4096, 512, device="cuda")
        optimizer.zero_grad()
        try:
            x = model(batch)
            if step == 2:
                if not budget:
                    raise KeyboardInterrupt
                x.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGINT))
            loss = x.square().mean()
            loss.backward()
        except KeyboardInterrupt:
            num_skipped += 1
            continue
        optimizer.step()
        print(step, loss.item())
    assert num_skipped == 1
    if budget:
        assert session.stats().num_replays > 0
    print([float(p.detach().double().sum()) for p in model.parameters()])
