"""What to do when something does not fit: named tensors, and what helps, the most helpful first."""

from __future__ import annotations

from typing import Any

from coop.naming import GRADIENT, LOCAL, OPTIMIZER_STATE, Names
from coop.sizes import format_bytes

__all__ = ["find_advice", "name_largest"]

# More than this is no help for a person who wants to know what is large.
_MOST_LINES = 5
# Room for what a smaller batch does not make smaller: gaps between blocks, headers.
_SLACK = 0.9
_AS = {
    "in use": "in use by this operator",
    "temporary": "made by this operator",
    "kept": "kept",
    "root": "a root",
}
# Operators of a loss over classes: with a large vocabulary these are the largest tensors there are.
_OF_LOSSES = ("log_softmax", "nll_loss", "softmax", "cross_entropy", "logsumexp")


def name_largest(shortage: dict[str, Any], names: Names, lines: dict[int, str]) -> list[str]:
    """A line for each of the largest: bytes, what the program calls it, what it is there for.

    Args:
        shortage: the engine's numbers.
        names: of the program's tensors.
        lines: where values were made, by their numbers, as far as that was recorded.
    """
    described = []
    for num_bytes, as_, storage, value in shortage["largest"]:
        name = names.by_storage.get(storage)
        made = f"made at {lines[value]}" if value in lines else ""
        text = name.text if name is not None else made
        if name is not None and name.kind == LOCAL and made:
            text += f", {made}"
        if as_ == "root" and not text:
            continue  # nothing can be said of it
        described.append(
            f"{format_bytes(num_bytes):>10}  {', '.join(filter(None, (text, _AS[as_])))}"
        )
    return described[:_MOST_LINES]


def find_advice(
    operator: str,
    shortage: dict[str, Any],
    names: Names,
    most_bytes: int,
    *,
    can_copy: bool = False,
) -> list[str]:
    """In the order of what helps most here.

    Only what can free the bytes that are missing; a larger budget comes first where there is one.

    Args:
        operator: what did not fit.
        shortage: the engine's numbers.
        names: of the program's tensors.
        most_bytes: all memory of the device; 0 is not known.
        can_copy: whether there could be copies in main memory, and there are none.
    """
    enough = shortage["sufficient_budget_bytes"]
    missing = shortage["wanted_bytes"] - shortage["largest_window_bytes"]
    at_once = shortage["locked_bytes"] + shortage["temporary_bytes"] + shortage["wanted_bytes"]
    kept, state = shortage["kept_bytes"], names.bytes_by_kind[OPTIMIZER_STATE]
    gradients = names.bytes_by_kind[GRADIENT]
    found: list[tuple[int, str]] = []

    share = _batch_share(shortage, names)
    if share:
        text = f"a smaller batch or sequence, at most about {share:.0%} of this one at this point"
        found.append((at_once + 1, text))
    if at_once >= 2 * missing and shortage["locked_bytes"] > 0:
        found.append((at_once, _in_pieces(operator, at_once)))
    if kept >= missing:
        text = (
            f"less that is kept ({format_bytes(kept)}): coop.unkeep what coop.keep keeps, "
            "coop.allow_replay for custom operators, no .numpy() or .data_ptr() of large tensors"
        )
        found.append((kept, text))
    if state >= missing:
        text = (
            f"an optimizer with less state ({format_bytes(state)} now): torch.optim.SGD has none, "
            "or one with 8-bit or factored state"
        )
        found.append((state, text))
    if gradients >= missing and "backward" not in operator:
        text = (
            f"optimizer.zero_grad() before this point, not after it: the gradients of the last "
            f"step take {format_bytes(gradients)}"
        )
        found.append((gradients, text))
    roots = shortage["root_bytes"] - state - gradients
    if roots >= 2 * missing:
        text = (
            f"fewer roots ({format_bytes(roots)} of parameters, inputs and the like): a smaller "
            "type such as bfloat16, no references to old tensors"
        )
        found.append((roots // 2, text))
    if can_copy and shortage["root_bytes"] >= 2 * missing:
        text = (
            f"room for copies of roots ({format_bytes(shortage['root_bytes'])}) in a file: "
            "host='4GiB', host_dir='/scratch', or --host and --host-dir"
        )
        found.append((shortage["root_bytes"] // 2, text))
    found.sort(key=lambda each: -each[0])
    advice = [text for _, text in found]
    budget = f"a budget of {enough}, or a little more, for what comes after this point"
    if 0 < most_bytes < enough:
        return advice or [f"{budget} (there are {format_bytes(most_bytes)} here)"]
    return [budget, *advice]


def _batch_share(shortage: dict[str, Any], names: Names) -> float:
    """At most how large a batch may be, of this one; 0: no batch would help.

    What this operator uses grows with the batch, but for parameters and the like. What it wants
    would fit where it lies now if it were as large as the largest window.
    """
    of_model = sum(
        num_bytes
        for num_bytes, as_, storage, _ in shortage["largest"]
        if as_ == "in use" and storage in names.by_storage
        if names.by_storage[storage].kind != LOCAL
    )
    lasting = shortage["root_bytes"] + shortage["kept_bytes"] + of_model
    used = shortage["locked_bytes"] + shortage["temporary_bytes"] + shortage["wanted_bytes"]
    together = (shortage["budget_bytes"] - lasting) / max(used - of_model, 1) * _SLACK
    share = max(together, shortage["largest_window_bytes"] / shortage["wanted_bytes"])
    return share if 0.01 <= share < 1 else 0.0


def _in_pieces(operator: str, at_once: int) -> str:
    needs = f"this operator alone needs {format_bytes(at_once)} at once"
    # An optimizer's update of all parameters: the same numbers one after the other.
    if "_fused_" in operator or "_foreach_" in operator:
        return (
            f"foreach=False and fused=False in the optimizer, which then updates one tensor after "
            f"the other: {needs}"
        )
    if any(name in operator for name in _OF_LOSSES):
        return (
            f"logits and loss in pieces, some rows at a time, each with its own backward(): {needs}"
        )
    return f"smaller operators, the layer or the loss in pieces: {needs}"
