"""The loop: reads, windows, stopping, logging, checkpoints; the same for all solvers."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import checkpoint
from .dataset import Dataset, open_dataset
from .errors import CheckpointError, Interrupted, UsageError
from .memory import parse_size, peak_memory_bytes
from .problems import Problem, make_problem
from .progress import Listener, Progress
from .solvers import CERTIFY, DONE, SOLVERS, START, TRAIN, Solver, State, new_totals
from .stopping import REASONS, StopRule, judge, new_lane_arrays, reopen
from .stream import Plan, Stream, Window, describe_plan, make_plan, random_key

StopRequested = Callable[[], int | None]
"""Asked after every window; gives the number of a signal that wants the run to stop, or None."""


@dataclass
class Result:
    """How a training ended; the fields are those of ``train --json``.

    Attributes
    ----------
    run : str
        The run directory.
    primal_objective, dual_objective : float
        Sums over lanes.
    gap : float
        Largest (primal - dual) / primal of a lane.
    violation : float
        Largest violation of the optimality conditions at the certified weights (LIBLINEAR's measure).
    converged : bool
    stop_reason : {"gap", "violation", "max_passes"}
    passes : int
        Training passes of the slowest lane.
    seconds : float
        Of all sessions of the run.
    bytes_read : int
        Asked of the dataset's files and the dual variables', of all sessions of the run.
    peak_memory_bytes : int
        Peak resident memory of this process.
    n_features, n_rows, n_lanes : int
    lanes : list of dict
        ``{label, C, fold, primal_objective, dual_objective, gap, passes, converged}``
    """

    run: str
    primal_objective: float
    dual_objective: float
    gap: float
    violation: float
    converged: bool
    stop_reason: str
    passes: int
    seconds: float
    bytes_read: int
    peak_memory_bytes: int
    n_features: int
    n_rows: int
    n_lanes: int
    lanes: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """The contract's object."""
        return asdict(self)

    @property
    def model(self) -> Any:
        """The trained model, loaded from the run."""
        from .model import load_model

        return load_model(self.run)


def train(
    dataset: Dataset | str | Path,
    run: str | Path,
    *,
    loss: str = "squared_hinge",
    method: str = "auto",
    C: float | Sequence[float] = 1.0,
    bias: float = -1.0,
    tol: float | None = None,
    eps: float | None = None,
    max_passes: int = 1000,
    class_weight: Mapping[float, float] | str | None = None,
    memory: int | str = "1GB",
    seed: int = 0,
    checkpoint_every: float = 60.0,
    force: bool = False,
    plan: Plan | None = None,
    listener: Listener | None = None,
    stop_requested: StopRequested | None = None,
) -> Result:
    """Train a model on a dataset, in a run directory that can be resumed.

    Parameters
    ----------
    dataset : Dataset or path
    run : path
        Directory to be made.
    loss : {"squared_hinge", "hinge"}
    method : {"auto", "dual"}
    C : float
        Factor of the sum of losses.
    bias : float
        Value of a constant feature appended to every row; its weight is penalised as the others'. Negative for none.
    tol : float, optional
        Relative duality gap at which to stop; 1e-3 where neither this nor `eps` is given.
    eps : float, optional
        Stop by LIBLINEAR's rule on violations instead.
    max_passes : int
    class_weight : mapping of label to factor, or ``"balanced"``, optional
    memory : int or str
        Bound on the process's peak resident memory.
    seed : int
    checkpoint_every : float
        Seconds between checkpoints.
    force : bool
        Replace an existing run.
    plan : Plan, optional
        How memory is used; follows from `memory` by default.
    listener : Listener, optional
    stop_requested : callable, optional
        See `StopRequested`.

    Returns
    -------
    Result

    Raises
    ------
    UsageError, DatasetError, CheckpointError, LockError
    Interrupted
        Where `stop_requested` said so; a checkpoint was saved.
    """
    listener = listener or Listener()
    dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    rule = _stop_rule(tol, eps, max_passes)
    _check_positive(checkpoint_every=checkpoint_every)
    if method == "auto":
        method = "dual"
    options = {
        "loss": loss,
        "method": method,
        "C": [float(c) for c in np.atleast_1d(C)],
        "bias": float(bias),
        "class_weight": _weights_as_json(class_weight),
        "seed": int(seed),
    }
    problem = _problem(dataset, options)
    solver = _solver(problem, method)
    budget = parse_size(memory)
    plan = plan or make_plan(dataset, budget, _model_bytes(solver), solver.layout)
    config = {
        "dataset": str(dataset.path.resolve()),
        "fingerprint": dataset.fingerprint,
        "options": options,
        "memory": budget,
        "plan": asdict(plan),
        "rule": asdict(rule),
        "checkpoint_every": float(checkpoint_every),
        "versions": _versions(),
    }
    path = Path(run)
    _refuse_existing(path, config, force)
    with checkpoint.create_run(path, force=force) as directory:
        directory.write_config(config)
        listener.message(describe_plan(plan, dataset, budget))
        loop = _Loop(directory, config, dataset, problem, solver, plan, rule, listener, stop_requested)
        return loop.run()


def resume(
    run: str | Path,
    *,
    max_passes: int | None = None,
    tol: float | None = None,
    checkpoint_every: float | None = None,
    listener: Listener | None = None,
    stop_requested: StopRequested | None = None,
) -> Result:
    """Go on from the last checkpoint of a run, also where it ended without convergence.

    A run that has converged (by its own rule, or by `tol` where that is given) is left alone, and the listener is told.

    Parameters
    ----------
    run : path
    max_passes, tol, checkpoint_every : optional
        Instead of the run's own.
    listener, stop_requested : optional
        As in `train`.

    Returns
    -------
    Result

    Raises
    ------
    CheckpointError
        Where the run, or the dataset it was made with, is damaged, missing or changed.
    """
    listener = listener or Listener()
    path = Path(run)
    with checkpoint.open_run(path) as directory:
        config = checkpoint.read_config(path)
        dataset = _same_dataset(config)
        rule = _changed_rule(StopRule(**config["rule"]), max_passes, tol)
        if checkpoint_every is not None:
            _check_positive(checkpoint_every=checkpoint_every)
            config["checkpoint_every"] = float(checkpoint_every)
        if config["versions"] != _versions():
            listener.warning(
                "this machine or its libraries differ from those that the run was begun with: "
                "the optimum is the same by its gap, the last digits may differ"
            )
        config["rule"] = asdict(rule)
        problem = _problem(dataset, config["options"])
        solver = _solver(problem, config["options"]["method"])
        plan = Plan(**config["plan"])
        directory.write_config(config)
        loop = _Loop(directory, config, dataset, problem, solver, plan, rule, listener, stop_requested)
        return loop.run()


# ---------------------------------------------------------------------------------------------------------------------
# Options


def _stop_rule(tol: float | None, eps: float | None, max_passes: int) -> StopRule:
    if tol is not None and eps is not None:
        raise UsageError(
            "expected one stopping rule, found both: give the relative gap (tol) or LIBLINEAR's eps"
        )
    if tol is None and eps is None:
        tol = 1e-3
    for name, number in (("tol", tol), ("eps", eps)):
        if number is not None and not (np.isfinite(number) and number >= 0):
            raise UsageError(f"{name}: expected a number >= 0, found {number}")
    if max_passes < 1:
        raise UsageError(f"max_passes: expected at least 1, found {max_passes}")
    return StopRule(tol, eps, int(max_passes))


def _changed_rule(rule: StopRule, max_passes: int | None, tol: float | None) -> StopRule:
    if tol is not None:
        return _stop_rule(tol, None, max_passes or rule.max_passes)
    return _stop_rule(rule.tol, rule.eps, max_passes or rule.max_passes)


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise UsageError(f"{name}: expected a number > 0, found {number}")


def _weights_as_json(class_weight: Mapping[float, float] | str | None) -> Any:
    if class_weight is None or isinstance(class_weight, str):
        return class_weight
    return [[float(label), float(weight)] for label, weight in class_weight.items()]


def _problem(dataset: Dataset, options: Mapping[str, Any]) -> Problem:
    if dataset.classes is None or dataset.class_counts is None:
        raise UsageError(
            f"{dataset.path}: the labels take too many values to be classes; nothing to train on"
        )
    weights = options["class_weight"]
    return make_problem(
        loss=options["loss"],
        classes=dataset.classes,
        class_counts=dataset.class_counts,
        n_features=dataset.n_features,
        C=options["C"],
        bias=options["bias"],
        class_weight=dict(weights) if isinstance(weights, list) else weights,
    )


def _solver(problem: Problem, method: str) -> Solver:
    try:
        return SOLVERS[problem.loss, method](problem)
    except KeyError:
        known = ", ".join(f"{loss} by {way}" for loss, way in SOLVERS)
        raise UsageError(f"no solver for {problem.loss} by method {method}; there are: {known}") from None


def _model_bytes(solver: Solver) -> int:
    return solver.state_bytes + (1 << 24)  # numpy writes arrays to a file through a buffer of 16 MiB


def _versions() -> dict[str, str]:
    import llvmlite
    import numba
    import pyarrow

    from . import __version__

    return {
        "streamcd": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "pyarrow": pyarrow.__version__,
        "processor": llvmlite.binding.get_host_cpu_name(),
    }


def _refuse_existing(path: Path, config: Mapping[str, Any], force: bool) -> None:
    """Point to `resume` where the directory holds the same training, unfinished."""
    if force or not (path / "config.json").exists():
        return
    found = checkpoint.read_config(path)
    same = all(found.get(key) == config[key] for key in ("fingerprint", "options"))
    if same:
        raise CheckpointError(
            f"{path} holds a run of the same training: 'streamcd resume {path}' goes on with it, --force starts it anew"
        )
    raise CheckpointError(f"{path} holds another run; name another directory, or give --force to replace it")


def _same_dataset(config: Mapping[str, Any]) -> Dataset:
    dataset = open_dataset(config["dataset"])
    if dataset.fingerprint != config["fingerprint"]:
        raise CheckpointError(
            f"{dataset.path}: not the dataset that the run was begun with (fingerprint {dataset.fingerprint}, "
            f"the run has {config['fingerprint']}); restore that one, or train again"
        )
    return dataset


# ---------------------------------------------------------------------------------------------------------------------
# The loop


class _Loop:
    """One session of a run: from the last checkpoint to the end, or to an interruption."""

    def __init__(
        self,
        directory: checkpoint.Run,
        config: Mapping[str, Any],
        dataset: Dataset,
        problem: Problem,
        solver: Solver,
        plan: Plan,
        rule: StopRule,
        listener: Listener,
        stop_requested: StopRequested | None,
    ) -> None:
        self.directory, self.config, self.dataset = directory, config, dataset
        self.problem, self.solver, self.plan, self.rule = problem, solver, plan, rule
        self.listener, self.stop_requested = listener, stop_requested or (lambda: None)
        self.started = time.monotonic()
        self.last_checkpoint = self.started
        self.seconds_before, self.bytes_before = 0.0, 0
        self.meter = {"train": 0.0, "wait": 0.0, "state": 0.0}
        self.state = solver.new_state()
        self.state.lanes.update(new_lane_arrays(problem.n_lanes))
        row_bytes = 8 * solver.layout.alpha_width + solver.layout.n_flags
        self.slots = checkpoint.SlotStore(
            directory.path / "dual", dataset.chunk_part, np.diff(dataset.row_start), row_bytes
        )
        self.rows = _RowStates(self.slots, solver, dataset, plan.resident)
        self.stream: Stream | None = None
        self._take_checkpoint()

    def run(self) -> Result:
        """Train until every lane is done, and write the model."""
        if self.state.window == 0:
            reopen(self.state, self.rule)
        if not self._open_lanes():
            self.listener.message("this run is finished and left alone: " + self._ending())
            if not (self.directory.model_path / "model.json").exists():
                self._save_model()
            return self._result()
        with Stream(self.dataset, self.plan, self.solver.layout, self.config["options"]["seed"]) as stream:
            self.stream = stream
            self.order = np.empty(self._largest_window_rows(), dtype=np.int64)
            while self._open_lanes():
                self._read(stream)
            self._checkpoint()
            self._save_model()
        self.slots.close()
        return self._result()

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
        key = random_key(self.config["options"]["seed"], window.read, window.number)
        self.solver.visit(window, state, self.order, key)
        visited = time.monotonic()
        if training:
            self.rows.save(window)
        self.meter["train"] += visited - loaded
        self.meter["state"] += loaded - started + time.monotonic() - visited

    def _end_read(self, before: Mapping[str, float], certifying_only: bool) -> None:
        state = self.state
        trained = state.phase(TRAIN)
        state.lanes["restore"][:] = False
        judge(state, self.rule)
        self.solver.end_read(state, trained)
        reopen(state, self.rule)
        state.totals[:] = new_totals(self.problem.n_lanes)
        self.directory.append_log(self._log_record(before, certifying_only))
        state.read, state.window = state.read + 1, 0

    def _pause(self) -> None:
        """Between windows: save a checkpoint where it is time, and stop where that is wanted."""
        signum = self.stop_requested()
        if signum is not None:
            self._checkpoint()
            self.slots.close()
            path = self.directory.path
            raise Interrupted(f"stopped by a signal; 'streamcd resume {path}' goes on from here", signum)
        if time.monotonic() - self.last_checkpoint >= self.config["checkpoint_every"]:
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
            self._checkpoint()
            return
        self.slots.restore(arrays.pop("slots"))
        self.seconds_before = float(arrays.pop("seconds"))
        self.bytes_before = int(arrays.pop("bytes_read"))
        try:
            self.state.take(arrays)
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                f"{self.directory.state_path}: does not fit the run's configuration ({error}); train again with --force"
            ) from None

    def _save_model(self) -> None:
        from .model import Model

        problem, options = self.problem, self.config["options"]
        bias = options["bias"]
        factors = problem.cost.max(axis=1) / problem.lanes[0].C
        weights = {float(c): float(f) for c, f in zip(problem.classes, factors, strict=True) if f != 1.0}
        Model(
            weights=self.state.w[:-1],
            intercept=self.state.w[-1] * problem.bias,
            classes=problem.classes,
            code=problem.code,
            loss=problem.loss,
            C=problem.lanes[0].C,
            method=options["method"],
            bias=bias if bias >= 0 else -1.0,
            index_base=self.dataset.index_base,
            label_kind=self.dataset.label_kind,
            class_weight=weights,
            fingerprint=self.dataset.fingerprint,
            versions=_versions(),
            certificate={
                key: self._result().to_json()[key]
                for key in ("primal_objective", "dual_objective", "gap", "converged")
            },
        ).save(self.directory.model_path)

    def _largest_window_rows(self) -> int:
        if self.plan.resident:
            return self.dataset.n_rows
        return max(self.plan.window_rows, int(np.diff(self.dataset.row_start).max(initial=1)))

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
        phase = f"certify after pass {number}" if certifying_only else f"pass {number}"
        share = state.window / max(n_windows, 1)
        n_entries = self.dataset.n_entries
        note = "" if np.isnan(self._relative_estimate()) else f"gap about {self._relative_estimate():.1e}"
        self.listener.progress(Progress(phase, int(share * n_entries), n_entries, "entries", note))

    def _relative_estimate(self) -> float:
        lanes = self.state.lanes
        open_lanes = lanes["phase"] != DONE
        if not open_lanes.any() or np.isnan(lanes["estimate"][open_lanes]).any():
            return float("nan")
        primal = np.maximum(lanes["estimated_primal"][open_lanes], 1e-300)
        return float((lanes["estimate"][open_lanes] / primal).max())

    def _log_record(self, before: Mapping[str, float], certifying_only: bool) -> dict[str, Any]:
        lanes = self.state.lanes
        spent = {name: figure - before[name] for name, figure in self._figures().items()}
        bytes_read = int(spent.pop("bytes_read"))
        return {
            "read": self.state.read,
            "kind": "certify" if certifying_only else "train",
            "passes": int(lanes["passes"].max()),
            "open_lanes": int((lanes["phase"] != DONE).sum()),
            "objective_estimate": _finite(lanes["estimated_primal"].sum()),
            "gap_estimate": _finite(lanes["estimate"].sum()),
            "primal": _finite(lanes["primal"].sum()),
            "dual": _finite(lanes["dual"].sum()),
            "gap": _finite(lanes["gap"].sum()),
            "violation": _finite(lanes["seen_violation"].max()),
            "active_rows": int(lanes["n_active"].sum()),
            "bytes_read": bytes_read,
            "seconds": {kind: round(seconds, 6) for kind, seconds in spent.items()},
        }

    def _ending(self) -> str:
        reason = REASONS[int(self.state.lanes["reason"].max())]
        return f"{'converged' if self.state.lanes['converged'].all() else 'not converged'} by {reason}"

    def _result(self) -> Result:
        lanes = self.state.lanes
        primal = np.where(lanes["primal"] == 0, 1.0, lanes["primal"])
        relative = np.where(lanes["primal"] == 0, 0.0, lanes["gap"] / np.abs(primal))
        return Result(
            run=str(self.directory.path),
            primal_objective=float(lanes["primal"].sum()),
            dual_objective=float(lanes["dual"].sum()),
            gap=float(relative.max()),
            violation=float(lanes["violation"].max()),
            converged=bool(lanes["converged"].all()),
            stop_reason=REASONS[int(lanes["reason"].max())],
            passes=int(lanes["passes"].max()),
            seconds=self._seconds(),
            bytes_read=self._bytes_read(),
            peak_memory_bytes=peak_memory_bytes(),
            n_features=self.problem.n_features,
            n_rows=self.dataset.n_rows,
            n_lanes=self.problem.n_lanes,
            lanes=[
                {
                    "label": lane.label,
                    "C": lane.C,
                    "fold": None if lane.fold < 0 else lane.fold,
                    "primal_objective": float(lanes["primal"][number]),
                    "dual_objective": float(lanes["dual"][number]),
                    "gap": float(relative[number]),
                    "passes": int(lanes["passes"][number]),
                    "converged": bool(lanes["converged"][number]),
                }
                for number, lane in enumerate(self.problem.lanes)
            ],
        )


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


class _RowStates:
    """Brings the rows' dual variables of a window in from the slots, and back.

    Of a resident dataset they stay in the arena, and `flush` writes what changed; else they go with every visit.
    """

    def __init__(self, slots: checkpoint.SlotStore, solver: Solver, dataset: Dataset, resident: bool) -> None:
        self._slots, self._solver = slots, solver
        self._resident = resident
        self._present = np.zeros(dataset.n_chunks, dtype=bool)
        self._changed: dict[int, list[np.ndarray]] = {}

    def load(self, window: Window, state: State) -> None:
        arena = window.arena
        for chunk, start, stop in window.pieces():
            if not self._present[chunk]:
                if not self._slots.load(chunk, [arena.alpha[start:stop], arena.active[start:stop]]):
                    self._solver.new_rows(arena, start, stop)
                self._present[chunk] = self._resident
            self._solver.restore_rows(state, arena, start, stop)

    def save(self, window: Window) -> None:
        arena = window.arena
        for chunk, start, stop in window.pieces():
            arrays: list[np.ndarray] = [arena.alpha[start:stop], arena.active[start:stop]]
            if self._resident:
                self._changed[chunk] = arrays
            else:
                self._slots.save(chunk, arrays)

    def flush(self) -> None:
        for chunk, arrays in self._changed.items():
            self._slots.save(chunk, arrays)
        self._changed.clear()
