"""Quiet steps: nothing has a recipe, and what leaves is saved to main memory."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator

import torch

import coop
from tests.cuda.programs import same, value


def what_is_saved_is_what_the_stream_has_not_computed_yet() -> None:
    session = coop.install("512MiB", quiet_after=1)
    session._engine.end_step(True)
    a = value(mib=64).view(4096, 4096)
    product = a
    for _ in range(40):
        product = product @ a  # in the queue when the next line is reached
        product = product / product.norm()
    assert coop.evict(product)
    assert session.stats().num_saves == 1
    assert session.stats().num_replays == 0
    expected = a
    for _ in range(40):
        expected = expected @ a
        expected = expected / expected.norm()
    assert same(product, expected)
    assert session.stats().num_replays == 1


def other_threads_and_streams_do_not_lose_what_is_saved() -> None:
    session = coop.install("256MiB", quiet_after=1)
    session._engine.end_step(True)
    made = [value(n) for n in range(12)]

    def work(first):
        with torch.cuda.stream(torch.cuda.Stream()):
            for n in range(first, 12, 2):
                made[n] = made[n] + 1
            more = [value(n) for n in range(8)]
            assert all(same(t, value(n)) for n, t in enumerate(more))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert all(same(t, value(n) + 1) for n, t in enumerate(made))


def train_with_larger_batches_at_the_end(budget: str = "") -> None:
    """Six batches that fit and are quiet from the fifth on, then larger ones that do not."""
    if not budget:
        for _ in _train():
            pass
        return
    session = coop.install(budget)
    saves = 0
    for number in _train():
        stats = session.stats()
        if number == 5:
            assert stats.num_searches == 0, stats
            assert stats.num_recipes == 0, stats
        if number == 6:
            assert stats.num_saves > 0, stats
            saves = stats.num_saves
    # It was not quiet any more.
    assert session.stats().num_saves == saves
    assert session.stats().num_replays > saves
    assert session.stats().peak_bytes <= session.stats().budget_bytes


def _train() -> Iterator[int]:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(8):
        layers += [
            torch.nn.Conv2d(16, 16, 3, padding=1),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(inplace=True),
            torch.nn.Dropout(0.1),
        ]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    losses = []
    for number in range(10):
        batch = 8 if number < 6 or number == 8 else 64
        x = torch.randn(batch, 16, 64, 64, device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        yield number
    digest = hashlib.sha256()
    for tensor in losses + list(model.state_dict().values()):
        digest.update(tensor.cpu().numpy().tobytes())
    print(digest.hexdigest())
