"""Warm start: the result of one run as the initial point of another on the same rows.

For the dual methods, alpha and w of new lanes are the same linear combination of old ones, so w stays exactly ``w(alpha)``,
without reading the data. From C to C' the factor is C'/C, which keeps all bounds; from k folds to all rows it is 1/(k - 1),
since each row was left out once. The first centre of an accelerated run is the old w, not scaled. The primal methods begin
with w alone, not scaled (the mean over folds), whatever method found it: scaled by C'/C it is worse than w = 0 (ijcnn1,
passes to 1e-3 from 0, from w and from scaled w: from C = 1 to 1.3, 45, 7, 48; to 3, 54, 19, 75; to 0.3, 38, 9, 43).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import CheckpointError, UsageError
from ..dataset.dataset import Dataset
from ..kernels.loss_table import CLASSES, INLIERS, gives_probabilities, is_logistic
from ..solvers.acceleration import weights_of_alpha
from ..solvers.problem import Lane, Problem, dual_terms, entropies
from ..solvers.protocol import State
from ..stream.arenas import class_codes
from ..stream.identity import Identity
from ..stream.slot_store import SlotStore, chunk_slots
from . import checkpoint


class Source(NamedTuple):
    """Group of lanes of the old run."""

    path: Path
    identity: Identity
    layout: Any  # `memory_plan.Layout`
    accelerated: bool  # by a proximal point
    l2: float  # of its penalty
    lanes: Sequence[int]


_BLOCK_ROWS = 1 << 14  # of w at a time


def combination(old: Problem, new: Problem, *, dual: bool = True) -> np.ndarray:
    """Return the matrix of the linear combinations, shape (old lanes, new lanes); without `dual`, for w alone.

    Raises `UsageError` if the problems differ in more than C and folds.
    """
    if new.form == INLIERS:
        raise UsageError("a warm start is from another C; one_class has none")
    same = {
        "loss": old.loss == new.loss,
        # the feature of a free bias may differ: it depends on C, the optimum does not depend on it
        "bias": old.bias == new.bias or (old.free_bias and new.free_bias),
        "code matrix": np.array_equal(old.code, new.code),
        "class weights": _same_factors(old, new),
        "ridge": old.ridge == new.ridge,
        "slack": old.slack == new.slack,
        "parameter of the loss": old.parameter == new.parameter,
    }
    different = [name for name, equal in same.items() if not equal]
    if different:
        raise UsageError(f"a warm start needs the same {', '.join(different)}; only C may differ")
    if new.n_folds:
        raise UsageError(
            "a warm start cannot begin the training of folds; start from another run, or from nothing"
        )
    matrix = np.zeros((old.n_lanes, new.n_lanes))
    for lane, target in enumerate(new.lanes):
        nearest = min(old.lanes, key=partial(_distance, target))
        column = lane % new.block_lanes
        for number, source in enumerate(old.lanes):
            same_strengths = (source.C, source.l1) == (nearest.C, nearest.l1)
            if same_strengths and number % old.block_lanes == column:
                ratio = target.C / source.C / max(old.n_folds - 1, 1)
                matrix[number, lane] = ratio if dual else 1.0 / max(old.n_folds, 1)
    return matrix


def nearest_lanes(problem: Problem, known: Sequence[int], wanted: Sequence[int]) -> np.ndarray:
    """Return which of the lanes `known` each of `wanted` starts from, shape (all lanes, wanted), for w alone.

    It is the one nearest in C and λ of the same class and fold; none, where there is none.
    """
    matrix = np.zeros((problem.n_lanes, len(wanted)))
    for column, lane in enumerate(wanted):
        target = problem.lanes[lane]
        same = [
            number
            for number in known
            if number % problem.block_lanes == lane % problem.block_lanes
            and problem.lanes[number].fold == target.fold
        ]
        if same:
            matrix[min(same, key=lambda number: _distance(target, problem.lanes[number])), column] = 1.0
    return matrix


def _distance(target: Lane, source: Lane) -> tuple[float, float]:
    """Return how far a lane is from another, by C first and then by λ."""
    of_l1 = abs(math.log(source.l1 / target.l1)) if source.l1 and target.l1 else float(source.l1 != target.l1)
    return abs(math.log(source.C / target.C)), of_l1


def _same_factors(old: Problem, new: Problem) -> bool:
    first, second = (problem.class_factors(range(problem.block_lanes)) for problem in (old, new))
    return np.allclose(first, second, rtol=1e-12)


class WarmStart:
    """Initial values of new lanes, from a finished run.

    `problem` has the new lanes, and `matrix` is their `combination`; `bias` is the old run's.
    """

    def __init__(
        self, dataset: Dataset, problem: Problem, matrix: np.ndarray, sources: Sequence[Source], bias: float
    ) -> None:
        self._dataset, self._problem = dataset, problem
        self._of_bias = (
            bias / problem.bias if problem.bias else 1.0
        )  # factor of its weight, not of sums of alpha
        mean = (matrix != 0) / np.maximum((matrix != 0).sum(axis=0), 1)
        self._sources = [_LaneSource(dataset, source, (matrix, mean), problem) for source in sources]

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
            source.add_weights(w, dual=dual)
        w[-1] *= 1.0 / self._of_bias if dual else self._of_bias

    def fill_from_alpha(self, state: State, *, accelerated: bool) -> None:
        """Write w(alpha) of the new lanes and, with acceleration, their first centre."""
        if not accelerated:
            self.fill_weights(state.w)
            return
        self.fill_weights(state.matrices["centre_or_w_alpha"])
        self._fill_centre(state)

    def _fill_centre(self, state: State) -> None:
        """Write the mean of the old lanes' w to `state.w`, as the first centre, and adopt their kappa and theta.

        From C = 1 to 10 a9a with squared hinge took 2 to 4 passes; from the centre w(alpha) 14 to 24, without warm start 12.
        """
        steering = np.zeros((2, self._problem.n_lanes))
        for source in self._sources:
            source.add_centre(state.w, steering)
        state.w[-1] *= self._of_bias
        if (steering > 0).all() and (state.lanes["theta"] > 0).all():  # neither kappa was fixed
            state.lanes["kappa"][:], state.lanes["theta"][:] = steering


class _LaneSource:
    """Source of new lanes: the lanes in one directory of the old run."""

    def __init__(
        self,
        dataset: Dataset,
        source: Source,
        matrices: tuple[np.ndarray, np.ndarray],  # of alpha, and of means
        problem: Problem,
    ) -> None:
        path, identity, self._layout, self._accelerated, self._l2, lanes = source
        self._path, self._identity, self._dataset = path, identity, dataset
        self._halves = 2 if is_logistic(problem.loss) else 1
        own = [matrix[list(lanes)] for matrix in matrices]
        self._matrix, self._mean = (np.kron(matrix, np.eye(problem.lane_vectors)) for matrix in own)
        self._lane_mean = own[1]
        arrays = checkpoint.read_arrays(path / "state.npz", ("slots", "position"), identity)
        if arrays is None or not arrays["position"].any():
            raise CheckpointError(f"{path}: no checkpoint to start from; 'streamcd resume' the run first")
        self._current = arrays["slots"]
        self._slots: SlotStore | None = None

    def chunk_alpha(self, chunk: int, n_rows: int) -> np.ndarray:
        """Return this source's part of the new lanes' dual variables of a chunk."""
        if self._slots is None:
            folder, row_bytes = self._path / "dual", self._layout.state_bytes
            self._slots = chunk_slots(folder, self._dataset, row_bytes, self._identity)
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

    def add_weights(self, w: np.ndarray, *, dual: bool) -> None:
        """Add this source's part of the new lanes' w, or with `dual` of their w(alpha)."""
        start = 0
        for rows in self._weights_of_alpha() if dual and self._accelerated else self._read_rows("w"):
            w[start : start + rows.shape[0]] += rows @ self._matrix
            start += rows.shape[0]

    def add_centre(self, w: np.ndarray, steering: np.ndarray) -> None:
        """Add this source's part of the first centre, and of kappa and theta to `steering` (2, lanes)."""
        start = 0
        for rows in self._read_rows("w"):
            w[start : start + rows.shape[0]] += rows @ self._mean
            start += rows.shape[0]
        if self._accelerated:
            arrays = checkpoint.read_arrays(self._path / "state.npz", ("lane_kappa", "lane_theta"))
            assert arrays is not None
            steering += np.stack([arrays["lane_kappa"], arrays["lane_theta"]]) @ self._lane_mean

    def _weights_of_alpha(self) -> Iterator[np.ndarray]:
        """Iterate over blocks of rows of w(alpha), which differs from w in an accelerated run."""
        arrays = checkpoint.read_arrays(self._path / "state.npz", ("lane_kappa", "lane_in_pass"))
        assert arrays is not None
        lanes = {name.removeprefix("lane_"): array for name, array in arrays.items()}
        for blocks in zip(self._read_rows("w"), self._read_rows("matrix_centre_or_w_alpha"), strict=True):
            yield weights_of_alpha(lanes, *blocks, self._l2)

    def _read_rows(self, name: str) -> Iterator[np.ndarray]:
        return checkpoint.read_array_rows(self._path / "state.npz", name, _BLOCK_ROWS)
