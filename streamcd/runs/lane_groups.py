"""Groups of lanes: as many lanes are trained in the same reads as the memory budget has room for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ..cluster.partition import DASK_BYTES, model_bytes, paired_layout, saving_bytes
from ..core.errors import UsageError
from ..core.memory_budget import RESERVED_BYTES, format_size
from ..core.process_pool import memory_per_worker
from ..core.progress import Listener
from ..dataset.dataset import Dataset
from ..solvers.problem import Problem
from ..solvers.protocol import Solver
from ..solvers.registry import reads_columns
from ..stream.memory_plan import Plan, describe_plan, make_plan
from ..training.checkpoint import Run
from .config import (
    ResolvedRun,
    RunConfig,
    Search,
    lanes_together,
    read_config,
    reopen,
    versions,
    write_config,
)
from .options import TrainOptions
from .problem_options import ProblemOptions

_LEAST_MIXED_CHUNKS = 8  # in a window, for which lanes are grouped; fewer converge slowly


def resolve(dataset: Dataset, asked: TrainOptions, listener: Listener) -> ResolvedRun:
    """Plan a new run, and tell the listener how its memory is used."""
    problem = asked.make_problem(dataset, asked.memory_bytes)
    asked, (n_groups, plan, memory) = _plan_groups(dataset, problem, asked, listener)
    options = asked.problem
    listener.message(
        describe_plan(plan, dataset, memory) if asked.rounds is None else describe_worker_budget(memory)
    )
    if n_groups > 1:
        listener.message(
            f"{problem.n_lanes} lanes of {problem.n_features} features do not fit in {format_size(memory)}: "
            f"they are trained in {n_groups} groups, one after another, each with reads of its own"
        )
    config = RunConfig(
        dataset=str(dataset.path.resolve()),
        fingerprint=dataset.fingerprint,
        options=options,
        memory=memory,
        plan=plan,
        n_groups=n_groups,
        rule=asked.rule,
        checkpoint_every=float(asked.checkpoint_every),
        versions=versions(),
        rounds=asked.rounds,
        columns=dataset.open_columns().fingerprint if reads_columns(options.method) else None,
        start_from=None if asked.start_from is None else str(asked.start_from),
        tune=Search(options.folds) if asked.search else None,
        calibrate=asked.calibrate,
        validation=asked.validation,
        validation_identity=_identity(asked.validation),
        cache=dataset.cache,
        bias_because=asked.bias_because,
    )
    return ResolvedRun(config, dataset, problem)


def resolve_part(part: Run, run: ResolvedRun, problem: ProblemOptions, **options: Any) -> ResolvedRun:
    """Plan a part of a run, or reopen it if it was begun; it has the run's memory and stopping rule."""
    config = run.config
    if (part.path / "config.json").exists():
        found = replace(read_config(part.path), rule=config.rule, dataset=config.dataset)
        resolved = reopen(part.path, found, run.dataset)
    else:
        asked = TrainOptions(
            **vars(problem),
            memory=config.memory,
            checkpoint_every=config.checkpoint_every,
            **vars(config.rule),
            **options,
        )
        resolved = resolve(run.dataset, asked, Listener())
    write_config(part, resolved.config)
    return resolved


def _plan_groups(
    dataset: Dataset, problem: Problem, asked: TrainOptions, listener: Listener
) -> tuple[TrainOptions, tuple[int, Plan, int]]:
    """Plan the groups; without acceleration if its arrays do not fit, or fit only with paged scores."""
    groups = None
    with suppress(UsageError):
        groups = group_lanes(dataset, problem, asked)
        if asked.acceleration == "none" or not groups[1].page_rows:
            return asked, groups
    plain = replace(asked, acceleration="none")
    without = group_lanes(dataset, problem, plain)
    if groups is not None and without[1].page_rows:
        return asked, groups
    scores = " and one of the scores'" if reads_columns(asked.method) else ""
    listener.message(
        f"trained without acceleration, which takes one more array of the weights' size{scores}: that does not fit in "
        f"{format_size(without[2])}"
    )
    return plain, without


def _identity(validation: str | None) -> str | None:
    if validation is None:
        return None
    from ..prediction.reading_plan import identify  # with the kernels of decisions

    return identify(validation)


def describe_worker_budget(n_bytes: int) -> str:
    """Describe the budget of every worker in a line."""
    return f"every worker streams its own shards within {format_size(n_bytes)}"


def group_lanes(dataset: Dataset, problem: Problem, asked: TrainOptions) -> tuple[int, Plan, int]:
    """Return the number of groups, the plan of the largest (or the one given), and the bytes it is for.

    With workers the plan is that of a worker with all shards.
    """
    if asked.plan is not None:
        asked.make_solver(problem, dataset)  # refuses options that exclude each other
        return 1, asked.plan, asked.memory_bytes
    block = lanes_together(problem, validated=asked.validation is not None)
    n_blocks = problem.n_lanes // block
    refusal: UsageError | None = None
    # scores that do not fit for any group, not even a single lane, are paged, for all lanes together if possible
    for paged in (False, True):
        for n_groups, size in _group_sizes(n_blocks):
            lanes = problem.subset(range(size * block))
            solver = asked.make_solver(lanes, dataset)
            if paged and (solver.paging is None or asked.in_memory):
                break
            tables = problem.table_bytes + (lanes.table_bytes if n_groups > 1 else 0)
            try:
                found, share = _plan_group(dataset, solver, asked, tables, paged=paged)
            except UsageError as error:
                refusal = error
                continue
            mixed = found.window_entries // max(1, int(np.diff(dataset.entry_start).max(initial=1)))
            if found.resident or mixed >= _LEAST_MIXED_CHUNKS or size == 1:
                return n_groups, found, share
    assert refusal is not None
    raise refusal


def _group_sizes(n_blocks: int) -> Iterator[tuple[int, int]]:
    """Yield numbers of groups, ascending, and the blocks of lanes in the largest group of each."""
    tried = 0
    for n_groups in range(1, n_blocks + 1):
        size = -(-n_blocks // n_groups)
        if size != tried:
            tried = size
            yield n_groups, size


def _plan_group(
    dataset: Dataset, solver: Solver, asked: TrainOptions, table_bytes: int, *, paged: bool
) -> tuple[Plan, int]:
    """Return the plan for a group of lanes, and the bytes it is for; `table_bytes` is the size of its signs and costs."""
    if asked.rounds is not None:
        return _plan_worker(dataset, solver, asked)
    more = dict(solver.more_memory)
    needs = {
        "weights": solver.state_bytes + saving_bytes(solver),
        "costs of classes and lanes": table_bytes,
        "scores of all rows": 0 if paged else solver.rows_bytes,
        "dual variables": dataset.n_rows * solver.layout.state_bytes if asked.in_memory else 0,
        "choice of rows": dataset.held_bytes,
        **more.pop("needs", {}),
        "validation set": _validation_bytes(dataset, solver.problem, asked.validation),
    }
    paging = solver.paging if paged else None
    plan = make_plan(dataset, asked.memory_bytes, solver.layout, needs, paging=paging, **more)
    return plan, asked.memory_bytes


def _validation_bytes(dataset: Dataset, lanes: Problem, path: str | None) -> int:
    if path is None:
        return 0
    from .validation import Validation  # with the kernels of decisions

    return Validation(path, dataset, lanes, Listener()).n_bytes


def _plan_worker(dataset: Dataset, solver: Solver, asked: TrainOptions) -> tuple[Plan, int]:
    """Return the plan of a worker that has all shards, and its bytes."""
    weights = model_bytes(solver)
    each, refusal = asked.memory_bytes, None
    if asked.workers:
        each = worker_memory(asked.memory_bytes, asked.workers, weights)
        refusal = (
            f"--memory {format_size(asked.memory_bytes)} is too small for {asked.workers} workers: it leaves each "
            f"{format_size(each - DASK_BYTES)}, where"
        )
    layout, needs = paired_layout(solver.layout), {"weights": weights}
    plan = make_plan(dataset, each - DASK_BYTES, layout, needs, refusal=refusal)
    return plan, each


def worker_memory(
    shared: int, n_workers: int, weights_bytes: int, advice: str = "give a larger --memory or fewer --workers"
) -> int:
    """Return each local worker's part of a budget shared with this process, in bytes.

    `weights_bytes` is the size of w and its copies, which this process holds like each of them; see `partition.model_bytes`.
    """
    weights = {"weights": weights_bytes}
    more = memory_per_worker(shared, n_workers, {"dask": DASK_BYTES, **weights}, weights, advice)
    return RESERVED_BYTES + DASK_BYTES + weights_bytes + more


def share_memory_anew(run: ResolvedRun, n_workers: int) -> int:
    """Return each worker's part, in bytes, of the budget the run was begun with, for another number of local workers."""
    assert run.config.rounds is not None
    assert run.config.rounds.shared_memory is not None
    return worker_memory(
        run.config.rounds.shared_memory,
        n_workers,
        model_bytes(run.make_solver(run.problem.subset(run.groups[0].lanes))),
        "the run was begun with it: resume with fewer --workers, or with --scheduler on other machines",
    )
