"""Checks and measures the engine on one GPU, every cell in a process of its own.

    python -m benchmarks.gpu.check identical   # the same bits as plain torch, down to small budgets
    python -m benchmarks.gpu.check full        # step time at 100% budget, alternating with plain
    python -m benchmarks.gpu.check curve       # step time against budget, beside checkpointing
    python -m benchmarks.gpu.check limits      # largest batch in 16 GiB; a 2.7B model

Each writes rows to benchmarks/results (or `--out`) and prints a table.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from coop.bench.results import environment

GIB = 2**30
MODELS = ("resnet50", "gpt2", "bert", "unet", "lstm")
RATIOS = "1,0.6,0.5,0.4,0.35,0.3,0.25,0.2"  # of what plain torch reserves
Row = dict[str, Any]


def command(model: str, mode: str, **options: object) -> list[str]:
    """The command line of a cell."""
    arguments = [sys.executable, "-m", "benchmarks.gpu.cell", "--model", model, "--mode", mode]
    for name, value in options.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is not None and value is not False:
            arguments += [f"--{name}", str(value)]
    return arguments


def run_cell(model: str, mode: str, **options: object) -> Row:
    """The row a cell prints, or a row with the reason why there is none."""
    try:
        result = subprocess.run(
            command(model, mode, **options),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
        if lines:
            return {**options, **json.loads(lines[-1])}
        reason = f"exit code {result.returncode}: {result.stderr[-600:]}"
    except subprocess.TimeoutExpired:
        reason = "more than 240 s"
    return {"model": model, "mode": mode, **options, "error": reason}


def run_many(cells: list[tuple[str, str, dict[str, object]]], at_once: int) -> list[Row]:
    """Rows in the order of the cells; their times mean nothing when several run at once."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda cell: run_cell(cell[0], cell[1], **cell[2]), cells))


def identical(models: tuple[str, ...], ratios: list[float], at_once: int) -> list[Row]:
    """Losses, gradients, parameters and buffers, down to budgets that do not fit any more."""
    fixed: dict[str, object] = {"deterministic": True, "digest": True, "steps": 3, "warmup": 1}
    plain = dict(zip(models, run_many([(m, "plain", fixed) for m in models], at_once), strict=True))
    rows = list(plain.values())
    cells = [
        (
            model,
            "coop",
            {**fixed, "budget": int(plain[model]["peak_reserved"] * ratio) // 512 * 512},
        )
        for model in models
        for ratio in ratios
    ]
    keys = [(model, ratio) for model in models for ratio in ratios]
    for (model, ratio), row in zip(keys, run_many(cells, at_once), strict=True):
        row["ratio"] = ratio
        if "digest" in row:  # it fitted
            row["identical"] = row["digest"] == plain[model]["digest"]
        rows.append(row)
    return rows


def alternating(model: str, budget: int, batch: int | None, rounds: int) -> list[Row]:
    """Plain and coop in turn, a few steps each and on the same cores: both see the same machine."""
    workers = {
        mode: subprocess.Popen(
            command(model, mode, budget=value, batch=batch, warmup=6, serve=True, cores="2,3"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for mode, value in (("plain", None), ("coop", budget))
    }
    times: dict[str, list[float]] = {mode: [] for mode in workers}
    ratios = []
    last: dict[str, Row] = {}
    for worker in workers.values():
        assert worker.stdout is not None
        while worker.stdout.readline().strip() != "ready":
            if worker.poll() is not None:
                return [{"model": model, "budget": budget, "error": "a worker ended early"}]
    for _ in range(rounds):
        for mode, worker in workers.items():
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write("8\n")
            worker.stdin.flush()
            times[mode] += json.loads(worker.stdout.readline())
        ratios.append(
            statistics.median(times["coop"][-8:]) / statistics.median(times["plain"][-8:])
        )
    for mode, worker in workers.items():
        output, _ = worker.communicate()
        last[mode] = json.loads([x for x in output.splitlines() if x.startswith("{")][-1])
    medians = {mode: statistics.median(values) for mode, values in times.items()}
    fastest = {mode: statistics.quantiles(values, n=10)[0] for mode, values in times.items()}
    operators = last["coop"]["per_step"]["num_operators"]
    return [
        {
            "model": model,
            "batch": last["plain"]["batch"],
            "budget": budget,
            "plain_ms": medians["plain"],
            "coop_ms": medians["coop"],
            "ratio": medians["coop"] / medians["plain"],
            # Of neighbours in time, where the machine has fast and slow minutes.
            "ratio_of_rounds": statistics.median(ratios),
            "quartiles_of_rounds": statistics.quantiles(ratios, n=4)[::2],
            # Others on the machine only ever make a step slower: the first deciles.
            "fastest_plain_ms": fastest["plain"],
            "fastest_coop_ms": fastest["coop"],
            "ratio_of_fastest": fastest["coop"] / fastest["plain"],
            "steps_each": len(times["plain"]),
            "num_operators": operators,
            "us_per_operator": (medians["coop"] - medians["plain"]) * 1e3 / operators,
            "evictions": last["coop"]["per_step"]["num_evictions"],
        }
    ]


def full(models: tuple[str, ...], rounds: int, pairs: int) -> list[Row]:
    """Step time at what plain torch reserves.

    A process is fast or slow for as long as it lives, by a few percent where the CPU counts: so
    several pairs of them.
    """
    rows = []
    for model, batch in [("resnet50", 64), *((m, None) for m in models)]:
        plain = run_cell(model, "plain", batch=batch, steps=2, warmup=2)
        if "error" in plain:
            rows.append(plain)
            continue
        for _ in range(pairs):
            rows += alternating(model, plain["peak_reserved"], batch, rounds)
            print(json.dumps(rows[-1]), flush=True)
        ratios = [row["ratio"] for row in rows[-pairs:] if "ratio" in row]
        if ratios:
            print(f"{model}: median of {len(ratios)} pairs {statistics.median(ratios):.4f}")
    return rows


def curve(models: tuple[str, ...], steps: int) -> list[Row]:
    """Step time against budget, and what torch.utils.checkpoint does at its own peak."""
    rows = []
    for model in models:
        timing = {"steps": steps, "warmup": 3}
        plain = run_cell(model, "plain", **timing)
        checkpointed = run_cell(model, "checkpoint", **timing)
        rows += [plain, checkpointed]
        if "error" in plain or "error" in checkpointed:
            continue
        budgets = {
            "checkpoint reserved": checkpointed["peak_reserved"],
            "checkpoint allocated": checkpointed["peak_allocated"],
            "85% of that": int(0.85 * checkpointed["peak_allocated"]),
            "70% of that": int(0.70 * checkpointed["peak_allocated"]),
        }
        for label, budget in budgets.items():
            row = run_cell(model, "coop", budget=budget // 512 * 512, **timing)
            row["label"] = label
            row["slowdown"] = row["ms"] / plain["ms"] if row.get("ms") else None
            row["checkpoint_slowdown"] = checkpointed["ms"] / plain["ms"]
            rows.append(row)
            print(model, label, budget, row.get("ms"), row.get("error", "")[:200], flush=True)
    return rows


def limits(at_once: int) -> list[Row]:
    """The largest batch in 16 GiB, and a 2.7B model with Adam where plain torch runs out."""
    timing = {"steps": 2, "warmup": 1}
    modes = ("plain", "coop")
    cells: list[tuple[str, str, dict[str, object]]] = [
        (model, mode, {"batch": batch, "budget": "16GiB", **timing})
        for model, batches in (("resnet50", (320, 384, 1024, 1152)), ("gpt2", (4, 5, 16, 18)))
        for mode in modes
        for batch in batches
    ]
    rows = run_many(cells, at_once)
    for mode, budget in [("plain", None), *((mode, "56GiB") for mode in modes)]:
        rows.append(run_cell("gpt3_2.7b", mode, batch=4, budget=budget, **timing))
    return rows


def table(rows: list[Row]) -> None:
    """The columns that matter."""
    for row in rows:
        stats = row.get("per_step", {})
        print(
            f"{row['model']:10s} {row.get('mode', ''):10s} batch {row.get('batch')!s:5s} "
            f"budget {row.get('budget')!s:12s} {row.get('label', row.get('ratio', ''))!s:20.20s} "
            f"ms {row.get('ms') or row.get('coop_ms') or 0:8.1f} "
            f"reserved {row.get('peak_reserved', 0) / GIB:6.2f} driver "
            f"{row.get('driver_bytes', 0) / GIB:6.2f} same {row.get('identical', '')!s:5s} "
            f"evict {stats.get('num_evictions', 0):6.0f} replay {stats.get('num_replays', 0):6.0f} "
            f"frag {row.get('stats', {}).get('fragmentation', 0):.3f} "
            f"search {stats.get('search_ns', 0) / 1e4 / (row.get('ms') or 1e9):.2f}% "
            f"{row.get('error', '')[:90]!r}"
        )


def main() -> int:
    """Runs one part and writes its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("identical", "full", "curve", "limits"))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ratios", default=RATIOS, help="for identical")
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=1, help="of processes, for full")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    models = tuple(filter(None, args.models.split(",")))
    ratios = [float(ratio) for ratio in args.ratios.split(",")]
    rows = {
        "identical": lambda: identical(models, ratios, args.at_once),
        "full": lambda: full(models, args.rounds, args.pairs),
        "curve": lambda: curve(models, args.steps),
        "limits": lambda: limits(args.at_once),
    }[args.part]()
    table(rows)
    about = {
        "command": " ".join(["python -m benchmarks.gpu.check", *sys.argv[1:]]),
        **environment("cuda"),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"gpu-{args.part}.json"
    path.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    print("wrote", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
