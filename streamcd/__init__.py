"""Linear models by coordinate descent on data larger than memory, with a certificate of optimality."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors as errors
from ._version import __version__

if TYPE_CHECKING:
    from .box_qp.solve import BoxQPResult as BoxQPResult
    from .box_qp.solve import solve_box_qp as solve_box_qp
    from .cli.console import ProgressBar as ProgressBar
    from .conversion.convert import convert as convert
    from .conversion.transpose import make_columns as make_columns
    from .core.errors import ConvergenceWarning as ConvergenceWarning
    from .core.errors import StreamcdError as StreamcdError
    from .core.options import Listener as Listener
    from .dataset.dataset import Dataset as Dataset
    from .dataset.dataset import open_dataset as open  # noqa: F401
    from .estimators.linear import LinearSVC as LinearSVC
    from .estimators.linear import LogisticRegression as LogisticRegression
    from .estimators.linear import TwinSVC as TwinSVC
    from .estimators.regression import ElasticNet as ElasticNet
    from .estimators.regression import HuberRegressor as HuberRegressor
    from .estimators.regression import Lasso as Lasso
    from .estimators.regression import LinearSVR as LinearSVR
    from .estimators.regression import Ridge as Ridge
    from .models.export import export as export
    from .models.model import Model as Model
    from .models.named_weights import weights as weights
    from .models.stored import load_model as load_model
    from .prediction.evaluate import evaluate as evaluate
    from .prediction.predict import predict as predict
    from .runs.merge import merge as merge
    from .runs.report import write_report as write_report
    from .runs.run import resume as resume
    from .runs.run import train as train
    from .runs.run import tune as tune
    from .training.result import Result as Result

# Loaded at first use: the command line starts fast, and a training process holds only what it needs.
_MODULES = {
    "box_qp.solve": ("BoxQPResult", "solve_box_qp"),
    "cli.console": ("ProgressBar",),
    "conversion.convert": ("convert",),
    "conversion.transpose": ("make_columns",),
    "core.errors": ("ConvergenceWarning", "StreamcdError"),
    "core.options": ("Listener",),
    "dataset.dataset": ("Dataset", "open"),
    "estimators.linear": ("LinearSVC", "LogisticRegression", "TwinSVC"),
    "estimators.regression": ("ElasticNet", "HuberRegressor", "Lasso", "LinearSVR", "Ridge"),
    "models.export": ("export",),
    "models.model": ("Model",),
    "models.named_weights": ("weights",),
    "models.stored": ("load_model",),
    "prediction.evaluate": ("evaluate",),
    "prediction.predict": ("predict",),
    "runs.merge": ("merge",),
    "runs.report": ("write_report",),
    "runs.run": ("resume", "train", "tune"),
    "training.result": ("Result",),
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*_PUBLIC, "__version__", "errors"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_PUBLIC[name]}", __name__)
    return getattr(module, "open_dataset" if name == "open" else name)


def __dir__() -> list[str]:
    return sorted(__all__)
