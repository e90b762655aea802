"""Verification of a dataset, a run or a model: every file against its checksums and the run's identity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from ..core.errors import CheckpointError, DatasetError, StreamcdError
from ..core.memory_budget import parse_size, require
from ..core.options import Listener, Progress
from ..core.storage import local_path, location
from ..dataset.arrow_columns import file_checksum
from ..dataset.dataset import Dataset, open_dataset
from ..models.stored import is_model, verify_model
from ..stream.slot_store import NO_SLOT, Identity
from ..training import checkpoint
from .config import DATA, ResolvedRun, read_config, reopen, same_dataset
from .describe import kind_of_directory, read_scores


def find_problems(path: str, listener: Listener, *, memory: int | str, workers: int) -> tuple[list[str], str]:
    """Verify a directory according to its kind: a run, a model, or else a dataset; returns the advice on problems too.

    Of a run the state, the slots, the log and the models are checked: one process reads a slot and a model at a time, which
    have to fit in `memory`. Nothing is written.
    """
    place = location(path)
    kind = kind_of_directory(place)
    if kind == "run":
        folder = local_path(place, "a run")
        try:
            with closing(checkpoint.open_run(folder)):
                identity = checkpoint.read_identity(folder)
                problems = list(_run_problems(folder, identity, listener, parse_size(memory)))
            problems += verify_model(folder, memory=memory)
        except CheckpointError as error:
            problems = [str(error)]
        return problems, "or train again with --force"
    if kind == "model" or (isinstance(place, Path) and is_model(place)):
        return verify_model(
            local_path(place, "a model"), memory=memory
        ), "or train, or import, the model again"
    advice = (
        "convert the data again, or make the column layout again ('streamcd columns DATASET --force') where only its "
        "files are named"
    )
    try:
        # files that are missing are problems to list, not a reason to stop
        return open_dataset(path, check_files=False).verify(listener, workers=workers, memory=memory), advice
    except DatasetError as error:
        if not place.exists():
            raise
        return [str(error)], advice


def _run_problems(
    path: Path, identity: Identity, listener: Listener, budget: int, dataset: Dataset | None = None
) -> Iterator[str]:
    """Check a run, or with the dataset of a search a part of it, whose identity is to be the one given."""
    config = read_config(path)
    if checkpoint.read_identity(path) != identity:
        yield f"{path / 'config.json'}: of another run"
        return
    if (path / DATA).exists():
        try:
            recorded = Dataset.open(path / DATA, check_files=False, fingerprint=config.fingerprint)
            features = path / DATA / "features.parquet"
            if features.exists() and file_checksum(features) != recorded.manifest["features"]["checksum"]:
                yield f"{features}: checksum differs from the manifest's, the file was changed or damaged"
        except DatasetError as error:
            yield str(error)
    try:
        run = reopen(path, config, dataset or same_dataset(config))
    except StreamcdError as error:
        yield f"{error} (without it, neither dual variables nor states were checked)"
        return
    if config.scoring is None:
        for group in run.groups:
            try:
                yield from _group_problems(run, group, identity, listener, budget)
            except CheckpointError as error:
                yield str(error)
        return
    try:
        read_scores(path)
    except CheckpointError as error:
        yield str(error)
    for part in ("folds", "best"):
        if (path / part / "config.json").exists():
            yield from _run_problems(path / part, identity.part(part), listener, budget, run.dataset)


def _group_problems(
    run: ResolvedRun, group: str, identity: Identity, listener: Listener, budget: int
) -> Iterator[str]:
    """Check the state, the log and the slots of a group of lanes; what keeps from reading the slots is raised."""
    folder = run.path / group
    arrays = checkpoint.read_arrays(
        folder / "state.npz", ("log_bytes", "log_crc", "slots"), identity.part(group), whole=True
    )
    if arrays is None:
        return  # not begun
    if arrays["log_bytes"]:
        checkpoint.check_log(folder / "log.jsonl", int(arrays["log_bytes"]), int(arrays["log_crc"]))
    if not (folder / "dual").is_dir():
        raise CheckpointError(
            f"{folder / 'dual'}: the directory is missing; restore the run directory from a copy"
        )
    slots, _ = run.open_slots(group, identity)
    slots.restore(arrays["slots"])
    needs = {
        "costs of classes": run.problem.table_bytes,
        "the largest part of the dual variables": int(slots.slot_bytes.max(initial=0)),
    }
    require(budget, needs)
    for chunk in np.flatnonzero(slots.current != NO_SLOT).tolist():
        listener.progress(Progress("dual variables", chunk, slots.current.size, "chunks", ""))
        try:
            slots.check(chunk)
        except CheckpointError as error:
            yield str(error)
