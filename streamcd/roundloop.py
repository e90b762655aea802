"""The loop of a distributed training: rounds, stopping, logging, commits; whoever carries the partitions out.

The coordinating process holds w, decides what every lane does next by the very rules of a single process (`stopping`),
and commits: ``state.npz``, replaced whole after every round, names the folder of the dual variables and the step eta. A
round that loses a worker leaves no trace and is repeated from there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import checkpoint
from .atomic_files import sync
from .engines import Engine, Joint, SerialEngine, Simulation, WorkersLost, shard_entries
from .errors import CheckpointError, EnvironmentFailure, Interrupted
from .kernels import DUAL, GAP
from .loop import StopRequested, Task, lane_figures, relative_estimate
from .partition import Assignment, Order, line_search_is_closed, paired_layout
from .progress import Listener, Progress
from .randomness import random_key
from .result import Outcome
from .rounds import (
    APART,
    LINEAR,
    QUADRATIC,
    lane_columns,
    lane_products,
    newton_step,
    next_stiffness,
    quadratic_step,
)
from .solvers import CERTIFY, DONE, START, TRAIN, new_totals, violation
from .stopping import BY_VIOLATION, judge, new_lane_arrays, reopen, restore
from .turns import Turns

WORKER_TIMEOUT = 300.0
"""Seconds without a sign of a worker, after which its shards go to others."""

ROUND_SOLVERS = tuple((loss, "dual") for loss in ("hinge", "squared_hinge", "log_loss", "crammer_singer"))
"""(loss, method) whose rounds are known: dual coordinate descent, one lane or several. For Crammer-Singer the mathematics
carries over whole: its dual is quadratic, and a step along any direction keeps every row's sum of zero."""

_MOST_UNDERSTATED = 100.0
_DEALING = 0x6465616C  # tells these keys from those of reads and windows
_MOST_ATTEMPTS = 10  # at one round: whatever loses workers so often is not an accident


def default_local_passes(n_rows: int, n_features: int) -> int:
    """Passes of every worker in a round, where several share the rows.

    With more rows than features three take about as many passes to the gap as one, and a third of the rounds (a9a, ijcnn1,
    letter, mushrooms; 4 workers). With more features than rows one solves the local model, and more are wasted (imdb on 4:
    squared_hinge 10 rounds with 1, 9 with 2 and with 3; hinge 22 and 24). See docs/cluster.md.
    """
    return 3 if n_rows > n_features else 1


@dataclass
class _Step:
    """How far a round went."""

    eta: np.ndarray
    dual_change: np.ndarray | None
    n_evaluations: int
    stiffness: np.ndarray  # of the next round


class RoundLoop:
    """One session of a distributed task: from the last committed round to the end, or to an interruption.

    Parameters
    ----------
    directory : checkpoint.Run
    task : Task
        Its plan is not used: every worker makes its own from its memory and its shards.
    make_engine : callable
        Called once there is something to do.
    local_passes : int or None
        Passes of every partition a round, `default_local_passes` where None; one where there is one partition only.
    listener : Listener
    stop_requested : callable or None
    """

    def __init__(
        self,
        directory: checkpoint.Run,
        task: Task,
        make_engine: Callable[[], Engine],
        local_passes: int | None,
        listener: Listener,
        stop_requested: StopRequested | None,
    ) -> None:
        self.directory, self.task, self.listener = directory, task, listener
        self.make_engine = make_engine
        dataset = task.dataset
        self.local_passes = local_passes or default_local_passes(dataset.n_rows, dataset.n_features)
        self.stop_requested = stop_requested or (lambda: None)
        self.started = time.monotonic()
        self.seconds_before, self.bytes_before, self.bytes_read = 0.0, 0, 0
        self.round, self.attempts = 0, 0
        self.passes_made: int | None = None  # in the last training round: one where a worker is alone
        self.dealt = 0  # the round for which shards were dealt last
        self.turns = Turns()
        self.committed, self.eta = "", np.ones(task.problem.n_lanes)
        self.state = task.solver.new_state()
        self.state.lanes.update(new_lane_arrays(task.problem.n_lanes))
        self.state.lanes["understated"] = np.ones(task.problem.n_lanes)
        self.state.lanes["stiffness"] = np.ones(task.problem.n_lanes)
        self._take_committed()

    def run(self) -> Outcome:
        """Train until every lane is done."""
        reopen(self.state, self.task.rule)
        if self._open_lanes():
            self.engine = self.make_engine()
            try:
                while self._open_lanes():
                    self._stop_if_requested()
                    self._round()
            finally:
                self.engine.close()
        return Outcome(self.state.lanes, self._seconds(), self.bytes_before + self.bytes_read)

    def _open_lanes(self) -> bool:
        return bool(self.state.phase(START, TRAIN, CERTIFY).size)

    def _round(self) -> None:
        """One round, from the order to its commit; again from the start where workers are lost on the way."""
        started, self.attempts = time.monotonic(), 0
        while True:
            self.attempts += 1
            order = self._order()
            try:
                joint = self.engine.round(order, self.state.w, self._progress(order))
                worked = time.monotonic()
                step = self._step(order, joint)
                break
            except WorkersLost as loss:
                if self.attempts >= _MOST_ATTEMPTS:
                    raise EnvironmentFailure(
                        f"round {self.round + 1} was lost {self.attempts} times in a row, the last time because {loss}; "
                        f"look at the workers' logs (memory?), then 'streamcd resume {self.task.run}'"
                    ) from None
                self.listener.warning(f"round {self.round + 1} is repeated from the last commit: {loss}")
        stepped = time.monotonic()
        record = self._take(order, joint, step)
        self.bytes_read += joint.bytes_read
        record["seconds"] = {
            "total": _rounded(time.monotonic() - started),
            "workers": {name: _rounded(seconds) for name, seconds in joint.seconds.items()},
            "line_search": _rounded(stepped - worked),
        }
        self.directory.append_log(record)
        self._commit(order)  # the state remembers how long the log is

    def _order(self) -> Order:
        training = self.state.phase(TRAIN).size > 0
        alone = training and self.turns.alone
        if alone and not self.turns.was_alone:  # several workers know no thresholds for shrinking
            restore(self.state, self.state.phase(TRAIN))
        token = f"{self.round + 1:06d}-{os.urandom(4).hex()}"
        if training:
            (self._folder / token).mkdir()
        return Order(
            token=token,
            committed=self.committed,
            eta=self.eta,
            read=self.state.read,
            n_passes=self.local_passes if training else 1,
            lanes={name: array.copy() for name, array in self.state.lanes.items()},
            # a read at fixed w leaves the shards where they are
            deal=random_key(self.task.seed, _DEALING, self.round if training else self.dealt),
            n_workers=1 if alone else None,
        )

    # -- the step -----------------------------------------------------------------------------------------------------

    def _step(self, order: Order, joint: Joint) -> _Step:
        """The step of every lane along the joint direction; 1 for lanes that did not train, and for a partition alone."""
        n_lanes = self.task.problem.n_lanes
        trained = order.phase(TRAIN)
        eta = np.ones(n_lanes)
        if joint.w is not None or not trained.size:
            return _Step(eta, None, 0, self.state.lanes["stiffness"])
        change = joint.change.dense()
        product = np.zeros(n_lanes)
        squared = np.zeros(n_lanes)
        columns = lane_columns(trained, n_lanes, change.shape[1])
        product[trained] = lane_products(self.state.w[:, columns], change[:, columns], trained.size)
        squared[trained] = lane_products(change[:, columns], change[:, columns], trained.size)
        sums = joint.direction
        k = len(joint.seconds)
        stiffness = order.lanes["stiffness"].copy()
        stiffness[trained] = next_stiffness(squared, sums[:, APART], k)[trained]
        if line_search_is_closed(self.task.problem):
            eta = quadratic_step(product, squared, sums, k)
            dual_change = -(eta * sums[:, LINEAR] + 0.5 * eta**2 * sums[:, QUADRATIC])
            return _Step(eta, dual_change, 0, stiffness)
        eta, dual_change, count = newton_step(
            product, squared, sums, k, lambda at: self.engine.slopes(order, at)
        )
        return _Step(eta, dual_change, count, stiffness)

    def _take(self, order: Order, joint: Joint, step: _Step) -> dict[str, Any]:
        """Move `w`, and let the rules of a single process judge; returns the line for the log."""
        state, rule = self.state, self.task.rule
        n_lanes = self.task.problem.n_lanes
        trained, certified = order.phase(TRAIN), order.phase(START, CERTIFY)
        self._move(joint, step, trained, certified)
        state.totals[:] = joint.totals
        if not order.n_workers:
            state.totals[trained, GAP] *= state.lanes["understated"][trained]
        if step.dual_change is not None:
            state.totals[trained, DUAL] = step.dual_change[trained]
        state.lanes["restore"][:] = False
        state.lanes["passes"][trained] += joint.n_passes - 1  # `judge` counts the last one
        state.lanes["stiffness"][:] = step.stiffness
        judge(state, rule, self.task.solver, str(self.task.dataset.path))
        if joint.w is None and not self.turns.was_alone:
            self._learn_from_failures(certified)
        if np.isin(state.phase(TRAIN), certified).any():
            self.turns.certificate_failed(self.local_passes)
        self._doubt_violations(certified)
        self.task.solver.end_read(state, trained)
        reopen(state, rule)
        state.totals[:] = new_totals(n_lanes)
        state.read += joint.n_passes
        self.round += 1
        if trained.size:
            self.committed, self.eta, self.passes_made = order.token, step.eta, joint.n_passes
            self.dealt = self.round - 1
            self.turns.trained(len(joint.seconds), self.local_passes)
        return {
            "round": self.round,
            "read": state.read,
            "kind": "train" if trained.size else "certify",
            **lane_figures(state, self.task.problem.scale),
            "eta": _range(step.eta[trained]),
            "stiffness": _range(order.lanes["stiffness"][trained]),
            "line_search_reductions": step.n_evaluations,
            "workers": len(joint.seconds),
            "attempts": self.attempts,
            "bytes_read": joint.bytes_read,
            "bytes_sent": joint.bytes_sent,
        }

    def _move(self, joint: Joint, step: _Step, trained: np.ndarray, certified: np.ndarray) -> None:
        state, n_lanes = self.state, self.task.problem.n_lanes
        n_vectors = state.w.shape[1]
        values = joint.change.dense() if joint.w is None else joint.w
        columns = lane_columns(certified, n_lanes, n_vectors)
        state.w_alpha[:, columns] = values[:, columns]
        columns = lane_columns(trained, n_lanes, n_vectors)
        if joint.w is not None:
            state.w[:, columns] = values[:, columns]
        else:
            state.w[:, columns] += np.repeat(step.eta, n_vectors // n_lanes)[columns] * values[:, columns]

    def _learn_from_failures(self, certified: np.ndarray) -> None:
        """The estimate sees the partitions' own progress as if it were the whole: scale it by what a certificate found."""
        lanes = self.state.lanes
        for lane in certified[lanes["phase"][certified] == TRAIN]:
            if lanes["estimate"][lane] > 0:  # not before the first estimate, which is nan
                factor = lanes["gap"][lane] / lanes["estimate"][lane]
                lanes["understated"][lane] = np.clip(
                    lanes["understated"][lane] * factor, 1.0, _MOST_UNDERSTATED
                )
                lanes["caution"][lane] = 1.0

    def _doubt_violations(self, certified: np.ndarray) -> None:
        """A violation that workers saw at their own w decides nothing: only the one certified at the common w does."""
        lanes, eps = self.state.lanes, self.task.rule.eps
        if eps is None:
            return
        found = violation(self.state.totals)
        doubtful = (lanes["phase"] == DONE) & (lanes["reason"] == BY_VIOLATION) & (found > eps)
        for lane in np.intersect1d(np.flatnonzero(doubtful), certified):
            lanes["phase"][lane], lanes["reason"][lane], lanes["converged"][lane] = TRAIN, 0, False

    # -- the run on disk ----------------------------------------------------------------------------------------------

    @property
    def _folder(self) -> Any:
        return self.directory.path / "dual"

    def _commit(self, order: Order) -> None:
        arrays = self.state.to_arrays()
        arrays["committed"], arrays["eta"] = np.array(self.committed), self.eta
        arrays["round"], arrays["dealt"] = np.array(self.round), np.array(self.dealt)
        arrays["turns"] = self.turns.to_array()
        arrays["seconds"] = np.array(self._seconds())
        arrays["bytes_read"] = np.array(self.bytes_before + self.bytes_read)
        sync(self._folder)
        self.directory.write_state(arrays)
        if self.committed == order.token:
            self._drop_others()

    def _take_committed(self) -> None:
        self._folder.mkdir(exist_ok=True)
        arrays = self.directory.read_state()
        if arrays is None:
            self._begin()
            self._drop_others()
            self._commit(Order("", "", self.eta, 0, 0, {}, np.uint64(0)))
            return
        try:
            self.committed, self.eta = str(arrays.pop("committed")), arrays.pop("eta")
            self.round = int(arrays.pop("round"))
            if "turns" in arrays:  # runs begun before workers took turns have none
                self.turns = Turns.from_array(arrays.pop("turns"))
                self.dealt = int(arrays.pop("dealt"))
            self.seconds_before = float(arrays.pop("seconds"))
            self.bytes_before = int(arrays.pop("bytes_read"))
            # runs begun before there was any have none
            arrays.setdefault("lane_stiffness", self.state.lanes["stiffness"])
            self.state.take(arrays)
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                f"{self.directory.state_path}: does not fit the run's configuration ({error}); train again with --force"
            ) from None
        self._drop_others()

    def _begin(self) -> None:
        """Take the dual variables of another run as the first commit, where one is given."""
        start, task = self.task.warm_start, self.task
        if start is None:
            return
        layout, dataset = paired_layout(task.solver.layout), task.dataset
        n_rows = np.diff(dataset.row_start)
        self.committed = "000000-start"
        store = checkpoint.SlotStore(
            self._folder / self.committed, dataset.chunk_part, n_rows, layout.state_bytes
        )
        for chunk in range(dataset.n_chunks):
            alpha = start.chunk_alpha(chunk, int(n_rows[chunk]))
            active = np.ones((int(n_rows[chunk]), layout.n_flags), dtype=np.uint8)
            store.save(chunk, [np.hstack([alpha, alpha]), active])
            self.state.lanes["dual_sum"] += start.dual_terms(chunk, alpha)
        store.sync()
        store.close()
        start.fill_weights(self.state.w)
        self.state.lanes["phase"][:] = TRAIN

    def _drop_others(self) -> None:
        """Remove what attempts left behind that were not committed, or have been followed by others."""
        for entry in self._folder.iterdir():
            if entry.name != self.committed:
                # a worker that was given up may be writing there still
                shutil.rmtree(entry, ignore_errors=True)

    def _stop_if_requested(self) -> None:
        signum = self.stop_requested()
        if signum is not None:
            raise Interrupted(
                f"stopped by a signal; 'streamcd resume {self.task.run}' with workers goes on from round {self.round}",
                signum,
            )

    # -- telling ------------------------------------------------------------------------------------------------------

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _progress(self, order: Order) -> Callable[[int], None]:
        n_passes = min(order.n_passes, self.passes_made or order.n_passes)
        total = self.task.dataset.n_entries * n_passes
        phase = self.task.name + ("round" if order.phase(TRAIN).size else "certify in round")
        gap = relative_estimate(self.state)
        note = "" if np.isnan(gap) else f"gap about {gap:.1e}, step {_shown(self.eta)}"
        done = 0

        def visited(n_entries: int) -> None:
            nonlocal done
            self._stop_if_requested()
            done = min(done + n_entries, total)
            progress = Progress(f"{phase} {self.round + 1}", done, total, "entries", note)
            self.listener.progress(progress)

        return visited


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


def _range(eta: np.ndarray) -> list[float] | None:
    """Smallest and largest step of a lane."""
    return [float(eta.min()), float(eta.max())] if eta.size else None


def _shown(eta: np.ndarray) -> str:
    low, high = float(eta.min()), float(eta.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def make_round_loop(
    directory: checkpoint.Run,
    task: Task,
    client: Any,
    options: Mapping[str, Any],
    method: str,
    memory: int,
    listener: Listener,
    stop_requested: StopRequested | None,
) -> RoundLoop:
    """The loop of a task on the workers of a client (or `Simulation`).

    Parameters
    ----------
    options : mapping
        ``local_passes`` and ``worker_timeout`` of the run's configuration.
    memory : int
        Budget of a worker, bytes.
    """
    dataset = task.dataset
    folder = directory.path.resolve() / "dual"
    assignment = Assignment(
        str(dataset.path.resolve()), dataset.fingerprint, str(folder), task.problem, method, task.seed, memory
    )

    def make_engine() -> Engine:
        if isinstance(client, Simulation):
            return SerialEngine(assignment, client.n_workers)
        from .cluster import DaskEngine

        entries = shard_entries(dataset)
        return DaskEngine(client, assignment, entries, listener, options["worker_timeout"], task.run)

    return RoundLoop(directory, task, make_engine, options["local_passes"], listener, stop_requested)
