"""Instructions that operators and steps take with two trees of coop: what no neighbour disturbs.

    python -m benchmarks.instructions BEFORE    # another commit, built in place (see no_slower.py)

Needs valgrind and its headers. Callgrind counts in user space, torch's and Python's part included;
what malloc executes is left out, since that depends on what lived before. Prints a table.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import coop

if TYPE_CHECKING:
    from coop.config import PolicyName

ROOT = Path(__file__).resolve().parents[1]
NUM_CALLS = 500
NUM_STEPS = 3
Count = Callable[[str, int, Callable[[], object]], None]
MALLOC = re.compile(
    r"\b(malloc|free|calloc|realloc|_int_\w+|posix_memalign|memalign|_mid_memalign|unlink_chunk|"
    r"malloc_consolidate|sysmalloc|systrim|tcache\w*|operator new|operator delete)\b"
)
REQUESTS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char* name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def measure(library: str) -> None:
    """Inside of valgrind."""
    counter = ctypes.CDLL(library)
    torch.set_num_threads(1)

    def count(name: str, times: int, f: Callable[[], object]) -> None:
        for _ in range(max(2, times // 5)):
            f()
        counter.begin()
        for _ in range(times):
            f()
        counter.end(name.encode())

    with coop.budget("1GiB", device="cpu"):
        small, square = torch.randn(8), torch.randn(64, 64)
        count("add of 8", NUM_CALLS, lambda: torch.add(small, small))
        count("add of 64 x 64", NUM_CALLS, lambda: torch.add(square, square))
        count("mm of 64 x 64", NUM_CALLS, lambda: torch.mm(square, square))
        count("view", NUM_CALLS, lambda: square.view(4096))
    train(count, "step, room for all", "64MiB", "coop")
    train(count, "step, dtr, evicting", "900KiB", "dtr")


def train(count: Count, name: str, budget: str, policy: PolicyName) -> None:
    """Small layers: much of a step is the engine."""
    torch.manual_seed(0)
    with coop.budget(budget, device="cpu", policy=policy) as session:
        layers = [m for _ in range(20) for m in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = torch.randn(128, 64)

        def step() -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        count(name, NUM_STEPS, step)
        assert (session.stats().num_evictions > 0) == name.endswith("evicting")


def counts(root: Path, library: Path) -> dict[str, float]:
    """Of one call or step, with the coop of `root`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "coop").symlink_to(root / "coop")
        subprocess.run(
            [
                *("valgrind", "--tool=callgrind", "--instr-atstart=no"),
                f"--callgrind-out-file={folder}/out",
                *(sys.executable, "-c"),
                f"import sys; sys.path[:0] = [{name!r}, {str(ROOT)!r}]\n"
                f"from benchmarks import instructions\ninstructions.measure({str(library)!r})",
            ],
            env={**os.environ, "COOP_DEBUG": "0", "PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"},
            stderr=subprocess.DEVNULL,
            check=True,
        )
        found = {}
        for file in sorted(folder.glob("out.*")):
            trigger = re.search(r"^desc: Trigger: Client Request: (.*)$", file.read_text(), re.M)
            if trigger is None:
                continue
            listed = subprocess.run(
                ["callgrind_annotate", "--threshold=100", str(file)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            rows = re.findall(r"^ *([\d,]+) \([ \d.]+%\)  (\S*:.*)$", listed, re.M)
            total = sum(
                int(number.replace(",", ""))
                for number, function in rows
                if not MALLOC.search(function)
            )
            times = NUM_STEPS if trigger[1].startswith("step") else NUM_CALLS
            found[trigger[1]] = total / times
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "requests.c"), Path(folder, "requests.so")
        source.write_text(REQUESTS)
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        before, now = (counts(root, library) for root in (args.before.resolve(), ROOT))
    print("| what | before | now | now / before |\n| --- | --- | --- | --- |")
    for name in before:
        print(
            f"| {name} | {before[name]:,.0f} | {now[name]:,.0f} | {now[name] / before[name]:.3f} |"
        )


if __name__ == "__main__":
    main()
