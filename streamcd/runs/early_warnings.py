"""Warnings before the first pass: data, options and memory that will make a training slow or fail."""

from __future__ import annotations

from ..core.memory_budget import RUNNING_BYTES, warn_of_memory
from ..core.progress import Listener
from ..dataset.dataset import Dataset
from ..dataset.diagnostics import advice, passes_help
from ..training.result import Result
from .config import ResolvedRun
from .problem_options import ProblemOptions


def warn_early(run: ResolvedRun, listener: Listener) -> None:
    """Warn of bad scaling, and of a budget that the process cannot keep."""
    for line in scaling_advice(run):
        listener.warning(line)
    config, dataset = run.config, run.dataset
    if config.rounds is None:
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
    if result.converged:
        return []
    options, centred = run.options, run.centre is not None
    return advice(run.dataset, max(options.C), method=options.method, centred=centred)


def more_passes_help(options: ProblemOptions, dataset: Dataset, *, centred: bool) -> bool:
    """Tell whether more passes are the way on for a training that has not converged, or scaling is."""
    return passes_help(dataset, max(options.C), method=options.method, centred=centred)
