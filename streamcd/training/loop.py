"""The training loop of all solvers (reads, windows, stopping, log, checkpoints), and the base class of training loops."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..core.errors import Interrupted, StreamcdError
from ..core.files import Positive, Seconds
from ..core.memory_budget import RUNNING_BYTES, make_room, return_heap
from ..core.options import Listener, Progress, TrainingStatus
from ..core.parallel import Threads
from ..core.setting import random_key
from ..dataset.dataset import Dataset
from ..dataset.feature_order import SOURCE_ORDER
from ..kernels.compile import load_together
from ..solvers.acceleration import TOLD, restores_rows_after
from ..solvers.problem import Problem
from ..solvers.protocol import CERTIFY, DONE, NO_ROWS, START, TRAIN, Array
from ..stream.arenas import RowLayout, Window
from ..stream.memory_plan import Plan, resident_bytes
from ..stream.stream import Stream
from . import checkpoint, stopping
from .checkpoint import AnyRun, Run
from .result import Outcome
from .stopping import (
    BY_TIME,
    StopRule,
    relative,
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
"""Bytes of a state for each of these seconds, of which writing takes a twentieth at 400 MB/s."""


ARRAYS = (
    *stopping.ARRAYS,
    Array("seconds", "of training, without loading kernels", axes=()),
    Array("bytes_read", "from the files of the dataset and of the dual variables", int, axes=()),
)
"""State of a loop, and of its rules."""


@dataclass(frozen=True)
class Session:
    """Environment of a training: listener, stop requests, workers and threads."""

    listener: Listener
    stop_requested: StopRequested | None
    n_threads: int | None = None  # of this process
    until: float = math.inf  # time of the monotonic clock at which to stop
    client: Any = None  # of the workers; None if this process trains
    stage: str = ""  # prefix of the phase in progress


class _TimeIsUp(StreamcdError):
    """The time of a session is up; a checkpoint was saved."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Part of a run's configuration that the loop follows."""

    memory: Positive  # of this process, or of a worker; bytes
    plan: Plan  # not used on workers, which make their own
    rule: StopRule
    checkpoint_every: Seconds
    seed: int  # of the order of visits


class TrainingLoop(ABC):
    """One session of a training, from the last checkpoint in a directory to the end or an interruption.

    A subclass carries out the reads. `directory` holds the state, the dual variables and the log.
    """

    passes_are_local = False
    """Violations are seen at other weights than those of the state, and count when the latter are certified."""

    arrays = ARRAYS

    def __init__(
        self,
        directory: AnyRun,
        config: LoopConfig,
        dataset: Dataset,
        solver: Any,
        session: Session,
        warm_start: WarmStart | None = None,
    ) -> None:
        self.config = config
        self.dataset = dataset
        self.solver = solver  # a `Solver`
        self.problem: Problem = solver.problem
        self.warm_start = warm_start  # of the rows and lanes of another run
        self.session = session
        self.stage = session.stage
        self.directory = directory
        self.listener = session.listener
        self.stop_requested = session.stop_requested or (lambda: None)
        self.until = session.until
        self.started = time.monotonic()  # less the seconds of earlier sessions
        self.kernel_seconds = 0.0
        self.state = self.solver.new_state(self.arrays)
        self.bytes_before = 0
        self.slots = directory.open_slots(self.dataset, solver.layout.state_bytes)

    @property
    def rank(self) -> np.ndarray:
        """Places of the features in the arrays of the state, made when first asked for."""
        return self.dataset.feature_rank if self.solver.layout.ranked else SOURCE_ORDER

    @np.errstate(all="ignore")  # numbers that are not finite are told after every read
    def run(self) -> Outcome:
        """Train until every lane is done."""
        state = self.state
        ended = state.reason.copy()
        if self.state.window == 0:
            reopen(self.state, self.config.rule)
        try:
            if self._has_open_lanes():
                self._stop_if_requested()
                self._train()
            elif (state.reason != ended).any():
                self._checkpoint()  # ended anew, by a looser rule: the state is the one record of a run's end
            outcome = state.lanes
        except _TimeIsUp:
            # only in the outcome: the state on disk does not depend on time
            reason = np.where(state.phase == DONE, state.reason, BY_TIME)
            outcome = {**state.lanes, "reason": reason}
        w = state.w[:-1]  # counted in blocks: numpy copies them
        counts: Any = sum(
            np.count_nonzero(rows, axis=0) for rows in np.array_split(w, 1 + w.size // (1 << 20))
        )
        support = {"n_nonzero": counts.reshape(state.phase.size, -1).sum(axis=1)}
        return Outcome(
            outcome | support, time.monotonic() - self.started, self._bytes_read(), self.kernel_seconds
        )

    @abstractmethod
    def _train(self) -> None:
        """Read the data until no lane is open."""

    def _has_open_lanes(self) -> bool:
        return bool((self.state.phase != DONE).any())

    def _conclude_read(self, trained: np.ndarray, n_reads: int) -> None:
        """Decide what each lane does, from the totals of the read that ended, or of several, and move on to the next one."""
        state = self.state
        state.restore[:] = False
        update_lane_phases(
            state, self.config.rule, self.solver, str(self.dataset.path), at_fixed_w=self.passes_are_local
        )
        self.solver.end_read(state, trained)
        state.totals[:] = NO_ROWS
        state.position[:] = state.read + n_reads, 0
        reopen(state, self.config.rule)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Replace the state on disk, which also records the length of the log, and refers to the slots."""
        self.state.seconds[...] = time.monotonic() - self.started - self.kernel_seconds
        self.state.bytes_read[...] = self._bytes_read()
        arrays = self.state.stored_arrays(self.rank) | {"slots": self.slots.current}
        self.directory.write_state(
            arrays,
            self.slots.unsynced(),  # safety: durability::power_cut[train streamed]
        )
        self.slots.mark_durable()  # safety: resume::disk_that_fills_up[12-False]

    def _restore_checkpoint(self) -> None:
        """Continue from the last checkpoint, or begin a new run."""
        with self.directory.open_state(self.state.most_bytes + self.dataset.n_chunks) as arrays:
            if arrays:
                self.slots.restore(arrays["slots"])
                self.state.load_arrays(arrays, self.rank, beside=("slots", *checkpoint.STAMPS))
            else:
                # until its first checkpoint, resuming a run begins anew
                self.slots.allocate()
                if self.warm_start is not None:
                    self.warm_start.begin(self.state, self.solver, self.slots, self.rank)
        self.started -= float(self.state.seconds)
        self.bytes_before = int(self.state.bytes_read)

    # -- reports ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _bytes_read(self) -> int:
        """Return the bytes read in all sessions."""

    @abstractmethod
    def _before_stop(self) -> str:
        """Save the state, if needed; returns a description of where a resumed run continues, for the message."""

    def _stop_if_requested(self) -> None:
        signum = self.stop_requested()
        time_is_up = time.monotonic() >= self.until
        if signum is None and not time_is_up:
            return
        where = self._before_stop()
        status = self._status()
        reached = f"{status.task}after pass {status.passes}"
        if not np.isnan(status.now):
            reached += f", {status.measure} about {status.now:.1e}, wanted {status.wanted:.1e}"
        advice = f"{reached}; 'streamcd resume {self.directory.name}{where}"
        if signum is not None:
            raise Interrupted(f"stopped by a signal {advice}", signum)
        self.listener.message(f"time is up {advice}")
        raise _TimeIsUp

    def _status(self) -> TrainingStatus:
        """Summarise the lanes."""
        lanes = self.state.lanes
        rule = self.config.rule
        measured = lanes["seen_violation"]
        if rule.tol is not None:  # nan where there is no estimate yet
            measured = relative(lanes, "estimate", "estimated_primal")
        is_open = lanes["phase"] != DONE
        return TrainingStatus(
            task=self.stage,
            passes=int(lanes["passes"].max()),
            measure="violation" if rule.tol is None else "gap",
            now=float(measured[is_open].max()) if is_open.any() else math.nan,
            wanted=float(rule.eps or 0.0) if rule.tol is None else rule.tol,
        )

    def _report(self, phase: str, done: int, total: int) -> None:
        """Report a part of a read or round to a listener that is not the silent one."""
        if type(self.listener) is Listener:
            return
        status = self._status()
        gap = "" if np.isnan(status.now) else f"{status.measure} about {status.now:.1e}"
        self.listener.progress(Progress(self.stage + phase, done, total, "entries", gap, status))

    def _lane_figures(self) -> dict[str, Any]:
        """Summarise all lanes for a line of the log."""
        lanes = self.state.lanes
        scale = self.problem.scale
        names = {"objective_estimate": "estimated_primal", "gap_estimate": "estimate"}
        names |= {name: name for name in ("primal", "dual", "gap")}
        figures = {name: float(scale * lanes[array].sum()) for name, array in names.items()}
        largest = {
            "relative_gap_estimate": relative(lanes, "estimate", "estimated_primal"),
            "relative_gap": relative(lanes),
            "violation": lanes["seen_violation"],
        }
        figures |= {name: float(of_lanes.max()) for name, of_lanes in largest.items()}
        return {
            "passes": int(lanes["passes"].max()),
            "open_lanes": int((lanes["phase"] != DONE).sum()),
            **{name: figure if np.isfinite(figure) else None for name, figure in figures.items()},
            "active_rows": int(lanes["n_active"].sum()),
            **{name: [float(lanes[name].min()), float(lanes[name].max())] for name in TOLD if name in lanes},
        }


class Loop(TrainingLoop):
    """Training in this process, window after window; see `TrainingLoop`."""

    def __init__(
        self, directory: AnyRun, config: LoopConfig, dataset: Dataset, solver: Any, *more: Any
    ) -> None:
        self.planned = config.memory - RUNNING_BYTES
        if config.plan.resident:
            self.planned = resident_bytes(solver.layout.open(dataset), solver.memory)
        make_room(config.memory, self.planned)
        super().__init__(directory, config, dataset, solver, *more)
        self.threads = solver.threads = Threads(self.session.n_threads)
        self.solver.tol = self.config.rule.tol or 0.0
        self.next_checkpoint = math.inf
        # chunks whose rows are in a resident arena, and the rows that the slots do not have yet
        self.present = np.zeros(self.dataset.n_chunks, dtype=bool)
        self.changed: dict[int, list[np.ndarray]] = {}
        self.stream: Stream | None = None
        self._restore_checkpoint()

    def _train(self) -> None:
        layout = self.solver.layout
        started = time.monotonic()
        none = np.zeros(0)

        def load() -> None:
            self.solver.load_kernels(self.dataset, self.state)
            self.problem.add_losses_at_zero(
                np.zeros(self.problem.n_lanes), none.astype(np.int64), none, none, 0.0
            )

        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: self.rank)  # beside the kernels, and before windows take memory
            # a second training in a process has use for freed memory: to get it from the system anew takes milliseconds
            if load_together(load):
                return_heap()
            self.kernel_seconds = time.monotonic() - started
        n_bytes = (
            self.dataset.n_rows * layout.state_bytes + self.solver.memory.weights + self.solver.memory.rows
        )
        first = max(_FIRST_CHECKPOINT, n_bytes / _CHECKPOINT_RATE)
        self.next_checkpoint = time.monotonic() + min(self.config.checkpoint_every, first)
        folder = self.directory.path if isinstance(self.directory, Run) else None
        options: dict[str, Any] = {"n_folds": self.problem.n_folds, "folder": folder}
        stream = Stream(self.dataset, self.config.plan, layout, self.config.seed, **options)
        with closing(self.threads), stream:
            self.stream = stream
            make_room(
                self.config.memory, self.planned
            )  # the last kernels are loaded, and windows take no memory yet
            if self.warm_start is not None and isinstance(layout, RowLayout):
                stream.begin_with(self.warm_start.new_chunks)
            self.order = np.empty(stream.largest_window_items + 1, dtype=np.int64)
            while self._has_open_lanes():
                self._read(stream)
            self._checkpoint()

    def _read(self, stream: Stream) -> None:
        """Carry out the rest of the current read."""
        state = self.state
        spent = dict.fromkeys(("total", "read", "train", "wait", "state"), 0.0)
        begun = time.monotonic()
        read_before = stream.read_seconds
        bytes_before = self._bytes_read()
        trained = state.lanes_in(TRAIN)
        # rows that shrink in this read are expected to stay out of the next
        goes_on = (state.passes[trained] + 1 < self.config.rule.max_passes).any()
        rows_stay = bool(goes_on) and not restores_rows_after(state, trained)
        whole = state.lanes_in(START, CERTIFY).size > 0
        stream.begin_read(all_rows=whole, rows_return=bool(state.restore.any()))
        n_passes = int(trained.size > 0)
        n_entries = self.dataset.n_entries
        phase = f"{'' if n_passes else 'certify after '}pass {int(state.passes.max()) + n_passes}"
        waiting = time.monotonic()
        # what a solver holds of the windows before, it gathers again in a resumed run
        for window in stream.windows(state.read, 0 if self.solver.memory.held_bytes else state.window):
            spent["wait"] += time.monotonic() - waiting
            self._visit(window, spent)
            if window.number == state.window:
                if rows_stay:
                    started = time.monotonic()
                    columns = np.repeat(state.phase != DONE, self.problem.lane_vectors)
                    if refusal := stream.keep_active(window, columns):
                        self.listener.message(
                            f"active rows are not copied to disk: {refusal}; all rows are read instead"
                        )
                    spent["state"] += time.monotonic() - started
                state.position[1] += 1
                self._report(phase, int(state.window / window.count * n_entries), n_entries)
                if state.window < window.count:
                    self._pause()
            waiting = time.monotonic()
        number = state.read
        self._conclude_read(trained, 1)
        spent["total"] = time.monotonic() - begun
        spent["read"] = stream.read_seconds - read_before
        if isinstance(self.directory, Run):
            record = {
                "read": number,
                "kind": "train" if n_passes else "certify",
                **self._lane_figures(),
                "bytes_read": self._bytes_read() - bytes_before,
                "scratch_bytes": stream.scratch_bytes,
                "seconds": {kind: round(seconds, 6) for kind, seconds in spent.items()},
            }
            self.directory.append_log(record)
        if self._has_open_lanes():
            self._pause()

    def _visit(self, window: Window, spent: dict[str, float]) -> None:
        """Visit a window, with the dual variables of its rows; resident ones stay in the arena until a checkpoint."""
        state = self.state
        solver = self.solver
        arena = window.arena
        started = time.monotonic()
        back = bool(state.restore.any())
        training = bool(state.lanes_in(TRAIN).size)
        chunks = list(window.chunk_ranges()) if solver.layout.state_bytes else []

        def load(chunk: int, start: int, stop: int) -> None:
            rows = [arena.alpha[start:stop], arena.active[start:stop]]
            if not self.present[chunk] and not self.slots.load(chunk, rows):
                solver.new_rows(arena, start, stop)
            self.present[chunk] = self.config.plan.resident
            if back:
                solver.restore_rows(state, arena, start, stop)

        self._by_threads([partial(load, *one) for one in chunks if back or not self.present[one[0]]])
        loaded = time.monotonic()
        solver.visit(window, state, self.order, random_key(self.config.seed, window.read, window.number))
        solver.add_at_zero(window, state)
        visited = time.monotonic()
        for chunk, start, stop in chunks if training else ():
            self.changed[chunk] = [arena.alpha[start:stop], arena.active[start:stop]]
        if not self.config.plan.resident:
            self._flush_rows()
        spent["train"] += visited - loaded
        spent["state"] += loaded - started + time.monotonic() - visited

    def _flush_rows(self) -> None:
        self._by_threads([partial(self.slots.save, *changed) for changed in self.changed.items()])
        self.changed.clear()

    def _by_threads(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make a call for each of some chunks; for 10 kB each, two threads beside a reader took 1.25 times as long."""
        dataset = self.dataset
        row_bytes = self.solver.layout.state_bytes
        self.threads.run(calls, len(calls) * row_bytes * dataset.n_rows // (8 * max(dataset.n_chunks, 1)))

    def _pause(self) -> None:
        """Stop if requested, and save a checkpoint if one is due."""
        self._stop_if_requested()
        if time.monotonic() >= self.next_checkpoint:
            self._checkpoint()

    def _before_stop(self) -> str:
        self._checkpoint()
        return "' goes on from here"

    def _checkpoint(self) -> None:
        self._flush_rows()
        super()._checkpoint()
        self.next_checkpoint = time.monotonic() + self.config.checkpoint_every

    def _bytes_read(self) -> int:
        of_dataset = self.stream.bytes_read if self.stream else 0
        return self.bytes_before + of_dataset + self.slots.bytes_read
