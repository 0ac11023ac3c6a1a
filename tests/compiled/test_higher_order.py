"""Operators that take functions (flex attention, cond, loops), eager and compiled, in a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import coop
from coop._native import _C

ROWS, WIDTH = 128, 64


@pytest.fixture(autouse=True)
def compiled_afresh() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


def cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def loop(x: Tensor) -> Tensor:
    def step(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.tanh(y) * 1.5

    return while_loop(lambda i, y: i < 3, step, (torch.zeros((), dtype=torch.int64), x))[1]


def prefix(x: Tensor) -> Tensor:
    return associative_scan(torch.add, x, dim=0, combine_mode="generic")


def flex(x: Tensor) -> Tensor:
    def nearer(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score - 0.1 * (q - k)

    heads = x.view(1, ROWS, 4, WIDTH // 4).transpose(1, 2)
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, ROWS, ROWS, device="cpu")
    out = flex_attention(heads, heads * 0.5, heads + 1, score_mod=nearer, block_mask=mask)
    return out.transpose(1, 2).reshape(ROWS, WIDTH)


def check(f: Callable[[Tensor], Tensor], how: str) -> None:
    run = f if how == "eager" else torch.compile(f, backend=how)
    given = torch.randn(ROWS, WIDTH)
    with torch.no_grad():
        expected = run(given)
    torch._dynamo.reset()
    with coop.budget("64 MiB", device="cpu", quiet_after=None) as session, torch.no_grad():
        result = run(given * 1)
        assert coop.evict(result)
        assert torch.equal(result, expected)
        assert session.stats().num_replays > 0


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("how", ["eager", "aot_eager"])
@pytest.mark.parametrize("f", [cond, loop, flex])
def test_what_they_make_comes_back(f: Callable[[Tensor], Tensor], how: str) -> None:
    check(f, how)


def test_what_they_make_comes_back_on_leaving_the_budget() -> None:
    run = torch.compile(cond, backend="aot_eager")
    given = torch.randn(ROWS, WIDTH)
    with coop.budget("64 MiB", device="cpu", quiet_after=None), torch.no_grad():
        result = run(given * 1)
        assert coop.evict(result)
    assert torch.equal(result, cond(given))


@pytest.mark.slow
@pytest.mark.parametrize("f", [cond, loop, prefix, flex])
def test_what_they_make_comes_back_by_inductor(f: Callable[[Tensor], Tensor]) -> None:
    check(f, "inductor")


def test_a_graph_may_checkpoint_inside() -> None:
    """Torch's checkpoint is such an operator there; with dropout, whose numbers come again."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def run(x: Tensor) -> Tensor:
        return checkpoint(model, x, use_reentrant=False).square().mean()

    def step() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        loss = run(x)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    x = torch.randn(ROWS, WIDTH)
    expected = step()
    torch._dynamo.reset()
    with coop.budget("64 MiB", device="cpu", quiet_after=None):
        for one, other in zip(step(), expected, strict=True):
            assert torch.equal(one, other)
    names = [name for name in _C.operator_names() if "checkpoint_inside.<locals>.run" in name]
    assert len(names) >= 2
