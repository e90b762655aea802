"""One partition's part of a round: local passes over its shards from the common w, by the same code in a worker and in a
simulation.

The dual variables of a round come and go through the coordinating process, which keeps them in the run (`records`). They
are a small part of what is read (16 to 32 bytes a row; the entries take 8 each). A record holds for every row the base (the
variables at the start of the round), the candidate (those at the end of its passes), and the active flags. Every attempt at
a round writes a folder of its own, so that a worker that is excluded but still writes damages nothing. A commit names the
folder of the round and its step eta; ``base + eta (candidate - base)`` is computed at the next read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core.randomness import random_key
from ..kernels.primitives import (
    ALPHA,
    ALPHA_CURVATURE,
    ALPHA_SQUARE,
    DUAL,
    GAP,
    LOSS,
    N_STEPS,
    N_VISITED,
)
from ..kernels.rounds import APART, Step
from ..solvers.protocol import CERTIFY, DONE, START, TRAIN, State, new_totals
from ..solvers.registry import make_solver
from ..stream.slot_store import SlotStore, chunk_slots
from ..stream.window import RowArena, Window
from .block_steps import (
    add_slopes,
    alpha_columns,
    apply_step,
    direction,
    lane_columns,
    lane_products,
    new_direction,
)
from .rounds import RoundRequest, RoundResponse, WorkerSpec, add_directions
from .shards import Report, ShardReader

_OF_LAST_PASS = [N_STEPS, N_VISITED, ALPHA, ALPHA_CURVATURE, ALPHA_SQUARE]
"""Totals that are those of the last local pass."""


@dataclass
class _LocalRound:
    """Round in progress: its request, and the sums so far."""

    request: RoundRequest
    state: State
    sigma_prime: np.ndarray
    totals: np.ndarray
    dual_change: np.ndarray
    direction: np.ndarray
    reader: SlotStore  # of the last committed round
    writer: SlotStore  # of this attempt


class Partition(ShardReader):
    """Some shards of a dataset, ascending, and the local passes over them, round after round."""

    def __init__(self, spec: WorkerSpec, shards: list[int]) -> None:
        # kappa and centre are the coordinating process's: here any fixed kappa stands for it
        options: dict[str, Any] = {"acceleration": "none" if spec.acceleration == "none" else 1.0}
        super().__init__(spec, len(shards), **options)
        # the local model is a problem whose costs are sigma' times as large
        self._scaled_problem = replace(self._problem, cost=self._problem.cost.copy())
        self._scaled_solver = make_solver(self._scaled_problem, spec.method, self.dataset, **options)
        self._width = self._solver.layout.alpha_width
        # in a resident arena: the folder whose records the rows of a chunk hold, and whether the step was applied
        self._holds: list[str | None] = [None] * self.dataset.n_chunks
        self._applied = np.zeros(self.dataset.n_chunks, dtype=bool)
        self._arena: RowArena | None = None
        self.assign(shards)

    def assign(self, shards: list[int]) -> None:
        """Take these shards from now on; those read before stay in memory as long as there is room."""
        for chunk in self._take(shards).tolist():
            self._holds[chunk] = None

    def run(
        self, request: RoundRequest, w: np.ndarray, report: Report | None = None, worker: str = ""
    ) -> RoundResponse:
        """Make the local passes of a round from the common `w`, which is not changed; `worker` is the name of this one."""
        started, bytes_before = time.monotonic(), self._stream.bytes_read
        training = request.phase(TRAIN).size > 0
        local = self._begin(request, w)
        for number in range(request.n_passes):
            last = number == request.n_passes - 1
            # after the last pass shards change hands
            for window in self._stream.windows(request.read + number, goes_on=not last):
                self._load(window, local, first_pass=number == 0)
                key = random_key(self.spec.seed, window.read, window.number)
                self._scaled_solver.visit(window, local.state, self._order, key)
                if training:
                    self._save(window, local, last_pass=last)
                if report is not None:
                    report(window.n_entries)
            self._conclude_pass(local, number, last)
        for store in (local.reader, local.writer):
            store.close()
        return RoundResponse(
            totals=local.totals,
            change=self._change(local, w),
            direction=local.direction,
            seconds={worker: time.monotonic() - started},
            bytes_read=self._stream.bytes_read
            - bytes_before
            + local.reader.bytes_read
            + local.writer.bytes_read,
            sums=local.state.matrices,
        )

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum the terms of `block_steps.add_slopes` over the rows at a step, after `run`."""
        total = np.zeros((self._n_lanes, 3))
        width, arena = self._width, self._arena
        records = self._saved_records(request.token)
        for chunk in self._own.tolist():
            n_rows = int(self.dataset.row_start[chunk + 1] - self.dataset.row_start[chunk])
            if arena is not None and self._holds[chunk] == request.token:
                start = self._stream.resident_start(chunk)
                pair = arena.alpha[start : start + n_rows]
            else:
                pair = np.empty((n_rows, 2 * width))
                active = np.empty((n_rows, self._layout.n_flags), dtype=np.uint8)
                records.load(chunk, [pair, active])
            add_slopes(self._problem, pair[:, width:], pair[:, :width], eta, total)
        records.close()
        return total

    def close(self) -> None:
        """Stop reading, and close all files."""
        self._stream.close()

    # -- passes -------------------------------------------------------------------------------------------------------

    def _begin(self, request: RoundRequest, w: np.ndarray) -> _LocalRound:
        """Copy w, and set the costs of the local models: those of the problem times powers of two."""
        n_lanes, sigma_prime = self._n_lanes, request.sigma_prime()
        self._scaled_problem.cost[:] = self._problem.cost * sigma_prime
        lanes = _local_lanes(request.lanes)
        sums = self._solver.new_sums() if request.phase(START, CERTIFY).size else {}
        state = State(w.copy(), np.zeros_like(w), new_totals(n_lanes), lanes, matrices=sums)
        return _LocalRound(
            request,
            state,
            sigma_prime,
            new_totals(n_lanes),
            np.zeros(n_lanes),
            new_direction(n_lanes),
            self._saved_records(request.committed),
            self._records(request.token if request.phase(TRAIN).size else ""),
        )

    def _conclude_pass(self, local: _LocalRound, number: int, last: bool) -> None:
        totals = local.state.totals
        totals[:, [GAP, LOSS, DUAL, ALPHA]] /= local.sigma_prime[:, None]
        totals[:, [ALPHA_CURVATURE, ALPHA_SQUARE]] /= local.sigma_prime[:, None] ** 2
        local.dual_change += totals[:, DUAL]
        if number == 0:
            local.totals = totals.copy()
            phase = local.state.lanes["phase"]
            local.state.lanes["phase"] = np.where(np.isin(phase, (START, CERTIFY)), DONE, phase)
        elif last:
            local.totals[:, _OF_LAST_PASS] = totals[:, _OF_LAST_PASS]
        totals[:] = new_totals(self._n_lanes)

    def _change(self, local: _LocalRound, w: np.ndarray) -> np.ndarray:
        """Return the change of w, and complete the sums."""
        n_vectors, trained = w.shape[1], local.request.phase(TRAIN)
        local.totals[trained, DUAL] = local.dual_change[trained]
        certified = lane_columns(local.request.phase(START, CERTIFY), self._n_lanes, n_vectors)
        values = np.subtract(local.state.w, w, out=local.state.w)
        values /= np.repeat(local.sigma_prime, n_vectors // self._n_lanes)
        local.direction[:, APART] = lane_products(values, values, self._n_lanes)
        values[:, certified] = local.state.w_alpha[:, certified]
        return values

    # -- rows in and out ----------------------------------------------------------------------------------------------

    def _load(self, window: Window, local: _LocalRound, *, first_pass: bool) -> None:
        request, arena = local.request, window.arena
        self._arena = arena if self.plan.resident else None
        for chunk, start, stop in window.chunk_ranges():
            if first_pass:
                self._load_committed(arena, chunk, start, stop, local)
                arena.alpha[start:stop, : self._width] *= alpha_columns(self._problem, local.sigma_prime)
                if request.phase(TRAIN).size:
                    self._solver.restore_rows(local.state, arena, start, stop)
                    self._holds[chunk], self._applied[chunk] = request.token, False
            elif not self.plan.resident:
                pair = arena.alpha[start:stop]
                local.writer.load(chunk, [pair, arena.active[start:stop]])

    def _load_committed(self, arena: RowArena, chunk: int, start: int, stop: int, local: _LocalRound) -> None:
        """Load the committed state of a chunk, base and candidate both where the last step ended."""
        request = local.request
        pair, active, width = arena.alpha[start:stop], arena.active[start:stop], self._width
        if self.plan.resident and self._holds[chunk] == request.committed:
            if self._applied[chunk]:
                return
        elif not request.committed:
            self._solver.new_rows(arena, start, stop)
            pair[:, width:] = pair[:, :width]
        else:
            local.reader.load(chunk, [pair, active])
        if request.committed:
            rows = self._row_costs(arena, start, stop)
            step = Step(pair[:, width:], pair[:, :width], request.eta)
            pair[:, :width] = apply_step(self._problem, step, active, *rows)
            pair[:, width:] = pair[:, :width]
        self._holds[chunk], self._applied[chunk] = request.committed, True

    def _save(self, window: Window, local: _LocalRound, *, last_pass: bool) -> None:
        arena, problem, width = window.arena, self._problem, self._width
        for chunk, start, stop in window.chunk_ranges():
            pair, active = arena.alpha[start:stop], arena.active[start:stop]
            if last_pass:
                pair[:, :width] /= alpha_columns(problem, local.sigma_prime)
            if last_pass or not self.plan.resident:
                local.writer.save(chunk, [pair, active])
            if last_pass:
                rows = self._row_costs(arena, start, stop)
                sums = direction(problem, pair[:, width:], pair[:, :width], *rows)
                local.direction = add_directions(local.direction, sums)

    def _row_costs(self, arena: RowArena, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Return costs, classes and targets of rows."""
        code, cost_of = arena.code[start:stop], self._problem.row_costs
        cost = cost_of(code, arena.weight[start:stop], arena.fold[start:stop])
        return cost, code, arena.target[start:stop]

    # -- files --------------------------------------------------------------------------------------------------------

    @property
    def _n_lanes(self) -> int:
        return self._problem.n_lanes

    def _records(self, token: str) -> SlotStore:
        """Open the dual variables of a round: one slot a chunk; before the first one the store has no chunks."""
        row_bytes = self._layout.state_bytes if token else 0
        return chunk_slots(self._folder / token, self.dataset, row_bytes, self.spec.identity, n_slots=1)

    def _saved_records(self, token: str) -> SlotStore:
        """Open the dual variables of a round that was made."""
        store = self._records(token)
        store.restore(np.zeros_like(store.current))
        return store


def _local_lanes(lanes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copy per-lane arrays for a partition, which does not shrink its rows.

    Rows that are at a bound at the local w need not be at the common one. With shrinking they
    take a tenth more rounds and twice as many certificates.
    """
    local = {name: np.array(array) for name, array in lanes.items()}
    local["high"][:], local["low"][:], local["restore"][:] = np.inf, -np.inf, True
    if "moves" in local:  # so that every pass counts all of the rows' alpha
        local["moves"][:] = 0
    return local
