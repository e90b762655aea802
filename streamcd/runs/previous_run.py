"""An earlier run from which another starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..core.errors import DatasetError, UsageError, refuse
from ..core.files import make_directory, write_file
from ..core.storage import local_path
from ..dataset.arrow_columns import file_checksum
from ..dataset.dataset import Dataset
from ..solvers.registry import find_solver, is_proximal
from ..training import checkpoint
from ..training.warm_start import OldRun, Source, WarmStart, class_ratios, combination
from .config import ResolvedRun, read_config, reopen
from .problem_options import ProblemOptions

DATA = "data"
"""Folder of a run with the manifest and the chunk table of its dataset, by which a later run knows its shards."""


def start_from(
    path: Path, run: ResolvedRun, new: ResolvedRun, chunk_of: np.ndarray | None = None
) -> WarmStart:
    """Make the start of a new run's lanes from an earlier run in a directory.

    `chunk_of` is the chunk of the earlier run's dataset that each chunk of the new one is, -1 for none; by default they
    are the same.
    """
    problem, options, dual = run.problem, run.options, _keeps_alpha(new.options)
    identity, width, sources = checkpoint.read_identity(path), problem.lane_vectors, []
    for group in run.groups:
        layout = options.solver_memory(problem.subset(group.lanes), run.dataset).layout
        vectors = slice(group.lanes.start * width, group.lanes.stop * width)
        part = path / group.directory, identity.part(group.directory)
        sources.append(Source(*part, layout, vectors))
    accelerated = is_proximal(problem, options.acceleration) and _keeps_alpha(options)
    chunk_of = np.arange(run.dataset.n_chunks) if chunk_of is None else chunk_of
    old = OldRun(run.dataset, problem, run.centre, accelerated, sources, chunk_of)
    matrix = combination(problem, new.problem, dual=dual)
    ratios = class_ratios(problem, new.problem) if dual else None
    return WarmStart(old, new.dataset, new.problem, new.centre, matrix, ratios)


def previous_run(new: ResolvedRun, notes: list[str]) -> WarmStart | None:
    """Open the run that a run starts from, if any, and note what is taken from it; refused if it cannot."""
    source, dataset = new.config.start_from, new.dataset
    if source is None:
        return None
    path = local_path(source, "a run")
    config = read_config(path)
    if config.tune is not None:
        path = path / ("best" if (path / "best" / "state.npz").exists() else "folds")
        config = read_config(path)
    dual, method = _keeps_alpha(new.options), config.options.method
    refuse(
        UsageError,
        (
            dual and not _keeps_alpha(config.options),
            f"{source}: trained by {method}, which has no dual variables to start from",
        ),
        (
            method == "sor" and new.options.method == "dual",
            f"{source}: trained by sor, from which dual cannot start",
        ),
    )
    if config.fingerprint == dataset.fingerprint:
        return start_from(path, reopen(path, config, dataset), new)
    before, chunk_of = _known_shards(local_path(source, "a run"), dataset, centred=bool(config.centred))
    run = reopen(path, config, before)
    others = not np.array_equal(run.problem.classes, new.problem.classes)
    n_known = int(np.diff(dataset.row_start)[chunk_of >= 0].sum())
    refuse(
        UsageError,
        (others, f"start_from: expected the classes of {source}, found others"),
        (dual and not n_known, f"start_from: expected a shard that {source} was trained on, found none"),
    )
    own = "dual variables" if dual else "weights"
    notes.append(f"starts from the {own} of {source}, which knew {n_known:,} of {dataset.n_rows:,} rows")
    return start_from(path, run, new, chunk_of)


def record_data(path: Path, dataset: Dataset, *, centred: bool) -> None:
    """Keep in a run's directory what tells the shards of its dataset, and where values are `centred`, by what."""
    folder = path / DATA
    if (folder / "manifest.json").exists():
        return
    make_directory(folder)
    for name in (*["features.parquet"] * centred, "chunks.parquet", "manifest.json"):
        write_file(folder / name, dataset.file(name).read_bytes())


def data_problems(path: Path, fingerprint: str) -> Iterator[str]:
    """Check what a run keeps of its dataset."""
    folder = path / DATA
    if not folder.exists():
        return
    try:
        manifest = Dataset.open(folder, check_files=False, fingerprint=fingerprint).manifest
    except DatasetError as error:
        yield str(error)
        return
    features = folder / "features.parquet"
    if features.exists() and file_checksum(features) != manifest["features"]["checksum"]:
        yield f"{features}: checksum differs from the manifest's, the file was changed or damaged"


def _known_shards(run: Path, dataset: Dataset, *, centred: bool) -> tuple[Dataset, np.ndarray]:
    """Return a run's dataset, of which only shards that `dataset` has as well can be read, and the chunks they share.

    Of every chunk of `dataset` that is the chunk of the run's, -1 for none. Shards are known by their content.
    """
    try:
        old = Dataset.open(run / DATA, check_files=False)
        assert not centred or old.centre is not None, "read here: the files of other figures are elsewhere"
    except DatasetError as error:
        raise UsageError(
            f"start_from: {run} does not tell the shards that it was trained on: {error}"
        ) from None
    manifest, chunk_of = dict(old.manifest), np.full(dataset.n_chunks, -1)
    parts = [dict(part) for part in manifest["parts"]]
    numbers = {part["content"]: number for number, part in enumerate(parts)}
    for number, part in enumerate(dataset.manifest["parts"]):
        of_old = numbers.pop(part["content"], None)  # one that is there twice is known once
        here = np.flatnonzero(dataset.chunk_part == number)
        there = np.flatnonzero(old.chunk_part == of_old)
        sizes = [np.diff(one.row_start)[chunks] for one, chunks in ((dataset, here), (old, there))]
        if of_old is not None and np.array_equal(sizes[0], sizes[1]):
            chunk_of[here] = there
            parts[of_old] |= {table: part[table] for table in Dataset.TABLES}
    manifest["parts"] = parts
    return old.at(dataset.path, manifest), chunk_of


def _keeps_alpha(options: ProblemOptions) -> bool:
    return find_solver(options.loss, options.method).keeps_alpha
