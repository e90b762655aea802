"""Hinge, squared hinge, logistic loss and twin planes by dual coordinate descent: visits and certificates.

Arguments are those at the head of `primitives`.
"""

from __future__ import annotations

import math

import numpy as np

from .compile import inlined, kernel
from .primitives import (
    ALPHA,
    ALPHA_CURVATURE,
    ALPHA_SQUARE,
    CURVE,
    DUAL,
    GAP,
    HINGE,
    LOG_LOSS,
    LOSS,
    LOSS_SLOPE,
    N_ACTIVE,
    N_SHRUNK,
    N_STEPS,
    N_VISITED,
    NO_STEP,
    PATIENCE,
    SLOPE,
    SQUARED_HINGE,
    TWIN_HINGE,
    TWIN_SQUARED_HINGE,
    VIOLATION_MAX,
    VIOLATION_MIN,
    W_ALPHA,
    add_row,
    add_to_8,
    add_to_16,
    add_to_32,
    choose_fetched,
    dot_of_8,
    dot_of_16,
    dot_of_32,
    falling,
    fetch_ahead,
    fetch_variables_ahead,
    log_terms,
    rounding_terms,
    row_cost,
    row_dot,
    row_reach,
    row_square,
)

_SQUARE = 6  # beside the losses of `primitives`
"""Loss ½ t² of the rows to which a twin plane is fitted, its own class, those with ``y = -1`` (`loss_of_row`)."""

_TINY = 1e-200  # smallest dual variable of the logistic loss; its logarithm is finite
_KINK = 1e-3  # hinge: a margin nearer to 1 than this may be on either side of it
_SHRINK_NEWTON = 0.1  # factor of Z instead of a Newton step that leaves the interval
_NEAR = 0.1  # gradient of the logistic dual below which the term of the gap is a series
_BLOCK = 512  # rows certified before they are added to w(alpha)
_FAR = 2.0  # such a gradient above which Newton's method does not start from alpha


# ---------------------------------------------------------------------------------------------------------------------
# One dual variable: its gradient, its step, its terms of the objectives. t = y w·x, q = x·x, both with the bias


@inlined
def loss_of_row(loss, y):
    """Return the loss of a row: a twin plane is fitted to its own class (y = -1), and keeps the others at a distance."""
    if loss == TWIN_HINGE:
        return _SQUARE if y < 0.0 else HINGE
    if loss == TWIN_SQUARED_HINGE:
        return _SQUARE if y < 0.0 else SQUARED_HINGE
    return loss


@inlined
def _svc_diagonal(loss, cost):
    """Return D_ii and U_i of hinge, squared hinge and square (whose lower bound is -U_i)."""
    if loss == SQUARED_HINGE:
        return 0.5 / cost, np.inf
    if loss == _SQUARE:
        return 1.0 / cost, np.inf
    return 0.0, cost


@inlined
def _svc_terms(loss, t, cost, alpha):
    """Return the row's terms of gap, primal loss and dual: phi, C xi(t), alpha - D alpha²/2 (of a square: - D alpha²/2)."""
    diagonal, _ = _svc_diagonal(loss, cost)
    if loss == _SQUARE:
        primal = 0.5 * cost * t * t
        return 0.5 * cost * (t + diagonal * alpha) ** 2, primal, -0.5 * diagonal * alpha * alpha
    slack = max(1.0 - t, 0.0)
    primal = cost * slack * slack if loss == SQUARED_HINGE else cost * slack
    quadratic = 0.5 * diagonal * alpha * alpha
    return primal + quadratic - alpha * (1.0 - t), primal, alpha - quadratic


@inlined
def svc_projected_gradient(loss, t, cost, alpha):
    """Return G, and G projected: 0 if alpha is at a bound that keeps it from moving."""
    diagonal, upper = _svc_diagonal(loss, cost)
    if loss == _SQUARE:
        return t + diagonal * alpha, t + diagonal * alpha
    gradient = t - 1.0 + diagonal * alpha
    if alpha <= 0.0:
        return gradient, min(gradient, 0.0)
    if alpha >= upper:
        return gradient, max(gradient, 0.0)
    return gradient, gradient


@inlined
def _svc_step(loss, gradient, q, cost, alpha, omega):
    """Return alpha after omega times the step to the minimiser of the dual over this one variable, within its bounds."""
    diagonal, upper = _svc_diagonal(loss, cost)
    curvature = q + diagonal
    if curvature <= 0.0:  # an empty row under hinge: the dual falls all the way to the bound
        return upper
    lower = -np.inf if loss == _SQUARE else 0.0
    return min(max(alpha - omega * gradient / curvature, lower), upper)


@inlined
def _log_bounded(gradient, alpha, rest):
    """Return the derivative of the dual; 0 if alpha is at the smallest number kept and would fall further."""
    if (alpha <= _TINY and gradient > 0.0) or (rest <= _TINY and gradient < 0.0):
        return 0.0
    return gradient


@inlined
def _log_phi(t, cost, alpha, rest, log_rest, gradient):
    """Return the term of the gap, cost times the divergence of p = alpha/cost from s = 1/(1 + e^t).

    Where the difference of their logits, the gradient g, is small, by a series in it, to 1e-8: nothing cancels, and no
    exponential is needed.
    """
    if abs(gradient) >= _NEAR:
        loss = math.log1p(math.exp(-abs(t))) + max(-t, 0.0)
        return max(alpha * gradient + cost * (loss - math.log(cost) + log_rest), 0.0)
    p, g = alpha / cost, gradient
    spread = p * (rest / cost)
    odd = (2.0 * p - 1.0) * g
    series = (1.0 - 12.0 * spread) / 120.0 * odd + (1.0 + spread * (120.0 * spread - 30.0)) / 720.0 * g * g
    return cost * spread * g * g * (0.5 + odd / 6.0 + g * g * ((1.0 - 6.0 * spread) / 24.0 + series))


@inlined
def _log_step(t, q, cost, row, gradient, tolerance):
    """Minimise the logistic dual over one variable by Newton's method, in the variable that is nearer to a bound.

    `row` is (alpha, C - alpha, their logarithms), and `gradient` the derivative there. Returns the new row, the change of
    alpha (free of cancellation), and the Newton steps taken. Where the gradient is small the first step starts from alpha;
    else from the minimiser for q = 0, which is at most C/2 in that variable, and near the solution after acceleration has
    divided q.
    Source: Yu, Huang, Lin, Machine Learning 85 (2011), Algorithms 4 and 5. No line search is needed.
    """
    alpha, rest, log_alpha, log_rest = row
    if q <= 0.0:
        half, log_half = 0.5 * cost, math.log(0.5 * cost)
        return (half, half, log_half, log_half), half - alpha, 0
    first = 0.5 * q * (rest - alpha) + t >= 0.0
    centre, slope, z, other = (alpha, t, log_alpha, log_rest) if first else (rest, -t, log_rest, log_alpha)
    log_z, log_other, z = z, other, centre
    if not first:
        gradient = -gradient
    if centre > 0.5 * cost or abs(gradient) > _FAR:
        z = max(min(cost / (1.0 + math.exp(min(slope, 500.0))), 0.5 * cost), _TINY)
        log_z, log_other = math.log(z), math.log(cost - z)
        gradient = log_z - log_other + q * (z - centre) + slope
    steps = 0
    while abs(gradient) > tolerance and steps < 1000:
        spread = z * (cost - z)
        candidate = z - gradient * spread / (q * spread + cost)
        z = candidate if candidate > 0.0 else _SHRINK_NEWTON * z
        steps += 1
        if z < _TINY:
            z = _TINY
        log_z, log_other = math.log(z), math.log(cost - z)
        if z == _TINY:
            break
        gradient = log_z - log_other + q * (z - centre) + slope
    if first:
        return (z, cost - z, log_z, log_other), z - alpha, steps
    return (cost - z, z, log_other, log_z), rest - z, steps


# ---------------------------------------------------------------------------------------------------------------------
# One row in one lane, and the visits of hinge, squared hinge and logistic loss


@inlined
def solve_row(i, lane, loss, row, variables, steering, totals):
    """Minimise the dual over the row's variable in one lane; returns the change of alpha.

    `row` is (t, q/mu, C_i). The variables and the lane's row of `totals` are changed in place. The row leaves the active set
    where it stands at a bound with a gradient beyond the threshold (Hsieh et al. 2008, section 3.2); with acceleration only
    at the last of `PATIENCE` such visits in a row.
    """
    t, q, c = row
    alpha, active, n_lanes = variables.alpha, variables.active, totals.shape[0]
    old, change = alpha[i, lane], 0.0
    rest = alpha[i, n_lanes + lane] if loss == LOG_LOSS else 0.0
    log_old, log_rest = (math.log(old), math.log(rest)) if loss == LOG_LOSS else (0.0, 0.0)
    totals[lane, N_VISITED] += 1
    if loss == LOG_LOSS:
        signed = _log_bounded(log_old - log_rest + t, old, rest)
        phi = _log_phi(t, c, old, rest, log_rest, log_old - log_rest + t)
        gradient = projected = abs(signed)  # its largest size is what LIBLINEAR stops by
    else:
        phi, _, _ = _svc_terms(loss, t, c, old)
        gradient, projected = svc_projected_gradient(loss, t, c, old)
    totals[lane, GAP] += phi
    accelerated, flag = steering.inverse_mu[lane] != 1.0, active[i, lane]
    if projected == 0.0 and (
        (old <= 0.0 and gradient > steering.high[lane]) or (old > 0.0 and gradient < steering.low[lane])
    ):
        active[i, lane] = flag + 1 if accelerated and flag < PATIENCE else 0
    elif flag > 1:
        active[i, lane] = 1
    if active[i, lane] == 0:
        totals[lane, N_SHRUNK] += 1
    else:
        totals[lane, N_ACTIVE] += 1
        totals[lane, VIOLATION_MAX] = max(totals[lane, VIOLATION_MAX], projected)
        totals[lane, VIOLATION_MIN] = min(totals[lane, VIOLATION_MIN], projected)
        if abs(projected) > NO_STEP:
            if loss == LOG_LOSS:
                row = (old, rest, log_old, log_rest)
                moved, change, steps = _log_step(t, q, c, row, signed, steering.tolerance[lane])
                new, new_rest, log_new, log_new_rest = moved
                alpha[i, lane], alpha[i, n_lanes + lane] = new, new_rest
                totals[lane, N_STEPS] += steps
                # the constant C log C cancels
                totals[lane, DUAL] += (
                    old * log_old + rest * log_rest - new * log_new - new_rest * log_new_rest
                )
            else:
                new = _svc_step(loss, gradient, q, c, old, steering.omega[lane])
                change = new - old
                alpha[i, lane] = new
                totals[lane, DUAL] += _dual_term(loss, c, new) - _dual_term(loss, c, old)
    if accelerated and (change != 0.0 or steering.uncounted[lane] != 0.0):
        counted = 0.0 if steering.uncounted[lane] != 0.0 else old
        _count_alpha(lane, loss, counted, alpha[i, lane], q, c, totals)
    return change


@inlined
def _dual_term(loss, cost, alpha):
    """Row's term of the dual objective, but of the logistic loss."""
    diagonal, _ = _svc_diagonal(loss, cost)
    return (0.0 if loss == _SQUARE else alpha) - 0.5 * diagonal * alpha * alpha


@inlined
def _count_alpha(lane, loss, old, new, q, c, totals):
    """Replace a row's alpha in the sums for acceleration; a plane's own rows count in the last sum alone."""
    old_square, new_square = old * old * q, new * new * q
    totals[lane, ALPHA_SQUARE] += new_square - old_square
    if loss == LOG_LOSS:
        old_square, new_square = old_square * (c - old) / c, new_square * (c - new) / c
    if loss != _SQUARE:
        totals[lane, ALPHA] += new - old
        totals[lane, ALPHA_CURVATURE] += new_square - old_square


@kernel
def dual_visit(order, rows, costs, variables, steering, totals):
    """Visit rows once in the given order: dual coordinate descent for one lane.

    Problem: ``min f(a) = ½ aᵀ(Q + D)a - Σ a`` over ``0 <= a_i <= U_i`` (hinge, squared hinge), or
    ``½ aᵀQa + Σ a log a + (C - a) log(C - a)`` (logistic), ``Q_ij = y_i y_j x_i·x_j``, with ``w = Σ y_i a_i x_i`` kept.
    Of a twin plane, rows with y = 1 are of hinge or squared hinge, and those with y = -1 have the term ``½ a_i²/C_i`` and no
    bounds: their primal loss is ``½ C_i (w·x_i)²``.

    Changed in place: `variables`, `totals`. Cost: two passes over the entries of each row.
    Sources: Hsieh et al., ICML 2008, Algorithm 3; Yu, Huang, Lin 2011.
    """
    w, bias, inverse_mu = variables.w, costs.bias, steering.inverse_mu[0]
    last = w.size - 1
    for p in range(order.size):
        fetch_ahead(order, p, rows, w, 1, range(1))
        i = order[p]
        c = row_cost(i, 0, rows, costs)
        if c <= 0.0:
            continue
        y = costs.sign[rows.code[i], 0]
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        dot, q = row_dot(rows, w, start, stop)
        t = y * (dot + bias * w[last])
        row = (t, (q + bias * bias) * inverse_mu, c)
        change = solve_row(i, 0, loss_of_row(costs.loss, y), row, variables, steering, totals)
        if change != 0.0:
            step = change * y * inverse_mu
            add_row(rows, w, start, stop, step)
            w[last] += step * bias


@kernel
def dual_visit_lanes(order, rows, costs, variables, steering, totals, lanes):
    """As `dual_visit` for several lanes at once: a row is decoded and its lines of `w` are fetched once for all of them.

    Lanes have nothing in common: several threads, each with some of them, end with the bits of one with all.
    """
    w, bias, n_lanes = variables.w, costs.bias, totals.shape[0]
    live, dots, steps = lanes.live, lanes.dots, lanes.steps
    last, fetched = w.size - n_lanes, lanes.fetched[: choose_fetched(lanes)]
    for p in range(order.size):
        fetch_ahead(order, p, rows, w, n_lanes, fetched)
        fetch_variables_ahead(order, p, variables, fetched)
        i = order[p]
        n_live = 0
        for lane in lanes.chosen:
            if variables.active[i, lane] and row_cost(i, lane, rows, costs) > 0.0:
                live[n_live] = lane
                n_live += 1
        if n_live == 0:
            continue
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        _lane_dots(rows, w, n_lanes, start, stop, lanes, n_live)
        q = row_square(rows, start, stop) + bias * bias
        n_changed = 0
        for position in range(n_live):
            lane = live[position]
            y = costs.sign[rows.code[i], lane]
            inverse_mu, c = steering.inverse_mu[lane], row_cost(i, lane, rows, costs)
            row = (y * (dots[lane] + bias * w[last + lane]), q * inverse_mu, c)
            change = solve_row(i, lane, loss_of_row(costs.loss, y), row, variables, steering, totals)
            if change != 0.0:
                live[n_changed] = lane
                steps[lane] = change * y * inverse_mu
                w[last + lane] += steps[lane] * bias
                n_changed += 1
        _add_row_lanes(rows, w, n_lanes, start, stop, lanes, n_changed)


@inlined
def _lane_dots(rows, w, n_lanes, start, stop, lanes, n_live):
    """Write x·w of a row in the first `n_live` live lanes to `dots`, each at its lane; other lanes' may be written too.

    Lanes are neighbours in `w`, and eight in a row take one sweep over the entries by vector operations. So a row costs
    what the groups of eight take in which it is live.
    """
    feature, value, live, dots = rows.feature, rows.value, lanes.live, lanes.dots
    position = 0
    while position < n_live and n_lanes >= 8:
        low = min(live[position], n_lanes - 8)
        position = _beyond(live, position, n_live, low + 8)
        if position < n_live and live[position] < low + 16 and low + 16 <= n_lanes:
            position = _beyond(live, position, n_live, low + 16)
            if position < n_live and live[position] < low + 32 and low + 32 <= n_lanes:
                dot_of_32(feature, value, start, stop, w, n_lanes, low, dots)
                position = _beyond(live, position, n_live, low + 32)
            else:
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


@inlined
def _beyond(live, position, n_live, stop):
    """Return the position, from the given one on, of the first live lane not below `stop`."""
    while position < n_live and live[position] < stop:
        position += 1
    return position


@inlined
def _add_row_lanes(rows, w, n_lanes, start, stop, lanes, n):
    """Add ``steps[lane]`` times the row to each of the first `n` live lanes, and leave zeros there.

    Eight neighbours take part at once, as in `_lane_dots`, those without a step with 0: but no lane beyond the chosen ones,
    on which another thread may be at work.
    """
    feature, value, live, steps = rows.feature, rows.value, lanes.live, lanes.steps
    first, end = lanes.chosen[0], lanes.chosen[-1] + 1
    position = 0
    while position < n and end - first >= 8:
        low, done = min(live[position], end - 8), position
        position = _beyond(live, position, n, low + 8)
        if position < n and live[position] < low + 16 and low + 16 <= end:
            position = _beyond(live, position, n, low + 16)
            if position < n and live[position] < low + 32 and low + 32 <= end:
                add_to_32(feature, value, start, stop, w, n_lanes, low, steps)
                position = _beyond(live, position, n, low + 32)
            else:
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
def _sensitivity(loss, t, cost, alpha, phi):
    """Return slope, curve and loss slope: at t + e the row's term of the gap is at most ``slope |e| + curve e²`` larger
    than at t, and its loss at most ``loss slope |e| + curve e²`` away."""
    if loss == LOG_LOSS:
        steep = cost * falling(t)
        return abs(alpha - steep), 0.125 * cost, steep
    if loss == _SQUARE:
        return abs(cost * t + alpha), 0.5 * cost, abs(cost * t)
    slack = 1.0 - t
    if loss == SQUARED_HINGE:
        steep = 2.0 * cost * max(slack, 0.0)
        return abs(alpha - steep), cost, steep
    # away from the kink phi is its slope times |slack|, and beyond it, C times max(|e| - |slack|, 0) <= e² / (4 |slack|)
    steep = cost if slack > -_KINK else 0.0
    return cost if abs(slack) < _KINK else phi / max(abs(slack), _KINK), cost * (0.25 / _KINK), steep


@inlined
def sums_of(lane, totals):
    """Return a lane's sums of a certificate, for `certify_row`: as locals they need not be stored for every row."""
    gap, loss, dual = totals[lane, GAP], totals[lane, LOSS], totals[lane, DUAL]
    largest, smallest, n_visited = (
        totals[lane, VIOLATION_MAX],
        totals[lane, VIOLATION_MIN],
        totals[lane, N_VISITED],
    )
    rounding = totals[lane, SLOPE], totals[lane, CURVE], totals[lane, LOSS_SLOPE], totals[lane, W_ALPHA]
    return (gap, loss, dual), (largest, smallest, n_visited), rounding


@inlined
def keep_sums(lane, sums, totals):
    """Write what `sums_of` returned, and `certify_row` since, to `totals`."""
    totals[lane, GAP], totals[lane, LOSS], totals[lane, DUAL] = sums[0]
    totals[lane, VIOLATION_MAX], totals[lane, VIOLATION_MIN], totals[lane, N_VISITED] = sums[1]
    totals[lane, SLOPE], totals[lane, CURVE], totals[lane, LOSS_SLOPE], totals[lane, W_ALPHA] = sums[2]


@inlined
def certify_row(loss, row, a, rest, sums):
    """Return the lane's sums with the row's terms at fixed w; `row` is (t, C_i, `row_reach`), `rest` C_i - a (logistic)."""
    t, c, reach = row
    if loss == LOG_LOSS:
        phi, primal, dual = log_terms(t, c, a, rest)
        projected = abs(_log_bounded(math.log(a / rest) + t, a, rest))
    else:
        phi, primal, dual = _svc_terms(loss, t, c, a)
        _, projected = svc_projected_gradient(loss, t, c, a)
    slope, curve, steep = _sensitivity(loss, t, c, a, phi)
    slope, curve, steep, size = rounding_terms(slope, curve, steep, abs(a), reach)
    (gap_sum, loss_sum, dual_sum), (largest, smallest, n), (slopes, curves, steeps, sizes) = sums
    objectives = (gap_sum + phi, loss_sum + primal, dual_sum + dual)
    violation = (max(largest, projected), min(smallest, projected), n + 1.0)
    return objectives, violation, (slopes + slope, curves + curve, steeps + steep, sizes + size)


@kernel
def dual_certify(order, rows, costs, variables, w_alpha, totals):
    """Add up rows' terms of gap, loss and dual at fixed `w`, and ``y_i alpha_i x_i`` to `w_alpha`, for one lane.

    Changed in place: `w_alpha`, `totals`. A block of rows is still in the cache for its second sweep; one sweep would need
    room there for both arrays of weights.
    """
    for first in range(0, order.size, _BLOCK):
        block = order[first : first + _BLOCK]
        _add_terms(block, rows, costs, variables, totals)
        _add_alpha_rows(block, rows, costs, variables, w_alpha)


@inlined
def _add_terms(order, rows, costs, variables, totals):
    w, bias, alpha = variables.w, costs.bias, variables.alpha
    last = w.size - 1
    sums = sums_of(0, totals)
    for p in range(order.size):
        fetch_ahead(order, p, rows, w, 1, range(1))
        i = order[p]
        c = row_cost(i, 0, rows, costs)
        if c <= 0.0:
            continue
        y = costs.sign[rows.code[i], 0]
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        dot, q = row_dot(rows, w, start, stop)
        row = (y * (dot + bias * w[last]), c, row_reach(q + bias * bias, stop - start))
        rest = alpha[i, 1] if costs.loss == LOG_LOSS else 0.0
        sums = certify_row(loss_of_row(costs.loss, y), row, alpha[i, 0], rest, sums)
    keep_sums(0, sums, totals)


@inlined
def _add_alpha_rows(order, rows, costs, variables, w_alpha):
    last = w_alpha.size - 1
    for p in range(order.size):
        fetch_ahead(order, p, rows, w_alpha, 1, range(1))
        i = order[p]
        a = variables.alpha[i, 0]
        if a == 0.0 or row_cost(i, 0, rows, costs) <= 0.0:
            continue
        step = a * costs.sign[rows.code[i], 0]
        add_row(rows, w_alpha, rows.indptr[i], rows.indptr[i + 1], step)
        w_alpha[last] += step * costs.bias


@kernel
def dual_certify_lanes(order, rows, costs, variables, w_alpha, totals, lanes):
    """As `dual_certify` for the given lanes at once; `w_alpha` has the shape of `w`."""
    w, bias, alpha, n_lanes = variables.w, costs.bias, variables.alpha, totals.shape[0]
    live, dots, steps = lanes.live, lanes.dots, lanes.steps
    last, fetched = w.size - n_lanes, lanes.fetched[: choose_fetched(lanes)]
    for p in range(order.size):
        fetch_ahead(order, p, rows, w, n_lanes, fetched)
        fetch_variables_ahead(order, p, variables, fetched)
        i = order[p]
        n_live = 0
        for lane in lanes.chosen:
            if row_cost(i, lane, rows, costs) > 0.0:
                live[n_live] = lane
                n_live += 1
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        _lane_dots(rows, w, n_lanes, start, stop, lanes, n_live)
        reach = row_reach(row_square(rows, start, stop) + bias * bias, stop - start)
        n_changed = 0
        for position in range(n_live):
            lane = live[position]
            y = costs.sign[rows.code[i], lane]
            t = y * (dots[lane] + bias * w[last + lane])
            row = (t, row_cost(i, lane, rows, costs), reach)
            a = alpha[i, lane]
            rest = alpha[i, n_lanes + lane] if costs.loss == LOG_LOSS else 0.0
            sums = certify_row(loss_of_row(costs.loss, y), row, a, rest, sums_of(lane, totals))
            keep_sums(lane, sums, totals)
            if a != 0.0:
                live[n_changed] = lane
                steps[lane] = a * y
                n_changed += 1
                w_alpha[last + lane] += a * y * bias
        _add_row_lanes(rows, w_alpha, n_lanes, start, stop, lanes, n_changed)
