"""Losses of numbers to predict: every one, by every method, ends at the optimum of someone else's method, and says so."""

from __future__ import annotations

import functools
import itertools
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import mpmath
import numba
import numpy as np
import pytest
import scipy.sparse as sp
from exact_optimum import model, nearly_least
from interrupted import ended, train_by_turns
from reference import augmented
from sklearn.datasets import load_svmlight_file
from small_datasets import NAMED, SMALL_COLUMNS, Rows, random_rows, windows_of, write_dataset

import streamcd
from streamcd import Dataset, StreamcdError, make_columns, train
from streamcd.kernels import rounds
from streamcd.kernels.loss_table import LOSSES, SOLVERS, row_loss
from streamcd.kernels.losses import (
    numbers_of,
    row_terms,
)
from tools.simulated_cluster import Simulation


@numba.njit
def terms_of(t, alpha, numbers):  # type: ignore[no-untyped-def]
    """Call a part of kernels, which Python cannot."""
    return row_terms(t, alpha, numbers)


Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]

# ---------------------------------------------------------------------------------------------------------------------
# The losses once more, from their definitions: value, slope and curvature in the error e = y - z


def squared_error(e: np.ndarray) -> Numbers:
    return e * e, 2 * e, np.full(e.shape, 2.0)


def huber(e: np.ndarray, delta: float) -> Numbers:
    near, slope = np.abs(e) <= delta, np.clip(e, -delta, delta)
    return np.where(near, 0.5 * e * e, delta * (np.abs(e) - 0.5 * delta)), slope, 1.0 * near


def epsilon_insensitive(e: np.ndarray, epsilon: float) -> Numbers:
    beyond = np.maximum(np.abs(e) - epsilon, 0.0)
    return beyond, np.sign(e) * (beyond > 0), np.zeros(e.shape)


def squared_epsilon_insensitive(e: np.ndarray, epsilon: float) -> Numbers:
    beyond = np.maximum(np.abs(e) - epsilon, 0.0)
    return beyond * beyond, 2 * np.sign(e) * beyond, 2.0 * (beyond > 0)


def quantile_loss(e: np.ndarray, quantile: float) -> Numbers:
    slope = np.where(e > 0, quantile, quantile - 1.0)
    return slope * e, slope, np.zeros(e.shape)


REFERENCES: dict[str, Callable[..., Numbers]] = {
    "quantile": quantile_loss,
    "squared_error": squared_error,
    "huber": huber,
    "epsilon_insensitive": epsilon_insensitive,
    "squared_epsilon_insensitive": squared_epsilon_insensitive,
}
"""Every loss of the table that is for targets; those with kinks have a curvature of 0."""

TARGET_SOLVERS = [entry for entry in SOLVERS.values() if entry.has_targets]
METHODS = list({entry.method: entry for entry in TARGET_SOLVERS}.values())
"""One of each method."""


def parameter_of(loss: str, value: float | None = None) -> dict[str, float]:
    """The loss's parameter, if it has one: the value given, or its default."""
    parameter = LOSSES[loss].parameter
    if parameter is None:
        return {}
    return {parameter.name: parameter.default if value is None else value}


def errors_of(loss: str, e: np.ndarray, **parameter: float) -> Numbers:
    return REFERENCES[loss](np.asarray(e, dtype=np.float64), **(parameter or parameter_of(loss)))


def objective(
    loss: str, x: np.ndarray, y: np.ndarray, w: np.ndarray, cost: Any, *, free: bool = False
) -> float:
    """The primal objective; with `free` the last weight is not penalised."""
    kept = w[:-1] if free else w
    return float(0.5 * kept @ kept + (cost * errors_of(loss, y - x @ w)[0]).sum())


def optimum(loss: str, x: np.ndarray, y: np.ndarray, cost: Any) -> float:
    """The least objective, by an interior-point method."""
    return nearly_least(model(loss, x, y, cost, parameter=sum(parameter_of(loss).values())))


# ---------------------------------------------------------------------------------------------------------------------
# Small problems


def targets_of(rows: Rows, seed: int = 0) -> np.ndarray:
    """A noisy linear function of the rows, far from 0 on average."""
    rng, (x, _) = np.random.default_rng(seed), rows
    return np.asarray(x @ rng.normal(size=x.shape[1]) + 0.7 * rng.normal(size=x.shape[0]) + 0.5)


def write_targets(
    path: Path, x: sp.csr_array, y: np.ndarray, *, columns: bool = False, **options: Any
) -> Dataset:
    targets = {"min": float(y.min()), "max": float(y.max())}
    fields = {"classes": None, "class_counts": None, "label_kind": "decimal", "targets": targets}
    dataset = write_dataset(path, (x, y), **{**fields, **options})
    if columns:
        make_columns(dataset, **SMALL_COLUMNS)
        return streamcd.open(path)
    return dataset


@functools.cache
def small(name: str) -> tuple[sp.csr_array, np.ndarray]:
    rows = NAMED[name]()
    return rows[0], targets_of(rows)


@functools.cache
def small_optimum(loss: str, C: float) -> float:
    """The least objective on the small rows named "random", with a bias of 1."""
    x, y = small("random")
    return optimum(loss, augmented(x, -1.0), y, C)


def needs_columns(method: str) -> bool:
    return method != "dual"


# ---------------------------------------------------------------------------------------------------------------------
# Five numbers


def test_every_loss_of_targets_has_a_reference() -> None:
    assert set(REFERENCES) == {loss for loss, entry in LOSSES.items() if entry.has_targets}


def random_visits(loss: str) -> Any:
    """Rows with a dual variable within its bounds, often at one of them or at 0: (y, t, q, alpha, numbers)."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        y, t, q, cost = rng.normal() * 2, rng.normal() * 2, rng.exponential(), rng.exponential() + 0.05
        numbers = numbers_of(row_loss(loss), y, cost)
        low, high = max(numbers[3], -3.0), min(numbers[4], 3.0)
        alpha = float(rng.choice([0.0, low, high, rng.uniform(low, high)], p=[0.2, 0.2, 0.2, 0.4]))
        yield y, t, q, alpha, numbers


@pytest.mark.parametrize("loss", REFERENCES)
def test_the_term_of_the_gap_is_right_in_fifty_digits(loss: str) -> None:
    """As loss minus dual, which cancel: computed without them it keeps its digits, near the optimum and near kinks too."""
    with mpmath.workdps(50):
        for y, t, _, alpha, numbers in random_visits(loss):
            for moved in (0.0, 1e-9):
                best = float(np.clip(alpha * (1 + moved), numbers[3], numbers[4]))
                gap, value, dual = terms_of(t, best, numbers)
                p, epsilon, diagonal, low, high = (mpmath.mpf(number) for number in numbers[:5])
                e, size = p - mpmath.mpf(t), epsilon
                attained = max(abs(e) - size, 0) * mpmath.sign(e)
                if diagonal > 0:
                    attained = min(max(attained / diagonal, low), high)
                else:
                    attained = high if e > size else low if e < -size else mpmath.mpf(0)
                exact_loss = e * attained - epsilon * abs(attained) - diagonal * attained**2 / 2
                exact_dual = p * best - epsilon * abs(best) - diagonal * mpmath.mpf(best) ** 2 / 2
                exact = exact_loss - exact_dual + mpmath.mpf(t) * best
                rounding = 1e-15 * float(abs(exact_loss) + exact + epsilon * (abs(best) + abs(attained)))
                assert float(exact) >= 0.0
                assert abs(gap - float(exact)) <= 16 * rounding + 1e-300
                assert value == pytest.approx(float(exact_loss), rel=1e-13, abs=16 * rounding)
                assert dual == pytest.approx(float(exact_dual), rel=1e-12, abs=1e-14 * (1 + abs(y)))


# ---------------------------------------------------------------------------------------------------------------------
# However it is trained, the optimum


@pytest.mark.parametrize("omega", [0.7, 1.3])
@pytest.mark.parametrize("loss", REFERENCES)
def test_over_relaxed_steps_reach_the_optimum_too(tmp_path: Path, loss: str, omega: float) -> None:
    x, y = small("random")
    options = {"C": 0.05, "omega": omega, "acceleration": "none", "tol": 1e-6, "max_passes": 5000}
    result = train(write_targets(tmp_path / "data", x, y), tmp_path / "run", loss=loss, **options)
    best = small_optimum(loss, 0.05)
    assert result.converged
    assert -1e-9 * best <= result.primal_objective - best <= 1e-6 * best


@pytest.mark.parametrize(
    ("loss", "n_chunks", "windows"),
    [
        *((loss, 7, 3) for loss in REFERENCES),
        *itertools.product(("quantile", "huber"), (1, 7), (1,)),
        ("squared_error", 50, None),
        ("epsilon_insensitive", 50, None),
    ],
)
def test_chunks_and_windows_do_not_move_the_optimum(
    tmp_path: Path, loss: str, n_chunks: int, windows: int | None
) -> None:
    x, y = small("random")
    dataset = write_targets(tmp_path / "data", x, y, n_chunks=n_chunks)
    plan = windows_of(dataset, windows)
    result = train(dataset, tmp_path / "run", loss=loss, C=0.1, tol=1e-4, max_passes=3000, plan=plan)
    best = small_optimum(loss, 0.1)
    assert result.converged
    assert -1e-9 * best <= result.primal_objective - best <= 1e-4 * best


@pytest.mark.parametrize("entry", TARGET_SOLVERS, ids=str)
def test_every_lane_ends_where_a_run_of_its_own_ends(tmp_path: Path, entry: Any) -> None:
    """Nine values of C: lanes are visited eight at a time."""
    x, y = small("random")
    dataset = write_targets(tmp_path / "data", x, y, columns=needs_columns(entry.method))
    costs = [*np.geomspace(0.003, 0.3, 8).tolist(), 0.1]
    options = {"loss": entry.loss, "method": entry.method, "tol": 1e-4, "max_passes": 3000}
    result = train(dataset, tmp_path / "run", C=costs, **options)
    assert result.converged
    assert [lane["C"] for lane in result.lanes] == costs
    for number in (0, 7, 8):
        best = small_optimum(entry.loss, costs[number])
        assert -1e-9 * best <= result.lanes[number]["primal_objective"] - best <= 1e-4 * best


@pytest.mark.parametrize("entry", METHODS, ids=str)
def test_a_run_resumed_after_every_three_windows_has_the_same_bits(tmp_path: Path, entry: Any) -> None:
    x, y = small("random")
    dataset = write_targets(tmp_path / "data", x, y, n_chunks=8, columns=needs_columns(entry.method))
    plan = windows_of(dataset, 3) if entry.method == "dual" else None
    options = {"C": [0.1, 1.0], "tol": 1e-3, "max_passes": 40, "plan": plan}
    options |= {"loss": entry.loss, "method": entry.method}
    train(dataset, tmp_path / "whole", **options)
    train_by_turns(train, dataset, tmp_path / "run", 2, [3, 1], **options)
    assert ended(tmp_path / "run") == ended(tmp_path / "whole")


def test_copies_of_active_rows_have_their_targets(tmp_path: Path) -> None:
    """With windows smaller than the data, rows that shrinking leaves are read from copies."""
    x, y = small("random")
    dataset = write_targets(tmp_path / "data", x, y, n_chunks=10)
    loss = next((loss for loss in REFERENCES if not LOSSES[loss].smooth), "squared_error")
    options = {"C": 0.3, "acceleration": "none", "tol": 1e-4, "max_passes": 5000}
    result = train(dataset, tmp_path / "run", loss=loss, plan=windows_of(dataset, 3), **options)
    best = optimum(loss, augmented(x, -1.0), y, 0.3)
    assert result.converged
    assert -1e-9 * best <= result.primal_objective - best <= 1e-4 * best


@pytest.mark.parametrize(("loss", "C"), zip(REFERENCES, itertools.cycle([0.05, 2.0]), strict=False))
def test_two_workers_reach_the_optimum(tmp_path: Path, loss: str, C: float) -> None:
    x, y = small("random")
    dataset = write_targets(tmp_path / "data", x, y, n_chunks=8, n_shards=8)
    workers = Simulation(2)
    result = streamcd.train(
        dataset, tmp_path / "run", loss=loss, C=C, tol=1e-3, max_passes=500, client=workers
    )
    best = optimum(loss, augmented(x, -1.0), y, C)
    assert result.converged
    assert -1e-9 * best <= result.primal_objective - best <= 1e-3 * best


@pytest.mark.parametrize("loss", REFERENCES)
def test_a_joint_step_gains_at_least_what_its_sums_promise(loss: str) -> None:
    """Also where variables cross 0, with a kink there: the dual's row terms at steps up to the longest."""
    rng = np.random.default_rng(5)
    y, cost = rng.normal(size=(50, 1)), rng.exponential(size=(50, 1)) + 0.1
    bounds = np.array([numbers_of(row_loss(loss), y[i, 0], cost[i, 0])[3:5] for i in range(50)])
    base, candidate = (np.clip(rng.normal(size=(50, 1)), bounds[:, :1], bounds[:, 1:]) for _ in range(2))
    sums = np.zeros((1, 5))
    sums[0, rounds.LONGEST] = np.inf
    code = np.zeros(50, np.int32)
    rounds.add_direction(row_loss(loss), y, code, cost, base, candidate, np.empty(1), sums)
    linear, quadratic, longest = sums[0, [rounds.LINEAR, rounds.QUADRATIC, rounds.LONGEST]]

    def dual(eta: float) -> float:
        point = base + eta * (candidate - base)
        assert (point >= bounds[:, :1] - 1e-12).all()
        assert (point <= bounds[:, 1:] + 1e-12).all()
        total = 0.0
        for i in range(50):
            numbers = numbers_of(row_loss(loss), y[i, 0], cost[i, 0])
            total += terms_of(0.0, point[i, 0], numbers)[2]
        return total

    assert longest >= 1.0
    for eta in (0.1, 0.5, 1.0, min(longest, 1.5)):
        promised = -(linear * eta + 0.5 * quadratic * eta**2)
        assert dual(eta) - dual(0.0) >= promised - 1e-12
        if LOSSES[loss].parameter is None or LOSSES[loss].parameter.name != "epsilon":
            assert dual(eta) - dual(0.0) == pytest.approx(promised, rel=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# Starts, searches, validation, figures, files


@pytest.mark.parametrize("entry", METHODS, ids=str)
def test_a_warm_start_takes_fewer_passes_to_the_same_optimum(tmp_path: Path, entry: Any) -> None:
    x, y = small("random")
    dataset = write_targets(tmp_path / "data", x, y, columns=needs_columns(entry.method))
    options = {"loss": entry.loss, "method": entry.method, "tol": 1e-4, "max_passes": 3000}
    train(dataset, tmp_path / "first", C=1.0, **options)
    cold = train(dataset, tmp_path / "cold", C=3.0, **options)
    warm = train(dataset, tmp_path / "warm", C=3.0, start_from=tmp_path / "first", **options)
    assert warm.converged
    assert warm.passes < cold.passes or cold.passes <= 3  # of a quadratic that one step solves
    assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=1e-4)


@pytest.fixture(scope="module")
def housing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """Weighted rows of a frame, converted, with their matrix and targets."""
    path = tmp_path_factory.mktemp("housing") / "data"
    rng = np.random.default_rng(6)
    X = rng.normal(size=(240, 5))
    y = 100.0 + X @ np.array([3.0, -2.0, 1.0, 0.0, 0.5]) + rng.normal(size=240)
    weight = rng.choice([1.0, 2.0], 240)
    streamcd.convert((X, y, weight), path, target=True, dtype="float64")
    return path, np.column_stack([X, weight]), y


def test_a_search_takes_the_c_of_the_largest_r2(housing: Any, tmp_path: Path) -> None:
    path, X, y = housing
    found = streamcd.tune(
        path, tmp_path / "search", C=[1e-4, 0.1, 10.0], cv=4, loss="squared_error", tol=1e-6
    )
    assert found.scored_by == "r2"
    assert found.best_C == float(max(found.scores, key=lambda C: found.scores[C]["mean"]))
    assert found.scores["0.0001"]["mean"] < found.scores["10"]["mean"] <= 1.0
    assert found.model.predict(X[:3, :-1]) == pytest.approx(y[:3], abs=5.0)


def test_classes_and_targets_are_not_mistaken_for_one_another(housing: Any, tmp_path: Path) -> None:
    classes = write_dataset(tmp_path / "classes", random_rows(40, 5))
    with pytest.raises(StreamcdError, match=r"expected numbers to predict for the loss .*, found classes; convert with target"):  # fmt: skip  # noqa: E501
        train(classes, tmp_path / "run", loss="squared_error")
    run = train(housing[0], tmp_path / "run", loss="squared_error", tol=1e-3)
    for use in (streamcd.evaluate, lambda data, model: streamcd.predict(data, model, tmp_path / "out.csv")):
        with pytest.raises(
            StreamcdError, match=r"expected rows with numbers to predict .*convert with target"
        ):
            use(classes, run.run)
    with pytest.raises(StreamcdError, match="class weights are for classes"):
        train(housing[0], tmp_path / "other", loss="squared_error", class_weight="balanced")
    with pytest.raises(StreamcdError, match="code matrix does not apply"):
        train(housing[0], tmp_path / "other", loss="squared_error", code=[[1], [-1]])


# ---------------------------------------------------------------------------------------------------------------------
# LIBLINEAR


def test_what_liblinears_text_does_not_tell_is_said_to_be_unknown(tmp_path: Path) -> None:
    """A model of the squared error, read back, was said to be of another loss with the default epsilon."""
    text = "solver_type L2R_L2LOSS_SVR\nnr_class 2\nnr_feature 2\nbias -1\nw\n0.5 \n0.25 \n"
    (tmp_path / "model.txt").write_text(text)
    (tmp_path / "rows.txt").write_text("1.0 1:1 2:1\n2.5 1:3\n")
    command_line.run_json("import", tmp_path / "model.txt", tmp_path / "model")
    told = command_line.run_json("info", tmp_path / "model")
    assert (told["parameter"], told["C"]) == ({"epsilon": None}, None)
    found = streamcd.evaluate(tmp_path / "rows.txt", tmp_path / "model")
    assert found["loss"] is None
    assert found["mae"] == pytest.approx(0.625)


# ---------------------------------------------------------------------------------------------------------------------
# Real rows


@functools.cache
def real_targets(path: Path) -> tuple[sp.csr_array, np.ndarray]:
    """Real rows with a noisy linear function of them, scaled to variance 1, as targets."""
    with lzma.open(path) as file:
        x, _ = load_svmlight_file(file, zero_based=False)
    x, rng = sp.csr_array(x), np.random.default_rng(1)
    y = x @ rng.normal(size=x.shape[1]) + 0.5 * rng.normal(size=x.shape[0])
    return x, (y - y.mean()) / y.std()


@functools.cache
def converted(source: Path, path: Path) -> Dataset:
    dataset: Dataset = streamcd.convert(real_targets(source), path, target=True, dtype="float64")
    make_columns(dataset)
    return streamcd.open(path)


# ---------------------------------------------------------------------------------------------------------------------
# Targets of any size


@pytest.mark.parametrize("entry", TARGET_SOLVERS, ids=str)
def test_constant_targets_are_fitted_exactly(tmp_path: Path, entry: Any) -> None:
    """Training went on to the last pass: no gap is small beside an optimum of 0."""
    x, _ = small("random")
    data = streamcd.convert((x, np.full(x.shape[0], 5.0)), tmp_path / "data", target=True)
    make_columns(data)
    options = {"loss": entry.loss, "method": entry.method, "bias": 1.0, "unpenalized_bias": True, "tol": 1e-6}
    result = train(data, tmp_path / "run", memory="1GB", max_passes=400, **options)
    assert result.converged
    assert result.stop_reason == "gap"
    assert result.primal_objective <= 1e-12 * x.shape[0] * 25.0


@pytest.mark.parametrize("free", [False, True])
def test_the_dual_method_trains_targets_of_any_size(tmp_path: Path, free: bool) -> None:
    """kappa grew with the targets: 300 passes were not enough."""
    size = 1e20
    x, y = small("random")
    options = {"loss": "squared_error", "method": "dual", "bias": 1.0, "unpenalized_bias": free, "tol": 1e-6}
    results = []
    for factor in (1.0, size):
        data = streamcd.convert((x, factor * y), tmp_path / f"{factor}", target=True, dtype="float64")
        results.append(train(data, tmp_path / f"run{factor}", memory="1GB", max_passes=300, **options))
    usual, scaled = results
    assert scaled.converged
    assert scaled.primal_objective == pytest.approx(size**2 * usual.primal_objective, rel=1e-5)
