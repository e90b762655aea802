"""Trainings that are stopped, gone on with, and compared with one that was not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamcd import resume
from streamcd.core.errors import Interrupted


def log(run: Path) -> list[dict[str, Any]]:
    """Lines of a run's log."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def weights(run: Path) -> np.ndarray:
    """Weights of a run's state."""
    with np.load(run / "state.npz") as arrays:
        found: np.ndarray = arrays["w"]
    return found


def ended(run: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """What has to be the same, bit for bit: the weights, and the log but for its seconds and bytes."""
    lines = log(run)
    for line in lines:
        del line["seconds"], line["bytes_read"]
        line.pop("scratch_bytes", None)  # not of a run with workers
    model = run / "model" if (run / "model").exists() else run / "models"
    files = sorted(model.rglob("weights.np[yz]"))
    assert files, f"{run} has no model"
    return b"".join(path.read_bytes() for path in files), lines


def stopping_after(n_windows: int) -> Callable[[], int | None]:
    """For `stop_requested`: SIGTERM's number once it was asked so often."""
    left = iter(range(n_windows))
    return lambda: None if next(left, None) is not None else 15


def resume_by_turns(run: Path, turns: Sequence[int]) -> None:
    """Go on with a run to its end, stopped again and again after so many windows and one."""
    for n_windows in itertools.islice(itertools.cycle(turns), 1000):
        try:
            resume(run, stop_requested=stopping_after(n_windows))
            break
        except Interrupted:
            pass


def train_by_turns(
    train: Callable[..., Any], data: Any, run: Path, after: int, turns: Sequence[int], **asked: Any
) -> None:
    """Train, stopped after so many windows, and go on with the run by turns."""
    with pytest.raises(Interrupted):
        train(data, run, stop_requested=stopping_after(after), **asked)
    resume_by_turns(run, turns)
