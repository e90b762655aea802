"""Parsing tasks: pieces of a source to runs of rows, with counts, labels, and the strings that occur."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError
from ..core.process_pool import Tell
from ..core.storage import Url, location
from ..core.threads import ahead
from ..dataset.kept_columns import KeptWriter
from ..dataset.source_indices import SourceIndices
from ..models.string_table import StringTable
from .encoded_rows import row_batches
from .external_shuffle import RunFormat, RunWriter
from .feature_statistics import DistinctFeatures, LabelCounts
from .numbering import save_strings
from .plan import Plan
from .rows import Counts, Rows
from .sources import Source


def stamp_of(path: str) -> tuple[Any, ...] | None:
    """Return the bytes of a file or URL, and what changes when its content does; None for no regular file, or none."""
    if isinstance(url := location(path), Url):
        return url.status()
    if not os.path.isfile(path):
        return None
    found = os.stat(path)
    return found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns


class Task(NamedTuple):
    """Pieces of the source that one worker parses."""

    number: int
    pieces: Sequence[Any]
    first_row: int = 0
    first_line: int = 0
    n_rows: int | None = None  # None where they were not counted


class Weights(NamedTuple):
    """Weights of all rows: the file that they came from, and one with numbers of 8 bytes."""

    name: str
    path: Path
    n_weights: int

    def of(self, rows: Rows, task: Task) -> np.ndarray:
        weight = np.fromfile(self.path, count=rows.n_rows, offset=8 * int(rows.source_row[0]))
        if weight.size < rows.n_rows:
            # more rows than were counted, or than weights
            raise self.refusal("more") if task.n_rows is None else changed(task.pieces[0].path)
        return weight

    def refusal(self, n_rows: int | str) -> DataError:
        """Make the error of another number of rows."""
        return DataError(
            f"{self.name}: expected a weight for every row, found {self.n_weights:,} weights and {n_rows} rows; give one "
            "number a line"
        )


@dataclass(frozen=True)
class Parsing:
    """Parameters of parsing that all workers share."""

    form: RunFormat
    plan: Plan
    source: Source
    scale: str
    has_targets: bool  # labels are numbers to predict
    dictionaries: Path | None  # a directory for the strings of each task
    distinct: Path | None  # a directory for the indices that occur in each task
    # of features that are known: entries of others are left out
    indices: SourceIndices | None
    weights: Weights | None
    kept: Path | None  # a directory for the columns of each task that are kept beside the rows
    hold: bool  # all rows in memory if they fit, where there is one task
    tell: Tell | None  # takes the bytes read, if the whole source is one task


class Parsed(NamedTuple):
    """Results of a task, or of all tasks."""

    counts: Counts
    labels: LabelCounts
    held: tuple[Rows, np.ndarray] | None  # all rows in memory, and their final order


def changed(path: str) -> DataError:
    """Make the error of a source that changed while it was read."""
    return DataError(f"{path}: changed while it was read; convert it again")


def parse_task(parsing: Parsing, task: Task) -> Parsed:
    """Write the rows of some ranges as a run; if they are the whole source, keep them in memory if they fit."""
    counts, plan = Counts(), parsing.plan
    labels = LabelCounts(None if parsing.has_targets else {})
    distinct = None if parsing.distinct is None else DistinctFeatures(plan.map_bytes)
    n_unknown = 0
    strings = None if parsing.dictionaries is None else StringTable(plan.map_bytes)
    kept = None if parsing.kept is None else KeptWriter(parsing.kept / f"{task.number:07d}.parquet")
    run = RunWriter(parsing.form, task.number, plan.sort_bytes)
    batches = row_batches(parsing.source, task.pieces, task.first_row, task.first_line, strings)
    # a program's own data may have to be read by the thread that made it
    for batch in batches if parsing.source.in_memory else ahead(batches):
        counts, rows = batch.counts, batch.rows
        if parsing.weights is not None:
            rows = replace(rows, weight=parsing.weights.of(rows, task))
        if kept is not None:
            kept.append(batch.kept)
        labels.add(rows.label)
        if distinct is not None:
            distinct.add(rows.index)
        elif parsing.indices is not None:
            n_before, rows = rows.n_entries, rows.with_entries(parsing.indices.features(rows.index) >= 0)
            n_unknown += n_before - rows.n_entries
        run.append(rows, counts.is_wide)
        if parsing.tell is not None:
            parsing.tell(batch.bytes_read)
    # where divisors of features fit beside them
    hold = parsing.scale == "none" or 8 * (counts.max_index + 1) <= plan.statistics_bytes
    held = run.close(hold=parsing.hold and hold)
    if kept is not None:
        kept.close()
    if strings is not None and parsing.dictionaries is not None:
        save_strings(strings, parsing.dictionaries, task.number)
    if distinct is not None and parsing.distinct is not None:
        np.save(parsing.distinct / f"{task.number:07d}.npy", distinct.merge())
    if task.n_rows not in (None, counts.n_rows):
        raise changed(task.pieces[0].path)
    counts = replace(counts, n_entries=counts.n_entries - n_unknown, n_ignored=counts.n_ignored + n_unknown)
    return Parsed(counts, labels, held)


def merge_distinct(directory: Path, n_bytes: int, out: Path) -> int:
    """Write the indices that occur in any task; returns their number."""
    distinct = DistinctFeatures(n_bytes)
    for path in sorted(directory.iterdir()):
        distinct.add(np.load(path))
    merged = distinct.merge()
    np.save(out, merged)
    return int(merged.size)
