"""The dual's rows along a joint step of all workers, from their variables `base` to `candidate` (see `cluster.block_steps`).

Arguments that all kernels share
--------------------------------
loss : Loss
y, cost : (rows, lanes) float64                  y as `losses.five_numbers` takes it; C_i, 0 where a lane leaves the row out
code : (rows,) int32                             index of the row's class
base, candidate : (rows, alpha_width) float64    as `primitives.Variables.alpha`
eta : (lanes,) float64                           the step: the variables move to ``base + eta (candidate - base)``
change : (variables of a row in a lane,)         scratch

The logistic loss has two variables in a lane, which add up to C as the multinomial's do: both duals have entropies.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .loss_table import CRAMMER_SINGER, LOG_LOSS, MULTINOMIAL
from .losses import LEAST_ALPHA, five_numbers

LINEAR, QUADRATIC, LONGEST, APART, MAGNITUDE = range(5)
"""Columns of a direction: the slope at 0 of the dual's separable part, its second derivative (0 for losses with an entropy,
for which it is not constant), the longest step that keeps every row feasible, ``Σ ‖Δw_k‖²`` over the partitions, and the sum
of the magnitudes that bounds the rounding error of the slope."""

SLOPE, CURVATURE, DUAL_CHANGE = range(3)
"""Columns of `add_slopes`: derivatives of the separable part in eta, and the change of the dual's row terms."""


@inlined
def _columns(lane, n_lanes, width, loss):
    """Return the columns of a lane: neighbours, but for those of the logistic loss."""
    k = width // n_lanes
    start, stop, step = (lane, width, n_lanes) if loss.kind == LOG_LOSS else (lane * k, (lane + 1) * k, 1)
    return slice(start, stop, step)


@inlined
def _has_entropy(loss):
    return loss.kind == LOG_LOSS or loss.kind == MULTINOMIAL


@inlined
def _entropy_changes(old, new, out):
    """Write the changes of a row's variables to `out`: that of the largest is minus the sum of the others, all exact."""
    most = 0
    rest = 0.0
    for m in range(out.size):
        if old[m] > old[most]:
            most = m
    for m in range(out.size):
        out[m] = new[m] - old[m]
        rest += out[m] if m != most else 0.0
    out[most] = -rest


@inlined
def _add(lane, sums, change, bounds, linear, quadratic, magnitude):
    """Add the terms of a variable that changes; it has the distances `bounds` from below and above."""
    sums[lane, LINEAR] += linear
    sums[lane, QUADRATIC] += quadratic
    sums[lane, MAGNITUDE] += magnitude
    limit = bounds[0] / -change if change < 0.0 else bounds[1] / change
    # a candidate is feasible, so a step of 1 is; a smaller limit is rounding
    sums[lane, LONGEST] = min(sums[lane, LONGEST], max(limit, 1.0))


@kernel
def add_direction(loss, y, code, cost, base, candidate, change, sums):
    """Add the rows' terms to `sums` (lanes, 5); `APART` is left as it is.

    `MAGNITUDE` covers the rows that change. It adds the old and the new variables rather than their difference, because each
    of them is rounded, and C where they are computed from it. Where epsilon is not 0 its term ``epsilon |a|`` has a kink at
    0: between the old and the new variable its chord stands for it, which is above it, and beyond the new one 0 is a bound.
    So the dual's gain by a step is at least what the sums say.

    The variables of an entropy add up to C, so that its terms ``a log(a / C)`` have the slopes of ``a log a``. Where a
    variable is 0, and its slope minus infinity, that of the smallest one with a logarithm stands for it.
    """
    n_lanes = sums.shape[0]
    for i in range(base.shape[0]):
        for lane in range(n_lanes):
            span = _columns(lane, n_lanes, base.shape[1], loss)
            old = base[i, span]
            new = candidate[i, span]
            if _has_entropy(loss):
                _entropy_changes(old, new, change)
                for m in range(change.size):
                    step = change[m]
                    if step != 0.0:
                        slope = math.log(max(old[m], LEAST_ALPHA))
                        size = (old[m] + abs(step)) * abs(slope)
                        _add(lane, sums, step, (old[m], np.inf), step * slope, 0.0, size)
                continue
            for m in range(old.size):
                a = old[m]
                step = new[m] - old[m]
                if step == 0.0 or cost[i, lane] <= 0.0:
                    continue
                size = abs(a) + abs(new[m])
                if loss.kind == CRAMMER_SINGER:
                    # Σ_{m ≠ y} of the change is minus that of the row's own class: the classes' changes add up to 0
                    upper, slope = (cost[i, lane], 0.0) if m == code[i] else (0.0, 1.0)
                    bounds = np.inf, upper - a
                    _add(lane, sums, step, bounds, slope * step, 0.0, size + cost[i, lane])
                    continue
                p, epsilon, diagonal, low, high, _ = five_numbers(loss, y[i, lane], cost[i, lane])
                linear = (diagonal * a - p) * step
                if epsilon > 0.0:
                    linear += epsilon * (abs(new[m]) - abs(a))
                    low = max(low, 0.0) if a > 0.0 else low
                    high = min(high, 0.0) if a < 0.0 else high
                size *= diagonal * abs(a) + abs(p) + epsilon
                _add(lane, sums, step, (a - low, high - a), linear, diagonal * step * step, size)


@kernel
def add_slopes(loss, base, candidate, eta, change, sums):
    """Differentiate the separable part of a dual with entropies along the step; adds to `sums` (lanes, 3).

    ``S'(eta) = Σ Δa log a`` and ``S''(eta) = Σ Δa² / a`` at ``a = base + eta (candidate - base)``.
    """
    n_lanes = eta.size
    for i in range(base.shape[0]):
        for lane in range(n_lanes):
            span = _columns(lane, n_lanes, base.shape[1], loss)
            old = base[i, span]
            new = candidate[i, span]
            _entropy_changes(old, new, change)
            for m in range(change.size):
                if change[m] != 0.0:
                    alpha = max(_between(old[m], new[m], eta[lane]), LEAST_ALPHA)
                    log_alpha = math.log(alpha)
                    sums[lane, SLOPE] += change[m] * log_alpha
                    sums[lane, CURVATURE] += change[m] * change[m] / alpha
                    before = old[m] * math.log(old[m]) if old[m] > 0.0 else 0.0
                    sums[lane, DUAL_CHANGE] += before - alpha * log_alpha


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
def apply_step(loss, y, code, cost, step, active, point):
    """Write the variables after the step to `point`, within their bounds; of an entropy the largest is C less the others.

    `active` (rows, flags) uint8 changes in place: set for rows, or classes, that shrinking took out at a bound from which a
    step other than 1 moves them.
    """
    base, candidate, eta = step
    n_lanes = eta.size
    flags_of_classes = active.shape[1] > eta.size
    for i in range(base.shape[0]):
        for lane in range(n_lanes):
            span = _columns(lane, n_lanes, base.shape[1], loss)
            old = base[i, span]
            new = candidate[i, span]
            out = point[i, span]
            c = cost[i, lane]
            most = 0
            rest = 0.0
            for m in range(old.size):
                if eta[lane] != 1.0 and new[m] != old[m]:
                    active[i, lane * old.size + m if flags_of_classes else lane] = 1
                a = _between(old[m], new[m], eta[lane])
                if loss.kind == LOG_LOSS:
                    a = max(a, LEAST_ALPHA) if c > 0.0 else a
                elif loss.kind == MULTINOMIAL:
                    a = max(a, 0.0)
                elif loss.kind == CRAMMER_SINGER:
                    a = min(a, c if m == code[i] else 0.0)
                elif c > 0.0:
                    numbers = five_numbers(loss, y[i, lane], c)
                    a = min(max(a, numbers[3]), numbers[4])
                out[m] = a
                most = m if a > out[most] else most
            if _has_entropy(loss) and eta[lane] != 1.0 and c > 0.0:
                for m in range(old.size):
                    rest += out[m] if m != most else 0.0
                out[most] = c - rest
