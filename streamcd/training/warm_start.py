"""Warm start: the result of one run as the initial point of another.

On the same rows, for the dual methods, alpha and w of new lanes are the same linear combination of old ones, so w stays
exactly ``w(alpha)``, without reading the data. From C to C' the factor is C'/C, which keeps all bounds; from k folds to all
rows it is 1/(k - 1), since each row was left out once. The first centre of an accelerated run is the old w, not scaled. The
primal methods begin with w alone, not scaled (the mean over folds), whatever method found it: scaled by C'/C it is worse
than w = 0.

Where the rows are others, chunks that the old run had as well bring their alpha; others have the alpha of a training from
nothing, for which ``w(alpha)`` is the same. Where the old run had chunks that are gone, the first read sums up w(alpha).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import CheckpointError
from ..dataset.centring import Centre, move_sums
from ..dataset.dataset import Dataset
from ..kernels.loss_table import CLASSES, LOG_LOSS, LOSSES
from ..solvers.acceleration import weights_of_alpha
from ..solvers.problem import Problem, dual_terms, entropies
from ..solvers.protocol import CERTIFY, START, TRAIN, Solver, State
from ..stream.arenas import class_codes
from ..stream.slot_store import SlotStore
from . import checkpoint


class Source(NamedTuple):
    """Group of lanes of the old run."""

    state: checkpoint.StoredState
    layout: Any  # `memory_plan.Layout`; None where there are no dual variables
    accelerated: bool  # by a proximal point
    lanes: range
    lane_vectors: int


_BLOCK_ROWS = 1 << 14  # of w at a time

_CENTRE_KAPPA = 4.0
"""Times the last kappa of a run, for its w as the first centre where there are rows whose alpha are yet to be found.

With 1 % more rows, of two sets and nine losses, a gap of 1e-3 takes 2 to 12 passes (2 to 13 with once, 2 to 18 with 16 times
kappa)."""

_SETTLED_MOVES = 13
"""Passes that a lane of a loss with kinks counts as done where it adopts kappa for more rows: it changes slowly from then on
(`_SETTLED_PASSES`).

With 1 % more rows of real sets, such losses take 2 to 7 passes to 1e-3, where kappa that changed by up to 8 times in the
first passes took 4 to 19. Smooth losses gain a pass as often as they lose one."""


class WarmStart:
    """Initial values of new lanes, from a finished run.

    `problem` has the new lanes, and `matrix` is their `combination`; `bias` is the old run's, and `old` its dataset. Of each
    chunk, `chunk_of` is the one of these that it is, -1 for none. Their alpha are multiplied by `ratios`, by class. Weights
    of both runs are for rows less their `centres`.
    """

    def __init__(
        self,
        dataset: Dataset,
        problem: Problem,
        matrix: np.ndarray,
        sources: Sequence[Source],
        bias: float,
        *,
        old: Dataset,
        chunk_of: np.ndarray,
        ratios: np.ndarray | None = None,
        centres: tuple[Centre | None, Centre | None] = (None, None),
    ) -> None:
        self._dataset, self._problem = dataset, problem
        self._old_centre, self._centre = centres
        self._ratios = ratios
        self._of_bias = (
            bias / problem.bias if problem.bias else 1.0
        )  # factor of its weight, not of sums of alpha
        self._mean = np.sign(matrix) / np.maximum((matrix != 0).sum(axis=0), 1)
        self._chunk_of = chunk_of
        # w(alpha) is the old run's unless alpha of its rows are gone, or scaled
        self._sums_anew = ratios is not None or old.n_chunks > np.count_nonzero(chunk_of >= 0)
        self._sources = [
            _LaneSource(old, source, (matrix, self._mean), problem, (centres[0], bias)) for source in sources
        ]

    @property
    def new_chunks(self) -> np.ndarray:
        """List the chunks of rows that the old run did not have; with those first, the others answer to them in one pass."""
        return np.flatnonzero(self._chunk_of < 0)

    def begin(self, state: State, solver: Solver, slots: SlotStore | None = None) -> None:
        """Initialise a state as far as its solver can use it; one that begins with w alone needs no slots."""
        if solver.warm_start in ("w", "w and scores"):
            self.fill_weights(state.w, dual=False)
            self._centre_weights(state.w)
            if solver.warm_start == "w and scores":
                _certify_first(state)
            return
        assert slots is not None
        dual_sum = self._write_alpha(solver, slots)
        if solver.warm_start == "alpha and w":
            self._fill_from_alpha(state, accelerated="kappa" in state.lanes)
            state.lanes["dual_sum"] += dual_sum
            state.lanes["phase"][:] = START if self._sums_anew else TRAIN

    def _write_alpha(self, solver: Solver, slots: SlotStore) -> np.ndarray:
        """Write the dual variables of the old run's rows, all active; returns the sum of the dual's terms, shape (lanes,).

        Other rows are left to the solver.
        """
        dual_sum = np.zeros(self._problem.n_lanes)
        for chunk in np.flatnonzero(self._chunk_of >= 0).tolist():
            label, weight = self._dataset.read_rows(chunk, ("label", "weight"))
            code = class_codes(self._dataset, chunk, label)
            shares = [source.alpha(int(self._chunk_of[chunk]), label.size) for source in self._sources]
            alpha = np.ascontiguousarray(sum(shares[1:], start=shares[0]))
            if self._ratios is not None:
                alpha *= self._ratios[code, None]
            slots.save(chunk, [alpha, np.ones((label.size, solver.layout.n_flags), dtype=np.uint8)])
            if solver.warm_start == "alpha and w":
                dual_sum += self._dual_terms(alpha, code, label, weight)
        return dual_sum

    def _dual_terms(
        self, alpha: np.ndarray, code: np.ndarray, label: np.ndarray, weight: np.ndarray
    ) -> np.ndarray:
        """Sum the dual's terms over rows, per lane."""
        problem = self._problem
        if problem.form == CLASSES:
            # -Σ_{m ≠ y} alpha is the variable of the row's own class: the sum over all classes is 0
            per_lane = alpha.reshape(code.size, problem.n_lanes, problem.classes.size)
            if LOSSES[problem.loss].probabilities:
                return entropies(per_lane, problem.cost[code] * weight[:, None]).sum(axis=0)
            return np.array(
                [per_lane[np.arange(code.size), lane, code].sum() for lane in range(problem.n_lanes)]
            )
        if problem.has_targets and self._centre is not None:
            label = label - self._centre.target
        return dual_terms(
            problem.row_loss,
            problem.row_labels(code, label),
            alpha[:, : problem.n_lanes],
            problem.cost[code] * weight[:, None],
        ).sum(axis=0)

    def fill_weights(self, w: np.ndarray, *, dual: bool = True) -> None:
        """Write w of new lanes to `w`, shape (n_features + 1, vectors): w(alpha) if `dual`, else the certified one.

        The latter is for values as they are stored.
        """
        w[:] = 0.0
        for source in self._sources:
            source.add_weights(w, dual=dual)
        w[-1] *= 1.0 / self._of_bias if dual else self._of_bias
        if dual and self._problem.bias:
            move_sums(w, self._old_centre, self._centre, self._problem.bias)

    def _centre_weights(self, w: np.ndarray) -> None:
        """Turn weights for values as they are stored into those for centred ones, in place."""
        if self._centre is not None:
            self._centre.enter(w, self._problem.bias)

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
            source.add_centre(state.w)
            source.add_steering(steering)
        state.w[-1] *= self._of_bias
        self._centre_weights(state.w)
        if (self._chunk_of < 0).any():
            _steer(state, steering, _CENTRE_KAPPA, 0 if LOSSES[self._problem.loss].smooth else _SETTLED_MOVES)
        else:
            _steer(state, steering, 1.0)


def _steer(state: State, steering: np.ndarray, factor: float, moves: int = 0) -> None:
    """Adopt `factor` times kappa, and theta, of old lanes, where neither kappa was fixed, as after so many passes."""
    kept = state.lanes
    adopts = (steering > 0.0).all(axis=0) & (kept["theta"] > 0.0)
    kept["kappa"][adopts], kept["theta"][adopts] = factor * steering[0, adopts], steering[1, adopts]
    kept["earlier_moves"][adopts] = moves


def _certify_first(state: State) -> None:
    """Have the first read compute the scores of rows, where weights are not 0."""
    begun = state.w.any(axis=0)
    # caution 2, because the likely failure of this certificate must not delay the next one
    state.lanes["phase"][begun], state.lanes["caution"][begun] = CERTIFY, 2.0


class _LaneSource:
    """Source of new lanes: a group of lanes of the old run."""

    def __init__(
        self,
        old: Dataset,
        source: Source,
        matrices: tuple[np.ndarray, np.ndarray],  # of alpha and w(alpha), and of means
        problem: Problem,
        centred: tuple[Centre | None, float],  # and the value of its bias's feature
    ) -> None:
        self._centre, self._bias = centred
        self._state, self._layout, self.accelerated, lanes, width = source
        self._old = old
        self._halves = 2 if problem.row_loss.kind == LOG_LOSS else 1
        own = slice(lanes.start * width, lanes.stop * width)
        self._matrix, self._mean = (matrix[own] for matrix in matrices)
        by_lane = np.abs(self._mean).reshape(len(lanes), width, problem.n_lanes, problem.lane_vectors)
        self._lane_mean = by_lane.max(axis=(1, 3), initial=0.0)
        arrays = self._state.saved(("position",))
        if arrays is None or not arrays["position"].any():
            raise CheckpointError(
                f"{self._state.path}: no checkpoint to start from; 'streamcd resume' the run first"
            )
        self._slots: SlotStore | None = None

    def alpha(self, chunk: int, n_rows: int) -> np.ndarray:
        """Return this source's part of the new lanes' dual variables of a chunk of the old run."""
        if self._slots is None:
            self._slots = self._state.saved_slots(self._old, self._layout.state_bytes)
        alpha = np.zeros((n_rows, self._layout.alpha_width))
        flags = np.empty((n_rows, self._layout.n_flags), dtype=np.uint8)
        if not self._slots.load(chunk, [alpha, flags]):
            raise CheckpointError(
                f"{self._state.path}: the run has not visited all rows; 'streamcd resume' it first"
            )
        width, matrix = alpha.shape[1] // self._halves, np.abs(self._matrix)
        return np.hstack(
            [alpha[:, half * width : (half + 1) * width] @ matrix for half in range(self._halves)]
        )

    def add_weights(self, w: np.ndarray, *, dual: bool) -> None:
        """Add this source's part of the new lanes' w, or with `dual` of their w(alpha)."""
        self._add(self._sums_of_alpha() if dual else self._weights(), self._matrix, w)

    def add_centre(self, w: np.ndarray) -> None:
        """Add this source's part of the first centre."""
        self._add(self._weights(), self._mean, w)

    def _add(self, blocks: Iterator[np.ndarray], matrix: np.ndarray, w: np.ndarray) -> None:
        """Add rows of an old w, in blocks, to those of the same features in `w`, whose last row is the bias's as well."""
        start = 0
        for rows in blocks:
            n_rows = min(rows.shape[0], self._old.n_features - start)
            w[start : start + n_rows] += rows[:n_rows] @ matrix
            if n_rows < rows.shape[0]:
                w[-1] += rows[-1] @ matrix
            start += rows.shape[0]

    def add_steering(self, steering: np.ndarray) -> None:
        """Add this source's part of kappa and theta to `steering` (2, lanes)."""
        if self.accelerated:
            arrays = self._read("lane_kappa", "lane_theta")
            steering += np.stack([arrays["lane_kappa"], arrays["lane_theta"]]) @ self._lane_mean

    def _weights(self) -> Iterator[np.ndarray]:
        """Iterate over blocks of rows of w, for values as they are stored."""
        rows = self._read_rows("w")
        return rows if self._centre is None else self._centre.leave(rows, self._bias)

    def _sums_of_alpha(self) -> Iterator[np.ndarray]:
        """Iterate over blocks of rows of w(alpha), which differs from w in an accelerated run."""
        if not self.accelerated:
            yield from self._read_rows("w")
            return
        arrays = self._read("lane_kappa", "lane_in_pass")
        lanes = {name.removeprefix("lane_"): array for name, array in arrays.items()}
        for blocks in zip(self._read_rows("w"), self._read_rows("matrix_centre_or_w_alpha"), strict=True):
            yield weights_of_alpha(lanes, *blocks)

    def _read(self, *names: str) -> dict[str, np.ndarray]:
        arrays = self._state.saved(names)
        assert arrays is not None
        return arrays

    def _read_rows(self, name: str) -> Iterator[np.ndarray]:
        return self._state.saved_rows(name, _BLOCK_ROWS)
