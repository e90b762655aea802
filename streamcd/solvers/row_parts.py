"""Visits of a single lane by two threads: parts of a window's rows, each of which steps on weights of its own.

The rows of a window, in their random order, make rounds. In a round all parts start from the same w and step at the same
time, each as if it were alone; then the changes of w are added up. That is right along the directions of rare features. But
along those that rows of all parts have in common each part goes all the way to the optimum: together they go `ROW_PARTS`
times as far, and two parts leave as large an error on the other side. Some more rows, in one part, take it away: the round's
last stretch. So no such error grows, and passes are hardly more than those of one part.

Rows, parts and sums are functions of window and order, never of the threads: the bits are the same for any number of them.
The rule of acceleration sees whether parts do harm (`look_back`), so they are for lanes whose kappa it chooses.

Sources: Ma et al., ICML 2015 (CoCoA+), for changes added up; Ioannou et al., NeurIPS 2019 (SySCD), for rows that change
their part from pass to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from ..core.threads import Threads
from ..kernels.primitives import Costs, Rows, Steering, Variables
from ..kernels.weights import add_changes
from .protocol import State, join_totals, new_totals

ROW_PARTS = 2
"""Parts of a stretch."""

_SHARE_IN_PARTS = 0.9  # of a round's rows
_MOST_ROUNDS = 4  # of a window
_LEAST_ROUNDS = 4  # of a read
_ENTRIES_PER_WEIGHT = 12  # in a round of several, for which w and its copies are swept over eight times
_FEWEST_PER_WEIGHT = 8  # in a window that is one round
_LEAST_ENTRIES = 1 << 20  # in a window: handing over the parts takes a fifth of a millisecond
_OPPOSITE = -0.6  # cosine of successive movements below which a gap that rises tells of an error that grows


def new_lane_arrays(n_lanes: int) -> dict[str, np.ndarray]:
    """Return the arrays of a lane that tell whether it steps in parts: how many passes it still makes in one, how often
    parts did harm, and the last estimate of the gap, 0 where it is not known.
    """
    counts = {name: np.zeros(n_lanes, dtype=np.int64) for name in ("passes_in_one", "setbacks")}
    return counts | {"last_estimate": np.zeros(n_lanes)}


def look_back(lanes: Mapping[str, np.ndarray], lane: int, estimate: float) -> None:
    """Go back to one part after a pass in which an error of common directions grew: for 2 passes, then 4, 8, …

    The estimate of the gap rose then, and w moved back on its way, in long steps.
    """
    before, lanes["last_estimate"][lane] = float(lanes["last_estimate"][lane]), estimate
    if lanes["passes_in_one"][lane]:
        lanes["passes_in_one"][lane] -= 1
    elif 0.0 < before < estimate and lanes["cosine"][lane] < _OPPOSITE:
        lanes["setbacks"][lane] += 1
        lanes["passes_in_one"][lane] = 1 << min(int(lanes["setbacks"][lane]), 20)


def count_rounds(n_entries: float, n_windows: int, state: State) -> int:
    """Count the rounds of a window's rows, with about so many entries; 0 where one part is faster, or did less harm.

    It is one part where parts would be joined a few times a read: each then overshoots by a large share of all rows.
    """
    if n_entries < _LEAST_ENTRIES or state.lanes["passes_in_one"][0]:
        return 0
    per_weight = n_entries / state.w.size
    one = int(per_weight >= _FEWEST_PER_WEIGHT)
    n_rounds = min(max(int(per_weight / _ENTRIES_PER_WEIGHT), one), _MOST_ROUNDS)
    return n_rounds if n_rounds * n_windows >= _LEAST_ROUNDS else 0


def visit_in_parts(
    visit: Callable[..., object],
    arguments: tuple[np.ndarray, Rows, Costs, Variables, Steering],
    n_rounds: int,
    totals: np.ndarray,
    copies: np.ndarray,
    threads: Threads,
) -> None:
    """Visit rows in rounds: ``visit(*arguments, totals)``, but for the order of the steps.

    Changed in place: `totals`, the variables, and `copies` (`ROW_PARTS` or more, weights), which may hold anything.
    """
    order, rows, costs, variables, steering = arguments
    w, (first, second) = variables.w, copies[:ROW_PARTS]

    def step(part: np.ndarray, own: Variables, sums: np.ndarray) -> None:
        visit(part, rows, costs, own, steering, sums)

    def step_apart(part: np.ndarray, copy: np.ndarray, sums: np.ndarray) -> None:
        copy[:] = w
        step(part, variables._replace(w=copy), sums)

    for in_parts, in_one in _rounds(order, n_rounds):
        sums = [new_totals(totals.shape[0] + 1)[:-1] for _ in range(ROW_PARTS)]  # none share a cache line
        each = zip(np.array_split(in_parts, ROW_PARTS), (first, second), sums, strict=True)
        threads.run([partial(step_apart, *part) for part in each])
        threads.share(lambda part: add_changes(first, second, w, part.start, part.stop), w.size, 3 * w.size)
        for of_part in sums:
            join_totals(totals, of_part)
        step(in_one, variables, totals)


def _rounds(order: np.ndarray, n_rounds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over the rounds' rows: those in parts, and those in one."""
    for rows in np.array_split(order, n_rounds):
        n = int(_SHARE_IN_PARTS * rows.size)
        yield rows[:n], rows[n:]
