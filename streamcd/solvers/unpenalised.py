"""Certificates of problems without a penalty, whose dual asks for ``Σ s_i a_i x_i = 0``.

With a_i minus the slopes of the losses, ``v = Σ s_i a_i x_i`` and H their second derivatives, the dual variables
``a_i - h_i s_i x_i·d`` satisfy it where ``H d = v``, h_i being a row's part of H. A row's term of the gap is then
``½ h (x·d)²`` for the squared error, and for losses of probabilities at most twice that, by the chi-square divergence, as
long as the shares stay positive: as ``|x·d| <= 1``. So the gap is at most ``v·H⁻¹v``.

H and v are known but for rounding. With features in units of the roots of H's diagonal, H is above ``B + s/2`` where
``B = H - s`` as computed has a Cholesky factor, if s/2 is above all errors of H and of the solution. So there is a proof
only where no feature is, but for rounding, a combination of others.
"""

from __future__ import annotations

import numpy as np

from ..core.errors import UsageError
from ..kernels.newton import PANEL, solve_positive
from ..kernels.primitives import UNIT

_SHIFTS = 1e-1, 1e-3, 1e-6, 1e-9
_OPTIMAL = 1e-11  # violation up to which an optimum that there is has long been proven


def bounds(
    matrix: np.ndarray, v: np.ndarray, error: float, squares: np.ndarray, n_rows: int
) -> tuple[float, float]:
    """Bound ``√(v·H⁻¹v)``, and the largest ``|x·d|`` of a row, from above; infinite where there is no proof.

    Parameters
    ----------
    matrix : ndarray of float64, shape (D, D)
        H, symmetric.
    v : ndarray of float64, shape (D,)
    error : float
        Bound on the errors of v.
    squares : ndarray of float64, shape (D,)
        Sums of the features' squares over the rows.
    n_rows : int
        Number of rows of which H is a sum.
    """
    diagonal = np.einsum("ii->i", matrix)
    used = np.flatnonzero(diagonal > 0.0)
    if v[diagonal <= 0.0].any():
        return np.inf, np.inf
    scale, size = np.sqrt(diagonal[used]), used.size
    scaled, pull = matrix[np.ix_(used, used)] / scale / scale[:, None], v[used] / scale
    apart = error * np.sqrt(np.einsum("i,i->", 1.0 / scale, 1.0 / scale))
    reach = np.sqrt(np.einsum("i,i->", squares[used] / scale, 1.0 / scale))
    least = 4.0 * size * (n_rows + 8.0 * size + 64.0) * UNIT
    root = step = np.inf
    for shift in (*(shift for shift in _SHIFTS if shift > least), least):
        square = _solved_square(scaled, pull, shift)
        bound = np.sqrt(square) + apart / np.sqrt(0.5 * shift)
        root, step = min(root, bound), min(step, reach * bound / np.sqrt(0.5 * shift))
    return float(root), float(step)


def _solved_square(matrix: np.ndarray, pull: np.ndarray, shift: float) -> float:
    """Return ``pull·B⁻¹pull``, B being the matrix less a multiple of the identity; infinite where it is not positive."""
    factor, solution = matrix.copy(), pull.copy()
    np.einsum("ii->i", factor)[:] -= shift
    solve_positive(factor, solution, np.zeros(pull.size), np.empty((PANEL, pull.size)))
    if not np.isfinite(np.einsum("ii->i", factor)).all():
        return np.inf
    terms = pull * solution
    return max(float(terms.sum() + (pull.size + 2.0) * UNIT * np.abs(terms).sum()), 0.0)


def refuse_unproven(gap: np.ndarray, violation: np.ndarray) -> None:
    """Refuse problems whose gaps, infinite without a proof, are not proven though nothing more is to be gained."""
    if (~np.isfinite(gap) & (violation <= _OPTIMAL)).any():
        raise UsageError(
            "without a penalty there is no single optimum here that can be proven: either a plane separates classes, so "
            "that weights grow without end, or a feature is a combination of others (the categories of a column beside an "
            "intercept, say); take a small penalty (l2 with a large C, Ridge with a small alpha), or leave such features out"
        )
