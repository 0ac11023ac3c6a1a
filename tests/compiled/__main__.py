"""How far down compiled programs go: `python -m tests.compiled`, a table for docs/compiled.md."""

from __future__ import annotations

import functools
import sys

import torch

import coop
from tests.adapter.harness import (
    AMPLE_BYTES,
    assert_identical,
    rounded,
    run_budgeted,
    run_plain,
    try_budget,
)

from . import compiled_programs
from .compiled_programs import EVICTING, OTHERS

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
# Of blocks, so that one of them is a small part of a program.
DEPTH = 16
KIB = 1024


def row(name: str, backend: str) -> str:
    torch._dynamo.reset()
    run = functools.partial({**EVICTING, **OTHERS}[name], backend=backend)
    plain = run_plain(run)
    _, ample = run_budgeted(run, AMPLE_BYTES)
    cells = "none below 100% | | "
    for share in SHARES:
        fit = try_budget(run, rounded(share * ample.peak_bytes))
        if fit is None:
            break
        assert_identical(plain, fit.outcome)
        cells = f"{share:.0%} | {fit.stats.num_evictions} | {fit.stats.num_replays} "
    return f"| {name.replace('_', ' ')} | {ample.peak_bytes // KIB} | {cells}|"


def main(backend: str = "inductor", *names: str) -> None:
    torch.set_num_threads(1)
    compiled_programs.DEPTH = DEPTH
    with coop.budget("1 MiB", device="cpu"):
        pass  # what is compiled from now on is seen
    print("| program | peak KiB | smallest budget | evictions | replays |")
    print("| --- | --- | --- | --- | --- |")
    for name in names or (*EVICTING, *OTHERS):
        print(row(name, backend), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
