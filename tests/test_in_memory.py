"""A dataset in memory: the same bits as on disk, for every solver and cut; and a run that leaves no files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from small_datasets import write_dataset

from streamcd import Listener
from streamcd.core.errors import UsageError
from streamcd.dataset import in_memory
from streamcd.dataset.in_memory import InMemoryDataset
from streamcd.models.matrix_encoder import matrix_rows
from streamcd.runs.options import TrainOptions
from streamcd.runs.run import train_in_memory
from streamcd.stream.memory_plan import Plan
from streamcd.training.loop import Session

CLASSES = np.array([0.0, 1.0, 2.0])


def whole_numbers(n_rows: int = 150, n_features: int = 12) -> tuple[sp.csr_array, np.ndarray]:
    """Values and squares whose sums are exact in any order."""
    rng = np.random.default_rng(3)
    x = rng.integers(-2, 3, (n_rows, n_features)) * (rng.random((n_rows, n_features)) < 0.6)
    return sp.csr_array(x.astype(np.float64)), rng.integers(0, CLASSES.size, n_rows)


def dataset_of(x: Any, code: np.ndarray, weight: np.ndarray | None = None) -> InMemoryDataset:
    return InMemoryDataset(matrix_rows(x), x.shape[1], code, CLASSES.size, weight)


def options(loss: str, method: str, accelerated: bool) -> dict[str, Any]:
    acceleration = "auto" if accelerated else "none"
    return {"loss": loss, "method": method, "bias": 1.0, "C": 0.5, "seed": 7, "acceleration": acceleration}


def train_arrays(dataset: InMemoryDataset, asked: dict[str, Any], **more: Any) -> tuple[Any, Any]:
    rule = {"tol": 1e-6, "max_passes": 20}
    arrays = TrainOptions(**asked, **rule, **more)
    result, models = train_in_memory(dataset, arrays, Session(Listener(), None))
    return result, models[0]


@pytest.mark.parametrize("method", ["dual", "primal"])
def test_windows_of_few_chunks_reach_the_optimum_of_one(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, code = whole_numbers()
    asked = options("squared_hinge", method, method == "dual")
    monkeypatch.setattr(in_memory, "CHUNK_BYTES", 2000)
    cut = dataset_of(x, code)
    assert cut.n_chunks > 4
    plan = Plan(window_entries=cut.n_entries // 3, window_rows=cut.n_rows, resident=False)
    rule = {"tol": 1e-6, "max_passes": 2000}
    arrays = TrainOptions(**asked, **rule, plan=plan)
    result, (in_parts,) = train_in_memory(cut, arrays, Session(Listener(), None))
    assert result.converged
    arrays = replace(arrays, plan=None)
    _, (whole,) = train_in_memory(dataset_of(x, code), arrays, Session(Listener(), None))
    assert np.allclose(in_parts.weights, whole.weights, atol=1e-2)


def test_a_run_in_memory_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, code = whole_numbers()
    monkeypatch.chdir(tmp_path)
    for method in ("dual", "primal"):
        train_arrays(dataset_of(x, code), options("squared_hinge", method, True))
    assert not list(tmp_path.iterdir())


def test_too_small_a_budget_is_refused_with_the_arithmetic() -> None:
    x, code = whole_numbers()
    for method in ("dual", "primal"):
        with pytest.raises(UsageError, match="210 MB interpreter and libraries = 210 MB needed"):
            train_arrays(dataset_of(x, code), options("squared_hinge", method, False), memory=200_000_000)


def test_figures_are_those_of_the_same_rows_on_disk(tmp_path: Path) -> None:
    x, code = whole_numbers()
    x = sp.vstack([sp.csr_array((1, x.shape[1])), x[1:]], format="csr")  # an empty row
    mine = dataset_of(x, code)
    other = write_dataset(tmp_path, (x, code), n_chunks=1, value_dtype=np.float64, index_base=0)
    ours, theirs = mine.info(), other.info()
    for name in ("bytes", "fingerprint", "data_digest", "compression"):
        del ours[name], theirs[name]
    assert ours == theirs
    (features,) = mine.read_features()
    (expected,) = other.read_features(list(features))
    for name, column in features.items():
        assert np.allclose(column, expected[name])


@pytest.mark.parametrize("number", [np.float32, np.float64, np.int64, bool])
def test_rows_of_any_matrix_are_the_same_numbers(number: Any) -> None:
    dense = np.array([[0, 1, 0], [0, 0, 0], [1, 0, 1]], dtype=number)
    forms = [dense, np.asfortranarray(dense), sp.csr_array(dense), sp.csc_matrix(dense), sp.coo_array(dense)]
    wide = sp.csr_array(dense)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    for form in [*forms, wide]:
        indptr, feature, value = matrix_rows(form)
        assert (indptr.dtype, feature.dtype) == (np.int64, np.int32)
        assert value.dtype == (np.float32 if number is np.float32 else np.float64)
        assert np.array_equal(sp.csr_array((value, feature, indptr), dense.shape).toarray(), dense)


def test_duplicate_entries_are_added_up_in_a_copy() -> None:
    x = sp.csr_array((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    _, feature, value = matrix_rows(x)
    assert (feature.tolist(), value.tolist()) == ([1], [3.0])
    assert x.nnz == 2
