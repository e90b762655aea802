"""Calibration of a run: sigmoids fitted to decisions on rows of held-out folds.

All folds of all C are trained in the same reads, in a directory of their own inside the run. One more read makes the
decisions; those of each C go to a file there, which the fit reads in every iteration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import write_file
from ..core.errors import CheckpointError, UsageError, file_named
from ..core.setting import Setting
from ..kernels.loss_table import LOSSES, gives_probabilities
from ..models.calibration import fit_sigmoids
from ..training import checkpoint
from ..training.loop import Session
from .config import ResolvedRun
from .held_out import HeldOut, held_out_rows
from .lane_groups import resolve_part
from .options import TrainOptions

N_FOLDS = 5
FOLDER = "calibration"
_FITTED = "sigmoids.json"
_BLOCK_BYTES = 1 << 22


def check_calibration(options: TrainOptions) -> None:
    """Refuse problems without decisions to calibrate, or with probabilities of their own."""
    if not LOSSES[options.loss].calibrates or options.code is not None:
        asked = "a code matrix" if options.code is not None else options.loss
        losses = " or ".join(sorted(name for name, entry in LOSSES.items() if entry.calibrates))
        advice = (
            f"; {asked} has probabilities of its own: leave --calibrate out"
            if gives_probabilities(asked)
            else ""
        )
        raise UsageError(f"calibrate: expected the loss {losses}, one-vs-rest, found {asked}{advice}")
    if options.on_workers:
        raise UsageError("calibrate: one process trains all folds in the same reads; leave --workers out")


def fit_calibration(
    directory: checkpoint.Run, run: ResolvedRun, session: Session, train_groups: Callable[..., Any]
) -> dict[Setting, np.ndarray] | None:
    """Return the sigmoids' a and b of every vector, shape (2, n_vectors), of every model; None if time ran out.

    Trains the folds if necessary, by `carry_out.train_groups`.
    """
    part = directory.part(FOLDER)
    fitted = part.path / _FITTED
    if not fitted.exists():
        folds = resolve_part(part, run, replace(run.options, folds=N_FOLDS))
        run_path = directory.name
        outcome = train_groups(part, folds, None, session, shown_as=run_path, stage="calibration: ")
        if outcome.is_cut_short:
            return None
        content = {of.name: sigmoids.tolist() for of, sigmoids in _fit(part.path, folds, session).items()}
        write_file(fitted, json.dumps(content).encode())
    try:
        by_name = json.loads(fitted.read_text())
        return {
            Setting.named(name): np.array(sigmoids, dtype=np.float64) for name, sigmoids in by_name.items()
        }
    except (ValueError, AttributeError):
        raise CheckpointError(f"{fitted}: damaged; remove it, and 'streamcd resume' makes it again") from None


def _fit(path: Path, folds: ResolvedRun, session: Session) -> dict[Setting, np.ndarray]:
    settings = sorted({lane.setting for lane in folds.problem.lanes})
    files = {setting: path / f"decisions-{setting.name}.bin" for setting in settings}
    n_vectors = folds.problem.block_lanes
    try:
        with ExitStack() as stack:
            for file in files.values():
                stack.enter_context(file_named(file))
            outputs = {of: stack.enter_context(open(file, "wb")) for of, file in files.items()}
            for of, records in held_out_rows(path, folds, session, _records):
                records.tofile(outputs[of])
        session.listener.message(
            f"calibration: fitting one sigmoid per vector, {n_vectors * len(files):,} in all"
        )
        sides = folds.problem.code > 0
        return {of: fit_sigmoids(partial(_blocks, file, sides), n_vectors) for of, file in files.items()}
    finally:
        for file in files.values():
            file.unlink(missing_ok=True)


def _records(rows: HeldOut) -> tuple[Setting, np.ndarray]:
    """Return C and λ, and the rows' classes with their decisions."""
    return rows.setting, np.hstack([rows.code[:, None].astype(np.float64), rows.decisions])


def _blocks(file: Path, sides: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read decision values, and flags of each row's positive vectors; `sides` marks those of each class."""
    n_vectors = sides.shape[1]
    with open(file, "rb") as stream:
        count = max(1, _BLOCK_BYTES // (8 * (n_vectors + 1))) * (n_vectors + 1)
        while (records := np.fromfile(stream, count=count)).size:
            code, decisions = np.split(records.reshape(-1, n_vectors + 1), [1], axis=1)
            yield decisions, sides[code[:, 0].astype(np.int64)]
