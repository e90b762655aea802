"""Weights of accelerated lanes: from the iterate and its centre to w(alpha) and back, one sweep each.

Within a training read a lane keeps the iterate ``w = (w(alpha) + kappa v)/(1 + kappa)`` and its centre v; between reads, and
while it is certified, the point where the read ended and w(alpha). A lane has `width` columns of both arrays.
"""

from __future__ import annotations

import numpy as np

from .compile import kernel
from .primitives import _mix

N_BUCKETS = 1024
MOVED, ALPHA_NORM = range(2)
"""Columns of `sums`: ``‖w - v‖²`` and ``‖w(alpha)‖²``."""


@kernel
def end_pass(w, companion, width, lanes, kappa, sums, sketch):
    """Replace the centre by w(alpha), and measure how far the pass moved from it.

    Parameters
    ----------
    w : ndarray of float64, shape (d + 1, columns)
        The iterate; stays.
    companion : ndarray like `w`
        The centre v, replaced by ``w(alpha) = (1 + kappa) w - kappa v``.
    width : int
    lanes : ndarray of int64, shape (k,)
    kappa : ndarray of float64, shape (all lanes,)
    sums : ndarray of float64, shape (all lanes, 2)
        Added to.
    sketch : ndarray of float64, shape (all lanes, N_BUCKETS)
        Added to: w - v with its signs changed at random, folded; the angle of two such vectors is about that of theirs.
    """
    for j in range(w.shape[0]):
        for lane in lanes:
            factor = kappa[lane]
            for m in range(width):
                column = lane * width + m
                centre = companion[j, column]
                moved = w[j, column] - centre
                w_alpha = w[j, column] + factor * moved
                companion[j, column] = w_alpha
                if moved != 0.0:
                    place = j * width + m
                    sums[lane, MOVED] += moved * moved
                    negative = _mix(np.uint64(place)) & np.uint64(1)
                    sketch[lane, place % N_BUCKETS] += -moved if negative else moved
                sums[lane, ALPHA_NORM] += w_alpha * w_alpha


@kernel
def begin_pass(w, companion, width, lanes, kappa):
    """Make the point where the last read ended the centre, in place: ``(w(alpha) + kappa w)/(1 + kappa), w``."""
    for j in range(w.shape[0]):
        for lane in lanes:
            factor = kappa[lane]
            for m in range(width):
                column = lane * width + m
                centre = w[j, column]
                w[j, column] = (companion[j, column] + factor * centre) / (1.0 + factor)
                companion[j, column] = centre
