"""What a compiled model was chosen to save, what it took when it ran, and whether to choose again.

A choice is made when a graph is partitioned, from sizes that are estimates: nobody knows yet what
the compiler will need beside what is saved, nor what the optimizer will keep. After two steps both
are known (after one, if the next would not fit). If more fits than was chosen, or less, dynamo is
made to forget the function, which it compiles once more at its next call, with room for as much as
is really there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from coop._native import _C

__all__ = ["Choice", "Choices", "find_compiled_code", "name_compiled_function"]

# Of what the choice gives up: less than this is not worth compiling again.
LEAST_GAIN = 0.1


@dataclass(eq=False)
class Choice:
    """For one graph. What is saved includes parameters."""

    code: CodeType | None  # of the function that dynamo compiles
    budget_bytes: int
    share: float
    saved_bytes: int
    most_saved_bytes: int  # with a share of 1
    larger_bytes: tuple[int, ...]  # with larger shares that were tried
    largest_bytes: int  # tensor of the graph
    # By one of its graphs at most, with all else that could not leave meanwhile.
    taken_bytes: int = 0
    has_run: bool = False  # forward and backward
    num_steps: int = 0

    @property
    def graph(self) -> tuple[CodeType | None, int, int]:
        """Which one it is for: the same code may be compiled for several models."""
        return self.code, self.most_saved_bytes, self.largest_bytes


class _Measured:
    """A graph's callable, until the choice is settled."""

    _boxed_call = True

    def __init__(
        self, choices: Choices, choice: Choice, callable: Callable[..., Any], is_backward: bool
    ) -> None:
        self._choices = choices
        self._choice = choice
        self._callable = callable
        self._is_backward = is_backward

    def __call__(self, args: list[Any]) -> Any:
        engine = self._choices.engine_for(self._choice)
        if engine is None:
            return self._callable(args)
        fixed_bytes = _fixed_bytes(engine)
        engine.watch_growth()
        results = self._callable(args)
        taken = fixed_bytes + engine.growth_bytes()
        self._choice.taken_bytes = max(self._choice.taken_bytes, taken)
        self._choice.has_run |= self._is_backward
        return results


class Choices:
    """Those of the active budget that are not settled. `engine`: the budget's, null outside."""

    def __init__(self, engine: Callable[[], _C.Engine | None]) -> None:
        self._engine = engine
        self._open: list[Choice] = []
        self._made: list[Choice] = []
        # Those in whose place another one is made, by what is compiled once more.
        self._measured: dict[tuple[CodeType | None, int, int], Choice] = {}
        self._fixed_bytes = 0  # when the update began

    def enter(self, budget_bytes: int) -> None:
        """A budget begins. What was chosen for another one is chosen again."""
        for choice in self._made:
            if choice.code is not None and choice.budget_bytes != budget_bytes:
                torch._C._dynamo.eval_frame.reset_code(choice.code)
        self._made = [c for c in self._made if c.budget_bytes == budget_bytes]
        self._measured = {
            graph: c for graph, c in self._measured.items() if c.budget_bytes == budget_bytes
        }
        self._open.clear()

    def add(self, choice: Choice) -> None:
        """A graph is being compiled."""
        self._made.append(choice)
        if choice.code is not None and choice.graph not in self._measured:
            self._open.append(choice)

    def measured_before(self, choice: Choice) -> Choice | None:
        """The choice in whose place this one is made."""
        return self._measured.get(choice.graph)

    def measuring(self, callable: Any, choice: Choice | None, *, is_backward: bool) -> Any:
        """The graph's callable; what it takes is noted."""
        if choice is None or choice not in self._open:
            return callable
        return _Measured(self, choice, callable, is_backward)

    def engine_for(self, choice: Choice) -> _C.Engine | None:
        """By which to measure it; None: it is settled."""
        return self._engine() if choice in self._open else None

    def update_begins(self) -> None:
        """An optimizer is about to step."""
        engine = self._engine()
        if self._open and engine is not None:
            self._fixed_bytes = _fixed_bytes(engine)

    def update_ends(self) -> None:
        """It has, and what it keeps is there from now on."""
        engine = self._engine()
        if not self._open or engine is None:
            return
        kept_bytes = max(0, _fixed_bytes(engine) - self._fixed_bytes)
        have_run = [c for c in self._open if c.has_run]
        for choice in have_run:
            choice.taken_bytes += kept_bytes
            if choice.num_steps == 0 and choice.taken_bytes <= choice.budget_bytes:
                # In the second one the optimizer's states are there, and maybe old gradients.
                choice.num_steps, choice.taken_bytes = 1, 0
                continue
            self._open.remove(choice)
            # Between several graphs of a function there is something to evict.
            if sum(c.code == choice.code for c in have_run) == 1:
                self._settle(choice)

    def _settle(self, choice: Choice) -> None:
        # A program may ask that nothing is compiled any more.
        if choice.code is None or torch._dynamo.eval_frame._stance.stance != "default":
            return
        free_bytes = free_beside(choice)
        least_gain = LEAST_GAIN * (choice.most_saved_bytes - choice.saved_bytes)
        gains = [larger - choice.saved_bytes for larger in choice.larger_bytes]
        if choice.taken_bytes > choice.budget_bytes or any(
            least_gain < gain <= free_bytes for gain in gains
        ):
            self._measured[choice.graph] = choice
            torch._C._dynamo.eval_frame.reset_code(choice.code)


def free_beside(choice: Choice) -> int:
    """How much more it could have saved; negative: how much less it has to.

    The room of its largest tensor may be there, and not in one piece.
    """
    return choice.budget_bytes - choice.taken_bytes - choice.largest_bytes


def find_compiled_code() -> CodeType | None:
    """Of the function that dynamo compiles on this thread."""
    found = _find_compilation()
    return None if found is None else found["code"]


def name_compiled_function() -> str:
    """The function that dynamo compiles on this thread; of a module of torch's own, the module."""
    found = _find_compilation()
    if found is None:
        return "graph"
    code = found["code"]
    if code.co_filename == torch._dynamo.external_utils.__file__ and found["closure"]:
        wrapped = found["closure"][0].cell_contents
        if isinstance(wrapped, torch.nn.Module):
            return f"{type(wrapped).__name__}.forward"
    # Python 3.10 knows no qualified names.
    name: str = getattr(code, "co_qualname", code.co_name)
    return name


def _find_compilation() -> dict[str, Any] | None:
    """What dynamo knows of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_compile" and "code" in frame.f_locals:
            return frame.f_locals
        frame = frame.f_back
    return None


def _fixed_bytes(engine: _C.Engine) -> int:
    """What cannot leave now."""
    found = engine.shortage(0)
    fixed = (found["root_bytes"], found["kept_bytes"])
    return sum(fixed) + found["locked_bytes"] + found["temporary_bytes"]
