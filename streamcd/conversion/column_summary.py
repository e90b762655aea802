"""Summary of a table's columns: how each was used, as a conversion shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.progress import shortened
from ..dataset.arrow_columns import numbers_of
from ..dataset.derived_columns import described_origin, have_dates, number_name, seconds_of
from ..models.encoding import Column, Encoding

FIELDS = ("column", "use", "features", "missing", "example", "note")
"""Facts of a column."""

_EXAMPLE = 40  # characters


def summarise(
    examples: Mapping[str, str],
    encoding: Encoding,
    n_missing: np.ndarray,
    notes: Mapping[str, str],
    word: str,
) -> list[dict[str, Any]]:
    """Describe every column of a table; those of features first, in the order of features.

    `examples` has a value of each column, `n_missing` counts the missing values of those of `encoding`; `notes` tell why
    columns are left out; `word` is the use of the column of labels or targets.
    """
    facts = []
    for column, missing in zip(encoding.columns, n_missing.tolist(), strict=True):
        n_features = encoding.n_buckets if column.kind == "hashed" else column.n_features
        facts.append((column.name, _use(column, encoding), n_features, int(missing), ""))
    own = {encoding.id: "id", encoding.fold: "fold", encoding.label: word, encoding.weight: "weight"}
    own.pop("", None)
    own |= {column.values: f"values of {column.name}" for column in encoding.columns if column.values}
    features = {column.name for column in encoding.columns}
    for name in (name for name in examples if name not in features):
        note = "" if name in own else notes.get(name, "not among --features")
        facts.append((name, own.get(name, "not used"), 0, 0, note))
    return [
        dict(zip(FIELDS, (name, use, n_features, missing, examples.get(name, ""), note), strict=True))
        for name, use, n_features, missing, note in facts
    ]


def _use(column: Column, encoding: Encoding) -> str:
    """Describe how a column becomes features."""
    if column.kind == "hashed":
        return f"hashed into 2^{encoding.bits}"
    if column.kind == "sparse":
        return f"indices of {column.values}"
    if column.form == "seconds":
        return f"seconds since {described_origin(column.origin)}" if column.origin else "seconds"
    return "true or false" if column.form == "boolean" else column.kind


def example_of(array: Any, kind: str) -> str:
    """Return a column's first value that is not missing as text, alike for all formats; empty where there is none."""
    array = array.drop_null()[:1]
    if not len(array):
        return ""
    if kind == "number":
        return shortened(number_name(float(numbers_of(array)[0])), _EXAMPLE)
    if kind == "boolean":
        return "true" if numbers_of(array)[0] else "false"
    if kind == "time":
        time = described_origin(int(seconds_of(array, 0)[0] // 1))
        return time.removesuffix(" 00:00:00") if have_dates(array) else time[-8:]
    if kind != "string":
        return ""
    return shortened(" ".join(str(array[0].as_py())[: 10 * _EXAMPLE].split()), _EXAMPLE)  # it may be a book
