"""Newton's method for multinomial logistic regression: what a read sums up at fixed weights.

A lane has the weights of k classes one after another, ``W = k D``. With the softmax p of a row's scores the dual variables
are ``C p``, the row's term of the gap is 0, and its part of the Hessian is ``C (diag(p) - p pᵀ) ⊗ x xᵀ``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .multinomial import log_softmax
from .newton import AT_POINT, BLOCK, LENGTHS, SPARSE, add_exactly, add_row_exactly, log_shares
from .primitives import (
    CURVE,
    LOSS,
    LOSS_SLOPE,
    N_ACTIVE,
    N_VISITED,
    ROUNDING,
    W_ALPHA,
    rounding_terms,
    row_cost,
    row_reach,
)
from .triangle import row_place


class ClassSums(NamedTuple):
    """Sums over the rows of a read, by lane; added to by `multinomial_newton_visit`."""

    v: np.ndarray  # (lanes, 2, W): Σ C_i ([m = y_i] - p_im) x_i of each class m; and what rounding left out
    hessian: np.ndarray  # (lanes, W (W + 1) / 2), as `newton.Sums.hessian`
    line: np.ndarray  # (lanes, N_LINE): losses at `newton.LENGTHS`, and terms of `newton.row_shares`
    class_sums: np.ndarray  # (lanes, 2, W): Σ C_i x_i over the rows of each class; and what rounding left out
    totals: np.ndarray  # (lanes, N_TOTALS), as `newton.Sums.totals`, and ROUNDING


NEAR, FAR = LENGTHS.size, LENGTHS.size + 1
"""Columns of `ClassSums.line` with the terms of `newton.row_shares`, for the dual variables ``C_i [m = y_i] - r (…)``."""

N_LINE = LENGTHS.size + 2


class ClassScratch(NamedTuple):
    """Room for a block of rows."""

    row: np.ndarray  # (BLOCK,) int64
    cost: np.ndarray  # (BLOCK,) float64
    share: np.ndarray  # (BLOCK, k): p
    score: np.ndarray  # (4, k)
    dense: np.ndarray  # (BLOCK, D): x; zeros, before and after
    product: np.ndarray  # (BLOCK, W): p ⊗ x


@kernel
def multinomial_newton_visit(order, starts, rows, costs, lanes, point, tile, sums, scratch):
    """As `newton.newton_visit`, for lanes of all classes. Cost: half of the square of k times the entries of each row."""
    for piece in range(starts.size - 1):
        for first in range(starts[piece], starts[piece + 1], BLOCK):
            block = order[first : min(first + BLOCK, starts[piece + 1])]
            for lane in lanes:
                n = _add_terms(block, rows, costs, lane, point, tile, sums, scratch)
                if n and tile[1] > tile[0]:
                    _add_products(n, rows, costs.bias, tile, sums.hessian[lane], scratch)


@inlined
def _scores(i, rows, w, bias, out):
    """Write ``w_m·x`` of all classes to `out`; returns x·x."""
    feature, value, size = rows.feature, rows.value, w.size // out.size
    q = bias * bias
    for m in range(out.size):
        out[m] = bias * w[(m + 1) * size - 1]
    for k in range(rows.indptr[i], rows.indptr[i + 1]):
        x = np.float64(value[k])
        q += x * x
        for m in range(out.size):
            out[m] += w[m * size + feature[k]] * x
    return q


@inlined
def _add_class(i, rows, bias, first, size, factor, vectors):
    """Add a multiple of a row to the vector of the class whose weights begin at `first`, as `newton.add_exactly`."""
    high, low = vectors[0], vectors[1]
    add_row_exactly(rows, high, low, first, rows.indptr[i], rows.indptr[i + 1], factor)
    add_exactly(high, low, first + size - 1, factor * bias)


@inlined
def _add_terms(order, rows, costs, lane, point, tile, sums, scratch):
    """Add the terms of a block of rows in a lane; returns how many it has, which `scratch` then lists."""
    w, step, bias, n, counts = point.w[lane], point.step[lane], costs.bias, 0, tile[0] == 0
    score, totals = scratch.score, sums.totals
    z, log_share, change, at = score[0], score[1], score[2], score[3]
    n_classes = z.size
    size = w.size // n_classes
    for p in range(order.size):
        i = order[p]
        c = row_cost(i, lane, rows, costs)
        if c <= 0.0:
            continue
        label, share = rows.code[i], scratch.share[n]
        q = _scores(i, rows, w, bias, z)
        log_softmax(z, log_share)
        for m in range(n_classes):
            share[m] = math.exp(log_share[m])
        scratch.row[n], scratch.cost[n] = i, c
        n += 1
        if not counts:
            continue
        loss, others, magnitude = -c * log_share[label], 0.0, 0.0
        for m in range(n_classes):
            if m != label:
                others += share[m]
                _add_class(i, rows, bias, m * size, size, -c * share[m], sums.v[lane])
            magnitude += abs(share[m] * log_share[m])
        _add_class(i, rows, bias, label * size, size, c * others, sums.v[lane])
        _add_class(i, rows, bias, label * size, size, c, sums.class_sums[lane])
        sums.line[lane, AT_POINT] += loss
        near, far = log_shares(others, share[label], loss / c)
        sums.line[lane, NEAR] += c * near
        sums.line[lane, FAR] += c * far
        if point.searches[lane]:
            _scores(i, rows, step, bias, change)
            for k in range(LENGTHS.size):
                if k != AT_POINT:
                    for m in range(n_classes):
                        at[m] = z[m] + (LENGTHS[k] - 1.0) * change[m]
                    log_softmax(at, log_share)
                    sums.line[lane, k] -= c * log_share[label]
        # as `multinomial.multinomial_certify`, with the dual variables C p
        reach = row_reach(q, rows.indptr[i + 1] - rows.indptr[i] + 1)
        terms = rounding_terms(0.0, 0.5 * c, 2.0 * c, 2.0 * c * others, reach)
        totals[lane, ROUNDING] += (n_classes + 16.0) * (c * magnitude + loss)
        totals[lane, CURVE] += terms[1]
        totals[lane, LOSS_SLOPE] += terms[2]
        totals[lane, W_ALPHA] += terms[3]
        totals[lane, LOSS] += loss
        totals[lane, N_VISITED] += 1
        totals[lane, N_ACTIVE] += 1
    return n


@inlined
def _add_products(n, rows, bias, tile, hessian, scratch):
    """Add the parts of the Hessian of the first n rows of `scratch`: pair by pair of their entries, or as dense rows."""
    indptr, pairs, size = rows.indptr, 0.0, scratch.dense.shape[1]
    for p in range(n):
        count = indptr[scratch.row[p] + 1] - indptr[scratch.row[p]] + 1
        pairs += np.float64(count) * count
    if SPARSE * pairs < np.float64(n) * size * size:
        for p in range(n):
            for a in range(scratch.share.shape[1]):
                for b in range(a + 1):
                    _add_pairs(p, a, b, rows, bias, tile, hessian, scratch)
    else:
        _add_dense(n, rows, bias, tile, hessian, scratch)


@inlined
def _add_pairs(p, a, b, rows, bias, tile, hessian, scratch):
    """Add a row's part for two classes, b <= a: of the same class one triangle."""
    feature, value, size = rows.feature, rows.value, scratch.dense.shape[1]
    i, share = scratch.row[p], scratch.share[p]
    start, stop = rows.indptr[i], rows.indptr[i + 1]
    c = scratch.cost[p] * share[a] * ((1.0 - share[a]) if a == b else -share[b])
    for k in range(start, stop + 1):
        j = a * size + (feature[k] if k < stop else size - 1)
        if j < tile[0] or j >= tile[1]:
            continue
        row, x = hessian[row_place(j) : row_place(j + 1)], c * (np.float64(value[k]) if k < stop else bias)
        for m in range(start, min(k + 1, stop) if a == b else stop):
            row[b * size + feature[m]] += x * np.float64(value[m])
        if a != b or k == stop:
            row[(b + 1) * size - 1] += x * bias


@inlined
def _add_dense(n, rows, bias, tile, hessian, scratch):
    """Add the parts of a block of dense rows, four rows at a time."""
    dense, share, cost, product = scratch.dense, scratch.share, scratch.cost, scratch.product
    n_classes, size = share.shape[1], dense.shape[1]
    for p in range(n):
        for k in range(rows.indptr[scratch.row[p]], rows.indptr[scratch.row[p] + 1]):
            dense[p, rows.feature[k]] = np.float64(rows.value[k])
        dense[p, size - 1] = bias
    n_padded = (n + 3) // 4 * 4
    for p in range(n, n_padded):
        cost[p], share[p] = 0.0, 0.0
    for p in range(n_padded):
        for m in range(n_classes):
            for j in range(size):
                product[p, m * size + j] = share[p, m] * dense[p, j]
    for i in range(tile[0], tile[1]):
        row, first = hessian[row_place(i) : row_place(i + 1)], i // size * size
        for p in range(0, n_padded, 4):
            a, b = cost[p] * product[p, i], cost[p + 1] * product[p + 1, i]
            c, d = cost[p + 2] * product[p + 2, i], cost[p + 3] * product[p + 3, i]
            if a != 0.0 or b != 0.0 or c != 0.0 or d != 0.0:
                s, t, u, v = product[p], product[p + 1], product[p + 2], product[p + 3]
                for m in range(i + 1):
                    row[m] -= a * s[m] + b * t[m] + c * u[m] + d * v[m]
                s, t, u, v = dense[p], dense[p + 1], dense[p + 2], dense[p + 3]
                for m in range(i - first + 1):
                    row[first + m] += a * s[m] + b * t[m] + c * u[m] + d * v[m]
    for p in range(n):
        for k in range(rows.indptr[scratch.row[p]], rows.indptr[scratch.row[p] + 1]):
            dense[p, rows.feature[k]] = 0.0
        dense[p, size - 1] = 0.0
