"""Models as files of other formats: ONNX, all weights as CSV or Parquet, and JSON that has all a prediction needs."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from ..core.atomic_files import begins_with, check_output, replacing
from ..core.errors import ModelError, UsageError
from ..core.progress import Listener, ends_progress
from ..core.storage import local_path
from ..kernels.loss_table import CLASSES, form_of
from .liblinear import export_liblinear
from .model import Model
from .named_weights import ClassWeights, weight_blocks
from .support import describe_support

JSON_FORMAT = "streamcd-linear-model"
"""Value of ``format`` in the JSON of a model."""

_STRINGS = 1 << 14  # written at a time


class _Format(NamedTuple):
    """A format of files, which end as it does."""

    is_kind: Callable[[Path], bool]
    kind: str  # of a file, in words
    write: Callable[[Model, Path], None]


@ends_progress
def export(
    model: Model,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    force: bool = False,
    listener: Listener | None = None,
) -> str:
    """Write a model as a file of another format, which appears whole or not at all.

    Parameters
    ----------
    model : Model
    path : path
        Ends in ``.onnx``, ``.csv``, ``.parquet`` or ``.json`` for these formats.
    format : {"liblinear", "onnx", "csv", "parquet", "json"}, optional
        By default that of the ending; LIBLINEAR's text for a name with none of these.
    force : bool
        Replace an existing file of the same format.
    listener : Listener, optional
        Told what the format leaves out.

    Returns
    -------
    str
        The format.

    Raises
    ------
    ModelError
        If the format cannot hold the model.
    UsageError
        If the ending is another format's, `path` exists, or a package is not installed.

    Examples
    --------
    >>> streamcd.export(streamcd.load_model("run"), "weights.csv", force=True)
    'csv'
    """
    place = local_path(path, "a model")
    form = format or _of_ending(place)
    if model.multilabel and form in ("liblinear", "onnx"):
        raise ModelError(
            f"{form} has one label a row, the model predicts any number of them; csv, parquet and json hold its weights"
        )
    if form == "liblinear":
        export_liblinear(model, place, listener or Listener(), force=force)
        return form
    if form not in _FORMATS:
        raise UsageError(f"format: expected one of liblinear, {', '.join(_FORMATS)}, found {form!r}")
    if place.suffix.lower() != f".{form}":
        raise UsageError(f"{place}: expected a name that ends in .{form} for the format {form}")
    kind = _FORMATS[form]
    check_output(place, kind.kind, kind.is_kind, force=force)
    with replacing(place) as partial:
        kind.write(model, partial)
    if form == "onnx":
        for warning in _lost_in_onnx(model):
            (listener or Listener()).warning(warning)
    return form


def _of_ending(path: Path) -> str:
    form = path.suffix.lower().removeprefix(".")
    return form if form in _FORMATS else "liblinear"


# ---------------------------------------------------------------------------------------------------------------------
# Tables of weights


def _write_csv(model: Model, path: Path) -> None:
    by_class = ClassWeights(model)
    with open(path, "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["index", "name", *by_class.columns])
        for index, names, weights in by_class.rows():
            numbers = [""] if index is None else index.tolist()
            lines.writerows(
                [n, name, *row] for n, name, row in zip(numbers, names, weights.tolist(), strict=True)
            )


def _write_parquet(model: Model, path: Path) -> None:
    from ..dataset.arrow_columns import null_numbers
    from ..dataset.schema import weight_schema
    from ..dataset.table_writer import TableWriter

    by_class = ClassWeights(model)
    writer = TableWriter(path, weight_schema(by_class.columns), "zstd")
    for index, names, weights in by_class.rows():
        columns = dict(zip(by_class.columns, weights.T, strict=True))
        writer.write(index=null_numbers(1) if index is None else index, name=names, **columns)
    writer.close()


def _is_weight_table(path: Path) -> bool:
    from ..dataset.parquet import has_column

    return has_column(path, "index") and has_column(path, "name")


# ---------------------------------------------------------------------------------------------------------------------
# JSON


def _write_json(model: Model, path: Path) -> None:
    """Write one object; its large arrays, last, in blocks."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(_described(model), ensure_ascii=False, allow_nan=False)[:-1])
        scales = model.scaling.scales
        file.write(',\n"scales": ')
        _write_array(file, [] if scales is None else [(0, scales)])
        if model.indices is not None:
            file.write(',\n"indices": ')
            _write_array(file, [(0, model.indices)])
        if model.encoding is not None:
            file.write(',\n"categories": ')
            _write_array(file, [(0, part) for part in _categories(model)])
            if model.encoding.documents is not None:
                file.write(',\n"documents": ')
                _write_array(file, [(0, model.encoding.documents)])
        file.write(',\n"weights": ')
        _write_array(file, weight_blocks(model.kept_weights, scales))
        file.write("}\n")


def _described(model: Model) -> dict[str, Any]:
    """Return all but large arrays."""
    assert model.tie_order is not None
    probabilities = None
    if model.has_probabilities:
        softmax = form_of(model.loss) == CLASSES
        probabilities = "softmax" if softmax else "sigmoid"
    return {
        "format": JSON_FORMAT,
        "version": 1,
        "loss": model.loss,
        "parameter": model.parameter,
        "method": model.method,
        "C": model.C,
        "l1": model.l1,
        "l2": model.l2,
        **describe_support(model, model.kept_weights),
        "n_features": model.n_features,
        "index_base": model.index_base,
        "classes": None if model.has_targets else model.label_numbers(),
        "code": model.code.tolist(),
        "multilabel": bool(model.multilabel),
        "tie_order": model.tie_order.tolist(),
        "bias": model.bias,
        "intercept": model.intercept.tolist(),
        "plane_norms": model.choice.plane_norms.tolist() if model.choice.is_twin else None,
        "probabilities": probabilities,
        "scale": model.scaling.scale,
        "normalize": model.scaling.normalize,
        "encoding": None if model.encoding is None else model.encoding.record(),
        "fingerprint": model.fingerprint,
        "versions": model.versions,
        "certificate": model.certificate,
    }


def _categories(model: Model) -> Iterator[list[str]]:
    """Yield the categories of all columns, in the order of their features."""
    encoding = model.encoding
    strings = None if encoding is None else encoding.categories
    n_strings = 0 if strings is None else strings.size
    for start in range(0, n_strings, _STRINGS):
        assert strings is not None
        yield [strings.text(k) for k in range(start, min(start + _STRINGS, n_strings))]


def _write_array(file: TextIO, blocks: Any) -> None:
    """Write the elements of blocks as one array, a line for each block."""
    separator = "["
    for _, block in blocks:
        items = block.tolist() if isinstance(block, np.ndarray) else block
        if items:
            file.write(separator + json.dumps(items, ensure_ascii=False, allow_nan=False)[1:-1])
            separator = ",\n"
    file.write("[]" if separator == "[" else "]")


def _write_onnx(model: Model, path: Path) -> None:
    from .onnx_graph import onnx_model

    path.write_bytes(onnx_model(model))


def _lost_in_onnx(model: Model) -> Iterator[str]:
    """Tell of a word that the graph cannot make from capitals: it lowers each character by itself."""
    from .text_encoder import tokens_of

    encoding = model.encoding
    if encoding is None:
        return
    for number, column in encoding.text:
        word = next((text for text in tokens_of(encoding, number).texts if "ς" in text), None)
        if word is not None:
            yield (
                f"column {column.name!r} has words with ς, such as {word!r}: ONNX makes σ of every capital Σ, so such words "
                "in capitals are not found there; give it texts in lower case (Python's str.lower)"
            )


_FORMATS = {
    "onnx": _Format(lambda path: begins_with(path, rb"\x08[\x01-\x20]"), "an ONNX model", _write_onnx),
    "csv": _Format(lambda path: begins_with(path, rb"index,name,"), "a CSV file of weights", _write_csv),
    "parquet": _Format(_is_weight_table, "a Parquet file of weights", _write_parquet),
    "json": _Format(
        lambda path: begins_with(path, rf'\{{"format": "{JSON_FORMAT}"'.encode()),
        "the JSON of a model",
        _write_json,
    ),
}
