"""Twin planes with an inverse, by SOR: a_i of the rows with y = 1 alone, those of y = -1 being eliminated.

Arguments are those at the head of `primitives`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import kernel
from .dual import certify_row, solve_row
from .losses import five_numbers, projected_gradient
from .primitives import DUAL, NO_STEP, row_cost, row_square


class Elimination(NamedTuple):
    """The inverses that stand for the eliminated rows, and scratch."""

    inverse: np.ndarray  # (lanes, d + 1, d + 1) float64: ``H⁻¹``
    column: np.ndarray  # (d + 1,) float64: scratch for ``H⁻¹x``


@kernel
def gram_visit(order, rows, costs, lanes, share, gram):
    """Add ``C_i x_i x_iᵀ`` of the rows with y = -1 to each lane's matrix.

    Parameters
    ----------
    share : (int, int)
        A part and the number of parts: only the matrices' rows ``part, part + n_parts, …`` are changed.
    gram : ndarray of float64, shape (lanes, d + 1, d + 1)
        Changed in place. Whatever `n_parts`, every number is summed up in the same order.
    """
    feature, value, bias = rows.feature, rows.value, costs.bias
    part, n_parts = share
    last = gram.shape[1] - 1
    for p in range(order.size):
        i = order[p]
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        for lane in lanes:
            c = row_cost(i, lane, rows, costs)
            if c <= 0.0 or costs.sign[rows.code[i], lane] > 0.0:
                continue
            matrix = gram[lane]
            for k in range(start, stop + 1):
                row = last if k == stop else np.int64(feature[k])
                if row % n_parts != part:
                    continue
                factor = c * bias if k == stop else c * np.float64(value[k])
                if factor == 0.0:
                    continue
                for m in range(start, stop):
                    matrix[row, feature[m]] += factor * np.float64(value[m])
                matrix[row, last] += factor * bias


@kernel
def twin_sor_visit(order, rows, costs, variables, steering, totals, lanes, elimination):
    """Visit rows once in the given order: SOR on the dual of a twin plane from which the rows with y = -1 are eliminated.

    Problem: ``min ½ aᵀBH⁻¹Bᵀa + ½ aᵀDa - Σ a`` over ``0 <= a_i <= U_i``, B the rows with y = 1,
    ``H = I + Σ C_i x_i x_iᵀ`` over those with y = -1, with ``w = H⁻¹Bᵀa`` kept.

    Changed in place: `variables`, the scratch of `elimination`, and `totals`, where DUAL gets the change of the whole
    objective, the quadratic term included. Cost: the entries of each row, and (d + 1) times as many for each that moves.
    """
    feature, value, w, bias = rows.feature, rows.value, variables.w, costs.bias
    column, n_lanes = elimination.column, totals.shape[0]
    last = column.size - 1
    for p in range(order.size):
        i = order[p]
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        for lane in lanes:
            c = row_cost(i, lane, rows, costs)
            if c <= 0.0 or costs.sign[rows.code[i], lane] < 0.0 or not variables.active[i, lane]:
                continue
            t = bias * w[last * n_lanes + lane]
            for k in range(start, stop):
                t += w[feature[k] * n_lanes + lane] * np.float64(value[k])
            q = 0.0
            numbers = five_numbers(costs.loss, 1.0, c)
            if abs(projected_gradient(t, variables.alpha[i, lane], numbers)) > NO_STEP:
                matrix = elimination.inverse[lane]
                for j in range(last + 1):
                    column[j] = bias * matrix[last, j]
                for k in range(start, stop):
                    v = np.float64(value[k])
                    row = matrix[feature[k]]
                    for j in range(last + 1):
                        column[j] += v * row[j]
                q = bias * column[last]
                for k in range(start, stop):
                    q += np.float64(value[k]) * column[feature[k]]
            change = solve_row(i, lane, costs.loss, (t, q, 1.0, c), variables, steering, totals)
            if change != 0.0:
                totals[lane, DUAL] -= change * t + 0.5 * change * change * q
                for j in range(last + 1):
                    w[j * n_lanes + lane] += change * column[j]


@kernel
def twin_sor_certify(order, rows, costs, variables, w_alpha, totals, lanes, pulled):
    """As `dual_certify_lanes`, with ``a_i = -C_i w·x_i`` for the rows with y = -1, which no visit changes.

    That is a feasible point of the dual of `dual_visit`, so the certificate is of the same kind, without the inverse.
    ``Σ a_i x_i`` of the rows with y = 1 is added to `pulled`, and that of all, w(a), to `w_alpha`, both (d + 1, lanes).
    """
    feature, value, w, bias = rows.feature, rows.value, variables.w, costs.bias
    n_lanes = totals.shape[0]
    last = pulled.shape[0] - 1
    for p in range(order.size):
        i = order[p]
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        q = row_square(rows, start, stop) + bias * bias
        for lane in lanes:
            c = row_cost(i, lane, rows, costs)
            if c <= 0.0:
                continue
            y = costs.sign[rows.code[i], lane]
            t = bias * w[last * n_lanes + lane]
            for k in range(start, stop):
                t += w[feature[k] * n_lanes + lane] * np.float64(value[k])
            t *= y
            if y < 0.0:
                variables.alpha[i, lane] = -c * t
            a = variables.alpha[i, lane]
            certify_row(lane, costs.loss, (t, q, y, c), a, 0.0, totals)
            if a == 0.0:
                continue
            for k in range(start, stop):
                w_alpha[feature[k], lane] += a * y * np.float64(value[k])
            w_alpha[last, lane] += a * y * bias
            if y > 0.0:
                for k in range(start, stop):
                    pulled[feature[k], lane] += a * np.float64(value[k])
                pulled[last, lane] += a * bias
