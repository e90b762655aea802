"""Blocks of rows from memory: sources of any length for conversion, prediction and evaluation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp

import streamcd

N_ROWS = 300


@pytest.fixture(scope="module")
def rows() -> tuple[sp.csr_array, np.ndarray]:
    rng = np.random.default_rng(0)
    x = sp.random(N_ROWS, 20, density=0.3, format="csr", random_state=1, dtype=np.float64)
    return sp.csr_array(x), np.where(x @ rng.standard_normal(20) > 0, "yes", "no")


def blocks(x: Any, *columns: np.ndarray) -> Iterator[Any]:
    for start in range(0, N_ROWS, 70):
        yield (x[start : start + 70], *(column[start : start + 70] for column in columns))


def test_blocks_are_the_dataset_of_all_rows_with_and_without_weights(tmp_path: Path, rows: Any) -> None:
    x, y = rows
    weight = np.linspace(0.5, 2.0, N_ROWS)
    for columns in ((y,), (y, weight)):
        whole = streamcd.convert((x, *columns), tmp_path / "whole", force=True)
        parts = streamcd.convert(blocks(x, *columns), tmp_path / "parts", force=True)
        dense = streamcd.convert(blocks(x.toarray(), *columns), tmp_path / "dense", force=True)
        assert whole.fingerprint == parts.fingerprint == dense.fingerprint


@pytest.mark.parametrize("options", [{}, {"scale": "maxabs"}], ids=str)
def test_blocks_are_predicted_and_evaluated_as_the_dataset(
    tmp_path: Path, rows: Any, options: dict[str, Any]
) -> None:
    x, y = rows
    data = streamcd.convert((x, y), tmp_path / "data", dtype="float64", **options)
    streamcd.train(data, tmp_path / "run", loss="log_loss")
    streamcd.predict(data, tmp_path / "run", tmp_path / "data.csv", decision=True)
    expected = (tmp_path / "data.csv").read_text()
    for number, source in enumerate(
        [blocks(x, y), (part for part, _ in blocks(x, y)), (x, y), x, x.toarray()]
    ):
        done = streamcd.predict(source, tmp_path / "run", tmp_path / f"{number}.csv", decision=True)
        assert done["n_rows"] == N_ROWS
        assert (tmp_path / f"{number}.csv").read_text() == expected
    assert streamcd.evaluate(blocks(x, y), tmp_path / "run") == streamcd.evaluate(data, tmp_path / "run")
    with pytest.raises(ValueError, match="expected a label"):
        streamcd.evaluate(x, tmp_path / "run")


def test_record_batches_are_a_table(tmp_path: Path) -> None:
    table = pa.table({"a": np.arange(90.0), "c": ["u", "v", "w"] * 30, "y": np.arange(90) % 2})
    data = streamcd.convert(table, tmp_path / "data", label="y")
    parts = streamcd.convert(iter(table.to_batches(max_chunksize=7)), tmp_path / "parts", label="y")
    assert parts.fingerprint == data.fingerprint
    streamcd.train(data, tmp_path / "run")
    streamcd.predict(iter(table.to_batches(max_chunksize=7)), tmp_path / "run", tmp_path / "p.txt")
    streamcd.predict(data, tmp_path / "run", tmp_path / "q.txt")
    assert (tmp_path / "p.txt").read_text() == (tmp_path / "q.txt").read_text()


def test_a_million_rows_of_blocks_are_converted_within_the_memory(tmp_path: Path) -> None:
    code = """
import sys
import numpy as np, scipy.sparse as sp, streamcd
def blocks():
    rng = np.random.default_rng(0)
    for _ in range(200):
        indices = np.sort(rng.integers(0, 1000, (5000, 10)), axis=1)
        indices[:, 1:] += np.arange(1, 10)
        starts = np.arange(0, 50001, 10)
        yield sp.csr_array((np.ones(50000), indices.ravel(), starts), shape=(5000, 1010)), rng.integers(0, 2, 5000)
data = streamcd.convert(blocks(), sys.argv[1], memory="300MB")
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(data.n_rows, int(peak.split()[1]) * 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    n_rows, peak = map(int, done.stdout.split())
    assert (n_rows, peak <= 300e6) == (1_000_000, True)


def test_blocks_unlike_the_first_are_refused_by_row(tmp_path: Path, rows: Any) -> None:
    x, y = rows[0].toarray(), rows[1]
    weight = np.ones(N_ROWS)
    first, second = slice(0, 100), slice(100, N_ROWS)
    for given, expected in [
        (
            [(x[first], y[first]), (x[second], y[second], weight[second])],
            "row 101: expected 20 columns without weights",
        ),
        (
            [(x[first], y[first], weight[first]), (x[second], y[second])],
            "row 101: expected 20 columns with weights",
        ),
        ([(x[first], y[first]), (x[second, 1:], y[second])], "row 101: expected 20 columns"),
    ]:
        with pytest.raises(streamcd.StreamcdError, match=expected):
            streamcd.convert(given, tmp_path / "data")


@pytest.mark.parametrize("widths", [(5, 6), (6, 5)])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_blocks_and_files_of_different_widths_are_refused_unless_the_number_of_features_is_given(
    tmp_path: Path, widths: tuple[int, int], kind: Any
) -> None:
    """Of a narrower block it was not known whether features were missing."""
    given = [(kind(np.ones((2, width))), np.array([0, 1])) for width in widths]
    (tmp_path / "files").mkdir()
    for number, (x, y) in enumerate(given):
        if isinstance(x, np.ndarray):
            np.save(tmp_path / f"files/{number}.npy", np.column_stack([x, y]))
        else:
            parts = {"indptr": x.indptr, "indices": x.indices, "data": x.data, "shape": x.shape, "y": y}
            np.savez(tmp_path / f"files/{number}.npz", format=b"csr", **parts)
    options = {"label": "-1"} if kind is np.asarray else {}
    expected = "block 2, row 3: expected .*{} columns.*found .*{} columns.*n_features=".format(*widths)
    with pytest.raises(streamcd.StreamcdError, match=expected):
        streamcd.convert(iter(given), tmp_path / "data")
    with pytest.raises(streamcd.StreamcdError, match=r"1\.np.: expected . columns, .*give n_features"):
        streamcd.convert(tmp_path / "files", tmp_path / "data", **options)
    assert streamcd.convert(iter(given), tmp_path / "blocks", n_features=7).n_features == 7
    assert streamcd.convert(tmp_path / "files", tmp_path / "data", n_features=7, **options).n_features == 7


def test_frames_of_different_columns_are_refused_by_block(tmp_path: Path) -> None:
    """Columns that the first had not were left out in silence."""
    frame = pd.DataFrame({"a": [1, 2, 3], "y": [0, 1, 0]})
    for given, found in [((frame, frame.assign(b=1)), "'b' besides"), ((frame.assign(b=1), frame), "no 'b'")]:
        with pytest.raises(
            streamcd.StreamcdError, match=f"block 2, row 4: expected the columns .* found {found}"
        ):
            streamcd.convert(iter(given), tmp_path / "data", label="y")
    # an index is no column
    assert streamcd.convert(iter([frame, frame[frame.a > 1]]), tmp_path / "data", label="y").n_rows == 5


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA], ids=str)
def test_a_missing_name_of_a_class_is_no_class(tmp_path: Path, rows: Any, missing: Any) -> None:
    x, y = rows
    labels = np.array(y, dtype=object)
    labels[4] = missing
    with pytest.raises(streamcd.StreamcdError, match="row 5: expected a label"):
        streamcd.convert((x, labels), tmp_path / "data")


def test_a_frame_and_its_labels_are_evaluated_whatever_the_name_of_the_label(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((60, 3))
    frame = pd.DataFrame(x, columns=list("abc"))
    streamcd.convert(frame.assign(bought=x[:, 0] > 0), tmp_path / "data", label="bought")
    streamcd.train(tmp_path / "data", tmp_path / "run")
    found = streamcd.evaluate((frame, x[:, 0] > 0), tmp_path / "run")
    assert found["accuracy"] == streamcd.evaluate(tmp_path / "data", tmp_path / "run")["accuracy"]


def test_no_blocks_are_told(tmp_path: Path, rows: Any) -> None:
    streamcd.train(streamcd.convert(rows, tmp_path / "data"), tmp_path / "run")
    with pytest.raises(streamcd.StreamcdError, match="there is no batch"):
        streamcd.predict([], tmp_path / "run", tmp_path / "out.csv")
