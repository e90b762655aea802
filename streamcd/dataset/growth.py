"""Manifest of a dataset that grows by a batch of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ..core.metadata import WRITER
from .manifests import batches_of
from .writer import data_digest

FOLDER_OF_BATCH = "added-{:04d}"
"""Name of the folder of a batch."""

_FIGURES = ("n_entries", "classes", "class_counts", "targets", "row_norms")
_FILES = ("chunks", "features", "kept")
_SEALED = ("format", "format_version", "fingerprint", WRITER)
_SUMS = ("n_explicit_zeros", "n_underflows", "n_ignored")

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Batch:
    """A batch of rows: its parts, and what `manifests.RowBatch` says of it."""

    record: dict[str, Any]
    parts: Sequence[Mapping[str, Any]]

    @property
    def n_rows(self) -> int:
        return int(self.record["n_rows"])


def split(manifest: Manifest) -> list[Batch]:
    """Return the batches of a dataset, each with its figures."""
    found, first_part = [], 0
    for number, record in enumerate(batches_of(manifest)):
        parts = manifest["parts"][first_part : first_part + record["n_parts"]]
        if not number:
            record["figures"] = manifest.get("first") or _figures(manifest)
        found.append(Batch(record, parts))
        first_part += record["n_parts"]
    return found


def _figures(manifest: Manifest) -> dict[str, Any]:
    """Return the figures of the rows of a dataset to which nothing was appended."""
    figures = {name: manifest.get(name) for name in _FIGURES}
    if manifest.get("table"):
        figures["missing_values"] = {use["column"]: use["missing"] for use in manifest["table"]}
    return figures


def moved(manifest: Manifest, folder: str) -> Batch:
    """Return the only batch of a dataset, which becomes one of another, in a folder there."""
    (batch,) = split(manifest)
    files = {name: batch.record[name] for name in _FILES if batch.record[name] is not None}
    record = {**batch.record, **{name: {**file, "folder": folder} for name, file in files.items()}}
    return Batch(record, [{**part, "folder": folder} for part in batch.parts])


def with_batch(manifest: Manifest, added: Manifest, batch: Batch) -> dict[str, Any]:
    """Return the fields of the manifest of a dataset to which a batch, made as the dataset `added`, was appended."""
    sums = {name: manifest.get(name, 0) + added.get(name, 0) for name in _SUMS}
    changes = {name: added[name] for name in ("class_names", "label_kind") if name in added}
    more: dict[str, Any] = {"weighted": manifest["weighted"] or added["weighted"]}
    more["source"] = [*manifest.get("source", ()), *added.get("source", ())]
    return {**_joined({**manifest, **more}, [*split(manifest), batch]), **changes, **sums}


def _with_missing(table: Sequence[Manifest], figures: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Return the uses of a table's columns with the missing values of all batches; None where those of one are not known."""
    of_batches = [one.get("missing_values") for one in figures]

    def missing(column: str) -> int | None:
        counts = [None if known is None else known.get(column, 0) for known in of_batches]
        found = [count for count in counts if count is not None]
        return sum(found) if len(found) == len(counts) else None

    return [{**use, "missing": missing(use["column"])} for use in table]


def _joined(manifest: Manifest, batches: Sequence[Batch]) -> dict[str, Any]:
    """Return the fields of a manifest, with these batches and what follows from them."""
    fields = {name: value for name, value in manifest.items() if name not in _SEALED}
    first, *later = batches
    parts = [dict(part) for batch in batches for part in batch.parts]
    figures = [batch.record["figures"] for batch in batches]
    n_rows = [batch.n_rows for batch in batches]
    fields |= {
        **{name: first.record[name] for name in (*_FILES, "when") if first.record.get(name)},
        "n_rows": sum(n_rows),
        "n_entries": sum(one["n_entries"] for one in figures),
        **_joined_labels(figures),
        "row_norms": _joined_norms([one["row_norms"] for one in figures], n_rows),
        **({"table": _with_missing(fields["table"], figures)} if fields.get("table") else {}),
        "parts": parts,
        "data_digest": data_digest(parts),
        "first": dict(figures[0]),
        "later": [_later(batch) for batch in later],
    }
    return fields


def _later(batch: Batch) -> dict[str, Any]:
    record = {**batch.record, "n_parts": len(batch.parts)}
    return {name: value for name, value in record.items() if value not in (None, "")}


def _joined_labels(figures: Sequence[Manifest]) -> dict[str, Any]:
    if figures[0].get("targets") is not None:
        ranges = [one["targets"] for one in figures]
        return {
            "targets": {"min": min(one["min"] for one in ranges), "max": max(one["max"] for one in ranges)}
        }
    if any(one["classes"] is None for one in figures):
        return {"classes": None, "class_counts": None}
    counts: dict[float, int] = {}
    for one in figures:
        for label, count in zip(one["classes"], one["class_counts"], strict=True):
            counts[label] = counts.get(label, 0) + count
    return _classes(counts)


def _classes(counts: Mapping[float, int]) -> dict[str, Any]:
    classes = sorted(counts)
    return {"classes": classes, "class_counts": [counts[label] for label in classes]}


def _joined_norms(norms: Sequence[Manifest | None], n_rows: Iterable[int]) -> dict[str, Any] | None:
    found = [one for one in norms if one is not None]
    if len(found) < len(norms):
        return None
    least = [one["min"] for one in found if one["min"] is not None]
    squares = [one["mean_square"] for one in found]
    mean_square = None
    if None not in squares:
        rows = list(n_rows)
        mean_square = sum(square * n for square, n in zip(squares, rows, strict=True)) / max(sum(rows), 1)
        mean_square = mean_square if isfinite(mean_square) else None
    return {
        "min": min(least, default=None),
        "max": max(one["max"] for one in found),
        "mean_square": mean_square,
        "n_empty": sum(one["n_empty"] for one in found),
    }
