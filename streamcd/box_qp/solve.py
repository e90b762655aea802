"""Quadratic programs over a box with an explicit matrix: coordinate descent and SOR.

``min ½ aᵀQa + h·a`` over ``lo <= a <= hi``. Q is symmetric, and positive semidefinite where the result is to be the
minimum. A pass visits the active variables in a random order; variables that a bound holds leave (shrinking), and at the
end all are checked against a gradient computed afresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import parse_size
from ..core.randomness import random_key
from ..kernels.box_qp import CHANGE, UNBOUNDED, VIOLATION, Point
from ..kernels.primitives import shuffle
from ..solvers.over_relaxation import omega_number, young
from .matrices import Matrix, make_matrix

_FIRST_TRIAL, _LEAST_TRIAL = 5, 5  # passes before the first trial of an omega, and passes of a trial
_MAX_TRIALS = 5
_POWER_STEPS = 5
_DEFAULT_CANDIDATE = 1.5  # where Young's formula does not apply, as `over_relaxation.CANDIDATE`


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
    objective: float  # ``½ alphaᵀQ alpha + h·alpha``, from a gradient computed afresh
    violation: (
        float  # largest projected gradient in absolute value, from that gradient; 0 at an exact optimum
    )
    passes: int  # in all, those of trials and the products of power iterations too
    converged: bool  # ``violation <= tol``
    omega: float  # the one used last
    # passes that ``omega="auto"`` spent beside its way to the result: those whose outcome was thrown away, and the power
    # iterations of Young's formula
    trial_passes: int = 0
    # of each trial the pass it began at, and what each omega changed the objective by in as many passes from the same point:
    # ``{"pass": 5, "change": {1.0: -3.1, 1.5: -3.2}}``
    trials: tuple[dict[str, Any], ...] = ()


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
    packed: str = "lower",
    memory: int | str = "1GB",
    seed: int = 0,
) -> BoxQPResult:
    """Minimise ``½ aᵀQa + h·a`` over ``lo <= a <= hi`` by coordinate descent, or SOR.

    Parameters
    ----------
    Q : ndarray, np.memmap or scipy sparse matrix, shape (n, n), or ndarray or np.memmap of shape (n (n + 1) / 2,)
        Symmetric, which is checked in full. One dimension: a packed triangle (see `packed`). A memory-mapped array of more
        than half of `memory` is streamed: a pass reads the rows of its variables in the order of their visits, those of a
        packed triangle twice, until the variables that are not held by a bound fit in memory. The steps are those of the
        same matrix in memory.
    h : ndarray, shape (n,)
    lo, hi : ndarray of shape (n,), or a number for all
        Infinite for no bound; ``lo == hi`` fixes a variable.
    omega : float or "auto"
        Steps of omega times coordinate descent's, in (0, 2). ``"auto"`` tries others than 1 during the solution: a few
        passes with each from the same point; the one that reaches the lower objective is kept, and its passes with it.
    tol : float
        Stop when no projected gradient exceeds this: the gradient, 0 where it points out of the box at a bound.
    max_passes : int
        Passes over the variables at most, trials included.
    alpha : ndarray, shape (n,), optional
        Where to begin (clipped to the box); 0 by default.
    shrinking : bool
        Leave out variables that a bound holds, until the others are solved.
    indefinite : {"error", "local"}
        What to do when Q proves not to be positive semidefinite: by a negative entry of the diagonal, a zero there beside
        others in its row, or a negative curvature met on the way. ``"local"`` goes on to a point where no single
        variable can improve, its other bound included, which is not the minimum in general. A Q that gives no such proof
        is solved so unnoticed.
    packed : {"lower", "upper"}
        Order of a packed triangle: that of ``np.tril_indices(n)`` or of ``np.triu_indices(n)``.
    memory : int or str
        Bytes that panels of a matrix on disk, and what is gathered of it, may take. What is given in memory is not counted,
        and is copied where it is neither float32 nor float64, not contiguous, or an upper triangle.
    seed : int
        Of the order of visits.

    Returns
    -------
    BoxQPResult

    Raises
    ------
    UsageError
        Where shapes do not fit, ``lo > hi``, numbers are not finite, Q is not symmetric, the objective is unbounded below
        along a variable, or (with ``indefinite="error"``) Q is seen not to be positive semidefinite.

    Examples
    --------
    >>> found = streamcd.solve_box_qp(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([-1.0, -3.0]), 0.0, 1.0)
    >>> found.alpha.round(6).tolist(), found.converged
    ([0.0, 1.0], True)
    """
    settings = _Settings(
        omega if omega == "auto" else omega_number(omega), tol, max_passes, shrinking, indefinite, seed
    )
    h = _numbers("h", h).reshape(-1)
    matrix = make_matrix(Q, h.size, packed, parse_size(memory))
    box = _Box(h, _bound("lo", lo, h.size), _bound("hi", hi, h.size))
    begin = np.zeros(h.size) if alpha is None else _numbers("alpha", alpha).reshape(-1)
    if begin.size != h.size or not np.isfinite(begin).all():
        raise UsageError(
            f"alpha: expected {h.size} finite numbers, found {begin.size}, or some that are not finite"
        )
    return _Solution(matrix, box, np.clip(begin, box.lo, box.hi), settings).run()


# ---------------------------------------------------------------------------------------------------------------------
# What is given


@dataclass(frozen=True)
class _Settings:
    omega: float | str
    tol: float
    max_passes: int
    shrinking: bool
    indefinite: str
    seed: int

    def __post_init__(self) -> None:
        if not (isinstance(self.tol, Real) and 0 <= self.tol < np.inf):
            raise UsageError(f"tol: expected a number >= 0, found {self.tol!r}")
        if not (isinstance(self.max_passes, Real) and self.max_passes >= 1):
            raise UsageError(f"max_passes: expected at least 1, found {self.max_passes!r}")
        if not isinstance(self.seed, Integral):
            raise UsageError(f"seed: expected an integer, found {self.seed!r}")
        if self.indefinite not in ("error", "local"):
            raise UsageError(f"indefinite: expected error or local, found {self.indefinite!r}")


@dataclass(frozen=True)
class _Box:
    h: np.ndarray
    lo: np.ndarray
    hi: np.ndarray

    def __post_init__(self) -> None:
        if not np.isfinite(self.h).all():
            raise UsageError(f"h[{np.flatnonzero(~np.isfinite(self.h))[0]}]: expected finite numbers")
        wrong = np.flatnonzero(~(self.lo <= self.hi) | (self.lo == np.inf) | (self.hi == -np.inf))
        if wrong.size:
            i = wrong[0]
            raise UsageError(
                f"variable {i}: expected lo <= hi, found lo = {self.lo[i]:g}, hi = {self.hi[i]:g}"
                + (f" (and {wrong.size - 1} more)" if wrong.size > 1 else "")
            )


def _numbers(name: str, values: Any) -> np.ndarray:
    """A copy in double precision."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iubf":
        raise UsageError(f"{name}: expected real numbers, found {values!r:.60}")
    return array.astype(np.float64)


def _bound(name: str, values: np.ndarray | float, n: int) -> np.ndarray:
    values = _numbers(name, values)
    if values.ndim and values.shape != (n,):
        raise UsageError(f"{name}: expected a number or {n} of them, found shape {values.shape}")
    return np.array(np.broadcast_to(values, (n,)))


# ---------------------------------------------------------------------------------------------------------------------
# The solution


def _shuffled(variables: np.ndarray, key: np.uint64) -> np.ndarray:
    order = variables.copy()
    shuffle(order, key)
    return order


class _Solution:
    """The way from a first alpha to the last."""

    def __init__(self, matrix: Matrix, box: _Box, alpha: np.ndarray, settings: _Settings) -> None:
        self.matrix, self.box, self.settings, self.alpha = matrix, box, settings, alpha
        self.gradient = self._fresh_gradient()
        self.active = np.ones(matrix.n, dtype=np.uint8)
        self.omega = 1.0 if settings.omega == "auto" else float(settings.omega)
        self.passes = self.trial_passes = 0
        self.threshold = np.inf
        self.fall = 0.0  # what the passes have changed the objective by
        self.gathered: tuple[np.ndarray, Matrix] | None = None
        self.trials: list[dict[str, Any]] = []
        self.candidate: float | None = None
        self._check_curvature()

    def run(self) -> BoxQPResult:
        """Passes until no projected gradient exceeds the tolerance."""
        settings = self.settings
        next_trial = _FIRST_TRIAL if settings.omega == "auto" else settings.max_passes + 1
        exact = False
        while self.passes < settings.max_passes:
            length = max(_LEAST_TRIAL, self.passes // 4)
            room = settings.max_passes - self.passes >= _POWER_STEPS + 2 * length
            if self.passes >= next_trial and len(self.trials) < _MAX_TRIALS and room:
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
            objective=self._objective(),
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
        key = random_key(self.settings.seed, self.passes)
        out = np.array([0.0, -1.0, 0.0])
        self._visit(active, key, out)
        self.passes += 1
        self.fall += float(out[CHANGE])
        if out[UNBOUNDED] >= 0:
            self._unbounded(int(out[UNBOUNDED]))
        self._check_direction(self.alpha[active] - before[0], self.gradient[active] - before[1])
        violation = float(out[VIOLATION])
        if not np.isfinite(violation) or not np.isfinite(self.alpha[active]).all():
            raise UsageError(
                "the objective is unbounded below: Q is not positive definite where the box is open"
            )
        self.threshold = violation if self.settings.shrinking else np.inf
        return violation

    def _visit(self, active: np.ndarray, key: np.uint64, out: np.ndarray) -> None:
        """The pass itself: on the matrix, or on what was gathered of it."""
        box, whole = self.box, active.size == self.matrix.n
        steering = (self.threshold, self.omega, out)
        if not whole and self.gathered is None:
            found = self.matrix.gather(active)
            self.gathered = None if found is None else (active, found)
        if self.gathered is None:
            point = Point(box.lo, box.hi, self.alpha, self.gradient, self.active, *steering)
            self.matrix.visit(_shuffled(active, key), point)
            return
        variables, part = self.gathered
        arrays = [array[variables] for array in (box.lo, box.hi, self.alpha, self.gradient, self.active)]
        inside = np.flatnonzero(arrays[-1])
        part.visit(_shuffled(inside, key), Point._make([*arrays, *steering]))
        for array, values in zip((self.alpha, self.gradient, self.active), arrays[2:], strict=True):
            array[variables] = values
        if out[UNBOUNDED] >= 0:
            out[UNBOUNDED] = variables[int(out[UNBOUNDED])]

    def _restore(self) -> None:
        """All variables active again, with a gradient computed afresh."""
        self.gradient = self._fresh_gradient()
        self.active[:] = 1
        self.threshold, self.gathered = np.inf, None

    def _fresh_gradient(self) -> np.ndarray:
        with np.errstate(all="ignore"):  # the result tells
            gradient = self.matrix.product(self.alpha) + self.box.h
        if not np.isfinite(gradient).all():
            raise UsageError(
                f"Q: row {np.flatnonzero(~np.isfinite(gradient))[0]} has numbers that are not finite"
            )
        return gradient

    def _violation(self) -> float:
        """Largest projected gradient; the gradient has to be up to date."""
        gradient, alpha = self.gradient.copy(), self.alpha
        below, above = alpha <= self.box.lo, alpha >= self.box.hi
        gradient[below] = np.minimum(gradient[below], 0.0)
        gradient[above] = np.maximum(gradient[above], 0.0)
        concave = np.flatnonzero(self.matrix.diagonal < 0)
        gradient[concave] = self._jumps(concave)
        return float(np.abs(gradient).max(initial=0.0))

    def _jumps(self, concave: np.ndarray) -> np.ndarray:
        """For variables of negative curvature, how much lower a bound is per length of the way; see `boxqp_kernels`."""
        rates = np.zeros(concave.size)
        for bound in (self.box.lo, self.box.hi):
            way = bound[concave] - self.alpha[concave]
            rate = -np.sign(way) * (self.gradient[concave] + 0.5 * self.matrix.diagonal[concave] * way)
            rates = np.maximum(rates, rate)
        return rates

    def _objective(self) -> float:
        """``½ aᵀQa + h·a = ½ a·(g + h)``."""
        return 0.5 * float(self.alpha @ (self.gradient + self.box.h))

    # -- not convex, not bounded --------------------------------------------------------------------------------------

    def _check_curvature(self) -> None:
        """Look for proof on the diagonal that Q is indefinite: a negative entry, or a zero with others in its row."""
        diagonal = self.matrix.diagonal
        for i in np.flatnonzero(diagonal < 0)[:1]:
            self._indefinite(f"Q[{i}, {i}] = {diagonal[i]:g} is negative")
        zeros = np.flatnonzero(diagonal == 0)
        if zeros.size:
            # one product with random signs finds every row that is not zero, but for a coincidence
            signs = np.random.default_rng(self.settings.seed % 2**64).standard_normal(self.matrix.n)
            for i in zeros[self.matrix.product(signs)[zeros] != 0][:1]:
                self._indefinite(f"Q[{i}, {i}] = 0 while its row is not zero")

    def _check_direction(self, step: np.ndarray, change: np.ndarray) -> None:
        """A pass that goes along d sees ``dᵀQd`` for nothing: it is d times the change of the gradient."""
        if self.settings.indefinite != "error" or not step.size:
            return
        length = float(step @ step)
        largest = float(np.abs(self.matrix.diagonal).max(initial=0.0))
        moved = float(np.abs(step).max()) > 1e-6 * (1.0 + float(np.abs(self.alpha).max()))
        if moved and float(step @ change) < -1e-6 * largest * length:
            self._indefinite(f"dᵀQd = {float(step @ change):g} was met for the step d of a pass")

    def _indefinite(self, proof: str) -> None:
        if self.settings.indefinite == "error":
            raise UsageError(
                f"Q is not positive semidefinite: {proof}; indefinite='local' finds a point that no single variable improves"
            )

    def _unbounded(self, i: int) -> None:
        raise UsageError(
            f"the objective is unbounded below along variable {i}: Q[{i}, {i}] = {self.matrix.diagonal[i]:g} "
            f"with bounds {self.box.lo[i]:g} and {self.box.hi[i]:g}; give it finite bounds"
        )

    # -- omega --------------------------------------------------------------------------------------------------------

    def _try_omega(self, n_passes: int) -> None:
        """Passes with the present omega and another, from the same point; goes on from the lower objective."""
        begin, best = self.passes, self.omega
        other = self._next_candidate()
        if other is None:
            return
        start = self._frame()
        ends = []
        for omega in (best, other):
            self._load_frame(start)
            self.omega, first = omega, self.passes
            while self.passes < min(first + n_passes, self.settings.max_passes):
                if self._pass() <= self.settings.tol:
                    break
            ends.append((self.fall - start[-1], omega, self.passes - first, self._frame()))
        winner = 0 if ends[0][0] <= ends[1][0] else 1
        self.omega = ends[winner][1]
        self._load_frame(ends[winner][3])
        self.trial_passes += ends[1 - winner][2]
        self.trials.append({"pass": begin, "change": {end[1]: end[0] for end in ends}})

    def _frame(self) -> tuple[Any, ...]:
        """Copy all that a pass changes."""
        arrays = (self.alpha.copy(), self.gradient.copy(), self.active.copy())
        return (*arrays, self.threshold, self.gathered, self.fall)

    def _load_frame(self, frame: tuple[Any, ...]) -> None:
        self.alpha, self.gradient, self.active = (array.copy() for array in frame[:3])
        self.threshold, self.gathered, self.fall = frame[3:]

    def _next_candidate(self) -> float | None:
        """Young's omega, or one that is often good; then half-way on where it won, or half-way back where it did not."""
        if self.candidate is None:
            rho = self._jacobi_radius()
            self.candidate = young(rho) if rho < 1.0 else _DEFAULT_CANDIDATE
        elif self.omega == self.candidate:
            self.candidate = 0.5 * (self.candidate + 2.0)
        else:
            self.candidate = 0.5 * (self.candidate + self.omega)
        return self.candidate if abs(self.candidate - self.omega) > 0.05 else None

    def _jacobi_radius(self) -> float:
        """Spectral radius of ``I - D⁻¹Q`` by power iterations, each a product with Q."""
        diagonal = np.where(self.matrix.diagonal > 0, self.matrix.diagonal, 1.0)
        vector = np.random.default_rng(self.settings.seed % 2**64).standard_normal(self.matrix.n)
        radius = 0.0
        for _ in range(_POWER_STEPS):
            vector /= max(float(np.linalg.norm(vector)), 1e-300)
            vector = vector - self.matrix.product(vector) / diagonal
            radius = float(np.linalg.norm(vector))
        self.passes += _POWER_STEPS
        self.trial_passes += _POWER_STEPS
        return radius
