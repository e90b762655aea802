"""The dual's rows along a joint step of all workers, from their variables `base` to `candidate` (see `cluster.block_steps`).

base, candidate : (rows, alpha_width) float64    as `primitives.Variables.alpha`
y, cost : (rows, lanes) float64                  y as `losses.five_numbers` takes it; C_i, 0 where a lane leaves the row out
code : (rows,) int32                             index of the row's class
eta : (lanes,) float64                           the step: the variables move to ``base + eta (candidate - base)``
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .loss_table import LOG_LOSS
from .losses import LEAST_ALPHA, five_numbers

LINEAR, QUADRATIC, LONGEST, APART, MAGNITUDE = range(5)
"""Columns of a direction: the slope at 0 of the dual's separable part, its second derivative (0 for losses with an entropy,
for which it is not constant), the longest step that keeps every row feasible, ``Σ ‖Δw_k‖²`` over the partitions, and the sum
of the magnitudes that bounds the rounding error of the slope."""

SLOPE, CURVATURE, DUAL_CHANGE = range(3)
"""Columns of `add_log_slopes`: derivatives of the separable part in eta, and the change of the dual's row terms."""


@inlined
def _log_change(i, lane, n_lanes, base, candidate):
    """Return alpha, C - alpha, and the change of alpha computed from the smaller of the two, without cancellation."""
    alpha, rest = base[i, lane], base[i, n_lanes + lane]
    change = candidate[i, lane] - alpha if alpha <= rest else rest - candidate[i, n_lanes + lane]
    return alpha, rest, change


@inlined
def _shorten(below, above, change, lane, sums):
    """Shorten the longest step to where a variable, at these distances from its bounds, reaches one."""
    limit = below / -change if change < 0.0 else above / change
    # a candidate is feasible, so a step of 1 is; a smaller limit is rounding
    sums[lane, LONGEST] = min(sums[lane, LONGEST], max(limit, 1.0))


@kernel
def add_direction(loss, y, cost, base, candidate, sums):
    """Add the rows' terms to `sums` (lanes, 5); `APART` is left as it is.

    `MAGNITUDE` covers the rows that change. It adds the old and the new variables rather than their difference, because each
    of them is rounded. Where epsilon is not 0 its term ``epsilon |a|`` has a kink at 0: between the old and the new variable
    its chord stands for it, which is above it, and beyond the new one 0 is a bound. So the dual's gain by a step is at least
    what the sums say.
    """
    n_lanes = cost.shape[1]
    for i in range(cost.shape[0]):
        for lane in range(n_lanes):
            if loss.kind == LOG_LOSS:
                alpha, rest, change = _log_change(i, lane, n_lanes, base, candidate)
                if change != 0.0:
                    log_alpha, log_rest = math.log(alpha), math.log(rest)
                    sums[lane, LINEAR] += change * (log_alpha - log_rest)
                    sums[lane, MAGNITUDE] += (min(alpha, rest) + abs(change)) * (
                        abs(log_alpha) + abs(log_rest)
                    )
                    _shorten(alpha, rest, change, lane, sums)
                continue
            old, change = base[i, lane], candidate[i, lane] - base[i, lane]
            if change == 0.0 or cost[i, lane] <= 0.0:
                continue
            numbers = five_numbers(loss, y[i, lane], cost[i, lane])
            p, epsilon, diagonal, low, high, _ = numbers
            sums[lane, LINEAR] += (diagonal * old - p) * change
            if epsilon > 0.0:
                sums[lane, LINEAR] += epsilon * (abs(candidate[i, lane]) - abs(old))
                low, high = (
                    (max(low, 0.0), high) if old > 0.0 else (low, min(high, 0.0) if old < 0.0 else high)
                )
            sums[lane, QUADRATIC] += diagonal * change * change
            size = abs(old) + abs(candidate[i, lane])
            sums[lane, MAGNITUDE] += (diagonal * abs(old) + abs(p) + epsilon) * size
            _shorten(old - low, high - old, change, lane, sums)


@kernel
def add_class_direction(code, cost, base, candidate, sums):
    """As `add_direction` for Crammer–Singer, whose variables are computed from C, and have its rounding error."""
    n_lanes = cost.shape[1]
    n_classes = base.shape[1] // n_lanes
    for i in range(cost.shape[0]):
        for lane in range(n_lanes):
            for m in range(n_classes):
                old = base[i, lane * n_classes + m]
                change = candidate[i, lane * n_classes + m] - old
                if change == 0.0:
                    continue
                own = m == code[i]
                # Σ_{m ≠ y} of the change is minus that of the row's own class: the classes' changes add up to 0
                sums[lane, LINEAR] += 0.0 if own else change
                size = abs(old) + abs(candidate[i, lane * n_classes + m]) + cost[i, lane]
                sums[lane, MAGNITUDE] += size
                _shorten(np.inf, (cost[i, lane] if own else 0.0) - old, change, lane, sums)


@inlined
def _class_changes(old, new, out):
    """Write a multinomial row's changes to `out`: that of its largest variable is minus the sum of the others, all exact."""
    most, rest = 0, 0.0
    for m in range(out.size):
        if old[m] > old[most]:
            most = m
    for m in range(out.size):
        out[m] = new[m] - old[m]
        rest += out[m] if m != most else 0.0
    out[most] = -rest


@kernel
def add_multinomial_direction(base, candidate, change, sums):
    """As `add_direction` for the multinomial loss; `change` (classes,) is scratch.

    The variables of a row add up to C, so that the terms ``a log(a / C)`` have the slopes of ``a log a``. Where a variable
    is 0, and its slope minus infinity, that of the smallest one with a logarithm stands for it.
    """
    n_classes = change.size
    for i in range(base.shape[0]):
        for lane in range(sums.shape[0]):
            own = slice(lane * n_classes, (lane + 1) * n_classes)
            old = base[i, own]
            _class_changes(old, candidate[i, own], change)
            for m in range(n_classes):
                if change[m] != 0.0:
                    log_alpha = math.log(max(old[m], LEAST_ALPHA))
                    sums[lane, LINEAR] += change[m] * log_alpha
                    sums[lane, MAGNITUDE] += (old[m] + abs(change[m])) * abs(log_alpha)
                    _shorten(old[m], np.inf, change[m], lane, sums)


@kernel
def add_multinomial_slopes(base, candidate, eta, change, sums):
    """As `add_log_slopes` for the multinomial loss; `change` (classes,) is scratch."""
    n_classes = change.size
    for i in range(base.shape[0]):
        for lane in range(eta.size):
            own = slice(lane * n_classes, (lane + 1) * n_classes)
            old, new = base[i, own], candidate[i, own]
            _class_changes(old, new, change)
            for m in range(n_classes):
                if change[m] != 0.0:
                    alpha = max(_between(old[m], new[m], eta[lane]), LEAST_ALPHA)
                    log_alpha = math.log(alpha)
                    sums[lane, SLOPE] += change[m] * log_alpha
                    sums[lane, CURVATURE] += change[m] * change[m] / alpha
                    before = old[m] * math.log(old[m]) if old[m] > 0.0 else 0.0
                    sums[lane, DUAL_CHANGE] += before - alpha * log_alpha


@kernel
def add_log_slopes(base, candidate, eta, sums):
    """Differentiate the separable part of the logistic dual along the step; adds to `sums` (lanes, 3).

    ``S'(eta) = Σ Δa log(a / a')`` and ``S''(eta) = Σ Δa² (1/a + 1/a')`` at ``a = base + eta (candidate - base)``.
    """
    n_lanes = eta.size
    for i in range(base.shape[0]):
        for lane in range(n_lanes):
            old, old_rest, change = _log_change(i, lane, n_lanes, base, candidate)
            if change == 0.0:
                continue
            alpha = max(_between(old, candidate[i, lane], eta[lane]), LEAST_ALPHA)
            rest = max(_between(old_rest, candidate[i, n_lanes + lane], eta[lane]), LEAST_ALPHA)
            log_alpha, log_rest = math.log(alpha), math.log(rest)
            sums[lane, SLOPE] += change * (log_alpha - log_rest)
            sums[lane, CURVATURE] += change * change * (1.0 / alpha + 1.0 / rest)
            before = old * math.log(old) + old_rest * math.log(old_rest)
            sums[lane, DUAL_CHANGE] += before - (alpha * log_alpha + rest * log_rest)


@inlined
def _between(base, candidate, eta):
    """Compute ``base + eta (candidate - base)``; the candidate itself, to the bit, where eta is 1."""
    return candidate if eta == 1.0 else base + eta * (candidate - base)


class Step(NamedTuple):
    """A step `eta` (lanes,) from `base` towards `candidate` (rows, alpha_width)."""

    base: np.ndarray
    candidate: np.ndarray
    eta: np.ndarray


@kernel
def apply_step(loss, y, cost, step, active, point):
    """Write the variables after the step to `point`, within their bounds.

    `active` (rows, lanes) uint8 changes in place: set for rows that shrinking took out at a bound from which a step other
    than 1 moves them.
    """
    base, candidate, eta = step
    n_lanes = eta.size
    for i in range(base.shape[0]):
        for lane in range(n_lanes):
            if eta[lane] != 1.0 and candidate[i, lane] != base[i, lane]:
                active[i, lane] = 1
            for column in range(lane, base.shape[1], n_lanes):
                a = _between(base[i, column], candidate[i, column], eta[lane])
                if cost[i, lane] > 0.0 and loss.kind == LOG_LOSS:
                    a = max(a, LEAST_ALPHA)
                elif cost[i, lane] > 0.0:
                    numbers = five_numbers(loss, y[i, lane], cost[i, lane])
                    a = min(max(a, numbers[3]), numbers[4])
                point[i, column] = a


@kernel
def apply_class_step(code, cost, step, active, point):
    """As `apply_step` for Crammer–Singer; `active` has a flag for each class."""
    base, candidate, eta = step
    n_classes = base.shape[1] // eta.size
    for i in range(base.shape[0]):
        for column in range(base.shape[1]):
            lane = column // n_classes
            if eta[lane] != 1.0 and candidate[i, column] != base[i, column]:
                active[i, column] = 1
            upper = cost[i, lane] if column % n_classes == code[i] else 0.0
            point[i, column] = min(_between(base[i, column], candidate[i, column], eta[lane]), upper)


@kernel
def apply_multinomial_step(cost, step, point):
    """As `apply_step` for the multinomial loss: the largest variable of a row is C less the others."""
    base, candidate, eta = step
    n_classes = base.shape[1] // eta.size
    for i in range(base.shape[0]):
        for lane in range(eta.size):
            own = slice(lane * n_classes, (lane + 1) * n_classes)
            old, new, out = base[i, own], candidate[i, own], point[i, own]
            most, rest = 0, 0.0
            for m in range(n_classes):
                out[m] = max(_between(old[m], new[m], eta[lane]), 0.0)
                if out[m] > out[most]:
                    most = m
            if eta[lane] != 1.0 and cost[i, lane] > 0.0:
                for m in range(n_classes):
                    rest += out[m] if m != most else 0.0
                out[most] = cost[i, lane] - rest
