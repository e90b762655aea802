"""Choices that options leave open with auto: method, acceleration and bias, each with its reason.

The dual method, accelerated, needs the fewest passes on all real sets measured but the smallest, and no second layout.
Newton's method needs fewer reads of narrow data, and keeps no dual variables on disk, but each takes two to four times as
long: it is chosen for tall data that has to be streamed, on workers, and where rows are long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from ..core.errors import BudgetError, UsageError
from ..core.memory_budget import RUNNING_BYTES, format_size
from ..core.storage import local_path
from ..dataset.column_layout import has_columns
from ..dataset.dataset import Dataset
from ..dataset.diagnostics import rows_are_long
from ..kernels.loss_table import SOLVERS, methods_for
from ..report.tables import bias_text
from ..solvers.registry import find_solver
from .config import read_config
from .lane_groups import group_lanes
from .options import TrainOptions
from .problem_options import NO_BIAS

_BY_SOURCE = {
    "table": (1.0, "made from a table"),
    "dense array": (1.0, "made from a dense array"),
    "sparse matrix": (NO_BIAS, "made from a sparse matrix"),
    "libsvm text": (NO_BIAS, "made from libsvm text"),
}

_PENALISED = list(dict.fromkeys(entry.loss for entry in SOLVERS if entry.takes_l1))

_LONG_ROWS = "few features, some with means or scales far from 0 and 1, which do not slow it down"

Asked = TypeVar("Asked", bound=TrainOptions)


def settle(asked: Asked, dataset: Dataset) -> tuple[Asked, str]:
    """Choose what the options leave open: the loss, then the bias, then the method; with a line that says what and why."""
    choices = []
    if asked.has_default_loss and dataset.has_targets:
        choices.append("loss squared_error: numbers to predict")
        asked = replace(asked, loss="squared_error")
    bias, because = asked.bias, "as asked"
    if bias == "auto" and asked.start_from is not None:
        # the dual variables would not fit another
        bias = read_config(local_path(asked.start_from, "a run")).options.bias
        because = "that of the run it starts from"
    elif bias == "auto":
        bias, because = bias_by_source(dataset)
    asked, method_because = _settle_method(replace(asked, bias=float(bias), bias_because=because), dataset)
    choices.append(f"method {asked.method}{method_because and f': {method_because}'}")
    asked, plain_because = _choose_acceleration(asked)
    if plain_because:
        choices.append(f"without acceleration: {plain_because}")
    choices.append(f"bias {bias_text(float(bias), because, advises=True)}")
    return asked, "; ".join(choices)


_ROWS_PER_FEATURE = 100
"""Rows for each feature, at least, for Newton's method: separable sets of 11 and 73 took 40 to 160 reads with C = 100."""

_MATRICES, _SHARE = 5, 0.125
"""Matrices of each lane (one for each part of a window, and their sum), and the share of the memory that they may take."""

_MOST_OPERATIONS = 3e11
"""Cubes of features, of all lanes, where rows are long: a read's solutions take a minute then, where dual would not end."""

_MOST_PRODUCTS = 64
"""Entries of a row, times the lanes, for which the products of their pairs take little longer than reading."""


def choose_method(asked: TrainOptions, dataset: Dataset) -> tuple[str, str]:
    """Choose the method, with the reason; no layout is built, though one may be needed that there is not yet."""
    if asked.bias == "auto":
        asked = replace(asked, bias=bias_by_source(dataset)[0])
    if asked.has_l1 and asked.loss not in _PENALISED:
        raise UsageError(
            f"no method trains {asked.loss} with --penalty {asked.penalty}; expected {' or '.join(_PENALISED)}, "
            "or --penalty l2"
        )
    if reason := _reason_for_newton(asked, dataset):
        trial = replace(asked, method="newton", acceleration="none")
        try:
            group_lanes(dataset, trial.make_problem(dataset, trial.memory_bytes), trial)
            return "newton", reason
        except BudgetError:
            reason = f"newton, which needs fewer reads, does not fit in {format_size(asked.memory_bytes)}"
    if asked.has_l1:
        return "working-set", reason or f"it trains with the penalty {asked.penalty} from the column layout"
    return "dual", reason or "the fewest passes on nearly all data"


def takes_columns(asked: TrainOptions, dataset: Dataset) -> bool:
    """Tell whether the method, by default the one that is chosen, reads the column layout."""
    method = choose_method(asked, dataset)[0] if asked.method == "auto" else asked.method
    return find_solver(asked.loss, method).layout == "columns"


def _reason_for_newton(asked: TrainOptions, dataset: Dataset) -> str:
    """Return the reason to take newton, if it fits in the memory; empty where there is none."""
    n_classes = 1 if dataset.classes is None or dataset.classes.size == 2 else dataset.classes.size
    n_lanes, size = n_classes * len(asked.C), dataset.n_features + 1
    # which workers share
    few = _MATRICES * 8 * n_lanes * size**2 <= _SHARE * asked.memory_bytes / (asked.workers or 1)
    if asked.has_l1:
        if few:
            return f"few features: it needs the fewest reads with the penalty {asked.penalty}"
        columns = f"'streamcd columns {dataset.path}'"
        make = f"the penalty {asked.penalty} takes less time by the column layout, which {columns} makes"
        return "" if has_columns(dataset) else make
    n_products = dataset.n_entries * n_lanes
    if "newton" not in methods_for(asked.loss) or n_products > _MOST_PRODUCTS * dataset.n_rows:
        return ""
    solved = not asked.on_workers and n_lanes * size**3 <= _MOST_OPERATIONS
    long = solved and rows_are_long(dataset, max(asked.C), accelerated=True, centred=asked.unpenalized_bias)
    tall = few and dataset.n_rows >= _ROWS_PER_FEATURE * size
    if asked.on_workers and tall:
        return "few features: it needs the fewest reads, which workers share"
    if (tall or long) and dataset.n_entries * dataset.entry_bytes > asked.memory_bytes - RUNNING_BYTES:
        return "few features, and rows that are read from disk: it needs the fewest reads"
    return _LONG_ROWS if long else ""


def bias_by_source(dataset: Dataset) -> tuple[float, str]:
    """Choose the bias for a dataset, negative for none, with the reason."""
    unknown = (NO_BIAS, "made from a source that is not known")
    return _BY_SOURCE.get(dataset.made_from or "", unknown)


def _settle_method(asked: Asked, dataset: Dataset) -> tuple[Asked, str]:
    """Choose the method, with the reason; without one dual with a start from other than newton, and in most searches.

    Many costs share the passes of a search, but newton's alone end where features are badly scaled.
    """
    if asked.method != "auto":
        return asked, ""
    if asked.start_from is not None and not asked.has_l1:
        before = read_config(local_path(asked.start_from, "a run")).options.method
        newton = before == "newton" and "newton" in methods_for(asked.loss)
        return replace(asked, method="newton" if newton else "dual"), ""
    method, reason = choose_method(asked, dataset)
    if asked.search and not asked.has_l1 and reason != _LONG_ROWS:
        return replace(asked, method="dual"), ""
    return replace(asked, method=method), reason


def _choose_acceleration(asked: Asked) -> tuple[Asked, str]:
    """Turn acceleration off where it does not apply: with the reason for auto, refused for a given kappa."""
    if asked.acceleration in (0.0, "none"):  # plain coordinate descent by either name
        return replace(asked, acceleration="none"), ""
    reason, solver = "", find_solver(asked.loss, asked.method)
    if not solver.accelerates:
        reason = f"{asked.loss} by method {asked.method} cannot be accelerated"
    elif asked.omega != 1.0:
        reason = f"it cannot be combined with omega {asked.omega}"
    elif not solver.keeps_alpha and asked.acceleration != "auto":
        reason = f"the strength of that of method {asked.method} cannot be given"
    elif asked.eps is not None and solver.keeps_alpha:
        reason = "LIBLINEAR's rule (eps) is for plain descent"
    if not reason:
        return asked, ""
    if asked.acceleration != "auto":
        raise UsageError(f"acceleration {asked.acceleration:g}: {reason}; leave it at auto or none")
    return replace(asked, acceleration="none"), reason if solver.accelerates else ""
