"""Datasets merged: their shards stand together in a new directory, as hard links where the file system has them."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..conversion.feature_statistics import FeatureSums, LabelCounts, statistics_of, sums_of
from ..core.errors import UsageError, shortened
from ..core.files import sync
from ..core.options import Checked, Listener, ListenerOptions, Progress, replaces, takes
from ..core.storage import local_path
from ..dataset.arrow_columns import read_table
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.kept_columns import KEPT_FILE, join_kept
from ..dataset.schema import (
    FEATURES,
    FIRST_OF_ROWS,
    INDICES_FILE,
    LISTED,
    ROW_LAYOUT,
    SCALES_FILE,
    norms_record,
)
from ..dataset.source_features import indices_of
from ..dataset.staging import check_place, dataset_workplace
from ..dataset.writer import (
    Part,
    file_record,
    named_features,
    part_names,
    write_dataset,
    write_table,
)
from ..models.encoding import CATEGORIES_FILE, encoding_of

_SUMS = ("n_explicit_zeros", "n_underflows", "n_ignored")


@dataclass(frozen=True, kw_only=True)
class MergeOptions(ListenerOptions, Checked):
    """Options of `merge`."""

    force: bool = replaces("dataset, once the new one is complete")


@takes(MergeOptions)
def merge(datasets: Sequence[str | Path | Dataset], dest: str | Path, options: MergeOptions) -> Dataset:
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
    folder = local_path(dest, "a dataset to be written")
    if isinstance(datasets, str | os.PathLike) or not isinstance(datasets, Iterable):
        raise UsageError(f"expected a list of datasets to merge, found {type(datasets).__name__}")
    opened = [open_dataset(one) for one in datasets]
    if len(opened) < 2:
        raise UsageError(f"expected two datasets or more to merge, found {len(opened)}")
    inputs = [local_path(one.path, "a dataset whose shards are linked") for one in opened]
    for other in opened[1:]:
        _check_alike(opened[0], other)
    check_place(folder, inputs, force=options.force)
    with dataset_workplace(folder, force=options.force) as work:
        _write(opened, work / "dataset", options.listener)
    return open_dataset(folder)


def _check_alike(first: Dataset, other: Dataset) -> None:
    """Refuse rows that are encoded in another way than those of the first dataset, with the first difference."""
    a = first.manifest
    b = other.manifest
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
        records: list[Any] = [one.manifest.get(LISTED[file]) for one in (first, other)]
        if all(records):
            of[name] = tuple(record.get("content") or record["checksum"] for record in records)
    if a.get("encoding") is not None:
        of["number of features"] = (first.n_features, other.n_features)
    for name, (expected, found) in of.items():
        if expected != found:
            dtype = f" --dtype {expected}" if name == "value dtype" else ""
            raise UsageError(
                f"{other.path}: {name} differs from that of {first.path}: expected {shortened(str(expected), 61)}, found "
                f"{shortened(str(found), 61)}; convert it with --like {first.path}{dtype}"
            )


def _write(datasets: Sequence[Dataset], folder: Path, listener: Listener) -> None:
    """Write the dataset of all rows to a new directory."""
    first = datasets[0]
    manifests = [one.manifest for one in datasets]
    n_rows = [one.n_rows for one in datasets]
    labels = LabelCounts(None if first.has_targets else {})
    for one in manifests:
        ends = one.get("targets") or {"min": np.inf, "max": -np.inf}
        classes = one["classes"]
        counts = None if classes is None else dict(zip(classes, one["class_counts"], strict=True))
        labels.merge(LabelCounts(counts, ends["min"], ends["max"]))
    parts = [*_linked_parts(datasets, folder, listener)]
    norms = [
        [
            of["min"] or np.inf,
            of["max"],
            np.nan if of["mean_square"] is None else of["mean_square"],
            of["n_empty"],
        ]
        for of in (manifest["row_norms"] for manifest in manifests)
    ]
    features = named_features(_joined_statistics(datasets), indices_of(first), encoding_of(first))
    fields = {
        **{key: value for key, value in first.manifest.items() if key not in _DERIVED},
        "n_features": max(one.n_features for one in datasets),
        "weighted": any(one.weighted for one in datasets),
        **labels.manifest(None, targets=first.has_targets),
        **{name: sum(manifest.get(name, 0) for manifest in manifests) for name in _SUMS},
        "source": [source for manifest in manifests for source in manifest.get("source", ())],
        "row_norms": norms_record(norms, n_rows),
        "compression": " or ".join(dict.fromkeys(one["compression"] for one in manifests)),
        "features": write_table(
            folder / "features.parquet", FEATURES, features, ascending=("feature", "index")
        ),
    }
    if first.manifest.get("table"):  # the uses of its columns, with the missing values of all that tell them
        missing = Counter[str]()
        for manifest in manifests:
            for use in manifest.get("table") or ():
                missing[use["column"]] += use["missing"] or 0
        fields["table"] = [{**use, "missing": missing[use["column"]]} for use in first.manifest["table"]]
    for name in (SCALES_FILE, CATEGORIES_FILE, INDICES_FILE):
        if fields.get(LISTED[name]):
            _link(Path(str(first.path)) / name, folder / name)
    if fields.get("kept"):
        join_kept([one.file(KEPT_FILE) for one in datasets], folder / KEPT_FILE)
        fields["kept"] = file_record(folder / KEPT_FILE)
    sync(*(folder / part.record[table] for part in parts for table in FIRST_OF_ROWS))
    write_dataset(folder, parts, fields)


_DERIVED = ("seal", "fingerprint", "format", "format_version", "streamcd", "n_rows", "n_entries")


def _linked_parts(datasets: Sequence[Dataset], folder: Path, listener: Listener) -> Iterator[Part]:
    """Link the files of all parts; their records have the number of rows of the source before theirs."""
    number = 0
    n_before = 0
    n_parts = sum(one.n_shards for one in datasets)
    for table in FIRST_OF_ROWS:
        (folder / table).mkdir(parents=True)
    for dataset in datasets:
        chunks = read_table(
            dataset.file("chunks.parquet"), dataset.manifest["chunks"]["checksum"], ROW_LAYOUT.remedy
        )
        ends = np.searchsorted(chunks.pop("part"), np.arange(dataset.n_shards + 1))
        for record, (start, stop) in zip(dataset.manifest["parts"], pairwise(ends), strict=True):
            names = part_names(number)
            for table, name in names.items():
                _link(Path(str(dataset.path)) / record[table], folder / name)
            record = {**record, **names, "source": record.get("source", 0) + n_before}
            yield Part(record, {name: column[start:stop] for name, column in chunks.items()})
            number += 1
            listener.progress(Progress("merge", number, n_parts, "shards"))
        n_before += dataset.n_rows


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _joined_statistics(datasets: Sequence[Dataset]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the statistics of the features over the rows of all datasets, a block of those that occur after the other."""
    n_rows = sum(one.n_rows for one in datasets)
    streams = [one.read_features() for one in datasets]
    blocks = [next(stream, None) for stream in streams]
    while waiting := [block["feature"] for block in blocks if block is not None]:
        stop = min(int(feature[-1]) for feature in waiting) + 1
        feature = np.unique(np.concatenate([feature[feature < stop] for feature in waiting]))
        sums = FeatureSums(0, feature.size)
        for number, dataset in enumerate(datasets):
            if (block := blocks[number]) is None:
                continue
            n = int(np.searchsorted(block["feature"], stop))
            part = sums_of({name: column[:n] for name, column in block.items()}, dataset.n_rows)
            part["feature"] = np.searchsorted(feature, part["feature"])
            sums.add_sums(part)
            rest = {name: column[n:] for name, column in block.items()}
            blocks[number] = rest if rest["feature"].size else next(streams[number], None)
        for group in sums.groups():
            group["feature"] = feature[group["feature"]]
            yield statistics_of(group, n_rows)
