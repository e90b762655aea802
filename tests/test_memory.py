"""The memory budget is a bound on what the process really takes, on data several times larger than it leaves room for."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from small_datasets import columns_of, random_rows, write_dataset

import streamcd
from streamcd import convert, make_columns, train
from streamcd import open as open_dataset
from streamcd.cli.synthetic import write_text_like
from streamcd.core.errors import UsageError
from streamcd.core.memory_budget import (
    RESERVED_BYTES,
    RUNNING_BYTES,
    format_size,
    parse_size,
    peak_memory_bytes,
    require,
)
from streamcd.runs import run as run_module
from streamcd.training.loop import TrainingLoop
from tools.chunk_writer import ChunkWriter

ROOT = Path(__file__).resolve().parent.parent


def write_large(
    path: Path,
    n_chunks: int,
    *,
    n_features: int = 20_000,
    n_classes: int = 2,
    chunk_rows: int = 2048,
    shards: int = 4,
) -> int:
    """Chunks of `chunk_rows` rows with 60 entries each, drawn chunk by chunk; returns the decoded bytes of entries."""
    row_entries, stride = 60, n_features // 60
    writer = ChunkWriter(
        path, index_dtype=np.int32, value_dtype=np.float32, row_dtype=np.int32,
        shard_bytes=8 * row_entries * chunk_rows * n_chunks // shards,
    )  # fmt: skip
    counts = np.zeros(n_classes, dtype=int)
    indptr = np.arange(chunk_rows + 1, dtype=np.int64) * row_entries
    hidden = np.random.default_rng(0).standard_normal((n_features, n_classes))
    for chunk in range(n_chunks):
        rng = np.random.default_rng([1, chunk])
        # one feature in each stretch of `stride`: ascending without sorting
        feature = np.arange(row_entries) * stride + rng.integers(0, stride, (chunk_rows, row_entries))
        value = rng.standard_normal((chunk_rows, row_entries), dtype=np.float32)
        label = np.einsum("rk,rkc->rc", value, hidden[feature]).argmax(axis=1)
        counts += np.bincount(label, minlength=n_classes)
        source = np.arange(chunk * chunk_rows, (chunk + 1) * chunk_rows)
        writer.write_chunk(source, label.astype(float), None, indptr, feature.reshape(-1), value.reshape(-1))
    nothing = {name: np.empty(0) for name in ("feature", "n_entries", "min", "max", "mean", "mean_square")}
    writer.write_features([nothing])
    writer.close(
        n_features=n_features, index_base=1, classes=list(range(n_classes)), class_counts=counts.tolist(),
        label_kind="integer", seed=0, source=[],
    )  # fmt: skip
    return 8 * row_entries * chunk_rows * n_chunks


def peak_of_training(
    dataset: Path, run: Path, *, compiled: Path | None = None, **options: Any
) -> tuple[int, dict[str, Any]]:
    """Train in a process of its own; its peak resident memory as the kernel counts it, and the result.

    The kernel's figure is read from outside until the process ends, and once by the process as its last act.
    """
    code = (
        "import json, sys, streamcd\n"
        "from streamcd.core.memory_budget import peak_memory_bytes\n"
        "dataset, run, options = json.loads(sys.argv[1])\n"
        "result = streamcd.train(dataset, run, **options)\n"
        "print(json.dumps([peak_memory_bytes(), result.to_json()]))\n"
    )
    arguments = json.dumps([str(dataset), str(run), options])
    printed = run.with_name(run.name + ".json")  # a pipe holds less than the lanes of many classes
    with open(printed, "w") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-c", code, arguments],
            stdout=stdout,
            cwd=ROOT,
            env=os.environ if compiled is None else {**os.environ, "NUMBA_CACHE_DIR": str(compiled)},
        )
    peak = 0
    while process.poll() is None:
        peak = max(peak, high_water_mark(process.pid))
        time.sleep(0.02)
    assert process.returncode == 0
    last, result = json.loads(printed.read_text())
    # the kernel's counters of a process are summed up by processor, and may go back by some pages from one look to the next
    assert result["peak_memory_bytes"] <= last + 4_000_000
    return max(peak, last), result


def high_water_mark(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            lines = [line for line in status if line.startswith("VmHWM:")]
    except OSError:  # it has just ended
        return 0
    return 1024 * int(lines[0].split()[1]) if lines else 0


def assert_within(peak: int, budget: int) -> None:
    print(f"{format_size(peak)} of {format_size(budget)}")
    assert peak <= budget, f"{format_size(peak)} resident, {format_size(budget)} allowed"


def test_training_uses_its_budget_and_stays_within(tmp_path: Path) -> None:
    """157 MB of entries with 115 MB beside the interpreter."""
    decoded = write_large(tmp_path / "data", 160)
    budget = RUNNING_BYTES + 115_000_000
    peak, result = peak_of_training(
        tmp_path / "data", tmp_path / "run", memory=budget, max_passes=3, tol=1e-9
    )
    assert decoded > 1.3 * 115_000_000
    assert_within(peak, budget)
    assert peak > 0.95 * budget - 25_000_000  # of what is read ahead, the page cache may spare 15 MB
    # it did go through the data, and not by keeping it
    assert result["passes"] == 3
    assert result["bytes_read"] > 3 * 0.5 * decoded


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss"])
def test_training_on_much_data_stays_within_its_budget(tmp_path: Path, loss: str) -> None:
    """480 MB of entries, with 105 MB beside the interpreter; a checkpoint now and then."""
    assert write_large(tmp_path / "data", 490) > 480_000_000
    budget = RUNNING_BYTES + 105_000_000
    peak, result = peak_of_training(
        tmp_path / "data",
        tmp_path / "run",
        loss=loss,
        memory=budget,
        max_passes=3,
        tol=1e-9,
        checkpoint_every=0.5,
    )
    assert_within(peak, budget)
    assert result["passes"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss", "crammer_singer"])
def test_many_lanes_stay_within_their_budget(tmp_path: Path, loss: str) -> None:
    """Twelve classes: their weights, and as many dual variables to a row, are part of the sum."""
    write_large(tmp_path / "data", 120, n_features=60_000, n_classes=12)
    budget = RUNNING_BYTES + 105_000_000
    peak, result = peak_of_training(
        tmp_path / "data", tmp_path / "run", loss=loss, memory=budget, max_passes=2, tol=1e-9
    )
    assert_within(peak, budget)
    assert result["n_lanes"] == (1 if loss == "crammer_singer" else 12)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss", "crammer_singer"])
def test_compile_the_kernels_is_part_of_the_budget(tmp_path: Path, loss: str, n_classes: int) -> None:
    """The first training after an installation: nothing is compiled yet."""
    write_large(tmp_path / "data", 160, n_classes=n_classes)
    budget = RUNNING_BYTES + 105_000_000
    peak, _ = peak_of_training(
        tmp_path / "data",
        tmp_path / "run",
        compiled=tmp_path / "compiled",
        loss=loss,
        memory=budget,
        max_passes=2,
    )
    assert any((tmp_path / "compiled").rglob("*.nbc"))
    assert_within(peak, budget)


@pytest.mark.slow
def test_wide_rows_and_large_chunks_stay_within_their_budget(tmp_path: Path) -> None:
    """Chunks of 8 MB, and a model as large as the windows."""
    write_large(tmp_path / "data", 20, n_features=1_500_000, chunk_rows=16384)
    budget = RUNNING_BYTES + 130_000_000
    peak, _ = peak_of_training(tmp_path / "data", tmp_path / "run", memory=budget, max_passes=3, tol=1e-9)
    assert_within(peak, budget)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"bias": 1.0, "unpenalized_bias": True}])
def test_weights_in_the_order_of_their_use_stay_within_the_budget(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """Two million features, whose counts are sorted first."""
    text, data = tmp_path / "text", tmp_path / "data"
    write_text_like(text, n_rows=300_000, n_features=2_000_000, entries_per_row=90, seed=0)
    convert(text, data, memory="1GB")
    peak, result = peak_of_training(
        data, tmp_path / "run", memory=300_000_000, max_passes=3, tol=1e-9, checkpoint_every=0.5, **more
    )
    assert_within(peak, 300_000_000)
    assert result["bytes_read"] > 400_000_000


@pytest.mark.slow
def test_data_that_fits_stays_within_its_budget_too(tmp_path: Path) -> None:
    """Kept in memory, in a budget that just holds it: the same bits as within less."""
    decoded = write_large(tmp_path / "data", 160)
    dataset = open_dataset(tmp_path / "data")
    budget = RUNNING_BYTES + decoded + 60 * dataset.n_rows + 30_000_000
    peak, result = peak_of_training(
        tmp_path / "data", tmp_path / "run", memory=budget, max_passes=3, tol=1e-9
    )
    assert_within(peak, budget)
    assert result["bytes_read"] < 2 * decoded


def write_many_rows(path: Path, n_chunks: int, n_second: int, chunk_rows: int = 1 << 16) -> None:
    """Rows of four entries: one of a feature of all rows, one of `n_second` features, two of 200 others."""
    writer = ChunkWriter(
        path, index_dtype=np.int32, value_dtype=np.float32, row_dtype=np.int32, shard_bytes=1 << 28
    )
    counts = np.zeros(2, dtype=np.int64)
    n_features = 201 + n_second
    occurs = np.zeros(n_features, dtype=np.int64)
    for chunk in range(n_chunks):
        rng = np.random.default_rng([3, chunk])
        feature = np.empty((chunk_rows, 4), dtype=np.int32)
        feature[:, 0], feature[:, 1] = 0, rng.integers(1, 1 + n_second, chunk_rows)
        feature[:, 2] = 1 + n_second + rng.integers(0, 100, chunk_rows)
        feature[:, 3] = 101 + n_second + rng.integers(0, 100, chunk_rows)
        value = rng.standard_normal((chunk_rows, 4), dtype=np.float32)
        label = (value[:, 0] + value[:, 1] + value[:, 3] * (feature[:, 3] - n_second - 150) / 50 > 0).astype(
            float
        )
        counts += np.bincount(label.astype(int), minlength=2)
        occurs += np.bincount(feature.reshape(-1), minlength=n_features)
        source = np.arange(chunk * chunk_rows, (chunk + 1) * chunk_rows)
        indptr = np.arange(chunk_rows + 1, dtype=np.int64) * 4
        writer.write_chunk(source, label, None, indptr, feature.reshape(-1), value.reshape(-1))
    zeros = np.zeros(n_features)
    names = ("min", "max", "mean", "mean_square")
    writer.write_features(
        [{"feature": np.arange(n_features), "n_entries": occurs, **dict.fromkeys(names, zeros)}]
    )
    writer.close(
        n_features=n_features, index_base=1, classes=[0, 1], class_counts=counts.tolist(), label_kind="integer", seed=0,
        source=[],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("n_chunks", "n_second"), [(90, 40), (120, 2)])
def test_scores_in_memory_are_part_of_the_budget(tmp_path: Path, n_chunks: int, n_second: int) -> None:
    """Of 5.9 and 7.9 million rows they take 106 and 142 MB; a feature of all rows is read in pieces."""
    write_many_rows(tmp_path / "data", n_chunks, n_second)
    make_columns(tmp_path / "data")
    n_rows = open_dataset(tmp_path / "data").n_rows
    budget = RESERVED_BYTES + 18 * n_rows
    peak, result = peak_of_training(
        tmp_path / "data", tmp_path / "run", method="primal", bias=1.0, memory=budget, max_passes=1, tol=1e-9,
        checkpoint_every=1.0, acceleration="none",
    )  # fmt: skip
    plan = json.loads((tmp_path / "run" / "config.json").read_text())["plan"]
    assert plan["window_entries"] < n_rows, "the feature of all rows is read in pieces"
    assert_within(peak, budget)
    assert result["passes"] == 1


def test_the_same_objective_within_any_budget(tmp_path: Path) -> None:
    """Windows follow from the budget and change the path, never the optimum."""
    write_large(tmp_path / "data", 130, n_features=2_000)
    results = [train(tmp_path / "data", tmp_path / "least", memory=RESERVED_BYTES, C=0.01)]
    results.append(train(tmp_path / "data", tmp_path / "ample", memory="1GB", C=0.01))
    plans = [json.loads((tmp_path / run / "config.json").read_text())["plan"] for run in ("least", "ample")]
    assert [plan["resident"] for plan in plans] == [False, True]
    assert plans[0]["window_entries"] < 0.5 * 60 * 2048 * 130
    assert all(result.converged for result in results)
    assert results[0].primal_objective == pytest.approx(results[1].primal_objective, rel=2e-3)


def test_a_model_that_does_not_fit_is_refused_before_any_work(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows(), n_features=200_000_000)
    with pytest.raises(UsageError, match="weights") as refusal:
        train(dataset, tmp_path / "run", memory="1GB")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_less_than_a_start_takes_is_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows())
    with pytest.raises(UsageError, match="210 MB interpreter and libraries = 210 MB needed"):
        train(dataset, tmp_path / "run", memory=RESERVED_BYTES - 1)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no account of what is mapped")
def test_libraries_are_unmapped_where_memory_is_short() -> None:
    """In a process of its own, which goes on with all of them."""
    code = (
        "import numpy as np, pyarrow as pa, streamcd.runs.run\n"
        "from streamcd.core.memory_budget import RESERVED_BYTES, _read_figure, make_room\n"
        "from streamcd.kernels.primitives import shuffle\n"
        "held = lambda: _read_figure('/proc/self/status', 'VmRSS')\n"
        "shuffle(np.arange(9), np.uint64(1), 1)\n"
        "before = held()\n"
        "make_room(RESERVED_BYTES, 0)\n"
        "assert abs(held() - before) < 5_000_000, held()\n"
        "make_room(RESERVED_BYTES, 1)\n"
        "assert held() < before - 50_000_000, (before, held())\n"
        "order = np.arange(9)\n"
        "shuffle(order, np.uint64(1), 1)\n"
        "assert sorted(order) == list(pa.array(range(9)).to_numpy())\n"
        "import pyarrow.dataset, scipy.sparse.linalg, scipy.optimize, scipy.stats\n"
        "before = held()\n"
        "make_room(RESERVED_BYTES, 1)\n"
        "assert held() < before - 20_000_000, (before, held())\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "primal"},
        {"method": "online", "loss": "log_loss"},
        {"method": "newton"},
        {"method": "working-set", "penalty": "l1"},
        {"method": "dual"},
        {"loss": "twin", "method": "sor"},
    ],
    ids=lambda options: options["method"],
)
def test_no_read_loads_a_kernel(tmp_path: Path, options: dict[str, str]) -> None:
    """Loading takes 25 MB that windows have by then, in a process that has loaded nothing before."""
    columns_of(tmp_path / "data", random_rows(n_features=300))
    code = (
        "import streamcd\n"
        "from streamcd.kernels import compile\n"
        "from streamcd.training import loop\n"
        "reads, early, late = [], [], []\n"
        "load, read = compile._Cache.load_overload, loop.Loop._read\n"
        "def load_noted(self, *arguments):\n"
        "    (late if reads else early).append(self.function.__name__)\n"
        "    return load(self, *arguments)\n"
        "def read_noted(self, stream):\n"
        "    reads.append(1)\n"
        "    read(self, stream)\n"
        "    reads.pop()\n"
        "compile._Cache.load_overload, loop.Loop._read = load_noted, read_noted\n"
        f"streamcd.train('data', 'run', **{options!r})\n"
        "assert early and not late, (early, late)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True)


# ---------------------------------------------------------------------------------------------------------------------
# Sizes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("400MB", 400_000_000),
        ("1GB", 10**9),
        ("1.5GB", 1_500_000_000),
        ("512MiB", 512 * 2**20),
        ("2GiB", 2 * 2**30),
        ("64kB", 64_000),
        ("1 TB", 10**12),
        ("7", 7),
        (123, 123),
        ("10 mb", 10_000_000),
        ("3k", 3000),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | int, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "0", "1XB", "1e9", "one", "1 2MB", "nan", "1MBs"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (400_000_000, "400 MB"),
        (1_234_000_000, "1.23 GB"),
        (5e15, "5e+03 TB"),
    ],
)
def test_sizes_are_written_with_three_digits(n_bytes: float, text: str) -> None:
    assert format_size(n_bytes) == text


def test_what_is_left_of_a_budget_or_the_sum_that_exceeds_it() -> None:
    budget = RESERVED_BYTES + 1_000_000
    assert require(budget, {"weights": 400_000}) == 600_000
    assert require(budget, {"weights": 1_000_000}) == 0
    with pytest.raises(UsageError, match=r"2 MB weights.*needed"):
        require(budget, {"weights": 2_000_000, "nothing": 0})


def test_peak_is_at_least_what_is_there_now() -> None:
    block = np.ones(30_000_000 // 8)
    assert peak_memory_bytes() > block.nbytes


def write_a_class_a_row(path: Path, n_classes: int) -> Path:
    """Rows of ten values, nearly every one with a label of its own, as of a regression."""
    rng = np.random.default_rng(0)
    label = np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, 100)]).astype(float)
    return write_dataset(path, (sp.csr_array(rng.standard_normal((label.size, 10))), label)).path


def test_many_classes_stay_within_the_budget_until_the_model_is_saved(tmp_path: Path) -> None:
    """Signs, costs and the code matrix were classes × lanes, many times, and the model's JSON came after the report."""
    budget = RESERVED_BYTES + 60_000_000
    dataset = write_a_class_a_row(tmp_path / "data", 3500)
    few = write_a_class_a_row(tmp_path / "few", 600)
    streamcd.train(few, tmp_path / "compiled", max_passes=1)  # compiling takes more than these classes
    peak, result = peak_of_training(dataset, tmp_path / "run", memory=budget, max_passes=1)
    assert_within(peak, budget)
    assert result["peak_memory_bytes"] >= peak - 4_000_000
    assert (tmp_path / "run" / "model" / "model.json").stat().st_size < 3500 * 100


def test_the_state_of_a_training_is_gone_before_its_models_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows and weights beside a model would be more than the budget counts."""
    alive: list[int] = []
    save = run_module.save_models

    def loops() -> list[object]:
        # by type: isinstance would follow proxies, some of which are dead
        return [one for one in gc.get_objects() if issubclass(type(one), TrainingLoop)]

    others = loops()  # of other tests, held so that they are told apart

    def counted(*arguments: Any) -> Any:
        alive.append(len(loops()) - len(others))
        return save(*arguments)

    monkeypatch.setattr(run_module, "save_models", counted)
    data = write_dataset(tmp_path / "data", random_rows())
    streamcd.train(data, tmp_path / "run", C=[0.1, 1.0], tol=0.1)
    assert alive == [0]
