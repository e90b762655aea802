"""Training in a run directory: begun, searched for the best C, and resumed from its last checkpoint."""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType

from ..core.errors import (
    ConvergenceWarning,
    Interrupted,
    UsageError,
    counted,
    escaped,
    in_command,
    in_words_of_caller,
)
from ..core.files import replacing, write_metadata
from ..core.memory_budget import RUNNING_BYTES, peak_memory_bytes, warn_of_memory
from ..core.options import Listener, takes
from ..core.signals import ignore, signal_handler
from ..core.storage import local_path, location
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.diagnostics import advice
from ..kernels.loss_table import SOLVERS
from ..models.model import Model
from ..report.scores import CRITERIA, best_of, best_text, scores_of
from ..solvers.protocol import solver_class
from ..training import checkpoint
from ..training.loop import Loop, Session, TrainingLoop
from ..training.result import Result, TuneResult, sum_up
from ..training.warm_start import WarmStart
from .config import (
    DATA,
    ResolvedRun,
    RunConfig,
    is_begun,
    read_config,
    refuse_existing,
    reopen,
    same_dataset,
    versions,
)
from .describe import SCORES
from .models import make_models, save_models
from .options import ResumeOptions, SessionOptions, TrainOptions, TuneOptions
from .resolve import describe_worker_budget, plan_groups, resolve, share_memory_anew, with_folds
from .start_from import previous_run


@takes(TrainOptions)
def train(dataset: Dataset | str | Path, run: str | Path | None, options: TrainOptions) -> Result:
    """Train a model on a dataset, in a run directory that can be resumed.

    Parameters
    ----------
    dataset : Dataset or path
    run : path
        Directory to make; has to be given.
    {options}

    Returns
    -------
    Result

    Raises
    ------
    UsageError, DatasetError, CheckpointError, LockError
    Interrupted
        If `stop_requested` returned a signal; a checkpoint was saved.

    Examples
    --------
    >>> data = streamcd.open("data")
    >>> result = streamcd.train(data, "new-run", loss="hinge", C=0.1, memory="400MB")
    >>> result.converged
    True
    """
    result = _train(dataset, run, options)
    _warn_unconverged(result, options)
    return result


@takes(TuneOptions)
def tune(dataset: Dataset | str | Path, run: str | Path, options: TuneOptions) -> TuneResult:
    """Choose C, and λ of the penalty, by cross-validation, and train with them on all rows.

    Parameters
    ----------
    dataset : Dataset or path
    run : path
        Directory to make: ``folds/`` and ``best/`` are runs in it, ``model/`` is the best run's model.
    {options}

    Returns
    -------
    TuneResult

    Raises
    ------
    UsageError, DatasetError, CheckpointError, LockError, Interrupted

    Examples
    --------
    >>> result = streamcd.tune("data", "search", C=[0.1, 1, 10], cv=3)
    >>> result.best_C, sorted(result.scores)
    (0.1, ['0.1', '1', '10'])
    """
    result = _train(dataset, run, options)
    _warn_unconverged(result, options)
    assert isinstance(result, TuneResult)
    return result


@takes(ResumeOptions)
def resume(run: str | Path, options: ResumeOptions) -> Result:
    """Resume a run from its last checkpoint, also one that ended without convergence.

    A run that has converged (by its own rule, or by `tol` if that is given) is not changed, and the listener is told. With
    ``max_passes=1`` one that was interrupted finishes the pass begun, certifies its gap and writes its model.

    Parameters
    ----------
    run : path
    {options}

    Returns
    -------
    Result

    Raises
    ------
    CheckpointError
        Where the run, or the dataset it was made with, is damaged, missing or changed.

    Examples
    --------
    >>> result = streamcd.resume("run", tol=1e-6)
    >>> result.gap <= 1e-6
    True
    """

    path = local_path(run, "a run")
    with _stopped_by_signals(options) as stop_requested, ExitStack() as stack:
        directory = stack.enter_context(closing(checkpoint.open_run(path)))
        config = read_config(path)
        rule = config.rule
        if options.tol is not None:
            rule = replace(rule, tol=options.tol, eps=None)
        if options.max_passes is not None:
            rule = replace(rule, max_passes=options.max_passes)
        config = replace(config, rule=rule)
        if options.dataset is not None:
            config = replace(config, dataset=str(location(options.dataset).resolve()))
        if options.checkpoint_every is not None:
            config = replace(config, checkpoint_every=float(options.checkpoint_every))
        session = Session(options.listener, stop_requested, config.threads)
        result = _go_on(directory, config, options, session, stack)
    _warn_unconverged(result, options)
    return result


@contextmanager
def _stopped_by_signals(options: SessionOptions) -> Iterator[Callable[[], int | None] | None]:
    """Provide `stop_requested`; where no caller gave one, a training saves a checkpoint at Ctrl-C and SIGTERM.

    Signals belong to the main thread. After the first one Ctrl-C is ignored, so that the checkpoint is completed. After that
    a command ends with `Interrupted`; in Python Ctrl-C raises KeyboardInterrupt, and SIGTERM has its previous effect.
    """
    if options.stop_requested is not None or threading.current_thread() is not threading.main_thread():
        yield options.stop_requested
        return
    received: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if in_command.is_set():  # until its end
            ignore(signal.SIGINT)

    try:
        with signal_handler(note, signal.SIGINT, signal.SIGTERM):
            yield lambda: received[0] if received else None
    except Interrupted as error:
        if in_command.is_set():
            raise
        if error.signum == signal.SIGINT:
            raise KeyboardInterrupt(str(error)) from None
        signal.raise_signal(error.signum)
        raise


def _warn_unconverged(result: Result, options: SessionOptions) -> None:
    """Warn the caller of a public function, which calls this, if its training has not converged."""
    if result.converged:
        return
    more = "" if result.stop_reason == "time" else ", max_passes=N"
    given = {"scheduler": options.scheduler, "workers": options.workers}
    more += "".join(f", {name}={value!r}" for name, value in given.items() if value not in (None, 1))
    way = [f"streamcd.resume({result.run!r}{more}) goes on"] if result.more_passes_help else []
    text = "; ".join([result.describe_shortfall(), *way, *result.advice])
    warnings.warn(escaped(in_words_of_caller(text)), ConvergenceWarning, stacklevel=4)


def _train(dataset: Dataset | str | Path, run_path: str | Path | None, options: TrainOptions) -> Result:
    """Make a run, and train it; with `resume` go on with it where it was begun."""
    with _stopped_by_signals(options) as stop_requested, ExitStack() as stack:
        # first: for rows in memory a run is not what is missing
        dataset = open_dataset(dataset, cache=options.cache)
        path = local_path(run_path, "a run")
        until = math.inf if options.max_seconds is None else time.monotonic() + float(options.max_seconds)
        session = Session(options.listener, stop_requested, options.threads, until)
        config, notes = resolve(options, dataset)
        if options.resume and is_begun(path, config):
            directory = stack.enter_context(closing(checkpoint.open_run(path)))
            free = ("dataset", "cache", "threads", "rule", "checkpoint_every")  # which do not affect the bits
            begun = replace(read_config(path), **{name: getattr(config, name) for name in free})
            return _go_on(directory, begun, options, session, stack)
        training = reopen(path, config, with_folds(dataset, config.folds))
        previous = previous_run(training, notes)  # refused before anything is made
        if options.scheduler is not None:
            # where none answers, no run is made or replaced
            session = _connect(session, options, path, stack)
        refuse_existing(path, config, options.force)
        directory = stack.enter_context(closing(checkpoint.create_run(path, force=options.force)))
        for note in notes:  # now that all options are checked
            session.listener.message(note)
        _record(directory, training, session.listener)
        if options.scheduler is None:
            session = _connect(session, options, path, stack)
        return train_run(directory, training, session, previous)


def _go_on(
    directory: checkpoint.Run, config: RunConfig, options: SessionOptions, session: Session, stack: ExitStack
) -> Result:
    """Train a run of any kind from its last checkpoint."""
    path = directory.path
    listener = session.listener
    workers = options.n_workers
    if (workers is None) != (config.rounds is None):
        begun = "in one process"
        way = "without workers"
        if workers is None:
            begun = "on workers"
            way = "with --scheduler ADDRESS or --workers N, N >= 1"
        raise UsageError(
            f"{path} was begun {begun}: resume it {way}, or 'streamcd train DATASET NEW --start-from {path}'"
        )
    training = reopen(path, config, with_folds(same_dataset(config), config.folds))
    previous = None
    states = (checkpoint.read_arrays(path / group / "state.npz", ("position",)) for group in training.groups)
    if not all(state and state["position"][0] for state in states):
        # the run that it starts from says what the first read begins with, and may be gone after it
        previous = previous_run(training, [])
    if config.versions != versions():
        listener.warning(
            "this machine or its libraries differ from those that the run was begun with: "
            "the optimum is the same by its gap, the last digits may differ"
        )
    if workers is not None:
        training = replace(training, config=share_memory_anew(training, workers))
        listener.message(describe_worker_budget(training.config.memory))
    session = _connect(session, options, path, stack)
    _record(directory, training, listener)
    return train_run(directory, training, session, previous)


def _connect(session: Session, options: SessionOptions, run: Path, stack: ExitStack) -> Session:
    """Add a client of the workers that options name, if any; local ones are started, with files in the run."""
    client = options.client
    if options.n_workers is not None and client is None:
        from ..cluster.dask_engine import open_client  # only where there are workers

        workers = open_client(options.scheduler, options.n_workers, options.listener, run / "workers")
        client = stack.enter_context(workers)
    return replace(session, client=client)


def _record(directory: checkpoint.Run, training: ResolvedRun, listener: Listener) -> None:
    """Warn of what is wrong from the start; record the configuration, and what tells the shards and the centre."""
    config = training.config
    dataset = training.dataset
    for line in _advice(training, accelerated=config.options.acceleration != "none"):
        listener.warning(line)
    if config.rounds is None:
        # beside the interpreter: the data, if it stays in memory, else all of the budget
        whole = dataset.n_entries * dataset.entry_bytes + 16 * dataset.n_features * training.problem.n_lanes
        planned = whole if config.plan.resident else config.memory - RUNNING_BYTES
        warn_of_memory(config.memory, planned, listener)
    directory.write_config(asdict(config))
    folder = directory.path / DATA
    if (folder / "manifest.json").exists():
        return
    names = [*["features.parquet"] * (training.centre is not None), "chunks.parquet", "manifest.json"]
    with replacing(*(folder / name for name in names)) as partials:
        for name, partial in zip(names, partials, strict=True):
            partial.write_bytes(dataset.file(name).read_bytes())


def _advice(training: ResolvedRun, *, accelerated: bool = False) -> list[str]:
    """Describe what is badly scaled for a training."""
    options = training.config.options
    return advice(
        training.dataset,
        max(options.C),
        accelerated=accelerated,
        method=options.method,
        centred=training.centre is not None,
    )


def train_run(
    directory: checkpoint.AnyRun,
    training: ResolvedRun,
    session: Session,
    previous: WarmStart | None = None,
    *,
    model_path: Path | None = None,
) -> Result:
    """Train a run from where it stands, its lanes group after group, and write the models (or to `model_path`).

    One that stands nowhere yet starts from a previous one. Folds have no models, nor has a run in memory.
    """
    config = training.config
    if config.scoring is not None:
        assert isinstance(directory, checkpoint.Run)
        return _search(directory, training, session)
    outcomes = []
    for group, lanes in training.groups.items():
        part = directory.part(group) if group else directory
        # no name keeps the loop, whose state would lie beside that of the next group, and beside the models
        outcomes.append(_make_loop(part, training, lanes, session, previous).run())
    result = sum_up(
        directory.name,
        outcomes,
        training.problem,
        config.rule,
        training.dataset.n_rows,
        training.dataset.class_names,
    )
    if result.stop_reason == "time" or not isinstance(directory, checkpoint.Run):
        return result  # weights that were not certified make no model
    if not result.converged:
        result.advice = _advice(training)
        more = not _advice(training, accelerated=True)
        result.more_passes_help = more and result.stop_reason != "rounding"
    if config.folds:
        return result
    if config.options.omega == "auto":
        for C in config.options.C:
            counts = Counter(lane["omega"] for lane in result.lanes if lane["C"] == C)
            omegas = [f"{omega:g} for {counted(n, 'problem')}" for omega, n in counts.most_common()]
            session.listener.message(f"omega at C = {C:g}: {', '.join(omegas)}")
    begun = time.monotonic()
    if save_models(model_path or directory.model_path, directory, training, result):
        result.seconds += time.monotonic() - begun
        result.peak_memory_bytes = peak_memory_bytes()
    else:
        session.listener.message(f"this run has ended (stopped by: {result.stop_reason}) and is left alone")
    return result


def _make_loop(
    part: checkpoint.AnyRun,
    training: ResolvedRun,
    numbers: range,
    session: Session,
    previous: WarmStart | None,
) -> TrainingLoop:
    """Make the loop of some lanes, by their indices among all."""
    config = training.config
    options = config.options
    lanes = training.problem.subset(numbers)
    if lanes.n_lanes < training.problem.n_lanes:
        several = f"problems {numbers.start + 1}-{numbers.stop} of {training.problem.n_lanes}, "
        session = replace(session, stage=session.stage + several)
    solver = solver_class(lanes, options.method)(lanes, training.dataset, training.solver)
    warm_start = None if previous is None else replace(previous, lanes=numbers)
    loop = part, config, training.dataset, solver, session, warm_start
    if config.rounds is None:
        return Loop(*loop)
    from ..cluster.loop import DualRounds, SumRounds  # only where there are workers
    from ..cluster.memory import WORKER_BYTES
    from ..cluster.rounds import WorkerSpec

    assert isinstance(part, checkpoint.Run)
    spec = WorkerSpec(
        dataset=config.dataset,
        fingerprint=config.fingerprint,
        problem=lanes,
        method=options.method,
        seed=config.seed,
        memory=config.memory - WORKER_BYTES,
        identity=part.identity,
        acceleration=options.acceleration,
        cache=config.cache,
    )
    rounds = SumRounds if SOLVERS[options.loss, options.method].rounds == "sums" else DualRounds
    return rounds(*loop, spec=spec, worker_timeout=config.rounds.worker_timeout)


def train_in_memory(dataset: Dataset, options: TrainOptions, session: Session) -> tuple[Result, list[Model]]:
    """Train without a directory, on rows in memory, and without resuming; returns the models of every C and λ, too."""
    config, notes = resolve(options, dataset)
    config = replace(config, checkpoint_every=math.inf)
    for note in notes:
        session.listener.message(note)
    directory = checkpoint.MemoryRun()
    training = reopen(directory.path, config, dataset)
    result = train_run(directory, training, session)
    return result, make_models(directory, training, result)


# ---------------------------------------------------------------------------------------------------------------------
# A search over C and λ: a run with all folds as lanes, scored in one read, then one on all rows from the folds' solutions


def _search(directory: checkpoint.Run, search: ResolvedRun, session: Session) -> TuneResult:
    """Train the folds, score them, train on all rows: each from its last checkpoint."""
    from .held_out import score_search  # with kernels that other runs do not need

    config = search.config
    folds = directory.part("folds")
    training = replace(search, path=folds.path, config=replace(config, scoring=None))
    folds.write_config(asdict(training.config))
    result = train_run(folds, training, replace(session, stage="folds: "))
    names = "n_lanes", "passes", "gap", "converged", "bytes_read", "seconds"
    summary = {name: getattr(result, name) for name in names}
    scoring = config.scoring or ""
    if result.stop_reason == "time":
        return TuneResult(**asdict(result), scored_by=scoring, folds=summary)
    if n_open := sum(not lane["converged"] for lane in result.lanes):
        open_folds = f"{n_open} of {result.n_lanes} models of folds are {result.describe_shortfall()}"
        advice = result.advice
        if result.more_passes_help:
            advice = ["their scores may change with a larger --max-passes"]
        session.listener.warning("; ".join([open_folds, *advice]))
    scored = score_search(training, scoring, session)
    write_metadata(directory.path / "scores.json", SCORES, scored)
    best = best_of(scored)
    mean = format(scores_of(scored)[best]["mean"], CRITERIA[scoring].form)
    session.listener.message(f"best {best_text(scored)}, mean {scoring} {mean}; training on all rows")

    search.dataset.use_folds(None)  # which take a byte a row
    part = directory.part("best")
    start = str(folds.path.resolve())  # again when resumed: the directory may have been moved
    if (part.path / "config.json").exists():
        begun = read_config(part.path)
        config = replace(begun, rule=config.rule, dataset=config.dataset, start_from=start)
    else:
        options = replace(config.options, C=(best.C,), l1=best.l1 or None)
        groups = plan_groups(options, search.dataset, config.memory)
        config = replace(
            config,
            options=options,
            plan=groups.plan,
            n_groups=groups.number,
            folds=0,
            scoring=None,
            start_from=start,
        )
    on_all_rows = reopen(part.path, config, search.dataset)
    part.write_config(asdict(config))
    previous = previous_run(on_all_rows, [])
    result = train_run(part, on_all_rows, session, previous, model_path=directory.model_path)
    return TuneResult(**asdict(result), **scored, folds=summary)
