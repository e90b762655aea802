"""Groups of lanes: as many lanes are trained in the same reads as the memory budget has room for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.errors import BudgetError
from ..core.memory_budget import format_size
from ..dataset.dataset import Dataset
from ..solvers.problem import Problem
from ..solvers.registry import find_solver
from ..stream.memory_plan import Plan, SolverMemory, check_holding, describe_plan, make_plan
from .config import (
    ResolvedRun,
    RunConfig,
    Search,
    lanes_together,
    versions,
)
from .options import TrainOptions, TuneOptions

_LEAST_MIXED_CHUNKS = 8  # in a window, for which lanes are grouped; fewer converge slowly


def resolve(dataset: Dataset, asked: TrainOptions) -> ResolvedRun:
    """Plan a new run; its notes tell what it takes to keep within the memory, where the data does not fit."""
    problem = asked.make_problem(dataset, asked.memory_bytes)
    asked, (n_groups, plan, memory), notes = _plan_groups(dataset, problem, asked)
    options = asked.problem
    if asked.rounds is not None:
        notes.append(describe_worker_budget(memory))
    elif not plan.resident:
        notes.append(describe_plan(plan, dataset, memory))
    if n_groups > 1:
        notes.append(
            f"{problem.n_lanes:,} problems (of classes, values of C or λ, or folds) with weights for {problem.n_features:,} "
            f"features each do not fit in {format_size(memory)}: "
            f"they are trained in {n_groups} groups, one after another, each with reads of its own"
        )
    solver = find_solver(options.loss, options.method)
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
        columns=dataset.open_columns().fingerprint if solver.layout == "columns" else None,
        start_from=None if asked.start_from is None else str(asked.start_from),
        tune=Search(asked.folds, asked.scoring or "") if isinstance(asked, TuneOptions) else None,
        cache=dataset.cache,
        threads=asked.threads,
        bias_because=asked.bias_because,
    )
    run = ResolvedRun(config, dataset, problem, notes)
    return run if run.centre is None else replace(run, config=replace(config, centred=run.centre.describe()))


def _plan_groups(
    dataset: Dataset, problem: Problem, asked: TrainOptions
) -> tuple[TrainOptions, tuple[int, Plan, int], list[str]]:
    """Plan the groups; without acceleration, and with a note, if its arrays do not fit."""
    try:
        return asked, group_lanes(dataset, problem, asked), []
    except BudgetError:
        if asked.acceleration == "none":
            raise
    plain = replace(asked, acceleration="none")
    without = group_lanes(dataset, problem, plain)
    scores = " and one of the scores'" if find_solver(asked.loss, asked.method).layout == "columns" else ""
    note = (
        f"trained without acceleration, which takes one more array of the weights' size{scores}: that does not fit in "
        f"{format_size(without[2])}"
    )
    return plain, without, [note]


def describe_worker_budget(n_bytes: int) -> str:
    """Describe the budget of every worker in a line."""
    return f"every worker streams its own shards within {format_size(n_bytes)}"


def group_lanes(dataset: Dataset, problem: Problem, asked: TrainOptions) -> tuple[int, Plan, int]:
    """Return the number of groups, the plan of the largest (or the one given), and the bytes it is for.

    With workers the plan is that of a worker with all shards.
    """
    if asked.plan is not None:
        # refuses options that exclude each other
        check_holding(asked.plan, dataset, asked.solver_memory(problem, dataset))
        return 1, asked.plan, asked.memory_bytes
    block, largest_chunk = lanes_together(problem), int(np.diff(dataset.entry_start).max(initial=1))
    n_blocks = problem.n_lanes // block
    sizes = sorted({-(-n_blocks // n_groups) for n_groups in range(1, n_blocks + 1)}, reverse=True)
    refusal: BudgetError | None = None
    for size in sizes:
        n_groups, lanes = -(-n_blocks // size), problem.subset(range(size * block))
        memory = asked.solver_memory(lanes, dataset)
        tables = problem.table_bytes + (lanes.table_bytes if n_groups > 1 else 0)
        memory = replace(memory, weights=memory.weights + tables)
        try:
            plan, share = _plan_group(dataset, lanes, memory, asked)
        except BudgetError as error:
            refusal = error
            continue
        mixed = plan.window_entries // max(1, largest_chunk)
        if plan.resident or mixed >= _LEAST_MIXED_CHUNKS or size == 1:
            return n_groups, plan, share
    assert refusal is not None
    raise refusal


def _plan_group(
    dataset: Dataset, lanes: Problem, memory: SolverMemory, asked: TrainOptions
) -> tuple[Plan, int]:
    """Return the plan for a group of lanes, and the bytes it is for."""
    if asked.rounds is not None:
        from ..cluster.memory import plan_worker  # only where there are workers

        return plan_worker(dataset, lanes, memory, asked.memory_bytes, asked.workers or 0)
    state = dataset.n_rows * memory.layout.state_bytes if asked.in_memory else 0
    memory = replace(memory, rows=memory.rows + state + dataset.held_bytes)
    return make_plan(dataset, asked.memory_bytes, memory), asked.memory_bytes


def share_memory_anew(run: ResolvedRun, n_workers: int) -> RunConfig:
    """Return the configuration for another number of workers, local ones or 0, by the budget that the run was begun with.

    Workers of this machine share it; each of a cluster has all of it.
    """
    from ..cluster.memory import model_bytes, worker_memory

    config = run.config
    assert config.rounds is not None
    budget = config.rounds.shared_memory or config.memory
    rounds = replace(config.rounds, shared_memory=budget)
    if not n_workers:
        return replace(config, memory=budget, rounds=rounds)
    lanes = run.problem.subset(run.groups[0].lanes)
    memory = worker_memory(
        budget,
        n_workers,
        model_bytes(lanes, run.options.solver_memory(lanes, run.dataset)),
        "the run was begun with it: resume with fewer --workers, or with --scheduler on other machines",
    )
    return replace(config, memory=memory, rounds=rounds)
