"""Export of a dataset as libsvm text, in the order of its source, in bounded memory."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..core.atomic_files import begins_with, check_output, refuse_other_ending, replacing
from ..core.external_partition import Layout, PartitionReader, PartitionWriter, Ranges, Records
from ..core.locks import scratch_directory
from ..core.memory_budget import parse_size, require
from ..core.progress import Listener, Progress
from ..dataset.dataset import Dataset
from .libsvm import write_rows

_LAYOUT = Layout((np.dtype(np.int64),), (np.dtype(np.uint8),))
"""Of a line: its row in the source, and its bytes."""
_FIRST_LINE = rb"[-+.\dinfae]+( +\d+:[-+.\dinfae]+| *\n|$)|$"
_RANGES = 4096  # of source rows, whose text is estimated before it is partitioned
_ENTRIES_AT_A_TIME = 1 << 15
_BYTES_PER_ENTRY_AS_STRINGS = 250
# A line in memory: the partition's own figure, and the line again in order.
_ROW_OVERHEAD, _ENTRY_TEXT = 2 * _LAYOUT.record_bytes + 40, 2 * 20


def export_libsvm(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    memory: int | str = "1GB",
    force: bool = False,
    listener: Listener | None = None,
) -> int:
    """Write a dataset as libsvm text: rows in source order, indices from the source's base on.

    Values are those stored, scaled where the dataset is, with the fewest digits that give the same number again. The format
    cannot hold row weights.

    Parameters
    ----------
    dataset : Dataset
    path : path
        The file appears when it is complete.
    memory : int or str
        Bound on the process's resident memory.
    force : bool
        Replace an existing file of libsvm text; any other is refused.
    listener : Listener, optional

    Returns
    -------
    int
        Bytes written.
    """
    listener = listener or Listener()
    target = Path(path)
    refuse_other_ending(target, "libsvm text")
    check_output(target, "libsvm text", lambda found: begins_with(found, _FIRST_LINE), force=force)
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
    with scratch_directory(target.parent, "export") as scratch:
        run, ends = scratch / "run", _range_ends(dataset, left // 2)
        _partition_lines(dataset, run, ends, left // 2, listener)
        with (
            replacing(target) as partial,
            open(partial, "wb") as file,
            PartitionReader([run], _LAYOUT) as reader,
        ):
            for bucket in range(len(ends)):
                lines = reader.read(bucket)
                file.write(lines.take(np.argsort(lines.fields[0])).items[0].data)
    return target.stat().st_size


def _range_ends(dataset: Dataset, bucket_bytes: int) -> list[int]:
    """Return the ends of ranges of source rows whose lines fit in `bucket_bytes`, by the table of rows."""
    width = max(1, -(-dataset.n_rows // _RANGES))
    size = np.zeros(-(-dataset.n_rows // width), dtype=np.int64)
    for chunk in range(dataset.n_chunks):
        source, n_entries = dataset.read_rows(chunk, ("source", "n_entries"))
        np.add.at(size, source // width, _ROW_OVERHEAD + _ENTRY_TEXT * n_entries.astype(np.int64))
    ends, held = [], 0
    for number, n_bytes in enumerate(size.tolist()):
        if held and held + n_bytes > bucket_bytes:
            ends.append(number * width)
            held = 0
        held += n_bytes
    return [*ends, dataset.n_rows]


def _partition_lines(
    dataset: Dataset, run: Path, ends: list[int], memory_bytes: int, listener: Listener
) -> None:
    """Partition the lines of all rows by ranges of source rows."""
    ranges = Ranges(0, ends)
    with PartitionWriter(run, _LAYOUT, len(ends), memory_bytes) as writer:
        for source_row, text in _lines(dataset, listener):
            characters = np.frombuffer(text, np.uint8)
            line_ends = np.flatnonzero(characters == ord("\n")) + 1
            lines = Records([source_row], np.concatenate([[0], line_ends]), [characters])
            writer.append(ranges.number(source_row), lines)


def _lines(dataset: Dataset, listener: Listener) -> Iterator[tuple[np.ndarray, bytes]]:
    """Yield rows as lines, some at a time: their rows in the source, and the text."""
    original = None
    if dataset.manifest.get("compact"):
        original = (
            np.concatenate([piece.get("original", piece.get("index")) for piece in dataset.read_features()])
            - dataset.index_base
        )
    for chunk in range(dataset.n_chunks):
        data = dataset.read(chunk)
        start = 0
        while start < data.label.size:
            end = int(np.searchsorted(data.indptr, data.indptr[start] + _ENTRIES_AT_A_TIME))
            stop = min(max(start + 1, end), data.label.size)
            entries = slice(int(data.indptr[start]), int(data.indptr[stop]))
            feature = data.feature[entries] if original is None else original[data.feature[entries]]
            text, indptr = io.BytesIO(), data.indptr[start : stop + 1] - data.indptr[start]
            label, value = data.label[start:stop], data.value[entries]
            write_rows(text, label, indptr, feature, value, dataset.index_base)
            yield data.source[start:stop], text.getvalue()
            start = stop
        listener.progress(Progress("export", int(dataset.row_start[chunk + 1]), dataset.n_rows, "rows"))
