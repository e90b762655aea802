"""SOR: steps of omega times coordinate descent's, and the choice of omega by trial.

placeholder
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .errors import UsageError


def check_omega(omega: float | str) -> float | str:
    """Check."""
    if omega == "auto":
        return "auto"
    number = float(omega)
    if not 0 < number < 2:
        raise UsageError(f"omega: expected a number between 0 and 2, or auto, found {omega}")
    return number


def new_lane_arrays(n_lanes: int, omega: float | str) -> dict[str, np.ndarray]:
    return {"omega": np.full(n_lanes, 1.0 if omega == "auto" else float(omega))}


def go_on(lanes: Mapping[str, np.ndarray], trained: np.ndarray) -> None:
    pass
