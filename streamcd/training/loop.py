"""The training loop of all solvers (reads, windows, stopping, log, checkpoints), and the base class of training loops."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..core.errors import CheckpointError, Interrupted, StreamcdError, UsageError
from ..core.memory_budget import make_room
from ..core.progress import Listener, Progress, TrainingStatus, telling_of_compilation
from ..core.randomness import random_key
from ..core.threads import Threads
from ..dataset.dataset import Dataset
from ..solvers import acceleration
from ..solvers.problem import Problem
from ..solvers.protocol import CERTIFY, DONE, START, TRAIN, Solver, new_totals
from ..stream.arenas import RowLayout
from ..stream.memory_plan import Plan, planned_bytes
from ..stream.stream import Stream
from ..stream.window import Window
from .checkpoint import Run
from .result import Outcome
from .stopping import (
    BY_TIME,
    StopRule,
    new_lane_arrays,
    reopen,
    update_lane_phases,
)
from .warm_start import WarmStart

StopRequested = Callable[[], int | None]
"""Callable that returns the number of a signal that requests a stop, or None; called after every window."""


_FIRST_CHECKPOINT = 1.0
"""Least number of seconds of a session until its first checkpoint: from then on the log can be followed, too. One at the
start took a third of a short training."""

_CHECKPOINT_RATE = 20_000_000
"""Bytes of a state for each of these seconds, of which writing takes a twentieth at 400 MB/s: with eight C, five folds and
494,000 rows (180 MB) a checkpoint after the first second took 0.3 to 0.6 s of a training of 4."""


_COUNTED_ROWS = 1 << 14
"""Rows of w at a time of which the weights that are not 0 are counted: numpy copies them."""


@dataclass(frozen=True)
class Session:
    """Environment of a training: listener, stop requests, workers and threads."""

    listener: Listener
    stop_requested: StopRequested | None
    client: Any = None  # of the workers; None if this process trains
    threads: Threads = field(default_factory=Threads)  # of this process
    until: float = math.inf  # time of the monotonic clock at which to stop


class _TimeIsUp(StreamcdError):
    """The time of a session is up; a checkpoint was saved."""


def deadline(max_seconds: float | None) -> float:
    """Return the time of the monotonic clock at which a session that begins now has to stop."""
    if max_seconds is None:
        return math.inf
    if not max_seconds > 0:
        raise UsageError(f"max_seconds: expected a number > 0, found {max_seconds}")
    return time.monotonic() + max_seconds


@dataclass(frozen=True)
class Task:
    """Specification of a training for a loop."""

    dataset: Dataset
    problem: Problem  # the lanes to train
    solver: Solver
    plan: Plan  # not used on workers, which make their own
    memory: int  # the budget, in bytes
    rule: StopRule
    seed: int
    checkpoint_every: float  # seconds
    run: str  # the run directory, for messages
    name: str = ""  # prefix of the phase in progress; empty if there is one task only
    warm_start: WarmStart | None = None


class TrainingLoop(ABC):
    """One session of a task, from the last checkpoint in a directory to the end or an interruption.

    A subclass carries out the reads. `directory` holds the state, the dual variables and the log.
    """

    passes_are_local = False
    """Violations are seen at other weights than those of the state, and count when the latter are certified."""

    def __init__(self, directory: Run, task: Task, session: Session) -> None:
        self.directory, self.task, self.listener = directory, task, session.listener
        self.stop_requested, self.until = session.stop_requested or (lambda: None), session.until
        self.started = time.monotonic()
        self.seconds_before, self.bytes_before = 0.0, 0
        self.kernel_seconds = 0.0
        self.state, self.paged = task.solver.new_state(), task.solver.paged
        centred = task.solver.layout.centred
        self.state.lanes.update(new_lane_arrays(task.problem, task.dataset, centred=centred))
        self.slots = directory.open_slots(
            task.dataset, task.solver.layout.state_bytes, self.paged.slots if self.paged else None
        )

    def run(self) -> Outcome:
        """Train until every lane is done."""
        lanes, ended = self.state.lanes, self.state.lanes["reason"].copy()
        if self.state.window == 0:
            reopen(self.state, self.task.rule)
        try:
            if self._has_open_lanes():
                self._stop_if_requested()
                self._train()
            elif (lanes["reason"] != ended).any():
                self._checkpoint()  # ended anew, by a looser rule: the state is the one record of a run's end
        except _TimeIsUp:
            # only in the outcome: the state on disk does not depend on time
            reason = np.where(lanes["phase"] == DONE, lanes["reason"], BY_TIME)
            lanes = {**lanes, "reason": reason}
        finally:
            self._close()
        support = {"n_nonzero": _support_sizes(self.state.w[:-1], self.task.problem.n_lanes)}
        return Outcome(lanes | support, self._seconds(), self._bytes_read(), self.kernel_seconds)

    @abstractmethod
    def _train(self) -> None:
        """Read the data until no lane is open."""

    @abstractmethod
    def _close(self) -> None:
        """Close files and connections."""

    def _has_open_lanes(self) -> bool:
        return bool(self.state.phase(START, TRAIN, CERTIFY).size)

    def _conclude_read(self, trained: np.ndarray) -> None:
        """Decide what each lane does, from the totals of the read that ended."""
        state, task = self.state, self.task
        state.lanes["restore"][:] = False
        update_lane_phases(
            state, task.rule, task.solver, str(task.dataset.path), at_fixed_w=self.passes_are_local
        )
        task.solver.end_read(state, trained)
        state.totals[:] = new_totals(task.problem.n_lanes)

    def _begin_next(self, n_reads: int) -> None:
        """Move on by the reads that were made, to the next one or to the end."""
        state, task = self.state, self.task
        state.read, state.window = state.read + n_reads, 0
        reopen(state, task.rule)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Prepare a new run; until its first checkpoint, resuming it begins anew."""
        self.slots.allocate()
        if self.paged:
            self.paged.write_constants()
        if self.task.warm_start is not None:
            self.task.warm_start.begin(self.state, self.task.solver, self.slots)

    def _checkpoint(self) -> None:
        """Replace the state on disk, which also records the length of the log, and refers to the slots."""
        arrays = self.state.stored_arrays() | {"slots": self.slots.current}
        arrays["seconds"] = np.array(self._seconds() - self.kernel_seconds)
        arrays["bytes_read"] = np.array(self._bytes_read())
        self.directory.write_state(arrays, self.slots.unsynced())
        self.slots.mark_durable()

    def _restore_checkpoint(self) -> None:
        """Continue from the last checkpoint, or begin a new run."""
        own = [*self.state.to_arrays().values(), self.state.w]  # with a w(alpha) of the size of w
        room = sum(array.nbytes for array in own) + self.task.dataset.n_chunks
        arrays = self.directory.read_state(room)
        if arrays is None:
            self._begin()
            return
        try:
            self.slots.restore(arrays.pop("slots"))
            self.seconds_before = float(arrays.pop("seconds"))
            self.bytes_before = int(arrays.pop("bytes_read"))
            self.state.load_arrays(arrays)
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                f"{self.directory.state_path}: does not fit the run's configuration ({error}); train again with --force"
            ) from None

    # -- reports ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _bytes_read(self) -> int:
        """Return the bytes read in all sessions."""

    @abstractmethod
    def _before_stop(self) -> str:
        """Save the state, if needed; returns a description of where a resumed run continues, for the message."""

    def _stop_if_requested(self) -> None:
        signum, time_is_up = self.stop_requested(), time.monotonic() >= self.until
        if signum is None and not time_is_up:
            return
        where, status = self._before_stop(), self._status(0)
        reached = f"{status.task}after pass {status.passes}"
        if not np.isnan(status.now):
            reached += f", {status.measure} about {status.now:.1e}, wanted {status.wanted:.1e}"
        advice = f"{reached}; 'streamcd resume {self.task.run}' {where}"
        if signum is not None:
            raise Interrupted(f"stopped by a signal {advice}", signum)
        self.listener.message(f"time is up {advice}")
        raise _TimeIsUp

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _status(self, passes_ahead: int) -> TrainingStatus:
        """Summarise the lanes; the read or round in progress adds `passes_ahead` passes."""
        lanes, rule = self.state.lanes, self.task.rule
        measured = lanes["seen_violation"]
        if rule.tol is not None:  # nan where there is no estimate yet
            measured = lanes["estimate"] / np.maximum(lanes["estimated_primal"], 1e-300)
        is_open = lanes["phase"] != DONE
        return TrainingStatus(
            task=self.task.name,
            passes=int(lanes["passes"].max()),
            passes_ahead=passes_ahead,
            max_passes=rule.max_passes,
            measure="violation" if rule.tol is None else "gap",
            now=float(measured[is_open].max()) if is_open.any() else math.nan,
            wanted=float(rule.eps or 0.0) if rule.tol is None else rule.tol,
        )

    def _report(self, phase: str, done: int, total: int, n_passes: int) -> None:
        """Report a part of a read, or of a round that adds `n_passes` passes, to a listener that is not the silent one."""
        if type(self.listener) is Listener:
            return
        status = self._status(n_passes)
        gap = "" if np.isnan(status.now) else f"{status.measure} about {status.now:.1e}"
        self.listener.progress(Progress(self.task.name + phase, done, total, "entries", gap, status))

    def _lane_figures(self) -> dict[str, Any]:
        """Summarise all lanes for a line of the log."""
        lanes, scale = self.state.lanes, self.task.problem.scale
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
            **acceleration.log_figures(lanes),
        }


class Loop(TrainingLoop):
    """Training in this process, window after window; see `TrainingLoop`."""

    def __init__(self, directory: Run, task: Task, session: Session) -> None:
        self.task = task
        self._make_room()
        super().__init__(directory, task, session)
        self.threads = task.solver.threads = session.threads
        self.next_checkpoint = math.inf
        self.meter = {"train": 0.0, "wait": 0.0, "state": 0.0}
        # chunks whose rows are in a resident arena, and the rows that the slots do not have yet
        self.present = np.zeros(task.dataset.n_chunks, dtype=bool)
        self.changed: dict[int, list[np.ndarray]] = {}
        self.stream: Stream | None = None
        self._restore_checkpoint()

    def _train(self) -> None:
        task, folds = self.task, self.task.problem.n_folds
        started = time.monotonic()
        with telling_of_compilation(self.listener, "train"):  # of a program that calls no decorated function
            task.solver.load_kernels(task.dataset, self.state)
        self.kernel_seconds = time.monotonic() - started
        n_bytes = task.dataset.n_rows * task.solver.layout.state_bytes + task.solver.memory.weights
        first = max(_FIRST_CHECKPOINT, n_bytes / _CHECKPOINT_RATE)
        self.next_checkpoint = time.monotonic() + min(task.checkpoint_every, first)
        options: dict[str, Any] = {"n_folds": folds}
        options["folder"] = self.directory.path if self.directory.has_files else None
        with Stream(task.dataset, task.plan, task.solver.layout, task.seed, **options) as stream:
            self.stream = stream
            self._make_room()  # the last kernels are loaded, and windows take no memory yet
            if task.warm_start is not None and isinstance(task.solver.layout, RowLayout):
                stream.begin_with(task.warm_start.new_chunks)
            self.order = np.empty(stream.largest_window_items + 1, dtype=np.int64)
            while self._has_open_lanes():
                self._read(stream)
            self._checkpoint()

    def _make_room(self) -> None:
        task = self.task
        planned = planned_bytes(task.plan, task.dataset, task.memory, task.solver.memory)
        make_room(task.memory, planned)

    def _close(self) -> None:
        self.threads.close()

    def _read(self, stream: Stream) -> None:
        """Carry out the rest of the current read."""
        state = self.state
        before = self._figures()
        certifying_only = not state.phase(TRAIN).size
        self.keeps = self._rows_stay()
        whole, back = bool(state.phase(START, CERTIFY).size), bool(state.lanes["restore"].any())
        stream.begin_read(all_rows=whole, rows_return=back)
        windows = self._rest_of_read(stream)
        n_windows = stream.n_windows(state.read)
        while True:
            started = time.monotonic()
            window = next(windows, None)
            self.meter["wait"] += time.monotonic() - started
            if window is not None:
                self._visit(window)
                if self.keeps:
                    self._keep_active(stream, window)
                state.window += 1
                self._report_read(n_windows, certifying_only)
            if state.window >= n_windows:
                self._end_read(before, certifying_only)
            self._pause()
            if state.window == 0:
                return

    def _rest_of_read(self, stream: Stream) -> Iterator[Window]:
        """Iterate over the windows to come; what a solver holds of those before, it gathers again in a resumed run."""
        state = self.state
        for window in stream.windows(state.read, 0 if self.task.solver.memory.held_bytes else state.window):
            if window.number < state.window:
                self._visit(window)
            else:
                yield window

    def _visit(self, window: Window) -> None:
        state, started = self.state, time.monotonic()
        training = bool(state.phase(TRAIN).size)
        self._load_rows(window)
        loaded = time.monotonic()
        key = random_key(self.task.seed, window.read, window.number)
        self.task.solver.visit(window, state, self.order, key)
        visited = time.monotonic()
        if training:
            self._save_rows(window)
        self.meter["train"] += visited - loaded
        self.meter["state"] += loaded - started + time.monotonic() - visited

    # -- dual variables: those of a resident dataset stay in the arena until a checkpoint ------------------------------

    def _load_rows(self, window: Window) -> None:
        arena, back = window.arena, bool(self.state.lanes["restore"].any())

        def load(chunk: int, start: int, stop: int) -> None:
            solver, rows = self.task.solver, [arena.alpha[start:stop], arena.active[start:stop]]
            if not self.present[chunk] and not self.slots.load(chunk, rows):
                solver.new_rows(arena, start, stop)
            self.present[chunk] = self.task.plan.resident
            if back:
                solver.restore_rows(self.state, arena, start, stop)

        chunks = [chunk for chunk in self._chunks(window) if back or not self.present[chunk[0]]]
        self._by_threads([partial(load, *chunk) for chunk in chunks])

    def _save_rows(self, window: Window) -> None:
        arena = window.arena
        for chunk, start, stop in self._chunks(window):
            self.changed[chunk] = [arena.alpha[start:stop], arena.active[start:stop]]
        if not self.task.plan.resident:
            self._flush_rows()

    def _flush_rows(self) -> None:
        self._by_threads([partial(self.slots.save, *changed) for changed in self.changed.items()])
        self.changed.clear()

    def _chunks(self, window: Window) -> list[tuple[int, int, int]]:
        """List the chunks of a window as `Window.chunk_ranges`; none if items have no state."""
        return list(window.chunk_ranges()) if self.task.solver.layout.state_bytes else []

    def _by_threads(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make a call for each of some chunks; for 10 kB each, two threads beside a reader took 1.25 times as long."""
        dataset, row_bytes = self.task.dataset, self.task.solver.layout.state_bytes
        self.threads.run(calls, len(calls) * row_bytes * dataset.n_rows // (8 * max(dataset.n_chunks, 1)))

    # -- active rows --------------------------------------------------------------------------------------------------

    def _rows_stay(self) -> bool:
        """Tell whether rows that shrink in this read are expected to stay out of the next."""
        lanes, training = self.state.lanes, self.state.phase(TRAIN)
        goes_on = (lanes["passes"][training] + 1 < self.task.rule.max_passes).any()
        return bool(goes_on) and not acceleration.recalls_after(lanes, training)

    def _keep_active(self, stream: Stream, window: Window) -> None:
        """Copy the rows that are active in any lane that is not done, for the next reads."""
        started, lanes = time.monotonic(), self.state.lanes
        columns = np.repeat(lanes["phase"] != DONE, self.task.problem.lane_vectors)
        if refusal := stream.keep_active(window, columns):
            self.listener.message(f"active rows are not copied to disk: {refusal}; all rows are read instead")
        self.meter["state"] += time.monotonic() - started

    def _end_read(self, before: Mapping[str, float], certifying_only: bool) -> None:
        state = self.state
        self._conclude_read(state.phase(TRAIN))
        if self.directory.has_files:
            self.directory.append_log(self._log_record(before, certifying_only))
        self._begin_next(1)

    def _pause(self) -> None:
        """Between windows, stop if requested, and save a checkpoint if one is due."""
        self._stop_if_requested()
        if time.monotonic() >= self.next_checkpoint:
            self._checkpoint()

    def _before_stop(self) -> str:
        self._checkpoint()
        return "goes on from here"

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        self._flush_rows()
        super()._checkpoint()
        self.next_checkpoint = time.monotonic() + self.task.checkpoint_every

    # -- reports ------------------------------------------------------------------------------------------------------

    def _bytes_read(self) -> int:
        of_dataset = self.stream.bytes_read if self.stream else 0
        return self.bytes_before + of_dataset + self.slots.bytes_read

    def _figures(self) -> dict[str, float]:
        """Return running totals; a log record has their differences."""
        read = self.stream.read_seconds if self.stream else 0.0
        return {"total": time.monotonic(), "read": read, "bytes_read": self._bytes_read(), **self.meter}

    def _report_read(self, n_windows: int, certifying_only: bool) -> None:
        number = int(self.state.lanes["passes"].max()) + (0 if certifying_only else 1)
        phase = f"certify after pass {number}" if certifying_only else f"pass {number}"
        n_entries = self.task.dataset.n_entries
        done = int(self.state.window / max(n_windows, 1) * n_entries)
        self._report(phase, done, n_entries, 0 if certifying_only else 1)

    def _log_record(self, before: Mapping[str, float], certifying_only: bool) -> dict[str, Any]:
        spent = {name: figure - before[name] for name, figure in self._figures().items()}
        bytes_read = int(spent.pop("bytes_read"))
        return {
            "read": self.state.read,
            "kind": "certify" if certifying_only else "train",
            **self._lane_figures(),
            "bytes_read": bytes_read,
            "scratch_bytes": self.stream.scratch_bytes if self.stream else 0,
            "seconds": {kind: round(seconds, 6) for kind, seconds in spent.items()},
        }


def _support_sizes(weights: np.ndarray, n_lanes: int) -> np.ndarray:
    """Count the weights of each lane that are not 0."""
    counts = np.zeros(weights.shape[1], dtype=np.int64)
    for start in range(0, weights.shape[0], _COUNTED_ROWS):
        counts += np.count_nonzero(weights[start : start + _COUNTED_ROWS], axis=0)
    return np.asarray(counts.reshape(n_lanes, -1).sum(axis=1))


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
