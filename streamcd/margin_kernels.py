"""Prediction: margins of rows."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def margins(indptr, feature, value, w, out):
    """Write ``x·w_m`` of every row and weight vector to `out`.

    Parameters
    ----------
    w : ndarray of float64, shape (d, n_vectors)
    out : ndarray of float64, shape (rows, n_vectors)
        Written.

    Returns
    -------
    int
        Entries that were left out because their feature is not below d.
    """
    n_features, n_vectors = w.shape
    ignored = 0
    for i in range(indptr.size - 1):
        for m in range(n_vectors):
            out[i, m] = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            j = feature[k]
            if j < 0 or j >= n_features:
                ignored += 1
                continue
            v = np.float64(value[k])
            for m in range(n_vectors):
                out[i, m] += w[j, m] * v
    return ignored
