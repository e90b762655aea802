"""Models with few weights that are not 0: stored, scored and told without a matrix of all."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import command_line
import made_models
import numpy as np
import pytest
import scipy.sparse as sp

import streamcd
from streamcd import Model, load_model, train
from streamcd.core.errors import ModelError, UsageError
from streamcd.core.files import SEAL, content_digest

N_FEATURES = 40_000


def model_of(weights: Any, **more: Any) -> Model:
    n_vectors = weights.shape[1]
    code = np.array([[-1], [1]]) if n_vectors == 1 else np.eye(n_vectors)
    options: dict[str, Any] = {"loss": "log_loss", "C": 1.0, "index_base": 0, "l1": 1.0, "l2": 0.0} | more
    classes = np.arange(max(2, n_vectors), dtype=np.float64)
    return made_models.model_of(weights, np.linspace(-0.5, 0.5, n_vectors), classes, code, **options)


def few_weights(n_vectors: int, n_kept: int = 300) -> np.ndarray:
    rng = np.random.default_rng(n_vectors)
    weights = np.zeros((N_FEATURES, n_vectors))
    kept = rng.choice(N_FEATURES, n_kept, replace=False)
    kept[:4] = [0, 63, 64, N_FEATURES - 1]
    weights[kept] = rng.standard_normal((n_kept, n_vectors)) * (rng.random((n_kept, n_vectors)) < 0.6)
    return weights


@pytest.mark.parametrize("n_vectors", [1, 5])
def test_a_sparse_model_scores_to_the_same_bits(tmp_path: Path, n_vectors: int) -> None:
    """Entries of features that the model does not know are ignored and counted, as ever."""
    weights = few_weights(n_vectors)
    dense = model_of(weights)
    dense.save(tmp_path / "model")
    assert (tmp_path / "model" / "weights.npz").exists()
    sparse = load_model(tmp_path / "model")
    rows = sp.random_array((200, N_FEATURES + 50), density=0.01, format="csr", rng=3)
    arrays = rows.indptr.astype(np.int64), rows.indices, rows.data
    for found, expected in zip(sparse.decisions(*arrays), dense.decisions(*arrays), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert "weights" not in vars(sparse)  # no matrix was made
    np.testing.assert_array_equal(sparse.weights, weights)
    assert sparse.penalty() == pytest.approx(dense.penalty(), rel=1e-14)


def test_a_sparse_model_takes_the_memory_of_its_weights(tmp_path: Path) -> None:
    n_features = 4_000_000
    kept = np.arange(0, n_features, 40_000)
    weights = sp.csr_array((np.ones(kept.size), (kept, np.zeros_like(kept))), shape=(n_features, 1))
    model_of(weights).save(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 10_000
    rows = sp.csr_array((np.ones(kept.size), kept, [0, kept.size]), shape=(1, n_features))
    tracemalloc.start()
    model = load_model(tmp_path)
    decisions, _ = model.decisions(rows.indptr.astype(np.int64), rows.indices, rows.data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decisions[0, 0] == kept.size - 0.5
    assert model.nbytes < 4 * n_features + 12 * kept.size + 100
    assert peak < 3 * model.nbytes
    with pytest.raises(UsageError, match="16 MB the model"):
        load_model(tmp_path, memory="210MB")


def test_a_trained_model_is_stored_sparse_where_few_weights_are_left(tmp_path: Path) -> None:
    """In small models the matrix is, which takes the place of the sparse one."""
    rng = np.random.default_rng(0)
    x = sp.csr_array(np.where(rng.random((300, 30)) < 0.5, rng.standard_normal((300, 30)), 0.0))
    y = np.where(x[:, [3]].toarray()[:, 0] + 0.3 * rng.standard_normal(300) > 0, 1.0, -1.0)
    wide = sp.csr_array((x.data, 600 * x.indices, x.indptr), shape=(300, 20_000))
    data = streamcd.convert((wide, y), tmp_path / "data")
    options: dict[str, Any] = {"loss": "hinge", "tol": 1e-4}
    run = train(data, tmp_path / "run", **options)
    files = {file.name for file in (tmp_path / "run" / "model").iterdir()}
    assert "weights.npz" in files
    model = load_model(run.run)
    assert np.flatnonzero(model.weights[:, 0]).tolist() == (600 * np.arange(30)).tolist()
    assert streamcd.evaluate(data, run.run)["primal_objective"] == pytest.approx(
        run.primal_objective, rel=1e-12
    )
    assert run.lanes[0]["n_nonzero"] == 30
    narrow = streamcd.convert((x, y), tmp_path / "narrow")
    small = train(narrow, tmp_path / "small", **options)
    assert not (tmp_path / "small" / "model" / "weights.npz").exists()
    np.testing.assert_allclose(load_model(small.run).weights, model.weights[::600][:30], rtol=1e-6)
    train(narrow, tmp_path / "run", force=True, **options)  # in the place of the sparse one
    assert not (tmp_path / "run" / "model" / "weights.npz").exists()


def test_the_support_is_told_by_vector(tmp_path: Path) -> None:
    weights = few_weights(3)
    model_of(weights).save(tmp_path)
    told = command_line.run_json("info", tmp_path)
    counts = np.count_nonzero(weights, axis=0).tolist()
    assert [of["n_nonzero"] for of in told["support"]] == counts
    assert [of["share"] for of in told["support"]] == [count / N_FEATURES for count in counts]
    assert told["n_nonzero"] == sum(counts)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_sparse_model_is_refused_by_the_files_name(tmp_path: Path, damage: str) -> None:
    name = "weights.npz"
    model_of(few_weights(1)).save(tmp_path)
    file, content = tmp_path / name, bytearray((tmp_path / name).read_bytes())
    if damage == "remove":
        file.unlink()
    else:
        content[-3] ^= 1
        file.write_bytes(content[:-8] if damage == "cut" else content)
    with pytest.raises(ModelError, match=name):
        load_model(tmp_path)
    assert name in command_line.problems(tmp_path)[0]


@pytest.mark.parametrize("n_features", [N_FEATURES - 1, N_FEATURES + 1])
def test_sparse_weights_of_another_size_are_refused(tmp_path: Path, n_features: int) -> None:
    model = model_of(few_weights(1))
    model.save(tmp_path)
    content = json.loads((tmp_path / "model.json").read_text()) | {"n_features": n_features}
    content[SEAL] = content_digest(content)
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match=f"expected {n_features} rows"):
        load_model(tmp_path)
