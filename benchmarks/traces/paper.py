"""Records the networks of benchmarks/models at paper size, without the hardware.

    python -m benchmarks.traces.paper [NAME ...]

Two training steps each, priced for the H200, into benchmarks/traces/paper/NAME.jsonl.gz. Batches
are made for real, since Python reads some of them (the shape of a tree); everything else has no
bytes.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from benchmarks import models
from coop.trace import write_recorded
from coop.tracing import record_without_hardware

FOLDER = Path(__file__).parent / "paper"
NUM_STEPS = 2
DEVICE = "h200"


def record_workload(
    workload: models.Workload,
    num_steps: int,
    path: Path,
    *,
    checkpoint: bool = False,
    fused: bool = False,
) -> None:
    """Writes the trace of a network's first steps; always the same content."""
    batches = [workload.make_batch(step) for step in range(num_steps)]
    comment = (
        f"{workload.name} at size {workload.size}, batch {workload.batch_size}, {num_steps} steps"
        + (", checkpointed" if checkpoint else "")
    )
    with record_without_hardware(device=DEVICE, comment=comment) as (header, entries):
        model = workload.make_model(0)
        if checkpoint:
            workload.checkpoint(model)
        optimizer = workload.make_optimizer(model)
        for group in optimizer.param_groups:
            # Torch's default on a GPU; parameters without memory do not say that they are on one.
            group |= {"foreach": not fused, "fused": fused or None}
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            loss = workload.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            del loss
    write_recorded(path, header, bytes(entries))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(models.names()))
    parser.add_argument("--into", type=Path, default=FOLDER, metavar="FOLDER")
    args = parser.parse_args()
    args.into.mkdir(exist_ok=True)
    for name in args.names or models.names():
        begin = time.perf_counter()
        path = args.into / f"{name}.jsonl.gz"
        record_workload(models.get(name, "paper"), NUM_STEPS, path)
        gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        seconds = time.perf_counter() - begin
        print(f"{path}: {path.stat().st_size} bytes, {seconds:.0f} s, {gib:.1f} GiB", flush=True)


if __name__ == "__main__":
    main()
