"""Training in a run directory: the options of Python and of the command line, checked and carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import parse_size
from ..core.progress import Listener, ends_progress
from ..core.storage import local_path
from ..core.threads import make_threads
from ..dataset.dataset import Dataset, open_cached
from ..solvers.registry import SOLVERS, find_solver
from ..stream.memory_plan import Plan
from ..training.loop import Session, StopRequested, deadline
from ..training.result import Result
from .bias_choice import choose_bias
from .carry_out import begin_run, carry_out
from .config import (
    WORKER_TIMEOUT,
    ProblemOptions,
    SharedRounds,
    TrainOptions,
    absolute_path,
    changed_by,
    is_begun,
    make_rule,
    settle_acceleration,
)
from .early_warnings import warn_early
from .interrupts import stops_when_interrupted
from .lane_groups import resolve
from .method_choice import choose_method
from .previous_run import previous_run
from .workers import Workers


@stops_when_interrupted
@ends_progress
def train(
    dataset: Dataset | str | Path,
    run: str | Path | None = None,
    *,
    loss: str = "squared_hinge",
    method: str = "auto",
    C: float | Sequence[float] = 1.0,
    bias: float | str = "auto",
    unpenalized_bias: bool = False,
    tol: float | None = None,
    eps: float | None = None,
    max_passes: int = 1000,
    class_weight: Mapping[Any, float] | str | None = None,
    code: np.ndarray | Sequence[Sequence[int]] | None = None,
    omega: float | str = 1.0,
    acceleration: float | str = "auto",
    ridge: float | None = None,
    slack: str | None = None,
    start_from: str | Path | None = None,
    calibrate: bool = False,
    validation: Dataset | str | Path | None = None,
    early_stop: bool = False,
    cache: str | Path | None = None,
    cache_size: int | str | None = None,
    memory: int | str = "1GB",
    seed: int = 0,
    checkpoint_every: float = 60.0,
    max_seconds: float | None = None,
    resume: bool = False,
    force: bool = False,
    plan: Plan | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    client: Any = None,
    local_passes: int | None = None,
    worker_timeout: float | None = None,
    threads: int | None = None,
    listener: Listener | None = None,
    stop_requested: StopRequested | None = None,
) -> Result:
    """Train a model on a dataset, in a run directory that can be resumed.

    Parameters
    ----------
    dataset : Dataset or path
    run : path
        Directory to make; has to be given.
    loss : {"squared_hinge", "hinge", "log_loss", "crammer_singer", "twin"}
    method : {"auto", "dual", "primal", "online", "sor"}
        ``"primal"`` and ``"online"`` read the column layout (see `make_columns`); ``"sor"`` is the classic algorithm of the
        twin SVM, with an inverse of features × features for each plane; ``"auto"`` chooses, and tells the listener why.
    C : float or sequence of float
        Factor of the sum of losses. Several values are trained in the same passes, and each gets a model.
    bias : "auto", "none" or float
        Value of a constant feature appended to every row, which gives an intercept; its weight is penalised like the others.
        Negative for none. ``"auto"``: 1 for a dataset made from tables, frames or dense arrays, none for libsvm text and
        sparse matrices, as in LIBLINEAR; with `start_from`, that of the earlier run. The listener is told.
    unpenalized_bias : bool
        Leave the bias's weight out of ``½‖w‖²``; by primal methods only.
    tol : float, optional
        Relative duality gap at which to stop; 1e-3 if neither this nor `eps` is given.
    eps : float, optional
        Stop by LIBLINEAR's rule on violations instead.
    max_passes : int
    class_weight : mapping of label to factor, or ``"balanced"``, optional
    code : array of -1, 0, +1, shape (classes, vectors), optional
        Code matrix of the binary problems; one-vs-rest by default.
    omega : float or "auto"
        Over-relaxation in (0, 2) of hinge, squared_hinge and twin; 1 is plain coordinate descent, ``"auto"`` tries.
    acceleration : "auto", "none" or float
        Train dual methods with an outer proximal point around coordinate descent, which takes fewer passes on all but easy
        problems; a number is its kappa, and ``"auto"`` finds it while training. The methods primal and online extrapolate
        after each pass instead, without a kappa. Training is plain by a dual method with `eps` or an omega other than 1, by
        sor, and where the additional arrays do not fit in `memory`.
    ridge : float, optional
        For twin: r in ``r/2 ‖w‖²``, 1 by default.
    slack : {"hinge", "squared_hinge"}, optional
        For twin: loss of the rows that a plane keeps at a distance.
    start_from : path, optional
        A finished run on the same dataset that differs in C (or is a search over C), from whose dual variables to start,
        or, by a primal method, from whose weights. Method sor can start from a run by sor or dual, dual from one by dual.
    calibrate : bool
        Give the model probabilities: Platt's sigmoids, fitted to decisions on five held-out folds, which are trained after
        it, all in the same reads. For hinge and squared_hinge; the weights do not change.
    validation : Dataset or path, optional
        Held-out rows, a dataset on disk or whatever `convert` reads: their mean loss and accuracy, for each C, are in log
        and progress after passes 1 to 8, 10, 12, 15, … (each time a quarter more) and at the end. They stop nothing unless
        `early_stop` is given. Not on workers.
    early_stop : bool
        End the training of a C when five looks in a row have not found a smaller loss: its model is then that of the last
        pass, with a certificate, and `Result.stop_reason` is ``"validation"``. The gap still ends it if it is first.
    cache : path, optional
        Directory on this machine (of every worker) where ranges of a dataset at a URL are kept, for passes after the first.
    cache_size : int or str, optional
        Bound on the size of that directory, which processes may share; 10 GB by default.
    memory : int or str
        Bound on the process's peak resident memory. Lanes that do not fit together are trained in groups.
    seed : int
    checkpoint_every : float
        Seconds between checkpoints.
    max_seconds : float, optional
        Stop after this time with a checkpoint and without a model, unless training has ended; for batch queues. The time is
        checked between windows. `Result.stop_reason` is then ``"time"``.
    resume : bool
        Resume the run if there is one of the same training, with the stopping rule given here; otherwise begin it.
    force : bool
        Replace an existing run.
    plan : optional
        Sizes of the windows, for tests of streamcd itself; by default they follow from `memory`.
    workers : int, optional
        Train on this number of processes of this machine, which share `memory`; by default, and for 1, in this process.
    scheduler : str, optional
        Address of a dask scheduler, on whose workers to train; `memory` then bounds each. They must see `dataset` and `run`
        under these paths. Every round is a checkpoint.
    client : distributed.Client, optional
        A client of such a scheduler, in place of its address. With `workers` its workers, of that number, are on this
        machine and share `memory`.
    local_passes : int, optional
        Passes of every worker over its own shards in a round; 3 by default, 1 if there are more features than rows, or
        34 M entries or more. With workers only.
    worker_timeout : float, optional
        Seconds without a response of a worker, after which others take over its shards; with workers only.
    threads : int, optional
        Threads of this process that share the reading, certificates and lanes; all processors by default. No bit of the
        result depends on their number, and `memory` includes what they take.
    listener : Listener, optional
        Receiver of progress and messages, such as `ProgressBar`.
    stop_requested : callable, optional
        Called without arguments after every window; returns the number of a signal that asks the training to stop, or None.
        By default Ctrl-C and SIGTERM ask that.

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
    listener = listener or Listener()
    on_workers = Workers.asked(client, workers, scheduler, fewest=2)
    threading = make_threads(threads)
    # first: for rows in memory a run is not what is missing
    dataset = open_cached(dataset, cache, cache_size)
    path = local_path(run, "a run")
    if method == "auto" and start_from is None and not on_workers:
        method, reason = choose_method(unpenalized_bias)
        listener.message(f"method {method}: {reason}")
    bias, bias_because = choose_bias(bias, dataset, listener, start_from)
    problem = ProblemOptions.asked(
        loss=loss,
        method=method,
        C=C,
        bias=bias,
        class_weight=class_weight,
        code=code,
        seed=seed,
        omega=omega,
        acceleration=acceleration,
        ridge=ridge,
        slack=slack,
        unpenalized_bias=bool(unpenalized_bias),
    )
    problem = settle_acceleration(problem, eps, listener)
    _check_rounds(problem, on_workers, plan, local_passes=local_passes, worker_timeout=worker_timeout)
    timeout = WORKER_TIMEOUT if worker_timeout is None else float(worker_timeout)
    shared = parse_size(memory) if on_workers.local else None
    asked = TrainOptions(
        problem,
        parse_size(memory),
        checkpoint_every,
        make_rule(tol, eps, max_passes, early_stop=early_stop),
        plan=plan,
        rounds=SharedRounds(local_passes, timeout, shared) if on_workers else None,
        local_workers=on_workers.local,
        start_from=None if start_from is None else str(Path(start_from).resolve()),
        calibrate=calibrate,
        validation=_validation_path(validation, early_stop, on_workers),
        cache=dataset.cache,
        bias_because=bias_because,
    )
    if calibrate:
        from .calibration import check_calibration

        check_calibration(problem, on_workers=bool(on_workers))
    resolved = resolve(dataset, asked, listener)
    session = Session(listener, stop_requested, threads=threading, until=deadline(max_seconds))
    if resume and is_begun(path, resolved.config):
        from .resume import go_on

        return go_on(path, on_workers, session, lambda config: changed_by(config, resolved.config))
    warn_early(resolved, listener)
    previous = previous_run(resolved)  # refused before anything is made
    with (
        on_workers.reached(listener) as reached,
        begin_run(path, resolved, force=force) as directory,
        reached.connected(listener) as found,
    ):
        return carry_out(directory, resolved, previous, replace(session, client=found))


def _validation_path(
    validation: Dataset | str | Path | None, early_stop: bool, workers: Workers
) -> str | None:
    """Return the whole path of a validation set, for the record of the run; one that will not do is refused."""
    if validation is None:
        if early_stop:
            raise UsageError("early_stop: it goes by a validation set; give --validation as well")
        return None
    if isinstance(validation, Dataset) and validation is not validation.whole:
        raise UsageError(
            f"validation: expected a whole dataset, found {validation.n_rows} rows of {validation.path}, which a resumed "
            "run would not find again; convert these rows by themselves"
        )
    from .validation import check_validation  # with the kernels of decisions

    path = absolute_path(str(validation.path) if isinstance(validation, Dataset) else validation)
    check_validation(path, on_workers=bool(workers))
    return path


def _check_rounds(
    problem: ProblemOptions, workers: Workers, plan: Plan | None, **of_rounds: float | None
) -> None:
    """Refuse options that training on workers does not have, or that only it has."""
    if not workers:
        for name, value in of_rounds.items():
            if value is not None:
                raise UsageError(f"{name} is for training on workers; give --scheduler or --workers")
        return
    if problem.omega != 1.0:
        raise UsageError("omega is for one process: on workers a line search sets the length of steps")
    if not find_solver(problem.loss, problem.method).in_rounds:
        known = ", ".join(str(entry) for entry in SOLVERS if entry.in_rounds)
        raise UsageError(
            f"{problem.loss} by method {problem.method} is not for several workers: rounds are steps of block-diagonal "
            f"dual coordinate descent with a line search along the dual; there are: {known}"
        )
    if plan is not None:
        raise UsageError("plan: workers make their own plans from their memory and their shards")
