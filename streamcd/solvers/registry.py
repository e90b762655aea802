"""Registry of solvers: every (loss, method) with its properties and factory.

Code, command line and tests read the properties of a solver only here. Importing this module imports no solver.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..core.errors import UsageError
from ..kernels import loss_table
from ..kernels.loss_table import (
    CLASSES,
    CRAMMER_SINGER,
    LOG_LOSS,
    MULTINOMIAL,
    PLANES,
)

if TYPE_CHECKING:
    from ..dataset.dataset import Dataset
    from ..stream.memory_plan import SolverMemory
    from .problem import Problem
    from .protocol import Solver


Rounds = Literal["", "dual", "sums"]
"""Kind of a round of several workers, if they can train together."""


class SolverRequest(NamedTuple):
    """Arguments from which a solver is made."""

    problem: Problem
    dataset: Dataset
    seed: int
    omega: float | str  # 1 if the solver does not relax
    acceleration: float | str  # auto, none or a kappa


@dataclass(frozen=True)
class SolverEntry:
    """A solver: one method for one loss."""

    loss: str
    method: str
    layout: Literal["rows", "columns"]  # the table that it reads
    factory: Callable[[SolverRequest], Solver]
    of_targets: bool = False  # for rows with numbers to predict, rather than classes
    liblinear: int | None = None  # LIBLINEAR's ``-s`` number of the same problem and method
    relaxes: bool = False  # its steps have a closed form, to which omega applies
    # over rows by an outer proximal-point iteration with kappa; over columns by extrapolation of passes
    accelerates: bool = False
    # Several workers can train it together: by block-diagonal dual coordinate descent with a line search along the dual
    # (for losses of all classes at once too: a step along any direction keeps every row's sum over the classes), or by
    # sums over their rows at fixed weights.
    in_rounds: Rounds = ""
    frees_bias: bool = False  # can leave the bias out of the penalty
    takes_penalties: bool = False  # trains with L1 and elastic net
    keeps_alpha: bool = False  # its dual variables are stored, and another run's are needed to start from it

    def __str__(self) -> str:
        return f"{self.loss} by {self.method}"


def _dual(asked: SolverRequest) -> Solver:
    from .dual import DualSolver
    from .free_bias import FreeBiasSolver

    kind = FreeBiasSolver if asked.problem.free_bias else DualSolver
    return kind(asked.problem, asked.omega, _proximal_point(asked))


def _crammer_singer(asked: SolverRequest) -> Solver:
    from .class_biases import FreeBiasCrammerSingerSolver
    from .crammer_singer import CrammerSingerSolver

    kind = FreeBiasCrammerSingerSolver if asked.problem.free_bias else CrammerSingerSolver
    return kind(asked.problem, _proximal_point(asked))


def _multinomial(asked: SolverRequest) -> Solver:
    from .multinomial import FreeBiasMultinomialSolver, MultinomialSolver

    kind = FreeBiasMultinomialSolver if asked.problem.free_bias else MultinomialSolver
    return kind(asked.problem, _proximal_point(asked))


def _twin_sor(asked: SolverRequest) -> Solver:
    from .twin_sor import TwinSorSolver

    return TwinSorSolver(asked.problem, asked.omega)


def _primal(asked: SolverRequest) -> Solver:
    from .primal import PrimalSolver

    return PrimalSolver(*asked[:3], extrapolates=asked.acceleration != "none")


def _online(asked: SolverRequest) -> Solver:
    from .primal import OnlineSolver

    return OnlineSolver(*asked[:3], extrapolates=asked.acceleration != "none")


def _newton(asked: SolverRequest) -> Solver:
    from .newton import NewtonSolver

    return NewtonSolver(*asked[:2])


def _working_set(asked: SolverRequest) -> Solver:
    from .working_set import WorkingSetSolver

    return WorkingSetSolver(*asked[:3])


def _proximal_point(asked: SolverRequest) -> Any:
    import numpy as np

    from .acceleration import Acceleration

    if not is_proximal(asked.problem, asked.acceleration):
        return None
    counts = asked.dataset.class_counts
    if counts is None:  # targets
        counts = np.array([asked.dataset.n_rows])
    mean_square = ((asked.problem.free_bias and asked.dataset.centre) or asked.dataset).mean_square
    kappa = 0.0 if asked.acceleration == "none" else asked.acceleration
    mean_weight = 1.0
    if asked.dataset.weighted:  # rows are in random order: the first chunk tells
        (weight,) = asked.dataset.read_rows(0, ("weight",))
        mean_weight = float(weight.mean())
    return Acceleration(asked.problem, kappa, counts, mean_square, mean_weight=mean_weight)


def _dual_rounds(entry: loss_table.LossEntry, method: str) -> Rounds:
    return "dual" if method == "dual" and entry.form != PLANES else ""


def _entry(loss: str, method: str) -> SolverEntry:
    """Describe the solver of a loss by one of the methods that `loss_table` lists for it."""
    entry = loss_table.LOSSES[loss]
    kind, methods, form = entry.kind, entry.methods, entry.form
    by_rows = method in ("dual", "sor", "newton")
    factory = _OF_LOSS.get(kind, _dual) if method == "dual" else _FACTORIES[method]
    return SolverEntry(
        loss,
        method,
        "rows" if by_rows else "columns",
        factory,
        of_targets=entry.of_targets,
        liblinear=methods[method],
        relaxes=method in ("dual", "sor") and form != CLASSES and kind != LOG_LOSS,
        accelerates=method not in ("sor", "newton", "working-set"),
        frees_bias=form != PLANES,
        takes_penalties=method in ("newton", "working-set"),
        keeps_alpha=method in ("dual", "sor"),
        in_rounds="sums" if method == "newton" else _dual_rounds(entry, method),
    )


_FACTORIES = {
    "dual": _dual,
    "primal": _primal,
    "online": _online,
    "sor": _twin_sor,
    "newton": _newton,
    "working-set": _working_set,
}

_OF_LOSS = {CRAMMER_SINGER: _crammer_singer, MULTINOMIAL: _multinomial}

METHODS = tuple(_FACTORIES)
DEFAULT_LOSS = "squared_hinge"
LOSSES, LOSS_ALIASES, SLACKS = tuple(loss_table.LOSSES), loss_table.LOSS_ALIASES, tuple(loss_table.SLACKS)
SOLVERS = tuple(
    _entry(loss, method) for method in METHODS for loss in LOSSES if method in loss_table.LOSSES[loss].methods
)


def find_solver(loss: str, method: str) -> SolverEntry:
    """Return the entry of a loss and a method; raises `UsageError` if there is none."""
    for entry in SOLVERS:
        if (entry.loss, entry.method) == (loss, method):
            return entry
    if loss not in LOSSES:
        raise UsageError(f"expected a loss among {', '.join(LOSSES)}, found {loss!r}")
    raise UsageError(
        f"no solver for {loss} by method {method}; {loss} is trained by {' or '.join(loss_table.LOSSES[loss].methods)}"
    )


def check_combination(problem: Problem, method: str) -> SolverEntry:
    """Return the entry of a problem's loss and a method; raises `UsageError` where it does not train its bias or penalty."""
    entry = find_solver(problem.loss, method)
    _check_bias(problem, method)
    _check_penalty(problem, method)
    return entry


def make_solver(
    problem: Problem,
    method: str,
    dataset: Dataset,
    *,
    seed: int = 0,
    omega: float | str = 1.0,
    acceleration: float | str = "none",
) -> Solver:
    """Make the solver of a problem.

    Raises `UsageError` if there is none for the loss, or the problem has a free bias, which the method cannot train.
    """
    entry = check_combination(problem, method)
    return entry.factory(SolverRequest(problem, dataset, seed, omega, acceleration))


def solver_memory(
    problem: Problem, method: str, dataset: Dataset, *, acceleration: float | str = "none"
) -> SolverMemory:
    """Compute the memory of a problem's solver without making it; refused like `make_solver`."""
    from . import memory

    check_combination(problem, method)
    accelerated = acceleration != "none" if reads_columns(method) else is_proximal(problem, acceleration)
    if method == "working-set":
        return memory.working_set_memory(problem, dataset)
    if reads_columns(method):
        with_replacement = method == "online"
        return memory.primal_memory(
            problem, dataset, with_replacement=with_replacement, extrapolates=accelerated
        )
    if method == "newton":
        way = _way_without_matrix(problem)
        return replace(
            memory.newton_memory(problem, dataset),
            advice=f"give a larger --memory, or take {way}, which needs no matrix",
        )
    if method == "sor":
        return memory.twin_sor_memory(problem)
    count = memory.class_memory if problem.lane_vectors > 1 else memory.dual_memory
    return count(problem, accelerated=accelerated)


def _way_without_matrix(problem: Problem) -> str:
    """Name options that train a problem, or the nearest to it, in the memory of other methods than newton."""
    with suppress(UsageError):
        check_combination(problem, "dual")
        return "--method dual"
    return "--method working-set with the column layout ('streamcd columns DATASET', or convert --columns)"


def is_proximal(problem: Problem, acceleration: float | str) -> bool:
    """Tell whether a solver over rows moves the centres of a proximal point: by acceleration, or of a free bias."""
    return acceleration != "none" or problem.free_bias


def _check_bias(problem: Problem, method: str) -> None:
    if problem.free_bias and not find_solver(problem.loss, method).frees_bias:
        raise UsageError(
            f"--unpenalized-bias is not for {problem.loss} by method {method}; give --bias a larger value, which is "
            "penalised less"
        )


def _check_penalty(problem: Problem, method: str) -> None:
    if problem.l1.any() and not find_solver(problem.loss, method).takes_penalties:
        ways = [entry.method for entry in SOLVERS if entry.loss == problem.loss and entry.takes_penalties]
        where = f"for {problem.loss} by --method {' or '.join(ways)}" if ways else f"not for {problem.loss}"
        raise UsageError(f"--penalty l1 and elasticnet are {where}, found --method {method}")
    if problem.form == PLANES and problem.l2 != 1.0:
        raise UsageError(
            f"--l2 is not for {problem.loss}, found {problem.l2:g}; --ridge is the strength of its penalty"
        )


def reads_columns(method: str) -> bool:
    """Check if a method reads the column layout."""
    return _of_method(method).layout == "columns"


def keeps_alpha(method: str) -> bool:
    """Check if a method stores dual variables, and starts from those of another run."""
    return _of_method(method).keeps_alpha


def _of_method(method: str) -> SolverEntry:
    """Return the first entry of a method: what its solvers have in common."""
    return next(entry for entry in SOLVERS if entry.method == method)


def check_omega(omega: float | str, loss: str, method: str) -> float | str:
    """Check over-relaxation; returns it as a number or ``"auto"``.

    Raises `UsageError` if it is outside (0, 2), or differs from 1 although the steps have no closed form.
    """
    from .over_relaxation import omega_number

    number = omega if omega == "auto" else omega_number(omega)
    relaxing = [(entry.loss, entry.method) for entry in SOLVERS if entry.relaxes]
    if number != 1.0 and (loss, method) not in relaxing:
        losses = ", ".join(sorted({loss for loss, _ in relaxing}))
        raise UsageError(
            f"omega applies to the closed-form steps of {losses} by method dual (of twin, by sor too); "
            f"{loss} by method {method} has none, leave omega at 1"
        )
    return number
