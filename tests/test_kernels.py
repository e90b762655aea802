"""Kernels against their slow twins, against finite differences, and against the plain objectives."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from reference import (
    Twin,
    crammer_singer_subproblem,
    dual_values,
    kernel_rows,
    loss_values,
    new_totals,
    slow_margins,
    strided,
)
from small_datasets import multiclass, random_rows

from streamcd.kernels import classes as class_kernels
from streamcd.kernels import dual as dual_kernels
from streamcd.kernels import primitives
from streamcd.kernels.classes import ClassScratch, LaneColumns
from streamcd.kernels.primitives import Total
from streamcd.models.scoring import decisions_of
from streamcd.solvers.problem import row_loss

BINARY = ["hinge", "squared_hinge", "log_loss"]
BIASES = [0.0, 1.5]
NO_FOLD = np.array([-1], dtype=np.int64)
LEFT_OUT = np.eye(5, 256, dtype=bool)  # folds of one seed: the fold and the cell have one number
LEFT_OUT[-1] = False
COMPARED = [
    Total.GAP,
    Total.LOSS,
    Total.DUAL,
    Total.VIOLATION_MAX,
    Total.VIOLATION_MIN,
    Total.N_VISITED,
    Total.N_ACTIVE,
]  # not the inner Newton steps


def primal_objective(loss: str, w: np.ndarray, t: np.ndarray, cost: np.ndarray) -> float:
    """Compute ``½‖w‖² + Σ cost_i loss(t_i)``; `w` includes the bias entry, rows of cost 0 have no term."""
    used = cost > 0
    return float(0.5 * w @ w + cost[used] @ loss_values(loss, t[used]))


def dual_objective(loss: str, w: np.ndarray, alpha: np.ndarray, cost: np.ndarray) -> float:
    """Compute the dual objective at `alpha`, with ``w = w(alpha)``; rows of cost 0 have no term."""
    used = cost > 0
    return float(dual_values(loss, alpha[used], cost[used]).sum() - 0.5 * w @ w)


class Lanes:
    """A small problem as the dual kernels take it, and its twin.

    With ``n_lanes == 1`` the one-lane visit is called. Row 3 is empty, row 4 has weight 0, and the last lane leaves the
    rows of fold 2 out.
    """

    def __init__(self, loss: str, n_lanes: int, bias: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        x, y = random_rows(40, 6, seed=seed) if n_lanes == 1 else multiclass(n_lanes, 60)
        dense = x.toarray()
        dense[3] = 0
        self.x = sp.csr_array(dense)
        self.n_rows, self.n_features = dense.shape
        self.loss, self.n_lanes, self.bias = loss, n_lanes, bias
        self.classes, code = np.unique(y, return_inverse=True)
        weight = rng.uniform(0.5, 2.0, self.n_rows)
        weight[4] = 0.0
        self.rows = kernel_rows(self.x, code, weight)
        self.rows.fold[:] = np.arange(self.n_rows) % 3
        self.lane_fold = np.full(n_lanes, -1)
        if n_lanes > 1:
            self.lane_fold[-1] = 2
            self.sign = 2.0 * np.eye(n_lanes) - 1
        else:
            self.sign = np.array([[-1.0], [1.0]])
        self.cost = rng.uniform(0.3, 3.0, self.sign.shape)
        row_cost = self.cost[code] * weight[:, None] * (self.rows.fold[:, None] != self.lane_fold[None, :])
        start = rng.uniform(0.2, 0.8, row_cost.shape) * row_cost
        if loss != "log_loss":
            start[rng.random(start.shape) < 0.3] = 0.0
            at_bound = rng.random(start.shape) < 0.2
            start[at_bound] = row_cost[at_bound]
        augmented = np.hstack([dense, np.full((self.n_rows, 1), bias)])
        signs = self.sign[code]
        w = augmented.T @ (signs * start)
        self.twin = Twin(loss, augmented, signs, row_cost, start, w)
        self.alpha = np.hstack([start, row_cost - start]) if loss == "log_loss" else start.copy()
        self.active = np.ones((self.n_rows, n_lanes), dtype=np.uint8)
        if n_lanes == 1:
            self.alpha, self.active = strided(self.alpha), strided(self.active)
        self.w, self.totals = np.ascontiguousarray(w).reshape(-1), new_totals(n_lanes)
        fetched, live = (np.empty(n_lanes + 1, dtype=np.int64) for _ in range(2))
        self.lanes = primitives.Lanes(np.arange(n_lanes), fetched, np.empty(n_lanes), live, np.zeros(n_lanes))

    def arguments(self, order: np.ndarray) -> tuple[Any, ...]:
        costs = primitives.Costs(
            row_loss(self.loss), self.bias, self.sign, self.cost, self.lane_fold, LEFT_OUT
        )
        return order, self.rows, costs, primitives.Variables(self.alpha, self.active, self.w)

    def visit(self, order: np.ndarray) -> None:
        numbers = (self.twin.high, self.twin.low, 1e-13, self.twin.omega, 1.0, 0.0)
        steering = primitives.Steering(*(np.full(self.n_lanes, number) for number in numbers))
        arguments = (*self.arguments(order), steering, self.totals)
        if self.n_lanes == 1:
            dual_kernels.dual_visit(*arguments)
        else:
            dual_kernels.dual_visit_lanes(*arguments, self.lanes)

    def certify(self, order: np.ndarray) -> np.ndarray:
        w_alpha = np.zeros_like(self.w)
        arguments = self.arguments(order)
        dual_kernels.dual_certify(*arguments, self.totals, self.lanes)
        dual_kernels.add_alpha_rows(*arguments, self.lanes, w_alpha)
        return w_alpha

    def assert_same(self, tolerance: float) -> None:
        shape = self.twin.w.shape
        np.testing.assert_allclose(self.w.reshape(shape), self.twin.w, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(
            self.alpha[:, : self.n_lanes], self.twin.alpha, rtol=tolerance, atol=tolerance
        )
        used = self.twin.cost > 0
        np.testing.assert_array_equal(self.active[used], self.twin.active[used])
        np.testing.assert_allclose(
            self.totals[:, COMPARED], self.twin.totals[:, COMPARED], rtol=tolerance, atol=tolerance
        )


def _tolerance(loss: str) -> float:
    return 1e-9 if loss == "log_loss" else 1e-12  # the twin solves the one-dimensional problem by bisection


@pytest.mark.parametrize(
    ("loss", "n_lanes", "bias", "omega"),
    # vectors of 8, 16 and 32 lanes, and lanes beside them
    [(loss, n_lanes, bias, 1.0) for loss in BINARY for n_lanes in (1, 3, 9, 43) for bias in BIASES]
    + [(loss, n, 1.5, omega) for loss in BINARY[:2] for n in (1, 3) for omega in (0.4, 1.3, 1.9)],
)
def test_a_visit_changes_what_its_slow_twin_changes(
    loss: str, n_lanes: int, bias: float, omega: float
) -> None:
    """Weights, dual variables, active flags and sums, with shrinking on in the second pass."""
    problem = Lanes(loss, n_lanes, bias)
    problem.twin.omega = omega
    rng = np.random.default_rng(1)
    for high, low in ((np.inf, -np.inf), (0.05, -0.05), (0.0, 0.0)):
        problem.twin.high, problem.twin.low = high, low
        order = rng.permutation(problem.n_rows)
        order = order[problem.active[order].any(axis=1)]  # as `active_rows` chooses them
        problem.visit(order)
        problem.twin.visit(order)
        problem.assert_same(_tolerance(loss) if omega == 1.0 else 1e-11)
    if loss != "log_loss" and omega == 1.0:
        assert (problem.active == 0).any(), "nothing was shrunk: the test shows nothing about it"


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("n_lanes", [1, 3, 43])
@pytest.mark.parametrize("loss", BINARY)
def test_a_certifying_read_sums_what_its_slow_twin_sums(loss: str, n_lanes: int, bias: float) -> None:
    problem = Lanes(loss, n_lanes, bias)
    problem.twin.w += 0.1  # away from w(alpha): a certificate holds at any w
    problem.w += 0.1
    w_alpha = problem.certify(np.arange(problem.n_rows))
    expected = problem.twin.certify(np.arange(problem.n_rows))
    np.testing.assert_allclose(w_alpha.reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)
    problem.assert_same(1e-11)


def test_an_empty_row_ends_where_its_loss_is_constant() -> None:
    """alpha = U under hinge, the closed form under squared hinge, C/2 under logistic: no term is left in the gap."""
    for loss, expected in (("hinge", 1.0), ("squared_hinge", 2.0), ("log_loss", 0.5)):
        problem = Lanes(loss, 1, 0.0)
        cost = problem.twin.cost[3, 0]
        problem.visit(np.array([3]))
        assert problem.alpha[3, 0] == pytest.approx(expected * cost, rel=1e-9)
        problem.totals = new_totals(1)
        problem.certify(np.array([3]))
        assert problem.totals[0, Total.GAP] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("C", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_logistic_steps_stay_finite_and_keep_their_digits_at_both_bounds(C: float, scale: float) -> None:
    """C - alpha is kept, not computed: it never becomes 0, and both halves add up to C."""
    x, y = random_rows(30, 4, seed=8, density=0.9)
    x = sp.csr_array((x * scale).astype(np.float32).astype(np.float64))
    rows = kernel_rows(x, (y > 0).astype(int))
    cost = np.full((2, 1), C)
    alpha = np.full((30, 2), min(1e-3 * C, 1e-8))
    alpha[:, 1] = C - alpha[:, 0]
    signs, active = np.array([[-1.0], [1.0]]), np.ones((30, 1), dtype=np.uint8)
    w = np.append(x.T @ (y * alpha[:, 0]), 0.0)
    costs = primitives.Costs(row_loss("log_loss"), 0.0, signs, cost, NO_FOLD, LEFT_OUT)
    steering = primitives.Steering(
        *(np.array([number]) for number in (np.inf, -np.inf, 1e-10, 1.0, 1.0, 0.0))
    )
    for _ in range(30):
        variables = primitives.Variables(alpha, active, w)
        dual_kernels.dual_visit(np.arange(30), rows, costs, variables, steering, new_totals(1))
        assert np.isfinite(w).all()
        assert (alpha > 0).all()
        np.testing.assert_allclose(alpha.sum(axis=1), C, rtol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Crammer–Singer


class Classes:
    """A small multiclass problem as the kernels of Crammer–Singer take it; in columns ``first: first + k`` of more."""

    def __init__(self, bias: float, first: int = 0, n_columns: int = 4) -> None:
        rng = np.random.default_rng(5)
        x, y = multiclass(4, 50)
        dense = x.toarray()
        dense[3] = 0
        x = sp.csr_array(dense)
        self.code = np.unique(y, return_inverse=True)[1]
        self.rows = kernel_rows(x, self.code, rng.uniform(0.5, 2.0, 50))
        self.c = self.rows.weight * 0.7
        self.x = np.hstack([dense, np.full((50, 1), bias)])
        self.bias, self.first, self.n_columns = bias, first, n_columns
        self.cost = np.full((4, n_columns // 4), 0.7)
        self.lane_fold = np.full(n_columns // 4, -1)
        self.alpha, self.active = np.zeros((50, n_columns)), np.ones((50, n_columns), dtype=np.uint8)
        self.w = np.zeros(10 * n_columns)
        self.totals = new_totals(n_columns // 4)

    def arguments(self) -> tuple[Any, ...]:
        sign = np.ones_like(self.cost)  # of no meaning here
        costs = primitives.Costs(
            row_loss("crammer_singer"), self.bias, sign, self.cost, self.lane_fold, LEFT_OUT
        )
        variables = primitives.Variables(self.alpha, self.active, self.w)
        scratch = ClassScratch(*np.empty((3, 4)))
        return self.rows, costs, variables, LaneColumns(self.first // 4, self.first, self.n_columns, scratch)

    def visit(self, order: np.ndarray) -> None:
        class_kernels.class_visit(order, *self.arguments(), self.totals, True)

    def certify(self) -> np.ndarray:
        w_alpha = np.zeros_like(self.w)
        class_kernels.class_visit(np.arange(50), *self.arguments(), self.totals, False)
        class_kernels.add_alpha_classes(np.arange(50), *self.arguments(), w_alpha)
        return w_alpha

    def own(self, columns: np.ndarray) -> np.ndarray:
        return columns.reshape(-1, self.n_columns)[:, self.first : self.first + 4]


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize(("first", "n_columns"), [(0, 4), (4, 12)])
def test_a_crammer_singer_visit_solves_each_rows_problem(bias: float, first: int, n_columns: int) -> None:
    """Over the active classes, against bisection; other columns stay untouched; w stays w(alpha)."""
    problem = Classes(bias, first, n_columns)
    rng = np.random.default_rng(6)
    for _ in range(4):
        for i in rng.permutation(50):
            if i == 3:
                continue
            before = problem.own(problem.alpha)[i].copy()
            w = problem.own(problem.w).copy()
            problem.visit(np.array([i]))
            after = problem.own(problem.alpha)[i]
            live = problem.own(problem.active)[i].astype(bool)
            assert after.sum() == pytest.approx(0, abs=1e-12)
            if not live.any():
                np.testing.assert_array_equal(after, before)
                continue
            upper = np.where(np.arange(4) == problem.code[i], problem.c[i], 0.0)
            assert (after <= upper + 1e-15).all()
            q = float(problem.x[i] @ problem.x[i])
            b = problem.x[i] @ w + (np.arange(4) != problem.code[i]) - q * before
            best = crammer_singer_subproblem(b, q, upper)

            def value(a: np.ndarray, q: float = q, b: np.ndarray = b) -> float:
                return float(0.5 * q * a @ a + b @ a)

            if live.all():
                np.testing.assert_allclose(after, best, atol=1e-10)
            assert value(best) - 1e-12 <= value(after) <= value(before) + 1e-12
    others = np.delete(problem.w.reshape(-1, n_columns), np.s_[first : first + 4], axis=1)
    assert not others.any()
    np.testing.assert_allclose(
        problem.own(problem.w), problem.x.T @ problem.own(problem.alpha), rtol=1e-11, atol=1e-12
    )
    assert (problem.own(problem.active) == 0).any(), "no class was shrunk: the test shows nothing about it"


def test_an_empty_row_leaves_nothing_in_the_gap_of_crammer_singer() -> None:
    problem = Classes(0.0)
    problem.visit(np.array([3]))
    assert problem.alpha[3].sum() == pytest.approx(0)
    assert np.abs(problem.alpha[3]).max() == pytest.approx(problem.c[3])
    assert not problem.w.any()
    only = np.zeros(50)
    only[3] = 1.0
    problem.rows[4][:] *= only
    problem.totals = new_totals(1)
    problem.certify()
    assert problem.totals[0, Total.GAP] == pytest.approx(0, abs=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Order, active rows, margins


def test_shuffle_is_uniform() -> None:
    """Chi-square over all orders of four, 12,000 draws; the bound is exceeded once in 10⁶ by a fair shuffle."""
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for draw in range(12_000):
        order = np.arange(4)
        primitives.shuffle(order, np.uint64(draw * 0x9E3779B97F4A7C15 % 2**64), 1)
        counts[tuple(order.tolist())] += 1
    chi_square = sum((count - 500) ** 2 / 500 for count in counts.values())
    assert chi_square < 69.0


def test_blocks_are_shuffled_whole_and_inside() -> None:
    first = np.zeros((6, 8), np.int64)
    for draw in range(2000):
        order = np.arange(52)
        primitives.shuffle(order, np.uint64(draw * 0x9E3779B97F4A7C15 % 2**64), 8)
        blocks = order[:48].reshape(6, 8)
        assert (np.sort(blocks, axis=1) - np.sort(blocks, axis=1)[:, :1] == np.arange(8)).all()
        assert sorted(blocks[:, 0] // 8) == [0, 1, 2, 3, 4, 5]
        assert sorted(order[48:]) == [48, 49, 50, 51]  # what is left over
        first[blocks[0, 0] // 8, blocks[0, 0] % 8] += 1
    # 42 on average, standard deviation 6.4
    assert first.min() > 10
    assert first.max() < 75


def test_active_rows_are_those_active_in_any_of_the_lanes() -> None:
    active = (np.random.default_rng(0).random((30, 4)) < 0.3).astype(np.uint8)
    start, stop = np.array([3, 10, 20]), np.array([7, 20, 29])
    lanes, order = np.array([1, 3]), np.empty(30, dtype=np.int64)
    n = primitives.active_rows(start, stop, active, lanes, order)
    expected = [
        i
        for first, last in zip(start, stop, strict=True)
        for i in range(first, last)
        if active[i, 1] or active[i, 3]
    ]
    assert order[:n].tolist() == expected


def test_scores_are_products_and_unknown_features_are_counted() -> None:
    x, _ = random_rows(20, 7, seed=9)
    w, intercept = np.random.default_rng(0).standard_normal((5, 3)), np.array([0.5, 0.0, -2.0])
    _, feature, value = kernel_rows(x, np.zeros(20))[:3]
    indptr = x.indptr.astype(np.int64)
    out, ignored = decisions_of((indptr[:-1], indptr[1:], feature, value), w, intercept)
    assert ignored == (feature >= 5).sum()
    expected = slow_margins(x.toarray()[:, :5], w) + intercept
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
