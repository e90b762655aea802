"""Losses of rows, each stated once, as five numbers, and all that follows from these; the logistic loss has its own form.

A row has the margin ``t = s w·x`` and a dual variable a, with ``w(a) = Σ s_i a_i x_i``. The sign s is that of the row's
class in the lane; it is 1 where rows have targets. The row's term of the dual objective is

    -psi(a) = p a - epsilon |a| - ½ D a²    for    low <= a <= high,

so its loss is ``C l(t) = max_a (-psi(a) - t a)``, and its term of the gap ``C l(t) + psi(a) + t a``, never negative.
`five_numbers` returns p, epsilon, D, low, high, and 1/D, the curvature of the loss: 0 where D is 0, as is that of a loss of
straight pieces. The curvature, low and high are proportional to C; p and epsilon do not depend on it.

Visits, certificates, bounds on rounding, line searches and steps of workers use the functions below and know no loss. A new
loss is its entry in `loss_table` and its line in `five_numbers`. Crammer–Singer has k variables a row:
`kernels/classes`.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from .compile import inlined, kernel
from .loss_table import (
    EPSILON_INSENSITIVE,
    HUBER,
    LOG_LOSS,
    QUANTILE,
    SQUARED_EPSILON_INSENSITIVE,
    SQUARED_ERROR,
    SQUARED_HINGE,
    TWIN_HINGE,
    TWIN_SQUARED_HINGE,
)

LEAST_ALPHA = 1e-200
"""Smallest dual variable of the logistic loss; its logarithm is finite."""

_SHRINK_NEWTON = 0.1  # factor of Z instead of a Newton step that leaves the interval
_NEAR = 0.1  # gradient of the logistic dual below which the term of the gap is a series
_FAR = 2.0  # such a gradient above which Newton's method does not start from alpha


@inlined
def is_fitted(loss, y):
    """Tell whether a twin plane is fitted to a row: to its own class, y = -1; it keeps the others at a distance."""
    return (loss.kind == TWIN_HINGE or loss.kind == TWIN_SQUARED_HINGE) and y < 0.0


@inlined
def five_numbers(loss, y, cost):
    """Return the numbers of a row; y is its class's sign in the lane, or its target."""
    if is_fitted(loss, y):  # ½ C t²
        return 0.0, 0.0, 1.0 / cost, -np.inf, np.inf, cost
    if loss.kind == SQUARED_HINGE or loss.kind == TWIN_SQUARED_HINGE:  # C max(1 - t, 0)²
        return 1.0, 0.0, 0.5 / cost, 0.0, np.inf, 2.0 * cost
    if loss.kind == SQUARED_ERROR:  # C (y - t)²
        return y, 0.0, 0.5 / cost, -np.inf, np.inf, 2.0 * cost
    if loss.kind == EPSILON_INSENSITIVE:  # C max(|y - t| - epsilon, 0)
        return y, loss.parameter, 0.0, -cost, cost, 0.0
    if loss.kind == SQUARED_EPSILON_INSENSITIVE:  # C max(|y - t| - epsilon, 0)²
        return y, loss.parameter, 0.5 / cost, -np.inf, np.inf, 2.0 * cost
    if loss.kind == QUANTILE:  # C quantile (y - t), or C (1 - quantile) (t - y)
        return y, 0.0, 0.0, cost * (loss.parameter - 1.0), cost * loss.parameter, 0.0
    if loss.kind == HUBER:  # C ½ (y - t)², beyond delta C delta (|y - t| - ½ delta)
        return y, 0.0, 1.0 / cost, -cost * loss.parameter, cost * loss.parameter, cost
    return 1.0, 0.0, 0.0, 0.0, cost, 0.0  # C max(1 - t, 0)


# ---------------------------------------------------------------------------------------------------------------------
# What follows from five numbers. Where the outcome depends on the margin there is a factor 0 or 1 in place of a branch,
# which would be mispredicted half of the time.


@inlined
def _soft(u, epsilon):
    """Move u towards 0 by epsilon >= 0, not beyond."""
    return max(u - epsilon, 0.0) + min(u + epsilon, 0.0) if epsilon > 0.0 else u


@inlined
def best_alpha(t, numbers):
    """Return the dual variable at which the loss at t is attained: minus the slope of the loss."""
    p, epsilon, _, low, high, curvature = numbers
    e = p - t
    if curvature > 0.0:
        return min(max(_soft(e, epsilon) * curvature, low), high)
    return np.float64(e > epsilon) * high + np.float64(e < -epsilon) * low


@inlined
def _times_size(epsilon, alpha):
    return epsilon * abs(alpha) if epsilon > 0.0 else 0.0


@inlined
def dual_term(alpha, numbers):
    """Return a row's term of the dual objective."""
    return numbers[0] * alpha - _times_size(numbers[1], alpha) - 0.5 * numbers[2] * alpha * alpha


@inlined
def row_terms(t, alpha, numbers):
    """Return a row's terms of gap, primal loss and dual objective."""
    epsilon = numbers[1]
    diagonal = numbers[2]
    best = best_alpha(t, numbers)
    e = numbers[0] - t
    size = _times_size(epsilon, alpha)
    best_size = _times_size(epsilon, best)
    loss = best * (e - 0.5 * diagonal * best) - best_size
    gap = (best - alpha) * (e - 0.5 * diagonal * (best + alpha)) - (best_size - size)
    return gap, loss, dual_term(alpha, numbers)


@inlined
def slopes(t, alpha, numbers):
    """Return the derivatives of the negative dual at alpha, towards smaller and towards larger values."""
    gradient = t - numbers[0] + numbers[2] * alpha
    epsilon = numbers[1]
    left = epsilon if alpha > 0.0 else -epsilon
    right = epsilon if alpha >= 0.0 else -epsilon
    return gradient + left, gradient + right


@inlined
def projected_gradient(t, alpha, numbers):
    """Return the derivative of the negative dual along which alpha can move and the dual grows; 0 if there is none."""
    left, right = slopes(t, alpha, numbers)
    return (max(left, 0.0) if alpha > numbers[3] else 0.0) + (min(right, 0.0) if alpha < numbers[4] else 0.0)


@inlined
def may_shrink(t, alpha, numbers, low, high):
    """Tell whether alpha stays where it is, with slopes beyond the thresholds ``low < 0 < high`` (Hsieh et al., 3.2)."""
    left, right = slopes(t, alpha, numbers)
    return ((alpha >= numbers[4]) | (right > high)) & ((alpha <= numbers[3]) | (left < low))


@inlined
def minimiser(t, q, alpha, numbers, omega):
    """Return alpha after omega times the step to the best value of this one variable, q being the curvature of ``½‖w‖²``."""
    curvature = q + numbers[2]
    if curvature <= 0.0:  # an empty row: the dual grows all the way to a bound
        return best_alpha(t, numbers)
    gradient = t - numbers[0] + numbers[2] * alpha
    moved = _soft(alpha - omega * gradient / curvature, omega * numbers[1] / curvature)
    return min(max(moved, numbers[3]), numbers[4])


@inlined
def slope_bound(t, alpha, numbers):
    """Bound the slope of the row's term of the gap near t, on either side of a kink."""
    steepest = abs(best_alpha(t, numbers)) if numbers[5] > 0.0 else max(numbers[4], -numbers[3])
    return steepest + abs(alpha)


# ---------------------------------------------------------------------------------------------------------------------
# The logistic loss: alpha and C - alpha are kept, called `rest`


@inlined
def falling(t):
    """Compute 1 / (1 + e^t), minus the derivative of the logistic loss."""
    e = math.exp(-abs(t))
    return (e if t > 0.0 else 1.0) / (1.0 + e)


@inlined
def divergence(p, log_p, s, log_s):
    """Compute ``s h(p/s)`` of two probabilities, ``h(r) = r log r - r + 1``; never negative."""
    change = p - s
    if abs(change) < 0.01 * s:
        x = change / s
        series = 1 / 20 - x * (1 / 30 - x * (1 / 42 - x / 56))
        return change * x * (0.5 - x * (1 / 6 - x * (1 / 12 - x * series)))
    return p * (log_p - log_s) - change


@inlined
def log_terms(t, cost, alpha, rest):
    """Return a row's terms of gap, primal loss and dual objective for the logistic loss; `rest` is C - alpha.

    The term of the gap is C times the divergence of two Bernoulli distributions, ``p = alpha / C`` and
    ``s = 1 / (1 + e^t)``: two terms, neither negative. As a difference of objectives it would be left over from numbers of
    size C log C.
    """
    e = math.exp(-abs(t))
    falls, rises = (e / (1.0 + e), 1.0 / (1.0 + e)) if t > 0.0 else (1.0 / (1.0 + e), e / (1.0 + e))
    loss = math.log1p(e)
    other = loss + max(t, 0.0)
    loss = loss + max(-t, 0.0)
    p = alpha / cost
    q = rest / cost
    log_p = math.log(p) if p > 0.0 else 0.0
    log_q = math.log(q) if q > 0.0 else 0.0
    phi = divergence(p, log_p, falls, -other) + divergence(q, log_q, rises, -loss)
    return cost * phi, cost * loss, -cost * (p * log_p + q * log_q)


@inlined
def log_gradient(gradient, alpha, rest):
    """Return the derivative of the negative dual; 0 if alpha is at the smallest number kept and would fall further."""
    if (alpha <= LEAST_ALPHA and gradient > 0.0) or (rest <= LEAST_ALPHA and gradient < 0.0):
        return 0.0
    return gradient


@inlined
def log_gap(t, cost, alpha, rest, log_rest, gradient):
    """Return the term of the gap, cost times the divergence of p = alpha/cost from s = 1/(1 + e^t).

    Where the difference of their logits, the gradient g, is small, by a series in it, to 1e-8: nothing cancels, and no
    exponential is needed.
    """
    if abs(gradient) >= _NEAR:
        loss = math.log1p(math.exp(-abs(t))) + max(-t, 0.0)
        return max(alpha * gradient + cost * (loss - math.log(cost) + log_rest), 0.0)
    p = alpha / cost
    g = gradient
    spread = p * (rest / cost)
    odd = (2.0 * p - 1.0) * g
    series = (1.0 - 12.0 * spread) / 120.0 * odd + (1.0 + spread * (120.0 * spread - 30.0)) / 720.0 * g * g
    return cost * spread * g * g * (0.5 + odd / 6.0 + g * g * ((1.0 - 6.0 * spread) / 24.0 + series))


@inlined
def log_minimiser(t, q, cost, row, gradient, tolerance):
    """Minimise the logistic dual over one variable by Newton's method, in the variable that is nearer to a bound.

    `row` is (alpha, C - alpha, their logarithms), and `gradient` the derivative there. Returns the new row, the change of
    alpha (free of cancellation), and the Newton steps taken. Where the gradient is small the first step starts from alpha;
    else from the minimiser for q = 0, which is at most C/2 in that variable, and near the solution after acceleration has
    divided q.
    Source: Yu, Huang, Lin, Machine Learning 85 (2011), Algorithms 4 and 5. No line search is needed.
    """
    alpha, rest, log_alpha, log_rest = row
    if q <= 0.0:
        half = 0.5 * cost
        log_half = math.log(0.5 * cost)
        return (half, half, log_half, log_half), half - alpha, 0
    first = 0.5 * q * (rest - alpha) + t >= 0.0
    centre, slope, z, other = (alpha, t, log_alpha, log_rest) if first else (rest, -t, log_rest, log_alpha)
    log_z = z
    log_other = other
    z = centre
    if not first:
        gradient = -gradient
    if centre > 0.5 * cost or abs(gradient) > _FAR:
        z = max(min(cost / (1.0 + math.exp(min(slope, 500.0))), 0.5 * cost), LEAST_ALPHA)
        log_z = math.log(z)
        log_other = math.log(cost - z)
        gradient = log_z - log_other + q * (z - centre) + slope
    steps = 0
    while abs(gradient) > tolerance and steps < 1000:
        spread = z * (cost - z)
        candidate = z - gradient * spread / (q * spread + cost)
        z = candidate if candidate > 0.0 else _SHRINK_NEWTON * z
        steps += 1
        if z < LEAST_ALPHA:
            z = LEAST_ALPHA
        log_z = math.log(z)
        log_other = math.log(cost - z)
        if z == LEAST_ALPHA:
            break
        gradient = log_z - log_other + q * (z - centre) + slope
    if first:
        return (z, cost - z, log_z, log_other), z - alpha, steps
    return (cost - z, z, log_other, log_z), rest - z, steps


# ---------------------------------------------------------------------------------------------------------------------
# Losses of C = 1 by their margins, of both forms; `numbers` are those of C = 1, which the logistic loss does not use


@inlined
def loss_at(loss, t, numbers):
    """Return the loss at the margin t."""
    if loss.kind == LOG_LOSS:
        return math.log1p(math.exp(-abs(t))) + max(-t, 0.0)
    return row_terms(t, 0.0, numbers)[1]


@inlined
def alpha_at(loss, t, numbers):
    """Return minus the slope of the loss, which is the dual variable that belongs to t."""
    if loss.kind == LOG_LOSS:
        return falling(t)
    return best_alpha(t, numbers)


@inlined
def alpha_and_curvature(loss, t, numbers, share):
    """Return `alpha_at`, and the second derivative; on a straight piece `share` of that of a parabola above the loss.

    The parabola touches the loss at t and, where that is even about p, at ``2 p - t`` (Huber's loss: reweighted least
    squares).
    """
    if loss.kind == LOG_LOSS:
        a = falling(t)
        return a, a * (1.0 - a)
    p, epsilon, _, low, high, curvature = numbers
    if epsilon == 0.0 and high == np.inf:  # a square above low, which is 0 or infinite
        inside = curvature * np.float64(p - t > low)
        return (p - t) * inside, inside
    slope = _soft(p - t, epsilon) * curvature
    inside = np.float64((low < slope) & (slope < high) & ((slope != 0.0) | (epsilon == 0.0)))
    a = min(max(slope, low), high)
    if high < np.inf and inside == 0.0 and a != 0.0:
        return a, share * a / (p - t)
    return a, curvature * inside


@inlined
def parabola_above(t):
    """Return the curvature of the parabola that touches the logistic loss at t and -t, and is above it everywhere.

    Source: Jaakkola, Jordan, Statistics and Computing 10 (2000).
    """
    return math.tanh(0.5 * t) / (2.0 * t) if abs(t) > 1e-3 else 0.25


@inlined
def most_curvature(loss, numbers):
    """Return the largest second derivative."""
    return 0.25 if loss.kind == LOG_LOSS else numbers[5]


@inlined
def loss_change(loss, t, moved, numbers):
    """Return the difference of the loss at t + moved from that at t, without cancellation."""
    if loss.kind == LOG_LOSS:
        ratio = falling(t) * math.expm1(-moved)
        if -0.99 < ratio < 1e300:
            return math.log1p(ratio)
        return loss_at(loss, t + moved, numbers) - loss_at(loss, t, numbers)  # far apart: nothing cancels
    before = best_alpha(t, numbers)
    after = best_alpha(t + moved, numbers)
    e = numbers[0] - t
    total = before + after
    apart = after - before
    size = _times_size(numbers[1], after) - _times_size(numbers[1], before)
    return 0.5 * (apart * (e + (e - moved) - numbers[2] * total) - moved * total) - size


# ---------------------------------------------------------------------------------------------------------------------
# Arrays of rows, for predictions


@partial(kernel, nothing=(0.0,) * 6)
def numbers_of(loss, y, cost):
    """Return `five_numbers`."""
    return five_numbers(loss, y, cost)


@kernel
def add_losses(loss, y, t, cost, out):
    """Add the losses of rows with margins t, times their costs, to `out`; all arrays are (rows,) float64."""
    for i in range(t.size):
        if cost[i] > 0.0:
            out[i] += cost[i] * loss_at(loss, t[i], five_numbers(loss, y[i], 1.0))
