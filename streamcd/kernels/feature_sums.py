"""Kernels that add up the values of every feature."""

from __future__ import annotations

import numpy as np

from .compile import cached


@cached
def add_entries(position, value, sums):
    """Add entries to the sums of their features, in order.

    Parameters
    ----------
    position : integer[entries]
        Rows of `sums`; entries outside it are skipped.
    value : float[entries]
    sums : float64[features, 7]
        Number, sum, sum of squares, least, greatest, sum and sum of squares of this shard; changed in place, except for the
        sums of all shards. They are neighbours because fetching a feature's cache line takes most of the time: five arrays
        in turn with `numpy.add.at` took six times as long.
    """
    for k in range(len(position)):
        i = position[k]
        if 0 <= i < len(sums):
            x = np.float64(value[k])
            sums[i, 0] += 1.0
            sums[i, 5] += x
            sums[i, 6] += x * x
            sums[i, 3] = min(sums[i, 3], x)
            sums[i, 4] = max(sums[i, 4], x)


@cached
def fold_shard(sums):
    """Add the sums of a shard to those of all before it, in place; see `add_entries`."""
    for i in range(len(sums)):
        sums[i, 1] += sums[i, 5]
        sums[i, 2] += sums[i, 6]
        sums[i, 5] = sums[i, 6] = 0.0
