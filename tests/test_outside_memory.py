"""Memory from outside: the peak of a process, by the kernel and by its own word, is at most ``--memory``.

One case a method, on 192 MB of entries, more than 300 MB have room for beside the interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse as sp

ROWS, FEATURES, ENTRIES = 400_000, 160, 40
BUDGET = 300_000_000
START = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(status)
"""
"""A small process that starts the other: the kernel's peak of a child begins with that of the one who started it."""


def command(folder: Path, *arguments: object) -> dict[str, Any]:
    """The object of a command run within 300 MB in a process of its own, which has to stay within them."""
    words = [sys.executable, "-m", "streamcd", *map(str, arguments), "--memory", "300MB", "--json", "-q"]
    start = [sys.executable, "-S", "-E", "-c", START, str(folder / "peak"), *words]
    done = subprocess.run(start, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    peak = max(int((folder / "peak").read_text()), result.get("peak_memory_bytes", 0))
    print(f"{peak / 1e6:.0f} MB of {BUDGET / 1e6:.0f} MB")
    assert 50e6 < peak <= BUDGET, f"{peak:,} bytes of {BUDGET:,}"
    return result


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two classes with both layouts, made within the same memory from a file."""
    folder = tmp_path_factory.mktemp("memory")
    rng = np.random.default_rng(0)
    stride = FEATURES // ENTRIES  # one feature in each stretch: ascending without sorting
    feature = np.arange(ENTRIES, dtype=np.int32) * stride
    feature = feature + rng.integers(0, stride, (ROWS, ENTRIES), dtype=np.int32)
    value = rng.random((ROWS, ENTRIES))
    value -= 0.5
    label = np.einsum(
        "rk,rkc->rc", value[:, :20], rng.standard_normal((FEATURES, 2))[feature[:, :20]]
    ).argmax(1)
    matrix = sp.csr_matrix(
        (value.reshape(-1), feature.reshape(-1), np.arange(ROWS + 1) * ENTRIES), shape=(ROWS, FEATURES)
    )
    sp.save_npz(folder / "rows.npz", matrix, compressed=False)
    np.save(folder / "labels.npy", label)
    del feature, value, matrix
    options = ["--label", folder / "labels.npy", "--dtype", "float64", "--shard-size", "32MB"]
    assert command(folder, "convert", folder / "rows.npz", folder / "data", *options)["n_rows"] == ROWS
    (folder / "rows.npz").unlink()
    command(folder, "columns", folder / "data")
    return folder / "data"


TRAININGS = {
    "dual": "--loss hinge",
    "dual, log loss": "--loss log_loss --bias 1 --unpenalized-bias",
    "primal": "--loss log_loss --method primal",
    "online": "--loss squared_hinge --method online",
    "working-set": "--loss log_loss --method working-set --penalty l1 --l1 3",
    "newton": "--loss log_loss --method newton",
    "newton, L1": "--loss squared_hinge --method newton --penalty l1 --l1 30",
    "sor": "--loss twin --method sor",
    "crammer_singer": "--loss crammer_singer",
    "multinomial": "--loss multinomial --method dual",
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_stays_within_its_memory(data: Path, tmp_path: Path, name: str) -> None:
    result = command(
        tmp_path, "train", data, tmp_path / "run", *TRAININGS[name].split(), "-C", 0.01, "--max-passes", 2
    )
    assert result["passes"] <= 2
    assert result["bytes_read"] > 2 * 12 * ROWS * ENTRIES * 0.5


def test_a_search_stays_within_its_memory(data: Path, tmp_path: Path) -> None:
    options = ["--loss", "squared_hinge", "-C", "0.001,0.01", "--cv", "2", "--max-passes", "2"]
    assert len(command(tmp_path, "tune", data, tmp_path / "run", *options)["scores"]) == 2


def test_predictions_and_evaluations_stay_within_their_memory(data: Path, tmp_path: Path) -> None:
    command(tmp_path, "train", data, tmp_path / "run", "--loss", "log_loss", "--max-passes", 1)
    out = tmp_path / "out.parquet"
    assert command(tmp_path, "predict", data, tmp_path / "run", "-o", out, "--proba")["n_rows"] == ROWS
    found = command(tmp_path, "evaluate", data, tmp_path / "run")
    assert found["n_rows"] == ROWS
    assert found["accuracy"] > 0.55


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_of_500_columns_is_converted_within_its_memory(tmp_path: Path, kind: str) -> None:
    rng, n_rows = np.random.default_rng(0), 30_000
    columns = {f"c{number}": rng.integers(-999, 1000, n_rows) / 64 for number in range(500)}
    table = pa.table(columns | {"y": rng.integers(0, 2, n_rows)})
    if kind == "csv":
        pa.csv.write_csv(table, tmp_path / "t.csv")
    else:
        pa.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2500, use_dictionary=False)
    found = command(tmp_path, "convert", tmp_path / f"t.{kind}", tmp_path / "data", "--label", "y")
    assert (found["n_rows"], found["n_features"]) == (n_rows, 500)
