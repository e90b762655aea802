"""Estimate of the time of Newton's method beside that of the dual method, from what is known before a training.

The unit is the dual method's visit of all rows in memory. The figures are of `docs/measurements.md`, "What auto takes".
"""

from __future__ import annotations

import math

_READS = {
    "squared_error": 2.0,
    "huber": 3.5,
    "squared_epsilon_insensitive": 4.0,
    "squared_hinge": 6.0,
    "log_loss": 6.0,
}
"""Reads of Newton's method, which depend little on C and scale where there are many rows for each feature."""

ROWS_PER_FEATURE = 100
"""Rows for each feature from which on classes are not separable: sets of 11 and 73 took 40 to 160 reads with C = 100."""

_PASSES = {
    "squared_error": 4.5,
    "huber": 4.5,
    "squared_epsilon_insensitive": 4.5,
    "squared_hinge": 4.0,
    "log_loss": 3.0,
}
"""Passes of the dual method, accelerated, to 1e-3 where C times the rows' mean square norm is small."""

_GROWTH = 0.17
"""Exponent with which these passes grow in that product."""

_LEAST_NANOSECONDS = 3e7
"""Time of the dual method below which it is taken, as on all data that are not narrow: the difference is not felt."""


def newton_is_faster(
    loss: str,
    n_rows: int,
    n_weights: int,
    n_entries: int,
    C_mean_square: float,
    tol: float,
    *,
    is_streamed: bool,
) -> bool:
    """Tell whether Newton's method takes less time than the dual one, for each of several lanes.

    A read takes 1.2 visits of all rows, products of pairs of a row's entries, and a solution. Where data are streamed a
    visit decodes, too, and the dual method takes twice the passes, as windows are visited one after another.

    Parameters
    ----------
    C_mean_square : float
        C times the mean square of the rows' norms.
    """
    row_entries = n_entries / max(n_rows, 1)
    visit = n_rows * (60.0 + 2.0 * row_entries) + 1e6  # nanoseconds
    newton = 1.2 + row_entries / 100.0 + 0.3 * n_weights**3 / visit
    decoding = 2.0 + row_entries / 100.0 if is_streamed else 0.0
    length = 1.0 + C_mean_square
    passes = _PASSES[loss] * length**_GROWTH
    reads = _READS[loss]
    if loss == "squared_hinge" and n_rows < ROWS_PER_FEATURE * n_weights:
        passes = _PASSES[loss] * length**0.5
        reads = max(reads, 3.0 * length**0.3)
    passes *= 1.0 + 0.2 * min(max(-math.log10(tol) - 3.0, -1.0), 3.0)
    if is_streamed:
        passes *= 2.0
    if passes * visit < _LEAST_NANOSECONDS:
        return False
    return reads * (newton + decoding) < passes * (1.0 + decoding)
