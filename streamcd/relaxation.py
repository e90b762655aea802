"""SOR: steps of omega times coordinate descent's, and the choice of omega by trial.

placeholder
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .errors import UsageError

RELAXED_LOSSES = ("hinge", "squared_hinge", "twin")
"""Losses whose dual visit has a closed form, which omega can stretch."""


def check_omega(omega: float | str, loss: str, method: str) -> float | str:
    """Omega as a number or ``"auto"``.

    Raises
    ------
    UsageError
        Where it is outside (0, 2), or is not 1 and the steps have no closed form.
    """
    number = omega if omega == "auto" else omega_number(omega)
    if number != 1.0 and (loss not in RELAXED_LOSSES or method not in ("dual", "sor")):
        raise UsageError(
            f"omega applies to the closed-form steps of {', '.join(RELAXED_LOSSES)} by method dual; "
            f"{loss} by method {method} has none, leave omega at 1"
        )
    return number


def omega_number(omega: float | str) -> float:
    """A number in (0, 2).

    Raises
    ------
    UsageError
    """
    try:
        number = float(omega)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0.0 < number < 2.0:
        raise UsageError(f"omega: expected a number above 0 and below 2, or auto, found {omega}")
    return number


def new_lane_arrays(n_lanes: int, omega: float | str) -> dict[str, np.ndarray]:
    return {"omega": np.full(n_lanes, 1.0 if omega == "auto" else float(omega))}


def go_on(lanes: Mapping[str, np.ndarray], trained: np.ndarray) -> None:
    pass


def young(rho: float) -> float:
    """``2 / (1 + √(1 - rho²))``: the best omega for consistently ordered matrices whose Jacobi matrix has this radius."""
    return 2.0 / (1.0 + float(np.sqrt(1.0 - rho * rho)))
