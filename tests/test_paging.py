"""Rows and features that do not fit in memory: the same bits from a file of pages and from sweeps, within the budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_datasets import column_of, columns_of, unequal_columns
from test_memory import assert_within, peak_of_training

from streamcd import Dataset, make_columns, resume, train
from streamcd import open as open_dataset
from streamcd.core.errors import CheckpointError, UsageError
from streamcd.core.memory_budget import RESERVED_BYTES, RUNNING_BYTES
from streamcd.kernels.rows import compact_rows
from streamcd.runs.lane_groups import resolve
from streamcd.runs.options import TrainOptions
from streamcd.stream.arenas import ColumnLayout
from streamcd.stream.memory_plan import Plan
from streamcd.stream.stream import Stream
from tools.chunk_writer import ChunkWriter

PAGED = Plan(60, 90, resident=False, page_rows=7)
"""Of `unequal_columns`: the feature of all rows does not fit in a window, and rows are in 18 pages."""


# ---------------------------------------------------------------------------------------------------------------------
# The same bits


@pytest.mark.parametrize(
    ("loss", "method", "options"),
    [
        ("squared_hinge", "primal", {"C": 0.5, "acceleration": "none"}),
        ("log_loss", "online", {"C": [0.3, 500.0], "bias": 0.7, "class_weight": {-1.0: 2.0}}),
        ("squared_hinge", "online", {"C": [0.3, 500.0]}),
        ("log_loss", "primal", {"C": 3.0, "bias": 1.0, "unpenalized_bias": True}),
    ],
    ids=["plain", "lanes", "online", "free bias"],
)
def test_pages_and_sweeps_end_at_the_same_optimum(
    tmp_path: Path, loss: str, method: str, options: dict[str, Any]
) -> None:
    """All in memory; the large feature in sweeps; scores in pages, of some rows, of all."""
    weight = np.linspace(0.1, 3.0, 120) if "bias" in options else None
    rows = unequal_columns(3 if isinstance(options["C"], list) else 2)
    dataset = columns_of(tmp_path / "data", rows, weight=weight)
    plans = {
        "memory": replace(PAGED, resident=True, page_rows=0),
        "sweeps": replace(PAGED, page_rows=0),
        "pages": PAGED,
        "a page": replace(PAGED, page_rows=1000),
    }
    found = {}
    for name, plan in plans.items():
        asked = {"loss": loss, "method": method, "tol": 1e-6, "max_passes": 3000, "plan": plan, **options}
        found[name] = train(dataset, tmp_path / name, **asked)
    assert all(result.converged for result in found.values())
    best = found["memory"].primal_objective
    assert all(abs(result.primal_objective - best) <= 2e-6 * best for result in found.values())
    assert all(result.passes <= 1.2 * found["memory"].passes + 3 for result in found.values())


@pytest.mark.parametrize("at_a_time", [1, 7, 100, 5000])
def test_rows_are_numbered_ascending(at_a_time: int) -> None:
    rng = np.random.default_rng(2)
    columns = [np.sort(rng.choice(1000, size, replace=False)) for size in (0, 1, 40, 300, 2)]
    row = np.concatenate(columns).astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum([column.size for column in columns])])
    expected, numbers = np.unique(row, return_inverse=True)
    listed = np.empty(row.size, dtype=np.int32)
    scratch = np.empty(len(columns), dtype=np.int64), np.empty(at_a_time, dtype=np.int64)
    n = compact_rows(indptr, row, 1000, *scratch, listed)
    assert listed[:n].tolist() == expected.tolist()
    assert row.tolist() == numbers.tolist()


def test_a_sweep_brings_all_entries_of_a_large_feature_in_order(tmp_path: Path) -> None:
    """As often as it is asked, while the next window is read into the other arena."""
    dataset = columns_of(tmp_path / "data", unequal_columns())
    columns = dataset.open_columns()
    row, value = column_of(columns, 0)
    with Stream(dataset, PAGED, ColumnLayout(), 5) as stream:
        for read in range(3):
            seen = 0
            for window in stream.windows(read):
                if window.sweep is None:
                    assert window.n_entries <= 60
                    assert 0 not in window.arena.feature[: window.stop.max()]
                    continue
                seen += 1
                assert window.arena.feature[0] == 0
                assert window.n_entries == 120
                for _ in range(3):
                    pieces = [
                        (window.arena.row[:n].copy(), window.arena.value[:n].copy()) for n in window.sweep()
                    ]
                    assert 2 <= len(pieces) < 5
                    np.testing.assert_array_equal(np.concatenate([piece[0] for piece in pieces]), row)
                    np.testing.assert_array_equal(np.concatenate([piece[1] for piece in pieces]), value)
            assert seen == 1


# ---------------------------------------------------------------------------------------------------------------------
# Stop, kill, resume


def test_damage_of_a_page_is_found_and_named(tmp_path: Path) -> None:
    dataset = columns_of(tmp_path / "data", unequal_columns())
    run = tmp_path / "run"
    train(dataset, run, method="primal", max_passes=3, tol=0.0, plan=PAGED)
    path = run / "rows" / "part-00000.bin"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CheckpointError, match=str(path)):
        resume(run, max_passes=5)


# ---------------------------------------------------------------------------------------------------------------------
# The plan, and the memory


def planned(dataset: Dataset, budget: int, **options: Any) -> Plan:
    """The plan that a training would have."""
    asked = TrainOptions(**{"method": "primal", "acceleration": "none", "memory": budget, **options})
    return resolve(dataset, asked).config.plan


def test_scores_are_paged_where_they_do_not_fit(tmp_path: Path) -> None:
    """18 bytes a row with one lane; refused with the arithmetic only where no window and no page fits."""
    dataset = columns_of(tmp_path / "data", unequal_columns())
    assert planned(dataset, 10**9).page_rows == 0
    dataset.n_rows = 10**9
    assert planned(dataset, 20 * 10**9).page_rows == 0
    plan = planned(dataset, 18 * 10**9)
    assert plan.page_rows > 0
    assert not plan.resident
    assert planned(dataset, 10**9).page_rows == plan.page_rows
    with pytest.raises(UsageError, match=r"weights and their copies .* rows .* needed"):
        planned(dataset, RUNNING_BYTES + 5_000_000)


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
def test_a_paged_training_stays_within_its_budget(tmp_path: Path, n_chunks: int, n_second: int) -> None:
    """More rows than fit (5.9 and 7.9 million: 106 and 142 MB), a feature of all of them, 105 MB beside the libraries.

    What the interpreter's reserve leaves would hide the smaller, not the larger, in which three features are read in pieces.
    """
    write_many_rows(tmp_path / "data", n_chunks, n_second)
    make_columns(tmp_path / "data")
    budget = RESERVED_BYTES
    dataset = open_dataset(tmp_path / "data")
    peak, result = peak_of_training(
        tmp_path / "data", tmp_path / "run", method="primal", bias=1.0, memory=budget, max_passes=1, tol=1e-9,
        checkpoint_every=1.0,
    )  # fmt: skip
    plan = Plan(**json.loads((tmp_path / "run" / "config.json").read_text())["plan"])
    assert plan.page_rows > 0
    assert plan.window_entries < dataset.n_rows, "the feature of all rows is read in pieces"
    assert_within(peak, budget)
    assert result["passes"] == 1
