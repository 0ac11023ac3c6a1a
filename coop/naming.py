"""What the program calls its tensors: for messages, found when one is needed and not before.

Looks at modules, optimizers and the local variables of the stack. Reads no tensor's bytes.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from coop.recording import SourceLine

__all__ = ["GRADIENT", "LOCAL", "OPTIMIZER_STATE", "PARAMETER", "Name", "Names", "find_names"]

PARAMETER, GRADIENT, OPTIMIZER_STATE, LOCAL = "parameter", "gradient", "optimizer state", "local"
# A list of all samples is no list of tensors.
_MOST_ITEMS = 256


@dataclass(frozen=True)
class Name:
    """Of one tensor."""

    kind: str
    text: str


@dataclass
class Names:
    """By the address of the tensors' storages, and bytes by kind."""

    by_storage: dict[int, Name] = field(default_factory=dict)
    bytes_by_kind: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def find_names(owns: Callable[[torch.Tensor], bool]) -> Names:
    """Of the tensors that are in the budget, which `owns` tells. The first name of each counts."""
    names = Names()
    for tensor, name in _named_tensors():
        try:
            storage = tensor.untyped_storage()
            address = storage._cdata
            if address in names.by_storage or not owns(tensor):
                continue
            names.by_storage[address] = name
            names.bytes_by_kind[name.kind] += storage.nbytes()
        except (RuntimeError, NotImplementedError, TypeError):
            continue  # one without a storage
    return names


def _named_tensors() -> Iterator[tuple[torch.Tensor, Name]]:
    modules, optimizers = _modules_and_optimizers()
    parameters: dict[torch.Tensor, str] = {}
    for module in modules:
        of = type(module).__name__
        for path, weight in module.named_parameters():
            parameters.setdefault(weight, f"{path} of {of}")
        for path, buffer in module.named_buffers():
            yield buffer, Name(PARAMETER, f"{path} of {of}")
    for parameter, text in parameters.items():
        yield parameter, Name(PARAMETER, text)
        if parameter.grad is not None:
            yield parameter.grad, Name(GRADIENT, f"the gradient of {text}")
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            of = parameters.get(parameter, "a parameter")
            for key, value in _items(state):
                yield value, Name(OPTIMIZER_STATE, f"{type(optimizer).__name__}'s {key} of {of}")
    for frame in _frames():
        code = frame.f_code
        line = SourceLine(code.co_filename, code.co_name, frame.f_lineno, False)
        for variable, value in _locals_of(frame).items():
            if isinstance(value, torch.Tensor):
                yield value, Name(LOCAL, f"{variable} ({line.place})")
            else:
                for key, item in _items(value):
                    yield item, Name(LOCAL, f"{variable}[{key!r}] ({line.place})")


def _modules_and_optimizers() -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer]]:
    """All that there are; of modules, those that no other one contains."""
    modules: list[torch.nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    # By their types: to ask an object for its class may run code of anybody's.
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, torch.nn.Module):
            modules.append(thing)
        elif issubclass(kind, torch.optim.Optimizer):
            optimizers.append(thing)
    inner = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    whole = [m for m in modules if "_parameters" in vars(m) and id(m) not in inner]
    return whole, [optimizer for optimizer in optimizers if hasattr(optimizer, "state")]


def _locals_of(frame: FrameType) -> dict[str, Any]:
    """A copy. Before Python 3.13 a function's frame keeps what it gave, and so the tensors in it
    would live for as long as the function runs: that is emptied."""
    given = frame.f_locals
    variables = dict(given)
    if type(given) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        given.clear()
    return variables


def _items(container: Any) -> Iterator[tuple[object, torch.Tensor]]:
    """The tensors of a dictionary or a list."""
    if type(container) is dict:
        pairs = list(container.items())[:_MOST_ITEMS]
    elif type(container) in (list, tuple):
        pairs = list(enumerate(container[:_MOST_ITEMS]))
    else:
        return
    yield from ((key, value) for key, value in pairs if isinstance(value, torch.Tensor))


def _frames() -> list[FrameType]:
    """Of the user's code, the innermost first: of this thread, and of the main one."""
    library, ours = str(Path(torch.__file__).parent), str(Path(__file__).parent)
    # Not with our own frame: it would hold itself, and with it the error and what that holds.
    stacks = [sys._getframe(1)]
    main = threading.main_thread().ident
    if main != threading.get_ident() and main is not None:
        stacks += [frame for ident, frame in sys._current_frames().items() if ident == main]
    frames = []
    for innermost in stacks:
        frame: FrameType | None = innermost
        while frame is not None:
            if not frame.f_code.co_filename.startswith((library, ours, "<frozen")):
                frames.append(frame)
            frame = frame.f_back
    return frames
