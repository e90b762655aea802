"""Linear models by coordinate descent on data larger than memory, with a certificate of optimality."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .convert import convert as convert
    from .dataset import Dataset as Dataset
    from .dataset import open_dataset as open  # noqa: F401
    from .errors import StreamcdError as StreamcdError
    from .evaluate import evaluate as evaluate
    from .model import Model as Model
    from .model import load_model as load_model
    from .predict import predict as predict
    from .progress import Listener as Listener
    from .result import Result as Result
    from .resume import resume as resume
    from .solve_qp import BoxQPResult as BoxQPResult
    from .solve_qp import solve_box_qp as solve_box_qp
    from .train import train as train
    from .transpose import make_columns as make_columns
    from .tune import tune as tune

__version__ = "0.1.0"

# Loaded at first use: the command line starts fast, and a training process holds only what it needs.
_PUBLIC = {
    "BoxQPResult": ("solve_qp", "BoxQPResult"),
    "Dataset": ("dataset", "Dataset"),
    "Listener": ("progress", "Listener"),
    "Model": ("model", "Model"),
    "Result": ("train", "Result"),
    "StreamcdError": ("errors", "StreamcdError"),
    "convert": ("convert", "convert"),
    "evaluate": ("evaluate", "evaluate"),
    "load_model": ("model", "load_model"),
    "make_columns": ("transpose", "make_columns"),
    "open": ("dataset", "open_dataset"),
    "predict": ("predict", "predict"),
    "resume": ("resume", "resume"),
    "solve_box_qp": ("solve_qp", "solve_box_qp"),
    "train": ("train", "train"),
    "tune": ("tune", "tune"),
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(importlib.import_module(f".{module}", __name__), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps `streamcd.train` the function: importing the submodule `train` would bind the module over it."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
