"""The lanes of a run on its dataset, in groups that are trained one after another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dataset.centring import Centre
from ..dataset.dataset import Dataset
from ..solvers.problem import Problem
from ..solvers.protocol import SolverOptions, solver_class
from ..stream.slot_store import Identity, SlotStore


@dataclass(frozen=True)
class LaneGroups:
    """The lanes of a run, its dataset, and how they are trained."""

    path: Path
    dataset: Dataset
    problem: Problem  # all lanes
    groups: dict[str, range]  # lanes that are trained together, by folder; one group is in the run's own, ""
    solver: SolverOptions
    # shifts of features and targets as they are read; the states' weights are for what is left
    centre: Centre | None

    def open_slots(self, group: str, identity: Identity) -> tuple[SlotStore, Any]:
        """Open the dual variables of a group's rows, not yet those of a checkpoint; also returns the layout of a row."""
        lanes = self.problem.subset(self.groups[group])
        memory = solver_class(lanes, self.solver.method).memory_of(lanes, self.dataset, self.solver)
        layout: Any = memory.layout
        folder = self.path / group / "dual"
        return SlotStore(folder, self.dataset, layout.state_bytes, identity.part(group)), layout
