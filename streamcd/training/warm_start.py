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

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import CheckpointError, UsageError
from ..core.memory_budget import BLOCK_WEIGHTS
from ..dataset.centring import Centre, move_sums
from ..dataset.dataset import Dataset
from ..dataset.feature_order import SourceRows
from ..kernels.loss_table import LOG_LOSS, LOSSES, PLANES
from ..solvers.acceleration import weights_of_alpha
from ..solvers.problem import Lane, Problem
from ..solvers.protocol import CERTIFY, START, TRAIN, Solver, State
from ..stream.arenas import class_codes
from ..stream.slot_store import Identity, SlotStore, chunk_slots
from .checkpoint import read_array_rows, read_arrays

_CENTRE_KAPPA = 4.0
"""Times the last kappa of a run, for its w as the first centre where there are rows whose alpha are yet to be found.

With 1 % more rows, of two sets and nine losses, a gap of 1e-3 takes 2 to 12 passes (2 to 13 with once, 2 to 18 with 16 times
kappa)."""

_SETTLED_MOVES = 13
"""Passes that a lane of a loss with kinks counts as made where it adopts kappa for more rows: then it changes slowly.

With 1 % more rows of real sets, such losses take 2 to 7 passes to 1e-3, where kappa that changed by up to 8 times in the
first passes took 4 to 19. Smooth losses gain a pass as often as they lose one."""


class Source(NamedTuple):
    """Group of lanes of the old run."""

    path: Path  # of the run, or of its part
    identity: Identity
    layout: Any  # `memory_plan.Layout`
    vectors: slice  # among those of all lanes

    def saved(self, *names: str) -> list[np.ndarray]:
        """Read arrays of the last checkpoint by name."""
        arrays = read_arrays(self.path / "state.npz", names, self.identity)
        if arrays is None or not (names != ("position",) or arrays["position"].any()):
            raise CheckpointError(
                f"{self.path}: no checkpoint to start from; 'streamcd resume {self.path}' first"
            )
        return [arrays[name] for name in names]

    def saved_rows(self, name: str) -> Iterator[np.ndarray]:
        """Iterate over blocks of rows of an array of the last checkpoint."""
        block_rows = max(BLOCK_WEIGHTS // (self.vectors.stop - self.vectors.start), 1)
        return read_array_rows(self.path / "state.npz", name, block_rows)


@dataclass(frozen=True)
class OldRun:
    """An earlier run, of which each chunk of a new run's dataset is a chunk, or none (-1)."""

    dataset: Dataset
    problem: Problem
    centre: Centre | None  # weights are for rows less their centre
    accelerated: bool  # by a proximal point
    sources: list[Source]
    chunk_of: np.ndarray  # of every new chunk


@dataclass(frozen=True)
class WarmStart:
    """Initial values of new lanes, those of `problem`, from an old run."""

    old: OldRun
    dataset: Dataset
    problem: Problem
    centre: Centre | None
    matrix: np.ndarray  # (old vectors, new ones): their `combination`
    ratios: np.ndarray | None  # of dual variables, by class

    def subset(self, lanes: Problem, numbers: range) -> WarmStart:
        """Return the start of some of the lanes, whose indices among all are `numbers`."""
        width = lanes.lane_vectors
        return replace(
            self, problem=lanes, matrix=self.matrix[:, numbers.start * width : numbers.stop * width]
        )

    @property
    def new_chunks(self) -> np.ndarray:
        """List the chunks of rows that the old run did not have; with those first, the others answer to them in one pass."""
        return np.flatnonzero(self.old.chunk_of < 0)

    @cached_property
    def _mean(self) -> np.ndarray:
        return np.sign(self.matrix) / np.maximum((self.matrix != 0).sum(axis=0), 1)

    @property
    def _bias_factor(self) -> float:
        """Factor of the bias's weight; its inverse is that of sums of alpha."""
        return self.old.problem.bias / self.problem.bias if self.problem.bias else 1.0

    def begin(self, state: State, solver: Any, slots: SlotStore, rank: np.ndarray) -> None:
        """Initialise a state, over features by their `rank`, and the rows' slots, as far as the solver can use it."""
        lanes, old, w = state.lanes, self.old, SourceRows(state.w, rank)
        between_reads = True
        for source in old.sources:
            (position,) = source.saved("position")
            between_reads &= not position[1]
        if solver.warm_start in ("w", "w and scores"):
            self._fill_weights(w)
            if solver.warm_start == "w and scores":
                # the first read computes the scores of rows at weights that are not 0; caution 2, because the likely failure
                # of this certificate must not delay the next one
                begun = state.w.any(axis=0)
                lanes["phase"][begun], lanes["caution"][begun] = CERTIFY, 2.0
            return
        self._write_alpha(solver, slots)
        if solver.warm_start == "alpha":
            return
        self._fill_sums(SourceRows(solver.v(state), rank))
        if "kappa" in lanes:
            self._fill_weights(w)  # with w(alpha) as the centre it takes more passes than from nothing
            self._steer(lanes)
        factors = np.abs(self.matrix)
        for source in old.sources:
            # of several folds the terms of the dual are a little larger: the estimates do without what they lack
            for name, array in zip(
                ("v_error", "dual_sum"), source.saved("lane_v_error", "lane_dual_sum"), strict=True
            ):
                lanes[name] += array @ self._of_lanes(factors, source)
        # these and w(alpha) are the old run's unless alpha of its rows are gone, scaled by class, or in the midst of a read;
        # C scales the costs of all rows but those that a plane is fitted to
        whole = self.ratios is None and np.count_nonzero(old.chunk_of >= 0) == old.dataset.n_chunks
        whole &= self.problem.form != PLANES or set(np.unique(factors)) <= {0.0, 1.0}
        lanes["phase"][:] = TRAIN if whole and between_reads else START

    def _of_lanes(self, matrix: np.ndarray, source: Source) -> np.ndarray:
        width = self.problem.lane_vectors
        return matrix[source.vectors][::width, ::width]

    # -- dual variables -----------------------------------------------------------------------------------------------

    def _write_alpha(self, solver: Solver, slots: SlotStore) -> None:
        """Write the dual variables of the old run's rows, all active; other rows are left to the solver."""
        old, stores = self.old, []
        for source in old.sources:
            store = chunk_slots(source.path / "dual", old.dataset, source.layout.state_bytes, source.identity)
            store.restore(*source.saved("slots"))
            stores.append(store)
        n_rows = np.diff(self.dataset.row_start)
        for chunk in np.flatnonzero(old.chunk_of >= 0).tolist():
            alpha = np.zeros((n_rows[chunk], solver.layout.alpha_width))
            for source, store in zip(old.sources, stores, strict=True):
                alpha += self._alpha_of(source, store, int(old.chunk_of[chunk]), n_rows[chunk])
            if self.ratios is not None:
                (label,) = self.dataset.read_rows(chunk, ("label",))
                alpha *= self.ratios[class_codes(self.dataset, chunk, label), None]
            slots.save(chunk, [alpha, np.ones((n_rows[chunk], solver.layout.n_flags), dtype=np.uint8)])

    def _alpha_of(self, source: Source, store: SlotStore, chunk: int, n_rows: int) -> np.ndarray:
        """Return a source's part of the new lanes' dual variables of a chunk of the old run."""
        alpha = np.zeros((n_rows, source.layout.alpha_width))
        if not store.load(chunk, [alpha, np.empty((n_rows, source.layout.n_flags), dtype=np.uint8)]):
            raise CheckpointError(
                f"{source.path}: the run has not visited all rows; 'streamcd resume {source.path}' first"
            )
        matrix = np.abs(self.matrix[source.vectors])
        halves = np.hsplit(alpha, 2) if self.problem.row_loss.kind == LOG_LOSS else [alpha]
        return np.hstack([half @ matrix for half in halves])

    # -- weights ------------------------------------------------------------------------------------------------------

    def _fill_weights(self, w: SourceRows) -> None:
        """Write the mean of the old lanes' w to `w`."""
        centre, bias = self.old.centre, self.old.problem.bias
        stored = [source.saved_rows("w") for source in self.old.sources]
        self._add_rows(
            w, stored if centre is None else [centre.leave(rows, bias) for rows in stored], self._mean
        )
        w[-1] *= self._bias_factor
        if self.centre is not None:
            self.centre.enter(w, self.problem.bias)

    def _fill_sums(self, v: SourceRows) -> None:
        """Write w(alpha) of the new lanes to `v`; it differs from w in an accelerated run."""
        blocks = []
        for source in self.old.sources:
            rows = source.saved_rows("w")
            if self.old.accelerated:
                kappa, in_pass = source.saved("lane_kappa", "lane_in_pass")
                pairs = zip(rows, source.saved_rows("matrix_centre_or_w_alpha"), strict=True)
                lanes = {"kappa": kappa, "in_pass": in_pass}
                rows = (weights_of_alpha(lanes, *pair) for pair in pairs)
            blocks.append(rows)
        self._add_rows(v, blocks, self.matrix)
        v[-1] /= self._bias_factor
        if self.problem.bias:
            move_sums(v, self.old.centre, self.centre, self.problem.bias)

    def _add_rows(self, w: SourceRows, blocks: Sequence[Iterable[np.ndarray]], matrix: np.ndarray) -> None:
        """Write combinations of old rows, in blocks, to those of the same features in `w`, whose last row is the bias's."""
        w.array[:] = 0.0
        n_features = self.old.dataset.n_features
        for source, rows_of in zip(self.old.sources, blocks, strict=True):
            start, own = 0, matrix[source.vectors]
            for rows in rows_of:
                n_rows = min(rows.shape[0], n_features - start)
                w[start : start + n_rows] += rows[:n_rows] @ own
                if n_rows < rows.shape[0]:
                    w[-1] += rows[-1] @ own
                start += rows.shape[0]

    def _steer(self, lanes: dict[str, np.ndarray]) -> None:
        """Adopt kappa and theta of the old lanes, where neither kappa was fixed."""
        if not self.old.accelerated:
            return
        steering = np.zeros((2, self.problem.n_lanes))
        for source in self.old.sources:
            steering += np.stack(source.saved("lane_kappa", "lane_theta")) @ self._of_lanes(
                self._mean, source
            )
        adopts = (steering > 0.0).all(axis=0) & (lanes["theta"] > 0.0)
        lanes["theta"][adopts] = steering[1, adopts]
        grown = bool(self.new_chunks.size)
        lanes["kappa"][adopts] = (_CENTRE_KAPPA if grown else 1.0) * steering[0, adopts]
        if grown and not LOSSES[self.problem.loss].smooth:
            lanes["earlier_moves"][adopts] = _SETTLED_MOVES


# ---------------------------------------------------------------------------------------------------------------------
# The lanes of the old run from which those of the new one start


def combination(old: Problem, new: Problem, *, dual: bool) -> np.ndarray:
    """Return the matrix of the linear combinations of dual variables, shape (old vectors, new vectors).

    Raises `UsageError` if the problems differ in more than C, weights of classes and folds. `dual` variables fit the same
    bias alone, and weights of classes change some lanes of planes alone.
    """
    told: dict[str, tuple[object, object]] = {  # of the old problem and the new one
        "loss": (old.loss, new.loss),
        "ridge" if new.loss == "twin" else "l2": (old.scale, new.scale),
        "slack": (old.slack, new.slack),
        "parameter of the loss": (old.parameter, new.parameter),
    }
    # the feature of a free bias may differ: it depends on C, the optimum does not depend on it
    if dual and not (old.free_bias and new.free_bias):
        told["bias"] = old.bias or "none", new.bias or "none"
    different = [f"{name} {was}, found {now}" for name, (was, now) in told.items() if was != now]
    different += ["code matrix"] * (not np.array_equal(old.code, new.code))
    different += ["class weights"] * (
        dual and old.form == new.form == PLANES and class_ratios(old, new) is not None
    )
    if different:
        raise UsageError(f"a warm start needs the run's {', '.join(different)}")
    if new.n_folds:
        raise UsageError("a warm start cannot begin the training of folds")
    n_trained = old.n_folds - 1  # folds that a row is not in
    width = old.block_lanes
    blocks = np.zeros((old.n_lanes // width, new.n_lanes // width))
    for number, target in enumerate(new.lanes[::width]):
        nearest = min(old.lanes, key=lambda lane, target=target: _distance(target, lane))  # type: ignore[misc]
        for block, source in enumerate(old.lanes[::width]):
            if source.setting == nearest.setting:
                blocks[block, number] = target.C / source.C / max(n_trained, 1)
    return np.kron(blocks, np.eye(width * old.lane_vectors))


def _distance(target: Lane, source: Lane) -> tuple[float, float]:
    """Return how far a lane is from another, by C first and then by λ."""
    of_l1 = abs(math.log(source.l1 / target.l1)) if source.l1 and target.l1 else float(source.l1 != target.l1)
    return abs(math.log(source.C / target.C)), of_l1


def class_ratios(old: Problem, new: Problem) -> np.ndarray | None:
    """Return the ratio of every class's factor on C to what it was, (classes,); None where all are 1.

    Balanced weights change with the rows.
    """
    if old.has_targets:
        return None
    before, now = (problem.class_factors(range(problem.block_lanes)) for problem in (old, new))
    ratios = np.divide(now, before, out=np.zeros(before.size), where=before > 0.0)
    return None if np.allclose(ratios, 1.0, rtol=1e-12) else ratios
