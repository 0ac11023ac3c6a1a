"""Processes that a launcher starts together: each has its budget, and one of them sums up."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coop.ranks import Ending, Rank, current_rank, summary, write_index
from tests.command_line import ROOT, environment

ENDING = Ending(
    rank=0,
    budget_bytes=2**20,
    peak_bytes=2**19,
    needed_bytes=2**21,
    needed_is_estimate=False,
    num_steps=3,
    num_evictions=4,
    overhead=1.25,
    seconds=2.0,
)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, (5, 1, 4)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, (1, 1, 2)),
        ({"SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_NTASKS_PER_NODE": "4"}, (6, 2, 4)),
    ],
)
def test_the_environment_says_who_a_process_is(
    variables: dict[str, str], expected: tuple[int, int, int] | None
) -> None:
    rank = current_rank(variables)
    assert (rank and (rank.rank, rank.local_rank, rank.local_size)) == expected


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Rank]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return [Rank(i, i, 2, "test") for i in range(2)]


def test_the_last_rank_that_ends_gets_all_endings(ranks: list[Rank], tmp_path: Path) -> None:
    second = replace(ENDING, rank=1, budget_bytes=2**19, overhead=1.5, failure="ValueError: x")
    assert ranks[1].end(second) is None
    endings = ranks[0].end(ENDING)
    assert endings == [ENDING, second]
    assert summary(endings) == [
        "2 ranks, 2.0 s, 3 steps, 8 evictions",
        "most overhead: rank 1, 50.0% (estimated)",
        "tightest: rank 1, budget 512.00 KiB, peak 512.00 KiB; nothing is evicted there from "
        "2.00 MiB on (--budget 2097152)",
        "rank 1 failed: ValueError: x",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_told_to_the_others(ranks: list[Rank]) -> None:
    assert ranks[0].first_failure() == ""
    ranks[1].fail("OutOfBudgetError: coop: aten::mm")
    assert ranks[0].first_failure() == "rank 1 failed: OutOfBudgetError: coop: aten::mm"
    assert ranks[1].first_failure() == ""


def test_a_folder_of_others_is_not_used(ranks: list[Rank], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"coop-{os.getuid()}-test").symlink_to(tmp_path / "elsewhere")
    ranks[1].fail("x")
    assert ranks[0].end(ENDING) is None
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_page_links_the_reports(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_index(page, "<train>", [replace(ENDING, report="report.rank0.html")])
    text = page.read_text()
    assert "<a href='report.rank0.html'>rank 0</a>" in text
    assert "<train>" not in text


# --- launched -------------------------------------------------------------------------------------

needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch was built without gloo",
)
# Rank 1 does what the argument says, while rank 0 waits for it.
ONE_FAILS = """\
import os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
how = sys.argv[1]
dist.barrier()
if dist.get_rank() == 1:
    if how == "raises":
        raise ValueError("no such thing")
    if how == "budget":
        torch.zeros(2**20)
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
dist.all_reduce(torch.zeros(4))
time.sleep(60)  # whatever the process group says, it would go on
"""


def launch(folder: Path, *words: object) -> tuple[str, str]:
    """What two processes print."""
    two = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run(
        [sys.executable, "-m", *two, *map(str, words)],
        cwd=folder,
        env=environment(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=1000,
    )
    return ran.stdout, ran.stderr


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize(("example", "budget"), [("ddp", "40MiB"), ("fsdp2_llama", "24MiB")])
def test_an_example_prints_the_same_in_a_budget(tmp_path: Path, example: str, budget: str) -> None:
    script = ROOT / "examples" / f"{example}.py"
    plain, _ = launch(tmp_path, script, "--steps", 3)
    assert plain.count("step ") == 3
    report = ("--report", "report.html")
    found, errors = launch(tmp_path, "-m", "coop", "run", "--budget", budget, *report, script,
                           "--steps", 3)  # fmt: skip
    assert found == plain, errors
    lines = [line for line in errors.splitlines() if line.startswith("coop: ")]
    assert re.fullmatch(r"coop: 2 ranks, [\d.]+ s, 3 steps, [1-9]\d* evictions", lines[0])
    assert len(lines) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "report.html",
        "report.rank0.html",
        "report.rank1.html",
    ]


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "rank 1 failed: ValueError: no such thing"),
        ("budget", "rank 1 failed: OutOfBudgetError: coop: "),
        ("interrupt", "rank 1 failed: interrupted"),
    ],
)
def test_the_others_say_which_rank_failed(tmp_path: Path, how: str, message: str) -> None:
    (tmp_path / "train.py").write_text(ONE_FAILS)
    _, errors = launch(tmp_path, "-m", "coop", "run", "--budget", "1MiB", "train.py", how)
    assert message in errors


# Without a GPU accelerate starts one process (several by MPI only); with GPUs it is torchrun's.
ACCELERATED = """\
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(128, 128), torch.nn.GELU())]
model = torch.nn.Sequential(*layers)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(512, 128)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    print(loss.item().hex())
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs accelerate")
def test_accelerate_launches_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ACCELERATED)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    found = [
        subprocess.run(
            [*command, *words, "train.py"],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=1000,
        )
        for words in ([], ["-m", "coop", "run", "--budget", "6MiB"])
    ]  # fmt: skip
    assert found[0].stdout == found[1].stdout
    assert found[1].stdout.count("0x1") == 3, found[1].stderr
    assert re.search(r"coop: [1-9]\d* evictions", found[1].stderr)
