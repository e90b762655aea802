"""Search over C by cross-validation: all folds of all C as lanes of one run, scored in one read, then all rows.

The training on all rows begins from where the folds ended (`warm_start`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import write_file
from ..core.code_matrices import has_vector_per_class
from ..core.errors import UsageError
from ..core.memory_budget import parse_size
from ..core.progress import Listener, Progress
from ..core.storage import local_path
from ..dataset.dataset import Dataset, open_dataset
from ..kernels import rows as rows_kernels
from ..models.model import plane_distances
from ..solvers.problem import Problem
from ..stream.arenas import RowLayout
from ..stream.memory_plan import make_plan
from ..stream.stream import Stream
from ..stream.window import Window
from ..training import checkpoint
from ..training.loop import Session, StopRequested
from ..training.result import Outcome, Result, TuneResult, relative_gaps
from .config import (
    MAX_FOLDS,
    ProblemOptions,
    ResolvedRun,
    TrainOptions,
    make_rule,
    read_config,
    reopen,
    settle_acceleration,
    write_config,
)
from .interrupts import stops_when_interrupted
from .lane_groups import resolve
from .previous_run import PreviousRun
from .train import begin_run, carry_out, train_groups

_SCORE_BYTES = 1 << 22  # of decisions at a time


@stops_when_interrupted
def tune(
    dataset: Dataset | str | Path,
    run: str | Path,
    *,
    C: Sequence[float],
    cv: int = 5,
    loss: str = "squared_hinge",
    method: str = "auto",
    bias: float = -1.0,
    tol: float | None = None,
    eps: float | None = None,
    max_passes: int = 1000,
    class_weight: Mapping[Any, float] | str | None = None,
    code: np.ndarray | Sequence[Sequence[int]] | None = None,
    omega: float | str = 1.0,
    acceleration: float | str = "auto",
    ridge: float | None = None,
    slack: str | None = None,
    memory: int | str = "1GB",
    seed: int = 0,
    checkpoint_every: float = 60.0,
    force: bool = False,
    listener: Listener | None = None,
    stop_requested: StopRequested | None = None,
) -> TuneResult:
    """Choose C by cross-validation, and train with it on all rows.

    Parameters
    ----------
    dataset : Dataset or path
    run : path
        Directory to be made: ``folds/`` and ``best/`` are runs in it, ``model/`` is the best one's.
    C : sequence of float
        The values to try.
    cv : int
        Folds, dealt by a hash of (seed, place in the source).
    loss, method, bias, tol, eps, max_passes, class_weight, code, omega, acceleration
        As in `train.train`.
    ridge, slack, memory, seed, checkpoint_every, force
        As in `train.train`.
    listener, stop_requested
        As in `train.train`.

    Returns
    -------
    TuneResult

    Raises
    ------
    UsageError, DatasetError, CheckpointError, LockError, Interrupted
    """
    if not 2 <= cv <= MAX_FOLDS:
        raise UsageError(f"cv: expected from 2 to {MAX_FOLDS} folds, found {cv}")
    path = local_path(run, "a run")
    session = Session(listener or Listener(), stop_requested)
    dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    problem = ProblemOptions.asked(
        loss=loss,
        method=method,
        C=np.unique(np.asarray(C, dtype=np.float64)).tolist(),
        bias=bias,
        class_weight=class_weight,
        code=code,
        seed=seed,
        folds=int(cv),
        omega=omega,
        acceleration=acceleration,
        ridge=ridge,
        slack=slack,
    )
    problem = settle_acceleration(problem, eps, session.listener)
    asked = TrainOptions(
        problem, parse_size(memory), checkpoint_every, make_rule(tol, eps, max_passes), search=True
    )
    search = resolve(dataset, asked, session.listener)
    with begin_run(path, search, force=force) as directory:
        return carry_out_search(directory, search, session)


def carry_out_search(directory: checkpoint.Run, search: ResolvedRun, session: Session) -> TuneResult:
    """Train the folds, score them, train on all rows: each from where it stands."""
    listener, run = session.listener, str(directory.path)
    folds = directory.part("folds")
    write_config(folds, replace(search.config, tune=None))
    outcome = train_groups(folds, search, None, session, shown_as=run, stage="folds: ")
    _warn_of_open_folds(outcome, listener)
    scores = _score(folds.path, search, listener)
    best = max(scores, key=lambda C: (np.mean(scores[C]), -C))
    content = json.dumps({"scores": _as_json(scores), "best_C": best}, indent=1)
    write_file(directory.path / "scores.json", (content + "\n").encode())
    listener.message(f"best C = {best:g}, mean accuracy {np.mean(scores[best]):.4f}; training on all rows")
    result = _train_best(directory, search, best, session)
    return TuneResult(
        **{**asdict(result), "run": run}, scores=_as_json(scores), best_C=best, folds=_summary(outcome)
    )


def _warn_of_open_folds(outcome: Outcome, listener: Listener) -> None:
    converged = outcome.lanes["converged"]
    n_open = int((~converged).sum())
    if n_open:
        listener.warning(
            f"{n_open} of {converged.size} models of folds are not converged after {int(outcome.lanes['passes'].max())} "
            "passes: their scores may change with a larger --max-passes"
        )


def _train_best(directory: checkpoint.Run, search: ResolvedRun, best: float, session: Session) -> Result:
    """Train on all rows with the best C, from where the folds ended."""
    part, config = directory.part("best"), search.config
    if (part.path / "config.json").exists():
        run = reopen(part.path, replace(read_config(part.path), rule=config.rule), search.dataset)
    else:
        asked = TrainOptions(
            replace(search.options, C=(best,), folds=0),
            config.memory,
            config.checkpoint_every,
            config.rule,
            start_from=str((directory.path / "folds").resolve()),
        )
        run = resolve(search.dataset, asked, Listener())
        write_config(part, run.config)
    previous = PreviousRun(directory.path / "folds", search, run)
    return carry_out(part, run, previous, session, model_path=directory.model_path)


def _summary(outcome: Outcome) -> dict[str, Any]:
    lanes = outcome.lanes
    return {
        "n_lanes": int(lanes["passes"].size),
        "passes": int(lanes["passes"].max()),
        "gap": float(relative_gaps(lanes).max()),
        "converged": bool(lanes["converged"].all()),
        "bytes_read": outcome.bytes_read,
        "seconds": outcome.seconds,
    }


def _as_json(scores: Mapping[float, Sequence[float]]) -> dict[str, dict[str, Any]]:
    return {f"{C:g}": {"folds": list(folds), "mean": float(np.mean(folds))} for C, folds in scores.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Scores


def _score(path: Path, search: ResolvedRun, listener: Listener) -> dict[float, list[float]]:
    """Accuracy of every C on each fold, by the lanes that left the fold out; one read for each group of lanes."""
    problem, dataset = search.problem, search.dataset
    correct: dict[tuple[float, int], int] = {}
    count = np.zeros(problem.n_folds, dtype=np.int64)
    for number, group in enumerate(search.groups):
        lanes = problem.subset(group.lanes)
        arrays = checkpoint.read_arrays(path / group.directory / "state.npz", ("w",))
        assert arrays is not None
        layout, plan = search.make_solver(lanes).layout, search.config.plan
        if not isinstance(layout, RowLayout):  # rows are scored, whatever was trained on
            layout = RowLayout(0, 0)
            needs = {"weights": 2 * arrays["w"].nbytes + 4 * _SCORE_BYTES}
            plan = make_plan(dataset, search.config.memory, layout, needs)
        with Stream(dataset, plan, layout, search.options.seed, n_folds=problem.n_folds) as stream:
            done = 0
            for window in stream.windows(0):
                for start, stop in _row_blocks(window, arrays["w"].shape[1]):
                    _count_correct(window, start, stop, arrays["w"], lanes, correct)
                    if number == 0:
                        count += np.bincount(window.arena.fold[start:stop], minlength=count.size)
                done += window.n_entries
                listener.progress(Progress("score the folds", done, dataset.n_entries, "entries"))
    values = sorted({lane.C for lane in problem.lanes})
    folds = range(problem.n_folds)
    return {C: [correct.get((C, fold), 0) / max(int(count[fold]), 1) for fold in folds] for C in values}


def _row_blocks(window: Window, n_columns: int) -> list[tuple[int, int]]:
    rows = max(1, _SCORE_BYTES // (8 * n_columns))
    return [
        (first, min(first + rows, stop))
        for _, start, stop in window.chunk_ranges()
        for first in range(start, stop, rows)
    ]


def _count_correct(
    window: Window,
    start: int,
    stop: int,
    w: np.ndarray,
    lanes: Problem,
    correct: dict[tuple[float, int], int],
) -> None:
    """Add to `correct` how many rows of each fold are classified rightly by the lanes that left it out."""
    arena = window.arena
    decisions = np.empty((stop - start, w.shape[1]))
    indptr = np.ascontiguousarray(arena.indptr[start : stop + 1])
    rows_kernels.margins(indptr, arena.feature, arena.value, w[:-1], decisions)
    decisions += lanes.bias * w[-1]
    code, fold = arena.code[start:stop], arena.fold[start:stop]
    columns = lanes.block_lanes * lanes.lane_vectors
    for number in range(0, lanes.n_lanes, lanes.block_lanes):
        lane = lanes.lanes[number]
        mine = fold == lane.fold
        first = number * lanes.lane_vectors
        block = decisions[mine, first : first + columns]
        vectors = w[:, first : first + columns]
        hits = int((predicted_classes(lanes, block, vectors) == code[mine]).sum())
        correct[lane.C, lane.fold] = correct.get((lane.C, lane.fold), 0) + hits


def predicted_classes(problem: Problem, decisions: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Places of the predicted classes, from the decisions of one classifier's vectors `w`, as a model decides."""
    if problem.loss == "twin":
        norms = np.sqrt(np.einsum("ij,ij->j", w[:-1], w[:-1]))
        return plane_distances(decisions, norms).argmin(axis=1)
    if problem.classes.size == 2 and decisions.shape[1] == 1:
        return (decisions[:, 0] > 0).astype(np.int64)
    if has_vector_per_class(problem.code):
        return decisions.argmax(axis=1)
    return (decisions @ problem.code.T.astype(np.float64)).argmax(axis=1)
