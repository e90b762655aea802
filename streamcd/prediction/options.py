"""Options of predictions and evaluations, declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..core.options import Memory, Option, SharedWork, Threads, replaces
from ..dataset.range_cache import CacheDirectory, CacheSize


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of what loads a model."""

    C: Annotated[
        float | None,
        Option("The model with this C, of a run that was trained with several.", flags="-C -c --C"),
    ] = None
    memory: Memory = "1GB"


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(SharedWork, ModelOptions):
    """Options of what scores rows."""

    cache: CacheDirectory = None
    cache_size: CacheSize = None
    threads: Threads = None


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(ScoringOptions):
    """Options of `evaluate.evaluate`."""

    unweighted: Annotated[bool, Option("Count all rows alike, whatever the weights of the data.")] = False


@dataclass(frozen=True, kw_only=True)
class PlotOptions(EvaluateOptions):
    """Options of an evaluation that is drawn."""

    force: Annotated[bool, replaces("picture")] = False


@dataclass(frozen=True, kw_only=True)
class PredictOptions(ScoringOptions):
    """Options of `predict.predict`."""

    decision: Annotated[bool, Option("Decisions in CSV and text too, after the label.")] = False
    proba: Annotated[
        bool,
        Option(
            "Add the probability of each class, last; for models of log_loss, or calibrated. Text then begins with a line "
            "'labels ...' in their order, as LIBLINEAR's."
        ),
    ] = False
    force: Annotated[bool, replaces("file of predictions")] = False
