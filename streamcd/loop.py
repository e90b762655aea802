"""The loop: reads, windows, stopping, logging, checkpoints; the same for all solvers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import checkpoint
from .dataset import Dataset
from .errors import CheckpointError, Interrupted
from .memory_plan import Plan
from .problems import Problem
from .progress import Listener, Progress
from .randomness import random_key
from .result import Outcome
from .slot_store import SlotStore
from .solvers import CERTIFY, DONE, START, TRAIN, Solver, State, new_totals
from .stopping import StopRule, judge, new_lane_arrays, reopen
from .stream import Stream, Window
from .warm_start import WarmStart

StopRequested = Callable[[], int | None]
"""Asked after every window; gives the number of a signal that wants the run to stop, or None."""


@dataclass(frozen=True)
class Task:
    """What a loop is to do.

    Attributes
    ----------
    dataset : Dataset
    problem : Problem
        The lanes to train.
    solver : Solver
    plan : Plan
    rule : StopRule
    seed : int
    checkpoint_every : float
        Seconds.
    run : str
        The run directory, for messages.
    name : str
        Put before the phase in progress; empty where there is one task only.
    warm_start : WarmStart or None
        Where the dual variables begin.
    """

    dataset: Dataset
    problem: Problem
    solver: Solver
    plan: Plan
    rule: StopRule
    seed: int
    checkpoint_every: float
    run: str
    name: str = ""
    warm_start: WarmStart | None = None


class Loop:
    """One session of a task: from the last checkpoint in a directory to the end, or to an interruption.

    Parameters
    ----------
    directory : checkpoint.Run
        Holds the state, the dual variables and the log.
    task : Task
    listener : Listener
    stop_requested : callable
    """

    def __init__(
        self, directory: checkpoint.Run, task: Task, listener: Listener, stop_requested: StopRequested | None
    ) -> None:
        self.directory, self.task, self.listener = directory, task, listener
        self.stop_requested = stop_requested or (lambda: None)
        self.started = time.monotonic()
        self.last_checkpoint = self.started
        self.seconds_before, self.bytes_before = 0.0, 0
        self.meter = {"train": 0.0, "wait": 0.0, "state": 0.0}
        self.paged = task.solver.page_rows(directory.path / "rows", task.plan.page_rows)
        self.slots = self.paged.slots if self.paged else _chunk_slots(task, directory.path / "dual")
        self.state = task.solver.new_state()
        self.state.lanes.update(new_lane_arrays(task.problem.n_lanes))
        self.rows = _RowStates(self.slots, task.solver, task.dataset, task.plan.resident)
        self.stream: Stream | None = None
        self._take_checkpoint()

    def run(self) -> Outcome:
        """Train until every lane is done."""
        task, state = self.task, self.state
        if state.window == 0:
            reopen(state, task.rule)
        try:
            if self._open_lanes():
                folds = task.problem.n_folds
                with Stream(task.dataset, task.plan, task.solver.layout, task.seed, n_folds=folds) as stream:
                    self.stream = stream
                    self.order = np.empty(stream.largest_window_items + 1, dtype=np.int64)
                    while self._open_lanes():
                        self._read(stream)
                    self._checkpoint()
        finally:
            self.slots.close()
        return Outcome(state.lanes, self._seconds(), self._bytes_read())

    def _open_lanes(self) -> bool:
        return bool(self.state.phase(START, TRAIN, CERTIFY).size)

    def _read(self, stream: Stream) -> None:
        """Go through the rest of the current read."""
        state = self.state
        before = self._figures()
        certifying_only = not state.phase(TRAIN).size
        windows = stream.windows(state.read, state.window)
        n_windows = stream.n_windows(state.read)
        while True:
            started = time.monotonic()
            window = next(windows, None)
            self.meter["wait"] += time.monotonic() - started
            if window is not None:
                self._visit(window)
                state.window += 1
                self._report(n_windows, certifying_only)
            if state.window >= n_windows:
                self._end_read(before, certifying_only)
            self._pause()
            if state.window == 0:
                return

    def _visit(self, window: Window) -> None:
        state, started = self.state, time.monotonic()
        training = bool(state.phase(TRAIN).size)
        self.rows.load(window, state)
        loaded = time.monotonic()
        key = random_key(self.task.seed, window.read, window.number)
        self.task.solver.visit(window, state, self.order, key)
        visited = time.monotonic()
        if training:
            self.rows.save(window)
        self.meter["train"] += visited - loaded
        self.meter["state"] += loaded - started + time.monotonic() - visited

    def _end_read(self, before: Mapping[str, float], certifying_only: bool) -> None:
        state = self.state
        trained = state.phase(TRAIN)
        state.lanes["restore"][:] = False
        judge(state, self.task.rule, self.task.solver, str(self.task.dataset.path))
        self.task.solver.end_read(state, trained)
        reopen(state, self.task.rule)
        state.totals[:] = new_totals(self.task.problem.n_lanes)
        self.directory.append_log(self._log_record(before, certifying_only))
        state.read, state.window = state.read + 1, 0

    def _pause(self) -> None:
        """Between windows: save a checkpoint where it is time, and stop where that is wanted."""
        signum = self.stop_requested()
        if signum is not None:
            self._checkpoint()
            raise Interrupted(
                f"stopped by a signal; 'streamcd resume {self.task.run}' goes on from here", signum
            )
        if time.monotonic() - self.last_checkpoint >= self.task.checkpoint_every:
            self._checkpoint()

    def _checkpoint(self) -> None:
        self.rows.flush()
        self.slots.sync()
        arrays = self.state.to_arrays()
        arrays["slots"] = self.slots.current
        arrays["seconds"] = np.array(self._seconds())
        arrays["bytes_read"] = np.array(self._bytes_read())
        self.directory.write_state(arrays)
        self.slots.mark_durable()
        self.last_checkpoint = time.monotonic()

    def _take_checkpoint(self) -> None:
        arrays = self.directory.read_state()
        if arrays is None:  # a new run: a kill at any later moment finds something to resume
            self.slots.allocate()
            if self.paged:
                self.paged.write_constants()
            if self.task.warm_start is not None:
                self._begin(self.task.warm_start)
            self._checkpoint()
            return
        try:
            self.slots.restore(arrays.pop("slots"))
            self.seconds_before = float(arrays.pop("seconds"))
            self.bytes_before = int(arrays.pop("bytes_read"))
            self.state.take(arrays)
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                f"{self.directory.state_path}: does not fit the run's configuration ({error}); train again with --force"
            ) from None

    def _begin(self, start: WarmStart) -> None:
        """Take over what the solver asks for of another run."""
        state, brings = self.state, self.task.solver.warm_start
        if brings != "alpha":
            start.fill_weights(state.w)
        if brings == "w":
            # a read at this w gives its scores; that it fails as a certificate is no reason for later ones to be late
            state.lanes["phase"][:], state.lanes["caution"][:] = CERTIFY, 2.0
            return
        self._take_alpha(start, sum_up=brings == "alpha and w")
        if brings == "alpha and w":
            state.lanes["phase"][:] = TRAIN

    def _take_alpha(self, start: WarmStart, *, sum_up: bool) -> None:
        """Write the dual variables of another run to the slots, chunk by chunk; with the sum of the dual's terms."""
        task, row_start = self.task, self.task.dataset.row_start
        for chunk in range(task.dataset.n_chunks):
            n_rows = int(row_start[chunk + 1] - row_start[chunk])
            alpha = start.chunk_alpha(chunk, n_rows)
            active = np.ones((n_rows, task.solver.layout.n_flags), dtype=np.uint8)
            self.slots.save(chunk, [alpha, active])
            if sum_up:
                self.state.lanes["dual_sum"] += start.dual_terms(chunk, alpha)

    # -- telling ------------------------------------------------------------------------------------------------------

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _bytes_read(self) -> int:
        of_dataset = self.stream.bytes_read if self.stream else 0
        return self.bytes_before + of_dataset + self.slots.bytes_read

    def _figures(self) -> dict[str, float]:
        """Running sums, of which a log record gives the differences."""
        read = self.stream.read_seconds if self.stream else 0.0
        return {"total": time.monotonic(), "read": read, "bytes_read": self._bytes_read(), **self.meter}

    def _report(self, n_windows: int, certifying_only: bool) -> None:
        state, lanes = self.state, self.state.lanes
        number = int(lanes["passes"].max()) + (0 if certifying_only else 1)
        phase = self.task.name + (f"certify after pass {number}" if certifying_only else f"pass {number}")
        share = state.window / max(n_windows, 1)
        n_entries = self.task.dataset.n_entries
        gap = relative_estimate(state)
        note = "" if np.isnan(gap) else f"gap about {gap:.1e}"
        self.listener.progress(Progress(phase, int(share * n_entries), n_entries, "entries", note))

    def _log_record(self, before: Mapping[str, float], certifying_only: bool) -> dict[str, Any]:
        spent = {name: figure - before[name] for name, figure in self._figures().items()}
        bytes_read = int(spent.pop("bytes_read"))
        return {
            "read": self.state.read,
            "kind": "certify" if certifying_only else "train",
            **lane_figures(self.state, self.task.problem.scale),
            "bytes_read": bytes_read,
            "seconds": {kind: round(seconds, 6) for kind, seconds in spent.items()},
        }


def _chunk_slots(task: Task, folder: Path) -> SlotStore:
    """Where the dual variables of rows are kept."""
    layout, dataset = task.solver.layout, task.dataset
    n_chunks = dataset.n_chunks if layout.state_bytes else 0  # no slots where nothing is kept by chunk
    return SlotStore(
        folder, dataset.chunk_part[:n_chunks], np.diff(dataset.row_start)[:n_chunks], layout.state_bytes
    )


def lane_figures(state: State, scale: float) -> dict[str, Any]:
    """What a line of the log says of all lanes together; `scale` is the problem's."""
    lanes = state.lanes
    return {
        "passes": int(lanes["passes"].max()),
        "open_lanes": int((lanes["phase"] != DONE).sum()),
        "objective_estimate": _finite(scale * lanes["estimated_primal"].sum()),
        "gap_estimate": _finite(scale * lanes["estimate"].sum()),
        "primal": _finite(scale * lanes["primal"].sum()),
        "dual": _finite(scale * lanes["dual"].sum()),
        "gap": _finite(scale * lanes["gap"].sum()),
        "violation": _finite(lanes["seen_violation"].max()),
        "active_rows": int(lanes["n_active"].sum()),
    }


def relative_estimate(state: State) -> float:
    """The largest relative gap that a lane in work is thought to have; nan where there is no estimate."""
    lanes = state.lanes
    open_lanes = lanes["phase"] != DONE
    if not open_lanes.any() or np.isnan(lanes["estimate"][open_lanes]).any():
        return float("nan")
    primal = np.maximum(lanes["estimated_primal"][open_lanes], 1e-300)
    return float((lanes["estimate"][open_lanes] / primal).max())


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


class _RowStates:
    """Brings the rows' dual variables of a window in from the slots, and back.

    Of a resident dataset they stay in the arena, and `flush` writes what changed; else they go with every visit.
    """

    def __init__(self, slots: SlotStore, solver: Solver, dataset: Dataset, resident: bool) -> None:
        self._slots, self._solver = slots, solver
        self._resident = resident
        self._is_empty = solver.layout.state_bytes == 0
        self._present = np.zeros(dataset.n_chunks, dtype=bool)
        self._changed: dict[int, list[np.ndarray]] = {}

    def load(self, window: Window, state: State) -> None:
        arena = window.arena
        for chunk, start, stop in () if self._is_empty else window.pieces():
            if not self._present[chunk]:
                if not self._slots.load(chunk, [arena.alpha[start:stop], arena.active[start:stop]]):
                    self._solver.new_rows(arena, start, stop)
                self._present[chunk] = self._resident
            self._solver.restore_rows(state, arena, start, stop)

    def save(self, window: Window) -> None:
        arena = window.arena
        for chunk, start, stop in () if self._is_empty else window.pieces():
            arrays: list[np.ndarray] = [arena.alpha[start:stop], arena.active[start:stop]]
            if self._resident:
                self._changed[chunk] = arrays
            else:
                self._slots.save(chunk, arrays)

    def flush(self) -> None:
        for chunk, arrays in self._changed.items():
            self._slots.save(chunk, arrays)
        self._changed.clear()
