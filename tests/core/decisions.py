"""Decision logs: what the core decided on a trace, as compact text without any time.

`python -m tests.core.decisions --update`, at the root of the repository, rewrites the golden ones.

One line per operator that had to decide something, in the order of the decisions:

    412 aten::mul: -37@4096 +96@4096:2048 *37

`-value@offset` evicted, `+value@offset:bytes` placed after a search, `*value` replayed. Values are
numbered by the core. At the end of each step, and of the log, a checksum of *all* events stands for
what is not listed: placements without a search, frees, blocks that change their value.
"""

import argparse
import statistics
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from coop._native import _C
from coop.events import EventKind, as_events
from coop.simulate import Options, peak_without_limit, simulate
from coop.trace import Trace, read_trace

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "benchmarks" / "traces"
GOLDEN = Path(__file__).parent / "golden"
NAMES = ("chain", "inplace", "random_path", "residual", "rnn", "ushape")
RATIOS = (0.7, 0.6, 0.5, 0.4, 0.3)
# One run says little: a layout that differs by a few bytes may decide otherwise for the rest of the
# trace. So each ratio stands for nine budgets around it.
OFFSETS = tuple(0.005 * k for k in range(-4, 5))

# File name: (trace, ratio, options)
LOGS: dict[str, tuple[str, float, Options]] = {
    **{f"{name}.coop.txt": (name, 0.5, Options()) for name in NAMES},
    "residual.dtr.txt": ("residual", 0.5, Options("dtr")),
    "residual.dte.txt": ("residual", 0.5, Options("dte")),
}

CONFIGURATIONS: dict[str, Options] = {
    "coop": Options(),
    "no-window": Options(window=False),
    "no-partition": Options(partition=False),
    "no-inplace": Options(inplace=False),
    "dtr": Options("dtr"),
    "dte": Options("dte"),
}


def shipped(name: str) -> Trace:
    return read_trace(TRACES / f"{name}.jsonl.gz")


def decision_log(trace: Trace, budget_bytes: int, options: Options) -> str:
    """What the core decides on the trace in this budget."""
    simulator = _C.Simulator(options.config(budget_bytes))
    simulator.log_events(True)
    result = simulator.run(trace.native)
    stats = result["stats"]
    lines = list(_lines(simulator, trace))
    lines.append(
        f"fitted {result['fitted']} operators {stats['num_operators']} "
        f"replays {stats['num_replays']} evictions {stats['num_evictions']} "
        f"searches {stats['num_searches']} copies {stats['num_copies']} "
        f"peak {stats['peak_bytes']} replay_ns {stats['replay_ns']:.0f}"
    )
    return "".join(f"{line}\n" for line in lines)


def _lines(simulator: "_C.Simulator", trace: Trace) -> Iterator[str]:
    events = as_events(simulator.events())
    timeless = events.copy()
    timeless["amount"][timeless["kind"] == EventKind.SEARCH] = 0
    decisions: list[str] = []
    num_operators = begin = 0
    searched = False
    for index, event in enumerate(events):
        kind, value, offset = event["kind"], event["value"], event["offset"]
        if kind == EventKind.SEARCH:
            searched = True
        elif kind == EventKind.EVICT:
            decisions.append(f"-{value}@{offset}")
        elif kind == EventKind.ALLOCATE and searched:
            decisions.append(f"+{value}@{offset}:{event['bytes']}")
            searched = False
        elif kind == EventKind.REPLAY:
            decisions.append(f"*{value}")
        elif kind == EventKind.OPERATOR:
            num_operators += 1
            if decisions:
                name = trace.op_names[event["op"]]
                yield f"{num_operators} {name}: {' '.join(decisions)}"
            decisions = []
        elif kind == EventKind.STEP:
            yield f"step {value} checksum {zlib.crc32(timeless[begin : index + 1].tobytes()):08x}"
            begin = index + 1
    if decisions:
        yield f"failed: {' '.join(decisions)}"
    yield f"end checksum {zlib.crc32(timeless[begin:].tobytes()):08x}"


def overheads(names: Iterable[str] = NAMES) -> str:
    """Compute overheads: how many of the nine budgets around a ratio fitted, and their median."""
    lines = ["trace configuration " + " ".join(f"{ratio:.2f}" for ratio in RATIOS)]
    for name in names:
        trace = shipped(name)
        peak_bytes = peak_without_limit(trace)
        for configuration, options in CONFIGURATIONS.items():
            cells = []
            for ratio in RATIOS:
                budgets = [int((ratio + offset) * peak_bytes) for offset in OFFSETS]
                results = [simulate(trace, budget_bytes, options) for budget_bytes in budgets]
                fitted = [result.overhead for result in results if result.fitted]
                median = f":{statistics.median(fitted):.6f}" if fitted else ""
                cells.append(f"{len(fitted)}{median}")
            lines.append(f"{name} {configuration} " + " ".join(cells))
    return "".join(f"{line}\n" for line in lines)


# Full scale: networks at paper size, recorded without the hardware (benchmarks/traces/paper.py).
PAPER_RATIOS = (0.7, 0.5)
PAPER_POLICIES = ("coop", "dtr", "dte")


def paper() -> str:
    """A line for every network, policy and ratio: totals, and a checksum of all decisions."""
    lines = ["trace policy ratio fitted replays evictions searches copies replay_ns checksum"]
    for path in sorted((TRACES / "paper").glob("*.jsonl.gz")):
        trace = read_trace(path)
        peak_bytes = peak_without_limit(trace)
        for policy in PAPER_POLICIES:
            for ratio in PAPER_RATIOS:
                options = Options(policy, alignment=trace.header.alignment)
                simulator = _C.Simulator(options.config(int(ratio * peak_bytes)))
                simulator.log_events(True)
                result = simulator.run(trace.native)
                stats = result["stats"]
                events = as_events(simulator.events())
                events["amount"][events["kind"] == EventKind.SEARCH] = 0
                lines.append(
                    f"{path.name.partition('.')[0]} {policy} {ratio} {result['fitted']} "
                    f"{stats['num_replays']} {stats['num_evictions']} {stats['num_searches']} "
                    f"{stats['num_copies']} {stats['replay_ns']:.0f} "
                    f"{zlib.crc32(events.tobytes()):08x}"
                )
    return "".join(f"{line}\n" for line in lines)


def golden_files() -> Iterator[tuple[str, str]]:
    """Names and contents, as they are now."""
    for file, (name, ratio, options) in LOGS.items():
        trace = shipped(name)
        yield file, decision_log(trace, int(ratio * peak_without_limit(trace)), options)
    yield "overheads.txt", overheads()
    yield "paper.txt", paper()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares the golden logs, or updates them.")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    for file, text in golden_files():
        path = GOLDEN / file
        same = path.exists() and path.read_text() == text
        print(f"{file}: {'same' if same else 'updated' if args.update else 'different'}")
        if args.update:
            path.write_text(text)


if __name__ == "__main__":
    main()
