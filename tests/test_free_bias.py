"""A bias that is not penalised, by the dual method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quadprog
import scipy.sparse as sp
from exact_optimum import model, nearly_least
from reference import loss_values, signs_of
from small_datasets import Rows, multiclass, random_rows, windows_of, write_dataset

import streamcd
from streamcd.core.errors import UsageError
from streamcd.solvers.problem import crammer_singer_losses

LOSSES = ("squared_hinge", "hinge", "log_loss")


def objective(loss: str, x: np.ndarray, sign: np.ndarray, cost: np.ndarray, w: np.ndarray) -> float:
    """Objective of weights whose last one is the bias's."""
    return float(0.5 * w[:-1] @ w[:-1] + cost @ loss_values(loss, sign * (x @ w[:-1] + w[-1])))


def least(loss: str, x: np.ndarray, sign: np.ndarray, cost: np.ndarray) -> float:
    """The optimum, by an interior-point method."""
    return nearly_least(model(loss, np.hstack([x, np.ones((x.shape[0], 1))]), sign, cost, free=True))


def shifted(make: Callable[[], Rows]) -> Rows:
    """Rows whose classes an intercept tells apart better than a plane through the origin."""
    x, y = make()
    return sp.csr_array(x.toarray() + 0.7), y


@pytest.mark.parametrize("make", [random_rows, multiclass])
@pytest.mark.parametrize("loss", LOSSES)
def test_without_acceleration_the_optimum_is_that_of_free_intercepts_and_the_certificate_holds(
    tmp_path: Path, loss: str, make: Callable[[], Rows]
) -> None:
    rows = shifted(make)
    weight = np.linspace(0.5, 2.0, rows[1].size).astype(np.float32).astype(np.float64)
    data = write_dataset(tmp_path / "data", rows, weight=weight, n_chunks=5, value_dtype=np.float64)
    result = streamcd.train(
        data, tmp_path / "run", loss=loss, C=0.2, bias=2.0, unpenalized_bias=True, tol=1e-7, max_passes=5000,
        acceleration="none", plan=windows_of(data, 2),
    )  # fmt: skip
    assert result.converged
    model, x = streamcd.load_model(tmp_path / "run"), rows[0].toarray()
    assert model.free_bias
    for lane, sign in enumerate(signs_of(rows[1], np.unique(rows[1])).T):
        best = least(loss, x, sign, 0.2 * weight)
        w = np.append(model.weights[:, lane], model.intercept[lane])
        ours, told = objective(loss, x, sign, 0.2 * weight, w), result.lanes[lane]
        assert ours == pytest.approx(told["primal_objective"], rel=1e-9)
        assert ours <= best * (1 + 1e-7)
        assert told["dual_objective"] <= best * (1 + 1e-11)


@pytest.mark.parametrize("acceleration", ["auto", "none"])
def test_a_regression_with_a_free_bias_is_ridge_regression_with_an_intercept(
    tmp_path: Path, acceleration: str
) -> None:
    from sklearn.linear_model import Ridge

    x, _ = random_rows()
    y = 100.0 + 30.0 * np.random.default_rng(1).standard_normal(x.shape[0]) + x @ np.arange(x.shape[1])
    data = streamcd.convert((x, y), tmp_path / "data", target=True, dtype="float64")
    asked: dict[str, Any] = {"bias": 1.0, "unpenalized_bias": True, "tol": 1e-10, "max_passes": 3000}
    result = streamcd.train(
        data, tmp_path / "run", loss="squared_error", C=0.5, acceleration=acceleration, **asked
    )
    peer, model = Ridge(alpha=1.0, tol=1e-12).fit(x.toarray(), y), streamcd.load_model(tmp_path / "run")
    assert result.converged
    np.testing.assert_allclose(model.weights[:, 0], peer.coef_, rtol=1e-3)
    assert model.intercept[0] == pytest.approx(peer.intercept_, rel=1e-5)


@pytest.mark.parametrize("loss", [*LOSSES, "crammer_singer"])
def test_threads_and_room_in_memory_do_not_change_a_bit(tmp_path: Path, loss: str) -> None:
    data = write_dataset(tmp_path / "data", shifted(multiclass), n_chunks=8, n_shards=2)
    asked: dict[str, Any] = {
        "loss": loss,
        "bias": 1.0,
        "unpenalized_bias": True,
        "tol": 1e-5,
        "max_passes": 40,
    }
    files = set()
    for name, resident, threads in (("one", True, 1), ("two", True, 2), ("streamed", False, 2)):
        plan = windows_of(data, 3, resident=resident)
        streamcd.train(data, tmp_path / name, threads=threads, plan=plan, **asked)
        files.add((tmp_path / name / "model" / "weights.npy").read_bytes())
    assert len(files) == 1


@pytest.mark.parametrize(("loss", "offset"), [("log_loss", 0.0), ("quantile", 1000.0)])
def test_a_small_cost_and_an_offset_take_few_passes(tmp_path: Path, loss: str, offset: float) -> None:
    """The losses of all rows pull at the bias with at most C each; its feature is as large as that needs."""
    x, y = random_rows()
    target = loss == "quantile"
    labels = offset + np.asarray(x.sum(axis=1)).ravel() if target else y
    data = streamcd.convert((x, labels), tmp_path / "data", target=target)
    result = streamcd.train(
        data, tmp_path / "run", loss=loss, C=1e-3, bias=1.0, unpenalized_bias=True, max_passes=60
    )
    assert result.converged


@pytest.mark.parametrize("size", [1e4, 1e6, 1e30])
@pytest.mark.parametrize("loss", ["huber", "epsilon_insensitive", "quantile"])
def test_targets_far_beyond_what_a_pass_moves_the_bias_by_take_few_passes(
    tmp_path: Path, loss: str, size: float
) -> None:
    """They have both signs, and are not centred; from a bias of 0 none of these had converged after 200 passes."""
    x, _ = random_rows(201, 5, density=1.0)
    y = size * (x @ np.arange(5) + np.random.default_rng(2).standard_normal(201))
    data = streamcd.convert((x, y), tmp_path / "data", target=True, dtype="float64")
    asked: dict[str, Any] = {"bias": 1.0, "unpenalized_bias": True, "tol": 1e-3}
    result = streamcd.train(data, tmp_path / "run", loss=loss, **asked)
    assert result.converged
    assert result.passes <= 40


def test_a_path_over_costs_and_a_search_end_at_the_optimum(tmp_path: Path) -> None:
    rows = shifted(random_rows)
    data = write_dataset(tmp_path / "data", rows)
    asked: dict[str, Any] = {"loss": "log_loss", "bias": 1.0, "unpenalized_bias": True, "tol": 1e-8}
    best = least(
        "log_loss", rows[0].toarray(), signs_of(rows[1], np.unique(rows[1]))[:, 0], np.ones(rows[1].size)
    )
    streamcd.train(data, tmp_path / "first", C=0.3, **asked)
    warm = streamcd.train(data, tmp_path / "second", C=1.0, start_from=tmp_path / "first", **asked)
    assert warm.primal_objective == pytest.approx(best, rel=2e-8)
    found = streamcd.tune(data, tmp_path / "tuned", C=[1.0], cv=3, **asked)
    assert found.primal_objective == pytest.approx(best, rel=2e-8)


def crammer_singer_objective(
    x: np.ndarray, code: np.ndarray, cost: np.ndarray, w: np.ndarray, b: np.ndarray
) -> float:
    return float(0.5 * np.sum(w * w) + cost @ crammer_singer_losses(x @ w + b, code))


def least_crammer_singer(x: np.ndarray, code: np.ndarray, cost: np.ndarray) -> float:
    """The optimum of free biases by quadprog, which wants a positive definite matrix: biases and slacks have 1e-7 in it."""
    (n, d), k = x.shape, int(code.max()) + 1
    rows, of_features = np.arange(n), np.hstack([x, np.ones((n, 1))])
    size = k * (d + 1)
    constraints = []
    for m in range(k):  # w_y·x - w_m·x + slack >= [m != y]
        block = np.zeros((n, k, d + 1))
        block[rows, code] += of_features
        block[:, m] -= of_features
        constraints.append(np.hstack([block.reshape(n, size), np.eye(n)]))
    limits = np.concatenate([(code != m).astype(float) for m in range(k)])
    weight = np.concatenate([np.tile(np.append(np.ones(d), 1e-7), k), np.full(n, 1e-7)])
    linear = np.concatenate([np.zeros(size), -cost])
    found = quadprog.solve_qp(np.diag(weight), linear, np.vstack(constraints).T, limits)[0]
    solution = found[:size].reshape(k, d + 1)
    return crammer_singer_objective(x, code, cost, solution[:, :-1].T, solution[:, -1])


@pytest.mark.parametrize("acceleration", ["auto", "none"])
@pytest.mark.parametrize("make", [random_rows, multiclass])
def test_crammer_singer_with_free_biases_ends_at_the_optimum_and_the_certificate_holds(
    tmp_path: Path, make: Callable[[], Rows], acceleration: str
) -> None:
    rows, x = shifted(make), shifted(make)[0].toarray()
    code, n = np.unique(rows[1], return_inverse=True)[1], rows[1].size
    weight = np.linspace(0.5, 2.0, n).astype(np.float32).astype(np.float64)
    data = write_dataset(tmp_path / "data", rows, weight=weight, n_chunks=5, value_dtype=np.float64)
    best = least_crammer_singer(x, code, 0.2 * weight)
    for tol in (1e-2, 1e-6):
        result = streamcd.train(
            data, tmp_path / "run", loss="crammer_singer", C=0.2, bias=2.0, unpenalized_bias=True, tol=tol,
            max_passes=20_000, acceleration=acceleration, plan=windows_of(data, 2), force=True,
        )  # fmt: skip
        model = streamcd.load_model(tmp_path / "run")
        ours = crammer_singer_objective(x, code, 0.2 * weight, model.weights, model.intercept)
        assert result.converged
        assert ours == pytest.approx(result.primal_objective, rel=1e-10)
        assert ours <= best * (1 + tol)
        assert result.dual_objective <= best * (1 + 1e-11)


@pytest.mark.parametrize("asked", [{"loss": "twin"}])
def test_what_has_no_free_bias_refuses_it_in_a_line(tmp_path: Path, asked: dict[str, Any]) -> None:
    data = write_dataset(tmp_path / "data", multiclass(), n_chunks=4, n_shards=2)
    with pytest.raises(UsageError, match="bias"):
        streamcd.train(data, tmp_path / "run", bias=1.0, unpenalized_bias=True, **asked)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["a9a", "ijcnn1"])
def test_a_free_bias_takes_about_as_many_passes_as_a_penalised_one(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, loss: str
) -> None:
    data = streamcd.convert(real_data(name), tmp_path / "data")
    passes = [
        streamcd.train(
            data, tmp_path / str(free), loss=loss, bias=1.0, unpenalized_bias=free, tol=1e-3
        ).passes
        for free in (False, True)
    ]
    assert passes[1] <= 1.2 * passes[0] + 1
