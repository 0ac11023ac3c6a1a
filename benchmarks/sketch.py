"""About how little has to be recomputed when a step is known: what a schedule may reach.

    python -m benchmarks.sketch TRACE ...         # prints a table in Markdown

While an operator runs that needs much memory, everything that is read later is kept at first. As
long as that does not fit, the value goes that costs least for each byte it frees: its recipe has to
run again, and those of its ancestors that are not there. A recipe is paid once for all values that
are read at about the same time, and again for those that are read at another. Instead of a value,
a smaller dead ancestor may be kept from which it is recomputed.

There are no addresses, and what comes back is taken to fit: so this is an estimate. Nobody does
better than `benchmarks.floor` says, and a schedule should come close to this, which is never less.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.floor import NUM_LOOKS, floor, largest_operators
from benchmarks.program import Program, Recipe, Value, read_program
from coop.simulate import peak_without_limit
from coop.trace import read_trace

RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
# Reads are at about the same time when they are this share of the step apart.
NEAR = 0.015
# Dead ancestors that are tried in the place of one value, the nearest first.
MOST_ANCESTORS = 12
# Of two that cost the same, the older goes first, or the newer: what is better is taken.
ORDERS = (1, -1)


class _Choice:
    """What is kept while one operator runs, and what is paid for the rest.

    `kept` holds what waits to be read and dead values that stand for such; what is neither kept
    nor there anyway (a root, what an earlier step made) has to be recomputed where it is needed.
    """

    def __init__(self, program: Program, number: int, order: int) -> None:
        self.order = order
        self.begin = program.last_step().start
        self.number = number
        self.near = NEAR * len(program.last_step())
        operator = program.operators[number]
        self.fixed_bytes = operator.root_bytes + operator.running_bytes
        self.own = set(map(id, operator.own))
        self.kept = {id(value): value for value in program.waiting(number)}
        self.kept_bytes = sum(value.num_bytes for value in self.kept.values())
        self.read_at = {key: value.last_read for key, value in self.kept.items()}
        self.paid: dict[int, list[int]] = {}  # by recipe, the times at which it runs again
        self.cost_ns = 0
        self.heap = [self.candidate(v, self.price(v)[0]) for v in list(self.kept.values())]
        heapq.heapify(self.heap)

    def candidate(self, value: Value, price: float) -> tuple[float, int, int, int, int]:
        """In the order in which they go."""
        return price, self.order * value.born, value.num_bytes, value.last_read, id(value)

    def is_there(self, value: Value) -> bool:
        return (
            value.recipe is None
            or id(value) in self.kept
            or value.born < self.begin
            or value.root_from <= self.number
            or id(value) in self.own
        )

    def unpaid(self, value: Value, time: int) -> dict[int, Recipe]:
        """What has to run again to bring `value` back at a time, and is not paid; nearest first."""
        assert value.recipe is not None
        found: dict[int, Recipe] = {}
        queue = [value.recipe]
        for recipe in queue:  # grows
            if id(recipe) in found or self.is_paid(recipe, time):
                continue
            found[id(recipe)] = recipe
            queue += [
                source.recipe
                for source in recipe.inputs
                if source.recipe is not None and not self.is_there(source)
            ]
        return found

    def is_paid(self, recipe: Recipe, time: int) -> bool:
        return any(abs(time - other) <= self.near for other in self.paid.get(id(recipe), ()))

    def price(self, value: Value) -> tuple[float, Value | None]:
        """The cost for each byte if it goes, and the dead ancestor to be kept in its place."""
        time = self.read_at[id(value)]
        del self.kept[id(value)]
        recipes = self.unpaid(value, time)
        best = sum(recipe.cost_ns for recipe in recipes.values()) / max(value.num_bytes, 1)
        instead = None
        for ancestor in self.smaller_ancestors(value, recipes):
            self.kept[id(ancestor)] = ancestor
            cost = sum(recipe.cost_ns for recipe in self.unpaid(value, time).values())
            del self.kept[id(ancestor)]
            if (price := cost / (value.num_bytes - ancestor.num_bytes)) < best:
                best, instead = price, ancestor
        self.kept[id(value)] = value
        return best, instead

    def smaller_ancestors(self, value: Value, recipes: dict[int, Recipe]) -> Iterator[Value]:
        seen: set[int] = set()
        for recipe in recipes.values():
            for source in recipe.inputs:
                if id(source) in seen or self.is_there(source):
                    continue
                seen.add(id(source))
                if source.num_bytes < value.num_bytes:
                    yield source
                    if len(seen) >= MOST_ANCESTORS:
                        return

    def give_up_cheapest(self) -> bool:
        """Makes room by one value; False when there is none."""
        while self.heap:
            *_, key = heapq.heappop(self.heap)
            value = self.kept.get(key)
            if value is None:
                continue
            # Prices change as others go: it is taken only if it is still the cheapest.
            price, instead = self.price(value)
            if self.heap and price > self.heap[0][0] * 1.0001:
                heapq.heappush(self.heap, self.candidate(value, price))
                continue
            self.give_up(value, instead)
            return True
        return False

    def give_up(self, value: Value, instead: Value | None) -> None:
        time = self.read_at[id(value)]
        del self.kept[id(value)]
        self.kept_bytes -= value.num_bytes
        if instead is not None:
            self.kept[id(instead)] = instead
            self.kept_bytes += instead.num_bytes
            self.read_at[id(instead)] = max(self.read_at.get(id(instead), 0), time)
            heapq.heappush(self.heap, self.candidate(instead, self.price(instead)[0]))
        for key, recipe in self.unpaid(value, time).items():
            self.paid.setdefault(key, []).append(time)
            self.cost_ns += recipe.cost_ns

    def least_ns(self, budget_bytes: int) -> float:
        """What is paid in a budget; infinite where it does not fit. Budgets come largest first."""
        room = budget_bytes - self.fixed_bytes
        while self.kept_bytes > room:
            if room < 0 or not self.give_up_cheapest():
                return math.inf
        return self.cost_ns


def sketch(program: Program, budgets: Sequence[int]) -> list[float]:
    """For each budget, extra compute of the last step as a share of its compute."""
    largest_first = sorted(range(len(budgets)), key=lambda k: -budgets[k])
    least = [0.0 if program.least_bytes() <= budget else math.inf for budget in budgets]
    for number in largest_operators(program, NUM_LOOKS):
        choices = [_Choice(program, number, order) for order in ORDERS]
        paid = [min(choice.least_ns(budgets[k]) for choice in choices) for k in largest_first]
        # What fits a smaller budget fits a larger one.
        for position, k in enumerate(largest_first):
            least[k] = max(least[k], min(paid[position:]))
    return [cost / program.compute_ns() for cost in least]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    args = parser.parse_args()
    print("| floor / sketch | " + " | ".join(map(str, RATIOS)) + " |")
    print("| --- " * (1 + len(RATIOS)) + "|")
    for path in args.traces:
        peak_bytes, program = peak_without_limit(read_trace(path)), read_program(path)
        budgets = [int(peak_bytes * ratio) for ratio in RATIOS]
        both = zip(floor(program, budgets), sketch(program, budgets), strict=True)
        cells = " | ".join(f"{bound:.1%} / {reached:.1%}" for bound, reached in both)
        print(f"| {path.name.partition('.')[0]} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
