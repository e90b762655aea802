"""Certificates of problems without a penalty, whose dual asks for ``Σ s_i a_i x_i = 0``.

With a_i minus the slopes of the losses, ``v = Σ s_i a_i x_i`` and H their second derivatives, the dual variables
``a_i - h_i s_i x_i·d`` satisfy it where ``H d = v``, h_i being a row's part of H. A row's term of the gap is then
``½ h (x·d)²`` for the squared error, and for losses of probabilities at most twice that, by the chi-square divergence, as
long as the shares stay positive: as ``|x·d| <= 1``. So the gap is at most ``v·H⁻¹v``.

H and v are known but for rounding. With features in units of the roots of H's diagonal, H is above ``B + s/2`` where
``B = H - s`` as computed has a Cholesky factor, if s/2 is above all errors of H and of the solution.

It has none where features are combinations of others, nor where a plane separates some rows, whose weights grow without
end. With any d the dual variables miss their condition by ``r = v - H d``, and the gap beside weights w' grows by
``(w - w')·r``. So there is a proof for all weights that differ from w by at most `FAR` times its own size, in units of the
features' sums of squares: none of them is better by more than the gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..kernels.primitives import UNIT
from ..kernels.triangle import PANEL, diagonal_places, multiply, solve_positive, take_scaled, triangle_size

FAR = 1e3
"""Distance up to which weights are compared where there is no other proof, in sizes of w, or of the objective's root."""

SOLVED = 1e-12
"""Violation up to which an optimum that there is has long been proven."""

_SHIFTS = 1e-1, 1e-3, 1e-6, 1e-9
_LEFT_OUT = 1e-2, 1e-4, 1e-6, 1e-8, 1e-10  # curvatures below which a d leaves a direction as it is


class Known(NamedTuple):
    """Sums of a read that prove a gap, of a lane."""

    matrix: np.ndarray  # (D (D + 1) / 2,): the triangle of H
    v: np.ndarray  # (D,)
    error: np.ndarray  # (D,): bounds on those of v
    squares: np.ndarray  # (D,): sums of the features' squares over the rows
    cost: float  # the largest
    n_rows: int  # of which H is a sum
    w: np.ndarray  # (D,)
    primal: float


class Bounds(NamedTuple):
    """Upper bounds, infinite without a proof."""

    root: float  # of √(d·Hd)
    beyond: float  # of what the dual variables that miss their condition add to the gap


_NONE = Bounds(np.inf, 0.0)


def bounds(known: Known, most: float) -> Bounds:
    """Bound the gap of dual variables by a d of which ``|x·d|`` is at most `most` in all rows.

    Where there is no d that satisfies their condition, it is the best one of some that nearly do.
    """
    diagonal = known.matrix[diagonal_places(known.v.size)]
    used = np.flatnonzero(diagonal > 0.0)
    if known.v[diagonal <= 0.0].any():
        return _NONE
    terms = _Scaled.of(known, used, np.sqrt(diagonal[used]))
    root = step = np.inf
    for shift in (*(shift for shift in _SHIFTS if shift > terms.least), terms.least):
        square, _ = _solved(terms.matrix, terms.pull, -shift)
        bound = np.sqrt(square) + terms.apart / np.sqrt(0.5 * shift)
        root, step = min(root, bound), min(step, terms.reach * bound / np.sqrt(0.5 * shift))
    if np.isfinite(root) and step <= most:
        return Bounds(float(root), 0.0)
    scale = np.sqrt(np.maximum(diagonal[used], known.cost * known.squares[used]))
    terms, moved = _Scaled.of(known, used, scale), scale * known.w[used]
    distance = FAR * max(_norm(moved), known.primal**0.5)
    shifts = [shift for shift in _LEFT_OUT if shift > terms.least]
    found = [_beside(terms, shift, distance, most) for shift in (*shifts, terms.least)]
    return min(found, key=lambda one: one.root**2 + one.beyond)


class _Scaled(NamedTuple):
    """H and v of features that are divided by a scale."""

    matrix: np.ndarray  # a triangle
    pull: np.ndarray
    apart: float  # bound on the error of v
    reach: float  # and on the norm of a row
    least: float  # twice that on the error of H, and of solutions

    @classmethod
    def of(cls, known: Known, used: np.ndarray, scale: np.ndarray) -> _Scaled:
        size = used.size
        matrix = np.empty(triangle_size(size))
        take_scaled(known.matrix, used, scale, matrix)
        return cls(
            matrix,
            known.v[used] / scale,
            _norm(known.error[used] / scale),
            float(np.sqrt(np.einsum("i,i->", known.squares[used] / scale, 1.0 / scale))),
            4.0 * size * (known.n_rows + 8.0 * size + 64.0) * UNIT,
        )


def _beside(terms: _Scaled, shift: float, distance: float, most: float) -> Bounds:
    """Bound the gap for weights within a distance, by a d that leaves out directions of less curvature than `shift`."""
    square, d = _solved(terms.matrix, terms.pull, shift)
    length = _norm(d)
    if not terms.reach * length <= most:
        return _NONE
    product = np.empty(d.size)
    multiply(terms.matrix, d, product)
    missed = _norm(terms.pull - product) + terms.apart + terms.least * length
    return Bounds(float(np.sqrt(square + terms.least * length**2)), distance * missed)


def report(lanes: Mapping[str, np.ndarray], lane: int) -> dict[str, Any]:
    """Report how far from w weights are compared by a lane's gap, in sizes of w; empty if all weights are."""
    within = float(lanes["gap_within"][lane]) if "gap_within" in lanes else np.inf
    return {"gap_within": within} if np.isfinite(within) else {}


def _norm(x: np.ndarray) -> float:
    return float(np.sqrt(np.einsum("i,i->", x, x)))


def _solved(matrix: np.ndarray, pull: np.ndarray, shift: float) -> tuple[float, np.ndarray]:
    """Return ``pull·d``, infinite if B is not positive, and ``d = B⁻¹pull``, B being the matrix with a diagonal shifted."""
    factor, solution, diagonal = matrix.copy(), pull.copy(), diagonal_places(pull.size)
    factor[diagonal] += shift
    solve_positive(factor, solution, np.zeros(pull.size), np.empty((PANEL, pull.size)))
    if not np.isfinite(factor[diagonal]).all():
        return np.inf, solution
    terms = pull * solution
    return max(float(terms.sum() + (pull.size + 2.0) * UNIT * np.abs(terms).sum()), 0.0), solution
