"""Choices that options leave open with auto: method, acceleration and bias, each with its reason.

The dual method, accelerated, needs the fewest passes on all real sets measured but the smallest (docs/methods.md has the
table), and no second layout. An unpenalised bias needs a primal method.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from ..core.errors import UsageError
from ..core.progress import Listener
from ..core.storage import local_path
from ..dataset.dataset import Dataset
from ..report.tables import describe_bias
from ..solvers.registry import find_solver
from .config import read_config
from .options import TrainOptions
from .problem_options import NO_BIAS

_BY_SOURCE = {
    "table": (1.0, "the dataset was made from a table"),
    "dense array": (1.0, "the dataset was made from a dense array"),
    "sparse matrix": (NO_BIAS, "the dataset was made from a sparse matrix, and LIBLINEAR's default is none"),
    "libsvm text": (NO_BIAS, "the dataset was made from libsvm text, and LIBLINEAR's default is none"),
}

Asked = TypeVar("Asked", bound=TrainOptions)


def settle(asked: Asked, dataset: Dataset, listener: Listener) -> Asked:
    """Choose what the options leave open, and tell the listener."""
    asked = choose_acceleration(_choose_method(asked, listener), listener)
    bias, because = asked.bias, "as asked"
    if bias == "auto" and asked.start_from is not None:
        # the dual variables would not fit another
        bias = read_config(local_path(asked.start_from, "a run")).options.bias
        because = "that of the run it starts from"
    elif bias == "auto":
        bias, because = bias_by_source(dataset)
    listener.message(f"bias {describe_bias(float(bias), because)}")
    return replace(asked, bias=float(bias), bias_because=because)


def method_by_bias(unpenalized_bias: bool) -> tuple[str, str]:
    """Choose the method, with the reason; no layout is built."""
    if unpenalized_bias:
        return "primal", "only primal methods leave the bias unpenalised"
    return "dual", "accelerated, it needs the fewest passes on all real sets measured but the smallest"


def bias_by_source(dataset: Dataset) -> tuple[float, str]:
    """Choose the bias for a dataset, negative for none, with the reason."""
    unknown = (NO_BIAS, "the dataset does not say what it was made from")
    return _BY_SOURCE.get(dataset.made_from or "", unknown)


def _choose_method(asked: Asked, listener: Listener) -> Asked:
    """Choose the method; dual, without a word, for a search, workers, and a start from dual variables."""
    if asked.method != "auto":
        return asked
    if asked.search or asked.on_workers or asked.start_from is not None:
        return replace(asked, method="dual")
    method, reason = method_by_bias(asked.unpenalized_bias)
    listener.message(f"method {method}: {reason}")
    return replace(asked, method=method)


def choose_acceleration(asked: Asked, listener: Listener) -> Asked:
    """Turn acceleration off where it does not apply: with a message for auto, refused for a given kappa."""
    if asked.acceleration in (0.0, "none"):  # plain coordinate descent by either name
        return replace(asked, acceleration="none")
    reason, solver = None, find_solver(asked.loss, asked.method)
    if not solver.accelerates:
        reason = f"{asked.loss} by method {asked.method} cannot be accelerated"
    elif asked.omega != 1.0:
        reason = f"it cannot be combined with omega {asked.omega}"
    elif solver.layout == "columns" and asked.acceleration != "auto":
        reason = f"method {asked.method} extrapolates by a line search, without a kappa"
    elif asked.eps is not None and solver.layout == "rows":
        reason = "LIBLINEAR's rule (eps) is about plain coordinate descent"
    if reason is None:
        return asked
    if asked.acceleration != "auto":
        raise UsageError(f"acceleration {asked.acceleration:g}: {reason}; leave it at auto or none")
    if solver.accelerates:
        listener.message(f"trained without acceleration: {reason}")
    return replace(asked, acceleration="none")
