"""The solver of a problem by a method, and its memory. What solvers are stands in `loss_table.SOLVERS`.

Importing this module imports no solver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..core.errors import UsageError
from ..kernels.loss_table import PLANES, SOLVERS, SolverEntry, methods_for
from .options import SolverOptions

if TYPE_CHECKING:
    from ..dataset.dataset import Dataset
    from ..stream.memory_plan import Plan, SolverMemory
    from .problem import Problem
    from .protocol import Solver


_FREE_BIAS = {
    "dual.DualSolver": "free_bias.FreeBiasSolver",
    "classes.ClassSolver": "classes.FreeBiasClassSolver",
}
"""Solvers that have others for a bias that is not penalised."""


def find_solver(loss: str, method: str) -> SolverEntry:
    """Return the entry of a loss and a method; raises `UsageError` if there is none."""
    for entry in SOLVERS:
        if (entry.loss, entry.method) == (loss, method):
            return entry
    raise UsageError(
        f"no solver for {loss} by method {method}; {loss} is trained by {' or '.join(methods_for(loss))}"
    )


def choose_solver(problem: Problem, options: SolverOptions) -> tuple[type[Solver], SolverOptions]:
    """Return the class of a problem's solver, and options that it has.

    Raises `UsageError` where the method does not train the problem's loss, bias or penalty.
    """
    loss = problem.loss
    method = options.method
    entry = find_solver(loss, method)
    if problem.free_bias and not entry.frees_bias:
        raise UsageError(
            f"--unpenalized-bias is not for {loss} by method {method}; give --bias a larger value, which is penalised less"
        )
    if problem.l1.any() and not entry.takes_l1:
        ways = [entry.method for entry in SOLVERS if entry.loss == loss and entry.takes_l1]
        where = f"for {loss} by --method {' or '.join(ways)}" if ways else f"not for {loss}"
        raise UsageError(f"--penalty l1 and elasticnet are {where}, found --method {method}")
    if problem.form == PLANES and problem.l2 != 1.0:
        raise UsageError(
            f"--l2 is not for {loss}, found {problem.l2:g}; --ridge is the strength of its penalty"
        )
    if not entry.accelerates:
        options = options._replace(acceleration="none")
    name = _FREE_BIAS.get(entry.solver, entry.solver) if problem.free_bias else entry.solver
    module, _, name = name.partition(".")
    return getattr(import_module(f".{module}", __package__), name), options


def make_solver(
    problem: Problem,
    method: str,
    dataset: Dataset,
    *,
    seed: int = 0,
    omega: float | str = 1.0,
    acceleration: float | str = "none",
    plan: Plan | None = None,
) -> Solver:
    """Make the solver of a problem; raises `UsageError` if the method does not train it."""
    solver, options = choose_solver(problem, SolverOptions(method, seed, omega, acceleration, plan))
    return solver(problem, dataset, options)


def solver_memory(
    problem: Problem, method: str, dataset: Dataset, *, acceleration: float | str = "none"
) -> SolverMemory:
    """Compute the memory of a problem's solver without making it; refused like `make_solver`."""
    solver, options = choose_solver(problem, SolverOptions(method, acceleration=acceleration))
    return solver.memory_of(problem, dataset, options)


def is_proximal(problem: Problem, acceleration: float | str) -> bool:
    """Tell whether a solver over rows moves the centres of a proximal point: by acceleration, or of a free bias."""
    return acceleration != "none" or problem.free_bias
