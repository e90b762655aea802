"""Dual coordinate descent for every loss of margins (`losses`): visits and certificates.

Arguments are those at the head of `primitives`.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from .compile import inlined, kernel
from .loss_table import LOG_LOSS
from .losses import (
    dual_term,
    falling,
    five_numbers,
    is_fitted,
    log_gap,
    log_gradient,
    log_minimiser,
    log_terms,
    may_shrink,
    minimiser,
    projected_gradient,
    row_terms,
    slope_bound,
)
from .primitives import (
    NO_STEP,
    PATIENCE,
    Total,
    add_row,
    add_to_8,
    add_to_16,
    add_to_32,
    choose_fetched,
    dot_of_8,
    dot_of_16,
    dot_of_32,
    fetch_ahead,
    fetch_variables_ahead,
    row_cost,
    row_dot,
    row_label,
    row_square,
)

# ---------------------------------------------------------------------------------------------------------------------
# One row in one lane, and the visits


@inlined
def solve_row(i, lane, loss, row, variables, steering, totals):
    """Maximise the dual over the row's variable in one lane; returns the change of alpha.

    `row` is (t, q/mu, y, C_i). The variables and the lane's row of `totals` are changed in place. The row leaves the active
    set where `may_shrink` allows it, with acceleration only at the last of `PATIENCE` such visits in a row.
    """
    t, q, y, c = row
    alpha = variables.alpha
    active = variables.active
    n_lanes = totals.shape[0]
    old = alpha[i, lane]
    change = 0.0
    logistic = loss.kind == LOG_LOSS
    rest = alpha[i, n_lanes + lane] if logistic else 0.0
    log_old, log_rest = (math.log(old), math.log(rest)) if logistic else (0.0, 0.0)
    numbers = five_numbers(loss, y, c)
    if logistic:
        signed = log_gradient(log_old - log_rest + t, old, rest)
        phi = log_gap(t, c, old, rest, log_rest, log_old - log_rest + t)
        # its largest size is what LIBLINEAR stops by
        projected = abs(signed)
        stays = False
    else:
        phi = row_terms(t, old, numbers)[0]
        projected = projected_gradient(t, old, numbers)
        stays = may_shrink(t, old, numbers, steering.low[lane], steering.high[lane])
    totals[lane, Total.N_VISITED] += 1
    totals[lane, Total.GAP] += phi
    accelerated = steering.inverse_mu[lane] != 1.0
    flag = active[i, lane]
    if stays:
        active[i, lane] = flag + 1 if accelerated and flag < PATIENCE else 0
    elif flag > 1:
        active[i, lane] = 1
    if active[i, lane] == 0:
        totals[lane, Total.N_SHRUNK] += 1
    else:
        totals[lane, Total.N_ACTIVE] += 1
        totals[lane, Total.VIOLATION_MAX] = max(totals[lane, Total.VIOLATION_MAX], projected)
        totals[lane, Total.VIOLATION_MIN] = min(totals[lane, Total.VIOLATION_MIN], projected)
        if abs(projected) > NO_STEP:
            if logistic:
                at = (old, rest, log_old, log_rest)
                moved, change, steps = log_minimiser(t, q, c, at, signed, steering.tolerance[lane])
                new, new_rest, log_new, log_new_rest = moved
                alpha[i, lane] = new
                alpha[i, n_lanes + lane] = new_rest
                totals[lane, Total.N_STEPS] += steps
                # the constant C log C cancels
                totals[lane, Total.DUAL] += (
                    old * log_old + rest * log_rest - new * log_new - new_rest * log_new_rest
                )
            else:
                new = minimiser(t, q, old, numbers, steering.omega[lane])
                change = new - old
                alpha[i, lane] = new
                totals[lane, Total.DUAL] += dual_term(new, numbers) - dual_term(old, numbers)
    if accelerated and (change != 0.0 or steering.uncounted[lane] != 0.0):
        counted = 0.0 if steering.uncounted[lane] != 0.0 else old
        _count_alpha(lane, loss, counted, alpha[i, lane], row, totals)
    return change


@inlined
def _count_alpha(lane, loss, old, new, row, totals):
    """Replace a row's alpha in the sums for acceleration; a plane's own rows count in the last sum alone."""
    _, q, y, c = row
    old_square = old * old * q
    new_square = new * new * q
    totals[lane, Total.ALPHA_SQUARE] += new_square - old_square
    if loss.kind == LOG_LOSS:
        old_square = old_square * (c - old) / c
        new_square = new_square * (c - new) / c
    if not is_fitted(loss, y):
        totals[lane, Total.ALPHA] += abs(new) - abs(old)
        totals[lane, Total.ALPHA_CURVATURE] += new_square - old_square


@kernel
def dual_visit(order, rows, costs, variables, steering, totals):
    """Visit rows once in the given order: dual coordinate descent for one lane.

    Problem: ``max Σ -psi_i(a_i) - ½‖w(a)‖²``, with ``w = w(a) = Σ s_i a_i x_i`` kept.

    Changed in place: `variables`, `totals`. Cost: two passes over the entries of each row.
    Sources: Hsieh et al., ICML 2008, Algorithm 3; Yu, Huang, Lin 2011.
    """
    w = variables.w
    bias = costs.bias
    inverse_mu = steering.inverse_mu[0]
    last = w.size - 1
    for p in range(order.size):
        fetch_ahead(order, p, rows, w, 1, range(1))
        i = order[p]
        c = row_cost(i, 0, rows, costs)
        if c <= 0.0:
            continue
        sign, y = row_label(i, 0, rows, costs)
        start = rows.indptr[i]
        stop = rows.indptr[i + 1]
        dot, q = row_dot(rows, w, start, stop)
        t = sign * (dot + bias * w[last])
        row = (t, (q + bias * bias) * inverse_mu, y, c)
        change = solve_row(i, 0, costs.loss, row, variables, steering, totals)
        if change != 0.0:
            step = change * sign * inverse_mu
            add_row(rows, w, start, stop, step)
            w[last] += step * bias


@kernel
def dual_visit_lanes(order, rows, costs, variables, steering, totals, lanes):
    """As `dual_visit` for several lanes at once: a row is decoded and its lines of `w` are fetched once for all of them.

    Lanes have nothing in common: several threads, each with some of them, end with the bits of one with all.
    """
    w = variables.w
    bias = costs.bias
    n_lanes = totals.shape[0]
    live = lanes.live
    dots = lanes.dots
    steps = lanes.steps
    last = w.size - n_lanes
    fetched = lanes.fetched[: choose_fetched(lanes)]
    for p in range(order.size):
        fetch_ahead(order, p, rows, w, n_lanes, fetched)
        fetch_variables_ahead(order, p, variables, fetched)
        i = order[p]
        n_live = np.int64(0)
        for lane in lanes.chosen:
            if variables.active[i, lane] and row_cost(i, lane, rows, costs) > 0.0:
                live[n_live] = lane
                n_live += 1
        if n_live == 0:
            continue
        q = _lane_dots(i, rows, w, lanes, n_live) + bias * bias
        n_changed = np.int64(0)
        for position in range(n_live):
            lane = live[position]
            sign, y = row_label(i, lane, rows, costs)
            inverse_mu = steering.inverse_mu[lane]
            c = row_cost(i, lane, rows, costs)
            row = (sign * (dots[lane] + bias * w[last + lane]), q * inverse_mu, y, c)
            change = solve_row(i, lane, costs.loss, row, variables, steering, totals)
            if change != 0.0:
                live[n_changed] = lane
                steps[lane] = change * sign * inverse_mu
                w[last + lane] += steps[lane] * bias
                n_changed += 1
        _add_row_lanes(i, rows, w, lanes, n_changed)


@inlined
def _lane_dots(i, rows, w, lanes, n_live):
    """Return x·x of row i, and write x·w in the first `n_live` live lanes to `dots`, each at its lane, and maybe in others.

    Lanes are neighbours in `w`, and eight in a row take one sweep over the entries by vector operations. So a row costs
    what the groups of eight take in which it is live. Lanes beyond the chosen ones, which another thread may change, are
    read only where fewer than eight are chosen.
    """
    feature = rows.feature
    value = rows.value
    live = lanes.live
    dots = lanes.dots
    start = rows.indptr[i]
    stop = rows.indptr[i + 1]
    n_lanes = dots.size
    end = lanes.chosen[-1] + 1 if lanes.chosen[-1] - lanes.chosen[0] >= 7 else n_lanes
    position = np.int64(0)
    if n_lanes == 1:
        dots[0], square = row_dot(rows, w, start, stop)
        return square
    while position < n_live and n_lanes >= 8:
        low = min(live[position], end - 8)
        width, position = _neighbours(live, position, n_live, low, end)
        if width == 32:
            dot_of_32(feature, value, start, stop, w, n_lanes, low, dots)
        elif width == 16:
            dot_of_16(feature, value, start, stop, w, n_lanes, low, dots)
        else:
            dot_of_8(feature, value, start, stop, w, n_lanes, low, dots)
    while position < n_live:
        lane = live[position]
        dot = 0.0
        for k in range(start, stop):
            dot += w[feature[k] * n_lanes + lane] * np.float64(value[k])
        dots[lane] = dot
        position += 1
    return row_square(rows, start, stop)


@inlined
def _neighbours(live, position, n, low, end):
    """Return how many lanes, from `low` on and below `end`, take part at once, and the position of the next live one."""
    width = 8
    while True:
        while position < n and live[position] < low + width:
            position += 1
        if width == 32 or position == n or live[position] >= low + 2 * width or low + 2 * width > end:
            return width, position
        width *= 2


@inlined
def _add_row_lanes(i, rows, w, lanes, n):
    """Add ``steps[lane]`` times row i to each of the first `n` live lanes, and leave zeros there.

    Eight neighbours take part at once, as in `_lane_dots`, those without a step with 0: but no lane beyond the chosen ones,
    on which another thread may be at work.
    """
    feature = rows.feature
    value = rows.value
    live = lanes.live
    steps = lanes.steps
    start = rows.indptr[i]
    stop = rows.indptr[i + 1]
    n_lanes = steps.size
    first = lanes.chosen[0]
    end = lanes.chosen[-1] + 1
    position = np.int64(0)
    while position < n and end - first >= 8:
        low = min(live[position], end - 8)
        done = position
        width, position = _neighbours(live, position, n, low, end)
        if width == 32:
            add_to_32(feature, value, start, stop, w, n_lanes, low, steps)
        elif width == 16:
            add_to_16(feature, value, start, stop, w, n_lanes, low, steps)
        else:
            add_to_8(feature, value, start, stop, w, n_lanes, low, steps)
        for taken in range(done, position):
            steps[live[taken]] = 0.0
    while position < n:
        lane = live[position]
        for k in range(start, stop):
            w[feature[k] * n_lanes + lane] += steps[lane] * np.float64(value[k])
        steps[lane] = 0.0
        position += 1


@inlined
def _certify_row(lane, loss, row, a, rest, totals):
    """Add a row's terms at fixed w to the lane's sums; `row` is (t, x·x, y, C_i), `rest` C_i - a where it is kept."""
    t, q, y, c = row
    if loss.kind == LOG_LOSS:
        phi, primal, dual = log_terms(t, c, a, rest)
        projected = abs(log_gradient(math.log(a / rest) + t, a, rest))
        slope = c * falling(t) + a
    else:
        numbers = five_numbers(loss, y, c)
        phi, primal, dual = row_terms(t, a, numbers)
        projected = projected_gradient(t, a, numbers)
        slope = slope_bound(t, a, numbers)
    totals[lane, Total.GAP] += phi
    totals[lane, Total.LOSS] += primal
    totals[lane, Total.DUAL] += dual
    totals[lane, Total.ALPHA_SQUARE] += a * a * q
    totals[lane, Total.SLOPE] += slope * math.sqrt(q)
    totals[lane, Total.VIOLATION_MAX] = max(totals[lane, Total.VIOLATION_MAX], projected)
    totals[lane, Total.VIOLATION_MIN] = min(totals[lane, Total.VIOLATION_MIN], projected)
    totals[lane, Total.N_VISITED] += 1.0


@partial(kernel, strided="variables")
def dual_certify(order, rows, costs, variables, totals, lanes):
    """Add up rows' terms of gap, loss and dual at fixed `w`, for the given lanes. Changed in place: `totals`."""
    w = variables.w
    bias = costs.bias
    alpha = variables.alpha
    n_lanes = totals.shape[0]
    live = lanes.live
    dots = lanes.dots
    last = w.size - n_lanes
    fetched = lanes.fetched[: choose_fetched(lanes)]
    for p in range(order.size):
        fetch_ahead(order, p, rows, w, n_lanes, fetched)
        fetch_variables_ahead(order, p, variables, fetched)
        i = order[p]
        n_live = np.int64(0)
        for lane in lanes.chosen:
            if row_cost(i, lane, rows, costs) > 0.0:
                live[n_live] = lane
                n_live += 1
        q = _lane_dots(i, rows, w, lanes, n_live) + bias * bias
        for position in range(n_live):
            lane = live[position]
            sign, y = row_label(i, lane, rows, costs)
            row = (sign * (dots[lane] + bias * w[last + lane]), q, y, row_cost(i, lane, rows, costs))
            rest = alpha[i, n_lanes + lane] if costs.loss.kind == LOG_LOSS else 0.0
            _certify_row(lane, costs.loss, row, alpha[i, lane], rest, totals)


@partial(kernel, strided="variables")
def add_alpha_rows(order, rows, costs, variables, lanes, v):
    """Add ``s_i alpha_i x_i`` of the given lanes to `v`, of the shape of `w`, in place: after all rows it is w(alpha)."""
    bias = costs.bias
    alpha = variables.alpha
    n_lanes = variables.active.shape[1]
    live = lanes.live
    steps = lanes.steps
    last = v.size - n_lanes
    fetched = lanes.fetched[: choose_fetched(lanes)]
    for p in range(order.size):
        fetch_ahead(order, p, rows, v, n_lanes, fetched)
        i = order[p]
        n_changed = np.int64(0)
        for lane in lanes.chosen:
            if alpha[i, lane] != 0.0 and row_cost(i, lane, rows, costs) > 0.0:
                live[n_changed] = lane
                steps[lane] = alpha[i, lane] * costs.sign[rows.code[i], lane]
                v[last + lane] += steps[lane] * bias
                n_changed += 1
        _add_row_lanes(i, rows, v, lanes, n_changed)
