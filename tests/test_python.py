"""Python equals the command line: workers, history, warnings, progress; what is public, and its examples."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest
from conftest import ROOT
from heard import Heard
from small_datasets import columns_of, multiclass, random_rows, write_dataset

import streamcd
from streamcd.core.errors import CheckpointError, DatasetError, UsageError
from streamcd.core.memory_budget import warn_of_memory
from tools.simulated_cluster import Simulation


def test_rows_in_memory_are_to_be_converted_first(tmp_path):
    """It was said that a run was missing, or that a frame is no path."""
    rows = np.ones((4, 2))
    frame = pa.table({"x": [1.0, 2.0], "y": [0, 1]})
    for call in (
        lambda data: streamcd.train(data),
        lambda data: streamcd.train(data, tmp_path / "run"),
        lambda data: streamcd.tune(data, tmp_path / "run", C=[1.0]),
    ):
        with pytest.raises(
            UsageError, match=r"ndarray; convert it first: streamcd\.convert\(\(X, y\), PATH\)"
        ):
            call(rows)
        with pytest.raises(
            UsageError, match=r"Table; convert it first: streamcd\.convert\(FRAME, PATH, label=COLUMN\)"
        ):
            call(frame)
    with pytest.raises(UsageError, match="expected the path of a run, found none"):
        streamcd.train(write_dataset(tmp_path / "data", random_rows(20, 4, seed=1)))


# ---------------------------------------------------------------------------------------------------------------------
# Workers


def test_workers_of_this_machine_are_an_option_of_python(tmp_path):
    data = write_dataset(tmp_path / "data", random_rows(), n_chunks=4)
    result = streamcd.train(data, tmp_path / "run", workers=2, max_passes=100)
    assert result.converged
    assert set(result.history["workers"].to_pylist()) <= {1, 2}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["rounds"]["shared_memory"] == 10**9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "expected 1 or more, found 0"),
        ({"workers": 2, "scheduler": "tcp://host:1"}, "give one of them"),
        ({"worker_timeout": 2.0}, "worker_timeout is for training on workers"),
        ({"workers": 2, "omega": 1.5}, "omega is for one process"),
    ],
)
def test_workers_that_make_no_sense_are_refused_before_any_is_started(tmp_path, options, message):
    data = write_dataset(tmp_path / "data", random_rows())
    with pytest.raises(UsageError, match=message):
        streamcd.train(data, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------------------------------------------------
# A dataset that was moved


def test_a_run_goes_on_with_a_dataset_that_was_moved(tmp_path):
    write_dataset(tmp_path / "data", random_rows())
    for name in ("whole", "cut"):
        with pytest.warns(streamcd.ConvergenceWarning):
            streamcd.train(tmp_path / "data", tmp_path / name, max_passes=2, tol=1e-9)
    with pytest.warns(streamcd.ConvergenceWarning):
        whole = streamcd.resume(tmp_path / "whole", max_passes=5)
    shutil.move(tmp_path / "data", tmp_path / "moved")
    with pytest.raises(DatasetError, match=r"streamcd\.resume\(RUN, dataset=PATH\)"):
        streamcd.resume(tmp_path / "cut", max_passes=5)
    with pytest.warns(streamcd.ConvergenceWarning):
        moved = streamcd.resume(tmp_path / "cut", max_passes=5, dataset=tmp_path / "moved")
    np.testing.assert_array_equal(whole.model.weights, moved.model.weights)
    assert streamcd.resume(tmp_path / "cut", tol=1e-3, max_passes=1000).converged  # the new place is kept


def test_a_search_goes_on_with_a_dataset_that_was_moved(tmp_path):
    write_dataset(tmp_path / "data", random_rows())
    with pytest.warns(streamcd.ConvergenceWarning):
        streamcd.tune(tmp_path / "data", tmp_path / "run", C=[0.1, 1], max_passes=2, tol=1e-9)
    shutil.move(tmp_path / "data", tmp_path / "moved")
    assert streamcd.resume(tmp_path / "run", tol=1e-3, max_passes=1000, dataset=tmp_path / "moved").converged
    for part in (".", "folds", "best"):
        assert json.loads((tmp_path / "run" / part / "config.json").read_text())["dataset"] == str(
            tmp_path / "moved"
        )


def test_another_dataset_is_refused_as_the_moved_one(tmp_path):
    write_dataset(tmp_path / "data", random_rows())
    write_dataset(tmp_path / "other", random_rows(seed=5))
    streamcd.train(tmp_path / "data", tmp_path / "run")
    before = (tmp_path / "run" / "config.json").read_text()
    with pytest.raises(streamcd.StreamcdError, match="expected the dataset with the fingerprint"):
        streamcd.resume(tmp_path / "run", dataset=tmp_path / "other")
    assert (tmp_path / "run" / "config.json").read_text() == before


# ---------------------------------------------------------------------------------------------------------------------
# History


def documented_fields() -> set[str]:
    """Columns of the history that ``docs/runs.md`` describes."""
    cells = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs" / "runs.md").read_text(), flags=re.MULTILINE)
    return {name.replace(".", "_") for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


def test_every_field_of_the_log_is_a_documented_column_of_the_history(tmp_path):
    data = columns_of(tmp_path / "data", random_rows())
    found = set()
    for name, options in {
        "dual": {},
        "primal": {"method": "primal"},
        "rounds": {"client": Simulation(2), "loss": "log_loss"},
    }.items():
        result = streamcd.train(data, tmp_path / name, **options)
        lines = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        history = result.history
        assert history.num_rows == len(lines)
        assert history["passes"].to_pylist() == [line["passes"] for line in lines]
        assert history["seconds_total"].to_pylist() == [line["seconds"]["total"] for line in lines]
        found |= set(history.column_names)
    assert found == documented_fields()


def test_the_history_of_a_search_names_its_parts_in_the_order_of_training(tmp_path):
    data = write_dataset(tmp_path / "data", multiclass())
    result = streamcd.tune(data, tmp_path / "run", C=[0.1, 1])
    assert result.history["part"].unique().to_pylist() == ["folds", "best"]


def test_records_tell_of_every_read_and_of_the_time_until_it_ended(tmp_path):
    data = write_dataset(tmp_path / "data", random_rows(60, 8, seed=1))
    history = streamcd.train(data, tmp_path / "run", max_passes=30).history
    assert history["read"].to_pylist() == list(range(history.num_rows))
    assert history["kind"].to_pylist()[-1] == "certify"
    seconds = np.cumsum(history["seconds_total"].to_numpy())
    np.testing.assert_allclose(history["elapsed"].to_numpy(), seconds)


def test_a_half_written_line_is_left_out_and_a_damaged_one_named(tmp_path):
    data = write_dataset(tmp_path / "data", random_rows(60, 8, seed=1))
    result, log = streamcd.train(data, tmp_path / "run", max_passes=30), tmp_path / "run" / "log.jsonl"
    whole, n_records = log.read_bytes(), result.history.num_rows
    log.write_bytes(whole[:-5])
    assert result.history.num_rows == n_records - 1
    log.write_bytes(b"{]\n" + whole)
    with pytest.raises(CheckpointError, match=r"log\.jsonl: line 1 is damaged"):
        _ = result.history


# ---------------------------------------------------------------------------------------------------------------------
# Warnings


def test_a_convergence_warning_has_the_gap_and_advice(tmp_path):
    x, y = random_rows()
    data = write_dataset(tmp_path / "data", (x * 30, y))
    with pytest.warns(
        streamcd.ConvergenceWarning, match=r"relative gap is .*rows are badly scaled.*normalize=\"l2\""
    ):
        result = streamcd.train(data, tmp_path / "run", method="dual", tol=1e-12, max_passes=2)
    assert len(result.advice) == 1


def test_bad_scaling_is_told_at_the_start(tmp_path):
    x, y = random_rows()
    data = write_dataset(tmp_path / "data", (x * 5, y))
    for acceleration, at_start in (("none", True), ("auto", False)):
        heard = Heard()
        seen = []
        heard.progress = lambda progress, heard=heard, seen=seen: seen.append(len(heard.warnings))  # type: ignore[method-assign]
        with pytest.warns(streamcd.ConvergenceWarning):
            streamcd.train(
                data,
                tmp_path / acceleration,
                acceleration=acceleration,
                tol=1e-12,
                max_passes=2,
                memory="8GB",  # more than a long test process holds, of which it would be warned
                listener=heard,
            )
        assert len([line for line in heard.warnings if "badly scaled" in line]) == at_start
        assert bool(seen[0]) is at_start


def test_memory_beyond_the_machine_or_used_up_already_is_warned_of(tmp_path):
    heard = Heard()
    warn_of_memory(8 * 10**9, 0, heard)
    assert heard.warnings == []
    warn_of_memory(10**18, 0, heard)
    assert "more than this machine" in heard.warnings.pop()
    ballast = np.ones(50_000_000)  # 400 MB
    warn_of_memory(400_000_000, 0, heard)
    assert "already holds" in heard.warnings.pop()
    streamcd.train(
        write_dataset(tmp_path / "data", random_rows()), tmp_path / "run", memory="400MB", listener=heard
    )
    assert "already holds" in heard.warnings.pop()
    del ballast


# ---------------------------------------------------------------------------------------------------------------------
# Arguments


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arguments")
    write_dataset(folder / "data", random_rows())
    streamcd.train(folder / "data", folder / "run")
    streamcd.load_model(folder / "run").save(folder / "model")
    (folder / "file.txt").write_text("1 1:1\n-1 2:1\n")
    (folder / "empty").mkdir()
    return folder


CALLS = {
    "convert": lambda given, out: streamcd.convert(given, out),
    "convert, dest": lambda given, out: streamcd.convert((np.eye(3), np.arange(3)), given),
    "convert, like": lambda given, out: streamcd.convert((np.eye(3), np.arange(3)), out, like=given),
    "convert, weights": lambda given, out: streamcd.convert((np.eye(3), np.arange(3)), out, weights=given),
    "merge": lambda given, out: streamcd.merge(given, out),
    "merge, several": lambda given, out: streamcd.merge([given, given], out),
    "open": lambda given, out: streamcd.open(given),
    "make_columns": lambda given, out: streamcd.make_columns(given, force=True),
    "train": lambda given, out: streamcd.train(given, out),
    "train, run": lambda given, out: streamcd.train("data", given),
    "train, code": lambda given, out: streamcd.train("data", out, code=given),
    "train, class_weight": lambda given, out: streamcd.train("data", out, class_weight=given),
    "train, start_from": lambda given, out: streamcd.train("data", out, start_from=given),
    "train, max_passes": lambda given, out: streamcd.train("data", out, max_passes=given),
    "tune": lambda given, out: streamcd.tune(given, out, C=[0.1, 1], cv=2),
    "resume": lambda given, out: streamcd.resume(given),
    "load_model": lambda given, out: streamcd.load_model(given),
    "load_model, C": lambda given, out: streamcd.load_model("run", given),
    "load_checkpoint": lambda given, out: streamcd.load_checkpoint(given),
    "export": lambda given, out: streamcd.export(given, out),
    "export, path": lambda given, out: streamcd.export("run", given),
    "weights": lambda given, out: streamcd.weights(given),
    "weights, top": lambda given, out: streamcd.weights("run", given),
    "evaluate": lambda given, out: streamcd.evaluate(given, "run"),
    "evaluate, model": lambda given, out: streamcd.evaluate("data", given),
    "predict": lambda given, out: streamcd.predict(given, "run"),
    "predict, model": lambda given, out: streamcd.predict("data", given),
    "predict, out": lambda given, out: streamcd.predict("data", "run", given),
    "write_report": lambda given, out: streamcd.write_report(given, out + ".html"),
    "solve_box_qp": lambda given, out: streamcd.solve_box_qp(given, np.ones(2), 0.0, 1.0),
}


@pytest.mark.parametrize("call", CALLS)
def test_arguments_of_another_kind_are_refused_in_one_line_or_understood(folder, monkeypatch, tmp_path, call):
    """`export` of a path was an AttributeError, `train` without a path a TypeError of pathlib's."""
    shutil.copytree(folder, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    given = [
        None,
        3,
        "nowhere",
        "data",
        "run",
        "model",
        "file.txt",
        "empty",
        np.eye(3),
        object(),
        [1, 2],
        b"x",
    ]
    given += [streamcd.open("data"), streamcd.load_model("run"), streamcd.resume("run")]
    for number, argument in enumerate(given):
        try:
            CALLS[call](argument, f"out{number}")
        except streamcd.StreamcdError as error:
            said = str(error)
            assert "--" not in said
            assert "\n" not in said


def test_a_run_is_taken_by_its_path_its_result_and_its_model(folder, tmp_path):
    result = streamcd.resume(folder / "run")
    expected = streamcd.weights(result.model)
    for number, run in enumerate(
        [str(folder / "run"), folder / "run", folder / "model", result, result.model]
    ):
        assert streamcd.weights(run) == expected
        assert streamcd.export(run, tmp_path / f"{number}.json") == "json"
    assert len({path.read_bytes() for path in tmp_path.glob("*.json")}) == 1


def test_a_misspelt_keyword_is_refused_with_the_nearest_one(folder, tmp_path):
    for call, near in (
        (lambda: streamcd.train(folder / "data", tmp_path / "run", los="hinge"), "loss"),
        (lambda: streamcd.convert(folder / "file.txt", tmp_path / "d", normalise="l2"), "normalize"),
        (lambda: streamcd.load_model(folder / "run", memry="1GB"), "memory"),
        (lambda: streamcd.predict(folder / "data", folder / "run", probas=True), "proba"),
    ):
        with pytest.raises(streamcd.errors.KeywordError, match=f"did you mean '{near}'"):
            call()
    with pytest.raises(streamcd.errors.UsageError, match="max_passes: expected int, found 'many'"):
        streamcd.train(folder / "data", tmp_path / "run", max_passes="many")
    assert streamcd.train(folder / "data", tmp_path / "run", max_passes=1e3, memory=1e9).converged


def test_listeners_of_python_hear_of_keywords(folder):
    heard = Heard()
    streamcd.predict([np.eye(8)[:2]], folder / "run", workers=2, listener=heard)
    assert "continuing with workers 1" in " ".join(heard.warnings)


# ---------------------------------------------------------------------------------------------------------------------
# Predictions as an array


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        (np.array([-1, 1]), {}),
        (np.array(["no", "yes"]), {"loss": "log_loss"}),
        (np.array([0.5, 1.5, 2.5]), {"loss": "log_loss"}),
        (np.array(["a", "b", "c"]), {"loss": "multinomial"}),
        (np.array([3, 5]), {"loss": "twin"}),
        (np.array([3, 5]), {"loss": "crammer_singer"}),
        (None, {}),
    ],
)
def test_predictions_without_a_file_are_an_array_in_the_order_of_the_source(tmp_path, labels, options):
    x = np.random.default_rng(0).standard_normal((200, 4))
    y = x[:, 0] * 2 if labels is None else labels[np.random.default_rng(1).integers(0, labels.size, 200)]
    data = streamcd.convert((x, y), tmp_path / "data", target=labels is None, chunk_size=1000)
    model = streamcd.train(data, tmp_path / "run", **options).model
    wanted, decided = model.predict(x), model.decision_function(x)
    if labels is not None and labels.size == 2 and decided.ndim == 2:
        decided = decided[:, 1] - decided[:, 0]
    for source in (x, tmp_path / "data", data, iter([x[:50], x[50:]])):
        found = streamcd.predict(source, model)
        assert found.dtype == wanted.dtype
        same = np.testing.assert_allclose if labels is None else np.testing.assert_array_equal
        same(found, wanted)
    for source in (x, data):
        np.testing.assert_allclose(streamcd.predict(source, model, decision=True), decided, atol=1e-6)
        if model.has_probabilities:
            found = streamcd.predict(source, model, proba=True)
            np.testing.assert_allclose(found, model.predict_proba(x), atol=1e-6)
    with pytest.raises(UsageError, match="decision and proba exclude each other"):
        streamcd.predict(x, model, decision=True, proba=True)


def test_workers_predict_the_same_array(folder):
    alone = streamcd.predict(folder / "data", folder / "run")
    np.testing.assert_array_equal(streamcd.predict(folder / "data", folder / "run", workers=2), alone)


def test_an_array_that_does_not_fit_is_refused_by_arithmetic(tmp_path):
    x = np.eye(2)
    data = streamcd.convert((x, np.array(["a", "b" * 100_000])), tmp_path / "data")  # 400 kB a label
    streamcd.train(data, tmp_path / "run")
    many = streamcd.convert((np.ones((2000, 2)), np.arange(2000) % 2), tmp_path / "many")
    blocks = (np.ones((10, 2)) for _ in range(10**9))
    for source in (many, blocks):
        with pytest.raises(
            streamcd.errors.BudgetError, match=r"predictions in an array .* needed; give a larger memory"
        ):
            streamcd.predict(source, tmp_path / "run", memory="400MB")
