"""The one-class SVM beyond what every dual solver is tested for: pairs, the threshold, labels that do not count."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pyarrow.csv
import pytest
import scipy.sparse as sp
from exact_optimum import model, nearly_least
from heard import Heard
from liblinear import liblinearutil
from mpmath import mp, mpf
from reference import run_dual
from small_datasets import NAMED, Rows, multiclass, random_rows, repeated, windows_of, write_dataset

import streamcd
from streamcd import ConvergenceWarning, Result
from streamcd.core.errors import Interrupted, ModelError, UsageError
from streamcd.kernels.one_class import POOL, _products
from streamcd.kernels.primitives import Rows as KernelRows

NU = 0.3
FIT = {"loss": "one_class", "nu": NU, "tol": 1e-9}


def one_sided(rows: Rows) -> Rows:
    """Values that are not negative: the origin is not among the rows, and the optimum is not w = 0."""
    return abs(rows[0]), rows[1]


def objective(x: np.ndarray, w: np.ndarray, rho: float, nu: float, weight: np.ndarray) -> float:
    outside = weight @ np.maximum(0.0, rho - x @ w)
    return float(0.5 * w @ w - rho * nu * weight.sum() + outside)


def optimum(x: np.ndarray, nu: float, weight: np.ndarray | None = None) -> float:
    """Optimum by an interior-point method."""
    x, weight = np.hstack([x, np.ones((x.shape[0], 1))]), 1.0 if weight is None else weight
    return nearly_least(model("one_class", x, x[:, 0], weight, free=True, parameter=nu))


def dense(rows: Rows) -> np.ndarray:
    return np.asarray(rows[0].todense(), dtype=np.float64)


def weight_bytes(result: Result) -> bytes:
    folder = Path(result.run) / "model"
    return (folder / "weights.npy").read_bytes() + repr(result.model.intercept.tolist()).encode()


# ---------------------------------------------------------------------------------------------------------------------
# The optimum and its certificate


@pytest.mark.parametrize("name", NAMED)
def test_reaches_the_optimum_of_small_problems(fit: Callable[..., Result], tmp_path: Path, name: str) -> None:
    rows = one_sided(NAMED[name]())
    nu = 0.1 + 0.8 * list(NAMED).index(name) / len(NAMED)
    result = fit(write_dataset(tmp_path / "data", rows), nu=nu)
    best, model = optimum(dense(rows), nu), result.model
    primal = objective(dense(rows), model.weights[:, 0], -model.intercept[0], nu, np.ones(rows[1].size))
    assert result.converged
    assert primal == pytest.approx(result.primal_objective, rel=1e-8)
    assert abs(primal - best) <= 1e-8 * abs(best)
    assert result.dual_objective <= best + 1e-8 * abs(best)


@pytest.mark.parametrize("nu", [0.05, 0.5, 1.0])
def test_nu_bounds_the_rows_outside_from_above_and_those_not_inside_from_below(
    fit: Callable[..., Result], tmp_path: Path, nu: float
) -> None:
    rows = one_sided(random_rows(200, 10, seed=3))
    result = fit(write_dataset(tmp_path / "data", rows), nu=nu)
    decision = result.model.decision_function(rows[0])
    slack = 1e-4 * abs(result.model.intercept[0])
    assert result.converged
    assert (decision < -slack).mean() <= nu <= (decision <= slack).mean()


def badly_scaled(seed: int) -> tuple[Rows, np.ndarray]:
    """Rows, columns and weights that differ by orders of magnitude."""
    rng = np.random.default_rng(seed)
    n, d = 30, 5
    x = (
        np.abs(rng.standard_normal((n, d)))
        * 10.0 ** rng.uniform(-4, 4, (1, d))
        * 10.0 ** rng.uniform(-3, 3, (n, 1))
    )
    return (sp.csr_array(x), np.ones(n)), 10.0 ** rng.uniform(-3, 3, n)


def exact_gap(
    x: np.ndarray, w: np.ndarray, rho: float, nu: float, beta: np.ndarray, weight: np.ndarray
) -> Any:
    """The gap in fifty digits, of β scaled, or filled up, to the sum that it should have."""
    exact = [[mpf(float(v)) for v in row] for row in x]
    c, b = ([mpf(float(v)) for v in numbers] for numbers in (weight, beta))
    weights, threshold, mass = [mpf(float(v)) for v in w], mpf(rho), mpf(nu) * sum(c)
    scores = [sum(v * own for v, own in zip(row, weights, strict=True)) for row in exact]
    primal = sum(v * v for v in weights) / 2 - threshold * mass
    primal += sum(own * max(mpf(0), threshold - z) for own, z in zip(c, scores, strict=True))
    if sum(b) > mass:
        b = [own * mass / sum(b) for own in b]
    elif sum(b) < mass:
        share = (mass - sum(b)) / (sum(c) - sum(b))
        b = [own + (most - own) * share for own, most in zip(b, c, strict=True)]
    v = [sum(own * row[j] for own, row in zip(b, exact, strict=True)) for j in range(x.shape[1])]
    return primal + sum(own * own for own in v) / 2, abs(primal)


@pytest.mark.parametrize("max_passes", [1, 4, 200])
def test_no_certificate_is_below_the_true_gap_where_scales_are_bad(
    fit: Callable[..., Result], tmp_path: Path, max_passes: int
) -> None:
    mp.dps = 50
    for seed in range(6):
        rows, weight = badly_scaled(seed)
        data = write_dataset(tmp_path / f"{seed}", rows, weight=weight, value_dtype=np.float64)
        with pytest.warns(ConvergenceWarning):
            result = fit(data, nu=0.2, tol=0.0, max_passes=max_passes)
        kept = [data.read_rows(chunk, ("weight",))[0] for chunk in range(data.n_chunks)]
        beta = run_dual(Path(result.run), data, 1, 1)[0][:, 0]
        model = result.model
        w, rho = model.weights[:, 0], -float(model.intercept[0])
        gap, primal = exact_gap(dense(rows), w, rho, 0.2, beta, np.concatenate(kept))
        certified = mpf(result.gap) * abs(mpf(result.primal_objective))
        assert gap * (1 - mpf(10) ** -7) <= certified <= gap * (1 + mpf(10) ** -5) + mpf(10) ** -7 * primal


def test_a_threshold_between_rows_at_the_bounds_is_found(fit: Callable[..., Result], tmp_path: Path) -> None:
    """No row is between its bounds at the optimum: nu n is a whole number, and each group of rows the same row."""
    x = sp.csr_array(np.repeat([[1.0, 0.0], [3.0, 0.5]], [4, 6], axis=0))
    result = fit(write_dataset(tmp_path / "data", (x, np.ones(10))), nu=0.4, tol=1e-10)
    assert result.converged
    assert result.primal_objective == pytest.approx(-8.0, rel=1e-9)
    np.testing.assert_allclose(result.model.weights[:, 0], [4.0, 0.0], atol=1e-9)
    assert 4.0 - 1e-9 <= -result.model.intercept[0] <= 12.0 + 1e-9


def test_products_of_a_pair_are_those_of_dense_rows() -> None:
    rng = np.random.default_rng(0)
    x = sp.random_array((20, 12), density=0.4, rng=rng, format="csr")
    x.sort_indices()
    empty = np.zeros(0)
    rows = KernelRows(x.indptr, x.indices, x.data, *[empty] * 4)
    full = np.asarray(x.todense())
    for i, j in itertools.product(range(6), range(20)):
        apart = full[i] - full[j]
        expected = apart @ apart, full[i] @ apart, -full[j] @ apart
        np.testing.assert_allclose(_products.py_func(rows, i, j), expected, atol=1e-14)


# ---------------------------------------------------------------------------------------------------------------------
# However it is trained


@pytest.mark.parametrize(("n_chunks", "windows"), [(1, 1), (3, 2), (3, None), (20, 4), (20, 2)])
def test_chunks_and_windows_do_not_move_the_optimum(
    fit: Callable[..., Result], tmp_path: Path, n_chunks: int, windows: int | None
) -> None:
    rows = one_sided(random_rows(200, 10, seed=11))
    result = fit(write_dataset(tmp_path / "data", rows, n_chunks=n_chunks), windows=windows, resident=False)
    assert result.converged
    whole = fit(write_dataset(tmp_path / "whole", rows, n_chunks=1), windows=1)
    assert result.primal_objective == pytest.approx(whole.primal_objective, rel=2e-9)


def test_out_of_core_threads_and_interruptions_end_with_the_same_bits(
    fit: Callable[..., Result], tmp_path: Path
) -> None:
    rows = one_sided(random_rows(4 * POOL, 10, seed=5))
    data = write_dataset(tmp_path / "data", rows, n_chunks=8, n_shards=3)
    expected = fit(data, windows=3, tol=1e-7)
    for options in ({"resident": False}, {"threads": 3}, {"resident": False, "threads": 2}):
        other = fit(data, windows=3, tol=1e-7, **options)
        assert weight_bytes(other) == weight_bytes(expected)
        assert other.dual_objective == expected.dual_objective
    assert weight_bytes(fit(data, windows=3, tol=1e-7, seed=1)) != weight_bytes(expected)


def test_a_run_stopped_after_every_window_ends_with_the_same_bits(
    fit: Callable[..., Result], tmp_path: Path
) -> None:
    rows = one_sided(random_rows(4 * POOL, 10, seed=5))
    data = write_dataset(tmp_path / "data", rows, n_chunks=8)
    expected = fit(data, windows=3, tol=1e-4)
    calls = itertools.count()
    options = {"stop_requested": lambda: 15 if next(calls) % 2 else None, "listener": None}
    result, run = None, tmp_path / "stopped"
    plan = windows_of(data, 3)
    for number in range(1000):
        try:
            if number == 0:
                result = streamcd.train(data, run, loss="one_class", nu=NU, tol=1e-4, plan=plan, **options)
            else:
                result = streamcd.resume(run, **options)
            break
        except Interrupted:
            continue
    assert result is not None
    assert number > 10
    assert weight_bytes(result) == weight_bytes(expected)
    assert result.passes == expected.passes


@pytest.mark.parametrize("labels", ["one", "several", "numbers"])
def test_labels_do_not_count(fit: Callable[..., Result], tmp_path: Path, labels: str) -> None:
    x, y = one_sided(multiclass(4, 80))
    expected = fit(write_dataset(tmp_path / "expected", (x, np.where(y > 0, 1.0, -1.0)), n_chunks=1))
    if labels == "numbers":
        numbers = np.random.default_rng(0).standard_normal(80)
        data = streamcd.convert((x, numbers), tmp_path / "data", target=True)
        assert data.has_targets
        result = fit(data)
        assert result.primal_objective == pytest.approx(expected.primal_objective, rel=1e-6)
    else:
        result = fit(write_dataset(tmp_path / "data", (x, np.ones(80) if labels == "one" else y), n_chunks=1))
        assert weight_bytes(result) == weight_bytes(expected)
    assert result.model.predict(x[:3]).tolist() == expected.model.predict(x[:3]).tolist()


def test_names_of_labels_are_not_the_models(tmp_path: Path) -> None:
    names = "".join(f"{'ab'[i % 2]},{i % 7 + 1},{i % 5}\n" for i in range(40))
    (tmp_path / "t.csv").write_text("label,first,second\n" + names)
    data = streamcd.convert(tmp_path / "t.csv", tmp_path / "data", label="label")
    model = streamcd.train(data, tmp_path / "run", loss="one_class", nu=NU).model
    assert model.label_texts() == ["-1", "1"]
    assert model.bias < 0
    with pytest.raises(ModelError, match=r"labels 1 \(inside\) and -1 .* found names \(a, b\)"):
        streamcd.evaluate(data, model)
    streamcd.predict(data, model, tmp_path / "out.parquet")
    with pytest.raises(ModelError, match=r"t\.csv: expected the labels 1 \(inside\) and -1 .* found names"):
        streamcd.evaluate(tmp_path / "t.csv", model)
    streamcd.predict(tmp_path / "t.csv", model, tmp_path / "out.csv")  # beside a column of names
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 41
    (tmp_path / "numbers.csv").write_text("label,first,second\n1,3,2\n-1,1,0\n")
    assert streamcd.evaluate(tmp_path / "numbers.csv", model)["n_rows"] == 2


def test_rows_with_targets_are_scored_and_not_evaluated(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((60, 3)) + 1.0
    data = streamcd.convert((x, rng.random(60)), tmp_path / "data", target=True)
    model = streamcd.train(data, tmp_path / "run", loss="one_class", nu=NU).model
    streamcd.predict(data, model, tmp_path / "out.csv")
    written = pyarrow.csv.read_csv(tmp_path / "out.csv").to_pydict()
    assert written["prediction"] == model.predict(x).tolist()
    with pytest.raises(
        ModelError, match=r"expected the labels 1 \(inside\) and -1 .* found numbers to predict"
    ):
        streamcd.evaluate(data, model)


def test_rows_on_the_plane_are_outside_as_liblinear_has_them(tmp_path: Path) -> None:
    x = np.array([[1.0], [2.0], [3.0]])
    data = streamcd.convert((x, np.ones(3)), tmp_path / "data")
    trained = streamcd.train(data, tmp_path / "run", loss="one_class", nu=NU).model
    model = dataclasses.replace(trained, weights=np.array([[1.0]]), intercept=np.array([-2.0]), index_base=1)
    streamcd.export(model, tmp_path / "ours")
    labels, *_ = liblinearutil.predict(
        [], sp.csr_matrix(x), liblinearutil.load_model(str(tmp_path / "ours")), "-q"
    )
    assert model.decision_function(x).ravel().tolist() == [-1.0, 0.0, 1.0]
    assert model.predict(x).tolist() == labels == [-1.0, -1.0, 1.0]
    assert "rows with w·x > rho are inside, and predicted as 1" in " ".join(
        command_line.run("train", "--help").stdout.split()
    )


def test_commands_speak_of_nu_and_rho_and_advise_what_is_accepted(tmp_path: Path) -> None:
    """There is no C, no bias, and labels need not be those that evaluate compares with."""
    rows = one_sided(random_rows())
    data = write_dataset(tmp_path / "data", (10.0 * rows[0], rows[1]))
    heard = Heard()
    streamcd.train(data, tmp_path / "run", loss="one_class", nu=NU, listener=heard)
    told = "\n".join([*heard.messages, *heard.warnings])
    for place in (tmp_path / "run", tmp_path / "run" / "model"):
        told += (shown := command_line.run("info", place).stdout)
        assert "rho" in shown
        assert command_line.run_json("info", place)["next"].startswith("streamcd predict")
    assert re.search(rf"\bnu +{NU:g}\b", told)
    assert not re.search(r"^ *C ", told, re.MULTILINE)
    assert "smaller C" not in told
    assert "--bias" not in told
    with pytest.raises(UsageError, match="one_class has no C to search"):
        streamcd.tune(data, tmp_path / "search", loss="one_class", C=None)
    rng = np.random.default_rng(0)
    centred = streamcd.convert((rng.standard_normal((100, 4)), np.ones(100)), tmp_path / "centred")
    streamcd.train(centred, tmp_path / "none", loss="one_class", max_passes=30, listener=heard)
    assert any("do not centre values" in line for line in heard.warnings)


def test_weights_of_rows_scale_their_bounds_and_the_sum(fit: Callable[..., Result], tmp_path: Path) -> None:
    """Weight two is the row twice, weight zero no row."""
    rows = one_sided(random_rows(60, 6, seed=2))
    weight = np.arange(60) % 3
    weighted = fit(write_dataset(tmp_path / "weighted", rows, weight=weight.astype(np.float64)))
    copied = fit(write_dataset(tmp_path / "copied", repeated(rows, weight)))
    assert weighted.primal_objective == pytest.approx(copied.primal_objective, rel=2e-9)
    assert weighted.primal_objective == pytest.approx(optimum(dense(rows), NU, weight + 0.0), rel=1e-8)


def test_liblinears_rule_stops_where_scores_are_in_order(fit: Callable[..., Result], tmp_path: Path) -> None:
    rows = one_sided(random_rows())
    result = fit(write_dataset(tmp_path / "data", rows), tol=None, eps=1e-3)
    assert result.stop_reason == "violation"
    assert result.violation <= 1e-2


# ---------------------------------------------------------------------------------------------------------------------
# Predictions, and LIBLINEAR


def test_rows_outside_are_minus_one_and_the_evaluation_is_of_these_labels(
    fit: Callable[..., Result], tmp_path: Path
) -> None:
    x, _ = rows = one_sided(random_rows(100, 8, seed=4))
    y = np.where(np.arange(100) < 90, 1.0, -1.0)
    result = fit(write_dataset(tmp_path / "data", (x, y)))
    model, scores = result.model, dense(rows) @ result.model.weights[:, 0]
    inside = np.where(scores + model.intercept[0] > 0, 1, -1)
    assert model.predict(x).tolist() == inside.tolist()
    np.testing.assert_allclose(model.decision_function(x), scores + model.intercept[0], rtol=1e-9, atol=1e-9)
    found = streamcd.evaluate(tmp_path / "data", result.run)
    assert found["accuracy"] == pytest.approx((inside == y).mean())
    assert found["labels"] == [-1, 1]
    assert found["primal_objective"] == pytest.approx(result.primal_objective, rel=1e-6)
    assert 0.0 <= found["auc"] <= 1.0
    streamcd.predict(tmp_path / "data", result.run, tmp_path / "out.csv")
    written = pyarrow.csv.read_csv(tmp_path / "out.csv").to_pydict()
    assert written["prediction"] == inside.tolist()


def test_models_are_liblinears_and_its_predictions_ours(fit: Callable[..., Result], tmp_path: Path) -> None:
    x, y = one_sided(random_rows(120, 8, seed=9))
    matrix = sp.csr_matrix(x, dtype=np.float64)
    result = fit(write_dataset(tmp_path / "data", (x, y), value_dtype=np.float64), tol=1e-10)
    theirs = liblinearutil.train(
        liblinearutil.problem(y, matrix, -1), liblinearutil.parameter(f"-s 21 -n {NU} -e 1e-9 -q")
    )
    liblinearutil.save_model(str(tmp_path / "theirs"), theirs)
    imported = command_line.imported(tmp_path / "theirs")
    np.testing.assert_allclose(imported.weights, result.model.weights, rtol=1e-6)
    np.testing.assert_allclose(imported.intercept, result.model.intercept, rtol=1e-6)
    streamcd.export(result.model, tmp_path / "ours")
    read = liblinearutil.load_model(str(tmp_path / "ours"))
    for ours, their_model in ((result.model, read), (imported, theirs)):
        labels, _, decisions = liblinearutil.predict(y, matrix, their_model, "-q")
        assert labels == ours.predict(x).tolist()
        np.testing.assert_allclose(
            np.array(decisions)[:, 0], ours.decision_function(x), rtol=1e-12, atol=1e-12
        )
    streamcd.export(imported, tmp_path / "again")
    assert (tmp_path / "again").read_text().split() == (tmp_path / "theirs").read_text().split()


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nu": 0.0}, "nu: expected a number above 0, and at most 1, found 0"),
        ({"nu": 1.5}, "nu: expected a number above 0, and at most 1, found 1.5"),
        ({"loss": "hinge", "nu": 0.5}, "nu is"),
        ({"bias": 1.0}, "bias is not an option of the loss one_class"),
        ({"C": 2.0}, "C is not an option of the loss one_class"),
        ({"class_weight": "balanced"}, "class_weight is not an option of the loss one_class"),
        ({"code": [[1], [-1]]}, "code is not an option of the loss one_class"),
        ({"unpenalized_bias": True}, "unpenalized_bias is not an option of the loss one_class"),
        ({"calibrate": True}, "calibrate"),
        ({"omega": 1.5}, "omega"),
        ({"acceleration": 2.0}, "cannot be accelerated"),
        ({"workers": 2}, "not for several workers"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_options_without_a_meaning_are_refused_in_a_line(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    data = write_dataset(tmp_path / "data", one_sided(random_rows()), n_chunks=4, n_shards=2)
    with pytest.raises(UsageError, match=message):
        streamcd.train(data, tmp_path / "run", **{"loss": "one_class", **options})
    assert not (tmp_path / "run").exists()


def test_a_search_and_a_warm_start_are_refused(fit: Callable[..., Result], tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", one_sided(random_rows()))
    with pytest.raises(UsageError, match="no C"):
        streamcd.tune(data, tmp_path / "search", loss="one_class", C=[1.0], cv=3)
    first = fit(data)
    with pytest.raises(UsageError, match="warm start"):
        streamcd.train(data, tmp_path / "second", loss="one_class", nu=NU, start_from=first.run)


# ---------------------------------------------------------------------------------------------------------------------
# Real sets


@pytest.mark.parametrize(
    ("name", "nu", "most"),
    [("a9a", 0.1, (2, 3, 3)), ("a9a", 0.5, (2, 2, 2)), ("ijcnn1", 0.1, (3, 3, 3))],
)
@pytest.mark.slow
def test_passes_on_real_sets(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, nu: float, most: tuple[int, int, int]
) -> None:
    """Pairs drawn at random took 8, 43, 167; 1, 11, 47; 3, 16, 62."""
    data = streamcd.convert(real_data(name), tmp_path / "data")
    for tol, passes in zip((1e-1, 1e-2, 1e-3), most, strict=True):
        result = streamcd.train(data, tmp_path / f"{tol}", loss="one_class", nu=nu, tol=tol)
        assert result.converged
        assert result.passes <= passes


@pytest.mark.parametrize("nu", [0.1, 0.9])
def test_rows_around_the_origin_end_at_an_objective_of_zero(
    fit: Callable[..., Result], tmp_path: Path, nu: float
) -> None:
    """They made all passes, for a relative gap of 1; the optimum is w = 0, which is said."""
    x = np.random.default_rng(0).standard_normal((300, 4))
    data = streamcd.convert((np.vstack([x, -x]), np.ones(600)), tmp_path / "data", chunk_size=60)
    result = fit(data, nu=nu, tol=1e-3, max_passes=50)
    assert (result.converged, result.stop_reason) == (True, "zero")
    assert abs(result.primal_objective) < 1e-8
    assert result.passes < 5
