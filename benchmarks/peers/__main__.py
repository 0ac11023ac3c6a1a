"""Runs what is missing of all peers on all models, each in a process of its own.

Every row is written when it is measured, and the same command goes on with what is missing: with
`--minutes` in slices. A cell that fails is a row that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.ways import WAYS, Way
from coop.files import write_whole

# Name and batch (None: its own).
MODELS: dict[str, tuple[tuple[str, int | None], ...]] = {
    "tiny": (("gpt3", 4), ("unet", 2)),
    "paper": (
        ("llama_1b", None),
        ("hf_gpt2", None),
        ("hf_bert", None),
        ("tv_resnet50", None),
        ("unet", None),
        ("lstm", None),
        ("whisper_small", None),
        ("t5_base", None),
        ("vit_large", None),
        ("convnext_base", None),
        ("qwen3", None),
        ("mixtral", None),
        ("diffusion_unet", None),
    ),
}
# Of one cell.
MOST_SECONDS = {"tiny": 600, "paper": 300}


def main() -> int:
    """0: nothing is missing any more; 3: the time of this slice is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=("tiny", "paper"), default="paper")
    parser.add_argument("--models", help="a,b: only these")
    parser.add_argument("--minutes", type=float, default=1e9, help="of this slice")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    rows: list[dict[str, Any]] = json.loads(args.out.read_text()) if args.out.exists() else []
    names = args.models.split(",") if args.models else None
    for model, batch in MODELS[args.size]:
        if names is not None and model not in names:
            continue
        for way in WAYS:
            if args.size == "tiny" and not way.is_quick:
                continue
            if any(row["model"] == model and row["way"] == way.label for row in rows):
                continue
            if time.monotonic() > end:
                print("the time of this slice is over: the same command goes on", flush=True)
                return 3
            rows.append(run_cell(model, batch, way, args.size, rows))
            write_whole(args.out, (json.dumps(rows, indent=1) + "\n").encode())
            print(describe(rows[-1]), flush=True)
    return 0


def run_cell(
    model: str, batch: int | None, way: Way, size: str, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """One row."""
    plain = [row for row in rows if row["model"] == model and row["way"] == "plain"]
    plain_bytes = plain[0].get("memory_bytes", 0) if plain else 0
    row: dict[str, Any] = {"model": model, "way": way.label, "peer": way.name, "size": size}
    if way.share and not plain_bytes:
        return {**row, "why_not": "plain torch does not run: no share of what it takes"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peers.cell", model, way.label]
    command += ["--size", size, "--plain-bytes", str(plain_bytes)]
    command += [] if batch is None else ["--batch", str(batch)]
    begin = time.monotonic()
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=MOST_SECONDS[size], env=environment()
        )
    except subprocess.TimeoutExpired:
        return {**row, "why_not": f"not done in {MOST_SECONDS[size]} s"}
    lines = ran.stdout.splitlines()
    if ran.returncode == 0 and lines:
        row = json.loads(lines[-1])
    else:
        row["why_not"] = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
    return {**row, "took_seconds": round(time.monotonic() - begin, 1)}


def environment() -> dict[str, str]:
    """Of a cell: what is compiled is kept for the next one."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "COOP_QUIET": "1"}


def describe(row: dict[str, Any]) -> str:
    """A line for people."""
    name = f"{row['model']:12} {row['way']:30}"
    if "why_not" in row:
        return f"{name} {row['why_not'][:90]}"
    return f"{name} {row['ms']:9.1f} ms {row['memory_bytes'] / 2**20:9.0f} MiB"


if __name__ == "__main__":
    sys.exit(main())
