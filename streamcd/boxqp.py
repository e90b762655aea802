"""Quadratic programs over a box with an explicit matrix: coordinate descent and SOR.

``min ½ aᵀQa + h·a`` over ``lo <= a <= hi``. Q is symmetric, and positive semidefinite where the result is to be the
minimum. A pass visits the active variables in a random order; variables that a bound holds leave (shrinking), and at the
end all are checked against a gradient computed afresh.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from . import boxqp_kernels as kernels
from .boxqp_kernels import CHANGE, UNBOUNDED, VIOLATION
from .errors import UsageError
from .kernels import shuffle
from .memory import format_size, parse_size
from .relaxation import omega_number, young
from .stream import random_key

_PANEL_BYTES = 1 << 25  # of rows of a matrix on disk at a time
_SYMMETRY = 1e-6  # what Q[i, j] and Q[j, i] may differ by, relative to the largest of them
_CHECKED_ROWS = 64  # of a matrix on disk, whose symmetry is checked by samples
_FIRST_TRIAL, _LEAST_TRIAL = 5, 5  # passes before the first trial of an omega, and passes of a trial
_MAX_TRIALS = 5
_POWER_STEPS = 5
_DEFAULT_CANDIDATE = 1.5  # where Young's formula does not apply, as `relaxation.CANDIDATE`


@dataclass(frozen=True)
class BoxQPResult:
    """Where a box-constrained quadratic program ended.

    Attributes
    ----------
    alpha : ndarray of float64, shape (n,)
        Feasible.
    objective : float
        ``½ alphaᵀQ alpha + h·alpha``, from a gradient computed afresh.
    violation : float
        Largest projected gradient in absolute value, from that gradient; 0 at an exact optimum.
    passes : int
        Passes in all, those of trials and the products of power iterations too.
    converged : bool
        Whether ``violation <= tol``.
    omega : float
        The one used last.
    trial_passes : int
        Passes that ``omega="auto"`` spent beside its way to the result: those whose outcome was thrown away, and the power
        iterations of Young's formula.
    trials : tuple of dict
        Of each trial the pass it began at, and what each omega changed the objective by in as many passes from the same
        point: ``{"pass": 5, "change": {1.0: -3.1, 1.5: -3.2}}``.
    """

    alpha: np.ndarray
    objective: float
    violation: float
    passes: int
    converged: bool
    omega: float
    trial_passes: int = 0
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
    Q : ndarray, np.memmap or scipy sparse matrix, shape (n, n), or ndarray of shape (n (n + 1) / 2,)
        Symmetric. A memory-mapped matrix that does not fit in `memory` is streamed in panels of rows, one stream a pass,
        until the variables that are not held by a bound fit. One dimension: a packed triangle (see `packed`).
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
        variable can improve, which is not the minimum in general. A Q that gives no such proof is solved so unnoticed.
    packed : {"lower", "upper"}
        Order of a packed triangle: that of ``np.tril_indices(n)`` or of ``np.triu_indices(n)``.
    memory : int or str
        Bytes that a copy of Q or of panels of it may take.
    seed : int
        Of the order of visits.

    Returns
    -------
    BoxQPResult

    Raises
    ------
    UsageError
        Where shapes do not fit, ``lo > hi``, numbers are not finite, Q is not symmetric, the objective falls for ever, or
        (with ``indefinite="error"``) Q is seen not to be positive semidefinite.
    """
    settings = _Settings(
        omega if omega == "auto" else omega_number(omega), tol, max_passes, shrinking, indefinite, seed
    )
    h = np.array(h, dtype=np.float64).reshape(-1)
    matrix = _matrix(Q, h.size, packed, parse_size(memory))
    box = _Box(h, _bound("lo", lo, h.size), _bound("hi", hi, h.size))
    begin = np.zeros(h.size) if alpha is None else np.array(alpha, dtype=np.float64).reshape(-1)
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
        if not (np.isfinite(self.tol) and self.tol >= 0):
            raise UsageError(f"tol: expected a number >= 0, found {self.tol}")
        if self.max_passes < 1:
            raise UsageError(f"max_passes: expected at least 1, found {self.max_passes}")
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


def _bound(name: str, values: np.ndarray | float, n: int) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim and values.shape != (n,):
        raise UsageError(f"{name}: expected a number or {n} of them, found shape {values.shape}")
    return np.array(np.broadcast_to(values, (n,)))


class _Matrix(Protocol):
    """Q, however it is stored."""

    n: int
    diagonal: np.ndarray
    resident: bool

    def product(self, x: np.ndarray) -> np.ndarray:
        """``Qx``."""
        ...

    def visit(self, order: np.ndarray, columns: np.ndarray, state: tuple[Any, ...]) -> None:
        """Visit the variables of `order`, keeping the gradient at `columns` at least."""
        ...

    def arrange(self, active: np.ndarray, key: np.uint64) -> np.ndarray:
        """The active variables in a random order that suits the storage."""
        ...


def _matrix(Q: Any, n: int, packed: str, memory: int) -> _Matrix:
    if hasattr(Q, "tocsr"):
        return _Sparse(Q.tocsr(), n)
    dense = Q if isinstance(Q, np.ndarray) else np.asarray(Q)
    if dense.dtype not in (np.float32, np.float64):
        if dense.dtype.kind not in "iub":
            raise UsageError(f"Q: expected real numbers, found {dense.dtype}")
        dense = dense.astype(np.float64)
    if dense.ndim == 1:
        return _Packed(dense, n, packed, memory)
    if dense.shape != (n, n):
        raise UsageError(f"Q: expected shape ({n}, {n}) beside {n} entries of h, found {dense.shape}")
    if not dense.flags.c_contiguous and dense.flags.f_contiguous:
        dense = dense.T  # the same matrix
    if isinstance(Q, np.memmap) and 2 * dense.nbytes > memory:
        return _Mapped(dense, Q, memory)
    return _Dense(np.ascontiguousarray(dense))


def _check_symmetry(rows: np.ndarray, columns: np.ndarray) -> None:
    """Compare some rows of Q with the same columns."""
    largest = max(float(np.abs(rows).max(initial=0.0)), float(np.abs(columns).max(initial=0.0)))
    if float(np.abs(rows - columns.T).max(initial=0.0)) > _SYMMETRY * largest:
        raise UsageError("Q: expected a symmetric matrix; (Q + Qᵀ)/2 gives the same objective and is one")


def _shuffled(active: np.ndarray, key: np.uint64) -> np.ndarray:
    order = active.copy()
    shuffle(order, key)
    return order


class _Dense:
    resident = True

    def __init__(self, matrix: np.ndarray, *, checked: bool = False) -> None:
        self._matrix, self.n = matrix, matrix.shape[0]
        self.diagonal = matrix.diagonal().astype(np.float64)
        for start in range(0, 0 if checked else self.n, 512):
            _check_symmetry(matrix[start : start + 512], matrix[:, start : start + 512])

    def product(self, x: np.ndarray) -> np.ndarray:
        return (self._matrix @ x).astype(np.float64) if self._matrix.dtype == np.float64 else self._wide(x)

    def _wide(self, x: np.ndarray) -> np.ndarray:
        """In float64 also where Q is float32, without a copy of all of it."""
        pieces = [self._matrix[start : start + 512].astype(np.float64) @ x for start in range(0, self.n, 512)]
        return np.concatenate(pieces) if pieces else np.zeros(0)

    def visit(self, order: np.ndarray, columns: np.ndarray, state: tuple[Any, ...]) -> None:
        kernels.visit_dense(order, self._matrix, 0, columns, self.diagonal, *state)

    def arrange(self, active: np.ndarray, key: np.uint64) -> np.ndarray:
        return _shuffled(active, key)


class _Mapped:
    """A matrix on disk, read in panels of rows; what the map has faulted in is given back panel by panel."""

    resident = False

    def __init__(self, matrix: np.ndarray, mapped: np.memmap, memory: int) -> None:
        self._matrix, self.n = matrix, matrix.shape[0]
        # a private map ("c") would lose what was written to it
        self._map = getattr(mapped, "_mmap", None) if getattr(mapped, "mode", "c") != "c" else None
        row_bytes = self.n * matrix.itemsize
        if 2 * row_bytes > memory:
            raise UsageError(
                f"memory {format_size(memory)} is too small: two rows of Q take {format_size(2 * row_bytes)}"
            )
        self._rows = max(1, min(_PANEL_BYTES, memory // 4) // row_bytes)
        self._memory = memory
        self.diagonal = np.empty(self.n)
        sample = np.linspace(0, self.n - 1, min(_CHECKED_ROWS, self.n)).astype(np.int64)
        corner = np.empty((sample.size, sample.size), dtype=matrix.dtype)
        for place, row in enumerate(sample):
            corner[place] = matrix[row, sample]
            self._give_back()  # every entry faults in pages around it
        _check_symmetry(corner, corner)
        for start, panel in self._panels():
            self.diagonal[start : start + len(panel)] = panel[:, start:].diagonal()

    def _panels(self, wanted: np.ndarray | None = None) -> Iterator[tuple[int, np.ndarray]]:
        starts = np.arange(0, self.n, self._rows) if wanted is None else wanted * self._rows
        for start in starts.tolist():
            panel = np.array(self._matrix[start : start + self._rows])
            self._give_back()
            yield start, panel

    def _give_back(self) -> None:
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def product(self, x: np.ndarray) -> np.ndarray:
        out = np.empty(self.n)
        for start, panel in self._panels():
            out[start : start + len(panel)] = panel.astype(np.float64, copy=False) @ x
        return out

    def visit(self, order: np.ndarray, columns: np.ndarray, state: tuple[Any, ...]) -> None:
        place = order // self._rows
        starts = np.flatnonzero(np.diff(place, prepend=-1))
        pieces = np.split(order, starts[1:])
        for piece, (first, panel) in zip(pieces, self._panels(place[starts]), strict=True):
            kernels.visit_dense(piece, panel, first, columns, self.diagonal, *state)

    def arrange(self, active: np.ndarray, key: np.uint64) -> np.ndarray:
        """Panels in a random order, and the variables of each."""
        rank = np.arange(-(-self.n // self._rows))
        shuffle(rank, key)
        order = _shuffled(active, key)
        return order[np.argsort(rank[order // self._rows], kind="stable")]

    def gather(self, active: np.ndarray) -> _Dense | None:
        """The rows and columns of the active variables, where they fit in memory."""
        if 2 * active.size**2 * self._matrix.itemsize > self._memory:
            return None
        out = np.empty((active.size, active.size), dtype=self._matrix.dtype)
        for start, panel in self._panels():
            first, last = np.searchsorted(active, (start, start + len(panel)))
            out[first:last] = panel[np.ix_(active[first:last] - start, active)]
        return _Dense(out, checked=True)


class _Packed:
    resident = True

    def __init__(self, packed: np.ndarray, n: int, order: str, memory: int) -> None:
        if order not in ("lower", "upper"):
            raise UsageError(f"packed: expected lower or upper, found {order!r}")
        if packed.size != n * (n + 1) // 2:
            raise UsageError(
                f"Q: expected {n * (n + 1) // 2} entries of a packed triangle for {n} variables, found {packed.size}"
            )
        if isinstance(packed, np.memmap) and packed.nbytes > memory:
            raise UsageError(
                f"a packed Q of {format_size(packed.nbytes)} does not fit in {format_size(memory)}; "
                "a matrix stored whole can be streamed"
            )
        self.n = n
        self._packed = np.ascontiguousarray(packed) if order == "lower" else _transposed(packed, n)
        places = np.arange(n, dtype=np.int64)
        self.diagonal = self._packed[places * (places + 3) // 2].astype(np.float64)

    def product(self, x: np.ndarray) -> np.ndarray:
        out = np.empty(self.n)
        kernels.packed_product(self._packed, x, out)
        return out

    def visit(self, order: np.ndarray, columns: np.ndarray, state: tuple[Any, ...]) -> None:
        kernels.visit_packed(order, self._packed, self.diagonal, *state)

    def arrange(self, active: np.ndarray, key: np.uint64) -> np.ndarray:
        return _shuffled(active, key)


def _transposed(packed: np.ndarray, n: int) -> np.ndarray:
    """Rows of the upper triangle to rows of the lower one."""
    out = np.empty_like(packed)
    starts = np.arange(n, dtype=np.int64)
    starts = starts * n - starts * (starts - 1) // 2  # where row j of the upper triangle begins
    for i in range(n):
        first = i * (i + 1) // 2
        columns = np.arange(i + 1)
        out[first : first + i + 1] = packed[starts[: i + 1] + i - columns]
    return out


class _Sparse:
    resident = True

    def __init__(self, rows: Any, n: int) -> None:
        if rows.shape != (n, n):
            raise UsageError(f"Q: expected shape ({n}, {n}) beside {n} entries of h, found {rows.shape}")
        if rows.dtype not in (np.float32, np.float64):
            rows = rows.astype(np.float64)
        difference = abs(rows - rows.T)
        if difference.nnz and difference.max() > _SYMMETRY * abs(rows).max():
            raise UsageError("Q: expected a symmetric matrix; (Q + Qᵀ)/2 gives the same objective and is one")
        self._rows, self.n = rows, n
        self.diagonal = rows.diagonal().astype(np.float64)

    def product(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self._rows @ x, dtype=np.float64)

    def visit(self, order: np.ndarray, columns: np.ndarray, state: tuple[Any, ...]) -> None:
        rows = self._rows
        kernels.visit_sparse(order, rows.indptr, rows.indices, rows.data, self.diagonal, *state)

    def arrange(self, active: np.ndarray, key: np.uint64) -> np.ndarray:
        return _shuffled(active, key)


# ---------------------------------------------------------------------------------------------------------------------
# The solution


class _Solution:
    """The way from a first alpha to the last."""

    def __init__(self, matrix: _Matrix, box: _Box, alpha: np.ndarray, settings: _Settings) -> None:
        self.matrix, self.box, self.settings, self.alpha = matrix, box, settings, alpha
        self.gradient = self._fresh_gradient()
        self.active = np.ones(matrix.n, dtype=np.uint8)
        self.omega = 1.0 if settings.omega == "auto" else float(settings.omega)
        self.passes = self.trial_passes = 0
        self.threshold = np.inf
        self.fall = 0.0  # what the passes have changed the objective by
        self.gathered: tuple[np.ndarray, _Dense] | None = None
        self.trials: list[dict[str, Any]] = []
        self.candidate: float | None = None
        self._check_curvature()

    def run(self) -> BoxQPResult:
        """Passes until no projected gradient exceeds the tolerance."""
        settings = self.settings
        next_trial = _FIRST_TRIAL if settings.omega == "auto" else settings.max_passes + 1
        exact = False
        while self.passes < settings.max_passes:
            if self.passes >= next_trial and len(self.trials) < _MAX_TRIALS:
                self._try_omega(max(_LEAST_TRIAL, self.passes // 4))
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
            raise UsageError("the objective falls for ever: Q is not positive definite where the box is open")
        self.threshold = violation if self.settings.shrinking else np.inf
        return violation

    def _visit(self, active: np.ndarray, key: np.uint64, out: np.ndarray) -> None:
        """The pass itself: on the matrix, or on what was gathered of it."""
        box, whole = self.box, active.size == self.matrix.n
        steering = (self.threshold, self.omega, out)
        if not whole and isinstance(self.matrix, _Mapped) and self.gathered is None:
            found = self.matrix.gather(active)
            self.gathered = None if found is None else (active, found)
        if self.gathered is None:
            state = (box.lo, box.hi, self.alpha, self.gradient, self.active, *steering)
            self.matrix.visit(self.matrix.arrange(active, key), active, state)
            return
        places, part = self.gathered
        arrays = [array[places] for array in (box.lo, box.hi, self.alpha, self.gradient, self.active)]
        inside = np.flatnonzero(arrays[-1])
        part.visit(part.arrange(inside, key), inside, (*arrays, *steering))
        for array, values in zip((self.alpha, self.gradient, self.active), arrays[2:], strict=True):
            array[places] = values
        if out[UNBOUNDED] >= 0:
            out[UNBOUNDED] = places[int(out[UNBOUNDED])]

    def _restore(self) -> None:
        """All variables active again, with a gradient computed afresh."""
        self.gradient = self._fresh_gradient()
        self.active[:] = 1
        self.threshold, self.gathered = np.inf, None

    def _fresh_gradient(self) -> np.ndarray:
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
        return float(np.abs(gradient).max(initial=0.0))

    def _objective(self) -> float:
        """``½ aᵀQa + h·a = ½ a·(g + h)``."""
        return 0.5 * float(self.alpha @ (self.gradient + self.box.h))

    # -- not convex, not bounded --------------------------------------------------------------------------------------

    def _check_curvature(self) -> None:
        """What the diagonal says: a negative entry, or a zero with others in its row, and Q is indefinite."""
        diagonal = self.matrix.diagonal
        for i in np.flatnonzero(diagonal < 0)[:1]:
            self._indefinite(f"Q[{i}, {i}] = {diagonal[i]:g} is negative")
        zeros = np.flatnonzero(diagonal == 0)
        if (
            zeros.size
        ):  # one product with random signs finds every row that is not zero, but for a coincidence
            signs = np.random.default_rng(self.settings.seed).standard_normal(self.matrix.n)
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
            f"the objective falls for ever along variable {i}: Q[{i}, {i}] = {self.matrix.diagonal[i]:g} "
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
            self._take(start)
            self.omega, first = omega, self.passes
            while self.passes < min(first + n_passes, self.settings.max_passes):
                if self._pass() <= self.settings.tol:
                    break
            ends.append((self.fall - start[-1], omega, self.passes - first, self._frame()))
        winner = 0 if ends[0][0] <= ends[1][0] else 1
        self.omega = ends[winner][1]
        self._take(ends[winner][3])
        self.trial_passes += ends[1 - winner][2]
        self.trials.append({"pass": begin, "change": {end[1]: end[0] for end in ends}})

    def _frame(self) -> tuple[Any, ...]:
        """All that a pass changes."""
        arrays = (self.alpha.copy(), self.gradient.copy(), self.active.copy())
        return (*arrays, self.threshold, self.gathered, self.fall)

    def _take(self, frame: tuple[Any, ...]) -> None:
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
        vector = np.random.default_rng(self.settings.seed).standard_normal(self.matrix.n)
        radius = 0.0
        for _ in range(_POWER_STEPS):
            vector /= max(float(np.linalg.norm(vector)), 1e-300)
            vector = vector - self.matrix.product(vector) / diagonal
            radius = float(np.linalg.norm(vector))
        self.passes += _POWER_STEPS
        self.trial_passes += _POWER_STEPS
        return radius
