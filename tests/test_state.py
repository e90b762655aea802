"""The state of a run: what is declared is what a checkpoint holds, no more and no less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_datasets import columns_of, multiclass, random_rows

import streamcd
from streamcd import Dataset
from streamcd.core.errors import CheckpointError
from streamcd.kernels.loss_table import LOSSES, SOLVERS
from streamcd.solvers.protocol import ARRAYS, Array, State
from tools.simulated_cluster import Simulation
from tools.state_table import COMMAND, OWNERS, PAGE, table

OF_CHECKPOINT = {"slots", "identity", "log_bytes", "log_crc"}
"""Arrays of `training/checkpoint` and `stream/slot_store`."""

FREE = {"unpenalized_bias": True, "bias": 1.0}
CASES = [
    (entry, options)
    for entry in SOLVERS.values()
    for options in ({}, {"acceleration": "none"}, FREE, {"client": Simulation(2)})
    if not (options is FREE and not entry.free_bias_solver)
    and not ("acceleration" in options and not entry.accelerates)
    and not ("client" in options and not entry.rounds)
]

pytestmark = pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Rows of classes, and of numbers to predict."""
    path = tmp_path_factory.mktemp("state")
    x, _ = random_rows(60, 6)
    targets = streamcd.convert((x, x @ np.arange(6.0)), path / "targets", target=True)
    streamcd.make_columns(targets)
    return {"classes": columns_of(path / "classes", multiclass()), "targets": targets}


def named(array: Array) -> tuple[str, str]:
    """Name and meaning, by which arrays of several solvers differ."""
    return array.name, array.meaning


def checkpoints(
    data: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[State, dict[str, np.ndarray]]]:
    """States of all cases, and what their checkpoints hold."""
    states: list[State] = []
    stored_arrays = State.stored_arrays
    monkeypatch.setattr(
        State, "stored_arrays", lambda state, rank: (states.append(state), stored_arrays(state, rank))[1]
    )
    found = []
    for number, (entry, options) in enumerate(CASES):
        rows = data["targets" if LOSSES[entry.loss].has_targets else "classes"]
        run = tmp_path / str(number)
        kind: dict[str, Any] = {"loss": entry.loss, "method": entry.method, "max_passes": 2}
        streamcd.train(rows, run, **kind, **options)
        with np.load(run / "state.npz") as archive:
            found.append((states[-1], dict(archive)))
    return found


def test_a_checkpoint_of_every_solver_holds_the_arrays_of_the_table(
    data: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has those that its loop and solver declare, and all together all of the table, but for those of some reads."""
    assert table() in PAGE.read_text(), f"run {COMMAND}"
    of_table = {named(array) for arrays in OWNERS.values() for array in arrays if not array.temporary}
    seen = set[tuple[str, str]]()
    for state, stored in checkpoints(data, tmp_path, monkeypatch):
        expected = [array for array in state.declared.values() if not array.temporary]
        assert stored.keys() - OF_CHECKPOINT == {array.name for array in expected}
        for array in expected:
            assert stored[array.name].shape == state.shapes[array.name]
            assert stored[array.name].dtype == array.dtype
        seen |= {named(array) for array in expected}
    assert seen == of_table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kappa": None}, "kappa is missing"),
        ({"more": np.zeros(3)}, "more is not of this training"),
        ({"kappa": np.zeros(1, np.float32)}, "kappa has shape .* float32"),
    ],
    ids=["lacks", "has too many", "another type"],
)
def test_a_checkpoint_of_other_arrays_is_refused(
    data: dict[str, Dataset], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    run = Path(streamcd.train(data["classes"], tmp_path / "run", max_passes=1).run)
    with np.load(run / "state.npz") as archive:
        arrays = {**archive, **change}
    np.savez(run / "state.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(CheckpointError, match=rf"state\.npz: damaged \({message}"):
        streamcd.resume(run, max_passes=2)


def test_an_array_that_nobody_declared_is_an_error() -> None:
    state = State(ARRAYS, {"lanes": 2, "vectors": 2, "features": 3, "rows": 0})
    state.dual_sum += 1.0
    with pytest.raises(AttributeError, match="more"):
        state.more = np.zeros(2)
    with pytest.raises(AttributeError, match="dual_sum"):
        state.dual_sum = np.zeros(2)
