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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from .checkpoint import StoredState

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


class Source(NamedTuple):
    """Group of lanes of the old run."""

    state: StoredState
    layout: Any  # `memory_plan.Layout`
    vectors: slice  # among those of all lanes


@dataclass(frozen=True)
class OldRun:
    """An earlier run, of which each chunk of a new run's dataset is a chunk, or none (-1)."""

    dataset: Dataset
    problem: Problem
    centre: Centre | None  # weights are for rows less their centre
    accelerated: bool  # by a proximal point
    sources: list[Source]
    chunk_of: np.ndarray  # of every new chunk


class WarmStart:
    """Initial values of new lanes, those of `problem`, from an old run.

    `matrix` (old vectors, new ones) is their `combination`. Dual variables are multiplied by `ratios`, by class.
    """

    def __init__(
        self,
        old: OldRun,
        dataset: Dataset,
        problem: Problem,
        centre: Centre | None,
        matrix: np.ndarray,
        ratios: np.ndarray | None,
    ) -> None:
        self._old, self._dataset, self._problem, self._centre = old, dataset, problem, centre
        self._matrix, self._ratios = matrix, ratios
        self._mean = np.sign(matrix) / np.maximum((matrix != 0).sum(axis=0), 1)
        # of the bias's weight, not of sums of alpha
        self._bias_factor = old.problem.bias / problem.bias if problem.bias else 1.0
        for source in old.sources:
            arrays = source.state.saved(("position",))
            if arrays is None or not arrays["position"].any():
                raise CheckpointError(
                    f"{source.state.path}: no checkpoint to start from; 'streamcd resume' the run first"
                )

    @property
    def new_chunks(self) -> np.ndarray:
        """List the chunks of rows that the old run did not have; with those first, the others answer to them in one pass."""
        return np.flatnonzero(self._old.chunk_of < 0)

    def begin(self, state: State, solver: Solver, slots: SlotStore) -> None:
        """Initialise a state and the rows' slots, as far as the solver can use it."""
        if solver.warm_start in ("w", "w and scores"):
            self._fill_weights(state.w)
            if solver.warm_start == "w and scores":
                _certify_first(state)
            return
        dual_sum = self._write_alpha(solver, slots)
        if solver.warm_start == "alpha":
            return
        if "kappa" in state.lanes:
            self._fill_sums(state.matrices["centre_or_w_alpha"])
            self._fill_weights(state.w)  # with w(alpha) as the centre it takes more passes than from nothing
            self._steer(state.lanes)
        else:
            self._fill_sums(state.w)
        state.lanes["dual_sum"] += dual_sum
        width = self._problem.lane_vectors
        for source in self._old.sources:
            arrays = source.state.saved(("lane_v_error",)) or {}
            factors = np.abs(self._matrix[source.vectors][::width, ::width])
            state.lanes["v_error"] += arrays["lane_v_error"] @ factors
        # w(alpha) is the old run's unless alpha of its rows are gone, or scaled
        whole = (
            self._ratios is None and np.count_nonzero(self._old.chunk_of >= 0) == self._old.dataset.n_chunks
        )
        state.lanes["phase"][:] = TRAIN if whole else START

    # -- dual variables -----------------------------------------------------------------------------------------------

    def _write_alpha(self, solver: Solver, slots: SlotStore) -> np.ndarray:
        """Write the dual variables of the old run's rows, all active; returns the sum of the dual's terms, (lanes,).

        Other rows are left to the solver.
        """
        dual_sum, old = np.zeros(self._problem.n_lanes), self._old
        stores = [source.state.saved_slots(old.dataset, source.layout.state_bytes) for source in old.sources]
        for chunk in np.flatnonzero(old.chunk_of >= 0).tolist():
            label, weight = self._dataset.read_rows(chunk, ("label", "weight"))
            code = class_codes(self._dataset, chunk, label)
            alpha = np.zeros((code.size, solver.layout.alpha_width))
            for source, store in zip(old.sources, stores, strict=True):
                alpha += self._alpha_of(source, store, int(old.chunk_of[chunk]), code.size)
            if self._ratios is not None:
                alpha *= self._ratios[code, None]
            slots.save(chunk, [alpha, np.ones((code.size, solver.layout.n_flags), dtype=np.uint8)])
            if solver.warm_start == "alpha and w":
                dual_sum += self._dual_terms(alpha, code, label, weight)
        return dual_sum

    def _alpha_of(self, source: Source, store: SlotStore, chunk: int, n_rows: int) -> np.ndarray:
        """Return a source's part of the new lanes' dual variables of a chunk of the old run."""
        alpha = np.zeros((n_rows, source.layout.alpha_width))
        if not store.load(chunk, [alpha, np.empty((n_rows, source.layout.n_flags), dtype=np.uint8)]):
            raise CheckpointError(
                f"{source.state.path}: the run has not visited all rows; 'streamcd resume' it first"
            )
        matrix = np.abs(self._matrix[source.vectors])
        halves = np.hsplit(alpha, 2) if self._problem.row_loss.kind == LOG_LOSS else [alpha]
        return np.hstack([half @ matrix for half in halves])

    def _dual_terms(
        self, alpha: np.ndarray, code: np.ndarray, label: np.ndarray, weight: np.ndarray
    ) -> np.ndarray:
        """Sum the dual's terms over rows, per lane."""
        problem, cost = self._problem, self._problem.cost[code] * weight[:, None]
        if problem.form == CLASSES:
            per_lane = alpha.reshape(code.size, problem.n_lanes, problem.classes.size)
            if LOSSES[problem.loss].probabilities:
                return entropies(per_lane, cost).sum(axis=0)
            # -Σ_{m ≠ y} alpha is the variable of the row's own class: the sum over all classes is 0
            return per_lane[np.arange(code.size), :, code].sum(axis=0)
        if problem.has_targets and self._centre is not None:
            label = label - self._centre.target
        labels = problem.row_labels(code, label)
        return dual_terms(problem.row_loss, labels, alpha[:, : problem.n_lanes], cost).sum(axis=0)

    # -- weights ------------------------------------------------------------------------------------------------------

    def _fill_weights(self, w: np.ndarray) -> None:
        """Write the mean of the old lanes' w to `w`."""
        centre, bias = self._old.centre, self._old.problem.bias

        def stored(source: Source) -> Iterator[np.ndarray]:
            rows = source.state.saved_rows("w", _BLOCK_ROWS)
            return rows if centre is None else centre.leave(rows, bias)

        self._add_rows(w, stored, self._mean)
        w[-1] *= self._bias_factor
        if self._centre is not None:
            self._centre.enter(w, self._problem.bias)

    def _fill_sums(self, v: np.ndarray) -> None:
        """Write w(alpha) of the new lanes to `v`."""
        self._add_rows(v, self._sums_of, self._matrix)
        v[-1] /= self._bias_factor
        if self._problem.bias:
            move_sums(v, self._old.centre, self._centre, self._problem.bias)

    def _sums_of(self, source: Source) -> Iterator[np.ndarray]:
        """Iterate over blocks of rows of w(alpha), which differs from w in an accelerated run."""
        names, state = ("w", "matrix_centre_or_w_alpha")[: 1 + self._old.accelerated], source.state
        rows = [state.saved_rows(name, _BLOCK_ROWS) for name in names]
        if not self._old.accelerated:
            return rows[0]
        arrays = state.saved(("lane_kappa", "lane_in_pass")) or {}
        lanes = {name.removeprefix("lane_"): array for name, array in arrays.items()}
        return (weights_of_alpha(lanes, *blocks) for blocks in zip(*rows, strict=True))

    def _add_rows(
        self, w: np.ndarray, rows_of: Callable[[Source], Iterator[np.ndarray]], matrix: np.ndarray
    ) -> None:
        """Write combinations of old rows, in blocks, to those of the same features in `w`, whose last row is the bias's."""
        w[:] = 0.0
        n_features = self._old.dataset.n_features
        for source in self._old.sources:
            start, own = 0, matrix[source.vectors]
            for rows in rows_of(source):
                n_rows = min(rows.shape[0], n_features - start)
                w[start : start + n_rows] += rows[:n_rows] @ own
                if n_rows < rows.shape[0]:
                    w[-1] += rows[-1] @ own
                start += rows.shape[0]

    def _steer(self, lanes: dict[str, np.ndarray]) -> None:
        """Adopt kappa and theta of the old lanes, where neither kappa was fixed."""
        if not self._old.accelerated:
            return
        steering, width = np.zeros((2, self._problem.n_lanes)), self._problem.lane_vectors
        for source in self._old.sources:
            arrays = source.state.saved(("lane_kappa", "lane_theta")) or {}
            steering += np.stack([*arrays.values()]) @ self._mean[source.vectors][::width, ::width]
        adopts = (steering > 0.0).all(axis=0) & (lanes["theta"] > 0.0)
        lanes["theta"][adopts] = steering[1, adopts]
        grown = bool(self.new_chunks.size)
        lanes["kappa"][adopts] = (_CENTRE_KAPPA if grown else 1.0) * steering[0, adopts]
        if grown and not LOSSES[self._problem.loss].smooth:
            lanes["earlier_moves"][adopts] = _SETTLED_MOVES


def _certify_first(state: State) -> None:
    """Have the first read compute the scores of rows at weights that are not 0."""
    lanes = state.lanes
    begun = state.w.any(axis=0)
    # caution 2, because the likely failure of this certificate must not delay the next one
    lanes["phase"][begun], lanes["caution"][begun] = CERTIFY, 2.0
