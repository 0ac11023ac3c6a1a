"""A long run over many names in processes of its own, that goes on where it was stopped.

A worker reads names and answers each with a line of JSON, an *entry*. It is a process, so that a
crash is a finding and not the end. What is done is in a file with a line for every entry; a shard
(`--shard 2/4`: the second of four parts) has a file of its own, so that shards can run at once,
on one machine or with the same folder on several.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAMES_A_WORKER = 40  # then another one takes over: what one has piled up ends with it
HUNG_SECONDS = 400  # by the clock, for a name to be answered; then its worker is killed

Entry = dict[str, Any]


def answer_names(examine: Callable[[str], Entry]) -> None:
    """A worker: what it prints besides does not begin like an entry."""
    for line in sys.stdin:
        name = line.rstrip("\n")
        print("\n" + json.dumps({"name": name, **examine(name)}), flush=True)


class Survey:
    """Hands names to workers, each when it is done with the last, and takes their entries."""

    def __init__(self, module: str, names: list[str], jobs: int, seconds: float) -> None:
        self._command = [sys.executable, "-m", module, "--worker"]
        self._pending = deque(names)
        self._end = time.monotonic() + seconds
        self._entries: SimpleQueue[Entry | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(jobs)]

    def __iter__(self) -> Iterator[Entry]:
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            yield from iter(self._entries.get, None)

    def _serve(self) -> None:
        while self._pending and time.monotonic() < self._end:
            self._run_worker()
        self._entries.put(None)

    def _run_worker(self) -> None:
        worker = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        name = "nothing"
        for _ in range(NAMES_A_WORKER):
            if time.monotonic() > self._end:
                break
            try:
                name = self._pending.popleft()
            except IndexError:
                break
            hung = threading.Timer(HUNG_SECONDS, worker.kill)
            hung.start()
            with contextlib.suppress(BrokenPipeError):
                print(name, file=worker.stdin, flush=True)
            answer = next((line for line in worker.stdout if line.startswith('{"name"')), None)
            hung.cancel()
            if answer is None:
                break
            self._entries.put(json.loads(answer))
            name = f"the end of a process after {name}"
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.close()
        code = worker.wait()
        if code != 0:
            first = f"{name}: exit code {code}"
            if code == -signal.SIGKILL:
                first += f" (killed: out of memory, or no answer in {HUNG_SECONDS} seconds)"
            findings = [{"kind": "crash", "cases": 1, "first": first}]
            self._entries.put({"name": name, "kinds": {"crash": 1}, "findings": findings})


class State:
    """The entries of a build, in a file for each shard. Those of another build do not count."""

    def __init__(self, path: Path, build: str, shard: tuple[int, int]) -> None:
        number, shards = shard
        own = path if shards == 1 else path.with_suffix(f".{number}-of-{shards}{path.suffix}")
        self._path, self._own, self._build = path, own, build
        own.parent.mkdir(parents=True, exist_ok=True)
        if not self._is_of_this_build(own):
            if own.exists():
                print(f"{own} is of other sources: starting anew", flush=True)
            own.write_text(json.dumps({"build": build}) + "\n")
        elif not (text := own.read_text()).endswith("\n"):  # stopped while it wrote
            own.write_text(text[: text.rindex("\n") + 1])

    def entries(self) -> list[Entry]:
        """Of all shards, each name once."""
        found: dict[str, Entry] = {}
        for path in sorted(self._path.parent.glob(f"{self._path.stem}*{self._path.suffix}")):
            if self._is_of_this_build(path):
                lines = path.read_text().splitlines(keepends=True)[1:]
                # A line without an end is being written by another shard.
                entries = [json.loads(line) for line in lines if line.endswith("\n")]
                found |= {entry["name"]: entry for entry in entries}
        return list(found.values())

    def add(self, entry: Entry) -> None:
        with self._own.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def _is_of_this_build(self, path: Path) -> bool:
        if not path.exists():
            return False
        with path.open() as file:
            first = file.readline()
        return first.endswith("}\n") and json.loads(first) == {"build": self._build}


def parsed_shard(text: str) -> tuple[int, int]:
    number, _, shards = text.partition("/")
    if not 1 <= int(number) <= int(shards):
        raise ValueError(text)
    return int(number), int(shards)


def parser_of(description: str | None, state: str, page: Path) -> argparse.ArgumentParser:
    """The options that all surveys have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--worker", action="store_true", help="used by itself")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--shard", type=parsed_shard, default=(1, 1), metavar="I/N", help="only part I of N"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begins nothing after that many"
    )
    parser.add_argument("--state", type=Path, default=ROOT / "build" / f"{state}.jsonl")
    parser.add_argument("--output", type=Path, default=page, help="the page that is written")
    parser.add_argument("names", nargs="*", help="all, if there are none; then nothing is written")
    return parser


def run_survey(
    module: str, options: argparse.Namespace, everything: list[str], build: str
) -> list[Entry] | None:
    """Prints what is found. All entries, or None if some are left for other shards or for later."""
    number, shards = options.shard
    state = None if options.names else State(options.state, build, options.shard)
    entries = state.entries() if state is not None else []
    done = {entry["name"] for entry in entries}
    wanted = options.names or everything[number - 1 :: shards]
    pending = [name for name in wanted if name not in done]
    for entry in Survey(module, pending, options.jobs, options.seconds):
        entries.append(entry)
        if state is not None:
            state.add(entry)
        print(f"{entry['name']:50} {entry.get('seconds', 0):7.2f} s  {entry['kinds']}")
        for finding in entry["findings"]:
            print(f"    {finding['kind']}: {finding['cases']} cases, {finding['first']}")
        sys.stdout.flush()
    if state is not None:
        entries = state.entries()
    left = set(options.names or everything) - {entry["name"] for entry in entries}
    if left:
        print(f"{len(left)} of {len(everything)} are left: other shards, or run it again to go on")
        return None
    return entries
