"""A training without a run: its state stays in memory, and what it leaves on disk is the model, whole or not at all."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..core.atomic_files import SET_ASIDE, make_directory, put_directory, sync
from ..core.errors import CheckpointError, UsageError
from ..core.folder_copies import Copy
from ..core.locks import scratch_directory
from ..core.memory_budget import require
from ..models.stored import holds_models_alone
from ..training import checkpoint
from ..training.loop import NO_RUN, Session
from ..training.result import Result
from .carry_out import carry_out
from .config import ResolvedRun
from .options import TrainOptions
from .previous_run import PreviousRun

_NEEDS_A_RUN = {
    "resume": "there is no run to go on with",
    "checkpoint_every": "there are no checkpoints",
    "workers": "rounds of workers are kept in a run",
    "scheduler": "rounds of workers are kept in a run",
    "client": "rounds of workers are kept in a run",
    "calibrate": "the folds that sigmoids are fitted to are kept in a run",
}
"""Options of a run, and why a model alone has none of them."""


def without_run(asked: TrainOptions) -> TrainOptions:
    """Return the options of a training that keeps its state in memory; those that need a run are refused."""
    for name, because in _NEEDS_A_RUN.items():
        if getattr(asked, name) != getattr(TrainOptions, name):
            raise UsageError(f"{name}: not with --model-only, {because}; leave one of the two out")
    return replace(asked, in_memory=True, checkpoint_every=math.inf)


def check_place(path: Path, *, force: bool) -> None:
    """Refuse a place for a model where there is anything but an empty directory, or with `force` a model, or in a run."""
    place = Path(os.path.realpath(path))
    for folder in place.parents:
        if _is_run(folder):
            raise UsageError(f"{path} is in the run {folder}, whose files are its own; name another place")
    if os.path.lexists(path):
        _check_replaced(path, place, force)
    folder = next(folder for folder in place.parents if folder.exists())
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a directory; name another place")
    if not os.access(folder, os.W_OK | os.X_OK):  # now, not after the training
        error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        error.add_note("make this directory writable, or name another place")
        raise error


def _check_replaced(path: Path, place: Path, force: bool) -> None:
    """Refuse to replace what is at a path, unless it is an empty directory, or with `force` a model."""
    if place.is_dir() and _is_run(place):
        raise UsageError(f"{path} is a run, which a model alone does not replace; name another place")
    if not place.is_dir() or not holds_models_alone(place):
        raise UsageError(f"{path} exists and is not a model; name another place")
    if any(place.iterdir()) and not force:
        raise UsageError(f"{path} exists; name another place, or give --force to replace it")
    if os.path.ismount(place):  # a directory is replaced as a whole
        raise UsageError(f"{path} is where a file system is mounted; name a directory in it")


def _is_run(folder: Path) -> bool:
    if not (folder / "config.json").is_file():
        return False
    try:
        checkpoint.read_config(folder)
    except CheckpointError:  # another program's
        return (folder / "state.npz").exists()
    return True


def train_model_alone(
    copy: Copy, run: ResolvedRun, previous: PreviousRun | None, session: Session, *, force: bool
) -> Result:
    """Train in memory, and put the models where `copy` is; where the time was up there are none."""
    require(run.config.memory, {})  # for the start, which takes more than a training of few rows
    directory, place = checkpoint.MemoryRun(copy.name), _replaced_whole(copy.path, force=force)
    result = carry_out(directory, run, previous, session, model_place=place)
    result.model_only = True
    if copy.published is not None and result.stop_reason != "time":
        copy.published.update()
    return result


@contextmanager
def _replaced_whole(path: Path, *, force: bool) -> Iterator[Path]:
    """Provide a place for models beside `path`, from which they go there in one step, all of a path together."""
    place = Path(os.path.realpath(path))
    try:
        make_directory(place.parent)
        with scratch_directory(place.parent, "model") as scratch:
            made = scratch / place.name
            yield made
            if not (made / "model.json").exists():  # models of a path: the names of their directories
                sync(made)
            check_place(path, force=force)  # another process may have come first
            put_directory(made, place, scratch / SET_ASIDE if force else None)
    except OSError as error:
        error.filename = str(path)  # not a temporary name
        error.add_note(NO_RUN)
        raise
