"""A dataset back to libsvm text, in the order of its source, in bounded memory."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .atomic_files import replacing
from .dataset import Dataset
from .memory import parse_size, require
from .progress import Listener, Progress
from .svmlight import write_rows

_RANGES = 4096  # of source places, whose text is estimated before it is dealt out
_ENTRIES_AT_A_TIME = 1 << 15
_BYTES_PER_ENTRY_AS_STRINGS = 250
# A line in memory: Python's object and its places in two lists, beside its text, of which sorting takes a second copy.
_ROW_OVERHEAD, _ENTRY_TEXT = 2 * 150, 2 * 20


def export_libsvm(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    memory: int | str = "1GB",
    listener: Listener | None = None,
) -> int:
    """Write a dataset as libsvm text: rows in source order, indices from the source's base on.

    Values are those stored, scaled where the dataset is, with the fewest digits that give the same number again. Weights of
    rows have no place in this format.

    Parameters
    ----------
    dataset : Dataset
    path : path
        The file appears when it is complete.
    memory : int or str
        Bound on the process's resident memory.
    listener : Listener, optional

    Returns
    -------
    int
        Bytes written.
    """
    listener = listener or Listener()
    n_chunk_entries = int(np.diff(dataset.entry_start).max(initial=0))
    needs = {
        "one chunk": n_chunk_entries * (2 * dataset.entry_bytes + 8),
        "text of some rows": min(n_chunk_entries, _ENTRIES_AT_A_TIME) * _BYTES_PER_ENTRY_AS_STRINGS,
        "original feature numbers": 8 * dataset.n_features if dataset.manifest.get("compact") else 0,
        "rows being put in order": 1 << 23,
    }
    left = require(parse_size(memory), needs) + (1 << 23)
    if dataset.weighted:
        listener.warning("the rows' weights are left out: libsvm text has no place for them")
    if dataset.scaling.changes_values:
        listener.warning(f"values are written as they are stored, after {dataset.scaling.options()}")
    target = Path(path)
    with tempfile.TemporaryDirectory(prefix=".streamcd-export-", dir=target.parent) as scratch:
        buckets = _Buckets(Path(scratch), _bounds(dataset, left // 2), left // 2)
        for source, lines in _lines(dataset, listener):
            buckets.add(source, lines)
        with replacing(target) as partial, open(partial, "wb") as file:
            file.writelines(buckets.in_order())
    return target.stat().st_size


def _bounds(dataset: Dataset, bucket_bytes: int) -> np.ndarray:
    """First places of ranges of the source whose lines fit in `bucket_bytes`, from a look at the rows table."""
    width = max(1, -(-dataset.n_rows // _RANGES))
    size = np.zeros(-(-dataset.n_rows // width), dtype=np.int64)
    for chunk in range(dataset.n_chunks):
        source, n_entries = dataset.read_rows(chunk, ("source", "n_entries"))
        np.add.at(size, source // width, _ROW_OVERHEAD + _ENTRY_TEXT * n_entries.astype(np.int64))
    bounds, held = [0], 0
    for number, n_bytes in enumerate(size.tolist()):
        if held and held + n_bytes > bucket_bytes:
            bounds.append(number * width)
            held = 0
        held += n_bytes
    return np.array(bounds)


def _lines(dataset: Dataset, listener: Listener) -> Iterator[tuple[np.ndarray, list[bytes]]]:
    """Rows as lines, some at a time, with their places in the source."""
    original = None
    if dataset.manifest.get("compact"):
        original = (
            np.concatenate([piece["original"] for piece in dataset.read_features()]) - dataset.index_base
        )
    for chunk in range(dataset.n_chunks):
        data = dataset.read(chunk)
        start = 0
        while start < data.label.size:
            end = int(np.searchsorted(data.indptr, data.indptr[start] + _ENTRIES_AT_A_TIME))
            stop = min(max(start + 1, end), data.label.size)
            entries = slice(int(data.indptr[start]), int(data.indptr[stop]))
            feature = data.feature[entries] if original is None else original[data.feature[entries]]
            text = io.BytesIO()
            write_rows(
                text,
                data.label[start:stop],
                data.indptr[start : stop + 1] - data.indptr[start],
                feature,
                data.value[entries],
                dataset.index_base,
            )
            yield data.source[start:stop], text.getvalue().splitlines(keepends=True)
            start = stop
        listener.progress(Progress("export", int(dataset.row_start[chunk + 1]), dataset.n_rows, "rows"))


class _Buckets:
    """Lines dealt out by their places to files, one per range, each of which is sorted in memory in the end.

    In a file every line follows its place and a blank.
    """

    def __init__(self, scratch: Path, bounds: np.ndarray, memory_bytes: int) -> None:
        self._scratch, self._bounds, self._memory_bytes = scratch, bounds, memory_bytes
        self._waiting: list[list[tuple[int, bytes]]] = [[] for _ in bounds]
        self._n_bytes = 0

    def add(self, source: np.ndarray, lines: list[bytes]) -> None:
        """Take lines and their places."""
        bucket = np.searchsorted(self._bounds, source, side="right") - 1
        for number, place, line in zip(bucket.tolist(), source.tolist(), lines, strict=True):
            self._waiting[number].append((place, line))
            self._n_bytes += _ROW_OVERHEAD + len(line)
        if len(self._waiting) > 1 and self._n_bytes > self._memory_bytes:
            self._write()

    def in_order(self) -> Iterator[bytes]:
        """All lines by place."""
        if len(self._waiting) > 1:
            self._write()
        for number, waiting in enumerate(self._waiting):
            path = self._path(number)
            if path.exists():
                with open(path, "rb") as file:
                    pairs = (line.split(b" ", 1) for line in file)
                    waiting = [(int(place), line) for place, line in pairs]
                path.unlink()
            waiting.sort()
            for _, line in waiting:
                yield line

    def _path(self, number: int) -> Path:
        return self._scratch / f"lines-{number:06d}"

    def _write(self) -> None:
        for number, waiting in enumerate(self._waiting):
            if waiting:
                with open(self._path(number), "ab") as file:
                    file.write(b"".join([b"%d %b" % pair for pair in waiting]))
                waiting.clear()
        self._n_bytes = 0
