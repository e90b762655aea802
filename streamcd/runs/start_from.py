"""The run that another one starts from: what of it fits, by problem and by shards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..core.errors import DatasetError, UsageError
from ..dataset.dataset import Dataset
from ..kernels.loss_table import SOLVERS
from ..training.warm_start import WarmStart
from .config import DATA, ResolvedRun, read_config, reopen


def previous_run(new: ResolvedRun, notes: list[str]) -> WarmStart | None:
    """Open the run that a run starts from, if any, and note what is taken from it; refused if it cannot.

    Their problems may differ in C, weights of classes and folds. Dual variables fit the same bias alone.
    """
    if new.config.start_from is None:
        return None
    source = Path(new.config.start_from)
    path = source
    config = read_config(path)
    if config.scoring is not None:
        path /= "best" if (path / "best" / "state.npz").exists() else "folds"
        config = read_config(path)
    dataset = new.dataset
    before = dataset
    chunk_of = np.arange(dataset.n_chunks)
    if config.fingerprint != dataset.fingerprint:
        before, chunk_of = _known_shards(source, dataset)
    old = reopen(path, config, before)
    dual, has_dual = (SOLVERS[run.problem.loss, run.config.options.method].keeps_alpha for run in (new, old))
    methods = config.options.method, new.config.options.method
    if dual and (not has_dual or methods == ("sor", "dual")):
        raise UsageError(
            f"{source}: trained by {methods[0]}, which leaves {methods[1]} no dual variables to start from"
        )
    names = {name: name for name in ("loss", "slack", "ridge")}
    names |= {"parameter of the loss": "parameter", "l2": "strength"}
    # the feature of a free bias may differ: it depends on C, the optimum does not depend on it
    if dual and not (old.problem.free_bias and new.problem.free_bias):
        names["bias"] = "bias"
    for name, field in names.items():
        was, given = (getattr(run.problem, field) or "none" for run in (old, new))
        if was != given:
            raise UsageError(f"a warm start needs the run's {name} {was}, found {given}")
    same_classes = np.array_equal(old.problem.classes, new.problem.classes)
    if not same_classes or config.options.code != new.config.options.code:
        raise UsageError(f"start_from: expected the classes and the code matrix of {source}, found others")
    n_known = int(np.diff(dataset.row_start)[chunk_of >= 0].sum())
    if dual and not n_known:
        raise UsageError(f"start_from: expected a shard that {source} was trained on, found none")
    if before is not dataset:
        taken = "dual variables" if dual else "weights"
        notes.append(
            f"starts from the {taken} of {source}, which knew {n_known:,} of {dataset.n_rows:,} rows"
        )
    return WarmStart(old, new, chunk_of, range(new.problem.n_lanes))


def _known_shards(run: Path, dataset: Dataset) -> tuple[Dataset, np.ndarray]:
    """Return a run's dataset, of which no rows can be read, and the chunk there that each of `dataset` is, -1 for none."""
    try:
        old = Dataset.open(run / DATA, check_files=False)
    except DatasetError as error:
        raise UsageError(
            f"start_from: {run} does not tell the shards that it was trained on: {error}"
        ) from None
    chunk_of = np.full(dataset.n_chunks, -1)
    known = dict(_shards(old))
    for shard, chunks in _shards(dataset):
        if shard in known:
            chunk_of[chunks] = known.pop(shard)  # one that is there twice is known once
    return old, chunk_of


def _shards(dataset: Dataset) -> Iterator[tuple[tuple[str, bytes], np.ndarray]]:
    """Iterate over shards: what they are known by, their content and how many rows their chunks have; and their chunks."""
    n_rows = np.diff(dataset.row_start)
    for part, ends in zip(dataset.manifest["parts"], pairwise(dataset.shard_start.tolist()), strict=True):
        chunks = np.arange(*ends)
        yield (part["content"], n_rows[chunks].tobytes()), chunks
