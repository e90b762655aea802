"""Features and targets that are centred under a bias that is not penalised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
import scipy.sparse as sp
from exact_optimum import model as exact_model
from exact_optimum import nearly_least
from heard import Heard
from interrupted import ended, train_by_turns
from reference import loss_values
from sklearn.linear_model import Ridge
from small_datasets import windows_of

import streamcd
from streamcd import make_columns
from streamcd.core.errors import DatasetError
from streamcd.dataset.centring import find_centre
from tools.simulated_cluster import Simulation

FREE: dict[str, Any] = {"bias": 1.0, "unpenalized_bias": True}
REGRESSION: dict[str, Any] = {"loss": "squared_error", **FREE}


def far(mean: float, n_rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Five features of variance 1 around a mean, exact in float32, and noisy scores; the last feature is sparse."""
    rng = np.random.default_rng(0)
    x = np.round(64.0 * rng.standard_normal((n_rows, 6))) / 64.0
    z = x @ rng.standard_normal(6) + 0.3 * rng.standard_normal(n_rows)
    x[:, :5] += mean
    x[:, 5] *= rng.random(n_rows) < 0.5
    return x, z


def targets(loss: str, z: np.ndarray) -> np.ndarray:
    """Numbers far from 0, two classes, or three."""
    if loss in ("squared_error", "huber", "epsilon_insensitive", "quantile"):
        return z + 1e4
    return (
        np.digitize(z, [-1.0, 1.0])
        if loss in ("multinomial", "crammer_singer")
        else np.where(z > 1.0, 1.0, -1.0)
    )


def converted(place: Path, x: np.ndarray, loss: str, z: np.ndarray) -> streamcd.Dataset:
    of_targets = loss in ("squared_error", "huber", "epsilon_insensitive", "quantile")
    return streamcd.convert((x, targets(loss, z)), place, target=of_targets, chunk_size=2000)


def far_regression(place: Path) -> tuple[np.ndarray, np.ndarray, streamcd.Dataset]:
    """Rows with means of 300, the signal of their targets, and the dataset of both, in the two layouts."""
    x, z = far(300.0)
    data = converted(place, x, "squared_error", z)
    make_columns(data)
    return x, z, data


@pytest.mark.parametrize("method", ["dual", "primal"])
@pytest.mark.parametrize(
    "loss", ["squared_error", "squared_hinge", "log_loss", "hinge", "quantile", "multinomial"]
)
def test_features_and_targets_far_from_0_take_the_passes_of_those_around_0(
    tmp_path: Path, loss: str, method: str
) -> None:
    if method == "primal" and loss in ("hinge", "quantile", "multinomial"):
        pytest.skip("not by columns")
    passes = []
    for mean in (0.0, 3000.0):
        x, z = far(mean)
        data = converted(tmp_path / f"{mean}", x, loss, z)
        if method == "primal":
            make_columns(data)
        result = streamcd.train(
            data, tmp_path / f"run{mean}", loss=loss, method=method, max_passes=100, **FREE
        )
        assert result.converged
        passes.append(result.passes)
    assert passes[1] <= 1.3 * passes[0] + 3


@pytest.mark.parametrize("method", ["dual", "primal", "working-set"])
def test_the_model_is_that_of_ridge_regression_of_the_stored_values(tmp_path: Path, method: str) -> None:
    x, z, data = far_regression(tmp_path / "data")
    asked = {"method": method, "tol": 1e-10, "max_passes": 500, **REGRESSION}
    result = streamcd.train(data, tmp_path / "run", **asked)
    y, model = targets("squared_error", z), result.model
    peer = Ridge(alpha=0.5, solver="cholesky").fit(x, y)

    def objective(w: np.ndarray, b: float) -> float:
        return float(0.5 * w @ w + ((y - x @ w - b) ** 2).sum())

    least = objective(peer.coef_, peer.intercept_)
    assert result.converged
    assert objective(model.weights[:, 0], model.intercept[0]) == pytest.approx(least, rel=1e-8)
    assert result.primal_objective == pytest.approx(least, rel=1e-8)


@pytest.mark.parametrize("loss", ["log_loss", "squared_hinge", "hinge"])
def test_the_model_is_the_optimum_of_the_stored_values_for_losses_of_classes(
    tmp_path: Path, loss: str
) -> None:
    x, z = far(300.0, 150)
    result = streamcd.train(
        converted(tmp_path / "data", x, loss, z),
        tmp_path / "run",
        loss=loss,
        tol=1e-8,
        max_passes=20_000,
        **FREE,
    )
    sign, near, ones = targets(loss, z), x - [*5 * [300.0], 0.0], np.ones((x.shape[0], 1))
    least = nearly_least(exact_model(loss, np.hstack([near, ones]), sign, free=True))
    w, b = result.model.weights[:, 0], result.model.intercept[0]
    ours = 0.5 * w @ w + loss_values(loss, sign * (x @ w + b)).sum()
    assert ours == pytest.approx(least, rel=2e-8)
    assert result.dual_objective <= least * (1 + 1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_value_is_rounded_and_rows_stay_sparse(dtype: type) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "around 300": 300.0 + rng.standard_normal(1000),
        "negative": -1e-3 * (5.0 + rng.random(1000)),
        "of all sizes": np.exp(rng.standard_normal(1000)),
        "with an outlier": np.append(np.full(999, 1.7) + 0.1 * rng.random(999), 1e6),
        "of both signs": rng.standard_normal(1000),
        "sparse": np.where(rng.random(1000) < 0.5, 3.0, 0.0),
        "the same": np.full(1000, 0.1),
    }
    x = np.array(list(columns.values())).astype(dtype).T
    number = np.arange(x.shape[1])
    figures = {
        "feature": number,
        "n_entries": np.count_nonzero(x, axis=0),
        "min": x.min(axis=0),
        "max": x.max(axis=0),
    }
    figures |= {"mean": x.mean(axis=0, dtype=float), "mean_square": np.square(x, dtype=float).mean(axis=0)}
    centre = find_centre([figures], x.shape, np.dtype(dtype), {"min": 1e6 - 1.1, "max": 1e6 + 2.3}, None)
    assert centre is not None
    assert [list(columns)[j] for j in centre.features] == [
        "around 300", "negative", "of all sizes", "with an outlier", "the same"
    ]  # fmt: skip
    shifts = centre.table[np.minimum(number, centre.table.size - 1)]
    assert shifts.dtype == dtype
    assert (
        (x - shifts).astype(np.longdouble) == x.astype(np.longdouble) - shifts.astype(np.longdouble)
    ).all()
    assert np.abs((x - shifts).mean(axis=0))[[0, 1, 6]] == pytest.approx(0.0, abs=1e-4)
    assert centre.target == pytest.approx(1e6 + 0.6, abs=1e-9)


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("loss", ["squared_error", "squared_hinge", "multinomial"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path: Path, loss: str, resident: bool) -> None:
    x, z = far(300.0)
    data = converted(tmp_path / "data", x, loss, z)
    asked: dict[str, Any] = {
        "loss": loss,
        "tol": 1e-6,
        "plan": windows_of(data, 2, resident=resident),
        **FREE,
    }
    streamcd.train(data, tmp_path / "whole", **asked)
    train_by_turns(streamcd.train, data, tmp_path / "parts", 3, [7, 4], **asked)
    assert ended(tmp_path / "parts") == ended(tmp_path / "whole")
    intercepts = [streamcd.load_model(tmp_path / name).intercept.tobytes() for name in ("parts", "whole")]
    assert intercepts[0] == intercepts[1]


def test_what_looks_at_weights_within_a_training_sees_those_of_stored_values(tmp_path: Path) -> None:
    """Held-out folds."""
    x, z = far(300.0)
    data = converted(tmp_path / "data", x, "squared_error", z)
    tuned = streamcd.tune(
        data, tmp_path / "tuned", loss="squared_error", C=[1.0], cv=3, method="dual", **FREE
    )
    assert tuned.scores["1"]["mean"] > 0.9


@pytest.mark.parametrize(
    "before", [{}, {"C": 0.1}, {"unpenalized_bias": False, "method": "primal"}, {"method": "newton"}]
)
@pytest.mark.parametrize("method", ["dual", "primal"])
def test_starts_from_centred_runs_and_others_begin_where_they_ended(
    tmp_path: Path, before: dict[str, Any], method: str
) -> None:
    *_, data = far_regression(tmp_path / "data")
    asked = {"method": method, "tol": 1e-6, "max_passes": 1000, **REGRESSION}
    earlier = asked | before
    if method == "dual":
        earlier |= {"method": "dual", "unpenalized_bias": True}
    streamcd.train(data, tmp_path / "before", **earlier)
    cold = streamcd.train(data, tmp_path / "cold", **asked)
    warm = streamcd.train(data, tmp_path / "warm", start_from=tmp_path / "before", **asked)
    assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=2e-6)
    if before in ({}, {"method": "newton"}):
        assert warm.passes <= 2


def test_rows_that_are_merged_may_move_the_centre(tmp_path: Path) -> None:
    """One feature is in every row no more; targets lie elsewhere."""
    x, z = far(300.0)
    y = targets("squared_error", z)
    x[300:, :4] += 20.0
    x[350, 4] = 0.0
    y[300:] += 500.0
    old = streamcd.convert((x[:300], y[:300]), tmp_path / "old data", target=True, chunk_size=2000)
    asked: dict[str, Any] = {"loss": "squared_error", "tol": 1e-7, "max_passes": 5000, **FREE}
    streamcd.train(old, tmp_path / "old", **asked)
    more = streamcd.convert((x[300:], y[300:]), tmp_path / "more", target=True)
    data = streamcd.merge([old, more], tmp_path / "data")
    warm = streamcd.train(data, tmp_path / "warm", start_from=tmp_path / "old", **asked)
    peer = Ridge(alpha=0.5, solver="cholesky").fit(x, y)
    assert warm.converged
    np.testing.assert_allclose(warm.model.weights[:, 0], peer.coef_, atol=1e-2)
    least = 0.5 * peer.coef_ @ peer.coef_ + ((y - peer.predict(x)) ** 2).sum()
    assert warm.primal_objective == pytest.approx(least, rel=1e-6)


def test_workers_centre_as_one_process_does(tmp_path: Path) -> None:
    x, z = far(300.0)
    data = streamcd.convert((x, targets("squared_error", z)), tmp_path / "data", target=True, shard_size=4000)
    asked: dict[str, Any] = {"loss": "squared_error", "method": "dual", "max_passes": 200, **FREE}
    one = streamcd.train(data, tmp_path / "best", **asked)
    split = streamcd.train(data, tmp_path / "split", client=Simulation(3), **asked)
    assert split.primal_objective == pytest.approx(one.primal_objective, rel=2e-3)


def test_an_estimator_centres_as_a_training_on_disk_does() -> None:
    x, z = far(3000.0)
    y = targets("huber", z)
    for rows in (x, sp.csr_array(x)):
        found = streamcd.HuberRegressor(tol=1e-4, max_iter=100).fit(rows, y)
        assert found.n_iter_ < 30
        assert np.abs(found.predict(x) - y).mean() < 0.5


def test_it_is_told_what_is_centred_and_rows_are_not_called_badly_scaled(tmp_path: Path) -> None:
    x, z = far(3000.0)
    data, told = converted(tmp_path / "data", x, "squared_error", z), Heard()
    streamcd.train(data, tmp_path / "run", loss="squared_error", method="dual", listener=told, **FREE)
    assert not any("scaled" in text for text in told.warnings)
    assert command_line.run_json("info", tmp_path / "run")["centred"].startswith(
        "5 of 6 features and targets by 9999"
    )
    penalised = Heard()
    streamcd.train(
        data,
        tmp_path / "other",
        loss="squared_error",
        method="dual",
        bias=1.0,
        max_passes=3,
        listener=penalised,
    )
    assert command_line.run_json("info", tmp_path / "other")["centred"] == ""
    assert any("badly scaled" in text for text in penalised.warnings)


def test_rows_without_a_feature_that_all_should_have_are_refused(tmp_path: Path) -> None:
    x, z = far(300.0)
    data = converted(tmp_path / "data", x, "squared_error", z)
    x[:, 5] = 300.0
    other = converted(tmp_path / "other", x, "squared_error", z)
    data.__dict__["centre"] = other.centre
    with pytest.raises(
        DatasetError, match=r"chunk \d+: features are missing that features.parquet has in every row"
    ):
        streamcd.train(data, tmp_path / "run", loss="squared_error", method="dual", **FREE)
