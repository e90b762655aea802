"""Output of predictions: columns of a Parquet file or of CSV, or lines of text."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ..core.errors import UsageError
from ..core.files import begins_with
from ..dataset.arrow_columns import has_column
from ..models.model import Model
from ..models.scoring import ClassChoice

Output = str | os.PathLike[str] | TextIO

KINDS = {
    "parquet": "a Parquet file of predictions",
    "csv": "a CSV file of predictions",
    "text": "a text file of predictions",
}
"""Names of the files by format, for refusals."""

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".txt": "text"}


def output_format(out: Output) -> str:
    """Return ``"parquet"``, ``"csv"`` or ``"text"`` by the name of a file; streams get text."""
    if not isinstance(out, str | os.PathLike):
        if not hasattr(out, "write"):
            raise UsageError(f"out: expected a path or a text file, found {type(out).__name__}")
        return "text"
    form = _FORMATS.get(Path(out).suffix.lower())
    if form is None:
        raise UsageError(
            f"{out}: expected a name in .parquet, .csv or .txt: predictions are written in these formats"
        )
    return form


def is_output(path: Path, form: str) -> bool:
    """Return whether a file is of a format's kind."""
    if form == "parquet":
        return has_column(path, "prediction")
    return begins_with(
        path, rb"([^\n]+,)?source,prediction[,\n\r]" if form == "csv" else rb"(labels|[-+]?[\d.]\S*)[ \n]"
    )


@dataclass(frozen=True)
class PredictionColumns:
    """Columns of the predictions of a model."""

    model: Model
    decision: bool
    proba: bool
    identity: str = ""  # column that identifies rows; empty without one

    @property
    def _has_one_decision(self) -> bool:
        return self.model.n_classes <= 2

    @property
    def names(self) -> list[str]:
        """Names of the columns, that of the rows' identity first."""
        return [*([self.identity] if self.identity else []), *self.types()]

    def types(self) -> dict[str, Any]:
        """Name the columns of predictions, with the type of each."""
        model, labels = self.model, self.model.label_texts()
        if model.has_targets:
            return {"source": np.int64, "prediction": np.float64}
        names = []
        if self.decision:
            names += ["decision"] if self._has_one_decision else [f"decision_{label}" for label in labels]
        if self.proba:
            names += [f"probability_{label}" for label in labels]
        label_type: Any = np.int64 if model.label_kind == "integer" else np.float64
        if model.class_names is not None:
            label_type = str
        return {"source": np.int64, "prediction": label_type} | dict.fromkeys(names, np.float64)

    def values(self, start: int, decisions: np.ndarray) -> dict[str, Any]:
        """Make the columns of some rows, the first of which is row `start` of the source."""
        model, types = self.model, self.types()
        rows = np.arange(start, start + decisions.shape[0])
        columns: list[Any] = [rows, _predicted_labels(model, decisions, types["prediction"])]
        if self.decision and not model.has_targets:
            binary = self._has_one_decision
            scores = (
                positive_scores(model.choice, decisions)[:, np.newaxis] if binary else model.scores(decisions)
            )
            columns += [*scores.T]
        if self.proba:
            columns += [*np.exp(model.log_probabilities(decisions)).T]
        return dict(zip(types, columns, strict=True))


def write_lines(
    file: TextIO,
    columns: PredictionColumns,
    form: str,
    blocks: Iterable[tuple[np.ndarray, list[str] | None]],
) -> int:
    """Write CSV (a header, then all columns), or text: the label, and the numbers asked for; returns the number of rows.

    `blocks` have decisions, in the order of the source, and in CSV what identifies the rows, if anything does. Text with
    probabilities begins with a line ``labels …`` in the order of the columns, as LIBLINEAR's ``predict -b 1``.
    """
    model, is_csv, n_rows = columns.model, form == "csv", 0
    texts = model.label_texts()
    if is_csv:
        file.write(",".join(map(_csv_cell, columns.names)) + "\n")
        texts = [*map(_csv_cell, texts)]
    elif columns.proba:
        file.write(" ".join(["labels", *texts]) + "\n")
    for decisions, identity in blocks:
        values = columns.values(n_rows, decisions)
        if model.has_targets:
            cells = [[repr(number) for number in values["prediction"].tolist()]]
        else:
            cells = [[texts[place] for place in model.places(decisions).tolist()]]
        if is_csv:
            cells.insert(0, [str(row) for row in values["source"].tolist()])
        if is_csv and identity is not None:
            cells.insert(0, [*map(_csv_cell, identity)])
        cells += [[repr(number) for number in column.tolist()] for column in [*values.values()][2:]]
        separator = "," if is_csv else " "
        file.write("".join([separator.join(row) + "\n" for row in zip(*cells, strict=True)]))
        n_rows += decisions.shape[0]
    return n_rows


def _predicted_labels(model: Model, decisions: np.ndarray, label_type: Any) -> Any:
    if model.class_names is not None:
        texts = model.label_texts()
        return [texts[place] for place in model.places(decisions).tolist()]
    return model.labels(decisions).astype(label_type)


def _csv_cell(text: str) -> str:
    """Quote a text if CSV requires it."""
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text


def positive_scores(choice: ClassChoice, decisions: np.ndarray) -> np.ndarray:
    """Return the preference for the larger of two classes."""
    if decisions.shape[1] == 1:
        return decisions[:, 0]
    scores = choice.scores(decisions)
    both_infinite = np.isinf(scores).all(axis=1)  # of two twin planes with zero weights neither is nearer
    with np.errstate(invalid="ignore"):
        return np.where(both_infinite, 0.0, scores[:, 1] - scores[:, 0])
