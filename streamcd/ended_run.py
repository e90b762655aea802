"""An ended run from which another begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import checkpoint
from .dataset import Dataset
from .errors import UsageError
from .lane_groups import lane_groups
from .problem import Problem
from .registry import reads_columns
from .training_options import make_lanes, make_solver
from .warm_start import WarmStart, combination


class EndedRun:
    """The lanes of an ended run, from which groups of new lanes begin."""

    def __init__(self, dataset: Dataset, problem: Problem, asked: Mapping[str, Any]) -> None:
        source = str(asked["start_from"])
        path = Path(source)
        config = checkpoint.read_config(path)
        if "tune" in config:
            path = path / "best" if (path / "best" / "state.npz").exists() else path / "folds"
            config = checkpoint.read_config(path)
        if config["fingerprint"] != dataset.fingerprint:
            raise UsageError(
                f"{source} was trained on another dataset (fingerprint {config['fingerprint']}, this one has "
                f"{dataset.fingerprint}); dual variables belong to rows, so a warm start needs the same dataset"
            )
        if "rounds" in config:
            raise UsageError(
                f"{source} was trained on workers, which keep dual variables in another way; start from a run of one process"
            )
        method, wanted = config["options"]["method"], asked["options"]["method"]
        dual = not reads_columns(wanted)
        if dual and method not in ("dual", "sor"):
            raise UsageError(
                f"{source} was not trained by a dual method; there are no dual variables to start from"
            )
        if method == "sor" and wanted == "dual":
            raise UsageError(
                f"{source} was trained by --method sor, which keeps no dual variables of a plane's own rows: only "
                f"--method sor can start from it, found {wanted}"
            )
        self._dataset, self._path, self._config = dataset, path, config
        self._old = make_lanes(dataset, config["options"])
        self._matrix = combination(self._old, problem, dual=dual)

    def __call__(self, lanes: Problem, numbers: range) -> WarmStart:
        parts = []
        for group in lane_groups(self._old, self._config):
            solver = make_solver(self._old.subset(group.lanes), self._config["options"], self._dataset)
            parts.append((self._path / group.directory, solver, list(group.lanes)))
        return WarmStart(self._dataset, lanes, self._matrix[:, list(numbers)], parts)
