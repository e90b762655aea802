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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import CheckpointError, DatasetError, UsageError
from ..core.memory_budget import BLOCK_WEIGHTS
from ..core.setting import Setting
from ..dataset.centring import move_sums
from ..dataset.dataset import Dataset
from ..dataset.feature_order import SourceRows
from ..kernels.loss_table import LOSSES, PLANES, SOLVERS
from ..solvers.protocol import CERTIFY, START, TRAIN, State
from ..stream.arenas import class_codes
from ..stream.slot_store import SlotStore
from ..training import checkpoint
from .config import DATA, ResolvedRun, read_config, reopen

_CENTRE_KAPPA = 4.0
"""Times the last kappa of a run, for its w as the first centre where there are rows whose alpha are yet to be found.

With 1 % more rows, of two sets and nine losses, a gap of 1e-3 takes 2 to 12 passes (2 to 13 with once, 2 to 18 with 16 times
kappa)."""

_SETTLED_MOVES = 13
"""Passes that a lane of a loss with kinks counts as made where it adopts kappa for more rows: then it changes slowly.

With 1 % more rows of real sets, such losses take 2 to 7 passes to 1e-3, where kappa that changed by up to 8 times in the
first passes took 4 to 19. Smooth losses gain a pass as often as they lose one."""


@dataclass(frozen=True)
class WarmStart:
    """Initial values of some lanes of a new run, from an old one."""

    old: ResolvedRun
    new: ResolvedRun
    chunk_of: np.ndarray  # the chunk of the old run's dataset that every new one is, -1 for none
    sources: np.ndarray  # (lanes, k): the old lanes that each starts from, one for each fold
    factors: np.ndarray  # (lanes,): of the sum of their dual variables
    ratios: np.ndarray | None  # (classes,): of dual variables, beside these

    def subset(self, lanes: range) -> WarmStart:
        """Return the start of some of the lanes."""
        chosen = slice(lanes.start, lanes.stop)
        return replace(self, sources=self.sources[chosen], factors=self.factors[chosen])

    @property
    def new_chunks(self) -> np.ndarray:
        """List the chunks of rows that the old run did not have; with those first, the others answer to them in one pass."""
        return np.flatnonzero(self.chunk_of < 0)

    def begin(self, state: State, solver: Any, slots: SlotStore, rank: np.ndarray) -> None:
        """Initialise a state, over features by their `rank`, and the rows' slots, as far as the solver can use it."""
        lanes = state.lanes
        w = SourceRows(state.w, rank)
        positions = self._saved("position")
        if not all(position.any() for position in positions):
            path = self.old.path
            raise CheckpointError(f"{path}: no checkpoint to start from; 'streamcd resume {path}' first")
        if solver.warm_start in ("w", "w and scores"):
            self._fill_weights(w)
            if solver.warm_start == "w and scores":
                # the first read computes the scores of rows at weights that are not 0; caution 2, because the likely failure
                # of this certificate must not delay the next one
                begun = state.w.any(axis=0)
                lanes["phase"][begun] = CERTIFY
                lanes["caution"][begun] = 2.0
            return
        self._write_alpha(solver, slots)
        if solver.warm_start == "alpha":
            return
        accelerated = self.old.problem.free_bias or self.old.config.options.acceleration != "none"
        v = SourceRows(getattr(state, solver.w_alpha), rank)
        bias = self.new.problem.bias
        factors = np.repeat(self.factors, self.new.problem.lane_vectors)
        self._fill(v, self._saved_rows("centre_or_w_alpha" if accelerated else "w"), factors)
        if bias:
            v[-1] *= bias / self.old.problem.bias
            move_sums(v, self.old.centre, self.new.centre, bias)
        if "kappa" in lanes:
            self._fill_weights(w)  # with w(alpha) as the centre it takes more passes than from nothing
            if accelerated:
                self._adopt_kappa(lanes)
        # of several folds the terms of the dual are a little larger: the estimates do without what they lack
        for name in ("v_error", "dual_sum"):
            lanes[name] += self._of_lanes(name).sum(axis=1) * self.factors
        # these and w(alpha) are the old run's unless alpha of its rows are gone, scaled by class, or in the midst of a read;
        # C scales the costs of all rows but those that a plane is fitted to
        whole = self.ratios is None and np.count_nonzero(self.chunk_of >= 0) == self.old.dataset.n_chunks
        whole &= self.new.problem.form != PLANES or bool((self.factors == 1.0).all())
        between_reads = not any(position[1] for position in positions)
        lanes["phase"][:] = TRAIN if whole and between_reads else START

    def _adopt_kappa(self, lanes: dict[str, np.ndarray]) -> None:
        """Take kappa and theta of the old lanes, where neither kappa was fixed."""
        kappa = self._of_lanes("kappa").mean(axis=1)
        theta = self._of_lanes("theta").mean(axis=1)
        adopts = (kappa > 0.0) & (theta > 0.0) & (lanes["theta"] > 0.0)
        lanes["theta"][adopts] = theta[adopts]
        grown = bool(self.new_chunks.size)
        lanes["kappa"][adopts] = (_CENTRE_KAPPA if grown else 1.0) * kappa[adopts]
        if grown and not LOSSES[self.new.problem.loss].smooth:
            lanes["earlier_moves"][adopts] = _SETTLED_MOVES

    # -- the last checkpoint of the old run, whose groups of lanes have one each ----------------------------------------

    def _saved(self, name: str) -> list[np.ndarray]:
        """Read an array of every group."""
        path = self.old.path
        identity = checkpoint.read_identity(path)
        arrays = []
        for group in self.old.groups:
            state = checkpoint.read_arrays(path / group / "state.npz", (name,), identity.part(group))
            arrays.append(np.zeros(0) if state is None else state[name])
        return arrays

    def _of_lanes(self, name: str) -> np.ndarray:
        """Return the values of the lanes that each new one starts from, (lanes, k)."""
        return np.concatenate(self._saved(name))[self.sources]

    def _write_alpha(self, solver: Any, slots: SlotStore) -> None:
        """Write the dual variables of the old run's rows, all active; other rows are left to the solver."""
        old = self.old
        dataset = self.new.dataset
        identity = checkpoint.read_identity(old.path)
        stores = []
        for group, current in zip(old.groups, self._saved("slots"), strict=True):
            store, layout = old.open_slots(group, identity)
            store.restore(current)
            stores.append((store, layout, old.groups[group].start * old.problem.lane_vectors))
        vectors = self._vectors()
        factors = np.repeat(self.factors, old.problem.lane_vectors)
        sizes = np.diff(dataset.row_start)
        for chunk in np.flatnonzero(self.chunk_of >= 0).tolist():
            n_rows = int(sizes[chunk])
            alpha = np.zeros((n_rows, solver.layout.alpha_width // len(vectors), len(vectors)))
            for store, layout, first in stores:
                saved = np.empty((n_rows, layout.alpha_width))
                active = np.empty((n_rows, layout.n_flags), dtype=np.uint8)
                if not store.load(int(self.chunk_of[chunk]), [saved, active]):
                    raise CheckpointError(
                        f"{old.path}: the run has not visited all rows; 'streamcd resume {old.path}' first"
                    )
                parts = saved.reshape(n_rows, alpha.shape[1], -1)
                for of_fold in (vectors - first).T:
                    here = (of_fold >= 0) & (of_fold < parts.shape[2])
                    alpha[:, :, here] += parts[:, :, of_fold[here]]
            alpha *= factors
            if self.ratios is not None:
                (label,) = dataset.read_rows(chunk, ("label",))
                alpha *= self.ratios[class_codes(dataset, chunk, label), None, None]
            active = np.ones((n_rows, solver.layout.n_flags), dtype=np.uint8)
            slots.save(chunk, [alpha.reshape(n_rows, -1), active])

    def _fill_weights(self, w: SourceRows) -> None:
        """Write the mean of the old lanes' w to `w`."""
        rows = self._saved_rows("w")
        old_bias = self.old.problem.bias
        bias = self.new.problem.bias
        if self.old.centre is not None:
            rows = self.old.centre.leave(rows, old_bias)
        self._fill(w, rows, 1.0 / self.sources.shape[1])
        if bias:
            w[-1] *= old_bias / bias
        if self.new.centre is not None:
            self.new.centre.enter(w, bias)

    def _saved_rows(self, name: str) -> Iterator[np.ndarray]:
        """Iterate over blocks of rows of an array over features, of the vectors of all groups."""
        block_rows = max(BLOCK_WEIGHTS // max(self.old.problem.n_vectors, self._vectors().size), 1)
        states = (self.old.path / group / "state.npz" for group in self.old.groups)
        parts = (checkpoint.read_array_rows(state, name, block_rows) for state in states)
        return map(np.hstack, zip(*parts, strict=True))

    def _fill(self, w: SourceRows, blocks: Iterable[np.ndarray], factors: np.ndarray | float) -> None:
        """Write sums of old vectors, times factors, to the same features in `w`, whose last row is the bias's."""
        w.array[:] = 0.0
        n_features = min(self.old.dataset.n_features, self.new.dataset.n_features)
        vectors = self._vectors()
        start = 0
        for rows in blocks:
            features = np.arange(start, start + len(rows))
            # of the bias, which comes last; rows before it are of features that are gone
            features[features >= n_features] = -1
            w[features] = rows[:, vectors].sum(axis=2) * factors
            start += len(rows)

    def _vectors(self) -> np.ndarray:
        """Return the old weight vectors that each new one starts from, (vectors, k)."""
        return np.stack([self.old.problem.vectors[lanes].reshape(-1) for lanes in self.sources.T], axis=1)


def start_from(old: ResolvedRun, new: ResolvedRun, chunk_of: np.ndarray | None = None) -> WarmStart:
    """Make the start of a new run from an earlier one; by default of the same chunks.

    A lane starts from those of the same vector, of every fold, with the nearest C and then the nearest λ. Raises
    `UsageError` if the problems differ in more than C, weights of classes and folds. Dual variables fit the same bias alone,
    and weights of classes change some lanes of planes alone.
    """
    before = old.problem
    now = new.problem
    dual = _keeps_alpha(new)
    names = {"loss": "loss", "slack": "slack", "parameter of the loss": "parameter"}
    names["ridge" if now.form == PLANES else "l2"] = "scale"
    # the feature of a free bias may differ: it depends on C, the optimum does not depend on it
    if dual and not (before.free_bias and now.free_bias):
        names["bias"] = "bias"
    pairs = {name: [getattr(one, field) for one in (before, now)] for name, field in names.items()}
    different = [
        f"{name} {was or 'none'}, found {given or 'none'}"
        for name, (was, given) in pairs.items()
        if was != given
    ]
    if not np.array_equal(before.code, now.code):
        different.append("code matrix")
    ratios = None
    if dual and not different:  # balanced weights change with the rows
        weights, weights_before = (one.class_factors(range(one.block_lanes)) for one in (now, before))
        ratios = np.divide(weights, weights_before, out=np.zeros(weights.size), where=weights_before > 0.0)
        if np.allclose(ratios, 1.0, rtol=1e-12):
            ratios = None
        elif now.form == PLANES:
            different.append("class weights")
    if different:
        raise UsageError(f"a warm start needs the run's {', '.join(different)}")
    width = before.block_lanes
    settings = [Setting(lane.C, lane.l1) for lane in before.lanes[::width]]
    sources = []
    factors = []
    for lane in now.lanes[::width]:
        nearest = min(settings, key=partial(_distance, Setting(lane.C, lane.l1)))
        sources.append([width * block for block, setting in enumerate(settings) if setting == nearest])
        factors.append(lane.C / nearest.C / max(before.n_folds - 1, 1))  # each row was left out of one fold
    return WarmStart(
        old,
        new,
        np.arange(old.dataset.n_chunks) if chunk_of is None else chunk_of,
        np.repeat(sources, width, axis=0) + np.arange(now.n_lanes)[:, None] % width,
        np.repeat(factors, width),
        ratios,
    )


_NO_L1 = 1e-300  # in place of 0, which is far from any λ


def _distance(one: Setting, other: Setting) -> tuple[float, float]:
    """Return how far two settings are apart, by C first and then by λ."""
    return abs(math.log(one.C / other.C)), abs(math.log((one.l1 or _NO_L1) / (other.l1 or _NO_L1)))


def _keeps_alpha(run: ResolvedRun) -> bool:
    return SOLVERS[run.problem.loss, run.config.options.method].keeps_alpha


def previous_run(new: ResolvedRun, notes: list[str]) -> WarmStart | None:
    """Open the run that a run starts from, if any, and note what is taken from it; refused if it cannot."""
    source = new.config.start_from
    if source is None:
        return None
    dataset = new.dataset
    path = Path(source)
    config = read_config(path)
    if config.scoring is not None:
        path /= "best" if (path / "best" / "state.npz").exists() else "folds"
        config = read_config(path)
    if config.fingerprint == dataset.fingerprint:
        before = dataset
        chunk_of = np.arange(dataset.n_chunks)
    else:
        before, chunk_of = _known_shards(Path(source), dataset)
    old = reopen(path, config, before)
    dual = _keeps_alpha(new)
    if dual and not _keeps_alpha(old):
        raise UsageError(
            f"{source}: trained by {config.options.method}, which has no dual variables to start from"
        )
    if config.options.method == "sor" and new.config.options.method == "dual":
        raise UsageError(f"{source}: trained by sor, from which dual cannot start")
    if not np.array_equal(old.problem.classes, new.problem.classes):
        raise UsageError(f"start_from: expected the classes of {source}, found others")
    n_known = int(np.diff(dataset.row_start)[chunk_of >= 0].sum())
    if dual and not n_known:
        raise UsageError(f"start_from: expected a shard that {source} was trained on, found none")
    if before is not dataset:
        taken = "dual variables" if dual else "weights"
        notes.append(
            f"starts from the {taken} of {source}, which knew {n_known:,} of {dataset.n_rows:,} rows"
        )
    return start_from(old, new, chunk_of)


def _known_shards(run: Path, dataset: Dataset) -> tuple[Dataset, np.ndarray]:
    """Return a run's dataset, of which no rows can be read, and of every chunk of `dataset` the one that it is, -1 for none.

    Shards are known by their content.
    """
    try:
        old = Dataset.open(run / DATA, check_files=False)
    except DatasetError as error:
        raise UsageError(
            f"start_from: {run} does not tell the shards that it was trained on: {error}"
        ) from None
    chunk_of = np.full(dataset.n_chunks, -1)
    old_rows = np.diff(old.row_start)
    n_rows = np.diff(dataset.row_start)
    numbers = {part["content"]: number for number, part in enumerate(old.manifest["parts"])}
    for number, part in enumerate(dataset.manifest["parts"]):
        old_number = numbers.pop(part["content"], None)  # one that is there twice is known once
        chunks = np.flatnonzero(dataset.chunk_part == number)
        old_chunks = np.flatnonzero(old.chunk_part == old_number)
        if old_number is not None and np.array_equal(n_rows[chunks], old_rows[old_chunks]):
            chunk_of[chunks] = old_chunks
    return old, chunk_of
