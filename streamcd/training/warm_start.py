"""Warm start: the result of one run as the initial point of another.

On the same rows, for the dual methods, alpha and w of new lanes are the same linear combination of old ones, so w stays
exactly ``w(alpha)``, without reading the data. From C to C' the factor is C'/C, which keeps all bounds; from k folds to all
rows it is 1/(k - 1), since each row was left out once. The first centre of an accelerated run is the old w, not scaled. The
primal methods begin with w alone, not scaled (the mean over folds), whatever method found it: scaled by C'/C it is worse
than w = 0.

Where the rows are others, chunks that the old run had as well bring their alpha; others have the alpha of a training from
nothing, for which ``w(alpha)`` is the same. Where the old run had chunks that are gone, or other shifts of features that
are centred, the first read sums up w(alpha).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import CheckpointError
from ..core.memory_budget import BLOCK_WEIGHTS
from ..dataset.feature_order import SourceRows
from ..kernels.loss_table import LOSSES, PLANES
from ..solvers.protocol import CERTIFY, START, TRAIN, State
from ..stream.arenas import class_codes
from ..stream.slot_store import SlotStore
from . import checkpoint
from .lane_groups import LaneGroups

_CENTRE_KAPPA = 4.0
"""Times the last kappa of a run, for its w as the first centre where there are rows whose alpha are yet to be found.

With 1 % more rows, of two sets and nine losses, a gap of 1e-3 takes 2 to 12 passes (2 to 13 with once, 2 to 18 with 16 times
kappa)."""

_SETTLED_MOVES = 13
"""Passes that a lane of a loss with kinks counts as made where it adopts kappa for more rows: then it changes slowly.

With 1 % more rows of real sets, such losses take 2 to 7 passes to 1e-3, where kappa that changed by up to 8 times in the
first passes took 4 to 19. Smooth losses gain a pass as often as they lose one."""


@dataclass
class WarmStart:
    """Initial values of lanes of a new run, from an old one."""

    old: LaneGroups
    new: LaneGroups
    chunk_of: np.ndarray  # the chunk of the old run's dataset that every new one is, -1 for none
    lanes: range  # of the new run

    def __post_init__(self) -> None:
        """Find the old lanes that each starts from: of the same vector, of every fold, with the nearest C and then λ."""
        old = self.old.problem
        new = self.new.problem
        lanes = np.array(self.lanes)[:, None]
        folds = old.block_lanes * np.arange(max(old.n_folds, 1))
        settings = old.block_lanes * folds.size
        C, old_C = (np.array([lane.C for lane in problem.lanes]) for problem in (new, old))
        ratios = C[lanes] / old_C[::settings]
        distances = np.abs(new.l1[lanes] - old.l1[::settings]), np.abs(np.log(ratios))
        nearest = np.lexsort(distances)[:, :1]
        self.mean = 1.0 / folds.size
        self.sources = settings * nearest + lanes % old.block_lanes + folds  # (lanes, folds)
        self.vectors = old.vectors[self.sources].swapaxes(1, 2).reshape(-1, folds.size)  # (vectors, folds)
        # of the sums of their dual variables, (lanes,): each row was left out of one fold
        self.factors = np.take_along_axis(ratios, nearest, 1)[:, 0] / max(old.n_folds - 1, 1)
        self.vector_factors = np.repeat(self.factors, new.lane_vectors)

    @property
    def new_chunks(self) -> np.ndarray:
        """List the chunks of rows that the old run did not have; with those first, the others answer to them in one pass."""
        return np.flatnonzero(self.chunk_of < 0)

    def begin(self, state: State, solver: Any, slots: SlotStore, rank: np.ndarray) -> None:
        """Initialise a state, over features by their `rank`, and the rows' slots, as far as the solver can use it."""
        lanes = state.lanes
        path = self.old.path
        if not all(position.any() for position in self._saved("position")):
            raise CheckpointError(f"{path}: no checkpoint to start from; 'streamcd resume {path}' first")
        of_alpha = solver.warm_start in ("alpha", "alpha and w")
        if not of_alpha or "kappa" in lanes:
            # a centre, too: with w(alpha) as the centre it takes more passes than from nothing
            w = SourceRows(state.w, rank)
            bias = self.new.problem.bias
            self._fill(w, "w", self.mean)
            if bias:
                w[-1] *= self.old.problem.bias / bias
            if self.new.centre is not None:
                self.new.centre.enter(w, bias)
        if of_alpha:
            self._begin_alpha(state, solver, slots, rank)
        elif solver.warm_start == "w and scores":
            # the first read computes the scores of rows at weights that are not 0; caution 2, because the likely failure
            # of this certificate must not delay the next one
            begun = state.w.any(axis=0)
            lanes["phase"][begun] = CERTIFY
            lanes["caution"][begun] = 2.0

    def _begin_alpha(self, state: State, solver: Any, slots: SlotStore, rank: np.ndarray) -> None:
        """Write the dual variables, and what the state has of them."""
        old = self.old.problem
        new = self.new.problem
        # balanced weights change with the rows
        weights, old_weights = (one.class_factors(range(one.block_lanes)) for one in (new, old))
        ratios = np.divide(weights, old_weights, out=np.zeros(weights.size), where=old_weights > 0.0)
        scaled = not np.allclose(ratios, 1.0, rtol=1e-12, atol=0.0)
        self._write_alpha(solver, slots, ratios if scaled else None)
        if solver.warm_start == "alpha":
            return
        lanes = state.lanes
        before = self.old.solver.acceleration
        accelerated = old.free_bias or before != "none"
        v = SourceRows(getattr(state, solver.w_alpha), rank)
        self._fill(v, "centre_or_w_alpha" if accelerated else "w", self.vector_factors)
        if new.bias:
            v[-1] *= new.bias / old.bias
        # of several folds the terms of the dual are a little larger: the estimates do without what they lack
        shares: dict[str, Any] = {"v_error": self.factors, "dual_sum": self.factors}
        if before == self.new.solver.acceleration == "auto":
            shares |= {"kappa": self.mean, "theta": self.mean}
            if self.new_chunks.size:
                shares["kappa"] *= _CENTRE_KAPPA
                if not LOSSES[new.loss].smooth:
                    lanes["earlier_moves"][:] = _SETTLED_MOVES
        for name, share in shares.items():
            lanes[name][:] = np.concatenate(self._saved(name))[self.sources].sum(axis=1) * share
        # these and w(alpha) are the old run's unless alpha of its rows are gone, scaled by class, or in the midst of a read,
        # or rows are centred otherwise; C scales the costs of all rows but those that a plane is fitted to
        whole = not scaled and np.count_nonzero(self.chunk_of >= 0) == self.old.dataset.n_chunks
        whole &= self.old.centre is self.new.centre
        whole &= new.form != PLANES or bool((self.factors == 1.0).all())
        between_reads = not any(position[1] for position in self._saved("position"))
        lanes["phase"][:] = TRAIN if whole and between_reads else START

    def _write_alpha(self, solver: Any, slots: SlotStore, ratios: np.ndarray | None) -> None:
        """Write the dual variables of the old run's rows, all active, times `ratios` by class; others are the solver's."""
        old = self.old
        dataset = self.new.dataset
        identity = checkpoint.read_identity(old.path)
        stores = []
        for group, current in zip(old.groups, self._saved("slots"), strict=True):
            store, layout = old.open_slots(group, identity)
            store.restore(current)
            stores.append((store, layout, old.groups[group].start * old.problem.lane_vectors))
        n_vectors = self.vector_factors.size
        for chunk in np.flatnonzero(self.chunk_of >= 0).tolist():
            n_rows = int(dataset.row_start[chunk + 1] - dataset.row_start[chunk])
            alpha = np.zeros((n_rows, solver.layout.alpha_width // n_vectors, n_vectors))
            for store, layout, first in stores:
                saved = np.empty((n_rows, layout.alpha_width))
                active = np.empty((n_rows, layout.n_flags), dtype=np.uint8)
                if not store.load(int(self.chunk_of[chunk]), [saved, active]):
                    raise CheckpointError(
                        f"{old.path}: the run has not visited all rows; 'streamcd resume {old.path}' first"
                    )
                parts = saved.reshape(n_rows, alpha.shape[1], -1)
                for of_fold in (self.vectors - first).T:
                    in_group = (of_fold >= 0) & (of_fold < parts.shape[2])
                    alpha[:, :, in_group] += parts[:, :, of_fold[in_group]]
            alpha *= self.vector_factors
            if ratios is not None:
                (label,) = dataset.read_rows(chunk, ("label",))
                alpha *= ratios[class_codes(dataset, chunk, label), None, None]
            slots.save(chunk, [alpha, np.ones((n_rows, solver.layout.n_flags), np.uint8)])

    # -- the last checkpoint of the old run, whose groups of lanes have one each

    def _saved(self, name: str) -> list[np.ndarray]:
        """Read an array of every group."""
        path = self.old.path
        identity = checkpoint.read_identity(path)
        states = [
            checkpoint.read_arrays(path / group / "state.npz", (name,), identity.part(group))
            for group in self.old.groups
        ]
        return [np.zeros(0) if state is None else state[name] for state in states]

    def _fill(self, w: SourceRows, name: str, factors: np.ndarray | float) -> None:
        """Write sums of vectors of an array over features, times factors, to the same features; the bias's row is the last.

        Weights are those for values as they are stored.
        """
        old = self.old
        block_rows = max(BLOCK_WEIGHTS // max(old.problem.n_vectors, self.vectors.size), 1)
        states = (old.path / group / "state.npz" for group in old.groups)
        parts = [checkpoint.read_array_rows(state, name, block_rows) for state in states]
        blocks: Iterator[np.ndarray] = map(np.hstack, zip(*parts, strict=True))
        if name == "w" and old.centre is not None:
            blocks = old.centre.leave(blocks, old.problem.bias)
        n_features = min(old.dataset.n_features, self.new.dataset.n_features)
        start = 0
        for rows in blocks:
            features = np.arange(start, start + len(rows))
            # of the bias, which comes last; rows before it are of features that are gone
            features[features >= n_features] = -1
            w[features] = rows[:, self.vectors].sum(axis=2) * factors
            start += len(rows)
