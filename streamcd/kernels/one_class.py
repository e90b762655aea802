"""The one-class SVM by steps on pairs of rows, which keep the sum of the dual variables: visits and certificates.

    min over w, rho of P = ½‖w‖² - rho m + Σ_i c_i max(0, rho - z_i),    z_i = w·x_i,  m = nu Σ c_i,

with the rows' weights c_i; the dual is ``max -½‖w(β)‖²`` over ``0 <= β_i <= c_i`` and ``Σ β = m``, ``w(β) = Σ β_i x_i``. At
the optimum rows with z < rho have β = c, those with z > rho β = 0. For every rho

    P(w, rho) + ½‖w(β)‖² = Σ φ_i + ½‖w - w(β)‖² + rho (Σ β - m),    φ_i = max((rho - z_i)(c_i - β_i), (z_i - rho) β_i) >= 0,

so reads add up the rows' terms at several candidates for rho (`Levels`), and the best of them counts.

A pair moves β_i up and β_j down by the same step: with rows drawn at random most pairs have nothing to gain, since all but
few variables belong at a bound. So a visit keeps a pool of rows that violate the conditions above, or are free to do so, as
the online SVM of Bordes et al. does: a row that comes is put in place of the one that matters least, then the pair of the
pool that differs most takes a step, a few times over. Sources: Schölkopf et al., Neural Computation 13 (2001); Bordes,
Ertekin, Weston, Bottou, JMLR 6 (2005); LIBLINEAR's scaling, Chou, Lin, Lin, SDM 2020.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .primitives import (
    CURVE,
    GAP,
    N_ACTIVE,
    N_STEPS,
    N_VISITED,
    SLOPE,
    UNIT,
    VIOLATION_MAX,
    VIOLATION_MIN,
    W_ALPHA,
    add_row,
    fetch_ahead,
    row_reach,
)
from .weights import row_dot

POOL = 64
"""Rows in the pool: a fourth takes 1.3 times the passes, four times as many 0.8 times."""

_STEPS = 4  # of pairs for a row that joins the pool; with 1 it takes twice the passes
_EQUAL = 1e-14  # relative difference of scores that is rounding
_APART = 1e-200  # a distance from all candidates by which numbers can be divided

N_LEVELS = 25
"""Number of candidates for rho."""

MASS, MASS_LOW, BETA, BETA_LOW, FREE, FREE_SCORE, FREE_SQUARE, LONGEST = range(8)
"""Sums over the rows of a read: Σ c and Σ β, each with what rounding has left out; of rows between the bounds the weights
``min(β, c - β)``, their scores and squares by these weights; and the largest ‖x‖."""
N_SUMS = 8


class Levels(NamedTuple):
    """Candidates for rho, and sums of the rows' terms; the latter are changed by visits and certificates."""

    rho: np.ndarray  # (N_LEVELS,)
    gap: np.ndarray  # (N_LEVELS,): Σ φ at each candidate
    sums: np.ndarray  # (N_SUMS,)


class Pool(NamedTuple):
    """Scratch: rows of a window that are worth a step."""

    row: np.ndarray  # (POOL,) int64
    score: np.ndarray  # (POOL,) float64: w·x, as it was when last computed


@inlined
def _add_terms(z, beta, c, levels, totals):
    """Add a row's terms at all candidates, and what later candidates follow from."""
    rho, gap, sums = levels.rho, levels.gap, levels.sums
    for k in range(N_LEVELS):
        apart = rho[k] - z
        gap[k] += max(apart * (c - beta), -apart * beta)
    totals[0, GAP] += max((rho[0] - z) * (c - beta), (z - rho[0]) * beta)
    totals[0, N_VISITED] += 1
    if beta > 0.0:
        totals[0, VIOLATION_MAX] = max(totals[0, VIOLATION_MAX], z)
    if beta < c:
        totals[0, VIOLATION_MIN] = min(totals[0, VIOLATION_MIN], z)
    free = min(beta, c - beta)
    sums[FREE] += free
    sums[FREE_SCORE] += free * z
    sums[FREE_SQUARE] += free * z * z


@inlined
def _worth(z, beta, c, rho):
    """Return by how much a row's score is, or comes near to be, on the wrong side of rho for its variable."""
    up = rho - z if beta < c else -np.inf
    down = z - rho if beta > 0.0 else -np.inf
    return max(up, down)


@inlined
def _least_worth(pool, alpha, weight, rho):
    """Return the place of the row of a full pool that matters least, and how much it and the next one do."""
    place, least, second = 0, np.inf, np.inf
    for k in range(POOL):
        i = pool.row[k]
        worth = _worth(pool.score[k], alpha[i, 0], weight[i], rho)
        if worth < least:
            place, least, second = k, worth, least
        elif worth < second:
            second = worth
    return place, least, second


@inlined
def _most_apart(pool, n, alpha, weight):
    """Return the places of the smallest score of a variable that can grow, and the largest of one that can fall; or -1."""
    low = high = -1
    for k in range(n):
        i = pool.row[k]
        if alpha[i, 0] < weight[i] and (low < 0 or pool.score[k] < pool.score[low]):
            low = k
        if alpha[i, 0] > 0.0 and (high < 0 or pool.score[k] > pool.score[high]):
            high = k
    return low, high


@inlined
def _products(rows, i, j):
    """Return ``‖x_i - x_j‖²``, ``x_i·(x_i - x_j)`` and ``x_j·(x_j - x_i)``; entries are in ascending order of feature."""
    feature, value, indptr = rows.feature, rows.value, rows.indptr
    a, b, end_a, end_b = indptr[i], indptr[j], indptr[i + 1], indptr[j + 1]
    square = of_i = of_j = 0.0
    while a < end_a or b < end_b:
        u = v = 0.0
        first = a < end_a and (b >= end_b or feature[a] <= feature[b])
        second = b < end_b and (a >= end_a or feature[b] <= feature[a])
        if first:
            u = np.float64(value[a])
            a += 1
        if second:
            v = np.float64(value[b])
            b += 1
        square += (u - v) * (u - v)
        of_i += u * (u - v)
        of_j += v * (v - u)
    return square, of_i, of_j


@inlined
def _within(beta, c):
    """Return a variable within its bounds, at the upper one where rounding alone has kept it from there."""
    return c if beta >= c * (1.0 - 4.0 * UNIT) else max(beta, 0.0)


@inlined
def _step_of_pair(rows, w, alpha, low, high, pool):
    """Minimise ``½‖w‖²`` over the step that moves weight from row `high` of the pool to row `low`, and keep their scores."""
    i, j = pool.row[low], pool.row[high]
    start_i, stop_i, start_j, stop_j = rows.indptr[i], rows.indptr[i + 1], rows.indptr[j], rows.indptr[j + 1]
    z_i, z_j = row_dot(rows, w, start_i, stop_i)[0], row_dot(rows, w, start_j, stop_j)[0]
    square, of_i, of_j = _products(rows, i, j)
    apart, c_i, c_j = z_j - z_i, rows.weight[i], rows.weight[j]
    least, most = max(-alpha[i, 0], alpha[j, 0] - c_j), min(c_i - alpha[i, 0], alpha[j, 0])
    step = 0.0
    if apart != 0.0 and square > 0.0:
        step = min(max(apart / square, least), most)
    if step != 0.0:
        alpha[i, 0], alpha[j, 0] = _within(alpha[i, 0] + step, c_i), _within(alpha[j, 0] - step, c_j)
        add_row(rows, w, start_i, stop_i, step)
        add_row(rows, w, start_j, stop_j, -step)
    pool.score[low], pool.score[high] = z_i + step * of_i, z_j - step * of_j
    return step


@kernel
def one_class_visit(order, rows, variables, levels, totals, pool):
    """Visit rows once in the given order, with steps of pairs of them; rows of weight 0 are left out.

    Changed in place: `variables`, `levels`, `totals`, `pool`. The terms are those of a row before its steps. Cost: a pass
    over the entries of each row, and about five over those of a pair for each step.
    """
    w, alpha, weight = variables.w, variables.alpha, rows.weight
    n, rho, least = 0, 0.0, -np.inf
    for p in range(order.size):
        fetch_ahead(order, p, rows, w, 1, range(1))
        i = order[p]
        if weight[i] <= 0.0:
            continue
        z, _ = row_dot(rows, w, rows.indptr[i], rows.indptr[i + 1])
        _add_terms(z, alpha[i, 0], weight[i], levels, totals)
        totals[0, N_ACTIVE] += 1
        place = n
        if n < POOL:
            n += 1
        else:
            worth = _worth(z, alpha[i, 0], weight[i], rho)
            if worth <= least:
                continue
            place, least, second = _least_worth(pool, alpha, weight, rho)
            if worth <= least:
                continue
            least = min(second, worth)
        pool.row[place], pool.score[place] = i, z
        for _ in range(_STEPS):
            low, high = _most_apart(pool, n, alpha, weight)
            if low < 0 or high < 0:
                break
            rho = 0.5 * (pool.score[low] + pool.score[high])
            if pool.score[high] - pool.score[low] <= _EQUAL * (abs(pool.score[low]) + abs(pool.score[high])):
                break
            if _step_of_pair(rows, w, alpha, low, high, pool) != 0.0:
                totals[0, N_STEPS] += 1


@inlined
def _add_exactly(sums, place, number):
    """Add a number to a sum, and what rounding leaves out to the next place (Neumaier)."""
    old = sums[place]
    new = old + number
    sums[place + 1] += (old - new) + number if abs(old) >= abs(number) else (number - new) + old
    sums[place] = new


@kernel
def one_class_certify(order, rows, variables, w_alpha, levels, totals):
    """Add up rows' terms at fixed `w`, and ``β_i x_i`` to `w_alpha`.

    Changed in place: `w_alpha`, `levels`, `totals`. Its SLOPE and CURVE bound what errors of the scores change
    of the terms: c times an error e; where the term is 0 at all candidates, the nearest of which is at the distance r, by
    ``c max(|e| - r, 0) <= c e² / (4 r)``.
    """
    w, alpha, sums = variables.w, variables.alpha, levels.sums
    lowest, highest = np.inf, -np.inf
    for k in range(N_LEVELS):
        lowest, highest = min(lowest, levels.rho[k]), max(highest, levels.rho[k])
    for p in range(order.size):
        fetch_ahead(order, p, rows, w, 1, range(1))
        i = order[p]
        c, beta = rows.weight[i], alpha[i, 0]
        if c <= 0.0:
            continue
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        z, q = row_dot(rows, w, start, stop)
        _add_terms(z, beta, c, levels, totals)
        norm, reach = row_reach(q, stop - start)
        sums[LONGEST] = max(sums[LONGEST], norm)
        beyond = max(z - highest if beta == 0.0 else 0.0, lowest - z if beta == c else 0.0)
        if beyond > _APART * reach:
            totals[0, CURVE] += 0.25 * c * reach * reach / beyond
        else:
            totals[0, SLOPE] += c * reach
        totals[0, W_ALPHA] += beta * norm
        _add_exactly(sums, MASS, c)
        _add_exactly(sums, BETA, beta)
        if beta != 0.0:
            add_row(rows, w_alpha, start, stop, beta)
    if not math.isfinite(sums[BETA]):
        totals[0, GAP] = np.inf  # the loop says what is wrong
