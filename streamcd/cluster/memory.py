"""Memory of a training on workers: bytes as functions of the sizes of problem and data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.memory_budget import RESERVED_BYTES, RUNNING_BYTES, format_size
from ..core.parallel import memory_per_worker
from ..dataset.dataset import Dataset
from ..solvers.problem import Problem
from ..stream.arenas import RowLayout
from ..stream.memory_plan import SolverMemory

COPIES = 6
"""What a worker or the coordinating process holds at most of what workers send, beside w and w(alpha): the local change, a
neighbour's and the sum, and the messages in and out; of the tables of classes and lanes, whose views in the coordinating
process are whole tables in a worker; and of a chunk's dual variables."""

DASK_BYTES = 70_000_000
"""Memory that dask takes in a worker, beside streamcd's own reserve.

Measured with distributed 2026.8: an idle worker takes 65 MB, 10 of them Python. On 134 M entries of a
million features, windows read from disk under 520 MB, two workers reached 392 and 374 MB, where they compiled the kernels
459 and 440 (3 rounds of log_loss; VmHWM), and the coordinating process 262 to 280 MB, 173 with a small w.
"""

WORKER_BYTES = DASK_BYTES + RESERVED_BYTES - RUNNING_BYTES
"""Memory that a worker takes beside what a plan counts: dask, and the pages of libraries, which it keeps."""


def paired_layout(layout: RowLayout) -> RowLayout:
    """Make room for candidate and base side by side; kernels see the candidate in the first columns."""
    return replace(layout, alpha_width=2 * layout.alpha_width)


def model_bytes(problem: Problem, memory: SolverMemory) -> int:
    """Compute the memory of the solver's arrays, what workers send, and the tables of classes."""
    return memory.weights + COPIES * (memory.message + problem.full_table_bytes)


def worker_plan_memory(dataset: Dataset, problem: Problem, memory: SolverMemory) -> SolverMemory:
    """Return a solver's memory in a worker, whose rows have a candidate beside the base; and dual variables on their way."""
    assert isinstance(memory.layout, RowLayout)
    layout = paired_layout(memory.layout)
    a_chunk = int(np.diff(dataset.row_start).max(initial=0)) * layout.state_bytes
    return replace(memory, layout=layout, weights=model_bytes(problem, memory), rows=COPIES * a_chunk)


def share_memory(
    dataset: Dataset, problem: Problem, memory: SolverMemory, budget: int, local_workers: int
) -> tuple[SolverMemory, int]:
    """Return a solver's memory in a worker, and the worker's bytes: the budget, or a part of it for each local worker.

    Local workers share the budget with this process, which holds the solver's arrays like each of them. A worker's plan is
    for its bytes less `WORKER_BYTES`.
    """
    memory = worker_plan_memory(dataset, problem, memory)
    if not local_workers:
        return memory, budget
    needs = {"weights": memory.weights}
    advice = "give fewer --workers, or train with a larger --memory"
    more = memory_per_worker(budget, local_workers, {"dask": DASK_BYTES, **needs}, needs, advice, apart=True)
    each = RESERVED_BYTES + DASK_BYTES + memory.weights + more
    refusal = (
        f"--memory {format_size(budget)} is too small for {local_workers} workers: it leaves each "
        f"{format_size(each - WORKER_BYTES)}, where"
    )
    return replace(memory, refusal=refusal), each
