"""Sets of labels as text, from columns of lists or of text, and from matrices with a column of 0 and 1 for each label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError, UsageError
from ..dataset.arrow_columns import lists_of, type_name


def label_set_texts(given: Any, separator: str, place: Callable[[int], str]) -> Any:
    """Return the set of every row as text; a missing one is empty. `place` describes the location of a row."""
    import pyarrow.compute as pc  # only where there are sets: it takes a tenth of a second

    if isinstance(given, np.ndarray):
        if given.ndim == 2:
            return _joined(*_marked(given, place), separator)
        given = pa.array(given.astype(str) if given.dtype.kind in "US" else given)
    if type_name(given.type) == "list":
        offsets, labels = lists_of(pc.fill_null(given, []) if given.null_count else given, "label")
        texts = _texts(labels)
        wrong = pc.index(pc.match_substring(texts, separator), True).as_py()
        if wrong >= 0 or texts.null_count:
            at = wrong if wrong >= 0 else pc.index(pc.is_null(texts), True).as_py()
            row = int(np.searchsorted(offsets, at, side="right")) - 1
            raise DataError(
                f"{place(row)}: expected labels without {separator!r}, which separates them, found {texts[at].as_py()!r}; "
                "correct it, or name another character with --multilabel"
            )
        return _joined(offsets, texts, separator)
    return pc.fill_null(_texts(given), "")


def _texts(labels: Any) -> Any:
    """Format labels; whole numbers without a decimal point."""
    import pyarrow.compute as pc

    if pa.types.is_floating(labels.type) and pc.all(pc.equal(labels, pc.floor(labels))).as_py() is not False:
        labels = labels.cast(pa.int64())
    return labels.cast(pa.large_string())


def _joined(offsets: np.ndarray, labels: Any, separator: str) -> Any:
    import pyarrow.compute as pc

    # lists of large strings cannot be joined
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), labels.cast(pa.string()))
    return pc.binary_join(lists, separator)


def _marked(marks: np.ndarray, place: Callable[[int], str]) -> tuple[np.ndarray, Any]:
    """Return the numbers of the columns with a 1, of all rows together, and where each row's begin."""
    wrong = np.argwhere((marks != 0) & (marks != 1))
    if wrong.size:
        row, column = wrong[0].tolist()
        raise DataError(
            f"{place(row)}: expected 0 or 1 in every column of y, found {marks[row, column]} in column {column}"
        )
    _, column = np.nonzero(marks)
    offsets = np.concatenate([[0], np.cumsum(np.count_nonzero(marks, axis=1))])
    return offsets, pa.array(column).cast(pa.large_string())


def check_marks(marks: np.ndarray) -> None:
    """Refuse a matrix of labels one of which no row has: nothing tells it from the others."""
    never = np.flatnonzero(~(marks != 0).any(axis=0))
    if never.size:
        raise UsageError(
            f"y: expected a row with a 1 in every column, found none in column {int(never[0])}; leave the column out"
        )
