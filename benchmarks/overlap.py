"""How copies lie beside operators in one step, by torch's own profiler: a picture, and figures.

    python -m benchmarks.overlap llama_1b --budget 8GiB --out overlap.svg       # on a GPU
    python -m benchmarks.overlap --trace overlap.json.gz --out overlap.svg      # of a kept trace

The picture has a lane for operators, for copies out and for copies back, of the last step. Printed
are, of that step, the milliseconds of each lane, how much of the copies' time an operator ran
beside, and how long nothing but copies ran: what was waited for them. The profiler's trace is kept
beside the picture.
"""

from __future__ import annotations

import argparse
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Spans = npt.NDArray[np.float64]  # (n, 2): begin and end in ms, by begin
LANES = {"operators": "#4696d6", "copies out": "#c92a2a", "copies back": "#2e9e5b"}
WARM_UP = 10
STEP = "step to draw"


@dataclass(frozen=True)
class Step:
    """One step: from when it was asked for until all that it started was done."""

    lanes: dict[str, Spans]
    ms: float

    def busy_ms(self, lane: str) -> float:
        """In which something ran there."""
        return _length(merged(self.lanes[lane]))

    @property
    def copies(self) -> Spans:
        """Both ways."""
        return merged(np.concatenate([self.lanes["copies out"], self.lanes["copies back"]]))

    @property
    def beside(self) -> float:
        """The share of the copies' time in which an operator ran."""
        alone_ms, copies_ms = self.waited_ms, _length(self.copies)
        return 1 - alone_ms / copies_ms if copies_ms else 1.0

    @property
    def waited_ms(self) -> float:
        """In which copies ran, and no operator."""
        operators = merged(self.lanes["operators"])
        together = merged(np.concatenate([operators, self.copies]))
        return _length(together) - _length(operators)


def _length(spans: Spans) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())


def merged(spans: Spans) -> Spans:
    """The same times without overlaps."""
    if len(spans) == 0:
        return spans
    spans = spans[np.argsort(spans[:, 0])]
    ends = np.maximum.accumulate(spans[:, 1])
    begins = np.append(True, spans[1:, 0] > ends[:-1])
    last = np.append(np.flatnonzero(begins)[1:] - 1, len(spans) - 1)
    return np.stack([spans[begins, 0], ends[last]], axis=1)


def read_step(trace: dict[str, Any]) -> Step:
    """Of what torch's profiler has written."""
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and "dur" in e]
    (marked,) = [e for e in events if e["name"] == STEP and e.get("cat") == "user_annotation"]
    begin = marked["ts"]
    found: dict[str, list[tuple[float, float]]] = {lane: [] for lane in LANES}
    for event in events:
        lane = _lane_of(event)
        if lane is not None and event["ts"] + event["dur"] > begin:
            first = (event["ts"] - begin) / 1e3
            found[lane].append((first, first + event["dur"] / 1e3))
    lanes = {lane: np.array(sorted(spans)).reshape(-1, 2) for lane, spans in found.items()}
    end = max((float(spans[:, 1].max()) for spans in lanes.values() if len(spans)), default=0.0)
    return Step(lanes, max(end, marked["dur"] / 1e3))


def _lane_of(event: dict[str, Any]) -> str | None:
    if event.get("cat") == "kernel" or event.get("cat") == "gpu_memset":
        return "operators"
    if event.get("cat") != "gpu_memcpy":
        return None
    if "DtoH" in event["name"]:
        return "copies out"
    return "copies back" if "HtoD" in event["name"] else "operators"


def draw(step: Step, path: Path, title: str) -> None:
    """A lane for each, time from left to right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row, (lane, color) in enumerate(reversed(LANES.items())):
        spans = merged(step.lanes[lane])
        bars = list(zip(spans[:, 0], spans[:, 1] - spans[:, 0], strict=True))
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=color, linewidth=0)
    axes.set_yticks(range(len(LANES)), list(reversed(LANES)))
    axes.set_xlim(0, step.ms)
    axes.set_xlabel("ms")
    axes.set_title(title, loc="left", fontsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(path)


def record(name: str, budget: str, host: str, path: Path) -> None:
    """Trains until a schedule is followed, and profiles one step."""
    import coop
    from benchmarks.peers.cell import workload_named

    coop.install(budget, host=host)
    workload = workload_named(name, "paper", None)
    with torch.device("cuda"):
        model = workload.make_model(0)
        batch = workload.make_batch(0, "cuda")
    optimizer = workload.make_optimizer(model)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiled:
        step()  # the first one that is profiled is slower
        torch.cuda.synchronize()
        with torch.profiler.record_function(STEP):
            step()
            torch.cuda.synchronize()
    profiled.export_chrome_trace(str(path))


def main() -> None:
    """Prints, and draws."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", default="llama_1b")
    parser.add_argument("--budget", default="8GiB")
    parser.add_argument("--host", default="auto")
    parser.add_argument("--trace", type=Path, help="one that was kept")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    path = args.trace or args.out.with_suffix(".json.gz")
    if args.trace is None:
        record(args.name, args.budget, args.host, path)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        step = read_step(json.load(file))
    for lane in LANES:
        print(f"{lane:12} {step.busy_ms(lane):8.2f} ms")
    print(f"the step {step.ms:.2f} ms; beside operators {step.beside:.1%} of the copies' time;")
    print(f"waited for copies {step.waited_ms:.2f} ms, {step.waited_ms / step.ms:.1%} of the step")
    draw(step, args.out, f"{args.name} in {args.budget}: one step")


if __name__ == "__main__":
    main()
