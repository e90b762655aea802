"""The losses and their solvers: two tables for kernels, options, help, docs and tests. `losses` computes the formulas."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Literal, NamedTuple

HINGE, SQUARED_HINGE, TWIN_HINGE, TWIN_SQUARED_HINGE, LOG_LOSS, CRAMMER_SINGER, MULTINOMIAL = range(7)
# of numbers to predict
SQUARED_ERROR, HUBER, EPSILON_INSENSITIVE, SQUARED_EPSILON_INSENSITIVE, QUANTILE = range(7, 12)

Form = Literal["margins", "classes", "planes"]
MARGINS: Form = "margins"
CLASSES: Form = "classes"
PLANES: Form = "planes"
"""Forms of losses: of a row's margin in a lane; of its scores for all classes at once; of its distances from the planes of
all classes, one of which is fitted to it."""


class Loss(NamedTuple):
    """A loss as kernels take it."""

    kind: int  # one of the numbers above
    parameter: float = 0.0  # of a loss that has one


class LossParameter(NamedTuple):
    """The parameter of a loss: an option of this name wherever a loss is chosen."""

    name: str
    default: float
    help: str
    expected: str  # of its values, in words
    allows: Callable[[float], bool]
    flags: str = ""  # on the command line; by default ``--name``


class LossEntry(NamedTuple):
    """A loss."""

    kind: int  # of `Loss`
    formula: str  # at a margin or target, for ``--help``
    form: Form = MARGINS
    smooth: bool = False  # has a curvature in every lane
    has_targets: bool = False  # for rows with numbers to predict, rather than classes
    probabilities: bool = False  # decisions are their logits, and the dual has entropies
    parameter: LossParameter | None = None


_EPSILON = LossParameter(
    "epsilon",
    0.1,
    "Errors up to it cost nothing.",
    "a number from 0 on, in the targets' units",
    lambda epsilon: 0.0 <= epsilon < inf,
    "-p",
)

LOSSES = {
    "squared_hinge": LossEntry(SQUARED_HINGE, "max(0, 1-t)^2", smooth=True),
    "hinge": LossEntry(HINGE, "max(0, 1-t)"),
    "log_loss": LossEntry(LOG_LOSS, "log(1 + exp(-t))", smooth=True, probabilities=True),
    "crammer_singer": LossEntry(CRAMMER_SINGER, "max over m of w_m·x - w_y·x + [m != y]", CLASSES),
    "multinomial": LossEntry(
        MULTINOMIAL, "log of the sum over m of exp(w_m·x - w_y·x)", CLASSES, smooth=True, probabilities=True
    ),
    "squared_error": LossEntry(SQUARED_ERROR, "(y - z)^2", smooth=True, has_targets=True),
    "epsilon_insensitive": LossEntry(
        EPSILON_INSENSITIVE, "max(0, |y - z| - epsilon)", has_targets=True, parameter=_EPSILON
    ),
    "squared_epsilon_insensitive": LossEntry(
        SQUARED_EPSILON_INSENSITIVE,
        "max(0, |y - z| - epsilon)^2",
        smooth=True,
        has_targets=True,
        parameter=_EPSILON,
    ),
    "huber": LossEntry(
        HUBER,
        "½ (y - z)^2 up to |y - z| = delta, then delta |y - z| - ½ delta^2",
        smooth=True,
        has_targets=True,
        parameter=LossParameter(
            "delta",
            1.35,
            "Error from which on the loss is a line: larger ones pull no harder.",
            "a number above 0, in the targets' units",
            lambda delta: 0.0 < delta < inf,
        ),
    ),
    "quantile": LossEntry(
        QUANTILE,
        "quantile |y - z| where y > z, (1 - quantile) |y - z| where not",
        has_targets=True,
        parameter=LossParameter(
            "quantile",
            0.5,
            "Share of the targets that should lie below the prediction; 0.5 is the median.",
            "a number between 0 and 1",
            lambda quantile: 0.0 < quantile < 1.0,
        ),
    ),
    "twin": LossEntry(TWIN_HINGE, "½ (w·x)^2 of a plane's own rows", PLANES),
}

LOSS_ALIASES = {"logistic": "log_loss", "log": "log_loss"}

SLACKS = {"hinge": TWIN_HINGE, "squared_hinge": TWIN_SQUARED_HINGE}
"""Losses of the rows that a twin plane keeps at a distance."""


PARAMETERS = {
    entry.parameter.name: entry.parameter for entry in LOSSES.values() if entry.parameter is not None
}
"""The parameters of losses by name; losses may share one."""


def row_loss(loss: str, slack: str = "", parameter: float | None = None) -> Loss:
    """Return a loss as kernels take it; `slack` is that of twin planes, `parameter` by default that of the loss."""
    entry = LOSSES[loss]
    if parameter is None:
        parameter = 0.0 if entry.parameter is None else entry.parameter.default
    return Loss(SLACKS[slack] if entry.form == PLANES else entry.kind, parameter)


class SolverEntry(NamedTuple):
    """A solver: a method for a loss."""

    loss: str
    method: str
    layout: Literal["rows", "columns"]  # the table that it reads
    keeps_alpha: bool  # dual variables are stored, and another run's are needed to start from it
    accelerates: bool  # rows: an outer proximal point with kappa; columns: extrapolation of passes
    relaxes: bool  # steps have a closed form, to which omega applies
    takes_l1: bool  # trains with L1 and elastic net
    # Several workers train it together: by block-diagonal dual coordinate descent with a line search along the dual (a step
    # along any direction keeps every row's sum over the classes), or by sums over their rows at fixed weights.
    rounds: Literal["", "dual", "sums"]
    liblinear: int | None  # ``-s`` of the same problem and method
    solver: str  # module and class in `solvers`; the class has the memory function
    free_bias_solver: str  # that for a bias which is not penalised, if there is one

    @property
    def has_targets(self) -> bool:
        return LOSSES[self.loss].has_targets

    def __str__(self) -> str:
        return f"{self.loss} by {self.method}"


_Y, _N = True, False
_DUAL = "dual.DualSolver", "free_bias.FreeBiasSolver"
_TWIN = "dual.DualSolver", ""
_CLASSES = "classes.ClassSolver", "classes.FreeBiasClassSolver"
_SOR = "twin_sor.TwinSorSolver", ""
_PRIMAL = "primal.PrimalSolver", "primal.PrimalSolver"
_NEWTON = "newton.NewtonSolver", "newton.NewtonSolver"
_WORKING_SET = "working_set.WorkingSetSolver", "working_set.WorkingSetSolver"
# fmt: off
SOLVERS = {row[:2]: SolverEntry(*row) for row in (
    # loss                          method         layout     alpha acc. omega l1  rounds  -s    solvers
    ("squared_hinge",               "dual",        "rows",    _Y,   _Y,  _Y,   _N,  "dual", 1,    *_DUAL),
    ("squared_hinge",               "primal",      "columns", _N,   _Y,  _N,   _N,  "",     2,    *_PRIMAL),
    ("squared_hinge",               "online",      "columns", _N,   _Y,  _N,   _N,  "",     None, *_PRIMAL),
    ("squared_hinge",               "newton",      "rows",    _N,   _N,  _N,   _Y,  "sums", None, *_NEWTON),
    ("squared_hinge",               "working-set", "columns", _N,   _N,  _N,   _Y,  "",     None, *_WORKING_SET),
    ("hinge",                       "dual",        "rows",    _Y,   _Y,  _Y,   _N,  "dual", 3,    *_DUAL),
    ("log_loss",                    "dual",        "rows",    _Y,   _Y,  _N,   _N,  "dual", 7,    *_DUAL),
    ("log_loss",                    "primal",      "columns", _N,   _Y,  _N,   _N,  "",     0,    *_PRIMAL),
    ("log_loss",                    "online",      "columns", _N,   _Y,  _N,   _N,  "",     None, *_PRIMAL),
    ("log_loss",                    "newton",      "rows",    _N,   _N,  _N,   _Y,  "sums", None, *_NEWTON),
    ("log_loss",                    "working-set", "columns", _N,   _N,  _N,   _Y,  "",     None, *_WORKING_SET),
    ("crammer_singer",              "dual",        "rows",    _Y,   _Y,  _N,   _N,  "dual", 4,    *_CLASSES),
    ("multinomial",                 "dual",        "rows",    _Y,   _Y,  _N,   _N,  "dual", None, *_CLASSES),
    ("squared_error",               "dual",        "rows",    _Y,   _Y,  _Y,   _N,  "dual", None, *_DUAL),
    ("squared_error",               "primal",      "columns", _N,   _Y,  _N,   _N,  "",     None, *_PRIMAL),
    ("squared_error",               "newton",      "rows",    _N,   _N,  _N,   _Y,  "sums", None, *_NEWTON),
    ("squared_error",               "working-set", "columns", _N,   _N,  _N,   _Y,  "",     None, *_WORKING_SET),
    ("epsilon_insensitive",         "dual",        "rows",    _Y,   _Y,  _Y,   _N,  "dual", 13,   *_DUAL),
    ("squared_epsilon_insensitive", "dual",        "rows",    _Y,   _Y,  _Y,   _N,  "dual", 12,   *_DUAL),
    ("squared_epsilon_insensitive", "primal",      "columns", _N,   _Y,  _N,   _N,  "",     11,   *_PRIMAL),
    ("squared_epsilon_insensitive", "newton",      "rows",    _N,   _N,  _N,   _Y,  "sums", None, *_NEWTON),
    ("squared_epsilon_insensitive", "working-set", "columns", _N,   _N,  _N,   _Y,  "",     None, *_WORKING_SET),
    ("huber",                       "dual",        "rows",    _Y,   _Y,  _Y,   _N,  "dual", None, *_DUAL),
    ("huber",                       "primal",      "columns", _N,   _Y,  _N,   _N,  "",     None, *_PRIMAL),
    ("huber",                       "newton",      "rows",    _N,   _N,  _N,   _Y,  "sums", None, *_NEWTON),
    ("huber",                       "working-set", "columns", _N,   _N,  _N,   _Y,  "",     None, *_WORKING_SET),
    ("quantile",                    "dual",        "rows",    _Y,   _Y,  _Y,   _N,  "dual", None, *_DUAL),
    ("twin",                        "dual",        "rows",    _Y,   _Y,  _Y,   _N,  "",     None, *_TWIN),
    ("twin",                        "sor",         "rows",    _Y,   _N,  _Y,   _N,  "",     None, *_SOR),
)}
# fmt: on
"""Solvers by loss and method."""

METHODS = ("dual", "primal", "online", "sor", "newton", "working-set")

LIBLINEAR_TYPES = {
    entry.liblinear: (entry.loss, entry.method) for entry in SOLVERS.values() if entry.liblinear is not None
}
"""LIBLINEAR's ``-s`` numbers as (loss, method)."""

LIBLINEAR_L1_TYPES = {5: "squared_hinge", 6: "log_loss"}
"""LIBLINEAR's ``-s`` numbers of losses with the penalty l1, for any method that takes it."""


def methods_for(loss: str) -> list[str]:
    """List the methods that train a loss."""
    return [entry.method for entry in SOLVERS.values() if entry.loss == loss]
