"""Models as files of other formats: LIBLINEAR's text, and JSON that has all a prediction needs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.files import begins_with, check_output, replacing
from ..core.options import ListenerOptions, ModelOptions, replaces, takes
from ..core.storage import local_path
from ..kernels.loss_table import CLASSES, LOSSES
from .liblinear import export_liblinear
from .model import Model
from .named_weights import weight_blocks
from .stored import load_model

JSON_FORMAT = "streamcd-linear-model"
"""Value of ``format`` in the JSON of a model."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ListenerOptions, ModelOptions):
    """Options of `export`."""

    force: bool = replaces("file of the same format")


@takes(ExportOptions)
def export(
    model: Model | str | os.PathLike[str],
    path: str | os.PathLike[str],
    format: str | None,
    asked: ExportOptions,
) -> str:
    """Write a model as a file of another format, which appears whole or not at all.

    Parameters
    ----------
    model : Model or path
        A path names a model or a run.
    path : path
    format : {"liblinear", "json"}, optional
        By default that of the ending: ``.json``, or ``.txt``, ``.model`` or none for LIBLINEAR's text.
    {options}

    Returns
    -------
    str
        The format.

    Raises
    ------
    ModelError
        If the format cannot hold the model.
    UsageError
        If the ending is another format's, or `path` exists.

    Examples
    --------
    >>> streamcd.export("run", "model.json", force=True)
    'json'
    """
    place = local_path(path, "a model")
    form = format or _FORMATS.get(place.suffix.lower(), "")
    if form not in ("liblinear", "json") or (form == "json") != (place.suffix.lower() == ".json"):
        raise UsageError(
            f"{place}: expected .json, or .txt or .model for LIBLINEAR's text, found {format or place.suffix!r}"
        )
    model = load_model(model, asked.C, l1=asked.l1)
    if form == "liblinear":
        export_liblinear(model, place, asked.listener, force=asked.force)
        return form
    is_kind = rf'\{{"format": "{JSON_FORMAT}"'.encode()
    check_output(place, "the JSON of a model", lambda path: begins_with(path, is_kind), force=asked.force)
    with replacing(place) as (partial,):
        _write_json(model, partial)
    return form


_FORMATS = {".json": "json", ".txt": "liblinear", ".model": "liblinear", "": "liblinear"}


# ---------------------------------------------------------------------------------------------------------------------
# JSON


def _write_json(model: Model, path: Path) -> None:
    """Write one object; its large arrays, last, in blocks."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(_described(model), ensure_ascii=False, allow_nan=False)[:-1])
        scales = model.scaling.scales
        arrays: dict[str, Iterable[tuple[int, Any]]] = {"scales": [] if scales is None else [(0, scales)]}
        if model.indices is not None:
            arrays["indices"] = [(0, model.indices)]
        if model.encoding is not None:
            arrays["categories"] = _categories(model.encoding.categories)
        arrays["weights"] = weight_blocks(model.matrix, scales)
        for name, blocks in arrays.items():
            file.write(f',\n"{name}": [')
            separator = ""
            for _, block in blocks:
                items = block.tolist() if isinstance(block, np.ndarray) else block
                if items:
                    file.write(separator + json.dumps(items, ensure_ascii=False, allow_nan=False)[1:-1])
                    separator = ",\n"
            file.write("]")
        file.write("}\n")


def _categories(strings: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the categories of all columns, in the order of their features."""
    for start in range(0, strings.size, 1 << 14):
        part = strings.slice(start, min(start + (1 << 14), strings.size))
        yield start, part.to_arrow().to_pylist()


def _described(model: Model) -> dict[str, Any]:
    """Return all but large arrays."""
    probabilities = None
    if model.has_probabilities:
        softmax = LOSSES[model.loss].form == CLASSES
        probabilities = "softmax" if softmax else "sigmoid"
    fields = ("loss", "parameter", "method", "C", "l1", "l2", "n_features", "index_base", "bias")
    return {
        "format": JSON_FORMAT,
        "version": 1,
        **{name: getattr(model, name) for name in fields},
        **model.support(),
        "classes": None if model.has_targets else model.record.labels,
        "code": model.code.tolist(),
        "tie_order": model.tie_order.tolist(),
        "intercept": model.intercept.tolist(),
        "plane_norms": model.decoder.plane_norms.tolist() if model.decoder.is_twin else None,
        "probabilities": probabilities,
        "scale": model.scaling.scale,
        "normalize": model.scaling.normalize,
        "encoding": None if model.encoding is None else model.encoding.but(categories=None).record(),
        **{name: getattr(model, name) for name in ("fingerprint", "versions", "certificate")},
    }
