"""The least that any policy has to recompute, on the networks at paper size.

    python -m benchmarks.floor [TRACE ...]        # prints a table in Markdown
    python -m benchmarks.floor --link h200        # and with copies over that device's link

While one operator of the last step runs, its inputs, its results, its temporaries and all roots are
held. Beside them there is room for some of the values that were made before it, dead ones among
them. Of what is read later and was not kept, the recipe has to run again, and of its inputs those
that were not kept either, and so on: once at least, whatever chooses what is kept and whenever it
comes back. The least cost of all choices, with parts of values allowed, is a lower bound, and the
largest of several operators is one too. It has no addresses and recomputes nothing twice, so a
policy may not reach it.

With copies roots may be away too. What is away while an operator runs, and is not recomputed, comes
back over the link within the step, beside the operators. So a step takes as long as its operators
and what is recomputed, and as long as the link takes for the rest: the least of the larger of both,
over all bytes that may be copied. (Roots that a step never reads would come back for nothing.)

For a price of a byte the best choice is a minimum cut: see `_Choices`. A price for which what is
kept is as large as the room proves the bound.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from benchmarks.program import Program, Recipe, Value, read_program
from coop.profiles import get_device
from coop.simulate import Options, peak_without_limit, simulate
from coop.sizes import LARGEST_BYTES
from coop.trace import read_trace

TRACES = Path(__file__).parent / "traces" / "paper"
NETWORKS = ("resnet50", "inception_v3", "unet", "swin", "bert_large", "spos", "densenet121")
POLICIES = ("coop", "dtr", "dte")
RATIOS = (0.8, 0.7, 0.6, 0.5)
# Operators that are looked at: those that need the most memory of as many parts of the step.
NUM_LOOKS = 8
# Prices that are tried for one operator and budget; they are found long before that.
MOST_PRICES = 30
# Flows are 32 bits wide.
_INFINITE = 2**30
_MOST_COST = 2**29


class _Choices:
    """What can be kept while one operator runs, as a graph to cut.

    Cut from the source are the recipes that run again and the values that are needed. A recipe that
    runs again is cut from the sink at its cost, and needs its inputs. A value that is needed has a
    recipe that runs again, or is kept at its bytes times the price of a byte.
    """

    def __init__(self, program: Program, number: int) -> None:
        operator = program.operators[number]
        self.fixed_bytes = operator.root_bytes + operator.running_bytes
        own = set(map(id, operator.own))
        begin = program.last_step().start
        self.values: list[Value] = []
        self.recipes: list[Recipe] = []
        value_nodes: dict[int, int] = {}
        recipe_nodes: dict[int, int] = {}
        needs: list[tuple[int, int]] = []  # recipe, value
        made_by: list[int] = []  # by value, its recipe

        def value_node(value: Value) -> int:
            node = value_nodes.setdefault(id(value), len(self.values))
            if node == len(self.values):
                self.values.append(value)
            return node

        waiting = [value_node(value) for value in program.waiting(number)]
        for value in self.values:  # grows
            recipe = value.recipe
            assert recipe is not None
            node = recipe_nodes.setdefault(id(recipe), len(self.recipes))
            made_by.append(node)
            if node < len(self.recipes):
                continue
            self.recipes.append(recipe)
            for source in recipe.inputs:
                is_there = source.recipe is None or source.born < begin or id(source) in own
                if not is_there and source.root_from > number:
                    needs.append((node, value_node(source)))
        self.num_bytes = np.array([v.num_bytes for v in self.values], float)
        self.waiting_bytes = float(self.num_bytes[waiting].sum())
        costs = np.array([r.cost_ns for r in self.recipes], float)
        # Costs are rounded down to what a flow can say; so the bound may only get smaller.
        self.scale = _MOST_COST / max(costs.sum(), 1.0)
        self.costs = np.floor(costs * self.scale)
        num_values, num_recipes = len(self.values), len(self.recipes)
        self.source, self.sink = num_values + num_recipes, num_values + num_recipes + 1
        self.made_by = np.array(made_by, int)
        edges = [
            *((v, num_values + r) for v, r in enumerate(made_by)),
            *((num_values + r, self.sink) for r in range(num_recipes)),
            *((num_values + r, v) for r, v in dict.fromkeys(needs)),
            *((self.source, v) for v in waiting),
        ]
        self.tails, self.heads = np.array(edges, int).reshape(-1, 2).T
        self.known: dict[float, tuple[float, float, float]] = {}

    def at_price(self, price: float) -> tuple[float, float, float]:
        """(a bound of cost + price x bytes, and of the best choice the cost and the bytes)."""
        if price not in self.known:
            self.known[price] = self.cut(price)
        return self.known[price]

    def cut(self, price: float) -> tuple[float, float, float]:
        num_values, num_recipes = len(self.values), len(self.recipes)
        capacities = np.full(len(self.tails), _INFINITE)
        kept = np.minimum(np.floor(self.num_bytes * (price * self.scale)), _INFINITE)
        capacities[:num_values] = kept
        capacities[num_values : num_values + num_recipes] = self.costs
        graph = csr_array(
            (capacities.astype(np.int32), (self.tails, self.heads)),
            shape=(self.sink + 1, self.sink + 1),
        )
        result = maximum_flow(graph, self.source, self.sink)
        left = graph - result.flow
        left.eliminate_zeros()
        is_reached = np.zeros(self.sink + 1, bool)
        is_reached[breadth_first_order(left, self.source, return_predecessors=False)] = True
        replayed = is_reached[num_values : num_values + num_recipes]
        is_kept = is_reached[:num_values] & ~replayed[self.made_by]
        cost = float(self.costs[replayed].sum()) / self.scale
        return result.flow_value / self.scale, cost, float(self.num_bytes[is_kept].sum())

    def least_ns(self, budget_bytes: int) -> float:
        """The bound for a budget; infinite where the operator cannot run in it."""
        room = budget_bytes - self.fixed_bytes
        if room < 0:
            return math.inf
        if room >= self.waiting_bytes:
            return 0.0
        # Of two choices, one too large and one that fits, the price at which they are equal.
        large = 0.0, self.waiting_bytes
        every_price = 2 * (self.costs.sum() / self.scale + 1)
        _, *small = self.at_price(every_price)
        best = small[0] if room == 0 else 0.0
        for _ in range(MOST_PRICES):
            if large[1] <= small[1]:
                break
            price = (small[0] - large[0]) / (large[1] - small[1])
            bound, cost, num_bytes = self.at_price(price)
            best = max(best, bound - price * room)
            at_line = large[0] + price * large[1]
            if cost + price * num_bytes >= at_line * (1 - 1e-6):
                break
            if num_bytes > room:
                large = cost, num_bytes
            else:
                small = [cost, num_bytes]
        return best

    def least_with_copies_ns(self, budget_bytes: int, compute_ns: float, link: float) -> float:
        """The bound where bytes may be copied as well, so many by the nanosecond."""
        few, many = 0.0, max(self.fixed_bytes + self.waiting_bytes - budget_bytes, 0.0)
        for _ in range(MOST_PRICES):
            copied = (few + many) / 2
            if compute_ns + self.least_ns(int(budget_bytes + copied)) > copied / link:
                few = copied
            else:
                many = copied
        replayed = self.least_ns(math.ceil(budget_bytes + many))
        return max(few / link - compute_ns, replayed if math.isfinite(replayed) else 0.0)


def largest_operators(program: Program, count: int) -> list[int]:
    """The operators that need the most memory, one of each part of the last step, largest first."""
    step, needed = program.last_step(), program.needed_bytes()
    parts = np.array_split(np.arange(len(step)), count)
    largest = [int(part[np.argmax(needed[part])]) for part in parts if len(part)]
    return [step.start + n for n in sorted(largest, key=lambda n: -needed[n])]


def floor(program: Program, budgets: Sequence[int]) -> list[float]:
    """For each budget, the least extra compute of the last step, as a share of its compute.

    Infinite where an operator cannot run in it.
    """
    least = [0.0 if program.least_bytes() <= budget else math.inf for budget in budgets]
    for number in largest_operators(program, NUM_LOOKS):
        choices = _Choices(program, number)
        least = [max(best, choices.least_ns(b)) for best, b in zip(least, budgets, strict=True)]
    return [best / program.compute_ns() for best in least]


def floor_with_copies(
    program: Program, budgets: Sequence[int], bytes_per_second: float
) -> list[float]:
    """The same where bytes may be copied, so many a second each way."""
    compute_ns = program.compute_ns()
    least = [0.0] * len(budgets)
    for number in largest_operators(program, NUM_LOOKS):
        choices = _Choices(program, number)
        found = (
            choices.least_with_copies_ns(each, compute_ns, bytes_per_second / 1e9)
            for each in budgets
        )
        least = [max(best, each) for best, each in zip(least, found, strict=True)]
    return [best / compute_ns for best in least]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    parser.add_argument("--link", metavar="DEVICE", help="with copies over the link of this one")
    args = parser.parse_args()
    link = None if args.link is None else get_device(args.link).link
    with_copies = "" if link is None else ", with copies: floor / coop"
    print(
        f"| network, floor / {' / '.join(POLICIES)}{with_copies} | "
        + " | ".join(map(str, RATIOS))
        + " |"
    )
    print("| --- " * (1 + len(RATIOS)) + "|")
    for path in args.traces or [TRACES / f"{name}.jsonl.gz" for name in NETWORKS]:
        trace = read_trace(path)
        peak_bytes = peak_without_limit(trace)
        budgets = [int(peak_bytes * ratio) for ratio in RATIOS]
        cells = []
        program = read_program(path)
        copying = [0.0] * len(budgets)
        if link is not None:
            speed = min(link.out_bytes_per_second, link.in_bytes_per_second)
            copying = floor_with_copies(program, budgets, speed)
        least_of = zip(budgets, floor(program, budgets), copying, strict=True)
        for budget, least, least_copying in least_of:
            shown = [f"{least:.1%}"]
            for policy in POLICIES:
                options = Options(policy, alignment=trace.header.alignment)
                last = simulate(trace, budget, options, most_replay=5)
                extra = last.last_step.replay_ns / last.last_step.compute_ns
                shown.append(f"{extra:.1%}" if last.fitted else "-")
            cell = " / ".join(shown)
            if link is not None:
                alignment = trace.header.alignment
                options = Options(alignment=alignment, host_bytes=LARGEST_BYTES, link=link)
                step = simulate(trace, budget, options, most_replay=5).last_step
                extra = (step.replay_ns + step.host_wait_ns) / step.compute_ns
                cell += f", {least_copying:.1%} / {extra:.1%}"
            cells.append(cell)
        print(f"| {path.name.partition('.')[0]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
