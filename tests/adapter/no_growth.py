"""10,000 steps of a small model inside a budget, as a table: `make no-growth`.

Fails when anything grows: recipes, values, blocks, held bytes, the resident set, evictions a step;
and when steps do not follow a schedule. With `--host` parameters and state leave too, and copies in
main memory may not grow either; such steps need not follow a schedule.
"""

from __future__ import annotations

import argparse
import sys

from .harness import peak_bytes, rounded
from .long_run import train
from .test_growth import MIB, Sample, long_run

SHAPE = {"rows": 512, "depth": 5}
COLUMNS = (
    "num_recipes",
    "num_values",
    "num_blocks",
    "held_bytes",
    "host_held_bytes",
    "resident_bytes",
)
HOST_BYTES = 16 * MIB


def grown(samples: list[Sample], *, follows: bool) -> list[str]:
    """What is more in the second half than in the first, of the samples after the warm-up."""
    half = len(samples) // 2
    early, late = samples[:half], samples[half:]
    found = []
    for column in COLUMNS:
        allowed = 1 * MIB if column == "resident_bytes" else 0
        if not follows and column != "resident_bytes":
            allowed = 0.1 * max(sample[column] for sample in early)  # no two steps are the same
        before = max(sample[column] for sample in early)
        after = max(sample[column] for sample in late)
        if after > before + allowed:
            found.append(f"{column} grew from {before:,.0f} to {after:,.0f}")
    followed = late[-1]["num_followed"] - late[0]["num_followed"]
    if follows and followed < late[-1]["step"] - late[0]["step"]:
        found.append(f"only {followed:,.0f} steps of the second half followed a schedule")
    # Time is printed only: on a busy machine it grows by itself.
    before, after = (
        (part[-1]["num_evictions"] - part[0]["num_evictions"]) / (len(part) - 1)
        for part in (early, late)
    )
    if after > (1.01 if follows else 1.1) * before:
        found.append(f"{before:,.0f} evictions a sample, then {after:,.0f}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--host", action="store_true", help="with room for copies")
    args = parser.parse_args()
    steps = args.steps
    every = steps // 20
    # With hardly any activations, what fills memory are parameters, gradients and state.
    shape = SHAPE | {"rows": 8} if args.host else SHAPE
    budget = rounded(0.6 * peak_bytes(lambda seed: train(3, **shape)))
    host = HOST_BYTES if args.host else 0
    samples = long_run(steps=steps, every=every, budget=budget, host=host, **shape)
    print(f"budget {budget:,} bytes")
    print(
        f"{'step':>6} {'followed':>8} {'evictions':>10} {'ms a step':>9}",
        *(f"{name:>15}" for name in COLUMNS),
    )
    before = 0.0
    for sample in samples:
        sample["ms_a_step"] = (sample["cpu_seconds"] - before) / every * 1e3
        before = sample["cpu_seconds"]
        counts = (f"{sample[name]:15,.0f}" for name in COLUMNS)
        print(
            f"{sample['step']:6.0f} {sample['num_followed']:8,.0f} "
            f"{sample['num_evictions']:10,.0f} {sample['ms_a_step']:9.2f}",
            *counts,
        )
    # The first has the start of the process in it.
    found = grown(samples[1:], follows=not args.host)
    print("\n".join(found) or "nothing grew")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
