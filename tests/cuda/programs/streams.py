"""Streams of the program's own, beside the engine's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import coop
from coop.simulate import simulate
from coop.trace import read_trace
from tests.cuda.programs import MIB, same, value


def _overwrite_what_is_free() -> None:
    assert len([torch.full((2 * MIB,), -1.0, device="cuda") for _ in range(64)]) == 64


def _busy() -> None:
    torch.cuda._sleep(100_000_000)  # tens of milliseconds


def memory_of_another_stream_is_not_reused_before_it_is_done() -> None:
    coop.install("512MiB")
    side = torch.cuda.Stream()
    for repeat in range(20):
        source = torch.full((16 * MIB,), float(repeat), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(20):
                torch.cuda._sleep(100_000)
            result = source.clone()
        source.record_stream(side)
        del source
        garbage = torch.full((16 * MIB,), -1.0, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        assert float(result.min()) == float(result.max()) == repeat
        del result, garbage


def what_another_stream_reads_stays_until_it_is_done() -> None:
    coop.install("512MiB")
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x = value()
    expected = x.cpu() + 1
    side.wait_stream(main)
    with torch.cuda.stream(side):
        _busy()
        y = x + 1
    coop.evict(x)
    _overwrite_what_is_free()
    torch.cuda.synchronize()
    assert same(y, expected)


def a_trace_knows_what_another_stream_uses() -> None:
    """What the engine keeps for a stream the simulator keeps too."""
    session = coop.install("512MiB")
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "streams.jsonl")
        with coop.record(path):
            used, recorded, other = value(0), value(1), value(2)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                y = used + 1
            recorded.record_stream(side)
            torch.cuda.synchronize()
            evicted = [coop.evict(x) for x in (used, recorded, other)]
        assert evicted == [False, False, True]
        assert same(y, value(0) + 1)
        assert session.stats().num_evictions == 1
        assert simulate(read_trace(path), 512 * MIB).stats["num_evictions"] == 1


def what_another_stream_brings_back_is_there_for_all() -> None:
    session = coop.install("512MiB")
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    x = value()
    expected = (x + 1).cpu(), (x * 2).cpu()  # loads the kernels, too, which would wait for the GPU
    assert coop.evict(x)
    _overwrite_what_is_free()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        _busy()
        y = x + 1
    z = x * 2  # does not wait for it
    torch.cuda.synchronize()
    assert session.stats().num_replays > 0
    assert same(y, expected[0])
    assert same(z, expected[1])


def what_another_stream_overwrites_is_kept_for_replays() -> None:
    session = coop.install("512MiB")
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    root = value().cpu().cuda()
    made = [root + n for n in range(4)]
    expected = [x.cpu() for x in made]
    written = root.cpu() + 1
    assert all(coop.evict(x) for x in made)
    _overwrite_what_is_free()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        _busy()
        root.add_(1)
    again = [x * 1 for x in made]
    torch.cuda.synchronize()
    assert session.stats().num_replays >= 4
    assert all(same(x, y) for x, y in zip(again, expected, strict=True))
    assert same(root, written)
