"""Scalars of every step, with the real packages where they are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coop
from coop.integrations.scalars import log_scalars
from coop.progress import Step

from .recordings import train_a_little


class Run:
    """What a run of wandb is asked for."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, float], bool]] = []

    def log(self, data: dict[str, float], commit: bool) -> None:
        self.rows.append((data, commit))


def test_a_run_gets_a_row_a_step_until_it_is_stopped() -> None:
    run = Run()
    with coop.budget("9MiB", device="cpu") as session:
        stop = log_scalars(run)
        train_a_little(2)
        stop()
        train_a_little(1)
        assert session.stats().num_steps == 3
    assert [row["coop/step"] for row, _ in run.rows] == [1, 2]
    assert [commit for _, commit in run.rows] == [False, False]
    assert set(run.rows[0][0]) == {f"coop/{name}" for name in Step.__annotations__}
    assert run.rows[1][0]["coop/num_evictions"] > 0


def test_without_a_budget_or_a_writer_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="there is no budget"):
        log_scalars(Run())
    with coop.budget("9MiB", device="cpu"), pytest.raises(TypeError, match="int has neither"):
        log_scalars(1)


def test_tensorboard_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    steps: list[Any] = []
    with coop.budget("9MiB", device="cpu") as session, SummaryWriter(str(tmp_path)) as writer:
        session.on_step(steps.append)
        log_scalars(writer, session)
        train_a_little(3)
    read = EventAccumulator(str(tmp_path)).Reload()
    rows = [(row.step, row.value) for row in read.Scalars("coop/num_evictions")]
    assert rows == [(step["step"], step["num_evictions"]) for step in steps]
    assert len(rows) == 3
