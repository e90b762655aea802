"""Groups of lanes: as many lanes are trained in the same reads as the memory budget has room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dataset import Dataset
from .errors import UsageError
from .memory import RESERVED_BYTES, format_size
from .memory_plan import Plan, make_plan
from .partition import DASK_BYTES, model_bytes, paired_layout, saving_bytes
from .problem import Problem
from .process_pool import memory_per_worker
from .protocol import Solver
from .training_options import make_lanes, make_solver

_LEAST_MIXED_CHUNKS = 8  # lanes are grouped so that windows mix so many chunks; fewer converge slowly


@dataclass(frozen=True)
class Group:
    """Lanes that are trained together.

    Attributes
    ----------
    directory : str
        Where, inside the run; empty for the run itself.
    lanes : range
        Among all lanes of the run.
    """

    directory: str
    lanes: range


def lane_groups(problem: Problem, config: Mapping[str, Any]) -> list[Group]:
    """The groups of a run, as its configuration decided."""
    n_groups = config["n_groups"]
    if n_groups == 1:
        return [Group("", range(problem.n_lanes))]
    block = problem.block_lanes if config["options"]["folds"] else 1
    size = -(-(problem.n_lanes // block) // n_groups) * block
    starts = range(0, problem.n_lanes, size)
    return [
        Group(f"group-{number:02d}", range(start, min(start + size, problem.n_lanes)))
        for number, start in enumerate(starts)
    ]


def group_lanes(
    dataset: Dataset,
    problem: Problem,
    options: Mapping[str, Any],
    budget: int,
    plan: Plan | None,
    *,
    on_workers: bool = False,
    local_workers: int = 0,
) -> tuple[int, Plan, int]:
    """As few groups of lanes as fit in the budget, the plan for the largest, and the budget that it is for.

    On workers that is a worker's, as if it had all shards.
    """
    # the lanes of a fold are scored together, so they stay together
    block = problem.block_lanes if options["folds"] else 1
    n_blocks = problem.n_lanes // block
    if plan is not None:
        make_solver(problem, options, dataset)  # refuses what does not go together
        return 1, plan, budget
    refusal: UsageError | None = None
    # where scores of all rows fit for no group, not for a lane alone, they are paged, of all lanes together if possible
    for paged in (False, True):
        for n_groups, size in _group_sizes(n_blocks):
            solver = make_solver(problem.subset(range(size * block)), options, dataset)
            if paged and solver.paging is None:
                break
            try:
                found, share = _plan_group(
                    dataset, solver, budget, on_workers=on_workers, local_workers=local_workers, paged=paged
                )
            except UsageError as error:
                refusal = error
                continue
            mixed = found.window_entries // max(1, int(np.diff(dataset.entry_start).max(initial=1)))
            if found.resident or mixed >= _LEAST_MIXED_CHUNKS or size == 1:
                return n_groups, found, share
    assert refusal is not None
    raise refusal


def _group_sizes(n_blocks: int) -> Iterator[tuple[int, int]]:
    """Numbers of groups, ascending, and the blocks of lanes of the largest of each."""
    tried = 0
    for n_groups in range(1, n_blocks + 1):
        size = -(-n_blocks // n_groups)
        if size != tried:
            tried = size
            yield n_groups, size


def _plan_group(
    dataset: Dataset, solver: Solver, budget: int, *, on_workers: bool, local_workers: int, paged: bool
) -> tuple[Plan, int]:
    """The plan for a group of lanes, and the budget that it is for."""
    if on_workers:
        return _plan_worker(dataset, solver, budget, local_workers)
    more = dict(solver.more_memory)
    needs = {
        "weights": solver.state_bytes + saving_bytes(solver),
        "scores of all rows": 0 if paged else solver.rows_bytes,
        **more.pop("needs", {}),
    }
    paging = solver.paging if paged else None
    plan = make_plan(dataset, budget, solver.layout, needs, paging=paging, **more)
    return plan, budget


def _plan_worker(dataset: Dataset, solver: Solver, budget: int, local_workers: int) -> tuple[Plan, int]:
    """The plan of a worker that has all shards, and its budget."""
    weights = model_bytes(solver)
    each, refusal = budget, None
    if local_workers:
        each = worker_memory(budget, local_workers, weights)
        refusal = (
            f"--memory {format_size(budget)} is too small for {local_workers} workers: it leaves each "
            f"{format_size(each - DASK_BYTES)}, where"
        )
    layout, needs = paired_layout(solver.layout), {"weights": weights}
    plan = make_plan(dataset, each - DASK_BYTES, layout, needs, refusal=refusal)
    return plan, each


def worker_memory(
    shared: int,
    n_workers: int,
    weights_bytes: int,
    advice: str = "give a larger --memory or fewer --workers",
) -> int:
    """What each of some workers on this machine may take of a budget that they share with this process.

    Parameters
    ----------
    shared : int
        The budget.
    n_workers : int
    weights_bytes : int
        Of w and its copies, which this process holds like each of them; see `partition.model_bytes`.
    advice : str

    Raises
    ------
    UsageError
        With the arithmetic, where it is too small.
    """
    weights = {"weights": weights_bytes}
    more = memory_per_worker(shared, n_workers, {"dask": DASK_BYTES, **weights}, weights, advice)
    return RESERVED_BYTES + DASK_BYTES + weights_bytes + more


def shared_out_anew(config: Mapping[str, Any], dataset: Dataset, n_workers: int) -> int:
    """What each of other workers on this machine may take of the budget that a run was begun with."""
    problem = make_lanes(dataset, config["options"])
    largest = problem.subset(lane_groups(problem, config)[0].lanes)
    return worker_memory(
        config["rounds"]["shared_memory"],
        n_workers,
        model_bytes(make_solver(largest, config["options"], dataset)),
        "the run was begun with it: resume with fewer --workers, or with --scheduler on other machines",
    )
