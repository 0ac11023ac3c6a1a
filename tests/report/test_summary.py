"""Five lines that a person understands: at the end of a run, and first in its report."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

import coop
from coop.summary import next_better, summarize

MIB = 2**20
NOTHING = coop.Stats(**dict.fromkeys(coop.Stats.__dataclass_fields__, 0))  # type: ignore[arg-type]


def stats(**changes: float) -> coop.Stats:
    held = {"budget_bytes": 10 * MIB, "peak_bytes": 9 * MIB, "needed_bytes": 20 * MIB}
    return dataclasses.replace(NOTHING, **(held | changes))  # type: ignore[arg-type]


SLOWER = stats(
    num_evictions=3, num_replays=1, evicted_bytes=5 * MIB, compute_ns=100, replay_ns=25, num_steps=4
)


def test_a_run_that_evicts() -> None:
    assert summarize(SLOWER, device="cuda:0", policy="dtr", seconds=8.4, report="out.html") == [
        "needed  20.00 MiB to run without evicting anything",
        "got     10.00 MiB on cuda:0 with the policy dtr; it held 9.00 MiB at most",
        "cost    about 25.0% more compute (estimated): 1 operator run again, "
        "3 evictions of 5.00 MiB; 4 steps in 8.4 s",
        "next    --budget 20.00MiB evicts nothing; a budget between the two recomputes less",
        "report  out.html",
    ]


def test_what_is_an_estimate_is_not_told_as_sure() -> None:
    lines = summarize(stats(num_evictions=1, needed_is_estimate=True), device="cpu")
    assert lines[0] == "needed  about 20.00 MiB to run without evicting anything"
    assert lines[3].startswith("next    --budget 20.00MiB evicts next to nothing;")


def test_a_run_that_fits() -> None:
    assert summarize(stats(needed_bytes=9 * MIB), device="cpu")[2:] == [
        "cost    nothing: no value was evicted",
        "next    all of it fits: --budget 9.00MiB is enough, and `coop plan` says what less would "
        "cost",
        "report  none (--report FILE writes one)",
    ]


@pytest.mark.parametrize(
    ("most", "enough", "text"),
    [
        (30, 0, "--budget 20.00MiB evicts nothing; a budget between the two recomputes less"),
        (15, 0, "up to --budget 15.00MiB is here, and each byte helps"),
        (11, 0, "a smaller batch: this is nearly all the memory that there is here"),
        (30, 12, "--budget 12.00MiB passes the point where it ran out"),
        (
            11,
            12,
            "a smaller batch: only 12.00 MiB would pass the point where it ran out, and there are "
            "11.00 MiB here",
        ),
    ],
)
def test_what_is_next_is_something_that_there_is(most: int, enough: int, text: str) -> None:
    assert next_better(SLOWER, most * MIB, enough * MIB) == text


def test_what_is_copied_to_main_memory_is_told() -> None:
    saving = dataclasses.replace(SLOWER, num_saves=2, saved_bytes=MIB)
    assert (
        "1 operator run again, 1.00 MiB copied to main memory, 3 ev"
        in summarize(saving, device="cuda:0")[2]
    )


def facts_of(path: Path) -> dict[str, object]:
    found = re.search(r'id="facts">(.*?)</script>', path.read_text())
    assert found is not None
    facts: dict[str, object] = json.loads(found[1])
    return facts


def test_the_report_begins_with_the_same_lines(tmp_path: Path) -> None:
    with coop.budget("300KiB", events=True) as session:
        values = [torch.ones(20_000).sin() for _ in range(4)]
        sum(values).sum().item()  # type: ignore[union-attr]
    path = tmp_path / "r.html"
    session.events.save_report(path)
    assert session.stats().num_evictions > 0
    assert facts_of(path)["summary"] == session.summary("this page")
    assert session.summary() == [
        *session.summary("this page")[:4],
        "report  none (--report FILE writes one)",
    ]


def test_running_out_is_the_end_only_if_no_step_came_after_it() -> None:
    with coop.budget("200KiB") as session:
        weight = torch.nn.Parameter(torch.ones(100))
        with pytest.raises(coop.OutOfBudgetError) as caught:
            torch.ones(100_000)
        enough = caught.value.shortage["sufficient_budget_bytes"]
        assert session.summary()[0].startswith("needed  more than ")
        assert session.summary()[3] == (
            f"next    --budget {enough / 1024 + 0.005:.2f}KiB passes the point where it ran out"
        )
        weight.sum().backward()  # type: ignore[no-untyped-call]
        torch.optim.SGD([weight], lr=0.1).step()
        assert "more than" not in session.summary()[0]
