"""Elastic net and L1 row by row, by the dual method: windows, lanes, hinge, models out of a pass; passes of real sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from interrupted import stopping_after
from reference import signs_of
from small_datasets import multiclass, random_rows, windows_of, write_dataset

import streamcd
from streamcd.core.errors import Interrupted, UsageError
from tools.make_data import main as make_data

NET: dict[str, Any] = {"penalty": "elasticnet", "l1": 0.6, "l2": 0.3}


def hinge_optimum(x: np.ndarray, y: np.ndarray, C: float) -> float:
    """The least objective with hinge and `NET`: the most of its dual, a smooth function in a box."""
    signed = x * y[:, None]

    def objective(alpha: np.ndarray) -> tuple[float, np.ndarray]:
        v = signed.T @ alpha
        beyond = np.sign(v) * np.maximum(np.abs(v) - NET["l1"], 0.0)
        return float(beyond @ beyond / (2 * NET["l2"]) - alpha.sum()), signed @ beyond / NET["l2"] - 1.0

    found = scipy.optimize.minimize(
        objective, np.zeros(y.size), jac=True, method="L-BFGS-B", bounds=[(0.0, C)] * y.size,
        options={"maxiter": 100_000, "maxfun": 400_000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 80},
    )  # fmt: skip
    return float(-found.fun)


@pytest.mark.parametrize("C", [0.05, 1.0])
def test_hinge_ends_at_the_optimum_of_a_quadratic_program(tmp_path: Path, C: float) -> None:
    x, y = random_rows(150, 10, seed=1)
    data = write_dataset(tmp_path / "data", (x, y), n_chunks=3)
    result = streamcd.train(data, tmp_path / "run", loss="hinge", C=C, tol=1e-9, max_passes=5000, **NET)
    assert result.primal_objective == pytest.approx(hinge_optimum(x.toarray(), y, C), rel=1e-8)


def least_of_program(loss: str, x: np.ndarray, y: np.ndarray, C: float) -> float:
    """The least objective with λ = 1 and a free bias, by a linear program in w, b and errors of both signs."""
    n, d = x.shape
    slopes = {"hinge": (1.0, 0.0), "quantile": (0.5, 0.5), "epsilon_insensitive": (1.0, 1.0)}[loss]
    right, apart = y, 0.1 if loss == "epsilon_insensitive" else 0.0
    if loss == "hinge":  # 1 - y (w·x + b), above 0
        x, ones, right = x * y[:, None], y[:, None], np.ones(n)
    else:
        ones = np.ones((n, 1))
    cost = np.repeat([1.0, 0.0, C * slopes[0], C * slopes[1], 0.0], [2 * d, 2, n, n, n])
    equations = np.hstack([x, -x, ones, -ones, np.eye(n), -np.eye(n), np.eye(n)])
    bounds = [(0, None)] * (2 * d + 2 + 2 * n) + [(-apart, apart)] * n
    return float(scipy.optimize.linprog(cost, A_eq=equations, b_eq=right, bounds=bounds).fun)


@pytest.mark.parametrize("C", [0.02, 1.0])
@pytest.mark.parametrize("loss", ["hinge", "quantile", "epsilon_insensitive"])
def test_l1_alone_with_losses_without_curvature_ends_at_the_optimum_of_a_linear_program(
    tmp_path: Path, loss: str, C: float
) -> None:
    """A kappa that was set anew after every pass left gaps of 1e-3 to 3e-2 for ever."""
    x, y = random_rows(150, 10, seed=1)
    if loss != "hinge":
        y = x @ np.arange(10) + np.random.default_rng(2).standard_t(2, 150) + 3.0
    data = streamcd.convert((x, y), tmp_path / "data", target=loss != "hinge", dtype="float64")
    asked: dict[str, Any] = {"C": C, "bias": 1.0, "unpenalized_bias": True, "tol": 1e-5, "max_passes": 5000}
    result = streamcd.train(data, tmp_path / "run", loss=loss, penalty="l1", **asked)
    best = least_of_program(loss, x.toarray(), y, C)
    assert result.converged
    assert -1e-9 <= result.primal_objective / best - 1.0 <= 1e-5
    assert result.dual_objective <= best * (1 + 1e-12)


def test_l1_alone_of_smooth_losses_of_numbers_is_refused_by_rows_with_the_way_out(tmp_path: Path) -> None:
    data = streamcd.convert(random_rows(), tmp_path / "data", target=True)
    with pytest.raises(UsageError, match=r"is not for squared_error; take --method newton or working-set"):
        streamcd.train(data, tmp_path / "run", loss="squared_error", penalty="l1", method="dual")


@pytest.mark.parametrize("number", [5, 6])
@pytest.mark.parametrize("rule", [{}, {"eps": 0.01}])
def test_liblinears_l1_problems_train_whatever_the_number_of_features(
    tmp_path: Path, number: int, rule: dict[str, float]
) -> None:
    wide = write_dataset(tmp_path / "wide", random_rows(60, 3000, density=0.01))
    loss = {5: "squared_hinge", 6: "log_loss"}[number]
    asked: dict[str, Any] = {"loss": loss, "memory": "400MB", "C": 1.0, "max_passes": 2000, **rule}
    result = streamcd.train(wide, tmp_path / "run", penalty="l1", **asked)
    assert result.converged
    assert result.gap < 0.05
    assert streamcd.load_model(tmp_path / "run").method == "dual"


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss", "multinomial"])
def test_every_cut_into_chunks_and_windows_ends_at_the_optimum_of_newtons_method(
    tmp_path: Path, loss: str
) -> None:
    rows = multiclass(12)  # more lanes than a vector operation has
    asked: dict[str, Any] = {"loss": loss, "C": [0.2, 2.0], "bias": 1.0, "tol": 1e-9, "max_passes": 4000}
    best = None
    for n_chunks, n_windows in ((1, 1), (6, 1), (6, 4)):
        data = write_dataset(tmp_path / f"{n_chunks}-{n_windows}", rows, n_chunks=n_chunks)
        best = best or streamcd.train(data, tmp_path / "best", method="newton", **asked, **NET)
        plan = windows_of(data, n_windows)
        run = tmp_path / f"run{n_chunks}-{n_windows}"
        result = streamcd.train(data, run, method="dual", plan=plan, **asked, **NET)
        for lane, expected in zip(result.lanes, best.lanes, strict=True):
            assert lane["primal_objective"] == pytest.approx(expected["primal_objective"], rel=1e-8)
            assert lane["dual_objective"] <= expected["primal_objective"] * (1 + 1e-12)
            assert lane["n_nonzero"] == expected["n_nonzero"]


@pytest.mark.parametrize("bias", [{"bias": 1.0}, {"bias": 1.0, "unpenalized_bias": True}])
def test_a_path_of_all_classes_at_once_ends_at_the_optima_of_newtons_method(
    tmp_path: Path, bias: dict[str, Any]
) -> None:
    """With a tolerance of 1e-7 for the sum of a row's variables no gap fell below 4e-8, whatever the passes."""
    data = write_dataset(tmp_path / "data", multiclass(4), n_chunks=6)
    asked: dict[str, Any] = {"loss": "multinomial", "penalty": "l1", "tol": 1e-9, "max_passes": 2000, **bias}
    by = {
        method: streamcd.train(
            data, tmp_path / method, method=method, l1=[4.0, 1.0], C=[0.3, 1.0], memory="1GB", **asked
        )
        for method in ("newton", "dual")
    }
    assert by["dual"].converged
    for lane, best in zip(by["dual"].lanes, by["newton"].lanes, strict=True):
        assert (lane["l1"], lane["C"]) == (best["l1"], best["C"])
        assert lane["primal_objective"] == pytest.approx(best["primal_objective"], rel=2e-9)
        assert lane["dual_objective"] <= best["primal_objective"] * (1 + 1e-12)


@pytest.mark.parametrize("net", [NET, {"penalty": "l1", "l1": 2.0}])
def test_a_search_over_folds_of_all_classes_at_once_scores_as_newtons_method(
    tmp_path: Path, net: dict[str, Any]
) -> None:
    data = write_dataset(tmp_path / "data", multiclass(4), n_chunks=6)
    asked: dict[str, Any] = {"loss": "multinomial", "bias": 1.0, "unpenalized_bias": True, "tol": 1e-8}
    found = [
        streamcd.tune(data, tmp_path / way, method=way, C=[0.1, 1.0], cv=3, max_passes=2000, **asked, **net)
        for way in ("dual", "newton")
    ]
    assert found[0].scores == found[1].scores
    assert found[0].primal_objective == pytest.approx(found[1].primal_objective, rel=2e-8)


def test_a_lane_among_others_ends_with_the_weights_that_it_has_alone(tmp_path: Path) -> None:
    rows = multiclass(9, 200)
    data = write_dataset(tmp_path / "data", rows, n_chunks=2)
    asked: dict[str, Any] = {"method": "dual", "C": 0.7, "tol": 1e-10, "max_passes": 3000, **NET}
    streamcd.train(data, tmp_path / "all", **asked)
    together = streamcd.load_model(tmp_path / "all").weights
    for lane, sign in enumerate(signs_of(rows[1], np.unique(rows[1])).T):
        if lane % 4 == 0:
            alone = write_dataset(tmp_path / f"data{lane}", (rows[0], sign), n_chunks=2)
            streamcd.train(alone, tmp_path / f"{lane}", **asked)
            weights = streamcd.load_model(tmp_path / f"{lane}").weights[:, 0]
            np.testing.assert_allclose(weights, together[:, lane], atol=1e-4)


@pytest.mark.parametrize("loss", ["squared_hinge", "multinomial", "crammer_singer"])
def test_a_checkpoint_within_a_pass_has_the_weights_and_not_what_a_visit_keeps(
    tmp_path: Path, loss: str
) -> None:
    rows = random_rows(400, 30) if loss == "squared_hinge" else multiclass(3, 400)
    data = write_dataset(tmp_path / "data", rows, n_chunks=8)
    run, asked = tmp_path / "run", {"method": "dual", "C": 0.05, "tol": 1e-6, "l1": 1.0, "loss": loss}
    with pytest.raises(Interrupted):
        streamcd.train(data, run, plan=windows_of(data, 2), stop_requested=stopping_after(15), **NET | asked)
    with np.load(run / "state.npz") as state:
        assert state["lane_in_pass"].all()
        threshold = asked["l1"] / (NET["l2"] + state["lane_kappa"])
        kept = state["w"][:-1]
    weights = streamcd.load_checkpoint(run).weights
    np.testing.assert_allclose(weights, np.sign(kept) * np.maximum(np.abs(kept) - threshold, 0.0))
    assert 0 < np.count_nonzero(weights) < np.count_nonzero(kept)


def test_a_run_with_another_penalty_is_a_start(tmp_path: Path) -> None:
    """The dual variables do not depend on the penalty."""
    data = write_dataset(tmp_path / "data", random_rows(400, 12))
    asked: dict[str, Any] = {"method": "dual", "C": 2.0, "tol": 1e-8, "max_passes": 1000}
    for first, second in ((NET, {}), ({}, NET)):
        name = f"{len(first)}"
        streamcd.train(data, tmp_path / f"first{name}", **asked, **first)
        cold = streamcd.train(data, tmp_path / f"cold{name}", **asked, **second)
        warm = streamcd.train(
            data, tmp_path / f"warm{name}", start_from=tmp_path / f"first{name}", **asked, **second
        )
        assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=2e-8)
        assert warm.passes <= cold.passes


def test_auto_takes_rows_where_a_matrix_of_features_does_not_fit_or_the_loss_is_not_smooth(
    tmp_path: Path,
) -> None:
    wide = write_dataset(tmp_path / "wide", random_rows(60, 3000, density=0.01))
    asked: dict[str, Any] = {"memory": "400MB", **NET}
    assert streamcd.train(wide, tmp_path / "run", **asked).converged
    assert streamcd.load_model(tmp_path / "run").method == "dual"
    narrow = write_dataset(tmp_path / "narrow", random_rows())
    for loss, method in (("hinge", "dual"), ("log_loss", "newton")):
        streamcd.train(narrow, tmp_path / loss, loss=loss, **asked)
        assert streamcd.load_model(tmp_path / loss).method == method


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "C", "most"), [("a9a", 0.01, 13), ("a9a", 1.0, 29), ("a9a", 10.0, 44), ("ijcnn1", 1.0, 16)]
)
def test_l1_alone_takes_few_passes(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, C: float, most: int
) -> None:
    data = streamcd.convert(real_data(name), tmp_path / "data")
    assert streamcd.train(data, tmp_path / "run", method="dual", penalty="l1", C=C).passes <= most


@pytest.mark.slow
@pytest.mark.parametrize("C", [1.0, 10.0])
@pytest.mark.parametrize("name", ["dna.scale", "letter.scale", "news20"])
def test_an_elastic_net_of_all_classes_at_once_takes_no_more_than_half_again_the_passes_of_l2(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, C: float
) -> None:
    data = streamcd.convert(real_data(name), tmp_path / "data")
    passes = [
        streamcd.train(data, tmp_path / f"{len(net)}", method="dual", loss="multinomial", C=C, **net).passes
        for net in ({}, {"penalty": "elasticnet", "l1": 0.5, "l2": 0.5})
    ]
    assert passes[1] <= 1.5 * passes[0]


@pytest.mark.slow
@pytest.mark.parametrize("C", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
@pytest.mark.parametrize("name", ["a9a", "ijcnn1", "clicks"])
def test_an_elastic_net_takes_no_more_than_half_again_the_passes_of_l2(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, loss: str, C: float
) -> None:
    data = tmp_path / "data"
    if name == "clicks":
        make_data(["clicks", "--rows", "50000", str(data)], standalone_mode=False)
    else:
        streamcd.convert(real_data(name), data)
    passes = [
        streamcd.train(data, tmp_path / f"{len(net)}", method="dual", loss=loss, C=C, **net).passes
        for net in ({}, {"penalty": "elasticnet", "l1": 0.5, "l2": 0.5})
    ]
    assert passes[1] <= 1.5 * passes[0] + 1
