"""Which method suits a dataset: a rule measured on real sets.

Passes to a relative gap of 1e-3, dual against primal (more than: the cap was reached); q is the mean of ``‖x‖²``:

| set (rows / features, q)     | squared_hinge C = 1 | C = 10      | C = 100      | log_loss C = 1 | C = 10    | C = 100    |
| ---                          | ---                 | ---         | ---          | ---            | ---       | ---        |
| heart_scale (21, 8.1)        | 68, 21              | >500, 29    | >1000, 35    | 8, 10          | 61, 18    | 600, 29    |
| ijcnn1 (2272, 1.5)           | 16, 44              | 152, 58     | >1000, 72    | 4, 31          | 14, 49    | 114, 58    |
| a9a (265, 13.9)              | 109, 196            | >500, 264   | >1000, 364   | 13, 323        | 104, 233  | >600, 268  |
| mushrooms (73, 21), separable | 58, >400           | 102, >500   | 116, >500    | 6, 39          | 10, 71    | 17, 114    |
| kdd99 10 % (4187, 9.5)       | 76, >400            |             | >100, >100   | 7, …           |           |            |
| dna.scale (11, 46)           | 310, 359            |             | >1000, >1000 | 30, 42         |           |            |
| imdb bigrams (0.02, 1)       | 4, 35               |             |              |                |           |            |

That rows outnumber features does not speak for the primal by itself. The dual slows down with ``C q``, the size of a
row's own term beside its diagonal; the primal hardly does. Separable data, where the dual is better at any C, cannot be told
beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.progress import Listener
from ..dataset.column_layout import has_columns
from ..dataset.dataset import Dataset

_LEAST_ROWS_A_FEATURE = 20
_LEAST_COST = {"squared_hinge": 15.0, "log_loss": 150.0}
"""``C q`` from which the primal needs fewer passes on those of the sets above that have rows enough."""


def advise_method(dataset: Dataset, loss: str, C: float) -> tuple[str, str]:
    """The method that the measurements speak for, and why, in words; reads ``features.parquet``.

    Parameters
    ----------
    dataset : Dataset
    loss : str
    C : float
        The largest, where there are several.
    """
    if loss not in _LEAST_COST:
        return "dual", f"{loss} has no primal method"
    n_features = max(dataset.n_features, 1)
    if dataset.n_rows < _LEAST_ROWS_A_FEATURE * n_features:
        return "dual", f"fewer than {_LEAST_ROWS_A_FEATURE} rows a feature"
    squares = sum(
        float(piece["mean_square"].sum()) for piece in dataset.read_features(("feature", "mean_square"))
    )
    cost, least = C * squares, _LEAST_COST[loss]
    found = f"C · mean ‖x‖² = {cost:.3g}, {dataset.n_rows // n_features} rows a feature"
    if cost < least:
        threshold = f" (C = {least / squares:.3g})" if squares > 0 else ""
        return "dual", f"{found}; primal needs fewer passes from {least:g} on{threshold}"
    return "primal", f"{found}; from {least:g} on it needs fewer passes, unless the classes are separable"


def choose_method(
    dataset: Dataset, loss: str, C: float | Sequence[float], unpenalized_bias: bool, listener: Listener
) -> str:
    """The method of ``--method auto``; the listener is told why. No layout is built."""
    if unpenalized_bias:
        listener.message("method primal: only primal methods leave the bias unpenalised")
        return "primal"
    method, reason = advise_method(dataset, loss, float(np.max(C)))
    if method != "dual" and not has_columns(dataset):
        listener.message(
            f"method dual, as there is no column layout, though primal may be faster: {reason} "
            f"('streamcd columns {dataset.path}' makes the layout)"
        )
        return "dual"
    listener.message(f"method {method}: {reason}")
    return method
