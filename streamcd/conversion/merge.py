"""Datasets merged: their shards stand together in a new directory, as hard links where the file system has them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import sync_together
from ..core.errors import UsageError
from ..core.options import Checked, ListenerOptions, replaces, takes
from ..core.progress import Listener, Progress, ends_progress
from ..core.storage import local_path
from ..dataset.content import TableContent
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.feature_figures import joined_figures
from ..dataset.kept_columns import KEPT_FILE
from ..dataset.manifests import INDICES_FILE, ROW_LAYOUT
from ..dataset.parquet import read_table
from ..dataset.schema import MAX_CLASSES, ROW_CHUNKS
from ..dataset.source_indices import indices_of
from ..dataset.table_writer import TableWriter, write_manifest
from ..dataset.writer import DatasetWriter, data_digest
from ..models.encoding import CATEGORIES_FILE, encoding_of
from .staging import check_place, dataset_workplace

_TABLES = ("rows", "entries")
_SUMS = ("n_explicit_zeros", "n_underflows", "n_ignored")


@dataclass(frozen=True, kw_only=True)
class MergeOptions(ListenerOptions, Checked):
    """Options of `merge`."""

    force: bool = replaces("dataset, once the new one is complete")


@ends_progress
@takes(MergeOptions)
def merge(datasets: Sequence[str | Path | Dataset], dest: str | Path, asked: MergeOptions) -> Dataset:
    """Merge datasets of rows encoded alike: the first, and others converted ``like`` it, in the order of their rows.

    The new dataset has the files of their shards, as hard links where the file system has them, else copies; the datasets
    stay as they are. A run on one of them can be the start of a training on all (`start_from`). The column layout is made
    anew on demand.

    Parameters
    ----------
    datasets : sequence of paths or Datasets
        Directories, two or more.
    dest : path
        The new dataset's directory. It appears when it is complete.
    {options}

    Returns
    -------
    Dataset

    Raises
    ------
    UsageError
        If the datasets are not encoded alike, with the first difference, or `dest` exists.
    EnvironmentFailure
        If the disk is full, or another call writes the same dataset.

    Examples
    --------
    >>> tomorrow = streamcd.convert("reviews/test.txt", "tomorrow", like="data")
    >>> streamcd.merge(["data", "tomorrow"], "all").n_rows
    10000
    """
    place, listener = local_path(dest, "a dataset to be written"), asked.listener or Listener()
    if isinstance(datasets, str | os.PathLike):
        raise UsageError("expected a list of datasets to merge, found one path")
    found = [one if isinstance(one, Dataset) else open_dataset(one) for one in datasets]
    if len(found) < 2:
        raise UsageError(f"expected two datasets or more to merge, found {len(found)}")
    inputs = [local_path(one.path, "a dataset whose shards are linked") for one in found]
    for other in found[1:]:
        _check_alike(found[0], other)
    check_place(place, inputs, force=asked.force)
    with dataset_workplace(place, force=asked.force) as work:
        _write(found, work / "dataset", listener)
    return open_dataset(place)


def _check_alike(first: Dataset, other: Dataset) -> None:
    """Refuse rows that are encoded in another way than those of the first dataset, with the first difference."""
    a, b = first.manifest, other.manifest
    of_table = a.get("encoding") is not None
    names = ("index_base", "index_dtype", "value_dtype", "compact")
    of: dict[str, tuple[Any, ...]] = {
        **{name.replace("_", " "): (a.get(name), b.get(name)) for name in names},
        "scaling": (first.scaling, other.scaling),
        "kind of labels": tuple("targets" if one.has_targets else "classes" for one in (first, other)),
        "class names": (a.get("class_names"), b.get("class_names")),
        "columns kept beside the rows": (first.kept, other.kept),
        "encoding of the table": (a.get("encoding"), b.get("encoding")),
    }
    for name, file in (("categories", CATEGORIES_FILE), ("indices of the features", INDICES_FILE)):
        if first.files(file) and other.files(file):
            of[name] = tuple(_table_content(one, file) for one in (first, other))
    if of_table:
        of["number of features"] = (first.n_features, other.n_features)
    for name, (expected, found) in of.items():
        if expected != found:
            told = f": expected {_shown(expected)}, found {_shown(found)}"
            dtype = f" --dtype {expected}" if name == "value dtype" else ""
            raise UsageError(
                f"{other.path}: {name} differs from that of {first.path}{told}; convert it with --like {first.path}{dtype}"
            )


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _table_content(dataset: Dataset, file: str) -> str:
    record = dataset.manifest["categories" if file == CATEGORIES_FILE else "indices"]
    return str(record.get("content") or record["checksum"])


def _write(datasets: Sequence[Dataset], dest: Path, listener: Listener) -> None:
    """Write the dataset of all rows to a new directory."""
    first, manifests = datasets[0], [one.manifest for one in datasets]
    writer = DatasetWriter(
        dest,
        index_dtype=first.index_dtype,
        value_dtype=first.value_dtype,
        weighted=first.weighted,
        compression="auto",
    )
    parts = list(_linked_parts(datasets, dest, listener))
    fields = {key: value for key, value in first.manifest.items() if key not in _DERIVED}
    fields |= {
        "n_rows": sum(one.n_rows for one in datasets),
        "n_features": max(one.n_features for one in datasets),
        "n_entries": sum(one.n_entries for one in datasets),
        "weighted": any(one.weighted for one in datasets),
        **_labels(manifests),
        **{name: sum(manifest.get(name, 0) for manifest in manifests) for name in _SUMS},
        "source": [source for manifest in manifests for source in manifest.get("source", ())],
        "row_norms": _norms(manifests),
        "parts": parts,
        "data_digest": data_digest(parts),
        "chunks": _write_chunks(datasets, dest),
        "compression": " or ".join(dict.fromkeys(one["compression"] for one in manifests)),
    }
    if first.manifest.get("table"):
        fields["table"] = _columns(manifests)
    encoding = encoding_of(first)
    paths = [one.file("features.parquet") for one in datasets]
    indices = indices_of(first)

    def names(feature: np.ndarray) -> Any:
        assert encoding is not None
        return encoding.name_column(indices.of(feature) - indices.base)

    writer.write_features(
        joined_figures(paths, [one.n_rows for one in datasets]), names if encoding else None
    )
    for file, key in (
        ("scaling.parquet", "scales"),
        (CATEGORIES_FILE, "categories"),
        (INDICES_FILE, "indices"),
    ):
        if fields.get(key):
            _link(Path(str(first.path)) / file, dest / file)
    if fields.get("kept"):
        writer.write_kept([one.file(KEPT_FILE) for one in datasets])
    fields |= writer.records()
    sync_together([dest / part[table] for part in parts for table in _TABLES])
    write_manifest(dest, ROW_LAYOUT, fields, _TABLES)


_DERIVED = ("seal", "fingerprint", "format", "format_version", "streamcd")


def _linked_parts(datasets: Sequence[Dataset], dest: Path, listener: Listener) -> Iterator[dict[str, Any]]:
    """Link the files of all parts; yields their records, with the number of rows of the source before theirs."""
    number, n_parts, n_before = 0, sum(one.n_shards for one in datasets), 0
    for dataset in datasets:
        for part in dataset.manifest["parts"]:
            names = {table: f"{table}/part-{number:05d}.parquet" for table in _TABLES}
            for table, name in names.items():
                _link(Path(str(dataset.path)) / part[table], dest / name)
            yield {**part, **names, "source": part.get("source", 0) + n_before}
            number += 1
            listener.progress(Progress("merge", number, n_parts, "shards"))
        n_before += dataset.n_rows


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _write_chunks(datasets: Sequence[Dataset], dest: Path) -> dict[str, Any]:
    """Write the chunk tables of all datasets as one."""
    tables, n_parts = [], 0
    for one in datasets:
        table = read_table(one.file("chunks.parquet"), one.manifest["chunks"]["checksum"], ROW_LAYOUT.remedy)
        tables.append(table | {"part": table["part"] + n_parts})
        n_parts += one.n_shards
    writer = TableWriter(dest / "chunks.parquet", ROW_CHUNKS, "auto", TableContent(ROW_CHUNKS.names[:3]))
    writer.write(**{name: np.concatenate([table[name] for table in tables]) for name in ROW_CHUNKS.names})
    return writer.close()


def _labels(manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest's fields of classes, the union of all, or of targets."""
    if manifests[0].get("targets") is not None:
        ranges = [one["targets"] for one in manifests]
        return {
            "targets": {"min": min(one["min"] for one in ranges), "max": max(one["max"] for one in ranges)}
        }
    kinds = {one["label_kind"] for one in manifests}
    counts: dict[float, int] = {}
    for one in manifests:
        for label, count in zip(one["classes"] or (), one["class_counts"] or (), strict=True):
            counts[label] = counts.get(label, 0) + count
    classes = sorted(counts)
    known = len(classes) <= MAX_CLASSES and all(one["classes"] is not None for one in manifests)
    return {
        "label_kind": "decimal" if "decimal" in kinds else "integer",
        "classes": classes if known else None,
        "class_counts": [counts[label] for label in classes] if known else None,
    }


def _norms(manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the figures of the rows' norms over all rows."""
    found = [one["row_norms"] for one in manifests if one.get("row_norms")]
    if len(found) < len(manifests):
        return None
    n_rows = [one["n_rows"] for one in manifests]
    squares = [one["mean_square"] for one in found]
    mean_square = None
    if None not in squares:
        mean_square = sum(square * n for square, n in zip(squares, n_rows, strict=True)) / max(sum(n_rows), 1)
    return {
        "min": min((one["min"] for one in found if one["min"] is not None), default=None),
        "max": max(one["max"] for one in found),
        "mean_square": mean_square if mean_square is not None and isfinite(mean_square) else None,
        "n_empty": sum(one["n_empty"] for one in found),
    }


def _columns(manifests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the uses of the first table's columns, with the missing values of all that tell them."""
    missing: dict[str, int] = {}
    for manifest in manifests:
        for use in manifest.get("table") or ():
            missing[use["column"]] = missing.get(use["column"], 0) + (use["missing"] or 0)
    return [{**use, "missing": missing[use["column"]]} for use in manifests[0]["table"]]
