"""Forks a process for every cell: requests as lines of JSON on standard input, rows on output.

Importing torch takes longer than most cells. This process imports it once, makes the data of a
network once, and does nothing else; so a fork of it is as fresh as a new process, and starts in
milliseconds. It never starts CUDA, which would not survive the fork.

A cell that runs steps in turns (`"turns": true`) takes over both channels until its row: it says
`[]` when it is warm, and for each number of steps it reads it answers with their times.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import torch
import torch._dynamo  # what every optimizer imports when it is made, for seconds
from torch import Tensor

from benchmarks import models
from benchmarks.harness import worker

__all__ = ["main"]

Batches = list[tuple[Tensor, ...]]


def main() -> int:
    """Serves until the input ends."""
    # Threads would not survive the fork; the worker sets what the request asks for.
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    for line in sys.stdin:
        print(json.dumps(_serve(json.loads(line), answers)), file=answers, flush=True)
    return 0


@functools.lru_cache(maxsize=1)
def _batches(model: str, size: Any, batch_size: int | None, num_steps: int) -> Batches:
    workload = models.get(model, size, batch_size)
    return [workload.make_batch(step) for step in range(num_steps)]


def _serve(request: dict[str, Any], answers: IO[str]) -> dict[str, Any]:
    num_steps = request["warmup"] + request["steps"]
    batches = _batches(request["model"], request["size"], request.get("batch_size"), num_steps)
    read_end, write_end = os.pipe()
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = os.fork()
        if child == 0:
            _work(request, batches, write_end, said, answers)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            answer = pipe.read()
        status = os.waitpid(child, 0)[1]
        if answer:
            row: dict[str, Any] = json.loads(answer)
            return row
        said.seek(0)
        return worker.failed(_death(status, said.read(), request["timeout_s"]))


def _work(
    request: dict[str, Any], batches: Batches, write_end: int, said: IO[str], answers: IO[str]
) -> None:
    """Never returns: neither the server's code nor its clean-up may run in the child."""
    try:
        # The default action ends the process even where Python does not get to run.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, request["timeout_s"])
        for output in (1, 2):
            os.dup2(said.fileno(), output)

        def answer(row: dict[str, Any]) -> None:
            os.write(write_end, json.dumps(row).encode())
            os._exit(0)

        def say(times: list[float]) -> None:
            print(json.dumps(times), file=answers, flush=True)

        turns = worker.Turns(_numbers(), say) if request.get("turns") else None
        answer(worker.measure(request, batches, answer, turns))
    finally:
        os._exit(1)


def _numbers() -> Iterator[int]:
    """The lines of the input as numbers, until a zero. The server does not read meanwhile."""
    line = b""
    while character := os.read(0, 1):
        if character != b"\n":
            line += character
            continue
        if int(line) == 0:
            return
        yield int(line)
        line = b""


def _death(status: int, said: str, timeout_s: float) -> str:
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) == signal.SIGALRM:
            return f"took longer than {timeout_s:g} s"
        cause = f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    else:
        cause = f"exit code {os.WEXITSTATUS(status)}"
    last = said.strip().splitlines()[-1:]
    return f"{cause}: {last[0]}" if last else cause


if __name__ == "__main__":
    sys.exit(main())
