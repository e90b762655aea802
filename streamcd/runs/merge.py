"""Datasets merged: their shards stand together in a new directory, as hard links where the file system has them."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np

from ..conversion.feature_statistics import SUMS, FeatureSums, LabelCounts, statistics_of, sums_of
from ..core.errors import UsageError, shortened
from ..core.files import sync
from ..core.options import Checked, Listener, ListenerOptions, Progress, replaces, takes
from ..core.storage import local_path
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.kept_columns import KEPT_FILE, join_kept
from ..dataset.schema import (
    FEATURES,
    FIRST_OF_ROWS,
    INDICES_FILE,
    LISTED,
    SCALES_FILE,
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
    first, *others = opened
    for other in others:
        found = _encoding(other)
        for name, expected in _encoding(first).items():
            if found[name] != expected:
                dtype = f" --dtype {expected}" if name == "value_dtype" else ""
                raise UsageError(
                    f"{other.path}: {name.replace('_', ' ')} differs from that of {first.path}: expected "
                    f"{shortened(str(expected), 61)}, found {shortened(str(found[name]), 61)}; convert it with --like "
                    f"{first.path}{dtype}"
                )
    check_place(folder, inputs, force=options.force)
    with dataset_workplace(folder, force=options.force) as work:
        _write(opened, work / "dataset", options.listener)
    return open_dataset(folder)


def _encoding(dataset: Dataset) -> dict[str, Any]:
    """Return all that has to be alike where rows are merged."""
    manifest = dataset.manifest
    names = ("index_base", "index_dtype", "value_dtype", "compact", "scaling", "class_names", "encoding")
    records = {name: manifest.get(name) or {} for name in ("categories", "indices")}
    return {
        "kind_of_labels": "targets" if dataset.has_targets else "classes",
        "columns_kept_beside_the_rows": dataset.kept,
        **{name: manifest.get(name) for name in names},
        **{name: record.get("content") or record.get("checksum") for name, record in records.items()},
        "number_of_features": manifest.get("encoding") and dataset.n_features,
    }


def _write(datasets: Sequence[Dataset], folder: Path, listener: Listener) -> None:
    """Write the dataset of all rows to a new directory."""
    first = datasets[0]
    manifests = [one.manifest for one in datasets]
    labels = LabelCounts(None if first.has_targets else {})
    missing = Counter[str]()
    for manifest in manifests:
        ends = manifest.get("targets") or {"min": np.inf, "max": -np.inf}
        classes = manifest["classes"]
        counts = None if classes is None else dict(zip(classes, manifest["class_counts"], strict=True))
        labels.merge(LabelCounts(counts, ends["min"], ends["max"]))
        missing.update({use["column"]: use["missing"] or 0 for use in manifest.get("table") or ()})
    parts = [*_linked_parts(datasets, folder, listener)]
    for name in (SCALES_FILE, CATEGORIES_FILE, INDICES_FILE):
        if first.manifest.get(LISTED[name]):
            _link(Path(str(first.path)) / name, folder / name)
    sync(*folder.rglob("*.parquet"))  # all of them links; what is written is synced there
    features = named_features(_joined_statistics(datasets), indices_of(first), encoding_of(first))
    fields = {
        **{key: value for key, value in first.manifest.items() if key not in _DERIVED},
        "n_features": max(one.n_features for one in datasets),
        "weighted": any(one.weighted for one in datasets),
        **labels.manifest(None, targets=first.has_targets),
        "source": [source for manifest in manifests for source in manifest.get("source", ())],
        "features": write_table(
            folder / "features.parquet", FEATURES, features, ascending=("feature", "index")
        ),
    }
    if fields.get("table"):  # the uses of its columns, with the missing values of all that tell them
        fields["table"] = [{**use, "missing": missing[use["column"]]} for use in fields["table"]]
    if fields.get("kept"):
        join_kept([one.file(KEPT_FILE) for one in datasets], folder / KEPT_FILE)
        fields["kept"] = file_record(folder / KEPT_FILE)
    write_dataset(folder, parts, fields)


_DERIVED = (
    *("seal", "fingerprint", "format", "format_version", "streamcd", "n_rows", "n_entries", "row_norms"),
    *("n_explicit_zeros", "n_underflows", "n_ignored"),
)
"""Fields that writing makes anew, or that tell of a conversion."""


def _linked_parts(datasets: Sequence[Dataset], folder: Path, listener: Listener) -> Iterator[Part]:
    """Link the files of all parts; their records have the number of rows of the source before theirs."""
    number = 0
    n_before = 0
    n_parts = sum(one.n_shards for one in datasets)
    for table in FIRST_OF_ROWS:
        (folder / table).mkdir(parents=True)
    for dataset in datasets:
        norms = dataset.manifest["row_norms"]
        least = norms["min"] or np.inf
        mean_square = np.nan if norms["mean_square"] is None else norms["mean_square"]
        chunks = dataset.read_chunk_table(dataset.path, dataset.manifest, False)
        for record, (start, stop) in zip(
            dataset.manifest["parts"], pairwise(dataset.shard_start), strict=True
        ):
            names = part_names(number)
            for table, name in names.items():
                _link(Path(str(dataset.path)) / record[table], folder / name)
            record = {**record, **names, "source": record.get("source", 0) + n_before}
            # each part has the norms of all rows of its dataset, of which those without entries are counted once
            n_empty = 0 if start else norms["n_empty"]
            columns = {name: column[start:stop] for name, column in chunks.items()}
            yield Part(record, columns, [least, norms["max"], mean_square, n_empty])
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
    streams = [map(sums_of, one.read_features(), repeat(one.n_rows)) for one in datasets]
    blocks = [next(stream, np.empty(0, SUMS)) for stream in streams]
    while stop := min((int(block["feature"][-1]) + 1 for block in blocks if block.size), default=0):
        cut = [np.split(block, np.searchsorted(block["feature"], [stop])) for block in blocks]
        feature = np.unique(np.concatenate([part["feature"] for part, _ in cut]))
        sums = FeatureSums(0, feature.size)
        for part, _ in cut:
            part["feature"] = np.searchsorted(feature, part["feature"])
            sums.add_sums(part)
        for group in sums.groups():
            group["feature"] = feature[group["feature"]]
            yield statistics_of(group, n_rows)
        blocks = [
            rest if rest.size else next(stream, rest) for (_, rest), stream in zip(cut, streams, strict=True)
        ]
