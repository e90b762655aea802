"""Visits of a single lane by two threads: parts of a window's rows, each of which steps on weights of its own.

The rows of a window, in their random order, make rounds. In a round both parts start from the same w and step at the same
time, each as if it were alone; then the changes of w are added up. That is right along the directions of rare features. But
along those that rows of both parts have in common each part goes all the way to the optimum: together they go twice as far,
and leave as large an error on the other side. Some more rows, in one part, take it away: the round's last stretch. So no
such error grows, and passes are hardly more than those of one part.

The rule of acceleration sees whether parts do harm (`see_harm`), so they are for lanes whose kappa it chooses.

Sources: Ma et al., ICML 2015 (CoCoA+), for changes added up; Ioannou et al., NeurIPS 2019 (SySCD), for rows that change
their part from pass to pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..core.parallel import Threads
from ..kernels.primitives import Costs, Rows, Steering, Variables
from ..kernels.weights import add_changes
from .protocol import NO_ROWS, State, join_totals

_SHARE_IN_PARTS = 0.9  # of a round's rows
_ROUNDS = 4  # of a window at most, and of a read at least: with fewer each part overshoots by a large share of all rows
_ENTRIES_PER_WEIGHT = 10  # in a round, for which w and its copies are swept over eight times
_OPPOSITE = -0.6  # cosine of successive movements below which a gap that rises tells of an error that grows


def see_harm(state: State, gap: np.ndarray, trained: np.ndarray) -> None:
    """Go back to one part, for as many passes as were made, after one in which an error of common directions grew.

    The estimate of the gap rose then, to `gap`, and w moved back on its way, in long steps.
    """
    harmed = trained[((gap > state.estimate) & (state.cosine < _OPPOSITE))[trained]]
    state.passes_in_one[harmed] = 2 * state.passes[harmed]


def count_rounds(n_entries: float, n_windows: int, state: State, threads: Threads) -> int:
    """Count the rounds of a window's rows, with about so many entries; 0 where one part is faster, or did less harm."""
    if state.passes[0] < state.passes_in_one[0]:
        return 0
    n_rounds = min(int(n_entries / (_ENTRIES_PER_WEIGHT * state.w.size)), _ROUNDS)
    pays = n_rounds * n_windows >= _ROUNDS and threads.parts(int(n_entries) // n_rounds) > 1
    return n_rounds if pays else 0


def visit_in_parts(
    visit: Callable[..., object],
    arguments: tuple[np.ndarray, Rows, Costs, Variables, Steering],
    n_rounds: int,
    totals: np.ndarray,
    copies: np.ndarray,
    threads: Threads,
) -> None:
    """Visit rows in rounds: ``visit(*arguments, totals)``, but for the order of the steps.

    Changed in place: `totals`, the variables, and `copies` (2, weights), which may hold anything.
    """
    order, rows, costs, variables, steering = arguments
    w = variables.w

    def visit_part(part: np.ndarray, copy: np.ndarray, sums: np.ndarray) -> None:
        copy[:] = w
        visit(part, rows, costs, variables._replace(w=copy), steering, sums)

    for chosen in np.array_split(order, n_rounds):
        n = int(_SHARE_IN_PARTS * chosen.size)
        # one lane more, so that none share a cache line
        sums = np.tile(NO_ROWS, (2, totals.shape[0] + 1, 1))[:, :-1]
        each = zip(np.array_split(chosen[:n], 2), copies, sums, strict=True)
        threads.run([partial(visit_part, *part) for part in each])
        n_parts = threads.parts(3 * w.size)
        joined = zip(*(np.array_split(weights, n_parts) for weights in (*copies, w)), strict=True)
        threads.run([partial(add_changes, *part) for part in joined])
        for of_part in sums:
            join_totals(totals, of_part)
        visit(chosen[n:], rows, costs, variables, steering, totals)
