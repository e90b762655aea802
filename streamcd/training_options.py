"""What a training is asked to do, checked: options as a run keeps them, and the problem and the solver that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .cluster_loop import WORKER_TIMEOUT
from .dataset import Dataset
from .errors import UsageError
from .memory_plan import Plan
from .problem import Problem, make_problem
from .progress import Listener
from .protocol import Solver
from .registry import SOLVERS, check_omega, find_solver
from .registry import make_solver as make_registered_solver
from .stopping import StopRule


def stop_rule(tol: float | None, eps: float | None, max_passes: int) -> StopRule:
    """Check the options of stopping; a relative gap of 1e-3 where no rule is given."""
    if tol is not None and eps is not None:
        raise UsageError(
            "expected one stopping rule, found both: give the relative gap (tol) or LIBLINEAR's eps"
        )
    if tol is None and eps is None:
        tol = 1e-3
    for name, number in (("tol", tol), ("eps", eps)):
        if number is not None and not (np.isfinite(number) and number >= 0):
            raise UsageError(f"{name}: expected a number >= 0, found {number}")
    if max_passes < 1:
        raise UsageError(f"max_passes: expected at least 1, found {max_passes}")
    return StopRule(tol, eps, int(max_passes))


def make_options(
    loss: str,
    method: str,
    C: float | Sequence[float],
    bias: float,
    class_weight: Mapping[float, float] | str | None,
    code: Any,
    seed: int,
    folds: int = 0,
    *,
    omega: float | str = 1.0,
    ridge: float | None = None,
    slack: str | None = None,
) -> dict[str, Any]:
    """What decides the problem and the order of visits, as JSON keeps it."""
    if loss != "twin" and (ridge is not None or slack is not None):
        raise UsageError(f"ridge and slack are of the loss twin; they do not apply to {loss}")
    method = "dual" if method == "auto" else method
    if class_weight is not None and not isinstance(class_weight, str):
        class_weight = [[float(label), float(weight)] for label, weight in class_weight.items()]  # type: ignore[assignment]
    return {
        "loss": loss,
        "method": method,
        "C": [float(c) for c in np.atleast_1d(np.asarray(C, dtype=np.float64))],
        "bias": float(bias),
        "class_weight": class_weight,
        "code": None if code is None else np.asarray(code).tolist(),
        "seed": int(seed),
        "folds": int(folds),
        "omega": check_omega(omega, loss, method),
        "ridge": 1.0 if ridge is None else float(ridge),
        "slack": slack or "hinge",
    }


def warn_of_ridge(options: Mapping[str, Any], listener: Listener) -> None:
    """Small ridges make twin planes by coordinate descent slow."""
    if options["loss"] == "twin" and options["method"] == "dual" and 0 < options["ridge"] < 1:
        listener.warning(
            f"ridge {options['ridge']:g}: below 1 twin planes converge slowly (0.01: not within 1,000 passes on real sets); "
            "--method sor does not, where a matrix of features x features fits in memory"
        )


def round_options(
    client: Any,
    options: Mapping[str, Any],
    local_passes: int | None,
    worker_timeout: float | None,
    plan: Plan | None,
) -> dict[str, Any] | None:
    """What the configuration says of training in rounds on workers; None for a training in this process."""
    if client is None:
        for name, value in (("local_passes", local_passes), ("worker_timeout", worker_timeout)):
            if value is not None:
                raise UsageError(
                    f"{name} is for training on workers; give a client (--scheduler or --workers)"
                )
        return None
    loss, method = options["loss"], options["method"]
    if options.get("omega", 1.0) != 1.0:
        raise UsageError("omega is for one process: on workers a line search decides how far a step goes")
    if not find_solver(loss, method).in_rounds:
        known = ", ".join(str(entry) for entry in SOLVERS if entry.in_rounds)
        raise UsageError(
            f"{loss} by method {method} is not for several workers: rounds are steps of block-diagonal dual coordinate "
            f"descent with a line search along the dual; there are: {known}"
        )
    if plan is not None:
        raise UsageError("plan: workers make their own plans from their memory and their shards")
    if local_passes is not None and local_passes < 1:
        raise UsageError(f"local_passes: expected at least 1, found {local_passes}")
    timeout = WORKER_TIMEOUT if worker_timeout is None else float(worker_timeout)
    check_positive(worker_timeout=timeout)
    return {"local_passes": local_passes, "worker_timeout": timeout}


def check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise UsageError(f"{name}: expected a number > 0, found {number}")


def read_code(path: str | Path) -> list[list[int]]:
    """Read a code matrix: a line per class (ascending labels) of -1, 0 and +1, separated by blanks or commas.

    Raises
    ------
    UsageError
        Where it is not one; names the line.
    """
    rows: list[list[int]] = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            tokens = line.replace(",", " ").split()
            if not tokens:
                continue
            width = len(rows[0]) if rows else len(tokens)
            if len(tokens) != width or not set(tokens) <= {"-1", "0", "1", "+1"}:
                raise UsageError(
                    f"{path}, line {number}: expected {width} entries of -1, 0, +1 (a line per class), "
                    f"found {line.strip()[:60]!r}"
                )
            rows.append([int(token) for token in tokens])
    if not rows:
        raise UsageError(f"{path}: expected a line of -1, 0, +1 per class, found none")
    return rows


def make_lanes(dataset: Dataset, options: Mapping[str, Any]) -> Problem:
    """All lanes that the options ask for."""
    if dataset.classes is None or dataset.class_counts is None:
        raise UsageError(
            f"{dataset.path}: the labels take too many values to be classes; nothing to train on"
        )
    weights = options["class_weight"]
    return make_problem(
        loss=options["loss"],
        classes=dataset.classes,
        class_counts=dataset.class_counts,
        n_features=dataset.n_features,
        C=options["C"],
        bias=options["bias"],
        class_weight=dict(weights) if isinstance(weights, list) else weights,
        code=None if options["code"] is None else np.array(options["code"], dtype=np.int8),
        folds=options["folds"],
        free_bias=options.get("unpenalized_bias", False),
        ridge=options.get("ridge", 1.0),
        slack=options.get("slack", "hinge"),
    )


def make_solver(problem: Problem, options: Mapping[str, Any], dataset: Dataset) -> Solver:
    """Make the solver of a problem."""
    omega = options.get("omega", 1.0)
    return make_registered_solver(problem, options["method"], dataset, seed=options["seed"], omega=omega)
