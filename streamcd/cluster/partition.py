"""A worker's part of a round, by the solver of one process: a read at fixed weights, or local passes from the common w.

Dual variables come from the run, and go back to it after every round. Meanwhile a worker has for every row the base (the
variables at the start of the round) and the candidate (those at the end of its passes); where windows are read from disk,
in files of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.setting import random_key
from ..dataset.dataset import Dataset
from ..kernels import rounds as kernels
from ..kernels.loss_table import SOLVERS
from ..kernels.primitives import Total
from ..kernels.rounds import APART, Step
from ..solvers.problem import Problem
from ..solvers.protocol import CERTIFY, DONE, NO_ROWS, START, TRAIN, SolverOptions, State, solver_class
from ..stream.arenas import RowArena, Window, class_codes
from ..stream.memory_plan import make_plan, plan_shards
from ..stream.slot_store import NO_SLOT, SlotStore
from ..stream.stream import Stream
from .block_steps import (
    alpha_columns,
    lane_columns,
    lane_products,
    new_direction,
)
from .memory import paired_layout, worker_plan_memory
from .rounds import ARRAYS, ChunkRows, Response, RoundRequest, WorkersLost, WorkerSpec, add_directions

_OF_LAST_PASS = [Total.N_STEPS, Total.N_VISITED, Total.ALPHA, Total.ALPHA_CURVATURE, Total.ALPHA_SQUARE]
"""Totals that are those of the last local pass."""

Report = Callable[[int], None]
"""Callback that takes the number of entries of each window visited."""


def open_same(spec: WorkerSpec) -> Dataset:
    """Open the dataset of a run in this process; refused if it is missing, or has another fingerprint."""
    dataset = Dataset.open(spec.dataset, fingerprint=spec.fingerprint)
    dataset.use_cache(spec.cache)
    return dataset


def makes_sums(spec: WorkerSpec) -> bool:
    """Tell whether rounds are sums at fixed weights, for which rows have no state."""
    return SOLVERS[spec.problem.loss, spec.method].rounds == "sums"


def make_part(spec: WorkerSpec, folder: Path) -> SumPartition | Partition:
    """Make a worker's part of a run, with files in `folder`."""
    return SumPartition(spec, folder) if makes_sums(spec) else Partition(spec, folder)


class SumPartition:
    """Some shards of a dataset, in a stream within a worker's memory, and their sums at the weights of every round."""

    def __init__(self, spec: WorkerSpec, folder: Path) -> None:
        self.dataset = dataset = open_same(spec)
        self.spec = spec
        self.folder = folder
        self._problem = _writable(spec.problem)
        # kappa and centre are the coordinating process's: here any fixed kappa stands for it
        options = SolverOptions(spec.method, acceleration="none" if spec.acceleration == "none" else 1.0)
        self._solver: Any = solver_class(self._problem, spec.method)(self._problem, dataset, options)
        self._layout = paired_layout(self._solver.layout)
        self._memory = worker_plan_memory(dataset, self._problem, self._solver.memory)
        self._kept_plan = plan_shards(dataset, spec.memory, self._memory)
        self._stream: Stream | None = None

    def assign(self, shards: Sequence[int]) -> Stream:
        """Read these shards from now on; those read before stay in memory as long as there is room.

        Whether shards are kept or streamed follows from their number, not from those that were read before: windows, and
        with them the bits of a result, depend on it.
        """
        plan, room = (
            self._kept_plan
            if self._kept_plan and len(shards) <= self._kept_plan[1]
            else (make_plan(self.dataset, self.spec.memory, self._memory), self.dataset.n_shards)
        )
        if self._stream is None or self._stream.plan.resident != plan.resident:
            self.close()  # its memory is needed for the new one
            folds = self._problem.n_folds
            self._stream = Stream(
                self.dataset, plan, self._layout, self.spec.seed, n_folds=folds, n_shards=room
            )
            self._order = np.empty(self._stream.largest_window_items + 1, dtype=np.int64)
        self._chunks, lost = self._stream.set_shards(np.array(shards))
        self._forget(lost)
        return self._stream

    def _forget(self, chunks: np.ndarray) -> None:
        """Forget the rows of chunks that lost their place in memory."""

    def run(
        self,
        shards: Sequence[int],
        request: RoundRequest,
        w: np.ndarray,
        report: Report | None = None,
        worker: str = "",
    ) -> Response:
        """Carry out a round on some shards, at `w`, which is not changed; `worker` is the name of this one."""
        started = time.monotonic()
        stream = self.assign(shards)
        before = self._bytes_read(stream)
        sums = self._work(stream, request, w, report or (lambda n_entries: None))
        seconds = time.monotonic() - started
        n_bytes = self._bytes_read(stream) - before
        return Response(sums, {worker: seconds}, n_bytes)

    def _bytes_read(self, stream: Stream) -> int:
        return stream.bytes_read

    def _work(
        self, stream: Stream, request: RoundRequest, w: np.ndarray, report: Report
    ) -> dict[str, np.ndarray]:
        """Sum up this worker's rows at `w`, `NewtonSolver.to_send`."""
        solver = self._solver
        state = solver.new_state(ARRAYS)
        state.set_lanes(request.lanes)
        solver.begin_part(state, w)
        for window in stream.windows(request.read):
            solver.add_window(window, state, self._order)
            solver.add_at_zero(window, state)
            report(window.n_entries)
        return dict(solver.sums(state))

    def close(self) -> None:
        """Stop reading, and close all files."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None


@dataclass
class _LocalRound:
    """Round in progress: its request, and the sums so far."""

    request: RoundRequest
    state: State
    sigma_prime: np.ndarray
    totals: np.ndarray
    dual_change: np.ndarray
    direction: np.ndarray
    summed: np.ndarray  # lanes of which w(alpha) is summed


class Partition(SumPartition):
    """Some shards of a dataset, and the local passes over them, round after round."""

    def __init__(self, spec: WorkerSpec, folder: Path) -> None:
        super().__init__(spec, folder)
        # the local model is a problem whose costs are sigma' times as large
        self._scaled_problem = replace(self._problem, cost=self._problem.cost.copy())
        of_solver = self.dataset, self._solver.options
        self._scaled_solver = type(self._solver)(self._scaled_problem, *of_solver)
        self._width = self._solver.layout.alpha_width
        self._n_lanes = self._problem.n_lanes
        self._rows = SlotStore(folder, self.dataset, self._layout.state_bytes, spec.identity)
        n_chunks = self.dataset.n_chunks
        self._round_of = [""] * n_chunks  # the attempt at a round that ended in the state of a chunk's rows
        self._in_arena = np.zeros(n_chunks, dtype=bool)  # chunks whose rows are in a resident arena
        self._arena: RowArena | None = None  # that in which rows stay, if they do
        self._spare: RowArena | None = None  # for the state of a chunk

    def _forget(self, chunks: np.ndarray) -> None:
        self._in_arena[chunks] = False

    def close(self) -> None:
        """Stop reading, and close all files."""
        super().close()
        self._in_arena[:] = False

    def _bytes_read(self, stream: Stream) -> int:
        return stream.bytes_read + self._rows.bytes_read

    # -- rows in and out ----------------------------------------------------------------------------------------------

    def receive(self, committed: str, rows: Sequence[ChunkRows]) -> None:
        """Take the state of chunks at the end of the round `committed`."""
        for chunk, alpha, active in rows:
            self._in_arena[chunk] = False
            if alpha is None or active is None:
                self._rows.current[chunk] = NO_SLOT
            else:
                self._rows.save(chunk, [np.hstack([alpha, alpha]), active])
            self._round_of[chunk] = committed

    def _require(self, attempt: str, chunks: Sequence[int]) -> None:
        """Raise `WorkersLost` where the state of chunks is not that at the end of an attempt at a round."""
        if any(self._round_of[chunk] != attempt for chunk in chunks):
            raise WorkersLost("a worker had lost the dual variables of its shards")

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum the terms of `kernels.rounds.add_slopes` over the rows at a step, after `run`."""
        self._require(request.token, self._chunks.tolist())
        total = np.zeros((self._n_lanes, 3))
        width = self._width
        for chunk in self._chunks.tolist():
            arena, start, stop = self._find(chunk)
            pair = arena.alpha[start:stop]
            change = np.empty(width // self._n_lanes)
            kernels.add_slopes(self._problem.row_loss, pair[:, width:], pair[:, :width], eta, change, total)
        return total

    def step(self, request: RoundRequest, eta: np.ndarray, chunks: Sequence[int]) -> list[ChunkRows]:
        """Make the step of a round, after `run`, in the state of some chunks, which is returned."""
        self._require(request.token, chunks)
        return [self._step(eta, chunk) for chunk in chunks]

    def _step(self, eta: np.ndarray, chunk: int) -> ChunkRows:
        (arena, start, stop) = self._find(chunk)
        width = self._width
        if not self._in_arena[chunk]:
            label, arena.weight[:stop] = self.dataset.read_rows(chunk, ("label", "weight"))
            arena.code[:stop] = class_codes(self.dataset, chunk, label)
            if self._problem.has_targets:
                arena.target[:stop] = label
        pair = arena.alpha[start:stop]
        active = arena.active[start:stop]
        move = Step(pair[:, width:], pair[:, :width], eta)
        alpha = np.empty((stop - start, width))
        kernels.apply_step(*self._rows_of(arena, start, stop), move, active, alpha)
        pair[:, :width] = alpha
        pair[:, width:] = alpha
        self._rows.save(chunk, [pair, active])
        return ChunkRows(chunk, alpha, np.array(active))

    def _find(self, chunk: int) -> tuple[RowArena, int, int]:
        """Return where a chunk's state is: in the resident arena, or read from the disk into one for a chunk."""
        n_rows = int(self.dataset.row_start[chunk + 1] - self.dataset.row_start[chunk])
        if self._in_arena[chunk]:
            assert self._stream is not None
            assert self._arena is not None
            start = self._stream.resident_start(chunk)
            return self._arena, start, start + n_rows
        if self._spare is None:
            largest = int(np.diff(self.dataset.row_start).max())
            self._spare = self._layout.new_arena(self.dataset, largest, 0)
        self._rows.load(chunk, [self._spare.alpha[:n_rows], self._spare.active[:n_rows]])
        return self._spare, 0, n_rows

    def _load(self, window: Window, local: _LocalRound, *, first_pass: bool) -> None:
        arena = window.arena
        width = self._width
        for chunk, start, stop in window.chunk_ranges():
            pair = arena.alpha[start:stop]
            active = arena.active[start:stop]
            if not self._in_arena[chunk] and not self._rows.load(chunk, [pair, active]):
                self._solver.new_rows(arena, start, stop)
                pair[:, width:] = pair[:, :width]
            if first_pass:
                pair[:, :width] *= alpha_columns(self._problem, local.sigma_prime)
                if local.request.lanes_in(TRAIN).size:
                    self._solver.restore_rows(local.state, arena, start, stop)
            if self._is_resident:
                self._arena = arena
                self._in_arena[chunk] = True

    def _save(self, window: Window, local: _LocalRound, *, last_pass: bool) -> None:
        arena = window.arena
        problem = self._problem
        width = self._width
        for chunk, start, stop in window.chunk_ranges():
            pair = arena.alpha[start:stop]
            active = arena.active[start:stop]
            if last_pass:
                pair[:, :width] /= alpha_columns(problem, local.sigma_prime)
                change = np.empty(width // self._n_lanes)
                sums = new_direction(self._n_lanes)
                rows = self._rows_of(arena, start, stop)
                kernels.add_direction(*rows, pair[:, width:], pair[:, :width], change, sums)
                local.direction = add_directions(local.direction, sums)
            if not self._is_resident:
                self._rows.save(chunk, [pair, active])

    @property
    def _is_resident(self) -> bool:
        assert self._stream is not None
        return self._stream.plan.resident

    def _rows_of(self, arena: RowArena, start: int, stop: int) -> tuple[Any, ...]:
        """Return what kernels take of rows: the loss, labels, classes and costs."""
        code = arena.code[start:stop]
        problem = self._problem
        cost = problem.row_costs(code, arena.weight[start:stop], arena.fold[start:stop])
        return problem.row_loss, problem.row_labels(code, arena.target[start:stop]), code, cost

    # -- passes -------------------------------------------------------------------------------------------------------

    def _work(
        self, stream: Stream, request: RoundRequest, w: np.ndarray, report: Report
    ) -> dict[str, np.ndarray]:
        """Make the local passes of a round from the common `w`."""
        chunks = self._chunks.tolist()
        training = request.lanes_in(TRAIN).size > 0
        self._require(request.committed, chunks)
        for chunk in chunks if training else ():
            self._round_of[chunk] = ""
        local = self._begin(request, w)
        for number in range(request.n_passes):
            last = number == request.n_passes - 1
            # after the last pass shards change hands
            for window in stream.windows(request.read + number, goes_on=not last):
                self._load(window, local, first_pass=number == 0)
                key = random_key(self.spec.seed, window.read, window.number)
                self._scaled_solver.visit(window, local.state, self._order, key)
                self._solver.add_at_zero(window, local.state)
                if training:
                    self._save(window, local, last_pass=last)
                report(window.n_entries)
            self._conclude_pass(local, number, last)
        for chunk in chunks if training else ():
            self._round_of[chunk] = request.token
        sums = {"totals": local.totals, "change": self._change(local, w), "direction": local.direction}
        if request.lanes_in(START, CERTIFY).size:
            sums |= {array.name: getattr(local.state, array.name) for array in self._solver.sums}
        return sums

    def _begin(self, request: RoundRequest, w: np.ndarray) -> _LocalRound:
        """Copy w, and set the costs of the local models: those of the problem times powers of two."""
        n_lanes = self._n_lanes
        sigma_prime = request.sigma_prime()
        self._scaled_problem.cost[:] = self._problem.cost * sigma_prime
        state = self._solver.new_state(ARRAYS)
        state.w[:] = w
        state.set_lanes(request.lanes)
        # without shrinking: rows that are at a bound at the local w need not be at the common one, and with it there are a
        # tenth more rounds and twice as many certificates
        state.high[:] = np.inf
        state.low[:] = -np.inf
        state.restore[:] = True
        if self._solver.acceleration:  # so that every pass counts all of the rows' alpha
            state.moves[:] = 0
        summed = self._solver.summing(state)
        if summed.size:
            getattr(state, self._solver.w_alpha)[:, lane_columns(summed, n_lanes, w.shape[1])] = 0.0
        totals = np.tile(NO_ROWS, (n_lanes, 1))
        change = np.zeros(n_lanes)
        return _LocalRound(request, state, sigma_prime, totals, change, new_direction(n_lanes), summed)

    def _conclude_pass(self, local: _LocalRound, number: int, last: bool) -> None:
        totals = local.state.totals
        totals[:, [Total.GAP, Total.LOSS, Total.DUAL, Total.ALPHA]] /= local.sigma_prime[:, None]
        totals[:, [Total.ALPHA_CURVATURE, Total.ALPHA_SQUARE]] /= local.sigma_prime[:, None] ** 2
        local.dual_change += totals[:, Total.DUAL]
        if number == 0:
            local.totals = totals.copy()
            local.state.phase[local.state.lanes_in(START, CERTIFY)] = DONE
        elif last:
            local.totals[:, _OF_LAST_PASS] = totals[:, _OF_LAST_PASS]
        totals[:] = NO_ROWS

    def _change(self, local: _LocalRound, w: np.ndarray) -> np.ndarray:
        """Return the change of w, and complete the sums."""
        n_vectors = w.shape[1]
        trained = local.request.lanes_in(TRAIN)
        local.totals[trained, Total.DUAL] = local.dual_change[trained]
        summed = lane_columns(local.summed, self._n_lanes, n_vectors)
        v = getattr(local.state, self._solver.w_alpha)[:, summed].copy() if summed.size else 0.0
        values = np.subtract(local.state.w, w, out=local.state.w)
        values /= np.repeat(local.sigma_prime, n_vectors // self._n_lanes)
        local.direction[:, APART] = lane_products(values, values, self._n_lanes)
        values[:, summed] = v
        return values


def _writable(problem: Problem) -> Problem:
    """Copy arrays received over the network: they may be read-only, and for those kernels would be compiled again."""
    arrays: dict[str, Any] = {
        field.name: np.array(getattr(problem, field.name))
        for field in fields(problem)
        if field.init and isinstance(getattr(problem, field.name), np.ndarray)
    }
    return replace(problem, **arrays)
