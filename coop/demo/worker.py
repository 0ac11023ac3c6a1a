"""One training run of the demo, in a process of its own: plain, or inside a budget.

Every run starts from the same empty process, so none inherits another's memory or warm caches, and
a GPU's allocator can be put in place before CUDA starts. Prints lines of JSON: `{"step", "loss"}`
for every step, then `{"result"}` or, when it does not fit, `{"failed"}`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import sys
import time
from typing import Any

import torch

import coop
from coop._native import _C
from coop.demo import gpt

NUM_RECORDED_STEPS = 3  # at the end, so that timed steps are not slowed down by recording


def supported_device() -> str:
    """Where the demo trains: the GPU, if the engine can manage its memory."""
    return "cuda" if torch.cuda.is_available() and _C.has_cuda else "cpu"


def main(job: dict[str, Any]) -> int:
    """Runs the job: `num_steps`, and for a run in a budget `budget_bytes`, `policy`, `report`."""
    budget_bytes, num_steps = job["budget_bytes"], job["num_steps"]
    if job["device"] == "cuda":
        # Kernels that add in any order would make two plain runs differ.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.enable_cudnn_sdp(False)  # its backward is not deterministic
    else:
        # So small a model gains little from more, and loses all of it on a machine that is busy.
        torch.set_num_threads(1)
    losses: list[str] = []
    seconds: list[float] = []
    model = None
    with contextlib.ExitStack() as stack:
        session = None
        if budget_bytes is not None:
            session = stack.enter_context(
                coop.budget(budget_bytes, device=job["device"], policy=job["policy"])
            )
        # With one thread, CPU time is what an idle machine would take, and this one may be busy.
        clock = time.perf_counter if job["device"] == "cuda" else time.process_time
        begin = clock()
        try:
            for loss, model in gpt.train(num_steps, job["device"]):  # noqa: B007
                seconds.append(clock() - begin)
                losses.append(loss.hex())
                _tell(step=len(losses), loss=loss)
                if session and job["report"] and len(losses) == num_steps - NUM_RECORDED_STEPS:
                    session.events.record()
                begin = clock()
        except coop.OutOfBudgetError as error:
            _tell(failed=str(error).splitlines()[0])
            return 0
    if session is not None and job["report"]:
        title = f"coop demo: a small GPT, the last {NUM_RECORDED_STEPS} of {num_steps} steps"
        session.events.save_report(job["report"], title)
    assert model is not None
    weights = b"".join(
        parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters()
    )
    _tell(
        result={
            "losses": losses,
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            # The first step starts thread pools and makes the optimizer's state.
            "step_seconds": statistics.median(seconds[1:] or seconds),
            "stats": session.stats().as_dict() if session else None,
            "machine": _machine(job["device"]),
            # On a GPU; in main memory only a budget can tell.
            "peak_bytes": torch.cuda.max_memory_allocated() if job["device"] == "cuda" else None,
        }
    )
    return 0


def _machine(device: str) -> str:
    if device == "cuda":
        return f"an {torch.cuda.get_device_name()}"
    return "the CPU, one thread"


def _tell(**message: Any) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
