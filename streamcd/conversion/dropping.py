"""Rows dropped from the beginning of a dataset: whole batches unread, the one that the first row left is in written anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import require
from ..core.progress import Listener, Progress
from ..core.storage import Location
from ..dataset.column_layout import FOLDER
from ..dataset.dataset import Dataset
from ..dataset.growth import Batch, moved, split, without_rows_before
from ..dataset.kept_columns import KEPT_FILE
from ..dataset.schema import row_dtype
from ..dataset.source_indices import LOOKUP_BYTES, indices_of
from ..dataset.string_files import read_integers
from ..dataset.writer import DatasetWriter, PartWriter
from ..models.encoding import encoding_of
from .feature_statistics import LabelCounts, Summing, read_statistics, write_features
from .growing import Growth, changing, open_to_change
from .rows import Rows

_LEAST_BYTES = 16_000_000


def drop_rows_before(place: Location, first_row: int, memory: int, listener: Listener) -> None:
    """Drop the rows of a dataset before one, by its number in the source, in one step.

    Raises `UsageError` where none would be left.
    """
    dataset = open_to_change(place)
    end = dataset.first_row + dataset.n_rows
    if first_row <= dataset.first_row:
        listener.message(f"nothing was dropped: {place} begins with row {dataset.first_row:,}")
        return
    if first_row >= end:
        raise UsageError(
            f"--drop-before {first_row}: expected a row of {place} before {end:,}, its end, found a later one: none would "
            "be left"
        )
    with changing(dataset, listener) as (work, growth):
        batches = split(dataset.manifest)
        starts = dataset.first_row + np.cumsum([0, *(batch.n_rows for batch in batches)])
        number = int(np.searchsorted(starts, first_row, side="right")) - 1
        left = batches[number:]
        if starts[number] < first_row:
            rest = _Rest(dataset, number, first_row, work, listener)
            left[0] = rest.write(memory, growth)
        growth.fields = without_rows_before(dataset.manifest, left, first_row)
    if isinstance(place, Path) and (place / FOLDER).exists():
        shutil.rmtree(place / FOLDER)  # of rows that are gone
    listener.message(f"dropped the rows before {first_row:,}; {end - first_row:,} are left")


@dataclass
class _Rest:
    """The rows of a batch from one on, written to ``work / "dataset"``."""

    dataset: Dataset
    number: int  # of the batch
    first_row: int
    work: Path
    listener: Listener

    def write(self, memory: int, growth: Growth) -> Batch:
        dataset, manifest = self.dataset, self.dataset.manifest
        largest = int(np.diff(dataset.entry_start).max(initial=0)) * dataset.entry_bytes
        needs = {
            "chunks being written": 12 * max(manifest["chunk_bytes"], largest),
            "rows being read": _LEAST_BYTES,
            "the client of URLs": dataset.client_bytes,
            "indices of the features": LOOKUP_BYTES * dataset.n_features if manifest.get("compact") else 0,
        }
        room = require(memory, needs)
        before, batch = split(manifest)[: self.number], split(manifest)[self.number]
        first_part = sum(len(one.parts) for one in before)
        mine = np.flatnonzero(
            (dataset.chunk_part >= first_part) & (dataset.chunk_part < first_part + len(batch.parts))
        )
        form: dict[str, Any] = {
            "index_dtype": dataset.index_dtype,
            "value_dtype": dataset.value_dtype,
            "compression": "lz4",
        }
        writer = DatasetWriter(self.work / "dataset", weighted=dataset.weighted, **form)
        rows = row_dtype(dataset.first_row + dataset.n_rows)
        labels = self._write_rows(
            writer, mine, partial(PartWriter, writer.path, row_dtype=rows, **form), room
        )
        kept = dataset.files(KEPT_FILE)
        if kept:
            n_before = dataset.first_row + sum(one.n_rows for one in before)
            writer.write_rest_of_kept(kept[self.number], self.first_row - n_before)
        made = writer.close(**(labels.target_range() if dataset.has_targets else labels.manifest()))
        (writer.path / "manifest.json").unlink()
        found = moved(json.loads(json.dumps(made)), growth.folder)
        found.record["when"] = batch.record.get("when", "")
        found.record["figures"]["missing_values"] = self._missing_values(batch)
        return found

    def _missing_values(self, batch: Batch) -> dict[str, int | None] | None:
        """Count the missing values that are left in every column, by the features that mark them; None where none do."""
        before, encoding = batch.record["figures"].get("missing_values"), encoding_of(self.dataset)
        if before is None or encoding is None:
            return None
        path = self.dataset.files("features.parquet")[self.number]
        in_batch = dict(
            zip(read_integers([path], "feature"), read_integers([path], "n_entries"), strict=True)
        )
        left: dict[int, int] = {}
        for block in read_statistics(self._statistics):
            left |= zip(block["feature"].tolist(), block["n_entries"].tolist(), strict=True)
        marks = {encoding.columns[n].name: feature for n, feature in encoding.indicator_features().items()}
        # a feature that was added later marks none of the values before
        marked = {name for name, feature in marks.items() if in_batch.get(feature, 0) == before.get(name, 0)}
        return {
            name: left.get(marks[name], 0) if name in marked and count else count and None
            for name, count in before.items()
        }

    @property
    def _statistics(self) -> Path:
        """The file of the statistics of the features of the rows that are left."""
        return self.work / "sums-rest" / "statistics.all"

    def _write_rows(
        self, writer: DatasetWriter, mine: np.ndarray, part_writer: Callable[..., PartWriter], room: int
    ) -> LabelCounts:
        """Write the rows and the statistics of their features; returns their labels."""
        dataset, shard_bytes = self.dataset, self.dataset.manifest["shard_bytes"]
        (self.work / "sums-rest").mkdir()
        summing = Summing(self.work / "sums-rest", dataset.n_features, room // 2)
        sums, labels = summing.begin(0), LabelCounts(None if dataset.has_targets else {})
        part, number, n_rows = None, 0, 0
        for chunk in self._chunks(mine):
            if part is None:
                part = part_writer(number, self.first_row + n_rows)
            source = chunk.source_row + dataset.first_row
            part.write_chunk(source, chunk.label, chunk.weight, chunk.indptr, chunk.index, chunk.value)
            sums.add(number, chunk.index, chunk.value)
            labels.add(chunk.label)
            n_rows += chunk.n_rows
            if part.n_entries * dataset.entry_bytes >= shard_bytes:
                writer.add_part(part.close(), part.chunk_table, part.row_norms)
                part, number = None, number + 1
        if part is not None:
            writer.add_part(part.close(), part.chunk_table, part.row_norms)
        sums.close()
        summing.join(n_rows, self._statistics)
        write_features(writer, self._statistics, encoding_of(dataset), indices_of(dataset))
        return labels

    def _chunks(self, mine: np.ndarray) -> Iterator[Rows]:
        """Yield the rows that are left, in chunks that are no larger than others."""
        dataset, chunk_bytes = self.dataset, self.dataset.manifest["chunk_bytes"]
        waiting: list[Rows] = []
        n_bytes = 0
        for chunk in mine.tolist():
            data = dataset.read(chunk)
            rows = Rows(data.source, data.label, data.weight, data.indptr, data.feature, data.value)
            left = rows.some(data.source >= self.first_row - dataset.first_row)
            size = left.n_entries * dataset.entry_bytes
            if waiting and n_bytes + size > chunk_bytes:
                yield Rows.joined(waiting)
                waiting, n_bytes = [], 0
            if left.n_rows:
                waiting.append(left)
                n_bytes += size
            self.listener.progress(
                Progress("drop", int(dataset.row_start[chunk + 1]), dataset.n_rows, "rows")
            )
        if waiting:
            yield Rows.joined(waiting)
