"""The losses by name: the numbers that kernels know them by, and what else tells them apart. Formulas are in `losses`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

HINGE, SQUARED_HINGE, LOG_LOSS, CRAMMER_SINGER, TWIN_HINGE, TWIN_SQUARED_HINGE, MULTINOMIAL = range(7)

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


class LossEntry(NamedTuple):
    """A loss, and the methods that train it."""

    kind: int  # of `Loss`
    methods: Mapping[
        str, int | None
    ]  # each with LIBLINEAR's number, for ``-s``, of the same problem and method
    form: Form = MARGINS
    smooth: bool = False  # has a curvature in every lane
    calibrates: bool = False  # its decisions become probabilities by sigmoids
    of_targets: bool = False  # for rows with numbers to predict, rather than classes


LOSSES = {
    "squared_hinge": LossEntry(
        SQUARED_HINGE, {"dual": 1, "primal": 2, "online": None}, smooth=True, calibrates=True
    ),
    "hinge": LossEntry(HINGE, {"dual": 3}, calibrates=True),
    "log_loss": LossEntry(LOG_LOSS, {"dual": 7, "primal": 0, "online": None}, smooth=True),
    "crammer_singer": LossEntry(CRAMMER_SINGER, {"dual": 4}, CLASSES),
    "multinomial": LossEntry(MULTINOMIAL, {"dual": None}, CLASSES, smooth=True),
    "twin": LossEntry(TWIN_HINGE, {"dual": None, "sor": None}, PLANES),
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
