"""Warnings before the first pass: data, options and memory that will make a training slow or fail."""

from __future__ import annotations

from ..core.memory_budget import RESERVED_BYTES, warn_of_memory
from ..core.progress import Listener
from ..dataset.dataset import Dataset
from ..dataset.diagnostics import advice
from ..kernels.loss_table import PLANES, form_of
from .config import ResolvedRun
from .problem_options import ProblemOptions

_MANY_LABELS, _FEW_ROWS = 100, 5  # more labels, most with fewer rows, look like numbers, not classes
_MANY_FEATURES, _SMALL_SHARE = 1000, 0.25  # of more features, some combination does an intercept's work


def warn_early(run: ResolvedRun, listener: Listener) -> None:
    """Warn of small ridges, regression targets, no intercept, bad scaling, and a budget that the process cannot keep."""
    _warn_of_ridge(run.options, listener)
    _warn_of_regression(run.dataset, listener)
    _warn_without_bias(run, listener)
    for line in scaling_advice(run):
        listener.warning(line)
    if run.config.rounds is None:
        warn_of_memory(run.config.memory, _planned_bytes(run), listener)


def scaling_advice(run: ResolvedRun) -> list[str]:
    """Describe what is badly scaled for the largest C and the method."""
    return advice(
        run.dataset,
        max(run.options.C),
        accelerated=run.options.acceleration != "none",
        method=run.options.method,
    )


def _planned_bytes(run: ResolvedRun) -> int:
    """Return the bytes a training takes beside the interpreter: the data, if it stays in memory, else all of the budget."""
    config, dataset = run.config, run.dataset
    whole = dataset.n_entries * dataset.entry_bytes + 16 * dataset.n_features * run.problem.n_lanes
    return whole if config.plan.resident else config.memory - RESERVED_BYTES


def _warn_of_ridge(options: ProblemOptions, listener: Listener) -> None:
    """Warn of small ridges, with which twin planes by coordinate descent are slow."""
    ridge = 1.0 if options.ridge is None else options.ridge
    if form_of(options.loss) == PLANES and options.method == "dual" and 0 < ridge < 1:
        listener.warning(
            f"ridge {ridge:g}: below 1 twin planes converge slowly (0.01: not within 1,000 passes on real sets); "
            "--method sor does not, where a matrix of features x features fits in memory"
        )


def _warn_of_regression(dataset: Dataset, listener: Listener) -> None:
    counts = dataset.class_counts
    if counts is not None and counts.size > _MANY_LABELS and (counts < _FEW_ROWS).mean() > 0.5:
        listener.warning(
            f"{counts.size:,} labels, most of them with fewer than {_FEW_ROWS} rows: it looks like a target of regression, "
            "and each label is a class here, with weights of its own"
        )


def _warn_without_bias(run: ResolvedRun, listener: Listener) -> None:
    """Warn of unbalanced classes that are to be separated by a plane through the origin."""
    dataset, counts = run.dataset, run.dataset.class_counts
    if run.problem.bias or counts is None or dataset.n_features > _MANY_FEATURES:
        return
    share = counts.min() / max(counts.sum(), 1)
    if share < _SMALL_SHARE:
        name = (dataset.info()["classes"] or [""])[int(counts.argmin())]
        listener.warning(
            f"no intercept: class {name} has {share:.1%} of the rows, and a plane through the origin cannot lean to the "
            "larger classes; --bias 1 adds an intercept"
        )
