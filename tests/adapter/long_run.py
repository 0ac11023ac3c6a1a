"""A long training run that reports on itself: `python -m tests.adapter.long_run --help`.

It runs in a process of its own, so that the resident set is that of training and of nothing else.
Prints a JSON list: the samples taken every so many steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from . import models
from .outcome import Outcome, collect


def train(
    steps: int, *, rows: int, depth: int, on_step: Callable[[int], None] = lambda step: None
) -> Outcome:
    """A small model with dropout; `rows` alone decides how large its activations are."""
    torch.manual_seed(0)
    model = nn.Sequential(models.mlp(width=32, depth=depth), nn.Dropout(0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.randn(rows, 32)), torch.randint(16, (rows,)))
        loss.backward()
        optimizer.step()
        on_step(step)
    return collect([loss.detach()], modules=[model])


def resident_bytes(field: str = "VmRSS") -> int:
    """The resident set of this process; `VmHWM`: the largest that it was."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--every", type=int, required=True, help="steps between two samples")
    parser.add_argument("--budget", type=int, help="in bytes; without one, plain PyTorch")
    parser.add_argument("--host", type=int, default=0, help="room for copies; small ones leave too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    samples: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        session = None
        if arguments.budget is not None:
            import coop

            changes: coop.ConfigChanges = {}
            if arguments.host:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                changes = {"host": arguments.host, "host_dir": folder, "small_bytes": 0}
            session = stack.enter_context(coop.budget(arguments.budget, device="cpu", **changes))

        def sample(step: int) -> None:
            if (step + 1) % arguments.every == 0:
                counts = session.stats().as_dict() if session else {}
                now = {
                    "resident_bytes": resident_bytes(),
                    "most_resident_bytes": resident_bytes("VmHWM"),
                    "cpu_seconds": time.process_time(),
                }
                samples.append({**counts, "step": step + 1, **now})

        train(arguments.steps, rows=arguments.rows, depth=arguments.depth, on_step=sample)
    print(json.dumps(samples))


if __name__ == "__main__":
    main()
