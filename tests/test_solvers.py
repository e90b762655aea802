"""Every solver of the registry ends at the optimum that other people's solvers find, however the data is cut and read."""

from __future__ import annotations

import functools
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from reference import (
    LIBLINEAR_NUMBERS,
    OF_CLASSES,
    augmented,
    exact_optimum,
    liblinear,
    primal_objectives,
    run_weights,
)
from small_datasets import (
    NAMED,
    Rows,
    columns_of,
    label_sorted,
    multiclass,
    random_rows,
    repeated,
    write_dataset,
)

import streamcd
from streamcd import Dataset, Result, make_columns, train
from streamcd.core.errors import DatasetError, UsageError
from streamcd.kernels.loss_table import SOLVERS
from streamcd.solvers import row_solver

# twin has a file of its own, and so have numbers to predict
DUAL = [entry for entry in SOLVERS.values() if entry.method == "dual" and not entry.has_targets]
LOSSES = [entry.loss for entry in DUAL if entry.loss != "twin"]
BINARY = [loss for loss in LOSSES if loss not in OF_CLASSES]
TOL = 1e-5
FIT = {"tol": TOL, "max_passes": 3000}


def optimum(loss: str, rows: Rows, *, C: float = 1.0, bias: float = -1.0) -> np.ndarray:
    """Objective of every lane at the optimum, by someone else's method."""
    x, y = rows
    dense = augmented(x, bias)
    if loss == "crammer_singer":
        return primal_objectives(loss, dense, y, liblinear(loss, x, y, C=C, bias=bias, eps=1e-9), C)
    return exact_optimum(loss, dense, y, C)[1]


def weighted_optimum(loss: str, rows: Rows, weight: np.ndarray, C: float) -> np.ndarray:
    """As `optimum` where every row counts so many times."""
    if loss == "crammer_singer":  # LIBLINEAR has no weights
        return optimum(loss, repeated(rows, weight), C=C)
    x, y = augmented(rows[0], -1.0)[weight > 0], rows[1][weight > 0]
    return exact_optimum(loss, x, y, C * weight[weight > 0])[1]


def assert_optimal(
    result: Result, rows: Rows, best: np.ndarray, *, C: float = 1.0, bias: float = -1.0, loss: str,
    cost: np.ndarray | None = None,
) -> None:  # fmt: skip
    """The model's objective, worked out again from its weights, is the optimum as closely as the run says it is.

    Neither converged nor not is assumed: what has to hold is that the true distance is at most the certified gap.
    """
    x, y = rows
    w = run_weights(Path(result.run), bias)
    primal = primal_objectives(loss, augmented(x, bias), y, w, C if cost is None else cost)
    assert len(result.lanes) == primal.size
    for lane, found, least in zip(result.lanes, primal, best, strict=True):
        slack = 1e-8 * least  # of the reference itself, and of the weights' last renewal
        assert found == pytest.approx(lane["primal_objective"], rel=1e-8)
        assert found >= least - slack
        assert lane["dual_objective"] <= least + slack
        certified = lane["primal_objective"] - lane["dual_objective"]
        assert lane["gap"] * lane["primal_objective"] == pytest.approx(certified, rel=1e-3, abs=1e-9 * least)
        assert found - least <= certified + slack
    assert result.primal_objective == pytest.approx(primal.sum(), rel=1e-8)


# ---------------------------------------------------------------------------------------------------------------------
# The optimum


@functools.cache
def real_rows(path: Path, n_rows: int) -> Rows:
    from sklearn.datasets import load_svmlight_file

    with lzma.open(path) as file:
        x, y = load_svmlight_file(file, zero_based=False)
    order = np.random.default_rng(0).permutation(y.size)[:n_rows]
    x = sp.csr_array(x[order])
    x.data = x.data.astype(np.float32).astype(np.float64)
    x.eliminate_zeros()
    return x, y[order]


REAL = [
    (loss, name)
    for loss in LIBLINEAR_NUMBERS
    for name in ("heart_scale", "a9a")
    if (loss, name) != ("hinge", "a9a")  # takes minutes
]


@pytest.mark.parametrize(("loss", "name"), REAL)
def test_no_worse_than_liblinear_on_real_data(
    fit: Callable[..., Result], real_data: Callable[[str], Path], tmp_path: Path, loss: str, name: str
) -> None:
    """At most LIBLINEAR's objective with a tight tolerance, by the gap allowed; and never below the optimum."""
    rows = real_rows(real_data(name), 400)
    C = 0.1
    result = fit(write_dataset(tmp_path / "data", rows, n_chunks=12), loss=loss, C=C, windows=3)
    peer = primal_objectives(loss, augmented(rows[0], -1), rows[1], liblinear(loss, *rows, C=C, eps=1e-9), C)
    assert result.converged
    for lane, objective in zip(result.lanes, peer, strict=True):
        assert lane["primal_objective"] <= objective * (1 + TOL)
    assert_optimal(result, rows, optimum(loss, rows, C=C), C=C, loss=loss)


def test_crammer_singer_of_two_classes_is_half_of_hinge(fit: Callable[..., Result], tmp_path: Path) -> None:
    """With v = w_y - w_other the two problems are the same, at twice the C and half the objective."""
    rows = random_rows()
    dataset = write_dataset(tmp_path / "data", rows)
    result = fit(dataset, loss="crammer_singer", C=0.5)
    best = exact_optimum("hinge", augmented(rows[0], -1), rows[1], 1.0)[1][0]
    assert result.converged
    assert result.primal_objective == pytest.approx(0.5 * best, rel=2 * TOL)


# ---------------------------------------------------------------------------------------------------------------------
# However the data is cut


CUT_LOSSES = [
    *((3, 2, loss) for loss in LOSSES),
    *((*cut, "squared_hinge") for cut in [(1, 1), (3, None), (50, 4)]),
]


@pytest.mark.parametrize(("n_chunks", "windows", "loss"), CUT_LOSSES)
def test_chunks_and_windows_do_not_move_the_optimum(
    fit: Callable[..., Result], tmp_path: Path, loss: str, n_chunks: int, windows: int | None
) -> None:
    rows = random_rows(200, 10, seed=11)
    dataset = write_dataset(tmp_path / "data", rows, n_chunks=n_chunks)
    result = fit(dataset, loss=loss, C=0.1, windows=windows, resident=False)
    assert result.converged
    assert_optimal(result, rows, optimum(loss, rows, C=0.1), C=0.1, loss=loss)


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_visited_with_their_neighbours_come_to_the_same_optimum(
    fit: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loss: str
) -> None:
    monkeypatch.setattr(row_solver, "_FAR_ENTRIES", 0)  # as in large windows
    rows = random_rows(200, 10, seed=11)
    result = fit(write_dataset(tmp_path / "data", rows, n_chunks=3), loss=loss, C=0.1)
    assert result.converged
    assert_optimal(result, rows, optimum(loss, rows, C=0.1), C=0.1, loss=loss)


def test_rows_of_arrays_which_may_be_sorted_are_not_visited_with_their_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows sorted by their values took twice the passes."""
    rows, label = random_rows(200, 10, seed=11)
    weights = []
    for least in (1 << 20, 0):
        monkeypatch.setattr(row_solver, "_FAR_ENTRIES", least)
        weights.append(streamcd.LinearSVC(C=0.1, max_iter=5, tol=1e-9).fit(rows, label).coef_)
    assert (weights[0] == weights[1]).all()


@pytest.mark.parametrize("loss", ["hinge", "multinomial"])
def test_rows_sorted_by_label_train_in_about_as_many_passes(
    fit: Callable[..., Result], tmp_path: Path, loss: str
) -> None:
    """Many small chunks in a window mix the classes, even where no chunk holds both."""
    rows = label_sorted(600)
    mixed = np.random.default_rng(0).permutation(rows[1].size)
    shuffled = sp.csr_array(rows[0][mixed]), rows[1][mixed]
    passes = [
        fit(write_dataset(tmp_path / name, data, n_chunks=60), loss=loss, C=0.1, windows=12, tol=1e-3).passes
        for name, data in (("sorted", rows), ("shuffled", shuffled))
    ]
    assert passes[0] <= 2 * passes[1] + 3


def weight_bytes(result: Result) -> bytes:
    return (Path(result.run) / "model" / "weights.npy").read_bytes()


# ---------------------------------------------------------------------------------------------------------------------
# Seeds


@pytest.mark.parametrize("loss", LOSSES)
def test_same_seed_same_bits_other_seed_same_optimum(
    fit: Callable[..., Result], tmp_path: Path, loss: str
) -> None:
    rows = random_rows()
    dataset = write_dataset(tmp_path / "data", rows, n_chunks=8)
    first, again, other = (fit(dataset, loss=loss, C=0.1, seed=seed) for seed in (1, 1, 2))
    assert weight_bytes(first) == weight_bytes(again)
    assert weight_bytes(first) != weight_bytes(other)
    assert first.primal_objective == pytest.approx(other.primal_objective, rel=2 * TOL)


# ---------------------------------------------------------------------------------------------------------------------
# Lanes, weights of rows and classes, by every solver

BY_ROWS_AND_COLUMNS = [
    (loss, method)
    for loss, method in ((entry.loss, entry.method) for entry in SOLVERS.values() if not entry.has_targets)
    if method != "online"
]


def of_layout(path: Path, rows: Rows, method: str, **options: Any) -> Dataset:
    make = columns_of if method in ("primal", "working-set") else write_dataset
    return make(path, rows, **options)


@pytest.mark.parametrize(("loss", "method"), [pair for pair in BY_ROWS_AND_COLUMNS if pair[0] in BINARY])
def test_every_lane_ends_where_its_own_run_ends(
    fit: Callable[..., Result], tmp_path: Path, loss: str, method: str
) -> None:
    """One-vs-rest in one visit of a row, or column, against as many separate runs of two classes."""
    x, y = multiclass(5, 200)
    asked = {"loss": loss, "method": method, "bias": 1.0, "C": 0.05, "windows": None}
    together = fit(of_layout(tmp_path / "data", (x, y), method), **asked)
    w = run_weights(Path(together.run), 1.0)
    assert together.n_lanes == 5
    for lane in together.lanes:
        own = np.where(y == lane["label"], 1.0, -1.0)
        alone = fit(of_layout(tmp_path / f"data{lane['label']}", (x, own), method), **asked)
        allowed = 2 * TOL * alone.primal_objective
        assert lane["primal_objective"] == pytest.approx(alone.primal_objective, abs=allowed)
        column = w[:, [np.flatnonzero(np.unique(y) == lane["label"])[0]]]
        # ½‖w - w*‖² is at most the gap
        distance = np.linalg.norm(column - run_weights(Path(alone.run), 1.0))
        assert distance <= 2 * np.sqrt(2 * allowed)


@pytest.mark.parametrize("make", [random_rows, multiclass])
@pytest.mark.parametrize(("loss", "method"), BY_ROWS_AND_COLUMNS)
def test_weight_two_is_the_row_twice_and_weight_zero_no_row(
    fit: Callable[..., Result], tmp_path: Path, loss: str, method: str, make: Callable[[], Rows]
) -> None:
    rows = make()
    weight = np.random.default_rng(4).integers(0, 4, rows[1].size)
    asked = {"loss": loss, "method": method, "C": 0.03, "windows": None}
    weighted = fit(of_layout(tmp_path / "a", rows, method, weight=weight.astype(float)), **asked)
    copies = fit(of_layout(tmp_path / "b", repeated(rows, weight), method), **asked)
    assert weighted.converged
    assert copies.converged
    assert weighted.primal_objective == pytest.approx(copies.primal_objective, rel=2 * TOL)
    if loss != "twin":
        best = weighted_optimum(loss, rows, weight, 0.03)
        assert_optimal(weighted, rows, best, loss=loss, cost=0.03 * weight)


# ---------------------------------------------------------------------------------------------------------------------
# C, weights of classes, LIBLINEAR's stopping rule


@pytest.mark.parametrize(
    ("loss", "name", "C"),
    [(loss, "empty_rows", C) for loss in LOSSES for C in (0.01, 1000.0)]
    + [("log_loss", name, C) for name in ("random", "unscaled", "separable") for C in (1e-4, 1e5)],
)
def test_certified_from_small_to_large_C(
    fit: Callable[..., Result], tmp_path: Path, loss: str, name: str, C: float
) -> None:
    """Converged or not: the distance to the optimum is within the gap that the run says it reached, all numbers finite."""
    rows = NAMED[name]()
    result = fit(
        write_dataset(tmp_path / "data", rows), loss=loss, C=C, windows=None, max_passes=500, tol=1e-4
    )
    assert np.isfinite([result.primal_objective, result.dual_objective, result.gap, result.violation]).all()
    assert result.converged or C >= 100.0
    assert_optimal(result, rows, optimum(loss, rows, C=C), C=C, loss=loss)


@pytest.mark.parametrize("make", [random_rows, multiclass])
@pytest.mark.parametrize("loss", LOSSES)
def test_class_weight_multiplies_the_cost_of_the_labels_rows(
    fit: Callable[..., Result], tmp_path: Path, loss: str, make: Callable[[], Rows]
) -> None:
    """In every lane; a class weight of 3 is each of its rows three times."""
    rows = make()
    label = float(np.unique(rows[1])[0])
    result = fit(write_dataset(tmp_path / "data", rows), loss=loss, C=0.03, class_weight={label: 3.0})
    times = np.where(rows[1] == label, 3, 1)
    assert_optimal(result, rows, weighted_optimum(loss, rows, times, 0.03), loss=loss, cost=0.03 * times)


@pytest.mark.parametrize("loss", ["squared_hinge", "crammer_singer"])
def test_balanced_classes_weigh_the_same(fit: Callable[..., Result], tmp_path: Path, loss: str) -> None:
    """Factors rows / (classes · rows of the class): the same as giving them one by one."""
    rows = multiclass()
    labels, counts = np.unique(rows[1], return_counts=True)
    factors = counts.sum() / (labels.size * counts)
    dataset = write_dataset(tmp_path / "data", rows)
    balanced = fit(dataset, loss=loss, C=0.1, max_passes=20, class_weight="balanced")
    explicit = fit(
        dataset, loss=loss, C=0.1, max_passes=20, class_weight=dict(zip(labels, factors, strict=True))
    )
    assert weight_bytes(balanced) == weight_bytes(explicit)


@pytest.mark.parametrize("eps", [1e-3])
@pytest.mark.parametrize("loss", LIBLINEAR_NUMBERS)
def test_eps_rule_ends_as_near_to_the_optimum_as_liblinears(
    fit: Callable[..., Result], tmp_path: Path, loss: str, eps: float
) -> None:
    """The same rule on the same problem: both stop at violations of the same size; LIBLINEAR's luck varies by its seed."""
    rows = random_rows(300, 15, seed=12)
    C = 0.1
    dataset = write_dataset(tmp_path / "data", rows)
    result = fit(dataset, loss=loss, C=C, eps=eps, windows=None)
    assert result.converged
    assert result.stop_reason == "violation"
    # measured at the end at fixed weights; the rule saw each row at its own moment of the last pass
    assert result.violation <= 3 * eps
    best = optimum(loss, rows, C=C).sum()
    weights = [liblinear(loss, *rows, C=C, eps=eps, seed=seed) for seed in range(9)]
    peers = [primal_objectives(loss, augmented(rows[0], -1), rows[1], w, C).sum() for w in weights]
    peer = np.median(peers)
    assert result.primal_objective - best <= 10 * (peer - best) + 1e-9 * best


@pytest.mark.parametrize("loss", LOSSES)
def test_eps_rule_holds_over_all_rows_not_the_shrunk_ones(
    fit: Callable[..., Result], tmp_path: Path, loss: str
) -> None:
    """Many seeds on a problem that shrinks a lot; each ends with a small violation over the full set."""
    dataset = write_dataset(tmp_path / "data", multiclass())
    for seed in range(3):
        result = fit(dataset, loss=loss, eps=1e-2, seed=seed, C=0.1, windows=3)
        assert result.stop_reason == "violation"
        assert result.violation <= 3e-2


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("C", [1e-60, 1e-9])
def test_the_smallest_costs_are_solved(loss: str, C: float, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(60, 5))
    assert train(data, tmp_path / "run", loss=loss, C=C, method="dual").converged


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1e-20, 1e-9])
def test_tiny_values_are_solved(loss: str, scale: float, tmp_path: Path) -> None:
    """Crammer-Singer stood still: beside margins of 1 the terms of its sub-problem were lost."""
    x, y = multiclass()
    data = write_dataset(tmp_path / "data", (scale * x, y), value_dtype=np.float64)
    assert train(data, tmp_path / "run", loss=loss, method="dual", max_passes=30).converged


@pytest.mark.parametrize("loss", [*LOSSES, "twin"])
def test_values_whose_squares_are_no_numbers_are_refused_or_not_certified(
    loss: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    x, y = multiclass()
    data = write_dataset(tmp_path / "data", (1e160 * x, y), value_dtype=np.float64)
    for method in ("dual", "sor") if loss == "twin" else ("dual",):
        try:
            found = train(data, tmp_path / method, loss=loss, method=method, max_passes=3)
        except DatasetError as error:
            assert "not finite" in str(error)  # noqa: PT017
            continue
        assert not found.converged
        assert found.gap <= 1
    other = [w for w in recwarn if not issubclass(w.category, streamcd.ConvergenceWarning)]
    assert not [str(warning.message) for warning in other]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_largest_costs_give_numbers(loss: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Least dual variables divided by them, and their squares, are numbers still."""
    data = write_dataset(tmp_path / "data", random_rows(60, 5), weight=np.full(60, 1e30))
    make_columns(data)
    for method in ("dual", "primal") if loss in ("squared_hinge", "log_loss") else ("dual",):
        found = train(data, tmp_path / method, loss=loss, method=method, C=1e60, max_passes=3)
        assert 0 <= found.gap <= 1
    other = [w for w in recwarn if not issubclass(w.category, streamcd.ConvergenceWarning)]
    assert not [str(warning.message) for warning in other]


@pytest.mark.parametrize(
    "asked",
    [
        {"C": 1e-61},
        {"C": 1e61},
        {"class_weight": {-1.0: 1e-200}},
        {"loss": "twin", "ridge": 1e-200},
        {"bias": 1e61},
    ],
)
def test_costs_whose_squares_are_no_numbers_are_refused(asked: dict[str, Any], tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(60, 5))
    with pytest.raises(UsageError, match=r"(from 1e-60|up) to 1e\+60"):
        train(data, tmp_path / "run", **asked)
