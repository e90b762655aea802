"""The solver of a problem by a method, and its memory. What solvers are stands in `loss_table.SOLVERS`.

Importing this module imports no solver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import UsageError
from ..kernels.loss_table import CLASSES, PLANES, SOLVERS, SolverEntry, methods_for

if TYPE_CHECKING:
    from ..dataset.dataset import Dataset
    from ..stream.memory_plan import Plan, SolverMemory
    from .problem import Problem
    from .protocol import Solver


def find_solver(loss: str, method: str) -> SolverEntry:
    """Return the entry of a loss and a method; raises `UsageError` if there is none."""
    for entry in SOLVERS:
        if (entry.loss, entry.method) == (loss, method):
            return entry
    raise UsageError(
        f"no solver for {loss} by method {method}; {loss} is trained by {' or '.join(methods_for(loss))}"
    )


def check_combination(problem: Problem, method: str) -> SolverEntry:
    """Return the entry of a problem's loss and a method; raises `UsageError` where it does not train its bias or penalty."""
    loss, entry = problem.loss, find_solver(problem.loss, method)
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
    return entry


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
    entry = check_combination(problem, method)
    if method == "newton":
        from .newton import NewtonSolver

        return NewtonSolver(problem, dataset)
    if method == "working-set":
        from .working_set import WorkingSetSolver

        return WorkingSetSolver(problem, dataset, seed, plan)
    if entry.layout == "columns":
        from .primal import PrimalSolver

        options = {"with_replacement": method == "online", "extrapolates": acceleration != "none"}
        return PrimalSolver(problem, dataset, seed, **options)
    if method == "sor":
        from .twin_sor import TwinSorSolver

        return TwinSorSolver(problem, omega)
    point = None
    if is_proximal(problem, acceleration):
        from .acceleration import Acceleration

        # with kappa 0 it moves the centre of a free bias alone
        point = Acceleration(problem, 0.0 if acceleration == "none" else acceleration, dataset)
    if problem.form == CLASSES:
        from .classes import ClassSolver, FreeBiasClassSolver

        return (FreeBiasClassSolver if problem.free_bias else ClassSolver)(problem, point)
    from .dual import DualSolver
    from .free_bias import FreeBiasSolver

    return (FreeBiasSolver if problem.free_bias else DualSolver)(problem, omega, point)


def is_proximal(problem: Problem, acceleration: float | str) -> bool:
    """Tell whether a solver over rows moves the centres of a proximal point: by acceleration, or of a free bias."""
    return acceleration != "none" or problem.free_bias


def solver_memory(
    problem: Problem, method: str, dataset: Dataset, *, acceleration: float | str = "none"
) -> SolverMemory:
    """Compute the memory of a problem's solver without making it; refused like `make_solver`."""
    from . import memory

    entry = check_combination(problem, method)
    if method == "working-set":
        return memory.working_set_memory(problem, dataset)
    if entry.layout == "columns":
        extrapolates, with_replacement = acceleration != "none", method == "online"
        return memory.primal_memory(
            problem, dataset, with_replacement=with_replacement, extrapolates=extrapolates
        )
    if method == "newton":
        return memory.newton_memory(problem, dataset)
    if method == "sor":
        return memory.twin_sor_memory(problem)
    return memory.dual_memory(problem, accelerated=is_proximal(problem, acceleration))
