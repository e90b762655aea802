"""Protocol of solvers: state, visit of a window, end of a read.

A solver never loops over windows, prints, stops or saves: `training.loop.Loop` does. Its state is a set of named arrays,
complete after every window. A new solver is a kernel, a class that implements `Solver`, and rows of `loss_table.SOLVERS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from ..core.memory_budget import BLOCK_WEIGHTS
from ..core.parallel import Threads
from ..dataset.dataset import Dataset
from ..dataset.feature_order import SourceRows
from ..kernels.primitives import N_TOTALS, UNIT, Total
from ..stream.arenas import RowArena, Window
from ..stream.memory_plan import SolverMemory
from .problem import Problem

START, TRAIN, CERTIFY, DONE = range(4)
"""Phases of a lane in a read: summing ``w(alpha)`` of its initial alpha, training, certification at fixed w, done."""

Start = Literal["alpha", "alpha and w", "w", "w and scores"]
"""Content of a warm start: alpha, from which the first read computes w; alpha with its w(alpha); w alone; or w, and a read
at fixed w that computes the scores of rows."""


@dataclass
class State:
    """Complete state of a run, except for the rows' dual variables."""

    w: np.ndarray  # (n_features + 1, vectors) float64: weights; the last row is the bias's
    totals: np.ndarray  # (lanes, N_TOTALS) float64: sums of the unfinished read (see kernels.primitives)
    lanes: dict[str, np.ndarray] = field(default_factory=dict)  # (lanes,): phase, thresholds, sums, …
    rows: dict[str, np.ndarray] = field(default_factory=dict)  # kept per row by a solver over columns
    read: int = 0  # of the next window to visit
    window: int = 0
    matrices: dict[str, np.ndarray] = field(default_factory=dict)  # other arrays of a solver

    def phase(self, *phases: int) -> np.ndarray:
        """Return the lanes in one of these phases, int64."""
        return np.flatnonzero(np.isin(self.lanes["phase"], phases))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the complete state as named arrays."""
        arrays = {"w": self.w, "totals": self.totals, "position": np.array([self.read, self.window])}
        arrays |= {f"row_{name}": array for name, array in self.rows.items()}
        arrays |= {f"matrix_{name}": array for name, array in self.matrices.items()}
        return arrays | {f"lane_{name}": array for name, array in self.lanes.items()}

    def stored_arrays(self, rank: np.ndarray) -> dict[str, Any]:
        """Return `to_arrays` as a checkpoint needs them: those over features, which stand by `rank`, in the source's order.

        Before the first window they are without weights that are zeros.
        """
        arrays, begun = self.to_arrays(), bool(self.read or self.window)
        return {
            name: SourceRows(array, rank) if self._is_over_features(name, array) else array
            for name, array in arrays.items()
            if begun or not _is_of_weights(name) or array.any()
        }

    def load_arrays(self, arrays: dict[str, np.ndarray], rank: np.ndarray) -> None:
        """Load a state that `stored_arrays` returned; raises `KeyError` or `ValueError` where it is of another shape.

        Arrays of lanes, rows and matrices are kept, not copied, and those over features dropped one after another, once
        they are copied: there may not be memory for two of each.
        """
        own = self.to_arrays()
        if not arrays["position"].any():
            arrays |= {name: own[name] for name in own.keys() - arrays.keys() if _is_of_weights(name)}
        for name, array in own.items():
            if arrays[name].shape != array.shape:
                raise ValueError(f"{name} has shape {arrays[name].shape}")
        for name, array in own.items():
            if self._is_over_features(name, array):
                stored, rows = arrays.pop(name), SourceRows(array, rank)
                for block in rows.blocks():
                    rows[block] = stored[block]
            elif name.startswith("matrix_"):
                self.matrices[name.removeprefix("matrix_")] = arrays[name]
        self.totals[:] = arrays["totals"]
        self.read, self.window = (int(number) for number in arrays["position"])
        self.lanes = {name: arrays[f"lane_{name}"] for name in self.lanes}
        # also those that are kept while lanes are certified
        self.rows = {name.removeprefix("row_"): arrays[name] for name in arrays if name.startswith("row_")}

    def _is_over_features(self, name: str, array: np.ndarray) -> bool:
        return _is_of_weights(name) and array.shape == self.w.shape


def _is_of_weights(name: str) -> bool:
    return name == "w" or name.startswith("matrix_")


def new_totals(n_lanes: int) -> np.ndarray:
    """Return the sums over no rows."""
    totals = np.zeros((n_lanes, N_TOTALS))
    totals[:, Total.VIOLATION_MAX], totals[:, Total.VIOLATION_MIN] = -np.inf, np.inf
    return totals


def join_totals(totals: np.ndarray, part: np.ndarray) -> None:
    """Add the sums `part` over further rows to `totals`, in place."""
    largest = np.maximum(totals[:, Total.VIOLATION_MAX], part[:, Total.VIOLATION_MAX])
    smallest = np.minimum(totals[:, Total.VIOLATION_MIN], part[:, Total.VIOLATION_MIN])
    totals += part
    totals[:, Total.VIOLATION_MAX], totals[:, Total.VIOLATION_MIN] = largest, smallest


def new_lanes(n_lanes: int, phase: int) -> dict[str, np.ndarray]:
    """Return the per-lane arrays of every solver: phase, shrinking thresholds, sum of the dual's terms."""
    return {
        "phase": np.full(n_lanes, phase, dtype=np.int64),
        "high": np.full(n_lanes, np.inf),
        "low": np.full(n_lanes, -np.inf),
        "restore": np.zeros(n_lanes, dtype=bool),
        "dual_sum": np.zeros(n_lanes),
    }


class Estimates(NamedTuple):
    """Estimates of every lane after a pass, from the sums over the rows that it visited."""

    estimate: np.ndarray  # of the gap; with acceleration it includes ``distance``, at the end of the pass
    estimated_primal: np.ndarray
    seen_violation: np.ndarray  # LIBLINEAR's measure


class Solver(ABC):
    """A solver, as `training.loop.Loop` takes it; what it is stands in `loss_table.SOLVERS`."""

    problem: Problem  # lanes to solve
    memory: SolverMemory  # bytes that the solver takes
    layout: Any  # `memory_plan.Layout` of the data, with the sizes of the state per row
    warm_start: Start
    tol = 0.0  # the relative gap that is wanted; 0 where another rule stops the training
    threads = Threads()  # that share the work of a visit; results do not depend on their number

    @abstractmethod
    def new_state(self) -> State:
        """Return the state before the first read."""

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

    def add_at_zero(self, dataset: Dataset, window: Window, state: State) -> None:
        """Add the losses of a window's rows with all weights 0 to the totals of a run's first read, after their visit."""
        shift = dataset.centre.target if self.layout.centred and dataset.centre is not None else 0.0
        for kind, weight, target in self.constants(window) if window.read == 0 else ():
            for start in range(0, kind.size, BLOCK_WEIGHTS):
                rows = slice(start, start + BLOCK_WEIGHTS)
                some = kind[rows], np.ascontiguousarray(weight[rows]), target[rows] + shift
                state.totals[:, Total.AT_ZERO] += self.problem.losses_at_zero(*some)

    def constants(self, window: Window) -> Iterator[tuple[np.ndarray, ...]]:
        """Iterate over arguments of `Problem.losses_at_zero`, of rows that are each in one window of a read."""
        arena, n_folds = window.arena, self.problem.n_folds
        for _, start, stop in window.chunk_ranges():
            kind = arena.code[start:stop].astype(np.int64)
            if n_folds:
                kind = kind * n_folds + arena.fold[start:stop]
            yield kind, arena.weight[start:stop], arena.target[start:stop]

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


def relative_violation(
    problem: Problem, class_counts: np.ndarray | None, state: State, norm: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Compute ``‖∇f(w)‖ / ‖∇f(0)‖ · n / min(n₊, n₋)``, which LIBLINEAR's primal solvers compare with eps.

    `norm` are the lanes' ``‖∇f(w)‖``; `start` ``‖∇f(0)‖`` where the state does not have it yet.
    """
    kept, side = state.lanes["start_norm"], np.ones(problem.n_lanes)
    if not problem.has_targets:
        assert class_counts is not None
        plus, minus = (class_counts @ (sign * problem.sign > 0) for sign in (1, -1))
        side = np.maximum(np.minimum(plus, minus), 1) / np.maximum(plus + minus, 1)
    scale = np.where(np.isnan(kept), start, kept) * side
    return np.divide(norm, scale, out=np.zeros_like(norm), where=scale > 0)


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

_DEVIATIONS = 8.0
"""Standard deviations of a sum's rounding that are bounded: n roundings of size u, of either sign, make about √n u.

Source: Higham & Mary, SIAM J. Sci. Comput. 41 (2019)."""


def certificate(
    primal: np.ndarray,
    gap: np.ndarray,
    violation: np.ndarray,
    n_terms: float | np.ndarray,
    more: float | np.ndarray = 0.0,
) -> dict[str, np.ndarray]:
    """Return the certificate of every lane by `Solver.certificate`'s names; arrays are (lanes,) float64.

    `primal` and `gap` are as summed, of `n_terms` terms in the longest sum; `violation` is LIBLINEAR's. `more` bounds
    what the gap lacks where v is not the sum over these rows, but kept; see `error_terms`. The part ``rounding`` of the gap
    is ``n u (primal + gap)`` and `more`. The gap is at most the primal, as a = 0 is feasible with the value 0.
    """
    rounding = n_terms * UNIT * (primal + gap) + more
    gap = np.fmin(gap + rounding, primal)
    dual, rounding = primal - gap, np.fmin(rounding, gap)
    return {"primal": primal, "dual": dual, "gap": gap, "violation": violation, "rounding": rounding}


def error_terms(apart: np.ndarray, error: np.ndarray) -> Any:
    """Bound the bracket's change with L2 where v is wrong by at most `error`, and `apart` is ``‖w - v‖``."""
    return (apart + 0.5 * error) * error


def deviation(size: Any) -> Any:
    """Bound the rounding of a sum, `size` being the root of the sum of its partial sums' squares."""
    return _DEVIATIONS * UNIT * size


def violation(totals: np.ndarray) -> np.ndarray:
    """Return LIBLINEAR's measure per lane: the largest of M - m, |M| and |m|; 0 if no row was visited."""
    largest, smallest = totals[:, Total.VIOLATION_MAX], totals[:, Total.VIOLATION_MIN]
    seen = np.isfinite(largest) & np.isfinite(smallest)
    largest, smallest = np.where(seen, largest, 0.0), np.where(seen, smallest, 0.0)
    return np.maximum.reduce([largest - smallest, np.abs(largest), np.abs(smallest)])
