"""What every step cost, as scalars of TensorBoard or Weights & Biases.

with coop.budget("8GiB") as session:
    log_scalars(SummaryWriter("runs"), session)
    train()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coop.progress import Step
from coop.session import Session, current_session

__all__ = ["log_scalars"]


def log_scalars(writer: Any, session: Session | None = None) -> Callable[[], None]:
    """From now on, log every number of a `coop.progress.Step` at the end of each step.

    Args:
        writer: a `SummaryWriter` (it has `add_scalar`), or a run of wandb (it has `log`).
        session: whose steps; None is the one that the program is in.

    Returns:
        A function that ends this.
    """
    session = session or current_session()
    if session is None:
        raise RuntimeError("there is no budget: train inside `with coop.budget(...)`")
    if hasattr(writer, "add_scalar"):

        def log(step: Step) -> None:
            for name, value in _scalars(step).items():
                writer.add_scalar(name, value, step["step"])

    elif hasattr(writer, "log"):

        def log(step: Step) -> None:
            # Not by the step's number: the program counts its own, and wandb's may not go back.
            writer.log(_scalars(step), commit=False)

    else:
        raise TypeError(f"{type(writer).__name__} has neither add_scalar nor log")
    return session.on_step(log)


def _scalars(step: Step) -> dict[str, float]:
    numbers = {name: value for name, value in step.items() if isinstance(value, int | float)}
    return {f"coop/{name}": float(value) for name, value in numbers.items()}
