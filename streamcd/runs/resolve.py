"""Resolution of a run's options on a dataset: folds, loss, bias, method, acceleration, groups of lanes, the memory plan.

Each is a function of what stands before it. Notes tell what was chosen, and why; nothing is written, and nothing read but
the dataset and the configuration of the run that a new one starts from.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from ..core.errors import BudgetError, UsageError
from ..core.memory_budget import RUNNING_BYTES, format_size
from ..dataset.column_layout import has_columns
from ..dataset.dataset import Dataset
from ..dataset.diagnostics import ACCELERATED_FACTOR, BAD_MEAN_SQUARE, row_mean_square
from ..dataset.in_memory import InMemoryDataset
from ..dataset.kept_columns import coded_texts
from ..dataset.schema import MAX_CLASSES
from ..kernels.loss_table import LOSSES, SOLVERS, methods_for
from ..solvers.problem import Problem
from ..solvers.protocol import SolverOptions, solver_class
from ..stream.memory_plan import Plan, SolverMemory, check_holding, describe_plan, make_plan
from ..training.stopping import StopRule
from .config import (
    ResolvedRun,
    RunConfig,
    SharedRounds,
    problem_of,
    read_config,
    versions,
)
from .options import (
    DEFAULT_LOSS,
    DEFAULT_LOSS_OF_TARGETS,
    NO_BIAS,
    WORKER_TIMEOUT,
    ProblemOptions,
    TrainOptions,
    TuneOptions,
)


def resolve(options: TrainOptions, dataset: Dataset) -> tuple[RunConfig, list[str]]:
    """Make the configuration of a new run, and notes on what was chosen; refused where options do not go together or fit.

    Parameters
    ----------
    options : TrainOptions
    dataset : Dataset
    """
    workers = options.n_workers
    start = None if options.start_from is None else read_config(Path(options.start_from))
    folds = count_folds(dataset, options.cv) if isinstance(options, TuneOptions) else 0
    choices = []

    # the loss, by the labels
    loss = options.loss or DEFAULT_LOSS
    if options.loss is None and dataset.has_targets:
        loss = DEFAULT_LOSS_OF_TARGETS
        choices.append(f"loss {loss}: numbers to predict")
    check_labels(loss, dataset)
    scoring = _criterion(options, loss, dataset) if isinstance(options, TuneOptions) else None

    # the bias, by the source of the dataset; the dual variables of a run to start from fit its own alone
    bias = options.bias
    bias_because = "as asked"
    if bias == "auto" and start is not None:
        bias = start.options.bias
        bias_because = "that of the run it starts from"
    elif bias == "auto":
        bias, bias_because = BIAS_BY_SOURCE[dataset.made_from]
    given = {one.name: getattr(options, one.name) for one in fields(ProblemOptions)}
    problem = ProblemOptions(**given | {"loss": loss, "bias": float(bias)})

    # the method
    because = ""
    if problem.method == "auto":
        method, because = choose_method(options, problem, dataset, folds, start)
        problem = replace(problem, method=method)
    solver = SOLVERS[problem.loss, problem.method]
    choices.append(f"method {problem.method}{because and f': {because}'}")
    if workers is not None:
        _check_workers(problem, options.plan)
    elif options.worker_timeout is not None:
        raise UsageError("worker_timeout is for training on workers; give --scheduler or --workers")

    # acceleration
    if because := _why_plain(problem, options.eps):
        if problem.acceleration != "auto":
            raise UsageError(f"acceleration {problem.acceleration:g}: {because}; leave it at auto or none")
        if solver.accelerates:
            choices.append(f"without acceleration: {because}")
        problem = replace(problem, acceleration="none")
    choices.append(f"bias {'none' if float(bias) < 0 else f'{bias:g}'}: {bias_because}")
    notes = ["; ".join(choices)]

    # groups of lanes and the plan; without acceleration where its arrays do not fit
    sizes = dataset, int(options.memory), folds, workers, options.plan
    try:
        groups = plan_groups(problem, *sizes)
    except BudgetError:
        if problem.acceleration == "none":
            raise
        problem = replace(problem, acceleration="none")
        groups = plan_groups(problem, *sizes)
        scores = " and one of the scores'" if solver.layout == "columns" else ""
        notes.append(
            f"trained without acceleration, which takes one more array of the weights' size{scores}: that does not fit in "
            f"{format_size(groups.memory)}"
        )
    if workers is not None:
        notes.append(describe_worker_budget(groups.memory))
    elif not groups.plan.resident:
        notes.append(describe_plan(groups.plan, dataset, groups.memory))
    if groups.number > 1:
        notes.append(
            f"{groups.n_lanes:,} problems (of classes, values of C or λ, or folds) with weights for {dataset.n_features:,} "
            f"features each do not fit in {format_size(groups.memory)}: "
            f"they are trained in {groups.number} groups, one after another, each with reads of its own"
        )

    rounds = None
    if workers is not None:
        timeout = WORKER_TIMEOUT if options.worker_timeout is None else float(options.worker_timeout)
        rounds = SharedRounds(timeout, int(options.memory) if workers else None)
    centre = dataset.centre if problem.unpenalized_bias else None
    config = RunConfig(
        dataset=str(dataset.path.resolve()),
        fingerprint=dataset.fingerprint,
        options=problem,
        memory=groups.memory,
        plan=groups.plan,
        n_groups=groups.number,
        rule=StopRule(options.tol, options.eps, options.max_passes),
        checkpoint_every=float(options.checkpoint_every),
        seed=int(options.seed),
        versions=versions(),
        folds=folds,
        scoring=scoring,
        rounds=rounds,
        columns=dataset.open_columns().fingerprint if solver.layout == "columns" else None,
        start_from=None if options.start_from is None else str(options.start_from),
        cache=dataset.cache,
        threads=options.threads,
        bias_because=bias_because,
        centred="" if centre is None else centre.describe(),
    )
    return config, notes


# ---------------------------------------------------------------------------------------------------------------------
# Loss and labels


_MANY_FRACTIONS = 20
"""Number of labels above which numbers with fractions are a target: ratings by halves have fewer, versions and codes are
names."""


def labels_of_a_target(dataset: Dataset, most: int = _MANY_FRACTIONS) -> str | None:
    """Describe labels that are numbers to predict, taken as classes: with fractions, more than `most`; None for others."""
    labels = None if dataset.class_names is not None else dataset.classes
    if labels is None or labels.size <= most:
        return None
    fractions = labels[labels % 1.0 != 0.0]
    if not fractions.size:
        return None
    return (
        f"{labels.size:,} different numbers such as {fractions[0]:.6g}; convert with --target to predict numbers; if they "
        "are classes, write them as whole numbers or names"
    )


def check_labels(loss: str, dataset: Dataset) -> None:
    """Refuse a dataset whose labels are not what the loss is for: targets, or two classes at least."""
    where = dataset.path
    expected = f"{where}: expected classes for the loss {loss}, found"
    if LOSSES[loss].has_targets:
        if not dataset.has_targets:
            raise UsageError(
                f"{where}: expected numbers to predict for the loss {loss}, found classes; convert with --target"
            )
        return
    if dataset.has_targets:
        for_numbers = " or ".join(name for name, entry in LOSSES.items() if entry.has_targets)
        raise UsageError(
            f"{expected} numbers to predict; take --loss {for_numbers}, or convert without --target"
        )
    labels = dataset.class_labels()
    if labels is None:
        raise UsageError(
            f"{expected} more than {MAX_CLASSES:,}; take another --label, or convert with --target"
        )
    if numbers := labels_of_a_target(dataset):
        raise UsageError(f"{expected} {numbers}")
    if len(labels) == 1:
        raise UsageError(f"{where}: expected at least two classes, found {str(labels)[1:-1]} alone")


def _criterion(options: TuneOptions, loss: str, dataset: Dataset) -> str:
    """Return the criterion of a search; refused where the loss does not have it."""
    scoring = options.scoring
    known = ("r2", "loss") if dataset.has_targets else ("accuracy", "auc", "log_loss")
    if scoring is None:  # R² where it ranks as the loss
        return known[0] if loss == "squared_error" or not dataset.has_targets else "loss"
    if scoring not in known:
        of = "numbers to predict" if dataset.has_targets else "classes"
        raise UsageError(f"scoring: expected one of {', '.join(known)} for {of}, found {scoring!r}")
    if scoring == "log_loss" and (options.code is not None or not LOSSES[loss].probabilities):
        raise UsageError(
            f"scoring log_loss needs probabilities, which {loss} has not; take --loss log_loss or multinomial, or "
            "--scoring auc"
        )
    return scoring


# ---------------------------------------------------------------------------------------------------------------------
# Folds


_MOST_FOLDS = 20
"""Largest number of values of a column of folds that are a fold each; more of them are hashed to folds."""


def count_folds(dataset: Dataset, cv: int) -> int:
    """Return the number of folds of a search: `cv` unless a column of the dataset tells."""
    if dataset.fold_column:
        names = _names_of_folds(dataset)
        return cv if len(names) > _MOST_FOLDS else len(names)
    if cv > dataset.n_rows:
        raise UsageError(
            f"--cv {cv}: expected a row for each fold, found {dataset.n_rows} rows; give a smaller --cv"
        )
    return cv


def with_folds(dataset: Dataset, folds: int) -> Dataset:
    """Return the dataset with the folds of a search, if it has a column of them: a byte for each row."""
    if not folds or not dataset.fold_column:
        return dataset
    names = _names_of_folds(dataset)
    fold_of_row = np.empty(dataset.n_rows, np.uint8)
    start = 0
    for array in dataset.read_kept(dataset.fold_column):
        texts, codes = coded_texts(array)
        if len(names) > _MOST_FOLDS:
            numbers = [crc32(text.encode()) % folds for text in texts]
        else:
            numbers = [names.index(text) for text in texts]
        fold_of_row[start : start + codes.size] = np.array(numbers, np.uint8)[codes]
        start += codes.size
    folded = copy(dataset)
    folded.use_folds(fold_of_row)
    return folded


def _names_of_folds(dataset: Dataset) -> list[str]:
    """Return the distinct values of the column of folds, sorted; of many some."""
    names = set[str]()
    n_missing = 0
    for array in dataset.read_kept(dataset.fold_column):
        texts, codes = coded_texts(array)
        if len(names) <= _MOST_FOLDS:
            names.update(texts)
        n_missing += int(np.count_nonzero(codes < 0))
    if n_missing or len(names) < 2:
        wrong = f"{n_missing:,} rows without" if n_missing else f"{min(map(repr, names))} alone"
        raise UsageError(
            f"{dataset.path}: column {dataset.fold_column!r}: expected the folds of the rows, found {wrong}"
        )
    return sorted(names)


# ---------------------------------------------------------------------------------------------------------------------
# Bias


_WITHOUT = "--bias 1 adds an intercept"
_WITH = "--bias none leaves the intercept out"
BIAS_BY_SOURCE = {
    "table": (1.0, f"made from a table; {_WITH}"),
    "dense array": (1.0, f"made from a dense array; {_WITH}"),
    "sparse matrix": (NO_BIAS, f"made from a sparse matrix; {_WITHOUT}"),
    "libsvm text": (NO_BIAS, f"made from libsvm text; {_WITHOUT}"),
    None: (NO_BIAS, f"made from a source that is not known; {_WITHOUT}"),
}
"""The bias by what a dataset was made from, negative for none, with the reason."""


# ---------------------------------------------------------------------------------------------------------------------
# Method
#
# The dual method, accelerated, needs the fewest passes on wide data, and no second layout. Newton's method needs fewer reads
# of narrow data, and keeps no dual variables on disk, but each takes longer.

_MATRICES = 5
"""Matrices of each lane: one for each part of a window, and their sum."""

_SHARE = 0.125
"""Share of the memory that they may take."""

_MOST_OPERATIONS = 3e11
"""Cubes of features, of all lanes, with which a read's solutions take a minute, where dual would not end."""

_MOST_PRODUCTS = 64
"""Entries of a row, times the lanes of a fold, for which the products of their pairs take little longer than reading."""


def choose_method(
    options: TrainOptions,
    problem: ProblemOptions,
    dataset: Dataset,
    folds: int = 0,
    start: RunConfig | None = None,
) -> tuple[str, str]:
    """Choose the method, with the reason; no layout is built, though one may be needed that there is not yet.

    With the penalty l2 the first of these decides:

    1. A run that starts from another is trained by newton if that was, and newton has the loss; else by dual.
    2. `omega`, `acceleration` and `eps` are options of the steps of dual.
    3. A loss that newton does not have is trained by dual.
    4. On workers newton takes data with few features (its matrices within `_SHARE` of the memory), many rows for each, and
       short rows (within `_MOST_PRODUCTS`); dual takes all else.
    5. Newton takes data of which dual would need very many passes, as the largest C times the rows' mean square norm is
       large (of centred rows, if they are); with short rows or one lane of a fold, and solutions within `_MOST_OPERATIONS`.
    6. Newton takes data with few features that it trains in less time by an estimate (`newton_is_faster`), which depends on
       the tolerance too, and on whether data are read from disk.
    7. Dual takes the rest.

    In a search dual takes what is read from disk, and the estimate does not count: the values of C share dual's passes.

    With l1 and elasticnet newton takes data with few features, and data without a column layout; working-set takes the rest.
    Where newton does not fit in memory, from 4 on, the other method is taken.
    """
    penalty = problem.penalty
    has_newton = "newton" in methods_for(problem.loss)
    if penalty == "l2" and start is not None:
        return "newton" if has_newton and start.options.method == "newton" else "dual", ""
    of_steps = problem.omega != 1.0, problem.acceleration != "auto", options.eps is not None
    if penalty == "l2" and any(of_steps):
        return "dual", ""
    method = "dual"
    reason = "" if folds else "the fewest passes on nearly all data"
    if not has_newton:
        return method, reason
    memory = int(options.memory)
    workers = options.n_workers
    n_lanes = problem_of(problem, dataset, folds=folds, memory=memory).n_lanes
    matrices = _MATRICES * 8 * n_lanes * (dataset.n_features + 1) ** 2
    few = matrices <= _SHARE * memory / (workers or 1)  # of a machine, its workers share the memory
    if penalty == "l2":
        newton = _why_newton(options, problem, dataset, n_lanes, few, folds)
    else:
        method = "working-set"
        reason = f"it trains with the penalty {penalty} from the column layout"
        newton = ""
        if few:
            newton = f"few features: it needs the fewest reads with the penalty {penalty}"
        elif not has_columns(dataset):
            layout = f"which 'streamcd columns {dataset.path}' makes"
            newton = f"the penalty {penalty} takes less time by the column layout, {layout}"
    if not newton:
        return method, reason
    try:
        plan_groups(replace(problem, method="newton", acceleration="none"), dataset, memory, folds, workers)
    except BudgetError:
        if folds and penalty == "l2":
            return method, ""
        return method, f"newton, which needs fewer reads, does not fit in {format_size(memory)}"
    return "newton", newton


def _why_newton(
    options: TrainOptions, problem: ProblemOptions, dataset: Dataset, n_lanes: int, few: bool, folds: int
) -> str:
    """Return why newton takes less time than dual, whether or not its matrices fit; empty where it does not."""
    n_rows = dataset.n_rows
    n_entries = dataset.n_entries
    size = dataset.n_features + 1
    lanes_of_fold = n_lanes // max(folds, 1)
    C_mean_square = max(problem.C) * (row_mean_square(dataset, centred=problem.unpenalized_bias) or 0.0)
    has_few_products = n_entries * lanes_of_fold <= _MOST_PRODUCTS * n_rows
    if options.n_workers is not None:
        tall = few and has_few_products and n_rows >= _ROWS_PER_FEATURE * size
        return "few features: it needs the fewest reads, which workers share" if tall else ""
    ill_conditioned = (
        (has_few_products or lanes_of_fold == 1)
        and n_lanes * size**3 <= _MOST_OPERATIONS
        and C_mean_square >= ACCELERATED_FACTOR * BAD_MEAN_SQUARE
    )
    is_streamed = n_entries * dataset.entry_bytes > int(options.memory) - RUNNING_BYTES
    assert options.tol is not None  # else with `eps`, and by dual
    figures = n_rows, size, n_entries, C_mean_square, options.tol
    faster = few and not folds and newton_is_faster(problem.loss, *figures, is_streamed=is_streamed)
    if is_streamed and (faster or (ill_conditioned and not folds)):
        return "rows are read from disk: it needs the fewest reads"
    if ill_conditioned and not is_streamed:  # newton's passes alone end where features are badly scaled
        return "C times the rows' squared length is large, which does not slow it down"
    return "few features: it takes less time" if faster else ""


def reads_columns(options: TrainOptions, dataset: Dataset) -> bool:
    """Tell whether the method, or the one that is chosen for auto, reads the column layout."""
    method = options.method
    if method == "auto":
        method, _ = choose_method(options, options, dataset)
    return SOLVERS[options.loss, method].layout == "columns"


# ---------------------------------------------------------------------------------------------------------------------
# The time of Newton's method beside that of the dual method, from what is known before a training
#
# The unit is the dual method's visit of all rows in memory. The figures are of `docs/measurements.md`, "What auto takes".

_READS = {
    "squared_error": 2.0,
    "huber": 3.5,
    "squared_epsilon_insensitive": 4.0,
    "squared_hinge": 6.0,
    "log_loss": 6.0,
}
"""Reads of Newton's method, which depend little on C and scale where there are many rows for each feature."""

_ROWS_PER_FEATURE = 100
"""Rows for each feature from which on classes are not separable: sets of 11 and 73 took 40 to 160 reads with C = 100."""

_PASSES = {
    "squared_error": 4.5,
    "huber": 4.5,
    "squared_epsilon_insensitive": 4.5,
    "squared_hinge": 4.0,
    "log_loss": 3.0,
}
"""Passes of the dual method, accelerated, to 1e-3 where C times the rows' mean square norm is small."""

_GROWTH = 0.17
"""Exponent with which these passes grow in that product."""

_LEAST_NANOSECONDS = 3e7
"""Time of the dual method below which it is taken, as on all data that are not narrow: the difference is not felt."""


def newton_is_faster(
    loss: str,
    n_rows: int,
    n_weights: int,
    n_entries: int,
    C_mean_square: float,
    tol: float,
    *,
    is_streamed: bool,
) -> bool:
    """Tell whether Newton's method takes less time than the dual one, for each of several lanes.

    A read takes 1.2 visits of all rows, products of pairs of a row's entries, and a solution. Where data are streamed a
    visit decodes, too, and the dual method takes twice the passes, as windows are visited one after another.

    Parameters
    ----------
    C_mean_square : float
        C times the mean square of the rows' norms.
    """
    row_entries = n_entries / max(n_rows, 1)
    visit = n_rows * (60.0 + 2.0 * row_entries) + 1e6  # nanoseconds
    newton = 1.2 + row_entries / 100.0 + 0.3 * n_weights**3 / visit
    decoding = 2.0 + row_entries / 100.0 if is_streamed else 0.0
    length = 1.0 + C_mean_square
    passes = _PASSES[loss] * length**_GROWTH
    reads = _READS[loss]
    if loss == "squared_hinge" and n_rows < _ROWS_PER_FEATURE * n_weights:
        passes = _PASSES[loss] * length**0.5
        reads = max(reads, 3.0 * length**0.3)
    passes *= 1.0 + 0.2 * max(-math.log10(max(tol, 1e-6)) - 3.0, -1.0)
    if is_streamed:
        passes *= 2.0
    if passes * visit < _LEAST_NANOSECONDS:
        return False
    return reads * (newton + decoding) < passes * (1.0 + decoding)


# ---------------------------------------------------------------------------------------------------------------------
# Acceleration, workers


def _why_plain(problem: ProblemOptions, eps: float | None) -> str:
    """Return why there is no acceleration; empty where there is."""
    solver = SOLVERS[problem.loss, problem.method]
    if problem.acceleration == "none":
        return ""
    if not solver.accelerates:
        return f"{problem.loss} by method {problem.method} cannot be accelerated"
    if problem.omega != 1.0:
        return f"it cannot be combined with omega {problem.omega}"
    if not solver.keeps_alpha and problem.acceleration != "auto":
        return f"the strength of that of method {problem.method} cannot be given"
    if eps is not None and solver.keeps_alpha:
        return "LIBLINEAR's rule (eps) is for plain descent"
    return ""


def _check_workers(problem: ProblemOptions, plan: Plan | None) -> None:
    """Refuse options that training on workers does not have."""
    if plan is not None:
        raise UsageError("plan: workers make their own plans from their memory and their shards")
    if problem.omega != 1.0:
        raise UsageError("omega is for one process: on workers a line search sets the length of steps")
    if problem.penalty != "l2":
        raise UsageError(f"--penalty {problem.penalty} is for one process, without --workers and --scheduler")
    if not SOLVERS[problem.loss, problem.method].rounds:
        known = ", ".join(str(entry) for entry in SOLVERS.values() if entry.rounds)
        raise UsageError(
            f"{problem.loss} by method {problem.method} is not for several workers; expected one of {known}"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Groups of lanes: as many are trained in the same reads as the memory has room for


_LEAST_MIXED_CHUNKS = 8  # in a window, for which lanes are grouped; fewer converge slowly


class Groups(NamedTuple):
    """Numbers of groups and of lanes, the plan of the largest group, and the bytes it is for."""

    number: int
    n_lanes: int
    plan: Plan
    memory: int


def training_memory(
    options: ProblemOptions, problem: Problem, lanes: Problem, dataset: Dataset
) -> SolverMemory:
    """Count the bytes of some lanes' training: of the solver, of the tables of all lanes and of these, of shifts of features
    that are centred, and of rows in memory.
    """
    of_solver = SolverOptions(options.method, acceleration=options.acceleration)
    memory = solver_class(lanes, options.method).memory_of(lanes, dataset, of_solver)
    weights = memory.weights + problem.table_bytes
    if lanes.n_lanes < problem.n_lanes:
        weights += lanes.table_bytes
    if memory.layout.centred and dataset.centre is not None:
        weights += dataset.centre.table.nbytes
    # of rows in memory the state is there too
    state = dataset.n_rows * memory.layout.state_bytes if isinstance(dataset, InMemoryDataset) else 0
    folds = dataset.n_rows if problem.n_folds and dataset.fold_column else 0
    return replace(memory, weights=weights, rows=memory.rows + state + folds)


def plan_groups(
    options: ProblemOptions,
    dataset: Dataset,
    budget: int,
    folds: int = 0,
    workers: int | None = None,
    plan: Plan | None = None,
) -> Groups:
    """Divide the lanes into groups; with a plan that is given they are one.

    `workers` is None for this process alone, 0 for those of a cluster, each of which has all of the budget, or else the
    number of those of this machine, which share it; the plan is that of one with all shards.
    """
    problem = problem_of(options, dataset, folds=folds, memory=budget)
    n_lanes = problem.n_lanes
    if plan is not None:
        check_holding(plan, dataset, training_memory(options, problem, problem, dataset))
        return Groups(1, n_lanes, plan, budget)
    block = problem.block_lanes if problem.n_folds else 1  # lanes of a fold are scored together
    n_blocks = n_lanes // block
    largest_chunk = int(np.diff(dataset.entry_start).max(initial=1))
    sizes = sorted({-(-n_blocks // n_groups) for n_groups in range(1, n_blocks + 1)}, reverse=True)
    for size in sizes:
        number = -(-n_blocks // size)
        lanes = problem.subset(range(size * block))
        memory = training_memory(options, problem, lanes, dataset)
        share = budget
        beside = 0
        try:
            if workers is not None:
                from ..cluster.memory import WORKER_BYTES, share_memory  # only where there are workers

                memory, share = share_memory(dataset, lanes, memory, budget, workers)
                beside = WORKER_BYTES
            made = make_plan(dataset, share - beside, memory)
        except BudgetError:
            if size == 1:
                raise
            continue
        mixed = made.window_entries // largest_chunk
        if made.resident or mixed >= _LEAST_MIXED_CHUNKS or size == 1:
            return Groups(number, n_lanes, made, share)
    raise AssertionError("a single lane has a plan, or is refused")


def describe_worker_budget(n_bytes: int) -> str:
    """Describe the budget of every worker in a line."""
    return f"every worker streams its own shards within {format_size(n_bytes)}"


def share_memory_anew(run: ResolvedRun, workers: int) -> RunConfig:
    """Return the configuration for another number of workers, local ones or 0, by the budget that the run was begun with."""
    from ..cluster.memory import share_memory

    config = run.config
    assert config.rounds is not None
    budget = config.rounds.shared_memory or config.memory
    lanes = run.problem.subset(next(iter(run.groups.values())))
    memory = training_memory(config.options, run.problem, lanes, run.dataset)
    _, share = share_memory(run.dataset, lanes, memory, budget, workers)
    return replace(config, memory=share, rounds=replace(config.rounds, shared_memory=budget))
