"""What can go wrong inside a budget."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from coop.sizes import format_bytes

__all__ = ["LostTensorError", "OutOfBudgetError", "SlowStepWarning"]


class _Shortage(dict[str, Any]):
    """Numbers by name; knows their old names for one release."""

    _OLD: ClassVar = {"pins": "kept", "pinned_bytes": "kept_bytes"}

    def __missing__(self, key: str) -> Any:
        if key not in self._OLD:
            raise KeyError(key)
        warn_of_old_name(key, self._OLD[key])
        return self[self._OLD[key]]


class OutOfBudgetError(torch.OutOfMemoryError):
    """An operator needs more memory than the budget can give, even with all that can be evicted.

    Recoverable: everything is as it was before the operator, unless the text says that an update of
    all parameters was half done. Besides its text it has the operator's
    name (`operator`), the operator that was being recomputed for it, if any (`replaying`), and the
    numbers (`shortage`, in bytes).
    """

    operator: str
    replaying: str
    shortage: dict[str, Any]


def warn_of_old_name(old: str, new: str) -> None:
    """For the function that has the old name."""
    warnings.warn(
        f"{old} is now called {new}; the old name goes away in the next release",
        DeprecationWarning,
        stacklevel=3,
    )


class LostTensorError(RuntimeError):
    """Tensors could not be given back when a budget was left."""


class SlowStepWarning(UserWarning):
    """A step recomputes for longer than it takes without a budget."""


def _exact(num_bytes: int) -> str:
    return f"{format_bytes(num_bytes)} ({num_bytes} bytes)"


def make_out_of_budget_error(
    operator: str,
    replaying: str,
    shortage: dict[str, Any],
    *,
    largest: Sequence[str] = (),
    advice: Sequence[str] = (),
) -> OutOfBudgetError:
    """The whole story in the exception's text.

    Args:
        operator: what did not fit.
        replaying: the operator that was being recomputed for it, if any.
        shortage: numbers of the engine's.
        largest: lines about the largest tensors that cannot be evicted.
        advice: what helps, the most helpful first.
    """
    doing = f"{operator} wanted {_exact(shortage['wanted_bytes'])}"
    if replaying:
        doing = (
            f"{operator} needs a value again, and its recomputation by {replaying} wanted "
            f"{_exact(shortage['wanted_bytes'])}"
        )
    held = {
        "roots (parameters, gradients, optimizer state, inputs, small tensors)": "root_bytes",
        "in use by this operator and its recomputations": "locked_bytes",
        "temporaries and results of this operator": "temporary_bytes",
        "kept": "kept_bytes",
    }
    lines = [
        f"coop: {doing}, but at most {_exact(shortage['largest_window_bytes'])} of consecutive "
        f"memory can be freed in the budget of {_exact(shortage['budget_bytes'])}.",
        "What cannot be evicted: "
        + ", ".join(f"{name} {format_bytes(shortage[key])}" for name, key in held.items())
        + ".",
    ]
    if largest:
        lines += ["The largest of it:", *(f"  {line}" for line in largest)]
    lines += [f"Kept: {format_bytes(size)}: {reason}." for reason, size in shortage["kept"]]
    lines += _host_lines(shortage)
    if shortage.get("updated"):
        lines.append(_half_done(shortage["updated"], shortage["updated_of"]))
    sufficient = shortage["sufficient_budget_bytes"]
    least = shortage["wanted_bytes"] + sum(shortage[key] for key in held.values())
    smallest = (
        f"{_exact(least)}, if all of that lay together; as it lies, {_exact(sufficient)} would"
    )
    if format_bytes(least) == format_bytes(sufficient):
        smallest = _exact(sufficient)
    lines.append(f"The smallest budget that can pass this point: {smallest}.")
    lines += [
        f"{'Try: ' if number == 1 else '     '}({number}) {text}"
        f"{'.' if number == len(advice) else ';'}"
        for number, text in enumerate(advice, 1)
    ]
    error = OutOfBudgetError("\n".join(lines))
    error.operator = operator
    error.replaying = replaying
    error.shortage = _Shortage(shortage)
    return error


def say_what_was_updated(error: OutOfBudgetError, updated: int, updated_of: int) -> None:
    """An update of so many tensors is run in parts, and so many were updated before the error."""
    updated += error.shortage.get("updated", 0)
    if updated:
        error.shortage.update(updated=updated, updated_of=updated_of)
        error.args = (f"{error}\n{_half_done(updated, updated_of)}",)


def _half_done(updated: int, updated_of: int) -> str:
    return (
        f"The update is half done: {updated} of {updated_of} tensors had been updated by then. Go "
        "back to a checkpoint before you go on."
    )


def warn_of_slow_step(
    stats: dict[str, Any], plain_ns: float, replay_ns: float, device: str
) -> None:
    """Called by the engine, once, from whatever operator it is that recomputes."""
    total_ns = stats["compute_ns"] + stats["replay_ns"]
    needed = stats["needed_bytes"]
    about = "about " if stats["needed_is_estimate"] else ""
    enter = "budget" if device == "cpu" else "install"
    warnings.warn(
        f"coop: this step has recomputed for {_seconds(replay_ns)}, and a whole step without "
        f"recomputation takes {_seconds(plain_ns)} (estimated): the budget of "
        f"{_exact(stats['budget_bytes'])} on {device} is too small to be fast. So far "
        f"{stats['num_replays']} operators were run again beside {stats['num_operators']}, which "
        f"is {stats['replay_ns'] / total_ns:.0%} of the time. All that ran so far would have "
        f"needed none of it in {about}{_exact(needed)}: coop.{enter}({needed}), or "
        f"`coop run --budget {needed}`; a budget between the two recomputes less.",
        SlowStepWarning,
        stacklevel=2,
    )


def _seconds(ns: float) -> str:
    return f"{ns / 1e9:.3g} s"


def _host_lines(shortage: dict[str, Any]) -> list[str]:
    """What main memory had no room for."""
    if not shortage["refused_bytes"]:
        return []
    return [
        f"Of the roots, {format_bytes(shortage['refused_bytes'])} could have left by a copy, but "
        f"host={format_bytes(shortage['host_bytes'])!r} has no room for them (or its disk is "
        "full): give it more."
    ]
