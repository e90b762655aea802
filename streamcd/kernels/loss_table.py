"""The losses by name: the numbers that kernels know them by, and what else tells them apart. Formulas are in `losses`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """A loss, and the methods that train it."""

    kind: int  # of `Loss`
    # each with LIBLINEAR's number, for ``-s``, of the same problem and method
    methods: Mapping[str, int | None]
    formula: str  # of the loss at a margin or target, for ``--help``
    form: Form = MARGINS
    smooth: bool = False  # has a curvature in every lane
    of_targets: bool = False  # for rows with numbers to predict, rather than classes
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
    "squared_hinge": LossEntry(
        SQUARED_HINGE,
        {"dual": 1, "primal": 2, "online": None, "newton": None, "working-set": None},
        "max(0, 1-t)^2",
        smooth=True,
    ),
    "hinge": LossEntry(HINGE, {"dual": 3}, "max(0, 1-t)"),
    "log_loss": LossEntry(
        LOG_LOSS,
        {"dual": 7, "primal": 0, "online": None, "newton": None, "working-set": None},
        "log(1 + exp(-t))",
        smooth=True,
    ),
    "crammer_singer": LossEntry(
        CRAMMER_SINGER, {"dual": 4}, "max over m of w_m·x - w_y·x + [m != y]", CLASSES
    ),
    "multinomial": LossEntry(
        MULTINOMIAL,
        {"dual": None},
        "log of the sum over m of exp(w_m·x - w_y·x)",
        CLASSES,
        smooth=True,
    ),
    "squared_error": LossEntry(
        SQUARED_ERROR,
        {"dual": None, "primal": None, "newton": None, "working-set": None},
        "(y - z)^2",
        smooth=True,
        of_targets=True,
    ),
    "epsilon_insensitive": LossEntry(
        EPSILON_INSENSITIVE,
        {"dual": 13},
        "max(0, |y - z| - epsilon)",
        of_targets=True,
        parameter=_EPSILON,
    ),
    "squared_epsilon_insensitive": LossEntry(
        SQUARED_EPSILON_INSENSITIVE,
        {"dual": 12, "primal": 11, "newton": None, "working-set": None},
        "max(0, |y - z| - epsilon)^2",
        smooth=True,
        of_targets=True,
        parameter=_EPSILON,
    ),
    "huber": LossEntry(
        HUBER,
        {"dual": None, "primal": None, "newton": None, "working-set": None},
        "½ (y - z)^2 up to |y - z| = delta, then delta |y - z| - ½ delta^2",
        smooth=True,
        of_targets=True,
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
        {"dual": None},
        "quantile |y - z| where y > z, (1 - quantile) |y - z| where not",
        of_targets=True,
        parameter=LossParameter(
            "quantile",
            0.5,
            "Share of the targets that should lie below the prediction; 0.5 is the median.",
            "a number between 0 and 1",
            lambda quantile: 0.0 < quantile < 1.0,
        ),
    ),
    "twin": LossEntry(TWIN_HINGE, {"dual": None, "sor": None}, "½ (w·x)^2 of a plane's own rows", PLANES),
}

LOSS_ALIASES = {"logistic": "log_loss", "log": "log_loss"}

SLACKS = {"hinge": TWIN_HINGE, "squared_hinge": TWIN_SQUARED_HINGE}
"""Losses of the rows that a twin plane keeps at a distance."""


def form_of(loss: str) -> Form:
    """Return the form of a loss; of one that is unknown, as in a model of another version, that of margins."""
    return LOSSES[loss].form if loss in LOSSES else MARGINS


def has_targets(loss: str) -> bool:
    """Tell whether a loss is for rows with numbers to predict."""
    return loss in LOSSES and LOSSES[loss].of_targets


def is_logistic(loss: str) -> bool:
    """Tell whether a loss is the logistic one: it has probabilities, and stores C - alpha beside alpha."""
    return loss in LOSSES and LOSSES[loss].kind == LOG_LOSS


def gives_probabilities(loss: str) -> bool:
    """Tell whether the decisions of a loss are probabilities' logits."""
    return loss in LOSSES and LOSSES[loss].kind in (LOG_LOSS, MULTINOMIAL)


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
