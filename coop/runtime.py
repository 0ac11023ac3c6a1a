"""Everything that the process has once: the active session, and what is changed in torch for it.

`import coop` changes nothing. The first budget registers the hooks below, which stay and do nothing
outside of budgets; the patches are in place while a budget is active.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from coop._native import _C
from coop.advice import find_advice, name_largest
from coop.distributed import DistributedPatch
from coop.errors import OutOfBudgetError, make_out_of_budget_error, warn_of_slow_step
from coop.gpus import Gpus
from coop.guards import Memory, MemoryPatch
from coop.higher_order import HigherOrderPatch
from coop.interrupts import InterruptsPatch
from coop.naming import find_names
from coop.patches import Patch
from coop.recording import Failure
from coop.regions import RegionsPatch
from coop.releases import warn_if_newer
from coop.sizes import format_bytes
from coop.threads import ThreadsPatch
from coop.updates import UpdatesPatch

if TYPE_CHECKING:
    from coop.session import Session

__all__ = ["Runtime", "runtime"]


class Runtime:
    """The only owner of process-wide state; there is one, `runtime`."""

    def __init__(self) -> None:
        self.session: Session | None = None  # the active one
        self.gpus = Gpus()
        self.memory = MemoryPatch(self.engine_of)
        self.threads = ThreadsPatch()
        self.regions = RegionsPatch(self._step_begins, self._step_ends, self._active_engine)
        self._higher_order = HigherOrderPatch()
        self._patches: tuple[Patch, ...] = (
            self.memory,
            self.threads,
            InterruptsPatch(),
            DistributedPatch(),
            self._higher_order,
            UpdatesPatch(self._part_bytes),
            self.regions,
        )
        self._engine_without_session: _C.Engine | None = None
        self._is_registered = False

    def engine_of(self, x: Memory) -> _C.Engine:
        """Of the active session: the engine that would have this tensor."""
        if self.session is None:
            raise RuntimeError("this needs a budget: call it inside `with coop.budget(...)`")
        if x.is_cuda and self.gpus.is_installed:
            return _C.cuda_engine(x.device.index)
        return self.session._engine

    def _part_bytes(self, x: torch.Tensor, num_bytes: int) -> int:
        if self.session is None or not _C.is_thread_enabled():
            return 0
        return self.engine_of(x).part_bytes(num_bytes)

    def _active_engine(self) -> _C.Engine | None:
        """Of the active session, if this thread is inside of its budget."""
        if self.session is None or not _C.is_thread_enabled():
            return None
        return self.session._engine

    def check_no_session(self) -> None:
        """Raises inside a budget."""
        if self.session is not None:
            raise RuntimeError(
                f"already inside a budget of {format_bytes(self.session.stats().budget_bytes)}: "
                "budgets do not nest"
            )

    def register(self) -> None:
        """Before the first engine of the process: hooks, which stay."""
        if self._is_registered:
            return
        self._is_registered = True
        warn_if_newer(torch.__version__)
        _C.set_error_factory(self._make_error)
        _C.set_slow_step_warning(warn_of_slow_step)
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=_C.after_fork_in_parent,
            after_in_child=self._forked,
        )
        register_optimizer_step_pre_hook(self._step_begins)
        register_optimizer_step_post_hook(self._step_ends)
        atexit.register(self._end_with_interpreter)

    def start(self, session: Session) -> None:
        """The session's budget is active from now on."""
        self.session = session
        for patch in self._patches:
            patch.leave()  # the last time it may have been interrupted
            patch.enter()
        self.regions.budget_begins(session.stats().budget_bytes)
        session._engine.activate()

    def stop(self, session: Session) -> list[str]:
        """The session's budget ends. Returns descriptions of the tensors that were lost.

        Can be interrupted anywhere, and called again.
        """
        self.session = None
        if session._live is None:
            return []
        engines = [session._live]
        try:
            for patch in self._patches:
                if patch is not self._higher_order:
                    patch.leave()
            engines = list(session._engines().values())
            session._remember()
        finally:
            # Nothing is called in between: an interrupt comes with a call, and an engine is closed
            # once.
            session._live = None
            lost: list[str] = []
            for engine in engines:
                lost += engine.close()
            self._higher_order.leave()  # what is brought back on leaving may need it
            session._let_go()
            for engine in engines:
                self.threads.hold_until_done(engine)
        return lost

    def _end_with_interpreter(self) -> None:
        """A program that ends inside a budget: afterwards modules are taken apart, ours too.

        Not that of a GPU, which has no room to bring back what is evicted.
        """
        if self.session is not None and self.session._device == "cpu":
            self.stop(self.session)

    @contextlib.contextmanager
    def steps_of(self, engine: _C.Engine) -> Iterator[None]:
        """Tells an engine that has no session of the steps of the body."""
        self._engine_without_session = engine
        try:
            yield
        finally:
            self._engine_without_session = None

    def _step_begins(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return  # the graph that the optimizer becomes tells of its steps (regions.py)
        if self._engine_without_session is not None:
            self._engine_without_session.begin_step()
        if self.session is not None and _C.is_thread_enabled():
            self.regions.update_begins()
            for engine in self.session._engines().values():
                engine.begin_step()

    def _step_ends(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._engine_without_session is not None:
            self._engine_without_session.end_step(True)
        if self.session is not None and _C.is_thread_enabled():
            inside_backward = torch._C._current_graph_task_id() != -1
            for engine in self.session._engines().values():
                engine.end_step(not inside_backward)
            if not inside_backward:
                self.regions.update_ends()
                self.session._end_step()

    def _make_error(
        self, operator: str, replaying: str, shortage: dict[str, Any]
    ) -> OutOfBudgetError:
        if self.session is None:
            return make_out_of_budget_error(operator, replaying, shortage)
        session = self.session
        names = find_names(session._owns)
        error = make_out_of_budget_error(
            operator,
            replaying,
            shortage,
            largest=name_largest(shortage, names, session.events.lines_of_values()),
            advice=find_advice(
                operator, shortage, names, session._most_bytes, can_copy=session._could_copy
            ),
        )
        num_steps = session.stats().num_steps
        failure = Failure(str(error), operator, replaying, shortage, num_steps)
        session.events.add_failure(failure)
        return error

    def _before_fork(self) -> None:
        # What a GPU has, a child cannot use.
        session = self.session
        if session is not None and session._device == "cpu" and session.config.host_bytes("cpu"):
            session._engine.bring_back_roots()
        _C.before_fork()

    def _forked(self) -> None:
        if self.session is not None:
            for patch in self._patches:
                patch.leave()
        self.session = None
        _C.after_fork_in_child()


runtime = Runtime()
