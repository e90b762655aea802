"""Advice on data, options and memory that make a training slow or fail: before the first pass, and at the end."""

from __future__ import annotations

from ..core.memory_budget import RUNNING_BYTES, warn_of_memory
from ..core.progress import Listener
from ..dataset.diagnostics import advice, passes_help
from ..training.result import Result
from .config import ResolvedRun


def warn_early(run: ResolvedRun, listener: Listener) -> None:
    """Warn of bad scaling, and of a budget that the process cannot keep."""
    config, dataset, options, centred = run.config, run.dataset, run.options, run.centre is not None
    accelerated = options.acceleration != "none"
    for line in advice(
        dataset, max(options.C), accelerated=accelerated, method=options.method, centred=centred
    ):
        listener.warning(line)
    if config.rounds is None:
        # beside the interpreter: the data, if it stays in memory, else all of the budget
        whole = dataset.n_entries * dataset.entry_bytes + 16 * dataset.n_features * run.problem.n_lanes
        planned = whole if config.plan.resident else config.memory - RUNNING_BYTES
        warn_of_memory(config.memory, planned, listener)


def advise(run: ResolvedRun, result: Result) -> None:
    """Tell in a training's result what kept it from its tolerance, if anything, and whether more passes are the way on."""
    if result.converged:
        return
    C, method, centred = max(run.options.C), run.options.method, run.centre is not None
    result.advice = advice(run.dataset, C, method=method, centred=centred)
    more = passes_help(run.dataset, C, method=method, centred=centred)
    result.more_passes_help = more and result.stop_reason != "rounding"
