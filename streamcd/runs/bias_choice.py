"""Choice of the bias, the constant feature whose weight is the intercept, by what a dataset was made from."""

from __future__ import annotations

from pathlib import Path

from ..core.progress import Listener
from ..core.storage import local_path
from ..dataset.dataset import Dataset
from .config import read_config
from .problem_options import NO_BIAS

_BY_SOURCE = {
    "table": (1.0, "the dataset was made from a table"),
    "dense array": (1.0, "the dataset was made from a dense array"),
    "sparse matrix": (NO_BIAS, "the dataset was made from a sparse matrix, and LIBLINEAR's default is none"),
    "libsvm text": (NO_BIAS, "the dataset was made from libsvm text, and LIBLINEAR's default is none"),
}
_UNKNOWN = (NO_BIAS, "the dataset does not say what it was made from")
_AS_ASKED = "as asked"


def bias_by_source(dataset: Dataset) -> tuple[float, str]:
    """Choose the bias for a dataset, negative for none; returns the reason, too."""
    return _BY_SOURCE.get(dataset.made_from or "", _UNKNOWN)


def choose_bias(
    asked: float | str, dataset: Dataset, listener: Listener, start_from: str | Path | None = None
) -> tuple[float, str]:
    """Resolve a bias, ``"auto"`` or a number, to a number, negative for none, and tell the listener.

    Returns the reason, too. A training that starts from another has its bias: the dual variables would not fit another.
    """
    bias, because = _resolved(asked, dataset, start_from)
    listener.message(f"bias {describe_bias(bias, because)}")
    return bias, because


def _resolved(asked: float | str, dataset: Dataset, start_from: str | Path | None) -> tuple[float, str]:
    if asked == "auto":
        if start_from is None:
            return bias_by_source(dataset)
        return float(
            read_config(local_path(start_from, "a run")).options.bias
        ), "that of the run it starts from"
    return float(asked), _AS_ASKED


def describe_bias(bias: float, because: str) -> str:
    """Say which bias a training has, why, and how to have another."""
    another = "--bias 1 adds an intercept" if bias < 0 else "--bias none leaves the intercept out"
    return f"{bias_text(bias)}: {because}" + ("" if because == _AS_ASKED else f"; {another}")


def bias_text(bias: float) -> str:
    """Format a bias for people."""
    return "none" if bias < 0 else f"{bias:g}"
