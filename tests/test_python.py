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
        ({"workers": 0}, "at least 1, found 0"),
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
