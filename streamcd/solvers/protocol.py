"""Protocol of solvers: state, visit of a window, end of a read.

A solver never loops over windows, prints, stops or saves: `training.loop.Loop` does. Its state is a set of declared arrays,
complete after every window. A new solver is a kernel, a class that implements `Solver`, and rows of `loss_table.SOLVERS`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..core.parallel import Threads
from ..dataset.dataset import Dataset
from ..dataset.feature_order import SourceRows
from ..kernels.loss_table import SOLVERS
from ..kernels.primitives import N_TOTALS, UNIT, Total
from ..stream.arenas import RowArena, Window, aligned_zeros
from ..stream.memory_plan import Plan, SolverMemory
from .problem import Problem

LANES_TOGETHER = 4
"""Largest number of lanes worked on at a time that have an order of the window's rows, or matrices, of their own. It does
not depend on the number of threads, and so neither do the windows."""

START, TRAIN, CERTIFY, DONE = range(4)
"""Phases of a lane in a read: summing ``w(alpha)`` of its initial alpha, training, certification at fixed w, done."""

Start = Literal["alpha", "alpha and w", "w", "w and scores"]
"""Content of a warm start: alpha, from which the first read computes w; alpha with its w(alpha); w alone; or w, and a read
at fixed w that computes the scores of rows."""


class Array(NamedTuple):
    """Declaration of an array of the state: an attribute of `State`, and an array of a checkpoint, of this name."""

    name: str
    meaning: str
    dtype: type = float
    initial: Any = 0  # a number, or those along the last axis; `Solver.initial` has those that options decide
    axes: tuple[str | int, ...] = ("lanes",)  # sizes: names of `State.sizes`, or numbers
    temporary: bool = False  # made in a read (`State.make`) and dropped at its end


class State:
    """Complete state of a run, except for the rows' dual variables: the arrays that were declared, by their names.

    They are changed in place.
    """

    declared: dict[str, Array]
    sizes: dict[str, int]  # of axes: lanes, vectors, features (with the bias, the last), rows
    shapes: dict[str, tuple[int, ...]]  # of all declared arrays
    most_bytes: int  # of all of them
    lanes: dict[str, np.ndarray]  # arrays of the shape (lanes,) by name, for what takes them by name

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> np.ndarray: ...

    def __init__(self, declared: Iterable[Array], sizes: Mapping[str, int]) -> None:
        fields = self.__dict__
        fields["sizes"] = dict(sizes)
        fields["declared"] = {array.name: array for array in declared}
        fields["shapes"] = {
            array.name: tuple(axis if isinstance(axis, int) else sizes[axis] for axis in array.axes)
            for array in self.declared.values()
        }
        fields["most_bytes"] = sum(
            math.prod(shape) * np.dtype(self.declared[name].dtype).itemsize
            for name, shape in self.shapes.items()
        )
        for array in self.declared.values():
            if not array.temporary:
                self.make(array.name)
        fields["lanes"] = {
            name: fields[name] for name, array in self.declared.items() if array.axes == ("lanes",)
        }

    def __setattr__(self, name: str, value: object) -> None:
        if value is not self.__dict__.get(name):  # as it is after `state.name += …`
            raise AttributeError(f"{name}: a state has declared arrays alone, which are changed in place")

    def make(self, name: str) -> None:
        """Make an array, with its initial values; zeros take no memory until they are written to."""
        declared = self.declared[name]
        shape = self.shapes[name]
        if declared.axes[:1] == ("features",):
            array = aligned_zeros(math.prod(shape), np.dtype(declared.dtype)).reshape(shape)
        else:
            array = np.zeros(shape, declared.dtype)
        if np.any(declared.initial):
            array[:] = declared.initial
        self.__dict__[name] = array

    def drop(self, name: str) -> None:
        """Drop a temporary array, if it is there."""
        self.__dict__.pop(name, None)

    @property
    def read(self) -> int:
        """Number of the next window's read."""
        return int(self.position[0])

    @property
    def window(self) -> int:
        """Number of the next window in its read."""
        return int(self.position[1])

    def set_lanes(self, lanes: Mapping[str, np.ndarray]) -> None:
        """Copy the arrays of the shape (lanes,) from another state's."""
        for name, array in self.lanes.items():
            array[:] = lanes[name]

    def lanes_in(self, *phases: int) -> np.ndarray:
        """Return the lanes in one of these phases, int64."""
        return np.flatnonzero(np.isin(self.phase, phases))

    # -- checkpoints

    def stored_arrays(self, rank: np.ndarray) -> dict[str, Any]:
        """Return the arrays for a checkpoint: those over features, which stand by `rank`, in the source's order.

        Before the first window it has no tables of zeros.
        """
        arrays = {name: self.__dict__[name] for name in self.declared if name in self.__dict__}
        return {
            name: SourceRows(array, rank) if self.declared[name].axes[:1] == ("features",) else array
            for name, array in arrays.items()
            if self.position.any() or array.ndim < 2 or array.any()
        }

    def load_arrays(
        self, arrays: Mapping[str, np.ndarray], rank: np.ndarray, beside: Iterable[str] = ()
    ) -> None:
        """Load what `stored_arrays` returned, array by array: there may not be memory for two of each.

        Raises `ValueError` where one is missing, neither declared nor one of those `beside`, or has another shape or type.
        """
        if undeclared := set(arrays).difference(self.declared, beside):
            raise ValueError(f"{min(undeclared)} is not of this training")
        begun = bool(arrays["position"].any())
        for name, expected in self.declared.items():
            if name not in arrays:
                if not expected.temporary and (begun or len(expected.axes) < 2):
                    raise ValueError(f"{name} is missing")
                continue
            array = arrays[name]
            if array.shape != self.shapes[name] or array.dtype != expected.dtype:
                raise ValueError(f"{name} has shape {array.shape} and type {array.dtype}")
            if expected.axes[:1] == ("features",):
                rows = SourceRows(self.__dict__[name], rank)
                for block in rows.blocks():
                    rows[block] = array[block]
            elif name in self.lanes:
                self.lanes[name][:] = array
            else:
                self.__dict__[name] = array


NO_ROWS = np.zeros(N_TOTALS)  # the sums over no rows
NO_ROWS[Total.VIOLATION_MAX] = -np.inf
NO_ROWS[Total.VIOLATION_MIN] = np.inf

ARRAYS = (
    Array("position", "read and window that are visited next", int, axes=(2,)),
    Array("w", "weights; the last row is the bias's", axes=("features", "vectors")),
    Array(
        "totals",
        "sums of the unfinished read (`kernels.primitives.Total`)",
        initial=NO_ROWS,
        axes=("lanes", N_TOTALS),
    ),
    Array("phase", "`protocol.START` and others", int, TRAIN),
    Array("high", "projected gradient above which a row at a bound is left out", initial=np.inf),
    Array("low", "projected gradient below which a row at the other bound is", initial=-np.inf),
    Array("restore", "rows left out return in this read", bool),
    Array("dual_sum", "the rows' terms of the dual objective"),
)
"""State of every solver."""

START_NORM = Array("start_norm", "‖∇f(0)‖, which the first read sums up; nan before", initial=np.nan)
"""State of solvers that report `Solver.relative_violation`."""


def join_totals(totals: np.ndarray, part: np.ndarray) -> None:
    """Add the sums `part` over further rows to `totals`, in place."""
    largest = np.maximum(totals[:, Total.VIOLATION_MAX], part[:, Total.VIOLATION_MAX])
    smallest = np.minimum(totals[:, Total.VIOLATION_MIN], part[:, Total.VIOLATION_MIN])
    totals += part
    totals[:, Total.VIOLATION_MAX] = largest
    totals[:, Total.VIOLATION_MIN] = smallest


class Estimates(NamedTuple):
    """Estimates of every lane after a pass, from the sums over the rows that it visited."""

    gap: np.ndarray  # including `at_end`
    primal: np.ndarray
    violation: np.ndarray  # LIBLINEAR's measure
    at_end: np.ndarray  # the part of the gap that is measured at the end of the pass


class SolverOptions(NamedTuple):
    """Options of a solver, beside problem and data; each takes those that its method has."""

    method: str
    seed: int = 0
    omega: float | str = 1.0  # over-relaxation, or "auto"
    acceleration: float | str = "none"  # kappa, "auto" or "none"
    plan: Plan | None = None


class Solver(ABC):
    """A solver, as `training.loop.Loop` takes it; what it is stands in `loss_table.SOLVERS`."""

    warm_start: Start
    arrays: tuple[Array, ...] = ()  # of its state, beside `ARRAYS`
    initial: Mapping[str, Any] = {}  # of arrays of the state, by name, where options say so
    tol = 0.0  # the relative gap that is wanted; 0 where another rule stops the training
    threads = Threads()  # that share the work of a visit; results do not depend on their number

    def __init__(self, problem: Problem, dataset: Dataset, options: SolverOptions) -> None:
        self.problem = problem
        self.dataset = dataset
        self.options = options
        self.memory = self.memory_of(problem, dataset, options)
        centre = dataset.centre if problem.free_bias else None
        self.shift = 0.0 if centre is None else centre.target  # of targets, as they are read
        self.layout: Any = self.memory.layout  # of the data, with the sizes of the state per row

    @staticmethod
    @abstractmethod
    def memory_of(problem: Problem, dataset: Dataset, options: SolverOptions) -> SolverMemory:
        """Compute the bytes that the solver takes, and the layout, without making it."""

    def new_state(self, loop: tuple[Array, ...] = ()) -> State:
        """Return the state before the first read, with the arrays of a training loop."""
        problem = self.problem
        sizes = {"lanes": problem.n_lanes, "vectors": problem.n_vectors}
        sizes |= {"features": problem.n_features + 1, "rows": self.dataset.n_rows}
        state = State((*ARRAYS, *self.arrays, *loop), sizes)
        for name, values in self.initial.items():
            getattr(state, name)[:] = values
        return state

    def new_rows(self, arena: RowArena, start: int, stop: int) -> None:  # noqa: B027
        """Set the dual variables of rows that were never visited, if there are any."""

    def restore_rows(self, state: State, arena: RowArena, start: int, stop: int) -> None:  # noqa: B027
        """Reactivate shrunk rows in lanes whose `restore` flag is set for this read."""

    @abstractmethod
    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Call all kernels over nothing, before windows are allocated; see `compile.load_together`."""

    @abstractmethod
    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Visit the items of a window once, in a random order that is a function of `key`."""

    def add_at_zero(self, window: Window, state: State) -> None:
        """Add the losses of a window's rows with all weights 0 to the totals of a run's first read, after their visit."""
        if window.read > 0:
            return
        arena = window.arena
        n_folds = self.problem.n_folds
        total = state.totals[:, Total.AT_ZERO]
        for _, start, stop in window.chunk_ranges():
            kind = arena.code[start:stop].astype(np.int64)
            if n_folds:
                kind = kind * n_folds + arena.fold[start:stop]
            rows = kind, arena.weight[start:stop], arena.target[start:stop]
            self.problem.add_losses_at_zero(total, *rows, self.shift)

    @abstractmethod
    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Set thresholds and inner tolerances of the lanes that trained, from `state.totals`."""

    @abstractmethod
    def certificate(self, state: State) -> dict[str, np.ndarray]:
        """Compute the certificate of every lane after a read at fixed w (phase `CERTIFY`), and adopt what it has summed.

        Arrays by name, of `certificate`. Quantities that drift while lanes train are replaced, in phase `START`
        too.
        """

    def estimate(self, state: State, trained: np.ndarray) -> Estimates | None:
        """Estimate the gaps after a pass of the lanes `trained`; None where every pass is a read at fixed w itself."""
        return None

    def relative_violation(self, state: State, norm: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Compute ``‖∇f(w)‖ / ‖∇f(0)‖ · n / min(n₊, n₋)``, which LIBLINEAR's primal solvers compare with eps.

        `norm` are the lanes' ``‖∇f(w)‖``; `start` ``‖∇f(0)‖`` where the state does not have it yet.
        """
        side = np.ones(self.problem.n_lanes)
        counts = self.dataset.class_counts
        if not self.problem.has_targets:
            assert counts is not None
            plus, minus = (counts @ (sign * self.problem.sign > 0) for sign in (1, -1))
            side = np.maximum(np.minimum(plus, minus), 1) / np.maximum(plus + minus, 1)
        scale = np.where(np.isnan(state.start_norm), start, state.start_norm) * side
        return np.divide(norm, scale, out=np.zeros_like(norm), where=scale > 0)


def solver_class(problem: Problem, method: str) -> type[Solver]:
    """Return the class of a problem's solver; options have refused what the method does not train."""
    entry = SOLVERS[problem.loss, method]
    module, _, name = (entry.free_bias_solver if problem.free_bias else entry.solver).partition(".")
    chosen: type[Solver] = getattr(import_module(f".{module}", __package__), name)
    return chosen


def all_rows(window: Window, order: np.ndarray) -> np.ndarray:
    """Write the offsets of all items of a window, in stored order, to the front of `order`; returns that part."""
    n = 0
    for _, start, stop in window.chunk_ranges():
        order[n : n + stop - start] = np.arange(start, stop)
        n += stop - start
    return order[:n]


# ---------------------------------------------------------------------------------------------------------------------
# The certificate of every method: primal objective and duality gap from a read at fixed weights.
#
# With ``v = Σ s_i a_i x_i`` of feasible dual variables a, the penalty g and the rows' terms phi_i of the gap,
#
#     P(w) - D(a) = Σ phi_i + [g(w) + g*(v) - w·v],
#
# where every phi_i and the bracket are sums of terms that are not negative: no digits cancel, and the dual objective is
# ``primal - gap``.

ROUNDING = 8.0 * UNIT
"""Bound on the rounding of a sum, over the root of the sum of its partial sums' squares: n roundings of size u, of either
sign, make about √n u, and this is 8 standard deviations. Source: Higham & Mary, SIAM J. Sci. Comput. 41 (2019)."""


def certificate(
    primal: np.ndarray,
    gap: np.ndarray,
    violation: np.ndarray,
    n_terms: float | np.ndarray,
    more: float | np.ndarray = 0.0,
) -> dict[str, np.ndarray]:
    """Return the certificate of every lane by `Solver.certificate`'s names; arrays are (lanes,) float64.

    `primal` and `gap` are as summed, of `n_terms` terms in the longest sum; `violation` is LIBLINEAR's. `more` bounds
    what the gap lacks by rounding of v: with L2 the bracket changes by ``(‖w - v‖ + ½ error) error`` at most. The part
    ``rounding`` of the gap is ``n u (primal + gap)`` and `more`. The gap is at most the primal: a = 0 is feasible, with the
    value 0.
    """
    rounding = n_terms * UNIT * (primal + gap) + more
    gap = np.fmin(gap + rounding, primal)
    dual = primal - gap
    rounding = np.fmin(rounding, gap)
    return {"primal": primal, "dual": dual, "gap": gap, "violation": violation, "rounding": rounding}


def violation(totals: np.ndarray) -> np.ndarray:
    """Return LIBLINEAR's measure per lane: the largest of M - m, |M| and |m|; 0 if no row was visited."""
    largest = totals[:, Total.VIOLATION_MAX]
    smallest = totals[:, Total.VIOLATION_MIN]
    seen = np.isfinite(largest) & np.isfinite(smallest)
    largest = np.where(seen, largest, 0.0)
    smallest = np.where(seen, smallest, 0.0)
    return np.maximum.reduce([largest - smallest, np.abs(largest), np.abs(smallest)])
