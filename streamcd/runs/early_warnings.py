"""Warnings before the first pass: data, options and memory that will make a training slow or fail."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..core.memory_budget import RUNNING_BYTES, warn_of_memory
from ..core.progress import Listener
from ..dataset.dataset import Dataset
from ..dataset.diagnostics import advice, passes_help
from ..kernels.loss_table import PLANES, form_of
from ..solvers.registry import find_solver
from ..training.result import Result
from .config import ResolvedRun
from .problem_options import ProblemOptions

_MANY_LABELS, _FEW_ROWS = 100, 5  # more labels, most with fewer rows, look like numbers, not classes
_MANY_FEATURES, _SMALL_SHARE = 1000, 0.25  # of more features, some combination does an intercept's work


def warn_early(run: ResolvedRun, listener: Listener) -> None:
    """Warn of small ridges, regression targets, no intercept, bad scaling, and a budget that the process cannot keep."""
    for line in [*_of_problem(run), *scaling_advice(run)]:
        listener.warning(line)
    config, dataset = run.config, run.dataset
    if config.rounds is not None and config.rounds.shared_memory is not None:
        if find_solver(run.options.loss, run.options.method).in_rounds == "dual":
            listener.message(_ONE_MACHINE)
    elif config.rounds is None:
        # beside the interpreter: the data, if it stays in memory, else all of the budget
        whole = dataset.n_entries * dataset.entry_bytes + 16 * dataset.n_features * run.problem.n_lanes
        planned = whole if config.plan.resident else config.memory - RUNNING_BYTES
        warn_of_memory(config.memory, planned, listener)


def scaling_advice(run: ResolvedRun) -> list[str]:
    """Describe what is badly scaled for the largest C and the method."""
    options = run.options
    accelerated = options.acceleration != "none"
    C, centred = max(options.C), run.centre is not None
    return advice(run.dataset, C, accelerated=accelerated, method=options.method, centred=centred)


def advise(run: ResolvedRun, result: Result) -> None:
    """Tell in a training's result what may have kept it from its tolerance, and whether more passes are the way on."""
    result.advice = _advice_at_end(run, result)
    by_passes = result.stop_reason != "rounding"
    centred = run.centre is not None
    result.more_passes_help = by_passes and (
        result.converged or more_passes_help(run.options, run.dataset, centred=centred)
    )


def _advice_at_end(run: ResolvedRun, result: Result) -> list[str]:
    """Describe what may have kept a training from its tolerance."""
    if not result.fell_short:
        return []
    options, centred = run.options, run.centre is not None
    return advice(run.dataset, max(options.C), method=options.method, centred=centred)


def more_passes_help(options: ProblemOptions, dataset: Dataset, *, centred: bool) -> bool:
    """Tell whether more passes are the way on for a training that has not converged, or scaling is."""
    return passes_help(dataset, max(options.C), method=options.method, centred=centred)


_ONE_MACHINE = (
    "workers of one machine share its processors and its disk, and need more passes: one process, without --workers, takes "
    "half to a quarter of their time; they are there to try a cluster"
)


def _of_problem(run: ResolvedRun) -> Iterator[str]:
    options, dataset, info = run.options, run.dataset, run.dataset.info()
    ridge = 1.0 if options.ridge is None else options.ridge
    if form_of(options.loss) == PLANES and options.method == "dual" and 0 < ridge < 1:
        yield (
            f"ridge {ridge:g}: below 1 twin planes converge slowly (0.01: not within 1,000 passes on real sets); "
            "--method sor does not, where a matrix of features x features fits in memory"
        )
    if info["class_counts"] is None:
        return
    counts = np.array(info["class_counts"])
    if counts.size > _MANY_LABELS and (counts < _FEW_ROWS).mean() > 0.5:
        yield (
            f"{counts.size:,} labels, most of them with fewer than {_FEW_ROWS} rows: it looks like a target of regression, "
            "and each label is a class here, with weights of its own"
        )
    share = counts.min() / max(dataset.n_rows, 1)
    if not run.problem.bias and dataset.n_features <= _MANY_FEATURES and share < _SMALL_SHARE:
        # a plane through the origin is to separate unbalanced classes
        name = info["classes"][int(counts.argmin())]
        yield (
            f"no intercept: class {name} has {share:.1%} of the rows, and a plane through the origin cannot lean to the "
            "larger classes; --bias 1 adds an intercept"
        )
