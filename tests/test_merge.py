"""Datasets merged, and trainings that start from a run on some of their shards."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from heard import Heard
from interrupted import Interrupted, ended, log, resume_by_turns, stopping_after
from small_datasets import multiclass, random_rows, windows_of
from test_hosts import Simulation

import streamcd
from streamcd import Dataset, StreamcdError
from streamcd.kernels.loss_table import SOLVERS, SolverEntry

Rows = tuple[sp.csr_array, np.ndarray]
SMALL: dict[str, Any] = {"chunk_size": "4kB", "shard_size": "20kB"}
STRICT: dict[str, Any] = {"tol": 1e-6, "max_passes": 20_000}


def convert(rows: Rows, path: Path, start: int, stop: int | None = None, **options: Any) -> Dataset:
    given: dict[str, Any] = {"target": True} if np.unique(rows[1]).size > 30 else {}
    part = rows[0][start:stop], rows[1][start:stop]
    return streamcd.convert(part, path, **SMALL | given | options)


def merged(folder: Path, rows: Rows, *cuts: int, **options: Any) -> Dataset:
    """Convert ranges of rows, ``part-0`` and so on, and merge them to ``all``."""
    ends = [0, *cuts, len(rows[1])]
    parts = [
        convert(rows, folder / f"part-{number}", start, stop, **options)
        for number, (start, stop) in enumerate(pairwise(ends))
    ]
    return streamcd.merge(parts, folder / "all")


def figures(dataset: Dataset) -> dict[str, np.ndarray]:
    blocks = list(dataset.read_features())
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


# ---------------------------------------------------------------------------------------------------------------------
# Datasets


def test_a_merged_dataset_has_all_rows_in_order_and_the_statistics_of_one(tmp_path: Path) -> None:
    rows = random_rows(900, 30)
    found, whole = merged(tmp_path, rows, 300, 450), convert(rows, tmp_path / "whole", 0)
    assert found.verify() == []
    assert (found.n_rows, found.n_shards) == (
        900,
        sum(len(list(tmp_path.glob(f"part-{k}/rows/*"))) for k in range(3)),
    )
    for one, other in zip(found.to_scipy(), whole.to_scipy(), strict=True):
        assert np.array_equal(*(part.toarray() if sp.issparse(part) else part for part in (one, other)))
    assert found.info()["class_counts"] == whole.info()["class_counts"]
    for name, column in figures(whole).items():
        np.testing.assert_allclose(figures(found)[name], column, rtol=1e-12, atol=1e-15)
    norms = found.manifest["row_norms"], whole.manifest["row_norms"]
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)
    streamcd.make_columns(found)
    assert found.verify() == []


def test_shards_are_linked_and_outlive_the_datasets_that_they_came_from(tmp_path: Path) -> None:
    found = merged(tmp_path, random_rows(600, 20), 200)
    files = [*(tmp_path / "all" / "entries").iterdir()]
    assert all(file.stat().st_nlink == 2 for file in files)
    for number in range(2):
        shutil.rmtree(tmp_path / f"part-{number}")
    assert found.verify() == []


def test_shards_are_copied_where_the_file_system_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert merged(tmp_path, random_rows(600, 20), 200).verify() == []


def test_merged_datasets_merge_again_and_predictions_have_the_order_of_the_rows(tmp_path: Path) -> None:
    rows = random_rows(600, 20)
    first = merged(tmp_path, rows, 200)
    more = convert(rows, tmp_path / "more", 0, 100)
    found = streamcd.merge([first, more, tmp_path / "part-1"], tmp_path / "again")
    assert found.verify() == []
    assert found.n_rows == 1100
    streamcd.train(found, tmp_path / "run")
    streamcd.predict(found, tmp_path / "run", tmp_path / "p.csv", decision=True)
    decisions = pd.read_csv(tmp_path / "p.csv")["decision"]
    model = streamcd.load_model(tmp_path / "run")
    expected = model.decision_function(sp.vstack([rows[0], rows[0][:100], rows[0][200:]]).astype(np.float32))
    np.testing.assert_allclose(decisions, expected, rtol=1e-5, atol=1e-6)


def test_tables_of_tomorrow_are_encoded_like_today_and_merged(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "key": [f"r{k}" for k in range(90)],
            "x": [None if k % 7 == 0 else k / 9 for k in range(90)],
            "city": ["Oslo", "Rome", "Lima"] * 30,
            "month": np.repeat([1, 2, 3], 30),
            "y": ["no", "yes"] * 45,
        }
    )
    today = streamcd.convert(frame[:50], tmp_path / "mon", label="y", id="key", fold="month", scale="maxabs")
    other = frame[50:].assign(city=lambda found: found["city"].replace("Lima", "Turin"))
    tomorrow = streamcd.convert(other, tmp_path / "tue", like=today.path)
    found = streamcd.merge([today, tomorrow], tmp_path / "all")
    assert found.verify() == []
    assert [key for part in found.read_kept("key") for key in part.to_pylist()] == frame["key"].tolist()
    assert found.info()["class_counts"] == [45, 45]
    missing = {use["column"]: use["missing"] for use in found.info()["table"]}
    assert missing["x"] == frame["x"].isna().sum()
    streamcd.train(found, tmp_path / "run", loss="log_loss")
    streamcd.predict(pd.concat([frame[:50], other]), tmp_path / "run", tmp_path / "frame.csv")
    streamcd.predict(found, tmp_path / "run", tmp_path / "data.csv")
    assert (tmp_path / "frame.csv").read_text() == (tmp_path / "data.csv").read_text()


def test_classes_and_widths_of_numbers_are_those_of_all(tmp_path: Path) -> None:
    rows = multiclass(n_rows=300)
    narrow = streamcd.convert((rows[0][:100, :5], np.ones(100)), tmp_path / "narrow")
    found = streamcd.merge([narrow, convert(rows, tmp_path / "wide", 100)], tmp_path / "all")
    assert found.n_features == rows[0].shape[1]
    assert found.classes.tolist() == sorted({1.0, *rows[1][100:]})
    assert found.verify() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "float64"}, "value dtype differs"),
        ({"normalize": "l2"}, "scaling differs"),
        ({"scale": "maxabs"}, "scaling differs"),
        ({"target": True}, "kind of labels differs"),
        ({"compact": True}, "compact differs"),
    ],
)
def test_datasets_encoded_in_another_way_are_refused_by_name(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    rows = random_rows(200, 20)
    first = convert(rows, tmp_path / "a", 0, 100)
    other = streamcd.convert((rows[0][100:], rows[1][100:]), tmp_path / "b", **options)
    with pytest.raises(StreamcdError, match=f"b: {said} from that of .*a: .*convert it with like"):
        streamcd.merge([first, other], tmp_path / "all")
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("order", [("plain", "with keys"), ("with keys", "plain")])
def test_datasets_that_keep_other_columns_are_refused_by_name(tmp_path: Path, order: tuple[str, str]) -> None:
    frame = pd.DataFrame({"key": [f"r{k}" for k in range(40)], "x": np.arange(40.0), "y": [0, 1] * 20})
    streamcd.convert(frame[["x", "y"]], tmp_path / "plain", label="y")
    streamcd.convert(frame, tmp_path / "with keys", label="y", id="key")
    with pytest.raises(StreamcdError, match=f"{order[1]}: columns kept beside the rows differs"):
        streamcd.merge([tmp_path / name for name in order], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_an_output_that_is_there_or_an_input_is_refused(tmp_path: Path) -> None:
    rows = random_rows(200, 20)
    a, b = convert(rows, tmp_path / "a", 0, 100), convert(rows, tmp_path / "b", 100)
    with pytest.raises(StreamcdError, match="holds the input"):
        streamcd.merge([a, b], tmp_path / "a", force=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StreamcdError, match="exists and is not a dataset"):
        streamcd.merge([a, b], tmp_path / "file", force=True)
    with pytest.raises(StreamcdError, match="two datasets or more"):
        streamcd.merge([a], tmp_path / "all")
    done = command_line.run_json("merge", tmp_path / "a", tmp_path / "b", tmp_path / "all")
    assert done["n_rows"] == 200
    again = command_line.run("merge", tmp_path / "a", tmp_path / "b", tmp_path / "all")
    assert (again.returncode, "replace it with --force" in again.stderr) == (2, True)
    assert (
        command_line.run("merge", tmp_path / "a", tmp_path / "b", tmp_path / "all", "--force").returncode == 0
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "all", "b", "file"]


# ---------------------------------------------------------------------------------------------------------------------
# Starts


def started(folder: Path, rows: Rows, n_old: int, *, listener: Heard | None = None, **asked: Any) -> Any:
    """Train on the first rows and then, from there and from nothing, on all of them."""
    data = merged(folder, rows, n_old)
    old = folder / "part-0"
    if asked.get("method") in ("primal", "online", "working-set"):
        streamcd.make_columns(data)
        streamcd.make_columns(old)
    streamcd.train(old, folder / "old", **asked)
    shutil.rmtree(old)  # the run tells the shards that it knew
    warm = streamcd.train(data, folder / "warm", start_from=folder / "old", listener=listener, **asked)
    return warm, streamcd.train(data, folder / "cold", **asked)


def same_optimum(warm: Any, cold: Any, tol: float = 1e-6) -> bool:
    assert warm.converged
    return abs(warm.primal_objective - cold.primal_objective) <= 3 * tol * abs(cold.primal_objective)


@pytest.mark.parametrize("entry", SOLVERS.values(), ids=str)
def test_every_method_ends_at_the_optimum_of_all_rows(tmp_path: Path, entry: SolverEntry) -> None:
    asked: dict[str, Any] = {"loss": entry.loss, "method": entry.method, "tol": 1e-4, "max_passes": 5000}
    asked |= {"penalty": "elasticnet"} if entry.method == "working-set" else {}
    rows = random_rows(600, 12)
    if entry.has_targets:
        y = np.asarray(rows[0] @ np.random.default_rng(3).standard_normal(12))
        rows = rows[0], y + 0.3 * np.random.default_rng(4).standard_normal(600)
    told = Heard()
    warm, cold = started(tmp_path, rows, 560, listener=told, bias=1.0, **asked)
    assert same_optimum(warm, cold, 1e-4)
    kept = "dual variables" if entry.keeps_alpha else "weights"
    assert any(
        f"starts from the {kept} of" in text and "knew 560 of 600 rows" in text for text in told.messages
    )


@pytest.mark.parametrize("seed", [0, 2])
def test_a_hundredth_more_rows_take_a_third_of_the_passes(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4000, 20)).astype(np.float32)
    y = np.where(x @ rng.standard_normal(20) + 3.0 * rng.standard_normal(4000) > 0, 1.0, -1.0)
    warm, cold = started(tmp_path, (sp.csr_array(x), y), 3960, loss="hinge", method="dual")
    assert same_optimum(warm, cold, 1e-3)
    assert warm.passes <= cold.passes / 3


@pytest.mark.parametrize("loss", ["hinge", "log_loss", "crammer_singer", "multinomial"])
def test_a_directory_less_is_summed_anew(tmp_path: Path, loss: str) -> None:
    """Old rows go by leaving their dataset out; with balanced weights those of the classes change, too."""
    rows = multiclass(n_rows=600)
    data = merged(tmp_path, rows, 200, 400)
    asked: dict[str, Any] = {"loss": loss, "method": "dual", "class_weight": "balanced", **STRICT}
    streamcd.train(data, tmp_path / "old", **asked)
    less = streamcd.merge([tmp_path / "part-1", tmp_path / "part-2"], tmp_path / "less")
    warm = streamcd.train(less, tmp_path / "warm", start_from=tmp_path / "old", **asked)
    cold = streamcd.train(less, tmp_path / "cold", **asked)
    assert same_optimum(warm, cold)


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
def test_features_that_are_new_begin_at_0(tmp_path: Path, loss: str) -> None:
    x, y = random_rows(500, 12)
    streamcd.convert((x[:450, :9], y[:450]), tmp_path / "part-0", **SMALL)
    convert((x, y), tmp_path / "part-1", 450)
    asked: dict[str, Any] = {"loss": loss, "method": "dual", "C": [0.1, 1.0], **STRICT}
    streamcd.train(tmp_path / "part-0", tmp_path / "old", **asked)
    data = streamcd.merge([tmp_path / "part-0", tmp_path / "part-1"], tmp_path / "all")
    warm = streamcd.train(data, tmp_path / "warm", start_from=tmp_path / "old", **asked)
    assert same_optimum(warm, streamcd.train(data, tmp_path / "cold", **asked))


def test_features_that_are_gone_are_left_out(tmp_path: Path) -> None:
    """The dataset that had the last features goes: their weights have no place, and the bias's is not theirs."""
    x, y = random_rows(500, 12)
    streamcd.convert((x[:450, :9], y[:450]), tmp_path / "part-0", **SMALL)
    convert((x, y), tmp_path / "part-1", 450)
    asked: dict[str, Any] = {"loss": "log_loss", "method": "dual", "bias": 1.0, **STRICT}
    data = streamcd.merge([tmp_path / "part-0", tmp_path / "part-1"], tmp_path / "all")
    streamcd.train(data, tmp_path / "old", **asked)
    less = streamcd.open(tmp_path / "part-0")
    assert less.n_features < data.n_features
    warm = streamcd.train(less, tmp_path / "warm", start_from=tmp_path / "old", **asked)
    assert same_optimum(warm, streamcd.train(less, tmp_path / "cold", **asked))


def test_other_classes_and_no_known_shard_are_refused(tmp_path: Path) -> None:
    x, y = random_rows(300, 12)
    convert((x, y), tmp_path / "old data", 0, 100)
    streamcd.train(tmp_path / "old data", tmp_path / "old", method="dual")
    other = convert((x, y), tmp_path / "other", 100)
    with pytest.raises(StreamcdError, match=r"expected a shard that .* was trained on, found none"):
        streamcd.train(other, tmp_path / "new", method="dual", start_from=tmp_path / "old")
    convert((x, np.full(300, 7.0)), tmp_path / "third", 200)
    data = streamcd.merge([tmp_path / "old data", tmp_path / "third"], tmp_path / "all")
    with pytest.raises(StreamcdError, match=r"start_from|warm start"):
        streamcd.train(data, tmp_path / "new", method="dual", start_from=tmp_path / "old")
    assert not (tmp_path / "new").exists()


def test_a_run_that_does_not_tell_its_shards_is_no_start_for_other_data(tmp_path: Path) -> None:
    data = merged(tmp_path, multiclass(n_rows=300), 250)
    streamcd.train(tmp_path / "part-0", tmp_path / "old", max_passes=2)
    shutil.rmtree(tmp_path / "old" / "data")
    with pytest.raises(StreamcdError, match="old does not tell the shards that it was trained on"):
        streamcd.train(data, tmp_path / "new", start_from=tmp_path / "old")
    assert not (tmp_path / "new").exists()


def test_a_start_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    """Windows of two chunks, dual variables in pages on disk, two values of C."""
    data = merged(tmp_path, multiclass(n_rows=600), 560)
    asked: dict[str, Any] = {"loss": "log_loss", "C": [0.1, 1.0], "bias": 1.0, "tol": 1e-5}
    streamcd.train(tmp_path / "part-0", tmp_path / "old", **asked)
    asked |= {"plan": windows_of(data, 2), "start_from": tmp_path / "old", "checkpoint_every": 1e-9}
    whole = streamcd.train(data, tmp_path / "whole", **asked)
    with pytest.raises(Interrupted):
        streamcd.train(data, tmp_path / "turns", **asked, stop_requested=stopping_after(3))
    resume_by_turns(tmp_path / "turns", [5, 2])
    assert ended(tmp_path / "turns") == ended(tmp_path / "whole")
    assert whole.converged


def test_past_its_first_read_a_run_does_without_the_one_it_started_from(tmp_path: Path) -> None:
    data = merged(tmp_path, multiclass(n_rows=600), 560)
    asked: dict[str, Any] = {"loss": "log_loss", "tol": 1e-5, "plan": windows_of(data, 2)}
    streamcd.train(tmp_path / "part-0", tmp_path / "old", **asked)
    asked |= {"start_from": tmp_path / "old", "C": 2.0}
    streamcd.train(data, tmp_path / "whole", **asked)
    for n_windows, name in ((2, "early"), (20, "later")):
        with pytest.raises(Interrupted):
            streamcd.train(data, tmp_path / name, **asked, stop_requested=stopping_after(n_windows))
    assert log(tmp_path / "later")
    shutil.rmtree(tmp_path / "old")
    streamcd.resume(tmp_path / "later")
    assert ended(tmp_path / "later") == ended(tmp_path / "whole")
    with pytest.raises(StreamcdError, match=rf"{tmp_path / 'old'} does not exist"):
        streamcd.resume(tmp_path / "early")


@pytest.mark.parametrize("loss", ["hinge", "log_loss", "multinomial"])
def test_workers_start_from_a_run_of_one_process_and_the_other_way_round(tmp_path: Path, loss: str) -> None:
    data = merged(tmp_path, multiclass(n_rows=500), 480)
    asked: dict[str, Any] = {"loss": loss, "method": "dual", "tol": 1e-5, "max_passes": 3000}
    cold = streamcd.train(data, tmp_path / "cold", **asked)
    on_workers = {"client": Simulation(2), "memory": "1GB"}
    streamcd.train(tmp_path / "part-0", tmp_path / "old", **asked)
    warm = streamcd.train(data, tmp_path / "warm", start_from=tmp_path / "old", **asked, **on_workers)
    assert same_optimum(warm, cold, 1e-5)
    streamcd.train(tmp_path / "part-0", tmp_path / "old2", **asked, **on_workers)
    shutil.rmtree(tmp_path / "part-0")
    warm = streamcd.train(data, tmp_path / "warm2", start_from=tmp_path / "old2", **asked)
    assert same_optimum(warm, cold, 1e-5)
