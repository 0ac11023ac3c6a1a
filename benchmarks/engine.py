"""What the engine costs on the CPU, as ratios in one run: `make bench-engine`.

First the CPU time that it adds to an operator when nothing is evicted; then the programs of the
engine's tests: wall time at 100% of their peak, and slowdown at 0.7, 0.5 and 0.35 of it under each
policy (`-` where that does not fit). Plain and budgeted runs alternate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import coop
from tests.adapter.harness import POLICIES, peak_bytes, rounded
from tests.adapter.programs import PROGRAMS

DEFAULT_PROGRAMS = (
    "mlp",
    "cnn_with_batch_norm_and_inplace_relu",
    "residual_net",
    "transformer_with_dropout_and_sdpa",
    "lstm",
    "unet_with_long_skips",
    "tree_lstm_over_random_trees",
    "random_path_supernet",
    "mixture_of_experts",
)


def per_call_us(f: Callable[[], object], calls: int = 5000) -> float:
    """CPU time of this thread: other processes do not count. Best of five."""
    best = float("inf")
    for _ in range(6):
        begin = time.thread_time()
        for _ in range(calls):
            f()
        best = min(best, (time.thread_time() - begin) / calls)
    return best * 1e6


def operators() -> dict[str, Callable[[], object]]:
    """Operators whose plain dispatch is short, made anew for each side of the comparison."""
    small, square = torch.randn(8), torch.randn(64, 64)
    return {
        "add, 8 elements": lambda: torch.add(small, small),
        "add, 64 x 64 (recorded)": lambda: torch.add(square, square),
        "mm, 64 x 64 (recorded)": lambda: torch.mm(square, square),
        "view": lambda: square.view(4096),
    }


def run_ms(program: Callable[[int], object], budget_bytes: int | None, policy: str) -> float | None:
    """One run; None where it does not fit."""
    begin = time.perf_counter()
    if budget_bytes is None:
        program(0)
        return (time.perf_counter() - begin) * 1e3
    with coop.budget(budget_bytes, device="cpu", policy=policy):  # type: ignore[arg-type]
        begin = time.perf_counter()
        try:
            program(0)
        except coop.OutOfBudgetError:
            return None
        return (time.perf_counter() - begin) * 1e3


def slowdown(program: Callable[[int], object], budget_bytes: int, policy: str, runs: int) -> str:
    """Median of alternating runs, budgeted over plain."""
    ratios = []
    for _ in range(runs):
        plain = run_ms(program, None, policy)
        budgeted = run_ms(program, budget_bytes, policy)
        if budgeted is None or plain is None:
            return "-"
        ratios.append(budgeted / plain)
    return f"{statistics.median(ratios):.2f}"


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default=",".join(DEFAULT_PROGRAMS))
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)

    plain = {name: per_call_us(f) for name, f in operators().items()}
    with coop.budget("64MiB", device="cpu"):
        budgeted = {name: per_call_us(f) for name, f in operators().items()}
    print(f"{'operator':28s} {'plain us':>9s} {'coop us':>9s} {'added us':>9s}")
    for name, us in plain.items():
        print(f"{name:28s} {us:9.2f} {budgeted[name]:9.2f} {budgeted[name] - us:9.2f}")

    ratios = (0.7, 0.5, 0.35)
    print(f"\n{'program':40s} {'100%':>6s}", end="")
    print("".join(f" {policy}@{ratio:<5}" for policy in POLICIES for ratio in ratios))
    for name in args.programs.split(","):
        program = PROGRAMS[name]
        run_ms(program, None, "coop")  # warm up
        peak = peak_bytes(program)
        print(
            f"{name:40s} {slowdown(program, rounded(peak), 'coop', args.runs):>6s}",
            end="",
            flush=True,
        )
        for policy in POLICIES:
            for ratio in ratios:
                result = slowdown(program, rounded(ratio * peak), policy, args.runs)
                print(f" {result:>{len(policy) + 6}s}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
