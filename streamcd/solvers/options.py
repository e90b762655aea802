"""Options that a solver is made with, beside problem and data. Importing them imports no solver."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..stream.memory_plan import Plan


class SolverOptions(NamedTuple):
    """Options of a solver; each takes those that its method has."""

    method: str
    seed: int = 0
    omega: float | str = 1.0  # over-relaxation, or "auto"
    acceleration: float | str = "none"  # kappa, "auto" or "none"
    plan: Plan | None = None
