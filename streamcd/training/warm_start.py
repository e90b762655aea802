"""Warm start: the result of one run as the initial point of another.

On the same rows, for the dual methods, alpha and w of new lanes are the same linear combination of old ones, so w stays
exactly ``w(alpha)``, without reading the data. From C to C' the factor is C'/C, which keeps all bounds; from k folds to all
rows it is 1/(k - 1), since each row was left out once. The first centre of an accelerated run is the old w, not scaled. The
primal methods begin with w alone, not scaled (the mean over folds), whatever method found it: scaled by C'/C it is worse
than w = 0.

On other rows there is w alone. The primal methods begin with it; the dual methods with alpha = 0 and w as their first
centre, so that the first pass finds the alpha that belong to w. Both lose where w fits the new rows much worse than its own:
that is found on a sample, and lanes begin with nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import CheckpointError
from ..dataset.dataset import Dataset
from ..kernels.loss_table import CLASSES, gives_probabilities, is_logistic
from ..solvers.acceleration import weights_of_alpha
from ..solvers.problem import Problem, dual_terms, entropies
from ..solvers.protocol import CERTIFY, TRAIN, Solver, State
from ..stream.arenas import class_codes
from ..stream.identity import Identity
from ..stream.slot_store import SlotStore, chunk_slots
from . import checkpoint
from .correspondence import Features
from .sample_losses import mean_losses


class Source(NamedTuple):
    """Group of lanes of the old run."""

    path: Path
    identity: Identity
    layout: Any  # `memory_plan.Layout`; None where there are no dual variables
    accelerated: bool  # by a proximal point
    l2: float  # of its penalty
    lanes: range
    lane_vectors: int
    costs: np.ndarray  # (lanes,): C times the sum of the rows' weights; nan where that is not known


class OtherRows(NamedTuple):
    """What is known of an old run on other rows."""

    intercepts: np.ndarray  # (old vectors,)


_BLOCK_ROWS = 1 << 14  # of w at a time

_CENTRE_KAPPA = 4.0
"""Times the last kappa of a run on other rows, with which its w is the first centre. Geometric means of passes from nothing
over those from w, to 1e-3, on halves of four sets, C = 0.1 to 10: squared error 1.45 (once 1.27, eight times 1.47),
huber 1.3, quantile and epsilon insensitive 1.2, squared hinge and crammer_singer 1.1, multinomial, logistic, hinge 1.05."""

_WORSE = 1.1
"""Times the objective of the rows trained on, up to which weights are a start on others. Above, on two sets, primal took
1.3 times the passes from nothing, newton 1.2, dual 1.1; below, on three others, primal 0.04 to 0.95, newton 0.4 to 1.2."""


class WarmStart:
    """Initial values of new lanes, from a finished run.

    `problem` has the new lanes, and `matrix` is their `combination`; `bias` is the old run's. `features` are those of the
    old run, None where they are the same. With `other` the old run was of other rows.
    """

    def __init__(
        self,
        dataset: Dataset,
        problem: Problem,
        matrix: np.ndarray,
        sources: Sequence[Source],
        bias: float,
        *,
        features: Features | None = None,
        other: OtherRows | None = None,
    ) -> None:
        self._dataset, self._problem, self._other = dataset, problem, other
        self._features = features or Features(problem.n_features)
        self._of_bias = (
            bias / problem.bias if problem.bias else 1.0
        )  # factor of its weight, not of sums of alpha
        mean = np.sign(matrix) / np.maximum((matrix != 0).sum(axis=0), 1)
        self._mean = mean
        self._sources = [_LaneSource(dataset, source, (matrix, mean), problem) for source in sources]

    @property
    def has_alpha(self) -> bool:
        """Tell whether there are dual variables of the rows."""
        return self._other is None

    def begin(self, state: State, solver: Solver, slots: SlotStore) -> str:
        """Initialise a state as far as its solver can use it; returns what there is to tell, empty for nothing."""
        if self._other is not None:
            return self.begin_with_weights(state, solver)
        if solver.warm_start == "w":
            self.fill_weights(state.w, dual=False)
            _certify_first(state, solver)
            return ""
        self.begin_with_alpha(state, solver, slots, solver.layout.n_flags)
        return ""

    def begin_with_alpha(
        self, state: State, solver: Solver, slots: SlotStore, n_flags: int, *, copies: int = 1
    ) -> None:
        """Initialise a state and the rows' slots with dual variables; other parameters as of `write_alpha`."""
        dual_sum = self.write_alpha(slots, n_flags, copies=copies)
        if solver.warm_start == "alpha and w":
            self._fill_from_alpha(state, accelerated=solver.estimate == "proximal")
            state.lanes["dual_sum"] += dual_sum
            state.lanes["phase"][:] = TRAIN

    def begin_with_weights(self, state: State, solver: Solver) -> str:
        """Begin with the old weights, lane by lane where they fit these rows; a dual method by its first centre."""
        proximal = solver.estimate == "proximal"
        if solver.warm_start != "w" and not (
            proximal and all(source.accelerated for source in self._sources)
        ):
            which = "the method of that run" if proximal else "without acceleration this method"
            return f"begins with nothing: {which} has no centre for weights of other rows"
        self.fill_weights(state.w, dual=False)
        told = self._drop_unfit(state)
        if not proximal:
            _certify_first(state, solver)
            return told
        steering = np.zeros((2, self._problem.n_lanes))
        for source in self._sources:
            source.add_steering(steering)
        _steer(state, steering * np.array([[_CENTRE_KAPPA], [1.0]]))
        return told

    def _drop_unfit(self, state: State) -> str:
        """Set the weights of lanes to 0 that fit these rows much worse than the old ones; returns what there is to tell."""
        problem, fits = self._problem, np.zeros((2, self._problem.n_lanes))
        for source in self._sources:
            source.add_fits(fits)
        objective, cost = fits
        known = np.isfinite(fits).all(axis=0) & (fits > 0.0).all(axis=0)
        if not known.any():
            return ""
        of_cost = mean_losses(self._dataset, problem, state.w) / [lane.C for lane in problem.lanes]
        penalty = problem.penalty(state.w).reshape(problem.n_lanes, -1).sum(axis=1)
        ratio = np.divide(penalty + cost * of_cost, objective, out=np.zeros_like(cost), where=known)
        worse = ratio > _WORSE
        if not worse.any():
            return ""
        state.w[:, np.repeat(worse, problem.lane_vectors)] = 0.0
        which = f"{int(worse.sum())} of {worse.size} problems begin" if worse.size > 1 else "it begins"
        return (
            f"{which} with nothing: on these rows the objective is {ratio[worse].max():.3g} times that on the rows that the "
            f"weights are from, and beyond {_WORSE:g} times a start from them takes more passes than none"
        )

    def write_alpha(self, slots: SlotStore, n_flags: int, *, copies: int = 1) -> np.ndarray:
        """Write the dual variables of all rows, `copies` times side by side, with all rows active (`n_flags` flags each).

        Returns the sum of the dual's terms, shape (lanes,).
        """
        dual_sum = np.zeros(self._problem.n_lanes)
        for chunk, n_rows in enumerate(np.diff(self._dataset.row_start).tolist()):
            shares = [source.chunk_alpha(chunk, n_rows) for source in self._sources]
            alpha = np.ascontiguousarray(sum(shares[1:], start=shares[0]))
            slots.save(chunk, [np.hstack([alpha] * copies), np.ones((n_rows, n_flags), dtype=np.uint8)])
            dual_sum += self._dual_terms(chunk, alpha)
        return dual_sum

    def _dual_terms(self, chunk: int, alpha: np.ndarray) -> np.ndarray:
        """Sum the dual's terms over a chunk's rows, per lane; reads the labels, not the entries."""
        problem, dataset = self._problem, self._dataset
        label, weight = dataset.read_rows(chunk, ("label", "weight"))
        code = class_codes(dataset, chunk, label)
        if problem.form == CLASSES:
            # -Σ_{m ≠ y} alpha is the variable of the row's own class: the sum over all classes is 0
            per_lane = alpha.reshape(code.size, problem.n_lanes, problem.classes.size)
            if gives_probabilities(problem.loss):
                return entropies(per_lane, problem.cost[code] * weight[:, None]).sum(axis=0)
            return np.array(
                [per_lane[np.arange(code.size), lane, code].sum() for lane in range(problem.n_lanes)]
            )
        return dual_terms(
            problem.row_loss,
            problem.row_labels(code, label),
            alpha[:, : problem.n_lanes],
            problem.cost[code] * weight[:, None],
        ).sum(axis=0)

    def fill_weights(self, w: np.ndarray, *, dual: bool = True) -> None:
        """Write w of new lanes to `w`, shape (n_features + 1, vectors): w(alpha) if `dual`, else the certified one."""
        w[:] = 0.0
        for source in self._sources:
            source.add_weights(w, self._features, dual=dual)
        if self._other is not None:
            bias = self._problem.bias
            w[-1] = self._other.intercepts @ self._mean / bias if bias else 0.0
            return
        w[-1] *= 1.0 / self._of_bias if dual else self._of_bias

    def _fill_from_alpha(self, state: State, *, accelerated: bool) -> None:
        """Write w(alpha) of the new lanes and, with acceleration, their first centre."""
        if not accelerated:
            self.fill_weights(state.w)
            return
        self.fill_weights(state.matrices["centre_or_w_alpha"])
        self._fill_centre(state)

    def _fill_centre(self, state: State) -> None:
        """Write the mean of the old lanes' w to `state.w`, as the first centre, and adopt their kappa and theta.

        The centre w(alpha) in its place takes more passes than no warm start at all.
        """
        steering = np.zeros((2, self._problem.n_lanes))
        for source in self._sources:
            source.add_centre(state.w, self._features)
            source.add_steering(steering)
        state.w[-1] *= self._of_bias
        _steer(state, steering)


def _steer(state: State, steering: np.ndarray) -> None:
    """Adopt kappa and theta of old lanes, where neither kappa was fixed."""
    kept = state.lanes
    adopts = (steering > 0.0).all(axis=0) & (kept["theta"] > 0.0)
    kept["kappa"][adopts], kept["theta"][adopts] = steering[:, adopts]


def _certify_first(state: State, solver: Solver) -> None:
    """Have the first read compute the scores of rows at weights that are not 0, where the solver keeps scores."""
    if solver.estimate == "exact":
        return
    begun = state.w.any(axis=0).reshape(solver.problem.n_lanes, -1).any(axis=1)
    # caution 2, because the likely failure of this certificate must not delay the next one
    state.lanes["phase"][begun], state.lanes["caution"][begun] = CERTIFY, 2.0


class _LaneSource:
    """Source of new lanes: the lanes in one directory of the old run."""

    def __init__(
        self,
        dataset: Dataset,
        source: Source,
        matrices: tuple[np.ndarray, np.ndarray],  # of alpha, and of means
        problem: Problem,
    ) -> None:
        path, identity, self._layout, self.accelerated, self._l2, lanes, width, self._costs = source
        self._path, self._identity, self._dataset = path, identity, dataset
        self._halves = 2 if is_logistic(problem.loss) else 1
        own = slice(lanes.start * width, lanes.stop * width)
        self._matrix, self._mean = (matrix[own] for matrix in matrices)
        by_lane = np.abs(self._mean).reshape(len(lanes), width, problem.n_lanes, problem.lane_vectors)
        self._lane_mean = by_lane.max(axis=(1, 3), initial=0.0)
        names = ("position",) if self._layout is None else ("position", "slots")
        arrays = checkpoint.read_arrays(path / "state.npz", names, identity)
        if arrays is None or not arrays["position"].any():
            raise CheckpointError(f"{path}: no checkpoint to start from; 'streamcd resume' the run first")
        self._current = arrays.get("slots")
        self._slots: SlotStore | None = None

    def chunk_alpha(self, chunk: int, n_rows: int) -> np.ndarray:
        """Return this source's part of the new lanes' dual variables of a chunk."""
        if self._slots is None:
            folder, row_bytes = self._path / "dual", self._layout.state_bytes
            self._slots = chunk_slots(folder, self._dataset, row_bytes, self._identity)
            assert self._current is not None
            self._slots.restore(self._current)
        alpha = np.zeros((n_rows, self._layout.alpha_width))
        flags = np.empty((n_rows, self._layout.n_flags), dtype=np.uint8)
        if not self._slots.load(chunk, [alpha, flags]):
            raise CheckpointError(
                f"{self._path}: the run has not visited all rows; 'streamcd resume' it first"
            )
        width = alpha.shape[1] // self._halves
        return np.hstack(
            [alpha[:, half * width : (half + 1) * width] @ self._matrix for half in range(self._halves)]
        )

    def add_weights(self, w: np.ndarray, features: Features, *, dual: bool) -> None:
        """Add this source's part of the new lanes' w, or with `dual` of their w(alpha)."""
        start = 0
        for rows in self._weights_of_alpha() if dual and self.accelerated else self._read_rows("w"):
            features.add(rows @ self._matrix, start, w)
            start += rows.shape[0]

    def add_centre(self, w: np.ndarray, features: Features) -> None:
        """Add this source's part of the first centre."""
        start = 0
        for rows in self._read_rows("w"):
            features.add(rows @ self._mean, start, w)
            start += rows.shape[0]

    def add_steering(self, steering: np.ndarray) -> None:
        """Add this source's part of kappa and theta to `steering` (2, lanes)."""
        if self.accelerated:
            arrays = self._read("lane_kappa", "lane_theta")
            steering += np.stack([arrays["lane_kappa"], arrays["lane_theta"]]) @ self._lane_mean

    def add_fits(self, fits: np.ndarray) -> None:
        """Add this source's part of the objectives on the old rows and of their costs' sums to `fits` (2, lanes)."""
        used = (self._lane_mean > 0.0).any(axis=1)
        numbers = np.stack([self._read("lane_primal")["lane_primal"], self._costs])
        fits += numbers[:, used] @ self._lane_mean[used]

    def _weights_of_alpha(self) -> Iterator[np.ndarray]:
        """Iterate over blocks of rows of w(alpha), which differs from w in an accelerated run."""
        arrays = self._read("lane_kappa", "lane_in_pass")
        lanes = {name.removeprefix("lane_"): array for name, array in arrays.items()}
        for blocks in zip(self._read_rows("w"), self._read_rows("matrix_centre_or_w_alpha"), strict=True):
            yield weights_of_alpha(lanes, *blocks, self._l2)

    def _read(self, *names: str) -> dict[str, np.ndarray]:
        arrays = checkpoint.read_arrays(self._path / "state.npz", names)
        assert arrays is not None
        return arrays

    def _read_rows(self, name: str) -> Iterator[np.ndarray]:
        return checkpoint.read_array_rows(self._path / "state.npz", name, _BLOCK_ROWS)
