"""Quadratic programs over a box with an explicit matrix: coordinate descent and SOR.

``min ½ aᵀQa + h·a`` over ``lo <= a <= hi``. Q is symmetric; if it is positive semidefinite, the result is the minimum. A
pass visits the active variables in a random order; variables held at a bound leave the active set (shrinking), and finally
all are checked with a recomputed gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import parse_size
from ..core.options import WITHIN_2, number_or_word, with_known_keywords
from ..core.setting import random_key
from ..kernels.box_qp import CHANGE, UNBOUNDED, VIOLATION, Point
from ..kernels.primitives import shuffle
from ..solvers.over_relaxation import CANDIDATE
from .matrices import Matrix

_TRIAL = 5
"""Passes before the first trial of an omega, fewest passes of a trial, trials at most, and steps of the power iteration."""


@dataclass(frozen=True)
class BoxQPResult:
    """Result of a box-constrained quadratic program.

    Examples
    --------
    >>> result = streamcd.solve_box_qp(np.eye(2), np.array([-1.0, 1.0]))
    >>> result.alpha.tolist(), result.objective
    ([1.0, 0.0], -0.5)
    """

    alpha: np.ndarray  # (n,) float64, feasible
    objective: float  # ``½ alphaᵀQ alpha + h·alpha``, from a recomputed gradient
    violation: float  # largest absolute value of the projected gradient, recomputed; 0 at an exact optimum
    passes: int  # all passes, including those of trials and the products of power iterations
    converged: bool  # ``violation <= tol``
    omega: float  # last value used
    # passes that ``omega="auto"`` spent in addition: discarded passes of trials, and the power iterations of Young's formula
    trial_passes: int = 0
    # for each trial, the pass at which it began, and the change of the objective by each omega in the same number of passes
    # from the same point: ``{"pass": 5, "change": {1.0: -3.1, 1.5: -3.2}}``
    trials: tuple[dict[str, Any], ...] = ()


@with_known_keywords
def solve_box_qp(
    Q: Any,
    h: np.ndarray,
    lo: np.ndarray | float = 0.0,
    hi: np.ndarray | float = np.inf,
    *,
    omega: float | str = 1.0,
    tol: float = 1e-8,
    max_passes: int = 10_000,
    alpha: np.ndarray | None = None,
    shrinking: bool = True,
    indefinite: str = "error",
    memory: int | str = "1GB",
    seed: int = 0,
) -> BoxQPResult:
    """Minimise ``½ aᵀQa + h·a`` over ``lo <= a <= hi`` by coordinate descent, or SOR.

    Parameters
    ----------
    Q : ndarray, np.memmap or scipy sparse matrix, shape (n, n)
        Symmetric matrix (checked by its products with a random vector). A memory-mapped array larger than half of `memory`
        is streamed: each pass reads the rows of its variables in the order of the visits. The steps are the same as with the
        matrix in memory.
    h : ndarray, shape (n,)
    lo, hi : ndarray of shape (n,), or a number for all
        Infinite for no bound; ``lo == hi`` fixes a variable.
    omega : float or "auto"
        Over-relaxation: steps are omega times those of coordinate descent, 0 < omega < 2. ``"auto"`` tries values other than
        1 during the solution: a few passes with each from the same point; the one that reaches the lower objective is kept,
        with its passes.
    tol : float
        Stop when no component of the projected gradient exceeds this in absolute value. The projection sets components to 0
        that point out of the box at a bound.
    max_passes : int
        Largest number of passes over the variables, including trials.
    alpha : ndarray, shape (n,), optional
        Initial point (clipped to the box); 0 by default.
    shrinking : bool
        Leave out variables held at a bound until the others are solved.
    indefinite : {"error", "local"}
        Treatment of a Q that is seen not to be positive semidefinite, by a negative diagonal entry, a zero diagonal entry
        in a row that is not zero, or a negative curvature along the step of a pass. ``"local"`` continues to a point that
        cannot be improved by changing a single variable, even to its other bound; in general it is not the minimum. An
        indefinite Q that shows none of these signs is solved in the same way, without an error.
    memory : int or str
        Bytes for panels of a matrix on disk. A matrix in memory is not counted; it is copied if it is neither float32 nor
        float64, or not contiguous.
    seed : int
        Seed of the order of visits.

    Returns
    -------
    BoxQPResult

    Raises
    ------
    UsageError
        If shapes do not match, ``lo > hi``, numbers are not finite, Q is not symmetric, the objective is unbounded below, or
        (with ``indefinite="error"``) Q is seen not to be positive semidefinite.

    Examples
    --------
    >>> found = streamcd.solve_box_qp(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([-1.0, -3.0]), 0.0, 1.0)
    >>> found.alpha.round(6).tolist(), found.converged
    ([0.0, 1.0], True)
    """
    wrong = {
        "tol": (not (isinstance(tol, Real) and 0 <= tol < np.inf), "a number >= 0", tol),
        "max_passes": (not (isinstance(max_passes, Real) and max_passes >= 1), "at least 1", max_passes),
        "seed": (not isinstance(seed, Integral), "an integer", seed),
        "indefinite": (indefinite not in ("error", "local"), "error or local", indefinite),
    }
    for name, (is_wrong, expected, value) in wrong.items():
        if is_wrong:
            raise UsageError(f"{name}: expected {expected}, found {value!r}")
    omega = number_or_word("omega", omega, ("auto",), WITHIN_2, "a number above 0 and below 2")
    h = _numbers("h", h).reshape(-1)
    matrix = Matrix(Q, h.size, parse_size(memory))
    lower = _vector("lo", lo, h.size)
    upper = _vector("hi", hi, h.size)
    start = _vector("alpha", 0.0 if alpha is None else alpha, h.size)
    for name, values in (("h", h), ("alpha", start)):
        for i in np.flatnonzero(~np.isfinite(values))[:1]:
            raise UsageError(f"{name}[{i}]: expected finite numbers, found {values[i]:g}")
    for i in np.flatnonzero(~(lower <= upper) | (lower == np.inf) | (upper == -np.inf))[:1]:
        raise UsageError(f"variable {i}: expected lo <= hi, found lo = {lower[i]:g}, hi = {upper[i]:g}")
    settings = _Settings(omega, tol, max_passes, shrinking, indefinite == "error", seed)
    return _Solution(matrix, h, lower, upper, np.clip(start, lower, upper), settings).run()


class _Settings(NamedTuple):
    omega: float | str
    tol: float
    max_passes: int
    shrinking: bool
    convex: bool  # a Q that is not is refused
    seed: int


def _numbers(name: str, values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iubf":
        raise UsageError(f"{name}: expected real numbers, found {values!r:.60}")
    return array.astype(np.float64)


def _vector(name: str, values: np.ndarray | float, n: int) -> np.ndarray:
    values = _numbers(name, values)
    if values.ndim and values.shape != (n,):
        raise UsageError(f"{name}: expected a number or {n} of them, found shape {values.shape}")
    return np.array(np.broadcast_to(values, (n,)))


# ---------------------------------------------------------------------------------------------------------------------
# The solution


class _Solution:
    """State of the iteration: point, gradient, active set, omega and its trials."""

    def __init__(
        self,
        matrix: Matrix,
        h: np.ndarray,
        lo: np.ndarray,
        hi: np.ndarray,
        alpha: np.ndarray,
        settings: _Settings,
    ) -> None:
        self.matrix = matrix
        self.h = h
        self.lo = lo
        self.hi = hi
        self.alpha = alpha
        self.settings = settings
        self.omega = 1.0 if settings.omega == "auto" else float(settings.omega)
        self.passes = self.trial_passes = 0
        self.change = 0.0  # of the objective, by all passes
        self.trials: list[dict[str, Any]] = []
        self.candidate: float | None = None
        self.threshold = np.inf
        self._restore()
        self._check_curvature()

    def run(self) -> BoxQPResult:
        """Make passes until the projected gradient is within the tolerance."""
        settings = self.settings
        next_trial = _TRIAL if settings.omega == "auto" else settings.max_passes + 1
        exact = False
        while self.passes < settings.max_passes:
            length = max(_TRIAL, self.passes // 4)
            room = settings.max_passes - self.passes >= _TRIAL + 2 * length
            if self.passes >= next_trial and len(self.trials) < _TRIAL and room:
                self._try_omega(length)
                next_trial = 4 * self.passes
                continue
            exact = False
            if self._pass() <= settings.tol:
                self._restore()
                exact = True
                if self._violation() <= settings.tol:
                    break
        if not exact:
            self._restore()
        violation = self._violation()
        return BoxQPResult(
            alpha=self.alpha,
            objective=0.5 * float(self.alpha @ (self.gradient + self.h)),  # ½ aᵀQa + h·a = ½ a·(g + h)
            violation=violation,
            passes=self.passes,
            converged=violation <= settings.tol,
            omega=self.omega,
            trial_passes=self.trial_passes,
            trials=tuple(self.trials),
        )

    def _pass(self) -> float:
        """Visit the active variables once; returns the largest projected gradient met."""
        active = np.flatnonzero(self.active)
        before = self.alpha[active], self.gradient[active]
        out = np.array([0.0, -1.0, 0.0])
        order = active.copy()
        shuffle(order, random_key(self.settings.seed, self.passes), 1)
        arrays = self.lo, self.hi, self.alpha, self.gradient, self.active
        self.matrix.visit(order, Point(*arrays, self.threshold, self.omega, out))
        self.passes += 1
        self.change += float(out[CHANGE])
        unbounded = "the objective is unbounded below"
        if out[UNBOUNDED] >= 0:
            i = int(out[UNBOUNDED])
            raise UsageError(
                f"{unbounded} along variable {i}: Q[{i}, {i}] = {self.matrix.diagonal[i]:g} with bounds {self.lo[i]:g} and "
                f"{self.hi[i]:g}; give it finite bounds"
            )
        self._check_direction(self.alpha[active] - before[0], self.gradient[active] - before[1])
        violation = float(out[VIOLATION])
        if not np.isfinite(violation) or not np.isfinite(self.alpha[active]).all():
            raise UsageError(f"{unbounded}: Q is not positive definite where the box is open")
        self.threshold = violation if self.settings.shrinking else np.inf
        return violation

    def _restore(self) -> None:
        """Make all variables active again, and recompute the gradient."""
        with np.errstate(all="ignore"):  # checked below
            self.gradient = self.matrix.product(self.alpha) + self.h
        for i in np.flatnonzero(~np.isfinite(self.gradient))[:1]:
            raise UsageError(f"Q: row {i} has numbers that are not finite")
        self.active = np.ones(self.matrix.n, dtype=np.uint8)
        self.threshold = np.inf

    def _violation(self) -> float:
        """Return the largest absolute value of the projected gradient; the gradient must be up to date."""
        gradient = self.gradient.copy()
        alpha = self.alpha
        below = alpha <= self.lo
        above = alpha >= self.hi
        gradient[below] = np.minimum(gradient[below], 0.0)
        gradient[above] = np.maximum(gradient[above], 0.0)
        concave = np.flatnonzero(self.matrix.diagonal < 0)
        gradient[concave] = self._jumps(concave)
        return float(np.abs(gradient).max(initial=0.0))

    def _jumps(self, concave: np.ndarray) -> np.ndarray:
        """Compute the decrease per length of a jump to a bound at negative curvature (`kernels.box_qp._jump`)."""
        rates = np.zeros(concave.size)
        for bound in (self.lo, self.hi):
            step = bound[concave] - self.alpha[concave]
            rate = -np.sign(step) * (self.gradient[concave] + 0.5 * self.matrix.diagonal[concave] * step)
            rates = np.maximum(rates, rate)
        return rates

    # -- not convex, not bounded --------------------------------------------------------------------------------------

    def _check_curvature(self) -> None:
        """Look for proof on the diagonal that Q is indefinite: a negative entry, or a zero in a row that is not zero."""
        diagonal = self.matrix.diagonal
        for i in np.flatnonzero(diagonal < 0)[:1]:
            self._indefinite(f"Q[{i}, {i}] = {diagonal[i]:g} is negative")
        for i in np.flatnonzero((diagonal == 0) & (self.matrix.probe != 0))[:1]:
            self._indefinite(f"Q[{i}, {i}] = 0 while its row is not zero")

    def _check_direction(self, step: np.ndarray, change: np.ndarray) -> None:
        """Look for negative curvature along the step d of a pass: ``dᵀQd`` is d times the change of the gradient."""
        if not self.settings.convex or not step.size:
            return
        length = float(step @ step)
        largest = float(np.abs(self.matrix.diagonal).max(initial=0.0))
        moved = float(np.abs(step).max()) > 1e-6 * (1.0 + float(np.abs(self.alpha).max()))
        if moved and float(step @ change) < -1e-6 * largest * length:
            self._indefinite(f"dᵀQd = {float(step @ change):g} was met for the step d of a pass")

    def _indefinite(self, proof: str) -> None:
        if self.settings.convex:
            raise UsageError(
                f"Q is not positive semidefinite: {proof}; indefinite='local' finds a point that no single variable improves"
            )

    # -- omega --------------------------------------------------------------------------------------------------------

    def _try_omega(self, n_passes: int) -> None:
        """Make passes with the current omega and with another from the same point; continue from the lower objective."""
        begin = self.passes
        best = self.omega
        other = self._next_candidate()
        if other is None:
            return
        start = self._frame()
        ends = []
        for omega in (best, other):
            self._load_frame(start)
            self.omega = omega
            first = self.passes
            while self.passes < min(first + n_passes, self.settings.max_passes):
                if self._pass() <= self.settings.tol:
                    break
            ends.append((self.change - start[-1], omega, self.passes - first, self._frame()))
        winner = 0 if ends[0][0] <= ends[1][0] else 1
        self.omega = ends[winner][1]
        self._load_frame(ends[winner][3])
        self.trial_passes += ends[1 - winner][2]
        self.trials.append({"pass": begin, "change": {end[1]: end[0] for end in ends}})

    def _frame(self) -> tuple[Any, ...]:
        """Copy everything that a pass changes."""
        arrays = (self.alpha.copy(), self.gradient.copy(), self.active.copy())
        return (*arrays, self.threshold, self.change)

    def _load_frame(self, frame: tuple[Any, ...]) -> None:
        self.alpha, self.gradient, self.active = (array.copy() for array in frame[:3])
        self.threshold, self.change = frame[3:]

    def _next_candidate(self) -> float | None:
        """Choose Young's omega or a default; later, halfway from the last candidate to 2 if it won, to the winner if not."""
        if self.candidate is None:
            rho = self._jacobi_radius()
            self.candidate = young(rho) if rho < 1.0 else CANDIDATE
        elif self.omega == self.candidate:
            self.candidate = 0.5 * (self.candidate + 2.0)
        else:
            self.candidate = 0.5 * (self.candidate + self.omega)
        return self.candidate if abs(self.candidate - self.omega) > 0.05 else None

    def _jacobi_radius(self) -> float:
        """Estimate the spectral radius of ``I - D⁻¹Q`` by power iterations, each a product with Q."""
        diagonal = np.where(self.matrix.diagonal > 0, self.matrix.diagonal, 1.0)
        vector = np.random.default_rng(self.settings.seed % 2**64).standard_normal(self.matrix.n)
        radius = 0.0
        for _ in range(_TRIAL):
            vector /= max(float(np.linalg.norm(vector)), 1e-300)
            vector = vector - self.matrix.product(vector) / diagonal
            radius = float(np.linalg.norm(vector))
        self.passes += _TRIAL
        self.trial_passes += _TRIAL
        return radius


def young(rho: float) -> float:
    """Compute ``2 / (1 + √(1 - rho²))``, the best omega of a consistently ordered matrix with Jacobi spectral radius rho."""
    return 2.0 / (1.0 + float(np.sqrt(1.0 - rho * rho)))
