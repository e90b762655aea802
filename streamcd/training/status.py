"""Status of a training for progress reports: the gap, or the violation, and the tolerance."""

from __future__ import annotations

import numpy as np

from ..core.progress import CostStatus, TrainingStatus
from ..solvers.problem import Problem
from ..solvers.protocol import DONE, State
from .stopping import StopRule


def training_status(
    state: State, problem: Problem, rule: StopRule, task: str, passes_ahead: int
) -> TrainingStatus:
    """Summarise the lanes of a task; the read or round in progress adds `passes_ahead` passes."""
    lanes = state.lanes
    is_open = lanes["phase"] != DONE
    measured = lanes["seen_violation"]
    if rule.tol is not None:  # nan where there is no estimate yet
        measured = lanes["estimate"] / np.maximum(lanes["estimated_primal"], 1e-300)
    lane_costs = np.array([lane.C for lane in problem.lanes])
    costs = tuple(
        CostStatus(float(C), int(mine.sum()), int((mine & is_open).sum()), _largest(measured[mine & is_open]))
        for C in np.unique(lane_costs)
        for mine in [lane_costs == C]
    )
    return TrainingStatus(
        task=task,
        passes=int(lanes["passes"].max()),
        passes_ahead=passes_ahead,
        max_passes=rule.max_passes,
        measure="violation" if rule.tol is None else "gap",
        now=_largest(measured[is_open]),
        wanted=float(rule.eps or 0.0) if rule.tol is None else rule.tol,
        costs=costs,
    )


def describe_status(status: TrainingStatus) -> str:
    """Describe passes and gap, as in ``"after pass 12, gap about 3.1e-02, wanted 1.0e-03"``."""
    text = f"{status.task}after pass {status.passes}"
    if not np.isnan(status.now):
        text += f", {status.measure} about {status.now:.1e}, wanted {status.wanted:.1e}"
    return text


def _largest(numbers: np.ndarray) -> float:
    """Return the largest number; nan if there is none, or one is unknown."""
    return float(numbers.max()) if numbers.size else float("nan")
