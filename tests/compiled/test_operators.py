"""A slice of `python -m tests.compiled.operators`."""

from __future__ import annotations

import pytest

from .operators import verdicts

# Views, in-place copies, random numbers, several results, a statistic that is written.
QUICK = ("add", "cumsum", "nn.functional.dropout", "sort", "squeeze", "nn.functional.batch_norm")


@pytest.mark.parametrize("name", QUICK)
def test_operators_as_graphs_are_the_same_bits(name: str) -> None:
    judged = [(case.name, verdict) for case, verdict in verdicts(name)]
    assert [(case, v.kind, v.detail) for case, v in judged] == [
        (case, "same", "") for case, _ in judged
    ]
    assert sum(v.stats.num_replays for _, v in judged if v.stats is not None) > 0
