"""The model of a run's last checkpoint: evaluated, exported and used for predictions before the training has ended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import command_line
import numpy as np
import pytest
from small_datasets import multiclass, random_rows, write_dataset

from streamcd import StreamcdError, evaluate, load_checkpoint, load_model, train, tune
from streamcd.core.errors import Interrupted


def stop_after(n_asked: int) -> Callable[[], int | None]:
    """Ask a training to stop at the n-th time that it wants to know."""
    asked = iter(range(10**9))
    return lambda: 15 if next(asked) >= n_asked else None


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of several C, stopped with a checkpoint and no model."""
    folder = tmp_path_factory.mktemp("interrupted")
    data = write_dataset(folder / "data", multiclass())
    with pytest.raises(Interrupted):
        train(data, folder / "run", C=[0.1, 1.0], tol=1e-12, bias=1.0, stop_requested=stop_after(12))
    assert not (folder / "run" / "model").exists()
    return folder / "run"


@pytest.mark.parametrize("C", [0.1, 1.0])
def test_a_checkpoint_of_a_run_that_has_ended_is_its_model(tmp_path: Path, C: float) -> None:
    data = write_dataset(tmp_path / "data", multiclass())
    train(data, tmp_path / "run", C=[0.1, 1.0], bias=1.0)
    found, model = load_checkpoint(tmp_path / "run", C), load_model(tmp_path / "run", C)
    assert np.array_equal(found.weights, model.weights)
    assert np.array_equal(found.intercept, model.intercept)
    assert (found.certificate, found.C) == (model.certificate, C)


def test_a_checkpoint_has_the_weights_of_its_state(interrupted: Path) -> None:
    with np.load(interrupted / "state.npz") as state:
        w, passes = state["w"], state["passes"]
    n_lanes = w.shape[1] // 2
    for number, C in enumerate((0.1, 1.0)):
        mine = slice(number * n_lanes, (number + 1) * n_lanes)
        model = load_checkpoint(interrupted, C)
        assert np.array_equal(model.weights, w[:-1, mine])
        assert np.array_equal(model.intercept, w[-1, mine])
        assert model.certificate["passes"] == passes[mine].tolist()
        assert model.certificate["converged"] is False
    with pytest.raises(StreamcdError, match=r"a model for each of C = 0\.1; C = 1: name one with C"):
        load_checkpoint(interrupted)
    with pytest.raises(StreamcdError, match="interpreter and libraries"):
        load_checkpoint(interrupted, 1.0, memory="1MB")


def test_commands_use_the_checkpoint_and_say_so(interrupted: Path, tmp_path: Path) -> None:
    data, C = interrupted.parent / "data", ("-C", 1)
    refused = command_line.run("evaluate", data, interrupted, *C)
    assert refused.returncode == 2
    assert "--checkpoint" in refused.stderr
    for command in (
        ["evaluate", data, interrupted],
        ["predict", data, interrupted, "-o", tmp_path / "p.csv"],
        ["export", interrupted, tmp_path / "m.txt"],
    ):
        done = command_line.run(*command, *C, "--checkpoint")
        assert done.returncode == 0, done.stderr
        assert f"the last checkpoint of {interrupted}, after " in done.stdout
        assert "not converged" in done.stdout
    shown = json.loads(command_line.run("evaluate", data, interrupted, *C, "--checkpoint", "--json").stdout)
    model = load_checkpoint(interrupted, 1.0)
    assert shown == {**evaluate(data, model), "checkpoint": model.certificate}
    done = command_line.run("export", data, tmp_path / "t.txt", "--format", "libsvm", "--checkpoint")
    assert "--checkpoint pick a model" in done.stderr


def test_a_run_before_its_first_pass_and_a_search_in_its_folds_have_none(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(60, 5, seed=2))
    with pytest.raises(Interrupted):
        train(data, tmp_path / "run", stop_requested=stop_after(0))
    with pytest.raises(StreamcdError, match="none yet"):
        load_checkpoint(tmp_path / "run")
    with pytest.raises(Interrupted):
        tune(data, tmp_path / "search", C=[0.1, 1.0], cv=2, stop_requested=stop_after(1))
    with pytest.raises(StreamcdError, match="folds are in training"):
        load_checkpoint(tmp_path / "search")
    with pytest.raises(StreamcdError, match="is a dataset, expected a run"):
        load_checkpoint(tmp_path / "data")


def test_a_search_that_has_ended_gives_its_model(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(60, 5, seed=2))
    tune(data, tmp_path / "search", C=[0.1, 1.0], cv=2)
    assert np.array_equal(
        load_checkpoint(tmp_path / "search").weights, load_model(tmp_path / "search").weights
    )
