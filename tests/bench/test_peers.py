"""What a user could pick instead of coop: set up as it should be, and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.models.workload import Workload
from benchmarks.peers.__main__ import order
from benchmarks.peers.pareto import STYLES, draw, front, table
from benchmarks.peers.throughput import best
from benchmarks.peers.throughput import table as throughput_table
from benchmarks.peers.ways import WAYS, Setup, Way, by_block, selectively

WIDTH, ROWS, BLOCKS = 16, 8, 3


class Block(nn.Module):
    """Three products and what lies between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Layers."""
        y = x
        for layer in self.layers:
            y = torch.tanh(layer(y))
        return x + y.square()


WORKLOAD = Workload(
    name="blocks",
    size="tiny",
    batch_size=ROWS,
    build=lambda: nn.Sequential(*(Block() for _ in range(BLOCKS))),
    sample=lambda generator: (torch.randn(ROWS, WIDTH, generator=generator),),
    objective=lambda model, batch: model(*batch).square().sum(),
    optimize=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    block_types=(Block,),
)


def one_step(way: Way) -> tuple[list[Tensor], int]:
    """Gradients, and products of a forward and a backward pass."""
    model = WORKLOAD.make_model(0)
    setup = Setup(WORKLOAD, model, WORKLOAD.make_optimizer(model), "cpu")
    way.apply(setup)
    with FlopCounterMode(display=False) as counter:
        WORKLOAD.loss(model, WORKLOAD.make_batch(0)).backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return gradients, counter.get_total_flops() // (2 * ROWS * WIDTH * WIDTH)


def test_checkpointing_recomputes_all_products_of_a_block_and_selective_every_second() -> None:
    gradients, plain = one_step(Way("plain"))
    others = [one_step(Way("", apply=apply)) for apply in (by_block, selectively)]
    for found, _ in others:
        assert all(torch.equal(a, b) for a, b in zip(gradients, found, strict=True))
    assert [products - plain for _, products in others] == [3 * BLOCKS, BLOCKS]


def test_every_way_has_a_label_of_its_own_and_a_style() -> None:
    labels = [way.label for way in WAYS]
    assert len(set(labels)) == len(labels)
    assert {way.name for way in WAYS} == set(STYLES)
    assert len({(mark, light) for mark, light, _ in STYLES.values()}) == len(STYLES)


def row(peer: str, mib: int, ms: float) -> dict[str, object]:
    """As a cell prints it."""
    return {
        "model": "m", "way": peer, "peer": peer, "device": "cpu", "ms": ms,
        "ms_range": [ms - 1, ms + 2], "memory_bytes": mib * 2**20,
    }  # fmt: skip


def test_the_front_is_what_no_other_beats_in_both() -> None:
    rows = [row("plain", 100, 10), row("checkpoint", 50, 14), row("coop", 50, 12)]
    rows += [row("save_on_cpu", 60, 30), row("compile", 90, 9)]
    assert [each["peer"] for each in front(rows)] == ["coop", "compile"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_picture_is_drawn_twice_the_same_and_the_table_says_why_one_did_not_run(
    theme: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    rows = [row("plain", 100, 10), row("coop", 50, 12)]
    svg, png = draw("m", rows, theme)
    assert svg == draw("m", rows, theme)[0]
    assert b">coop<" in svg or b"coop" in svg
    assert png.startswith(b"\x89PNG")
    missing = {"model": "m", "way": "offload hooks", "why_not": "no GPU"}
    text = table([*rows, missing])
    assert "| m | coop | 12.0 | 50 | +20% |" in text
    assert "| m | offload hooks | no GPU | | |" in text


def test_the_best_batch_of_each_way_and_why_one_never_fitted() -> None:
    def within(way: str, batch: int, ms: float | None) -> dict[str, object]:
        found = {"model": "m", "way": way, "peer": way, "within_bytes": 2**30, "batch_size": batch}
        return {**found, "ms": ms} if ms else {**found, "why_not": "out of memory"}

    rows = [within("plain", 2, 10), within("plain", 4, None), within("coop", 2, 11)]
    rows += [within("coop", 4, 18), within("compile", 2, None)]
    assert [(r["way"], r["batch_size"]) for r in best(rows)] == [("coop", 4), ("plain", 2)]
    text = throughput_table(rows)
    assert "| m | 1.00 GiB | coop | 222.22 | 4 |" in text
    assert "| m | 1.00 GiB | compile | out of memory | |" in text
    assert text.count("plain") == 1


def test_another_batch_begins_with_the_same_samples() -> None:
    (own,) = WORKLOAD.make_batch(0)
    for size in (3, ROWS, 2 * ROWS + 1):
        (other,) = WORKLOAD.with_batch(size).make_batch(0)
        assert torch.equal(other, own.repeat(3, 1)[:size])


def test_what_tells_most_is_measured_first() -> None:
    """Plain before the shares of it; every one of the first models before a second turn of one."""
    cells = [(order(i, way), i, way.label) for i in (0, 3, 4) for way in WAYS]
    labels = [(i, label) for _, i, label in sorted(cells, key=lambda cell: cell[0])]
    for i in (0, 3, 4):
        own = [label for index, label in labels if index == i]
        for way in WAYS:
            assert not way.share or own.index(way.of) < own.index(way.label)
    assert labels.index((3, "coop 50%")) < labels.index((0, "compile"))
    assert labels.index((3, "coop 30%")) < labels.index((4, "plain"))
