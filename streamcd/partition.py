"""One partition's share of a round: some shards, streamed from the common w; the same code in a worker as in a simulation.

The dual variables live in the run directory, which all workers see, so that shards change hands without a copy: they are a
small part of what is read (16 to 32 bytes a row; the entries take 8 each). A record holds for every row the base, from
which the round set out, the candidate, at which its passes ended, and the active flags. Every attempt at a round
writes a folder of its own: a worker that was given up for lost and still writes can spoil nothing. Committing a
round names its folder and its step eta; ``base + eta (candidate - base)`` is formed at the next read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from .arenas import RowArena, RowLayout
from .block_steps import (
    APART,
    Change,
    add_direction,
    alpha_columns,
    direction,
    lane_columns,
    lane_products,
    log_slopes,
    make_change,
    new_direction,
    row_costs,
    settle,
)
from .dataset import Dataset, open_dataset
from .errors import CheckpointError, DatasetError
from .kernels import DUAL, GAP, LOG_LOSS, LOSS, N_STEPS, N_VISITED
from .memory_plan import make_plan
from .problems import LOSSES, Problem
from .randomness import random_key
from .slot_store import SlotStore
from .solvers import CERTIFY, DONE, SOLVERS, START, TRAIN, Solver, State, new_totals
from .stream import Stream, Window

WEIGHT_COPIES = 8
"""Arrays of the shape of w that a worker, and the coordinating process, hold at most: the common and the local w, its
change, w(alpha), a neighbour's change and the sum, and the messages in and out."""

DASK_BYTES = 70_000_000
"""What dask takes of a worker's memory beside our own reserve.

Measured with distributed 2026.8: a worker without work takes 65 MB, of which Python alone 10. On 134 M entries of a
million features, windows read from disk under 520 MB, two workers reached 392 and 374 MB, where they compiled the kernels
459 and 440 (3 rounds of log_loss; VmHWM), and the coordinating process 262 to 280 MB, 173 with a small w.
"""

_SAVE_BYTES = 1 << 24  # of numpy's buffer, through which it writes arrays to a file, and of dask's frames

Report = Callable[[int], None]
"""Called with the entries of every window that was visited."""


@dataclass(frozen=True)
class Assignment:
    """What a worker has to know of a run, the same in every round.

    Attributes
    ----------
    dataset : str
        Absolute path.
    fingerprint : str
        Of the dataset.
    folder : str
        Absolute path of the run's folder of dual variables.
    problem : Problem
    method : str
    seed : int
    memory : int
        Budget of a worker, bytes.
    """

    dataset: str
    fingerprint: str
    folder: str
    problem: Problem
    method: str
    seed: int
    memory: int


@dataclass(frozen=True)
class Order:
    """What is to be done in a round.

    Attributes
    ----------
    token : str
        Names this attempt at the round, and the folder it writes.
    committed : str
        The folder of the last committed round; empty where there is none.
    eta : ndarray of float64, shape (lanes,)
        The step that round was committed with.
    read : int
        Number of its first read of the data.
    n_passes : int
        Reads of the data, each with a number of its own. A partition alone makes one, whatever is asked for.
    lanes : dict of str to ndarray
        The per-lane arrays of the state, ``stiffness`` among them (see `rounds`).
    deal : uint64
        The key by which shards are dealt; that of the last round where they stay, in memory perhaps.
    n_workers : int or None
        Among how many of the workers they are dealt; None: among all.
    """

    token: str
    committed: str
    eta: np.ndarray
    read: int
    n_passes: int
    lanes: dict[str, np.ndarray]
    deal: np.uint64
    n_workers: int | None = None

    def phase(self, *phases: int) -> np.ndarray:
        """Lanes in one of these phases."""
        return np.flatnonzero(np.isin(self.lanes["phase"], phases))

    def stiffness(self) -> np.ndarray:
        """Of every lane's local models; 1 for lanes that do not train."""
        return np.where(self.lanes["phase"] == TRAIN, self.lanes["stiffness"], 1.0)


@dataclass
class Answer:
    """What came of it.

    Attributes
    ----------
    totals : ndarray, shape (lanes, N_TOTALS)
        Of the first pass; later ones see the partition's own rows nearly solved, which says nothing of the whole. The
        change of the dual is that of all passes, and Newton's steps are those of the last.
    direction : ndarray, shape (lanes, 4)
        See `rounds.direction`.
    change : Change
        Of w for lanes that trained; the partition's share of ``w(alpha)`` for lanes that were certified.
    w : ndarray or None
        The local w itself where the partition is the only one: then nothing has to be added up, and no bit changes.
    n_passes : int
        That were made.
    seconds : float
    bytes_read : int
    """

    totals: np.ndarray
    direction: np.ndarray
    change: Change
    w: np.ndarray | None
    n_passes: int
    seconds: float
    bytes_read: int


@dataclass(frozen=True)
class _Records:
    """What one attempt wrote: the first slot of every chunk, in a folder of its own."""

    token: str
    slots: SlotStore


class Superseded(Exception):
    """The round was given up by the coordinator while it was being worked on."""


def paired_layout(layout: RowLayout) -> RowLayout:
    """Candidate and base side by side; kernels see the candidate in the first columns."""
    return replace(layout, alpha_width=2 * layout.alpha_width)


def model_bytes(solver: Solver) -> int:
    """What w and its copies take; `Solver.state_bytes` counts two."""
    return solver.state_bytes // 2 * WEIGHT_COPIES + saving_bytes(solver)


def saving_bytes(solver: Solver) -> int:
    """What writing the state to a file takes beside it."""
    return min(solver.state_bytes + solver.rows_bytes, _SAVE_BYTES)


def open_same(assignment: Assignment) -> Dataset:
    """The dataset of a run, as this process sees it.

    Raises
    ------
    DatasetError, CheckpointError
        Where dataset or run are not there, or another.
    """
    dataset = open_dataset(assignment.dataset)
    if dataset.fingerprint != assignment.fingerprint:
        raise DatasetError(
            f"{dataset.path}: fingerprint {dataset.fingerprint}, the run has {assignment.fingerprint}: another dataset"
        )
    if not Path(assignment.folder).is_dir():
        raise CheckpointError(
            f"{assignment.folder} is not there: dataset and run have to be in directories that all workers see "
            "under the same path"
        )
    return dataset


class Partition:
    """Some shards of a dataset, and the work of one round after another on them.

    Parameters
    ----------
    assignment : Assignment
    parts : list of int
        Ascending.
    dataset : Dataset, optional
        The whole; opened by `open_same` where it is not given.

    Attributes
    ----------
    whole : Dataset
        For the next partition of the same run.
    """

    def __init__(self, assignment: Assignment, parts: list[int], dataset: Dataset | None = None) -> None:
        self.whole = whole = dataset or open_same(assignment)
        self.assignment, self.parts = assignment, parts
        self.alone = len(parts) == whole.n_shards
        self._chunk_part, self._n_rows = whole.chunk_part, np.diff(whole.row_start)
        self._chunks = np.flatnonzero(np.isin(whole.chunk_part, parts))
        self._dataset = whole.select_parts(parts)
        self._problem = _writable(assignment.problem)
        self._solver = solver = SOLVERS[self._problem.loss, assignment.method](self._problem)
        # trains on stiffened costs, which `_stiffen` sets
        self._stiff_problem = replace(self._problem, cost=self._problem.cost.copy())
        self._stiff_solver = SOLVERS[self._problem.loss, assignment.method](self._stiff_problem)
        self._width, self._layout = solver.layout.alpha_width, paired_layout(solver.layout)
        self.plan = make_plan(self._dataset, assignment.memory, model_bytes(solver), self._layout)
        self._stream = Stream(
            self._dataset, self.plan, self._layout, assignment.seed, n_folds=self._problem.n_folds
        )
        self._order = np.empty(self._stream.largest_window_items + 1, dtype=np.int64)
        # in a resident arena: the folder whose records the rows of a chunk hold, and whether the step was taken
        self._holds: list[str | None] = [None] * self._chunks.size
        self._settled = np.zeros(self._chunks.size, dtype=bool)
        self._arena: RowArena | None = None
        self._reader = self._writer = self._records("")
        self._slot_bytes_read = 0
        self.wanted: str | None = None

    def run(self, order: Order, w: np.ndarray, report: Report | None = None) -> Answer:
        """Carry out an order from the common `w`, which is not changed."""
        started, bytes_before = time.monotonic(), self._bytes_read()
        training = order.phase(TRAIN).size > 0
        self._open_stores(order.committed, order.token if training else "")
        state = State(
            w.copy(), np.zeros_like(w), new_totals(self._n_lanes), _local_lanes(order.lanes, self.alone)
        )
        first = new_totals(self._n_lanes)
        dual_change = np.zeros(self._n_lanes)
        sums = new_direction(self._n_lanes)
        n_passes = 1 if self.alone else order.n_passes
        stiffness = self._stiffen(order)
        for number in range(n_passes):
            last = number == n_passes - 1
            for window in self._stream.windows(order.read + number):
                if self.wanted not in (None, order.token):
                    raise Superseded
                self._load(window, order, state, stiffness, first_pass=number == 0)
                key = random_key(self.assignment.seed, window.read, window.number)
                self._stiff_solver.visit(window, state, self._order, key)
                if training:
                    sums = self._save(window, sums, stiffness, last)
                if report is not None:
                    report(window.n_entries)
            state.totals[:, [GAP, LOSS, DUAL]] /= stiffness[:, None]
            dual_change += state.totals[:, DUAL]
            if number == 0:
                first = state.totals.copy()
                phase = state.lanes["phase"]
                state.lanes["phase"] = np.where(np.isin(phase, (START, CERTIFY)), DONE, phase)
            elif last:
                first[:, [N_STEPS, N_VISITED]] = state.totals[:, [N_STEPS, N_VISITED]]
            state.totals[:] = new_totals(self._n_lanes)
        if training:
            self._writer.slots.sync()
        trained = order.phase(TRAIN)
        first[trained, DUAL] = dual_change[trained]
        answer = self._answer(order, w, state, first, sums, stiffness)
        return replace(
            answer,
            n_passes=n_passes,
            seconds=time.monotonic() - started,
            bytes_read=self._bytes_read() - bytes_before,
        )

    def slopes(self, order: Order, eta: np.ndarray) -> np.ndarray:
        """Sum of `rounds.log_slopes` over the rows at a step, after `run`."""
        total = np.zeros((self._n_lanes, 3))
        width, arena = self._width, self._arena
        for local, chunk in enumerate(self._chunks.tolist()):
            n_rows = int(self._n_rows[chunk])
            if arena is not None and self._holds[local] == order.token:
                start = int(self._dataset.row_start[local])
                pair = arena.alpha[start : start + n_rows]
            else:
                pair = np.empty((n_rows, 2 * width))
                active = np.empty((n_rows, self._layout.n_flags), dtype=np.uint8)
                self._writer.slots.load(chunk, [pair, active])
            total += log_slopes(self._n_lanes, pair[:, width:], pair[:, :width], eta)
        return total

    def close(self) -> None:
        """Stop reading, close all files."""
        self._stream.close()
        self._open_stores("", "")

    # -- rows in and out ----------------------------------------------------------------------------------------------

    def _stiffen(self, order: Order) -> np.ndarray:
        """Set the costs of the local model; returns the stiffness of every lane, powers of two."""
        stiffness = np.ones(self._n_lanes) if self.alone else order.stiffness()
        self._stiff_problem.cost[:] = self._problem.cost * stiffness
        return stiffness

    def _load(
        self, window: Window, order: Order, state: State, stiffness: np.ndarray, *, first_pass: bool
    ) -> None:
        solver, arena = self._solver, window.arena
        self._arena = arena if self.plan.resident else None
        for chunk, start, stop in window.pieces():
            if first_pass:
                self._load_settled(arena, chunk, start, stop, order)
                arena.alpha[start:stop, : self._width] *= alpha_columns(self._problem, stiffness)
                if order.phase(TRAIN).size:
                    solver.restore_rows(state, arena, start, stop)
                    self._holds[chunk], self._settled[chunk] = order.token, False
            elif not self.plan.resident:
                pair = arena.alpha[start:stop]
                self._writer.slots.load(int(self._chunks[chunk]), [pair, arena.active[start:stop]])

    def _load_settled(self, arena: RowArena, chunk: int, start: int, stop: int, order: Order) -> None:
        """Bring in the committed state of a chunk: base and candidate both where the last step ended."""
        pair, active, width = arena.alpha[start:stop], arena.active[start:stop], self._width
        if self.plan.resident and self._holds[chunk] == order.committed:
            if self._settled[chunk]:
                return
        elif not order.committed:
            self._solver.new_rows(arena, start, stop)
            pair[:, width:] = pair[:, :width]
        else:
            self._reader.slots.load(int(self._chunks[chunk]), [pair, active])
        if order.committed:
            problem, code = self._problem, arena.code[start:stop]
            cost = row_costs(problem, code, arena.weight[start:stop], arena.fold[start:stop])
            pair[:, :width] = settle(problem, pair[:, width:], pair[:, :width], active, order.eta, cost, code)
            pair[:, width:] = pair[:, :width]
        self._holds[chunk], self._settled[chunk] = order.committed, True

    def _save(self, window: Window, sums: np.ndarray, stiffness: np.ndarray, last: bool) -> np.ndarray:
        arena, problem, width = window.arena, self._problem, self._width
        for chunk, start, stop in window.pieces():
            pair, active = arena.alpha[start:stop], arena.active[start:stop]
            if last:
                pair[:, :width] /= alpha_columns(problem, stiffness)
            if last or not self.plan.resident:
                self._writer.slots.save(int(self._chunks[chunk]), [pair, active])
            if last and not self.alone:
                code = arena.code[start:stop]
                cost = row_costs(problem, code, arena.weight[start:stop], arena.fold[start:stop])
                sums = add_direction(sums, direction(problem, pair[:, width:], pair[:, :width], cost, code))
        return sums

    def _answer(
        self,
        order: Order,
        w: np.ndarray,
        state: State,
        first: np.ndarray,
        sums: np.ndarray,
        stiffness: np.ndarray,
    ) -> Answer:
        certified = lane_columns(order.phase(START, CERTIFY), self._n_lanes, w.shape[1])
        values = state.w if self.alone else np.subtract(state.w, w, out=state.w)
        if not self.alone:
            values /= np.repeat(stiffness, w.shape[1] // self._n_lanes)
            sums[:, APART] = lane_products(values, values, self._n_lanes)
        values[:, certified] = state.w_alpha[:, certified]
        return Answer(
            totals=first,
            direction=sums,
            change=Change(None, values[:0], values.shape[0]) if self.alone else make_change(values),
            w=values if self.alone else None,
            n_passes=0,
            seconds=0.0,
            bytes_read=0,
        )

    # -- small things -------------------------------------------------------------------------------------------------

    @property
    def _n_lanes(self) -> int:
        return self._problem.n_lanes

    def _open_stores(self, committed: str, token: str) -> None:
        """The records of the last committed round to read from, and those of this attempt to write to."""
        if self._reader.token != committed:
            self._reader = self._exchange(self._reader, committed)
            self._reader.slots.restore(np.zeros_like(self._reader.slots.current))
        if self._writer.token != token:
            self._writer = self._exchange(self._writer, token)

    def _exchange(self, old: _Records, token: str) -> _Records:
        self._slot_bytes_read += old.slots.bytes_read
        old.slots.close()
        return self._records(token)

    def _records(self, token: str) -> _Records:
        # where there is no round yet, the store has no chunks, so that it needs no file
        part, n_rows = (self._chunk_part, self._n_rows) if token else (self._chunk_part[:0], self._n_rows[:0])
        return _Records(
            token, SlotStore(Path(self.assignment.folder) / token, part, n_rows, self._layout.state_bytes)
        )

    def _bytes_read(self) -> int:
        stores = self._reader.slots.bytes_read + self._writer.slots.bytes_read
        return self._stream.bytes_read + self._slot_bytes_read + stores


def _local_lanes(lanes: dict[str, np.ndarray], alone: bool) -> dict[str, np.ndarray]:
    """Per-lane arrays for a partition; of several partitions none shrinks its rows.

    What looks settled at the local w need not be at the common one. With shrinking, mushrooms on 4 partitions that stayed
    took 230 rounds and 26 certificates to 1e-3 (squared hinge), without 210 and 11; how much of that is chance was not
    measured.
    """
    local = {name: np.array(array) for name, array in lanes.items()}
    if not alone:
        local["high"][:], local["low"][:], local["restore"][:] = np.inf, -np.inf, True
    return local


def _writable(problem: Problem) -> Problem:
    """Arrays that came over the network may be read-only, for which kernels would be compiled once more."""
    arrays: dict[str, Any] = {
        field.name: np.array(getattr(problem, field.name))
        for field in fields(problem)
        if isinstance(getattr(problem, field.name), np.ndarray)
    }
    return replace(problem, **arrays)


def line_search_is_closed(problem: Problem) -> bool:
    """Whether the dual is quadratic along a step."""
    return LOSSES[problem.loss] != LOG_LOSS
