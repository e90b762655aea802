"""A training without a run leaves its model alone: to a run's bits, whole or not at all, and in nobody's place."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from forking import DEVNULL, PIPE, Forked
from interrupted import stopping_after
from small_datasets import multiclass, random_rows, windows_of, write_dataset

import streamcd
from streamcd import Dataset, load_model, train
from streamcd.core.errors import CheckpointError, Interrupted, UsageError
from streamcd.core.memory_budget import RESERVED_BYTES
from tools.faults.injection import ALL, FaultyFiles


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets of two classes, of four, of many features, and of targets."""
    place = tmp_path_factory.mktemp("made")
    streamcd.make_columns(
        write_dataset(place / "two", random_rows(300, 12, seed=21), n_chunks=10, n_shards=3)
    )
    write_dataset(place / "four", multiclass(), n_chunks=4)
    write_dataset(place / "wide", random_rows(60, 40, seed=4), n_features=200_000)
    x, _ = random_rows(150, 8, seed=3)
    streamcd.convert((x.toarray(), x @ np.linspace(-1, 1, 8)), place / "targets", target=True)
    return place


@pytest.fixture
def two(made: Path) -> Dataset:
    return streamcd.open(made / "two")


def files(path: Path) -> dict[str, bytes]:
    """What is in a directory, by name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def refused(*line: object, status: int = 2) -> str:
    """The one line, without progress, that a command ends with."""
    done = command_line.run(*line, "--quiet")
    assert done.returncode == status, done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith("streamcd: error: ")
    return said


# ---------------------------------------------------------------------------------------------------------------------
# The model


TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "squared hinge": ("two", {}),
    "logistic, by newton": ("two", {"loss": "log_loss", "method": "newton"}),
    "by columns": ("two", {"method": "primal"}),
    "four classes": ("four", {"loss": "hinge"}),
    "Crammer-Singer": ("four", {"loss": "crammer_singer"}),
    "twin planes": ("four", {"loss": "twin"}),
    "one class": ("two", {"loss": "one_class"}),
    "values of C": ("four", {"C": [0.1, 1.0, 3.0], "loss": "log_loss"}),
    "few of many weights": ("wide", {"penalty": "l1", "l1": 0.5}),
    "a path over l1": ("wide", {"penalty": "l1", "l1_path": 3}),
    "targets": ("targets", {"loss": "squared_error"}),
    "not to its end": ("two", {"tol": 1e-12, "max_passes": 3}),
    "validated": ("two", {"validation": "two", "early_stop": True}),
}


@pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")
@pytest.mark.parametrize("kind", TRAININGS)
def test_the_model_has_the_bits_of_a_runs(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """And its description; nothing else is there, and the result tells the same."""
    monkeypatch.chdir(made)
    data, asked = TRAININGS[kind]
    of_run = train(data, tmp_path / "run", **asked)
    alone = train(data, tmp_path / "place" / "model", model_only=True, **asked)
    assert files(tmp_path / "place" / "model") == files(tmp_path / "run" / "model")
    assert names(tmp_path / "place") == ["model"]
    varying = ("run", "model_only", "seconds", "kernel_seconds", "bytes_read", "peak_memory_bytes")
    told = [
        {name: value for name, value in result.to_json().items() if name not in varying}
        for result in (of_run, alone)
    ]
    assert repr(told[0]) == repr(told[1])  # nan is not itself
    assert (of_run.model_only, alone.model_only) == (False, True)
    assert alone.run == str(tmp_path / "place" / "model")
    assert any("support.npy" in name for name in files(tmp_path / "place")) == (
        "weights" in kind or "l1" in kind
    )


@pytest.mark.parametrize("resident", [True, False])
def test_the_bits_are_those_of_the_same_windows(two: Dataset, tmp_path: Path, resident: bool) -> None:
    asked: dict[str, Any] = {"plan": windows_of(two, 3, resident=resident), "tol": 1e-8, "seed": 3}
    train(two, tmp_path / "run", **asked)
    train(two, tmp_path / "model", model_only=True, **asked)
    assert files(tmp_path / "model") == files(tmp_path / "run" / "model")


def test_it_starts_from_a_run_as_a_run_does(two: Dataset, tmp_path: Path) -> None:
    train(two, tmp_path / "first", C=0.5)
    cold = train(two, tmp_path / "cold", tol=1e-6)
    of_run = train(two, tmp_path / "run", tol=1e-6, start_from=tmp_path / "first")
    alone = train(two, tmp_path / "model", tol=1e-6, start_from=tmp_path / "first", model_only=True)
    assert files(tmp_path / "model") == files(tmp_path / "run" / "model")
    assert alone.passes == of_run.passes < cold.passes


def test_chosen_rows_train_a_model_alone_for_which_a_run_has_no_use(two: Dataset, tmp_path: Path) -> None:
    result = train(two[:200], tmp_path / "model", model_only=True)
    assert (result.n_rows, result.converged) == (200, True)
    with pytest.raises(UsageError, match="expected a whole dataset"):
        train(two[:200], tmp_path / "run")
    train(two, tmp_path / "run")
    with pytest.raises(UsageError, match="start_from: expected a whole dataset, found 200 rows"):
        train(two[:200], tmp_path / "again", model_only=True, start_from=tmp_path / "run")


def test_commands_take_the_model_and_say_that_it_is_one(made: Path, tmp_path: Path) -> None:
    data, model = made / "two", tmp_path / "model"
    done = command_line.run("train", data, model, "--model-only")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"model {model}: 300 rows")
    assert done.stdout.split()[-1] == str(model)
    for line in (
        f"info {model}",
        f"verify {model}",
        f"evaluate {data} {model}",
        f"predict {data} {model} -o {tmp_path / 'out.csv'}",
        f"weights {model}",
        f"export {model} {tmp_path / 'out.txt'} --format liblinear",
    ):
        done = command_line.run(*line.split())
        assert done.returncode == 0, done.stderr
    assert command_line.run_json("info", model)["kind"] == "model"


def test_each_value_of_c_has_its_model(two: Dataset, tmp_path: Path) -> None:
    done = command_line.run("train", two.path, tmp_path / "models", "--model-only", "-C", "0.1,1")
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "models") == ["C=0.1", "C=1.0"]
    assert load_model(tmp_path / "models", 0.1).C == 0.1
    assert command_line.problems(tmp_path / "models") == []


def test_a_result_without_a_run_loads_its_model_and_has_no_log(two: Dataset, tmp_path: Path) -> None:
    result = train(two, tmp_path / "model", model_only=True)
    assert result.model.C == 1.0
    assert "log" not in repr(result)
    for ask in (lambda: result.history, result.plot):
        with pytest.raises(UsageError, match="is a model alone, without a log"):
            ask()


# ---------------------------------------------------------------------------------------------------------------------
# What it is not


@pytest.mark.parametrize("several", [False, True])
def test_a_model_alone_is_neither_resumed_nor_started_from(
    two: Dataset, tmp_path: Path, several: bool
) -> None:
    model, where = tmp_path / "model", tmp_path / "run"
    train(two, model, model_only=True, C=[0.1, 1.0] if several else 1.0)
    before = files(tmp_path)
    lines = (
        ("resume", model),
        ("train", two.path, where, "--start-from", model),
        ("train", two.path, where, "--start-from", model, "--model-only"),
        ("report", model, "-o", tmp_path / "page.html"),
    )
    for line in lines:
        said = refused(*line)
        assert f"{model} is a model alone, not a run" in said
        assert "train' without --model-only makes a run" in said
    assert files(tmp_path) == before


def test_a_run_that_lost_its_configuration_is_no_model_alone(two: Dataset, tmp_path: Path) -> None:
    train(two, tmp_path / "run", C=[0.1, 1.0])
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"is a run that ended before|no config\.json in it"):
        streamcd.resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("option", "because"),
    [
        ("--resume", "no run to go on with"),
        ("--checkpoint-every=5s", "no checkpoints"),
        ("--workers=2", "rounds of workers"),
        ("--scheduler=tcp://localhost:1", "rounds of workers"),
        ("--calibrate", "folds"),
    ],
)
def test_what_needs_a_run_is_refused_by_name(two: Dataset, tmp_path: Path, option: str, because: str) -> None:
    said = refused("train", two.path, tmp_path / "model", "--model-only", option)
    assert f"{option.split('=')[0]}: not with --model-only" in said
    assert because in said
    assert names(tmp_path) == []


def test_a_search_has_no_such_option(two: Dataset, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="model_only"):
        streamcd.tune(two, tmp_path / "search", C=[0.1, 1.0], model_only=True)  # type: ignore[call-arg]


def test_problems_that_do_not_fit_together_are_refused_before_any_work(tmp_path: Path) -> None:
    """A run trains them in groups; here the states of all would stay in memory."""
    data = write_dataset(tmp_path / "data", random_rows(), n_features=60_000)
    costs = np.linspace(0.1, 1.0, 120).tolist()
    asked: dict[str, Any] = {"memory": RESERVED_BYTES, "C": costs, "max_passes": 1}
    with pytest.raises(UsageError, match="do not fit in 210 MB together") as refusal:
        train(data, tmp_path / "model", model_only=True, **asked)
    assert "give a larger --memory, or leave --model-only out" in str(refusal.value)
    assert names(tmp_path) == ["data"]


# ---------------------------------------------------------------------------------------------------------------------
# Its place


def letter(path: Path) -> None:
    (path / "letter").write_text("Dear all\n")


@pytest.fixture
def place(two: Dataset, tmp_path: Path) -> Path:
    """A run, a model, models of a path, and what is none of them."""
    train(two, tmp_path / "run")
    load_model(tmp_path / "run").save(tmp_path / "model")
    train(two, tmp_path / "path", C=[0.1, 0.5], model_only=True)
    for name in ("letters", "mixed", "mixed path"):
        (tmp_path / name).mkdir()
        letter(tmp_path / name)
    load_model(tmp_path / "run").save(tmp_path / "mixed")
    load_model(tmp_path / "run").save(tmp_path / "mixed path" / "C=0.1")
    (tmp_path / "mixed path" / "letter").rename(tmp_path / "mixed path" / "C=0.1" / "letter")
    shutil.copytree(two.path, tmp_path / "data")
    letter(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    return tmp_path


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("run", "is a run, which a model alone does not replace"),
        ("run/model", "is in the run"),
        ("run/dual/new", "is in the run"),
        ("data", "exists and is not a model"),
        ("letters", "exists and is not a model"),
        ("mixed", "exists and is not a model"),
        ("mixed path", "exists and is not a model"),
        ("letter", "exists and is not a model"),
        ("letter/model", "is not a directory"),
        ("nowhere", "exists and is not a model"),
    ],
)
def test_nothing_but_a_model_is_replaced(place: Path, name: str, found: str, force: list[str]) -> None:
    before = files(place)
    said = refused("train", place / "data", place / name, "--model-only", *force)
    assert found in said
    assert "name another place" in said
    assert files(place) == before


@pytest.mark.parametrize("name", ["model", "path"])
@pytest.mark.parametrize("costs", ["2", "2,3"])
def test_a_model_is_replaced_by_force_alone_and_as_a_whole(place: Path, name: str, costs: str) -> None:
    """Of models for other C nothing is left, by which a prediction could go."""
    before, line = files(place / name), ("train", place / "data", place / name, "--model-only", "-C", costs)
    assert "give --force to replace it" in refused(*line)
    assert files(place / name) == before
    done = command_line.run(*line, "--force")
    assert done.returncode == 0, done.stderr
    assert names(place / name) == (["model.json", "weights.npy"] if costs == "2" else ["C=2.0", "C=3.0"])
    assert not [left for left in names(place) if left.startswith(".")]


def test_an_empty_directory_is_taken_and_a_link_to_one_stays_a_link(two: Dataset, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    train(two, tmp_path / "link", model_only=True)
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "empty") == ["model.json", "weights.npy"]
    train(two, tmp_path / "link", model_only=True, force=True, C=2.0)
    assert load_model(tmp_path / "empty").C == 2.0


def test_a_place_where_nobody_may_write_is_refused_before_the_training(
    two: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path or not mode & os.W_OK)
    line = ("train", two.path, tmp_path / "new" / "model", "--model-only")
    said = refused(*line, status=1)
    assert f"{tmp_path}: Permission denied; make this directory writable" in said
    assert names(tmp_path) == []


def test_what_another_process_puts_there_meanwhile_is_left_alone(two: Dataset, tmp_path: Path) -> None:
    def come_first() -> None:
        if not (tmp_path / "model").exists():
            train(two, tmp_path / "model", C=3.0, model_only=True, stop_requested=lambda: None)

    with pytest.raises(UsageError, match="give --force to replace it"):
        train(two, tmp_path / "model", model_only=True, stop_requested=come_first)
    assert names(tmp_path) == ["model"]
    assert load_model(tmp_path / "model").C == 3.0


# ---------------------------------------------------------------------------------------------------------------------
# Ends


def test_an_interrupted_training_leaves_nothing_and_says_so(two: Dataset, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"plan": windows_of(two, 3), "tol": 0.0, "model_only": True}
    with pytest.raises(Interrupted, match="no model was written, and without a run") as stopped:
        train(two, tmp_path / "new" / "model", stop_requested=stopping_after(5), **asked)
    assert "resume" not in str(stopped.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_one_line_and_its_status(
    two: Dataset, tmp_path: Path, signum: int, status: int
) -> None:
    endless = ["--model-only", "--tol", "0", "--max-passes", "100000000"]
    command = ["-m", "streamcd", "train", two.path, tmp_path / "model", *endless]
    process = Forked(command, stdout=DEVNULL, stderr=PIPE)
    assert process.stderr is not None
    while "kept in memory" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    (line,) = errors.splitlines()
    assert line.startswith("streamcd: error: stopped by a signal after pass")
    assert names(tmp_path) == []


def test_a_training_without_time_left_writes_no_model_and_says_so(two: Dataset, tmp_path: Path) -> None:
    train(two, tmp_path / "model", model_only=True)
    before = files(tmp_path)
    line = (
        "train",
        two.path,
        tmp_path / "model",
        "--model-only",
        "--force",
        "--max-seconds",
        "0.000001",
        "-q",
    )
    done = command_line.run(*line)
    assert done.returncode == 0
    (said,) = done.stderr.splitlines()
    assert "warning: not converged: the time was up after 0 passes, and no model was written" in said
    assert str(tmp_path / "model") not in done.stdout.splitlines()[-1]
    assert files(tmp_path) == before
    with pytest.warns(streamcd.ConvergenceWarning, match="no model was written; train again with more time"):
        train(two, tmp_path / "other", model_only=True, max_seconds=1e-9)


@pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")
def test_a_training_whose_time_was_up_has_no_model_not_even_the_one_that_was_there(
    two: Dataset, tmp_path: Path
) -> None:
    train(two, tmp_path / "model", model_only=True)
    late = train(two, tmp_path / "model", model_only=True, force=True, max_seconds=1e-9)
    with pytest.raises(UsageError, match="the time was up, and no model was written"):
        _ = late.model
    line = "train", two.path, tmp_path / "model", "--model-only", "--force", "--max-seconds", "0.000001"
    assert f"no model at {tmp_path / 'model'}" in command_line.run(*line).stdout


def test_a_training_that_falls_short_is_advised_to_begin_anew(two: Dataset, tmp_path: Path) -> None:
    short: dict[str, Any] = {"tol": 1e-12, "max_passes": 1, "model_only": True}
    with pytest.warns(streamcd.ConvergenceWarning, match="train again with more passes") as warned:
        train(two, tmp_path / "model", **short)
    assert "resume" not in str(warned[0].message)
    line = (
        "train",
        two.path,
        tmp_path / "other",
        "--model-only",
        "--tol",
        "1e-12",
        "--max-passes",
        "1",
        "-q",
    )
    said = command_line.run(*line).stderr
    assert "train again with more passes" in said
    assert "resume" not in said


def ended_with(faults: FaultyFiles, call: Callable[[], object], said: int) -> int:
    """The status of a call in a process of its own, with faults: 0, or 1 with its error in a pipe, or a signal's."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            faults.install()
            call()
            status = 0
        except OSError as error:
            os.write(said, json.dumps([error.errno, error.filename, error.__notes__]).encode())
            status = 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("how", ["before", "half", "ENOSPC"])
@pytest.mark.parametrize("costs", [1.0, [1.0, 2.0]])
def test_killed_or_without_space_it_leaves_the_old_model_or_the_new_one(
    two: Dataset, tmp_path: Path, costs: Any, how: str
) -> None:
    """At every operation on files; the next command clears what a killed one has left beside it."""
    old, place = tmp_path / "old", tmp_path / "place"
    train(two, old / "model", C=[0.1, 0.2], model_only=True)
    train(two, tmp_path / "new" / "model", C=costs, model_only=True)

    def call() -> None:
        train(two, place / "model", C=costs, model_only=True, force=True, stop_requested=lambda: None)

    counted, (out, said) = FaultyFiles(), os.pipe()
    shutil.copytree(old, place)
    assert ended_with(counted, call, said) == 0
    assert files(place) == files(tmp_path / "new")
    for at in range(1, counted.count + 1):
        shutil.rmtree(place)
        shutil.copytree(old, place)
        status = ended_with(FaultyFiles(at, how, ALL), call, said)
        assert status == (1 if how == "ENOSPC" else -signal.SIGKILL) or (status, how) == (0, "ENOSPC")
        found = files(place / "model")
        assert found in (files(old / "model"), files(tmp_path / "new" / "model")), f"operation {at}"
        if how != "ENOSPC" or not status:  # a removal that failed leaves a scratch directory
            call()
        else:
            number, filename, notes = json.loads(os.read(out, 1 << 16))
            assert (number, filename, len(notes)) == (errno.ENOSPC, str(place / "model"), 1)
        assert names(place) == ["model"], f"operation {at}"
    os.close(out)
    os.close(said)
