"""Copies in page-locked main memory, by streams of their own, while the GPU is behind."""

from __future__ import annotations

import contextlib
import hashlib
import random

import torch
from torch import nn

import coop
from benchmarks.offload_hooks import OffloadHooks
from tests.cuda.programs import MIB, same


def _busy() -> None:
    torch.cuda._sleep(200_000_000)  # about a tenth of a second


def _whole(n: int, mib: int = 64) -> torch.Tensor:
    """Whole numbers, so that sums are exact."""
    numbers = torch.arange(mib * MIB // 4, dtype=torch.int32, device="cuda")
    return numbers.remainder(1000).add(n).float()


def _roots(session: coop.Session) -> None:
    """What has survived a whole step can only leave by a copy."""
    session._engine.end_step(True)
    session._engine.end_step(True)


def _overwrite_what_is_free(num_mib: int) -> None:
    assert len([torch.full((MIB,), -1.0, device="cuda") for _ in range(num_mib // 4)]) > 0


def what_leaves_is_what_the_stream_has_not_computed_yet() -> None:
    session = coop.install("768MiB", host="1GiB")
    x = _whole(0)
    _roots(session)
    for _ in range(3):
        _busy()
        x += 1
        assert coop.evict(x)
        _overwrite_what_is_free(256)
        assert same(x, _whole(1))
        x -= 1
    stats = session.stats()
    assert stats.num_host_saves == stats.num_host_loads == 3, stats
    assert stats.num_replays == 0, stats


def nobody_waits_for_a_copy() -> None:
    session = coop.install("512MiB", host="1GiB")
    x, y = _whole(1), _whole(2)
    _roots(session)
    for tensor in (x, y):  # the pool is taken
        assert coop.evict(tensor)
        coop.materialize(tensor)
        tensor += 1
    torch.cuda.synchronize()
    _busy()
    x += 1
    behind = torch.cuda.Event()
    behind.record()
    assert coop.evict(x)
    assert coop.evict(y)
    _overwrite_what_is_free(256)
    coop.materialize(x)
    coop.materialize(y)
    assert not behind.query()
    assert same(x, _whole(3))
    assert same(y, _whole(3))


def another_stream_reads_what_comes_back() -> None:
    session = coop.install("768MiB", host="1GiB")
    x = _whole(0)
    _roots(session)
    side = torch.cuda.Stream()
    for repeat in range(5):
        _busy()
        x += 1
        assert coop.evict(x) or repeat > 0  # what another stream has used stays
        _overwrite_what_is_free(256)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result = x * 1
        torch.cuda.current_stream().wait_stream(side)
        assert same(result, _whole(repeat + 1))


def any_order_of_writing_leaving_and_coming_back() -> None:
    """Twice as many bytes as the budget, in a pool that has hardly room for the rest."""
    session = coop.install("256MiB", host="448MiB", small_bytes=0)
    rng = random.Random(0)
    tensors = [torch.zeros(2 * MIB, device="cuda") for _ in range(48)]  # 8 MiB each
    expected = [0] * len(tensors)
    for round_ in range(1500):
        i, j = rng.sample(range(len(tensors)), 2)
        if rng.random() < 0.05:
            _busy()
        choice = rng.random()
        if choice < 0.4:
            tensors[i] += 1
            expected[i] += 1
        elif choice < 0.6:
            tensors[i].copy_(tensors[j])
            expected[i] = expected[j]
        elif choice < 0.7:
            tensors[i] = tensors[j] + 1
            expected[i] = expected[j] + 1
        elif choice < 0.85:
            coop.evict(tensors[i])
        else:
            coop.materialize(tensors[i])
        if round_ % 10 == 0:
            session._engine.end_step(True)
    for tensor, content in zip(tensors, expected, strict=True):
        assert float(tensor.min()) == float(tensor.max()) == content
    stats = session.stats()
    assert min(stats.num_host_saves, stats.num_host_loads) > 100, stats
    assert stats.host_peak_bytes <= stats.host_bytes == 448 * 2**20, stats
    assert stats.peak_bytes <= stats.budget_bytes


def train(budget: str = "", host: str = "0", kind: str = "", paranoid: str = "") -> None:
    """Prints a digest of losses, parameters and state. 192 MiB of parameters, 768 with the rest."""
    session = None
    if budget:
        session = coop.install(budget, host=host, paranoid=bool(paranoid))
    torch.manual_seed(0)
    width, depth = (256, 4) if paranoid or kind == "small" else (2048, 12)
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    kinds = {"foreach": {"foreach": True}, "fused": {"fused": True}}
    optimizer = torch.optim.AdamW(model.parameters(), **kinds.get(kind, {"foreach": False}))
    losses = []
    for _ in range(6):
        x = torch.randn(512, width, device="cuda")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    digest = hashlib.sha256()
    states = [t for state in optimizer.state.values() for t in state.values()]
    for tensor in [*losses, *model.parameters(), *states]:
        digest.update(tensor.detach().cpu().numpy().tobytes())
    print(digest.hexdigest())
    if session is not None and host != "0":
        stats = session.stats()
        assert min(stats.num_host_saves, stats.num_host_loads) > 0, stats
        assert stats.peak_bytes <= stats.budget_bytes, stats


def train_with_hooks(hooks: str = "") -> None:
    """The activations' offloading that copies are compared with."""
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (nn.Linear(1024, 1024), nn.GELU(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers).cuda()
    context = OffloadHooks() if hooks else contextlib.nullcontext()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with context:
            loss = model(torch.randn(4096, 1024, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    parameters = [p.detach().cpu().numpy().tobytes() for p in model.parameters()]
    print(hashlib.sha256(b"".join(parameters)).hexdigest())
