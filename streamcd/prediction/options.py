"""Options of predictions and evaluations, declared."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.options import ModelOptions, SharedWork, option, replaces


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(SharedWork, ModelOptions):
    """Options of `evaluate.evaluate`."""

    unweighted: bool = option(False, "Count all rows alike, whatever the weights of the data.")


@dataclass(frozen=True, kw_only=True)
class PredictOptions(SharedWork, ModelOptions):
    """Options of `predict.predict`."""

    decision: bool = option(False, "Decisions in CSV and text too, after the label.")
    proba: bool = option(
        False,
        "Add the probability of each class, last; for models of log_loss and multinomial. Text then begins with a line "
        "'labels ...' in their order, as LIBLINEAR's.",
    )
    force: bool = replaces("file of predictions")
