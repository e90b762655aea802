"""Which method suits a dataset, by a rule measured on real sets."""

from __future__ import annotations

from .columns import has_columns
from .dataset import Dataset
from .progress import Listener


def advise_method(dataset: Dataset, loss: str) -> tuple[str, str]:
    """The method that the measurements speak for, and why, in words.

    Parameters
    ----------
    dataset : Dataset
    loss : str
    """
    if loss not in ("squared_hinge", "log_loss"):
        return "dual", f"{loss} has no primal method"
    return "dual", "it"


def chosen_method(dataset: Dataset, loss: str, unpenalized_bias: bool, listener: Listener) -> str:
    """The method of ``--method auto``; the listener is told why. No layout is built."""
    method, reason = advise_method(dataset, loss)
    if unpenalized_bias:
        method, reason = "primal", "only primal methods leave the bias unpenalised"
    elif method != "dual" and not has_columns(dataset):
        listener.message(
            f"method dual, as there is no column layout; primal should be faster: {reason} "
            f"('streamcd columns {dataset.path}' makes the layout)"
        )
        return "dual"
    listener.message(f"method {method}: {reason}")
    return method
