"""A small language for tests: a simulator and the trace that grows under it."""

from collections.abc import Sequence

from coop._native import _C


class Driver:
    """Applies one entry after the other; each method returns whether it fitted."""

    def __init__(self, budget: int, *, small_bytes: int = 0, **options: object) -> None:
        self.simulator = _C.Simulator(_C.Config(budget, small_bytes=small_bytes, **options))
        self.trace = _C.Trace()

    def apply(self, kind: int, storage: int = 0, num_bytes: int = 0) -> bool:
        self.trace.add(kind, storage, num_bytes, 0)
        fitted: bool = self.simulator.apply_last(self.trace)
        assert self.simulator.is_valid()
        return fitted

    def root(self, storage: int, num_bytes: int) -> bool:
        return self.apply(1, storage, num_bytes)

    def free(self, storage: int) -> bool:
        return self.apply(2, storage)

    def keep(self, storage: int) -> bool:
        return self.apply(3, storage)

    def unkeep(self, storage: int) -> bool:
        return self.apply(4, storage)

    def evict(self, storage: int) -> bool:
        return self.apply(5, storage)

    def materialize(self, storage: int) -> bool:
        return self.apply(6, storage)

    def begin_step(self) -> bool:
        return self.apply(7)

    def end_step(self) -> bool:
        return self.apply(8)

    def make_root(self, storage: int) -> bool:
        return self.apply(9, storage)

    def op(
        self,
        reads: Sequence[int] = (),
        makes: Sequence[tuple[int, int]] = (),
        *,
        writes: Sequence[int] = (),
        overwrites: Sequence[int] = (),
        temporaries: Sequence[int] = (),
        cost: int = 100,
        left: bool = True,
        replayable: bool = True,
        backward: bool = True,
        updates: bool = False,
    ) -> bool:
        """`makes` are (storage, bytes); temporaries come after them.

        With `updates`, what is written stays a root, as in an optimizer.
        """
        inputs = list(reads) + [s for s in (*writes, *overwrites) if s not in reads]
        memory = [(0, index) for index in range(len(makes))]
        memory += [(1, num_bytes) for num_bytes in temporaries]
        self.trace.add_operator(
            0, cost, left, replayable, inputs, [s for s, _ in makes], [b for _, b in makes],
            list(writes), list(overwrites), memory if temporaries else [], 0,
            backward=backward, make_roots=list(range(len(writes))) if updates else [],
        )  # fmt: skip
        fitted: bool = self.simulator.apply_last(self.trace)
        assert self.simulator.is_valid()
        return fitted
