"""What can go wrong inside a budget."""

from __future__ import annotations

from typing import Any

import torch

from coop.sizes import format_bytes

__all__ = ["LostTensorError", "OutOfBudgetError"]


class OutOfBudgetError(torch.OutOfMemoryError):
    """An operator needs more memory than the budget can give, even with all that can be evicted.

    Recoverable: everything is as it was before the operator. Besides its text it has the operator's
    name (`operator`), the operator that was being recomputed for it, if any (`replaying`), and the
    numbers (`shortage`, in bytes).
    """

    operator: str
    replaying: str
    shortage: dict[str, Any]


class LostTensorError(RuntimeError):
    """Tensors could not be given back when a budget was left."""


def _exact(num_bytes: int) -> str:
    return f"{format_bytes(num_bytes)} ({num_bytes} bytes)"


def make_out_of_budget_error(
    operator: str, replaying: str, shortage: dict[str, Any]
) -> OutOfBudgetError:
    """Called by the engine: the whole story in the exception's text."""
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
        "pinned": "pinned_bytes",
    }
    lines = [
        f"coop: {doing}, but at most {_exact(shortage['largest_window_bytes'])} of consecutive "
        f"memory can be freed in the budget of {_exact(shortage['budget_bytes'])}.",
        "What cannot be evicted: "
        + ", ".join(f"{name} {format_bytes(shortage[key])}" for name, key in held.items())
        + ".",
    ]
    lines += [f"Pinned: {format_bytes(size)}: {reason}." for reason, size in shortage["pins"]]
    lines += [
        "The smallest budget that would have passed this point: "
        f"{_exact(shortage['sufficient_budget_bytes'])}.",
        "Try: that budget; a smaller batch; or fewer bytes that cannot be evicted "
        "(an optimizer with less state, coop.unpin, zero_grad(set_to_none=True)).",
    ]
    error = OutOfBudgetError("\n".join(lines))
    error.operator = operator
    error.replaying = replaying
    error.shortage = shortage
    return error
