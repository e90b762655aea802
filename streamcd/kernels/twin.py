"""Twin planes with an inverse, by SOR: a_i of the rows with y = 1 alone, those of y = -1 being eliminated.

Arguments are those at the head of `primitives`.
"""

from __future__ import annotations

import numpy as np

from .compile import kernel
from .dual import solve_row
from .losses import five_numbers, projected_gradient
from .primitives import NO_STEP, Total, row_cost


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
    feature = rows.feature
    value = rows.value
    bias = costs.bias
    part, n_parts = share
    last = gram.shape[1] - 1
    for p in range(order.size):
        i = order[p]
        start = rows.indptr[i]
        stop = rows.indptr[i + 1]
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
def twin_sor_visit(order, rows, costs, variables, steering, totals, lanes, inverse, column):
    """Visit rows once in the given order: SOR on the dual of a twin plane from which the rows with y = -1 are eliminated.

    Problem: ``min ½ aᵀBH⁻¹Bᵀa + ½ aᵀDa - Σ a`` over ``0 <= a_i <= U_i``, B the rows with y = 1,
    ``H = I + Σ C_i x_i x_iᵀ`` over those with y = -1, with ``w = H⁻¹Bᵀa`` kept.

    Given: ``H⁻¹`` in `inverse` (lanes, d + 1, d + 1), and room for ``H⁻¹x`` in `column` (d + 1,).
    Changed in place: `variables`, `column`, and `totals`, where DUAL gets the change of the whole
    objective, the quadratic term included. Cost: the entries of each row, and (d + 1) times as many for each that moves.
    """
    feature = rows.feature
    value = rows.value
    w = variables.w
    bias = costs.bias
    n_lanes = totals.shape[0]
    last = column.size - 1
    for p in range(order.size):
        i = order[p]
        start = rows.indptr[i]
        stop = rows.indptr[i + 1]
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
                matrix = inverse[lane]
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
                totals[lane, Total.DUAL] -= change * t + 0.5 * change * change * q
                for j in range(last + 1):
                    w[j * n_lanes + lane] += change * column[j]


@kernel
def set_own_alpha(order, rows, costs, variables, lanes):
    """Set ``a_i = -C_i t_i`` of the rows with y = -1, which no visit changes: their best at this w.

    So all alpha are a feasible point of the dual of `dual_visit`, of which `dual_certify` tells, without the inverse.
    """
    w = variables.w
    n_lanes = variables.active.shape[1]
    last = w.size - n_lanes
    for i in order:
        for lane in lanes:
            c = row_cost(i, lane, rows, costs)
            if c > 0.0 and costs.sign[rows.code[i], lane] < 0.0:
                dot = costs.bias * w[last + lane]
                for k in range(rows.indptr[i], rows.indptr[i + 1]):
                    dot += w[rows.feature[k] * n_lanes + lane] * np.float64(rows.value[k])
                variables.alpha[i, lane] = c * dot
