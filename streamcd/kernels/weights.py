"""Sweeps over weights: all columns of an array in one sweep, feature by feature, in memory's order.

Dual methods with acceleration: within a training read a lane keeps the iterate ``w = (w(alpha) + kappa v)/(1 + kappa)`` and
its centre v; between reads, and while it is certified, the point where the read ended and w(alpha). A lane has one column of
both arrays, or several.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .penalties import gap_term, penalty, penalty_slope, sum_of, weight_of

BLOCK = 128
"""Features summed column by column: with a hundred columns or so they stay in the cache."""

N_BUCKETS = 1024
_LAST_BUCKET = np.uint64(N_BUCKETS - 1)
MOVED, ALPHA_NORM, NORM = range(3)
"""Rows of `sums`: ``‖w - v‖²``, ``‖w(alpha)‖²`` and ``‖w‖²``."""


class Movement(NamedTuple):
    """Measures of a pass, of all lanes; changed in place."""

    sums: np.ndarray  # (3, columns); the rows are named above
    sketch: np.ndarray  # (N_BUCKETS, lanes): w - v with its signs changed at random, folded
    moved: np.ndarray  # (columns,): scratch


@kernel
def add_penalty_terms(w, v, columns, sums):
    """Add g(w_m), ``g(w_m) + g*(v_m) - w_m·v_m`` and ``‖v_m‖²`` of some columns m to `sums`, in blocks of features.

    `w` and `v` have the shape (features, all columns), `sums` (3, all columns).
    """
    for start in range(0, w.shape[0], BLOCK):
        stop = min(start + BLOCK, w.shape[0])
        for m in columns:
            value = gap = square = 0.0
            for j in range(start, stop):
                value += penalty(w[j, m])
                gap += gap_term(w[j, m], v[j, m])
                square += v[j, m] * v[j, m]
            sums[0, m] += value
            sums[1, m] += gap
            sums[2, m] += square


@kernel
def add_changes(first, second, w):
    """Add ``first - w`` and ``second - w``, the changes of two copies of `w`, to `w`, in place."""
    for j in range(w.size):
        w[j] += (first[j] - w[j]) + (second[j] - w[j])


@kernel
def end_pass(w, beside, lanes, kappa, out):
    """Replace the centre by w(alpha), and measure how far the pass moved from it.

    Neighbouring lanes are processed together, by vector operations, in loops so short that the compiler finds them free of
    aliases: 105 lanes of 55,000 features took half the processor time. A lane alone has flat arrays: 1.5 M features took
    half the time.

    The centre v (`beside`, like the iterate `w`) becomes ``w(alpha) = (1 + kappa) w - kappa v``; `kappa` (columns,). Added
    to: `out`, a `Movement`; the angle of two sketches is about that of their vectors.
    """
    sums, sketch, moved = out
    width = w.shape[1] // sketch.shape[1]
    if sketch.size == N_BUCKETS:
        _end_pass_of_one(w.reshape(-1), beside.reshape(-1), kappa[0], sums, sketch.reshape(-1))
        return
    start = 0
    while start < lanes.size:
        stop = _end_of_run(lanes, start)
        low = np.uint64(lanes[start] * width)
        high = np.uint64((lanes[stop - 1] + 1) * width)
        for j in range(w.shape[0]):
            point = w[j]
            weights = beside[j]
            for column in range(low, high):
                moved[column] = point[column] - weights[column]
                weights[column] = sum_of(point[column], moved[column], kappa[column])
            if width == 1:
                bucket = sketch[np.uint64(j) & _LAST_BUCKET]
                sign = _signed(1.0, np.uint64(j))
                for column in range(low, high):
                    bucket[column] += sign * moved[column]
            else:
                for lane in lanes[start:stop]:
                    for m in range(width):
                        position = np.uint64(j * width + m)
                        change = _signed(moved[lane * width + m], position)
                        sketch[position & _LAST_BUCKET, lane] += change
            for column in range(low, high):
                sums[MOVED, column] += moved[column] * moved[column]
            for column in range(low, high):
                sums[ALPHA_NORM, column] += weights[column] * weights[column]
                sums[NORM, column] += point[column] * point[column]
        start = stop


@inlined
def _end_of_run(lanes, start):
    """Return the position after the lanes from `start` on that are neighbours."""
    stop = start + 1
    while stop < lanes.size and lanes[stop] == lanes[stop - 1] + 1:
        stop += 1
    return stop


@inlined
def _end_pass_of_one(w, beside, kappa, sums, sketch):
    """Do the work of `end_pass` for the only lane."""
    moved_sum = alpha_sum = norm_sum = 0.0
    for j in range(w.size):
        moved = w[j] - beside[j]
        w_alpha = sum_of(w[j], moved, kappa)
        beside[j] = w_alpha
        moved_sum += moved * moved
        alpha_sum += w_alpha * w_alpha
        norm_sum += w[j] * w[j]
        sketch[np.uint64(j) & _LAST_BUCKET] += _signed(moved, np.uint64(j))
    sums[MOVED, 0] += moved_sum
    sums[ALPHA_NORM, 0] += alpha_sum
    sums[NORM, 0] += norm_sum


@inlined
def _signed(number, position):
    """Return the number or its negative, by a hash of its position."""
    return -number if (position * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(47)) & np.uint64(1) else number


@kernel
def begin_pass(w, beside, columns, kappa):
    """Make the point where the last read ended the centre, in place: ``(w(alpha) + kappa w)/(1 + kappa), w``."""
    start = 0
    while start < columns.size:
        stop = _end_of_run(columns, start)
        low = np.uint64(columns[start])
        high = np.uint64(columns[stop - 1] + 1)
        for j in range(w.shape[0]):
            point = w[j]
            weights = beside[j]
            for column in range(low, high):
                centre = point[column]
                point[column] = weight_of(weights[column], centre, kappa[column], 1.0 / (1.0 + kappa[column]))
                weights[column] = centre
        start = stop


# ---------------------------------------------------------------------------------------------------------------------
# Extrapolation, of weights and of scores alike: `point` and `previous` are float64, of one shape, a column for each lane


@kernel
def extrapolate(point, previous, lanes, factor):
    """Continue along the last movement, in place: ``point + factor (point - previous), point``; `factor` has all lanes."""
    for start in range(0, point.shape[0], BLOCK):
        for lane in lanes:
            share = factor[lane]
            for j in range(start, min(start + BLOCK, point.shape[0])):
                old = point[j, lane]
                point[j, lane] = old + share * (old - previous[j, lane])
                previous[j, lane] = old


@kernel
def add_line_products(w, previous, lanes, sums):
    """Add the regulariser's terms to `sums` (all lanes, 3), those of `kernels.primal.add_line_terms`."""
    for start in range(0, w.shape[0], BLOCK):
        for lane in lanes:
            value = slope = curve = 0.0
            for j in range(start, min(start + BLOCK, w.shape[0])):
                weight = w[j, lane]
                moved = w[j, lane] - previous[j, lane]
                value += penalty(weight)
                slope += penalty_slope(weight, 1.0) * moved
                curve += moved * moved
            sums[lane, 0] += value
            sums[lane, 1] += slope
            sums[lane, 2] += curve
