"""Output of predictions: tables, and the files of Parquet, CSV or text that they are written to."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa

from ..core.errors import UsageError
from ..core.files import begins_with
from ..core.memory_budget import format_size
from ..dataset.arrow_columns import has_column
from ..dataset.kept_columns import InOrder
from ..dataset.writer import TableWriter
from ..models.model import Model
from .scorer import row_bytes

Output = str | os.PathLike[str] | TextIO

FORMATS = {
    ".parquet": "a Parquet file of predictions",
    ".csv": "a CSV file of predictions",
    ".txt": "a text file of predictions",
}
"""Formats, by the endings of names of files, with names for refusals."""

_GROUP_ROWS = 1 << 16
"""Rows of a row group of Parquet, at most."""

_FOOTER_BYTES = 900
"""Bytes that pyarrow keeps for each column of a row group until the file is closed; measured: 860 to 890."""


def output_format(out: Output) -> str:
    """Return one of `FORMATS` by the name of a file; streams get text."""
    if not isinstance(out, str | os.PathLike):
        if not hasattr(out, "write"):
            raise UsageError(f"out: expected a path or a text file, found {type(out).__name__}")
        return ".txt"
    form = Path(out).suffix.lower()
    if form not in FORMATS:
        raise UsageError(
            f"{out}: expected a name in .parquet, .csv or .txt: predictions are written in these formats"
        )
    return form


def is_output(path: Path, form: str) -> bool:
    """Return whether a file is of a format's kind."""
    if form == ".parquet":
        return has_column(path, "prediction")
    csv_header = rb'([^\n]+,)?"?source"?,"?prediction"?[,\n\r]'
    return begins_with(path, csv_header if form == ".csv" else rb"(labels|[-+]?[\d.]\S*)[ \n]")


@dataclass(frozen=True)
class PredictionColumns:
    """Columns of the predictions of a model; `identity` names the one that identifies rows, empty without one."""

    model: Model
    decision: bool
    proba: bool
    identity: str = ""

    @cached_property
    def _labels(self) -> tuple[pa.Array, list[str], list[str]]:
        """Labels, and names of the columns of decisions and of probabilities."""
        several = self.model.n_classes > 2
        texts = self.model.label_texts() if several or self.proba else []
        decisions = [f"decision_{label}" for label in texts] if several else ["decision"]
        return pa.array(self.model.label_numbers()), decisions, [f"probability_{label}" for label in texts]

    def table(self, first_row: int, decisions: np.ndarray, identities: InOrder | None = None) -> pa.Table:
        """Make a table of rows that follow each other in the source, identified by the next of `identities`."""
        model = self.model
        columns: dict[str, Any] = {}
        if self.identity and identities is not None:
            columns[self.identity] = identities.take(len(decisions))
        columns["source"] = np.arange(first_row, first_row + len(decisions))
        if model.has_targets:
            return pa.table(columns | {"prediction": decisions[:, 0]})
        labels, of_decisions, of_probabilities = self._labels
        columns["prediction"] = labels.take(pa.array(model.decoder.predicted_classes(decisions)))
        if self.decision:
            columns |= zip(of_decisions, model.decoder.preferences(decisions).T, strict=True)
        if self.proba:
            columns |= zip(of_probabilities, np.exp(model.log_probabilities(decisions)).T, strict=True)
        return pa.table(columns)


def write_text(file: TextIO, tables: Iterable[pa.Table], labels: list[str]) -> None:
    """Write lines of the label, and the numbers asked for; those of probabilities begin with a line ``labels …``.

    These are in the order of the columns, as of LIBLINEAR's ``predict -b 1``.
    """
    if labels:
        file.write(" ".join(["labels", *labels]) + "\n")
    for table in tables:
        cells = [map(str, column.to_numpy().tolist()) for column in table.columns[1:]]
        file.write("".join([" ".join(row) + "\n" for row in zip(*cells, strict=True)]))


def write_csv(path: Path, tables: Iterable[pa.Table]) -> None:
    """Write a CSV file: a header, in quotes where it needs them, and all columns as Arrow writes them."""
    from pyarrow.csv import CSVWriter, WriteOptions

    writer = None
    with open(path, "w", encoding="utf-8", newline="") as file:
        for table in tables:
            if writer is None:
                csv.writer(file, lineterminator="\n").writerow(table.column_names)
                file.flush()
                writer = CSVWriter(
                    file.buffer, table.schema, write_options=WriteOptions(include_header=False)
                )
            writer.write(table)
        if writer is not None:
            writer.close()


def write_parquet(path: Path, tables: Iterable[pa.Table], model: Model, memory: int) -> None:
    """Write a Parquet file; half of the memory is for a row group, half for the footer, which may not be longer."""
    group_rows = max(min(memory // 2 // row_bytes(model), _GROUP_ROWS), 1)
    writer = None
    waiting = None
    n_rows = 0  # written
    for table in chain(tables, [None]):
        if table is not None:
            waiting = table if waiting is None else pa.concat_tables([waiting, table])
        assert waiting is not None, "data without rows are refused"
        # all groups but the last have so many rows
        while waiting.num_rows >= (group_rows if table is not None else 1):
            group = waiting.slice(0, group_rows)
            waiting = waiting.slice(group_rows)
            footer_bytes = _FOOTER_BYTES * group.num_columns
            if (n_rows // group_rows + 1) * footer_bytes > memory // 2:
                raise UsageError(
                    f"--memory is too small: {format_size(memory // 2)} for the footer of the predictions hold "
                    f"{n_rows:,} rows of {group.num_columns:,} columns, and there are more; give a larger --memory"
                )
            n_rows += group.num_rows
            (batch,) = group.combine_chunks().to_batches()
            writer = writer or TableWriter(path, batch.schema, "zstd")
            writer.write(batch)
    assert writer is not None
    writer.close()
