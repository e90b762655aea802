"""A bias that is not penalised, by the dual method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from exact_optimum import model, nearly_least
from reference import signs_of
from small_datasets import Rows, multiclass, random_rows, write_dataset

import streamcd
from streamcd.core.errors import UsageError

LOSSES = ("squared_hinge", "hinge", "log_loss")


def least(loss: str, x: np.ndarray, sign: np.ndarray, cost: np.ndarray) -> float:
    """The optimum, by an interior-point method."""
    return nearly_least(model(loss, np.hstack([x, np.ones((x.shape[0], 1))]), sign, cost, free=True))


def shifted(make: Callable[[], Rows]) -> Rows:
    """Rows whose classes an intercept tells apart better than a plane through the origin."""
    x, y = make()
    return sp.csr_array(x.toarray() + 0.7), y


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
