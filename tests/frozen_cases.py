"""The package seen from outside: cases by command line and public names, and their record, ``frozen.json``.

``python tests/frozen_cases.py --record [NAME …]`` records cases that are new, or those named anew. A case that has to change
is taken out of the file first, by hand and for a reason. Compared is what a user relies on: predictions, objectives, passes,
rows of datasets in the order of the source; neither bits nor fingerprints nor texts of messages.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import scipy.sparse as sp
from forking import run as run_process

import streamcd

RECORD = Path(__file__).with_name("frozen.json")

Outcome = dict[str, Any]
"""Outcome of a case, by how it is compared: `exact`; `objectives`, each with its relative gap; `passes`; `close` numbers."""

CLOSE = 1e-6
RESULT_KEYS = (
    *(
        "primal_objective",
        "dual_objective",
        "gap",
        "violation",
        "converged",
        "stop_reason",
        "passes",
        "seconds",
    ),
    *("bytes_read", "peak_memory_bytes", "n_features", "n_rows", "n_lanes", "lanes"),
)
LANE_KEYS = (
    *(
        "label",
        "C",
        "l1",
        "fold",
        "n_nonzero",
        "primal_objective",
        "dual_objective",
        "gap",
        "passes",
        "converged",
    ),
)


def differences(found: Outcome, recorded: Outcome, *, more_passes: float = 0.1) -> list[str]:
    """Compare an outcome with the record; an empty list if it holds.

    Two objectives, of which one or both are not optimal, differ by no more than their gaps.
    """
    wrong = [f"{name}: on one side only" for name in sorted(found.keys() ^ recorded.keys())]
    if found.get("exact") != recorded.get("exact"):
        wrong.append(f"exact: expected {recorded.get('exact')}, found {found.get('exact')}")
    pairs = _pairs("objectives", found, recorded, wrong)
    for (value, gap), (expected, its_gap) in pairs:
        if abs(value - expected) > (1e-9 + gap + its_gap) * max(abs(value), abs(expected)):
            wrong.append(f"objective: expected {expected} (gap {its_gap:.1g}), found {value} (gap {gap:.1g})")
    for n_passes, expected in _pairs("passes", found, recorded, wrong):
        if not 0.9 * expected - 1 <= n_passes <= (1 + more_passes) * expected + 1 + 10 * (more_passes - 0.1):
            wrong.append(f"passes: expected {expected}, found {n_passes}")
    for value, expected in _pairs("close", found, recorded, wrong):
        if abs(value - expected) > CLOSE * max(1.0, abs(expected)):
            wrong.append(f"close: expected {expected}, found {value}")
    return wrong


def _pairs(name: str, found: Outcome, recorded: Outcome, wrong: list[str]) -> list[tuple[Any, Any]]:
    a, b = found.get(name, []), recorded.get(name, [])
    if len(a) != len(b):
        wrong.append(f"{name}: expected {len(b)}, found {len(a)}")
    return list(zip(a, b, strict=False))


def digest(*parts: str) -> str:
    """Digest texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


# ---------------------------------------------------------------------------------------------------------------------
# Sources


def made_rows(n_rows: int, n_features: int, seed: int, n_classes: int = 2) -> tuple[sp.csr_array, np.ndarray]:
    """Make rows of noisy classes 1, 2, …, with values that float32 holds exactly."""
    rng = np.random.default_rng(seed)
    dense = rng.integers(-400, 400, (n_rows, n_features)) / 128 * (rng.random((n_rows, n_features)) < 0.4)
    scores = dense @ (rng.integers(-8, 9, (n_features, n_classes)) / 4)
    return sp.csr_array(dense), (scores + 2 * rng.standard_normal(scores.shape)).argmax(axis=1) + 1.0


def made_targets(n_rows: int, n_features: int, seed: int) -> tuple[sp.csr_array, np.ndarray]:
    """Make rows with a noisy linear function of them, to three decimals."""
    x, _ = made_rows(n_rows, n_features, seed)
    rng = np.random.default_rng(seed)
    return x, np.round(x @ rng.normal(size=n_features) + rng.normal(size=n_rows), 3)


def unequal_columns() -> tuple[sp.csr_array, np.ndarray]:
    """Make rows with a feature that all have, and many that few have."""
    rng = np.random.default_rng(11)
    dense = np.where(rng.random((150, 60)) < 0.04, rng.integers(1, 9, (150, 60)) / 4, 0.0)
    dense[:, 0] = rng.integers(1, 5, 150) / 2
    return sp.csr_array(dense), np.where(dense[:, 0] + 2 * rng.standard_normal(150) > 1.3, 1.0, -1.0)


def text_of(x: sp.csr_array, y: np.ndarray, base: int = 1) -> bytes:
    """Write rows as libsvm text."""
    lines = []
    for row, label in zip(x.toarray(), y, strict=True):
        lines.append(" ".join([f"{label:g}", *(f"{j + base}:{row[j]!r}" for j in np.flatnonzero(row))]))
    return ("\n".join(lines).replace("np.float64(", "").replace(")", "") + "\n").encode()


def made_table() -> pa.Table:
    """Make a table of numbers, some of them missing, strings, names of classes, and weights."""
    rng = np.random.default_rng(5)
    n, cities = 130, ["Oslo", "Rome", "Lima", "Ürümqi", "a,b"]
    return pa.table(
        {
            "age": [None if i % 11 == 3 else float(age) for i, age in enumerate(rng.integers(18, 80, n))],
            "city": [cities[i] for i in rng.integers(0, 5, n)],
            "height": rng.integers(-1000, 1000, n) / 8,
            "count": rng.integers(0, 6, n),
            "bought": [["no", "yes", "later"][i] for i in rng.integers(0, 3, n)],
            "w": rng.integers(1, 9, n) / 4,
        }
    )


def csv_of(table: pa.Table) -> bytes:
    """Write a table as CSV: quotes where a comma is, nothing where a value is missing."""
    rows = [
        ["" if v is None else f'"{v}"' if "," in str(v) else str(v) for v in row.values()]
        for row in table.to_pylist()
    ]
    return ("\n".join(",".join(row) for row in [table.column_names, *rows]) + "\n").encode()


def arrow_of(table: pa.Table) -> bytes:
    """Write a table as an Arrow file of several batches."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    return out.getvalue().to_pybytes()


def parquet_of(table: pa.Table) -> bytes:
    """Write a table as a Parquet file of several row groups."""
    out = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, out, row_group_size=50)
    return out.getvalue().to_pybytes()


def lists_of(x: sp.csr_array, y: np.ndarray) -> pa.Table:
    """Make a table with sparse rows as two lists."""
    places = [np.flatnonzero(row) for row in x.toarray()]
    values = [row[place].tolist() for row, place in zip(x.toarray(), places, strict=True)]
    return pa.table({"i": [place.tolist() for place in places], "v": values, "y": y})


def _saved(save: Callable[..., Any], *arrays: Any, **named: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        save(file, *arrays, **named)
        file.seek(0)
        return file.read()


def _npz() -> bytes:
    x, y = made_rows(90, 8, 7)
    sparse = {"data": x.data, "indices": x.indices, "indptr": x.indptr, "shape": x.shape, "format": b"csr"}
    return _saved(np.savez, **sparse, y=y)


SOURCES: dict[str, Callable[[], bytes]] = {
    "two.txt": lambda: text_of(*made_rows(240, 12, 1)),
    "two.txt.gz": lambda: gzip.compress(text_of(*made_rows(240, 12, 1))),
    "held.txt": lambda: text_of(*made_rows(60, 14, 2)),
    "classes.txt": lambda: text_of(*made_rows(200, 9, 3, 4)),
    "zero.txt": lambda: text_of(*made_rows(50, 6, 4), 0),
    "unequal.txt": lambda: text_of(*unequal_columns()),
    "wide.txt": lambda: "".join(f"{i % 2} {i % 7 + 1}:1 {10**12 * (i % 5) + 9}:2\n" for i in range(90)).encode(),
    "weights.txt": lambda: "".join(f"{i % 5 / 2 + 0.25}\n" for i in range(240)).encode(),
    "targets.txt": lambda: text_of(*made_targets(240, 18, 12)),
    "code.txt": lambda: b"1 1 0\n1 -1 1\n-1 0 -1\n-1 1 1\n",
    "table.csv": lambda: csv_of(made_table()),
    "table.parquet": lambda: parquet_of(made_table()),
    "table.arrow": lambda: arrow_of(made_table()),
    "lists.parquet": lambda: parquet_of(lists_of(*made_rows(70, 9, 6))),
    "matrix.npz": _npz,
    "matrix.npy": lambda: _saved(np.save, np.column_stack([made_rows(90, 8, 7)[1], made_rows(90, 8, 7)[0].toarray()])),
}  # fmt: skip
"""Files by name."""

CUT = "--chunk-size 1kB --shard-size 2kB"
DATASETS = {
    "two": f"two.txt {CUT}",
    "classes": f"classes.txt {CUT}",
    "weighted": f"two.txt {CUT} --weights weights.txt",
    "unequal": f"unequal.txt {CUT}",
    "targets": f"targets.txt {CUT} --target --weights weights.txt",
    "held": "held.txt --like two",
    "people": f"table.csv {CUT} --label bought --missing indicator --weight-column w",
    "scaled": f"two.txt {CUT} --scale standard --normalize l2",
}
"""Datasets that cases train on, each with the arguments of `convert`."""


class Bench:
    """A folder with the files and datasets of the cases, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = iter(range(10**6))
        self.file = functools.cache(self._file)
        self.data = functools.cache(self._data)
        self.columns = functools.cache(self._columns)

    def new(self, name: str = "new") -> Path:
        """Name a path that nothing has."""
        return self.folder / f"{next(self._numbers)}-{name}"

    def _file(self, name: str) -> Path:
        path = self.folder / name
        path.write_bytes(SOURCES[name]())
        return path

    def _data(self, name: str) -> Path:
        source, *options = DATASETS[name].split(" ", 1)
        self("convert", source, self.folder / name, *options)
        return self.folder / name

    def _columns(self, name: str) -> Path:
        streamcd.make_columns(self.data(name), chunk_size=200, shard_size=1500)
        return self.data(name)

    def __call__(self, *words: str | Path) -> Any:
        """Run a command, in which names of sources and datasets stand for their paths; text is split into words."""
        command = []
        for word in words:
            for part in [str(word)] if isinstance(word, Path) else shlex.split(word):
                command.append(str(self._places(part)))
        return command_line.run_json(*command)

    def _places(self, word: str) -> str | Path:
        return self.file(word) if word in SOURCES else self.data(word) if word in DATASETS else word


# ---------------------------------------------------------------------------------------------------------------------
# Outcomes


def dataset_outcome(path: Path) -> Outcome:
    """Tell a dataset: its shape, and its rows in the order of the source, as sums with a weight for each row and feature."""
    dataset = streamcd.open(path)
    found = dataset.info()
    names = ("n_rows", "n_features", "n_entries", "classes", "class_counts", "index_base", "weighted")
    x, y = dataset.to_scipy()
    stored = dataset.head(dataset.n_rows).combine_chunks().sort_by("source")
    rows, features = np.sin(np.arange(1.0, x.shape[0] + 1)), np.cos(np.arange(x.shape[1]) % 1009)
    sums = [
        rows @ (x @ features),
        np.abs(x.data, dtype=float).sum(),
        rows @ np.array(stored["weight"], float),
    ]
    exact = {name: found[name] for name in names}
    exact["labels"] = digest(*map(str, y.tolist()))
    return {"exact": exact, "close": sums}


def training_outcome(run: Path, result: dict[str, Any]) -> Outcome:
    """Tell a training: what ended it, passes and objectives of each lane, and that its files are there."""
    assert set(RESULT_KEYS) <= result.keys()
    assert all(set(LANE_KEYS) <= lane.keys() for lane in result["lanes"])
    exact = {name: result[name] for name in ("converged", "stop_reason", "n_lanes", "n_rows", "n_features")}
    lanes = result["lanes"]
    exact["lanes"] = [[lane[name] for name in ("label", "C", "l1", "fold")] for lane in lanes]
    exact["files"] = [(run / name).exists() for name in ("config.json", "log.jsonl", "state.npz", "model")]
    costs = {(lane["C"], lane["l1"]) for lane in lanes}
    assert all(streamcd.load_model(run, C, l1=l1 or None) for C, l1 in costs if len(costs) > 1 or not l1)
    return {
        "exact": exact,
        "objectives": [(lane["primal_objective"], lane["gap"]) for lane in lanes],
        "passes": [lane["passes"] for lane in lanes],
    }


Case = Callable[[Bench], Outcome]
CASES: dict[str, Case] = {}
"""Cases by name."""


def case(made: Case) -> Case:
    """Add a function to the cases."""
    CASES[made.__name__.replace("_", " ")] = made
    return made


# ---------------------------------------------------------------------------------------------------------------------
# Datasets

TABLE = f"{CUT} --label bought --missing indicator --drop w"
CONVERSIONS = {
    "text": f"two.txt {CUT}",
    "text, gzip, least memory": f"two.txt.gz {CUT} --memory 400MB",
    "text, two workers": f"two.txt {CUT} --workers 2 --memory 1GB",
    "text, seed and defaults": "two.txt --seed 7",
    "text, float64": f"two.txt {CUT} --dtype float64",
    "text, weights": f"two.txt {CUT} --weights weights.txt",
    "text, maxabs": f"two.txt {CUT} --scale maxabs",
    "text, standard, l2": f"two.txt {CUT} --scale standard --normalize l2",
    "text, compact": "wide.txt --compact",
    "text, indices from 0, wider": "zero.txt --n-features 40",
    "text, like another": "held.txt --like scaled",
    "several files": f"two.txt held.txt {CUT}",
    "CSV": f"table.csv {TABLE}",
    "CSV, hashed": "table.csv --label bought --hash 6 --missing zero --drop w",
    "CSV, columns chosen, weights": "table.csv --label bought --features city,count --weight-column w --scale maxabs",
    "Parquet": f"table.parquet {TABLE}",
    "Arrow": f"table.arrow {TABLE}",
    "Parquet, lists": "lists.parquet --label y --features i:v",
    "npz": "matrix.npz",
    "npy": "matrix.npy --label 0",
}


def converted(bench: Bench, arguments: str) -> Outcome:
    """Convert by command."""
    sources, options = arguments.partition(" --")[::2]
    dest = bench.new("data")
    bench("convert", sources, dest, f"--{options}" if options else "")
    return dataset_outcome(dest)


for _name, _arguments in CONVERSIONS.items():
    CASES[f"convert {_name}"] = functools.partial(converted, arguments=_arguments)


@case
def convert_arrays(bench: Bench) -> Outcome:
    x, y = made_rows(90, 8, 7)
    return dataset_outcome(
        streamcd.convert((x, y, np.arange(90) % 4 + 1.0), bench.new(), dtype="float64").path
    )


@case
def convert_dense_arrays_in_batches(bench: Bench) -> Outcome:
    x, y = made_rows(90, 8, 7)
    batches = [(x.toarray()[start : start + 25], y[start : start + 25]) for start in range(0, 90, 25)]
    return dataset_outcome(streamcd.convert(batches, bench.new(), chunk_size="1kB").path)


@case
def convert_a_frame(bench: Bench) -> Outcome:
    frame = made_table().to_pandas()
    assert isinstance(frame, pd.DataFrame)
    options = {
        "label": "bought",
        "missing": "indicator",
        "drop": "w",
        "chunk_size": "1kB",
        "shard_size": "2kB",
    }
    return dataset_outcome(streamcd.convert(frame, bench.new(), **options).path)


@case
def make_columns(bench: Bench) -> Outcome:
    path = bench.columns("unequal")
    files = sorted((path / "columns").glob("part-*.parquet"))
    table = pa.concat_tables(
        [pyarrow.parquet.read_table(file, partitioning=None) for file in files]
    ).to_pydict()
    assert table["feature"] == sorted(table["feature"])
    entries = sorted(zip(table["feature"], table["row"], table["value"], strict=True))
    return {"exact": [len(files), len(entries), digest(str(entries))]}


@case
def export_a_dataset(bench: Bench) -> Outcome:
    out = bench.new("out.txt")
    bench("export people", out, "--format libsvm")
    return {"exact": digest(out.read_text())}


# ---------------------------------------------------------------------------------------------------------------------
# Trainings

PLAIN = "--acceleration none --tol 1e-4"
TRAININGS = {
    "squared hinge, plain": f"two --loss squared_hinge --method dual --bias 1 {PLAIN}",
    "squared hinge": "two --loss squared_hinge --method dual --bias 1 --tol 1e-6",
    "hinge, plain": f"two --loss hinge --bias 1 -C 0.1 {PLAIN}",
    "hinge": "two --loss hinge --bias -1 -C 0.5 --tol 1e-5",
    "log loss, plain": f"two --loss log_loss --bias 1 {PLAIN}",
    "log loss": "two --loss log_loss --bias 2 -C 3 --tol 1e-6",
    "log loss, several classes": "classes --loss log_loss --bias 1",
    "a number for kappa": "two --loss hinge --bias 1 --acceleration 0.5",
    "Crammer–Singer, plain": f"classes --loss crammer_singer --bias 1 -C 0.1 {PLAIN}",
    "Crammer–Singer, path": "classes --loss crammer_singer --bias -1 -C 0.1,1",
    "twin, plain": "two --loss twin --bias 1 -C 0.5 --acceleration none --tol 1e-2",
    "twin": "classes --loss twin --bias 1 --slack squared_hinge --ridge 2 --tol 1e-4",
    "twin by sor": "two --loss twin --method sor --bias 1 --ridge 0.5",
    "twin by sor, relaxed": "classes --loss twin --method sor --bias 1 --omega 1.3 -C 0.3,1 --slack squared_hinge",
    "path, several classes": "classes --loss squared_hinge --bias 1 -C 0.01,0.1,1",
    "code matrix": "classes --loss hinge --bias 1 -C 0.2 --code code.txt",
    "class weights": "classes --loss squared_hinge --bias 1 --class-weight 1=3,3=0.5",
    "class weights, balanced": "two --loss log_loss --bias 1 --class-weight balanced --seed 9",
    "row weights": "weighted --loss squared_hinge --bias 1",
    "row weights, hinge, path": "weighted --loss hinge --bias 1 -C 0.1,2",
    "scaled, row norms": "scaled --loss log_loss --bias 1 -C 20",
    "a table": "people --loss squared_hinge --bias 1 -C 0.001",
    "violations": "two -s 3 -C 0.1 --bias 1 -e 0.01",
    "over-relaxation": f"two --loss squared_hinge --bias 1 --omega 1.5 {PLAIN}",
    "over-relaxation by trial": f"two --loss hinge --bias 1 --omega auto -C 0.05 {PLAIN}",
    "out of passes": "two --loss hinge --bias 1 -C 100 --max-passes 5 --tol 1e-9",
    "primal, squared hinge, plain": f"two --loss squared_hinge --method primal --bias 1 {PLAIN}",
    "primal, squared hinge": "two --loss squared_hinge --method primal --bias 1 -C 0.1,1 --tol 1e-5",
    "primal, log loss, plain": f"two --loss log_loss --method primal --bias 1 {PLAIN}",
    "primal, log loss, several classes": "classes --loss log_loss --method primal --bias 1",
    "primal, unpenalised bias": "weighted --loss log_loss --method primal --bias 1 --unpenalized-bias",
    "primal, code, class weights": "classes -s 2 --bias 1 --code code.txt --class-weight 2=4",
    "squared error": "targets --loss squared_error --bias 1 -C 0.1,2 --tol 1e-5",
    "epsilon insensitive": "targets -s 13 -p 0.2 --bias 1 -C 0.1 --tol 1e-4",
    "Huber, by features": "targets --loss huber --delta 0.8 --method primal --bias 1 --unpenalized-bias --tol 1e-5",
    "squared error, free bias": "targets --loss squared_error --method dual --bias 1 --unpenalized-bias",
    "log loss, free bias": "two --loss log_loss --method dual --bias 1 --unpenalized-bias --tol 1e-5",
    "hinge, free bias": "classes --loss hinge --method dual --bias 1 --unpenalized-bias -C 0.1",
    "Huber": "targets --loss huber --method dual --bias 1",
    "quantile": "targets --loss quantile --quantile 0.3 --bias 1 -C 0.1",
    "squared epsilon insensitive": "targets -s 12 -p 0.1 --bias 1",
    "multinomial": "classes --loss multinomial --method dual --bias 1 --tol 1e-5",
    "multinomial, free bias": "classes --loss multinomial --method dual --bias 1 --unpenalized-bias -C 0.1",
    "ridge": "targets --loss squared_error --bias 1 --l2 3 --tol 1e-6",
    **{
        f"-s {number}": f"{'targets' if number > 10 else 'classes' if number == 4 else 'two'} -s {number} -c 0.1"
        for number in (0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13)
    },
    "newton, squared hinge": "two --loss squared_hinge --method newton --bias 1 --tol 1e-9",
    "newton, log loss, several classes": "classes --loss log_loss --method newton --bias 1 -C 0.1,10",
    "newton, squared error, free bias": "targets --loss squared_error --method newton --bias 1 --unpenalized-bias",
    "newton, squared epsilon insensitive": "targets -p 0.3 --loss squared_epsilon_insensitive --method newton --bias 1",
    "newton, weights, free bias": "weighted --loss log_loss --method newton --bias 1 --unpenalized-bias",
    "newton, L1": "two --loss squared_hinge --method newton --bias 1 --penalty l1 --l1 20 --tol 1e-6",
    "newton, L1, log loss, several classes": "classes --loss log_loss --method newton --penalty l1 --l1 3",
    "newton, elastic net, free bias": (
        "targets --loss squared_error --method newton --bias 1 --unpenalized-bias --penalty elasticnet --l1 40 --l2 2"
    ),
    "working set, L1": "unequal --loss squared_hinge --method working-set --penalty l1 --l1 2 --bias 1 --tol 1e-6",
    "working set, L1, log loss": "unequal --loss log_loss --method working-set --penalty l1 --l1 1,3 --bias 1",
    "working set, L1, several classes": "classes --loss log_loss --method working-set --penalty l1 --l1 3",
    "working set, elastic net": (
        "targets --loss squared_error --method working-set --bias 1 --unpenalized-bias --penalty elasticnet --l1 30"
    ),
    "online, squared hinge": "two --loss squared_hinge --method online --bias 1",
    "online, log loss, plain": f"two --loss log_loss --method online --bias 1 -C 0.3 {PLAIN}",
}  # fmt: skip

MORE_PASSES = {
    f"train {name}": 0.5 for name in TRAININGS if name.startswith(("newton", "working set", "-s 5", "-s 6"))
}
"""Share by which the passes of a case may exceed those that were recorded with another form of the algorithm."""


def trained(bench: Bench, arguments: str) -> Outcome:
    """Train by command."""
    data, options = arguments.split(" ", 1)
    if any(word in options for word in ("primal", "online", "working-set", "-s 2", "-s 11")):
        bench.columns(data)
    run = bench.new("run")
    result = bench("train", data, run, options)
    return training_outcome(run, result)


for _name, _arguments in TRAININGS.items():
    CASES[f"train {_name}"] = functools.partial(trained, arguments=_arguments)


def trained_by_python(data: Path, run: Path, **options: Any) -> Outcome:
    """Train by the public name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", streamcd.ConvergenceWarning)
        return training_outcome(run, streamcd.train(data, run, **options).to_json())


WINDOWS = {
    "hinge": (
        "two",
        (60, 20),
        {"loss": "hinge", "C": 0.05, "tol": 1e-3, "acceleration": "none", "max_passes": 3000},
    ),
    "squared hinge": ("classes", (60, 20), {"loss": "squared_hinge", "C": [0.1, 1.0], "tol": 1e-5}),
    "log loss": ("weighted", (60, 20), {"loss": "log_loss", "tol": 1e-5}),
    "Crammer–Singer": ("classes", (60, 20), {"loss": "crammer_singer", "C": 0.3}),
    "twin": ("two", (60, 20), {"loss": "twin", "tol": 1e-4}),
    "primal": ("unequal", (60, 90), {"loss": "squared_hinge", "method": "primal", "C": [0.3, 30.0]}),
    "primal, log loss": ("unequal", (60, 90), {"loss": "log_loss", "method": "primal", "C": 3.0}),
    "online": ("unequal", (60, 90), {"loss": "squared_hinge", "method": "online"}),
}
"""Trainings out of core: the dataset, the window's entries and items, and options."""


def windowed(bench: Bench, data: str, sizes: tuple[int, ...], options: dict[str, Any]) -> Outcome:
    """Train in small windows, two threads reading."""
    path = bench.columns(data) if "method" in options else bench.data(data)
    return trained_by_python(path, bench.new("run"), bias=1.0, plan=sizes, threads=2, **options)


for _name, _of_window in WINDOWS.items():
    CASES[f"train out of core, {_name}"] = functools.partial(
        windowed, data=_of_window[0], sizes=_of_window[1], options=_of_window[2]
    )


@case
def train_stopped_and_resumed(bench: Bench) -> Outcome:
    """Ctrl-C after every few windows."""
    left, run = iter(range(50)), bench.new("run")

    def stop_requested() -> int | None:
        return 15 if next(left, 1) % 4 == 3 else None

    options = {"plan": (60, 20), "loss": "hinge", "tol": 1e-4, "bias": 1.0}
    call: Callable[[], Any] = functools.partial(streamcd.train, bench.data("two"), run, **options)
    while True:
        try:
            return training_outcome(run, call(stop_requested=stop_requested).to_json())
        except streamcd.StreamcdError as error:
            if error.exit_status != 128 + 15:
                raise
            call = functools.partial(streamcd.resume, run)


@case
def train_killed_and_resumed(bench: Bench) -> Outcome:
    """A checkpoint after every window, and SIGKILL after the fortieth."""
    run = bench.new("run")
    code = f"""
import os, signal, streamcd
left = iter(range(40))
streamcd.train({str(bench.data("two"))!r}, {str(run)!r}, loss="log_loss", bias=1.0, tol=1e-5, plan=(60, 20),
    checkpoint_every=1e-9, stop_requested=lambda: next(left, None) is None and os.kill(os.getpid(), signal.SIGKILL) or None)
"""
    assert run_process(["-c", code]).returncode == -9
    return training_outcome(run, bench("resume", run))


@case
def train_resumed_with_more_passes(bench: Bench) -> Outcome:
    run = bench.new("run")
    bench("train classes", run, "--loss squared_hinge --bias 1 --max-passes 3 --tol 1e-7")
    return training_outcome(run, bench("resume", run, "--max-passes 100 --tol 1e-5"))


@case
def train_from_another_run(bench: Bench) -> Outcome:
    first, run = bench.new("run"), bench.new("run")
    bench("train two", first, "--loss squared_hinge --bias 1 -C 0.1")
    return training_outcome(run, bench("train two", run, "--loss squared_hinge --bias 1 --start-from", first))


@case
def train_from_another_run_by_features(bench: Bench) -> Outcome:
    first, run = bench.new("run"), bench.new("run")
    bench.columns("two")
    bench("train two", first, "--loss log_loss --method primal --bias 1 -C 0.1")
    options = "--loss log_loss --method primal --bias 1 -C 0.2 --tol 1e-5 --start-from"
    return training_outcome(run, bench("train two", run, options, first))


@case
def train_on_workers(bench: Bench) -> Outcome:
    """Two in threads of this process, which deal shards as those of a cluster do."""
    from distributed import Client, LocalCluster

    outcomes = []
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
    with cluster, Client(cluster, set_as_default=False) as client:
        for loss, data in ("hinge", "two"), ("log_loss", "two"), ("crammer_singer", "classes"):
            options = {"loss": loss, "bias": 1.0, "C": 0.1, "tol": 1e-2, "client": client}
            outcomes.append(trained_by_python(bench.data(data), bench.new("run"), **options))
    return joined(outcomes)


def joined(outcomes: list[Outcome]) -> Outcome:
    """Make one outcome of several trainings."""
    return {
        "exact": [outcome["exact"] for outcome in outcomes],
        "objectives": [pair for outcome in outcomes for pair in outcome["objectives"]],
        "passes": [n_passes for outcome in outcomes for n_passes in outcome["passes"]],
    }


@case
def train_in_groups_of_lanes(bench: Bench) -> Outcome:
    """Wide weights, of which the budget holds those of a few values of C."""
    data, run = bench.new("data"), bench.new("run")
    bench("convert two.txt", data, "--n-features 4000000")
    costs = [0.001 * 2**k for k in range(8)]
    found = trained_by_python(data, run, loss="hinge", C=costs, bias=1.0, memory="300MB", acceleration="none")
    assert (run / "group-01").exists()
    return found


def searched(bench: Bench, arguments: str) -> Outcome:
    """Search over C by command."""
    run = bench.new("run")
    result = bench("tune", arguments.split(" ", 1)[0], run, arguments.split(" ", 1)[1])
    found = training_outcome(run, result)
    found["exact"]["best_C"] = result["best_C"]
    found["close"] = [score for of in result["scores"].values() for score in [*of["folds"], of["mean"]]]
    return found


CASES["tune, hinge"] = functools.partial(searched, arguments="two --loss hinge --bias 1 -C 0.01,0.1,1 --cv 3")
CASES["tune, log loss"] = functools.partial(
    searched, arguments="classes --loss log_loss --bias 1 -C 0.1,1 --cv 4 --class-weight 1=2"
)

# ---------------------------------------------------------------------------------------------------------------------
# Predictions, evaluations, models

MODELS = {
    "two classes": "two --loss log_loss --bias 1 --tol 1e-10",
    "several classes": "classes --loss squared_hinge --bias 1 -C 0.1 --tol 1e-10",
    "twin": "classes --loss twin --bias 1 --slack squared_hinge --tol 1e-9",
    "scaled": "scaled --loss squared_hinge --bias 1 --tol 1e-10",
    "table": "people --loss log_loss --bias 1 -C 0.01 --tol 1e-10",
    "numbers": "targets --loss squared_error --bias 1 --tol 1e-10",
}
FILES = {
    "two": "held.txt",
    "scaled": "held.txt",
    "classes": "classes.txt",
    "people": "table.csv",
    "targets": "targets.txt",
}


def predicted(bench: Bench, arguments: str) -> Outcome:
    """Train, predict and evaluate, on a dataset and on a file."""
    run, out = bench.new("run"), bench.new("out.parquet")
    data = arguments.split(" ", 1)[0]
    bench("train", data, run, arguments.split(" ", 1)[1])
    exact, close = [], []
    for rows in (data, FILES[data]):
        bench("predict", rows, run, "-o", out, "--force", "--proba" if "log_loss" in arguments else "")
        table = pyarrow.parquet.read_table(out)
        exact.append(
            [
                table.schema.names,
                digest(str(table["source"].to_pylist()), str(table["prediction"].to_pylist())),
            ]
        )
        close += [sum(map(abs, table[name].to_pylist())) for name in table.schema.names[2:]]
        if data != "people":  # its weights
            found = bench("evaluate", rows, run)
            told = ("n_rows", "accuracy", "labels", "confusion")
            exact.append({name: found[name] for name in told if name in found})
            figures = ("primal_objective", "auc", "log_loss", "mae", "mse", "r2", "loss")
            close += [found[name] for name in figures if found.get(name) is not None]
    return {"exact": exact, "close": close}


for _name, _arguments in MODELS.items():
    CASES[f"predict and evaluate, {_name}"] = functools.partial(predicted, arguments=_arguments)


@case
def predictions_as_text(bench: Bench) -> Outcome:
    run, text, table = bench.new("run"), bench.new("out.txt"), bench.new("out.csv")
    bench("train classes", run, "--loss squared_hinge --bias 1 -C 0.1 --tol 1e-10")
    bench("predict classes", run, "-o", text)
    bench("predict classes.txt", run, "-o", table)
    return {
        "exact": [digest(text.read_text()), digest(table.read_text()), table.read_text().splitlines()[:2]]
    }


@case
def models_in_the_format_of_LIBLINEAR(bench: Bench) -> Outcome:
    """Head, and numbers to twelve digits; the model read back decides as the run does."""
    run, text, model = bench.new("run"), bench.new("out.model"), bench.new("model")
    bench("train classes", run, "--loss squared_hinge --bias 1 -C 0.1 --tol 1e-10")
    bench("export", run, text, "--format liblinear")
    head, numbers = text.read_text().split("\nw\n")
    bench("import", text, model)
    x, _ = made_rows(30, 9, 8, 4)
    decisions = [streamcd.load_model(path).decision_function(x) for path in (run, model)]
    assert (decisions[0] == decisions[1]).all()
    return {"exact": head.splitlines(), "close": [float(number) for number in numbers.split()]}


@case
def models_on_arrays(bench: Bench) -> Outcome:
    run, (x, _) = bench.new("run"), made_rows(30, 12, 8)
    bench("train two", run, "--loss log_loss --bias 1 --tol 1e-10")
    model = streamcd.load_model(run)
    close = [*model.decision_function(x), *model.predict_proba(x.toarray()).ravel()]
    return {"exact": model.predict(x).tolist(), "close": close}


@case
def estimators(bench: Bench) -> Outcome:
    x, y = made_rows(150, 7, 9)
    found = [
        streamcd.LinearSVC(C=0.5, fit_intercept=True, tol=1e-6).fit(x, y),
        streamcd.LinearSVC(loss="hinge", fit_intercept=False, class_weight="balanced").fit(x.toarray(), y),
        streamcd.LogisticRegression(fit_intercept=True).fit(x, np.array(["a", "b", "c"])[np.arange(150) % 3]),
        streamcd.TwinSVC(fit_intercept=True).fit(x, y, sample_weight=np.arange(150) % 3 + 1.0),
    ]
    return {
        "exact": [digest(str(made.predict(x).tolist())) for made in found],
        "passes": [int(np.max(made.n_iter_)) for made in found],
    }


@case
def box_qps(bench: Bench) -> Outcome:
    """Dense, sparse, mapped; shrinking, over-relaxation, an indefinite matrix."""
    rng = np.random.default_rng(12)
    factor = rng.integers(-8, 9, (60, 25)) / 8
    Q, h, hi = factor @ factor.T + 0.5 * np.eye(60), rng.integers(-8, 9, 60) / 4, rng.integers(0, 9, 60) / 8
    path = bench.new("Q.npy")
    np.save(path, Q)
    band = sp.diags_array([-1.0, 2.125, -1.0], offsets=[-1, 0, 1], shape=(60, 60)).tocsr()
    programs: list[tuple[Any, dict[str, Any]]] = [
        (Q, {"hi": hi}),
        (Q, {"hi": hi, "shrinking": False, "seed": 3}),
        (band, {"lo": -np.inf}),
        (band, {"lo": -1.0, "omega": "auto"}),
        (np.load(path, mmap_mode="r"), {"hi": hi, "omega": 1.2, "memory": 20_000}),
        (Q - 3 * np.eye(60), {"lo": -1.0, "hi": 1.0, "indefinite": "local"}),
    ]
    found = [streamcd.solve_box_qp(matrix, h, **options) for matrix, options in programs]
    return {
        "exact": [solved.converged for solved in found],
        "passes": [solved.passes for solved in found],
        "close": [solved.objective for solved in found],
    }


# ---------------------------------------------------------------------------------------------------------------------
# The record


def read_record() -> dict[str, Any]:
    """Read the outcomes of the cases."""
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return record


def outcome_of(name: str, bench: Bench) -> Outcome:
    """Carry out a case; its outcome as it is read back from the record."""
    found: Outcome = json.loads(json.dumps(CASES[name](bench), default=lambda value: value.item()))
    return found


def record(names: list[str]) -> Iterator[str]:
    """Record cases, and write the file; yields their names."""
    cases = read_record()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for name in names or [name for name in CASES if name not in cases]:
            cases[name] = outcome_of(name, bench)
            yield name
    kept = {name: cases[name] for name in CASES if name in cases}
    RECORD.write_text(
        "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in kept.items()) + "\n}\n"
    )


if __name__ == "__main__":
    if sys.argv[1:2] != ["--record"]:
        sys.exit(__doc__)
    for recorded in record(sys.argv[2:]):
        print(recorded)
