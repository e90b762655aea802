"""Options of a training, a search over C, a resumption and a report, declared and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.errors import UsageError
from ..core.memory_budget import parse_size
from ..core.options import (
    Checked,
    ListenerOptions,
    ModelOptions,
    Place,
    Section,
    Size,
    again,
    option,
    replaces,
)
from ..core.storage import local_path
from .problem_options import ProblemOptions, check_positive, seconds

MAX_FOLDS = 100


@dataclass(frozen=True, kw_only=True)
class SessionOptions(ListenerOptions, Checked):
    """Options of what trains, as long as the call takes; no run records them."""

    workers: int | None = option(
        None,
        "Train on this number of processes of this machine, which share `memory` (at least 385 MB each, and 200 MB for "
        "this one). By dual one process, with threads, takes less time: they are to try a cluster.",
        metavar="N",
        default_is="this process alone",
        least=1,
        section=Section.PROCESSORS,
    )
    scheduler: str | None = option(
        None,
        "Train on the workers of this dask scheduler, such as tcp://host:8786. They must see a dataset that is no URL "
        "under the same path; the memory budget is that of each. Every round is a checkpoint.",
        metavar="ADDRESS",
        section=Section.PROCESSORS,
    )
    client: Any = option(
        None,
        "A client of such a scheduler, in place of its address. With `workers` its workers, of that number, are on "
        "this machine and share its memory budget.",
        kind="distributed.Client",
        flags="",
    )
    stop_requested: Callable[[], int | None] | None = option(
        None,
        "Called without arguments after every part of the data in memory; returns the number of a signal that asks to stop, "
        "or None. By default Ctrl-C and SIGTERM ask that.",
        kind="callable",
        flags="",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheduler is not None and (self.workers is not None or self.client is not None):
            raise UsageError(
                "--workers are of this machine, --scheduler uses those of a cluster: give one of them"
            )


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ProblemOptions, SessionOptions):
    """Options of `run.train`."""

    seed: int = option(0, "Seed of the random order of visits.", section=Section.METHOD)
    tol: float | None = option(
        None,
        "Stop at this relative duality gap, (primal - dual) / max(|primal|, 1e-9 P(0)), P(0) being the objective with all "
        "weights 0.",
        default_is="1e-3",
    )
    eps: float | None = option(
        None,
        "Stop by LIBLINEAR's rule instead: over all rows the projected gradients PG of the dual satisfy max PG - "
        "min PG, |max PG|, |min PG| <= EPS; by a primal method the gradient at w satisfies ‖grad f(w)‖ <= EPS · "
        "min(n+, n-)/n · ‖grad f(0)‖, w being the end of a pass. Turns acceleration off for dual.",
        flags="-e",
        metavar="EPS",
        section=Section.STOPPING,
    )
    max_passes: int = option(1000, "Most passes over the data.", section=Section.STOPPING, is_common=True)
    max_seconds: float | str | None = option(
        None,
        "Stop after this time with a checkpoint and no model (stop_reason time), for batch queues; a training that ends "
        "sooner has its model. Checked after each part of the data that is in memory.",
        metavar="TIME",
        section=Section.STOPPING,
    )
    start_from: Place = option(
        None,
        "Start from the dual variables of a finished run, scaled from its C to this one; takes no extra read. Shards "
        "that the run did not have begin at 0. Method sor can start from a run by dual or sor; a primal method starts "
        "from the weights of a run by any method, which takes a read.",
        metavar="RUN",
        section=Section.METHOD,
    )
    memory: Size = option(
        "1GB",
        "Bound on peak resident memory: 400MB, 2GiB. It is that of the process, interpreter and all; what does not fit "
        "together is trained in groups, one after another.",
        metavar="SIZE",
    )
    checkpoint_every: float | str = option(
        60.0,
        "Time between checkpoints, from which `resume` continues, in seconds, or such as 2m.",
        metavar="TIME",
        section=Section.RUN,
    )
    resume: bool = option(
        False,
        "Continue the run if it holds this training already, with the stopping rule given here, otherwise begin "
        "it: the same command for every job of a queue.",
        section=Section.RUN,
    )
    force: bool = option(False, "Replace an existing run.", section=Section.RUN, is_common=True)
    worker_timeout: float | str | None = option(
        None,
        "With workers: exclude one that has not responded for this time; others take over its shards.",
        metavar="TIME",
        default_is="300s",
        section=Section.PROCESSORS,
    )
    threads: int | None = option(
        None,
        "Threads of a process. The memory budget includes what they take; processes of a machine divide its cores.",
        flags="-m --threads",
        metavar="N",
        is_common=True,
        default_is="one a core",
        least=1,
        section=Section.PROCESSORS,
    )
    cache: Place = option(
        None,
        "Copy the files of a dataset at a URL to this directory (of every worker) when they are first read, and read them "
        "there.",
        kind="path",
        metavar="DIR",
        section=Section.PROCESSORS,
    )
    plan: Any = option(
        None,
        "Entries and rows of a window, read from disk, for tests of streamcd itself.",
        flags="",
        kind="tuple of int",
        default_is="given by `memory`",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tol is not None and self.eps is not None:
            raise UsageError(
                "--tol and -e exclude each other: stop by the relative gap, or by LIBLINEAR's rule"
            )
        self._set(memory=parse_size(self.memory))
        if isinstance(self.plan, tuple):
            from ..stream.memory_plan import Plan  # with kernels, which declarations do without

            n_entries, n_rows = self.plan
            self._set(plan=Plan(n_entries, n_rows, resident=False))
        self._set(
            checkpoint_every=seconds("checkpoint_every", self.checkpoint_every),
            max_seconds=seconds("max_seconds", self.max_seconds),
            worker_timeout=seconds("worker_timeout", self.worker_timeout),
        )
        check_positive(max_seconds=self.max_seconds)
        if self.start_from is not None:
            self._set(start_from=str(local_path(self.start_from, "a run to start from").resolve()))


@dataclass(frozen=True, kw_only=True)
class TuneOptions(TrainOptions):
    """Options of `run.tune`: those of a training in one process, and the folds."""

    C: Any = option(
        None,
        "The costs to try, separated by commas; in Python a sequence.",
        kind="sequence of float",
        flags="-C -c --C",
        default_is="0.01,0.1,1,10; 1 with several values of l1",
    )
    cv: int = option(
        5,
        "Folds of the cross-validation. Rows are assigned to them by a hash; of a dataset with a column of folds (convert "
        "--fold) its values are the folds, of which equal ones stay together.",
        flags="-v --cv",
        metavar="K",
    )
    scoring: str | None = option(
        None,
        "Criterion. accuracy, auc (of several classes the mean of each against the rest) and log_loss are of classes; r2, "
        "the default for squared_error, and the mean loss of numbers to predict.",
        choices=("accuracy", "auc", "log_loss", "r2", "loss"),
        default_is="accuracy; r2 or loss",
        section=Section.CHOICE,
        is_common=True,
    )
    start_from: Place = None
    workers: int | None = None
    scheduler: str | None = None
    client: Any = None
    worker_timeout: float | str | None = None
    plan: Any = None

    def __post_init__(self) -> None:
        has_none = self.C is None
        if has_none:
            self._set(C=1.0)
        super().__post_init__()
        if has_none and len(self.l1 or ()) < 2:
            self._set(C=(0.01, 0.1, 1.0, 10.0))
        if not 2 <= self.cv <= MAX_FOLDS:
            raise UsageError(f"cv: expected from 2 to {MAX_FOLDS} folds, found {self.cv}")
        self._set(C=tuple(sorted(set(self.C))))


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(SessionOptions):
    """Options of `run.resume`, in place of a run's where they are given."""

    max_passes: int | None = again(TrainOptions, "max_passes")
    tol: float | None = again(TrainOptions, "tol")
    checkpoint_every: float | str | None = again(TrainOptions, "checkpoint_every")
    dataset: Place = option(
        None,
        "The dataset's directory, if it was moved after the run began; it has to be the same dataset.",
        metavar="PATH",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(checkpoint_every=seconds("checkpoint_every", self.checkpoint_every))


@dataclass(frozen=True, kw_only=True)
class ReportOptions(ModelOptions, ListenerOptions):
    """Options of `report.write_report`."""

    data: Any = option(
        None,
        "Evaluate the model on it, as `evaluate` does.",
        kind="Dataset or path",
        metavar="DATASET|FILE",
    )
    force: bool = replaces("page")
