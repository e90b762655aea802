"""Export of a dataset in memory: its rows as SciPy and Arrow objects, a summary as text and HTML."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import UsageError, escaped
from ..core.memory_budget import available_memory, format_size, parse_size, require
from ..core.progress import counted
from .chunked_table import starts_of

Dataset = Any  # `dataset.Dataset`, whose methods these are

_ROW_BYTES = 40  # of a row besides its entries: source, label, weight, count, offset
_LISTED_CLASSES = 10


def to_scipy(dataset: Dataset, memory: int | str | None) -> tuple[Any, np.ndarray]:
    from scipy.sparse import csr_array

    _require_room(dataset, memory, "SciPy's matrix", _table_bytes(dataset))
    rows = _rows_in_source_order(dataset)
    shape = dataset.n_rows, dataset.n_features
    indptr = rows["indptr"]
    if rows["feature"].dtype == np.int32 and dataset.n_entries < 2**31:
        indptr = indptr.astype(np.int32)  # the type of the indices, or SciPy converts one of them
    return csr_array((rows["value"], rows["feature"], indptr), shape=shape), source_labels(
        dataset, rows["label"]
    )


def to_numpy(dataset: Dataset, dtype: Any) -> np.ndarray:
    if dataset.weighted:
        raise UsageError(
            f"expected an array, found the dataset {dataset.path}, whose rows have weights, which would be lost; of the "
            "steps of a pipeline streamcd's estimators alone take them, and a dataset is scaled when it is made, by "
            "convert(scale=, normalize=)"
        )
    number = dataset.value_dtype if dtype is None else np.dtype(dtype)
    cells = dataset.n_rows * dataset.n_features * number.itemsize
    require(
        int(min(available_memory(), 2**62)),
        {"a dense matrix": cells, "the order of the rows": _ROW_BYTES * dataset.n_rows},
        "scale the data when it is converted, by convert(scale=, normalize=), and leave the scaler out: streamcd's "
        "estimators read a dataset as it is",
        f"expected an array, found the dataset {dataset.path}, which would not fit in the memory that is free, "
        f"{format_size(available_memory())}, as one:",
    )
    dense = np.zeros(dataset.shape, number)
    for chunk, rank in enumerate(_ranks(dataset)):
        rows = dataset.read(chunk)
        dense[np.repeat(rank, np.diff(rows.indptr)), rows.feature] = rows.value
    return dense


def to_arrow(dataset: Dataset, memory: int | str | None) -> pa.Table:
    _require_room(dataset, memory, "Arrow's table", _table_bytes(dataset))
    return _table(dataset, _rows_in_source_order(dataset))


def labels(dataset: Dataset, memory: int | str | None) -> np.ndarray:
    _require_room(dataset, memory, "the labels", dataset.n_rows * _label_bytes(dataset))
    (label,) = in_source_order(dataset, "label")
    return source_labels(dataset, label)


def _label_bytes(dataset: Dataset) -> int:
    """Bytes of a row while labels are read: its source, its label as stored, both in both orders, and as it is given."""
    listed = dataset.class_names or dataset.info()["classes"]
    return 40 + (8 if listed is None else np.array(listed).itemsize)


def in_source_order(dataset: Dataset, *names: str) -> list[np.ndarray]:
    """Read columns of all rows, in the order of the source."""
    source, *columns = _stored(dataset, "source", *names)
    order = np.argsort(source)
    return [column[order] for column in columns]


def _ranks(dataset: Dataset) -> list[np.ndarray]:
    """Return the places of every chunk's rows in the order of the source, in which they stay whatever their numbers are."""
    (source,) = _stored(dataset, "source")
    rank = np.empty(source.size, np.int64)
    rank[np.argsort(source)] = np.arange(source.size)
    return np.split(rank, dataset.row_start[1:-1])


def _stored(dataset: Dataset, *names: str) -> list[np.ndarray]:
    """Read columns of all rows, as they are stored."""
    parts = [dataset.read_rows(chunk, names) for chunk in range(dataset.n_chunks)]
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


def head(dataset: Dataset, n_rows: int) -> pa.Table:
    last = max(int(np.searchsorted(dataset.row_start, n_rows)), 1)
    return _table(dataset, _gather(dataset, range(min(last, dataset.n_chunks)))).slice(0, n_rows)


def summary(dataset: Dataset) -> dict[str, str]:
    """Return the main figures as text, by name."""
    info = dataset.info()
    classes = info["classes"]
    listed = "too many values to be classes"
    if (targets := info["targets"]) is not None:
        listed = f"targets from {targets['min']:.6g} to {targets['max']:.6g}"
    elif classes is not None:
        shown = [f"{label} ({count:,})" for label, count in zip(classes, info["class_counts"], strict=True)]
        listed = ", ".join(shown[:_LISTED_CLASSES]) + (", …" if len(shown) > _LISTED_CLASSES else "")
    return {
        "rows": f"{info['n_rows']:,}",
        "features": f"{info['n_features']:,}",
        "entries": f"{info['n_entries']:,} ({info['density']:.2%}), {info['value_dtype']}",
        "labels": escaped(listed),
        "size": f"{format_size(info['bytes'])} in {counted(info['n_shards'], 'shard')}, "
        + counted(info["n_chunks"], "chunk"),
        "scaling": dataset.scaling.options(),
        "fingerprint": info["fingerprint"],
    }


def _table_bytes(dataset: Dataset) -> int:
    return int(dataset.n_entries * dataset.entry_bytes + dataset.n_rows * _ROW_BYTES)


def _require_room(dataset: Dataset, memory: int | str | None, what: str, n_bytes: int) -> None:
    if memory is not None:
        require(parse_size(memory), {what: n_bytes}, "give a larger memory, or read chunk by chunk")
        return
    refusal = f"{dataset.path} does not fit in the memory that is free, {format_size(available_memory())}:"
    require(int(min(available_memory(), 2**62)), {what: n_bytes}, "read it chunk by chunk", refusal)


def _rows_in_source_order(dataset: Dataset) -> dict[str, np.ndarray]:
    """Read all rows; entries are put in place chunk by chunk, so that only one copy of them is in memory."""
    names = ("source", "label", "weight", "n_entries")
    rows = dict(zip(names, in_source_order(dataset, *names), strict=True))
    rows["indptr"] = starts_of(rows["n_entries"])
    rows["feature"] = np.empty(dataset.n_entries, dataset.index_dtype)
    rows["value"] = np.empty(dataset.n_entries, dataset.value_dtype)
    for chunk, rank in enumerate(_ranks(dataset)):
        (n_entries,) = dataset.read_rows(chunk, ("n_entries",))
        shift = rows["indptr"][rank] - starts_of(n_entries)[:-1]
        target = np.arange(n_entries.sum()) + np.repeat(shift, n_entries)
        rows["feature"][target], rows["value"][target] = dataset.read_entries(chunk)
    return rows


def _gather(dataset: Dataset, chunks: range) -> dict[str, np.ndarray]:
    """Read chunks in the order in which they are stored."""
    parts = [dataset.read(chunk) for chunk in chunks]
    names = ("source", "label", "weight", "feature", "value")
    rows = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    rows["indptr"] = starts_of(np.concatenate([np.diff(part.indptr) for part in parts]))
    return rows


def source_labels(dataset: Dataset, label: np.ndarray) -> np.ndarray:
    """Convert labels to those of the source: names, integers or decimal numbers."""
    if dataset.classes is None:
        return label
    classes = dataset.class_names or dataset.info()["classes"]
    return np.array(classes)[np.searchsorted(dataset.classes, label)]


def _table(dataset: Dataset, rows: dict[str, np.ndarray]) -> pa.Table:
    columns = {
        "source": pa.array(rows["source"]),
        "label": pa.array(source_labels(dataset, rows["label"])),
        "weight": pa.array(rows["weight"]),
        "feature": pa.LargeListArray.from_arrays(rows["indptr"], rows["feature"]),
        "value": pa.LargeListArray.from_arrays(rows["indptr"], rows["value"]),
    }
    return pa.table(columns)
