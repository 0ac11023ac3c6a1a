"""Recording what a program does to memory, as a trace for the planner and the simulator."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from coop._native import _C
from coop.config import ALIGNMENT
from coop.files import why_not_writable
from coop.machine import memory_bytes
from coop.overlay import Overlay
from coop.profiles import get_device
from coop.runtime import runtime
from coop.session import budget, current_session
from coop.sizes import LARGEST_BYTES
from coop.trace import Header, write_recorded
from coop.updates import UpdatesPatch

__all__ = ["pretending", "record", "record_without_hardware"]


@contextlib.contextmanager
def record(
    path: str | Path,
    *,
    device: Literal["cpu", "meta"] = "cpu",
    source_lines: bool = False,
    comment: str = "",
) -> Iterator[None]:
    """Write the trace of what the body does: `python -m coop plan` and `simulate` read it.

    Inside a budget, on whatever device, that session is recorded; the trace is the same at every
    budget. Outside of one, what the body makes on the CPU is recorded in an arena without a limit;
    with `device="meta"` the body runs without memory and without the hardware (see
    `record_without_hardware`).

    Args:
        path: the file, compressed when it ends in `.gz`. Written on leaving, whole or not at all.
        device: where to record when there is no budget.
        source_lines: with every operator, the line of your code that called it.
        comment: what the trace says of itself.
    """
    reason = why_not_writable(path)
    if reason:
        raise OSError(reason)
    session = current_session()
    with contextlib.ExitStack() as stack:
        if session is None and device == "meta":
            header, entries = stack.enter_context(
                record_without_hardware(source_lines=source_lines, comment=comment)
            )
            yield
            stack.close()
            write_recorded(path, header, bytes(entries))
            return
        if session is None:
            # Addresses cost nothing until they are used.
            session = stack.enter_context(budget(memory_bytes(), device="cpu"))
        session.trace.start(source_lines=source_lines)
        try:
            yield
        except BaseException:
            session.trace.drop()
            raise
        session.trace.save(path, comment)


@contextlib.contextmanager
def record_without_hardware(
    *,
    device: str = "h200",
    source_lines: bool = False,
    comment: str = "",
    in_parts: bool = False,
) -> Iterator[tuple[Header, bytearray]]:
    """Record the body without running it for real: tensors in it have shapes and no bytes.

    Build the model and the data inside: a network of any size takes no memory. What asks for
    a GPU gets a pretended one; what reads a number (`loss.item()`) gets 1. Files that the body
    writes or removes stay as they are, and a warning names them. Temporaries are estimates. Gives
    the header, and a buffer that has the entries after the body.

    Args:
        device: whose roofline prices the operators; `coop.profiles.devices()` has the names.
        source_lines: with every operator, the line of your code that called it.
        comment: what the trace says of itself.
        in_parts: updates of all parameters at once are several operators, as they are in budgets
            with room for copies.
    """
    entries = bytearray()
    with tempfile.TemporaryDirectory(prefix="coop-") as folder:
        overlay = Overlay(folder)
        try:
            with pretending(overlay, device, source_lines, comment, in_parts=in_parts) as (
                header,
                engine,
            ):
                yield header, entries
                entries += engine.stop_recording()
        finally:
            if overlay.summary():
                text = f"coop: in a recording without hardware: {overlay.summary()}"
                warnings.warn(text, stacklevel=3)


@contextlib.contextmanager
def pretending(
    overlay: Overlay,
    device: str,
    source_lines: bool = False,
    comment: str = "",
    *,
    in_parts: bool = False,
) -> Iterator[tuple[Header, _C.Engine]]:
    """The body runs without hardware, and changes no file; gives the engine that records it.

    With `in_parts`, updates of all parameters at once are recorded as several, as they are run in
    budgets with room for copies.
    """
    from coop.pretend import pretend
    from coop.saving import saving

    if current_session() is not None:
        raise RuntimeError("recording without hardware does not work inside a budget: leave it")
    runtime.register()
    alignment = ALIGNMENT["cuda"]
    host_bytes = alignment if in_parts else 0
    config = _C.Config(LARGEST_BYTES, alignment=alignment, host_bytes=host_bytes)
    target = get_device(device)
    engine = _C.Engine.meta(config, _C.DeviceProfile(**asdict(target.profile)))
    header = Header(comment=comment, device=device, alignment=alignment, estimated=True)
    updates = UpdatesPatch(lambda _, num_bytes: engine.part_bytes(num_bytes))
    engine.start_recording(source_lines, True)
    try:
        updates.enter()
        with (
            overlay,
            saving(overlay),
            runtime.steps_of(engine),
            pretend(engine, gpu=target.is_gpu, in_parts=in_parts),
        ):
            yield header, engine
    finally:
        updates.leave()
        engine.stop_recording()
        engine.close()
