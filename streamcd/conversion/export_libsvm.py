"""Export of a dataset as libsvm text, in the order of its source, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..core.external_partition import Layout, PartitionReader, PartitionWriter, Ranges, Records, blocks_of
from ..core.files import begins_with, check_output, refuse_other_ending, replacing, scratch_directory
from ..core.memory_budget import parse_size, require
from ..core.options import Listener, Progress
from ..dataset.dataset import Dataset
from ..dataset.source_features import LOOKUP_BYTES, indices_of
from ..models.matrix_encoder import sorted_rows
from .libsvm import write_rows

_FIRST_LINE = rb"[-+.\dinfae,]*( +\d+:[-+.\dinfae]+| *\n|$)|$"
_RANGES = 4096  # of source rows, whose entries are counted before they are partitioned
_ENTRIES_AT_A_TIME = 1 << 15
_BYTES_PER_ENTRY_AS_STRINGS = 250


def export_libsvm(
    dataset: Dataset, path: str, *, memory: str = "1GB", force: bool, listener: Listener
) -> None:
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
    listener : Listener
    """
    target = Path(path)
    refuse_other_ending(target, "libsvm text")
    check_output(target, "libsvm text", lambda existing: begins_with(existing, _FIRST_LINE), force=force)
    n_chunk_entries = int(np.diff(dataset.entry_start).max(initial=0))
    needs = {
        "one chunk": n_chunk_entries * (2 * dataset.entry_bytes + 8),
        "text of some rows": min(n_chunk_entries, _ENTRIES_AT_A_TIME) * _BYTES_PER_ENTRY_AS_STRINGS,
        "original feature numbers": LOOKUP_BYTES * dataset.n_features
        if dataset.manifest.get("compact")
        else 0,
        "rows being put in order": 1 << 23,
    }
    left = require(parse_size(memory), needs) + (1 << 23)
    if dataset.weighted:
        listener.warning("the rows' weights are left out: libsvm text has no place for them")
    if dataset.scaling.changes_values:
        listener.warning(f"values are written as they are stored, after {dataset.scaling.options()}")
    index_dtype = np.dtype(np.int64) if dataset.manifest.get("compact") else dataset.index_dtype
    layout = Layout((np.dtype(np.int64), np.dtype(np.float64)), (index_dtype, dataset.value_dtype))
    with scratch_directory(target.parent, "export") as scratch:
        run = scratch / "run"
        ends = _range_ends(dataset, layout, left // 2)
        with PartitionWriter(run, layout, len(ends), left // 2) as writer:
            _partition_rows(dataset, writer, Ranges(ends), listener)
        with (
            replacing(target) as (partial,),
            open(partial, "wb") as file,
            PartitionReader([run], layout) as reader,
        ):
            for bucket in range(len(ends)):
                rows = reader.read(bucket)
                rows = rows.take(np.argsort(rows.fields[0]))
                assert rows.indptr is not None
                for start, stop in blocks_of(layout, rows.indptr, _ENTRIES_AT_A_TIME * layout.item_bytes):
                    part = rows.slice(start, stop)
                    assert part.indptr is not None
                    feature, value = part.items
                    write_rows(file, part.fields[1], part.indptr, feature, value, dataset.index_base)


def _range_ends(dataset: Dataset, layout: Layout, bucket_bytes: int) -> list[int]:
    """Return the ends of ranges of source rows that fit in `bucket_bytes`, by the table of rows."""
    width = max(1, -(-dataset.n_rows // _RANGES))
    size = np.zeros(-(-dataset.n_rows // width), dtype=np.int64)
    for chunk in range(dataset.n_chunks):
        source, n_entries = dataset.read_rows(chunk, ("source", "n_entries"))
        # in memory twice: as they are read, and in order
        row_bytes = 2 * (layout.record_bytes + layout.item_bytes * n_entries.astype(np.int64)) + 40
        np.add.at(size, source // width, row_bytes)
    ends = []
    held = 0
    for number, n_bytes in enumerate(size.tolist()):
        if held and held + n_bytes > bucket_bytes:
            ends.append(number * width)
            held = 0
        held += n_bytes
    return [*ends, dataset.n_rows]


def _partition_rows(dataset: Dataset, writer: PartitionWriter, ranges: Ranges, listener: Listener) -> None:
    """Partition all rows by ranges of source rows; features of a compact dataset get their original numbers."""
    indices = indices_of(dataset)
    for chunk in range(dataset.n_chunks):
        data = dataset.read(chunk)
        feature = data.feature
        value = data.value
        if indices.kept is not None:
            feature, value = sorted_rows(data.indptr, indices.of(feature) - indices.base, value)
        rows = Records([data.source, data.label], data.indptr, (feature, value))
        writer.append(ranges.number(data.source), rows)
        listener.progress(Progress("export", int(dataset.row_start[chunk + 1]), dataset.n_rows, "rows"))
