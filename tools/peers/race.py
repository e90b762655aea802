"""Races: contestants in turn, round after round, each through its settings until the closest level is reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from streamcd import ConvergenceWarning, train
from streamcd.dataset.dataset import open_dataset

from .arrays import drop_from_page_cache, load_arrays, write_arrays
from .contestants import CONTESTANTS, Task

LEVELS = (1e-2, 1e-3, 1e-4)
_REFERENCE_GAP = 1e-6


class Judge:
    """Computation of objective and test accuracy of weights, and the best objective known."""

    def __init__(self, task: Task, test: Path | None) -> None:
        self.task, self._test = task, test
        self.best = self._reference()

    def _reference(self) -> float:
        """Return an objective within 1e-6 of the optimum, if the default number of passes reaches it."""
        with tempfile.TemporaryDirectory(dir=self.task.dataset.parent) as scratch:
            options: dict[str, Any] = {"loss": self.task.loss, "C": self.task.C, "memory": Task.memory}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # then it is the best known so far
                result = train(self.task.dataset, Path(scratch) / "run", tol=_REFERENCE_GAP, **options)
        return result.primal_objective

    @cached_property
    def _rows(self) -> tuple[sp.csr_matrix, np.ndarray]:
        return load_arrays(self.task.arrays)

    @cached_property
    def _test_rows(self) -> tuple[sp.csr_matrix, np.ndarray] | None:
        return None if self._test is None else load_arrays(self._test)

    def objective(self, weights: np.ndarray) -> float:
        """Sum over the binary problems of ``½‖w‖² + C Σ loss``."""
        rows, label = self._rows
        classes = np.unique(label)
        total = 0.5 * float(np.square(weights).sum())
        for number, vector in enumerate(weights):
            sign = np.where(label == classes[-1 if len(weights) == 1 else number], 1.0, -1.0)
            total += self.task.C * float(_loss(self.task.loss, sign * (rows @ vector)).sum())
        return total

    def relative(self, weights: np.ndarray) -> float:
        """Distance from the best objective known, as a share of it."""
        found = self.objective(weights)
        self.best = min(self.best, found)
        return found / self.best - 1

    def accuracy(self, weights: np.ndarray) -> float | None:
        """The share of test rows that are predicted rightly; None without test rows."""
        if self._test_rows is None:
            return None
        rows, label = self._test_rows
        width = min(rows.shape[1], weights.shape[1])
        decision = rows[:, :width] @ weights[:, :width].T
        classes = np.unique(self._rows[1])
        chosen = (decision[:, 0] > 0).astype(int) if len(weights) == 1 else decision.argmax(axis=1)
        return float(np.mean(classes[chosen] == label))


def _loss(name: str, margin: np.ndarray) -> np.ndarray:
    if name == "log_loss":
        return np.logaddexp(0.0, -margin)
    outside = np.maximum(1.0 - margin, 0.0)
    return outside if name == "hinge" else outside**2


@dataclass
class Training:
    """One training of a contestant: its setting, and its distance from the optimum."""

    contestant: str
    round: int
    setting: float
    relative: float  # objective / best - 1
    accuracy: float | None
    load_seconds: float
    figures: dict[str, Any] = field(default_factory=dict)  # seconds, processor_seconds, peak_memory_bytes …

    def to_json(self) -> dict[str, Any]:
        """The fields of a line."""
        return asdict(self)


class Racer:
    """The process of one contestant."""

    def __init__(self, name: str, task: Task, scratch: Path, cold: bool) -> None:
        self._task, self._cold, self._out = task, cold, scratch / "weights.npy"
        described = json.dumps(
            {key: str(value) if isinstance(value, Path) else value for key, value in asdict(task).items()}
        )
        command = [sys.executable, "-m", "tools.peers.serve", name, described, str(self._out)]
        threads = {
            key: str(task.threads) for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        }
        self._drop()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **threads}
        )
        self.loaded = self._read()

    def _drop(self) -> None:
        if self._cold:
            drop_from_page_cache(self._task.arrays)
            drop_from_page_cache(self._task.dataset)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a contestant ended with status {self._process.wait()}")
        return json.loads(line)

    def fit(self, setting: float) -> tuple[dict[str, Any], np.ndarray]:
        """Train with a setting; returns figures and weights."""
        self._drop()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{setting!r}\n")
        self._process.stdin.flush()
        return self._read(), np.load(self._out)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def _racing(name: str, task: Task, cold: bool) -> Iterator[Racer]:
    with tempfile.TemporaryDirectory(dir=task.dataset.parent) as scratch:
        racer = Racer(name, task, Path(scratch), cold)
        try:
            yield racer
        finally:
            racer.close()


def eligible(names: Sequence[str], task: Task) -> list[str]:
    """Contestants that solve this problem."""
    data = open_dataset(task.dataset)
    assert data.classes is not None
    several = len(data.classes) > 2
    return [
        name
        for name in names
        if task.loss in (kind := CONTESTANTS[name]).losses
        and data.n_features <= kind.most_features
        and (kind.several_classes or not several)
    ]


def race(
    names: Sequence[str],
    task: Task,
    *,
    test: Path | None,
    rounds: int,
    max_seconds: float,
    cold: bool = False,
    levels: Sequence[float] = LEVELS,
) -> Iterator[Training]:
    """Yield the trainings of all contestants as they end.

    The first round goes through a contestant's settings until the closest level is reached, or its trainings have taken
    `max_seconds` of processors; later rounds repeat the loosest settings only that reached a level. The first training of a
    process, at the loosest setting, is not counted in these.
    """
    write_arrays(task.dataset, task.arrays)
    judge = Judge(task, test)
    useful: dict[str, list[float]] = {}
    for number in range(rounds):
        for name in eligible(names, task):
            found = []
            with _racing(name, task, cold) as racer:
                for setting in useful.get(name, CONTESTANTS[name].settings):
                    figures, weights = racer.fit(setting)
                    relative, accuracy = judge.relative(weights), judge.accuracy(weights)
                    training = Training(
                        name, number, setting, relative, accuracy, racer.loaded["seconds"], figures
                    )
                    found.append(training)
                    yield training
                    spent = sum(each.figures["processor_seconds"] for each in found)
                    if number == 0 and (relative <= min(levels) or spent > max_seconds):
                        break
            if number == 0:
                reached = {each.setting for level in levels for each in loosest(found, level)}
                order = [setting for setting in CONTESTANTS[name].settings if setting in reached]
                useful[name] = [CONTESTANTS[name].settings[0], *order]


def loosest(trainings: Sequence[Training], level: float) -> list[Training]:
    """The training at the loosest setting within a level, or nothing.

    Not the quickest one: a tighter setting takes more work, and was at times quicker in the single round that chooses.
    """
    return [training for training in trainings if training.relative <= level][:1]
