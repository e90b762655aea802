"""The slow truth: plain-loop twins of the kernels, objectives in plain numpy, and optima by other people's solvers."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse as sp
from exact_optimum import model, optimal_weights
from scipy.special import logsumexp

from streamcd import Dataset
from streamcd.kernels.primitives import N_TOTALS, Rows, Total, unsigned
from streamcd.stream.arenas import RowArena, RowLayout
from streamcd.stream.slot_store import SlotStore

LIBLINEAR_NUMBERS = {"squared_hinge": 1, "hinge": 3, "log_loss": 7, "crammer_singer": 4}
OF_CLASSES = ("crammer_singer", "multinomial")
"""Losses of the scores of all classes at once."""


# ---------------------------------------------------------------------------------------------------------------------
# Objectives of weights, from the formulas alone


def augmented(x: sp.csr_array, bias: float) -> np.ndarray:
    """Rows as a dense array with the constant feature; without one where `bias` is negative."""
    dense = np.asarray(x.todense(), dtype=np.float64)
    return dense if bias < 0 else np.hstack([dense, np.full((dense.shape[0], 1), bias)])


def signs_of(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """y in every lane, shape (rows, lanes): one-vs-rest, or one lane where there are two classes."""
    if classes.size == 2:
        return np.where(y == classes[1], 1.0, -1.0)[:, None]
    return np.where(y[:, None] == classes[None, :], 1.0, -1.0)


def loss_values(loss: str, t: np.ndarray) -> np.ndarray:
    """Loss of margins ``t = y w·x``."""
    if loss == "log_loss":
        return np.logaddexp(0.0, -t)
    slack = np.maximum(1.0 - t, 0.0)
    return slack if loss == "hinge" else slack**2


def dual_values(loss: str, alpha: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Terms of the dual objective of rows with costs above 0."""
    if loss == "log_loss":
        return cost * np.log(cost) - alpha * np.log(alpha) - (cost - alpha) * np.log(cost - alpha)
    return alpha if loss == "hinge" else alpha - alpha**2 / (4.0 * cost)


def primal_objectives(
    loss: str, x: np.ndarray, y: np.ndarray, w: np.ndarray, cost: np.ndarray | float
) -> np.ndarray:
    """Primal objective of every lane.

    Parameters
    ----------
    x : ndarray, shape (rows, d)
        Dense, the bias's column included where there is one.
    w : ndarray, shape (d, vectors)
    cost : float or ndarray, shape (rows,)
    """
    classes = np.unique(y)
    cost = np.broadcast_to(np.asarray(cost, dtype=np.float64), y.shape)
    scores = x @ w
    if loss in OF_CLASSES:
        place = np.searchsorted(classes, y)
        rows = np.arange(y.size)
        margin = scores - scores[rows, place][:, None] + (loss == "crammer_singer")
        margin[rows, place] = 0.0
        losses = margin.max(axis=1) if loss == "crammer_singer" else logsumexp(margin, axis=1)
        return np.array([0.5 * np.sum(w * w) + cost @ losses])
    t = signs_of(y, classes) * scores
    return 0.5 * np.sum(w * w, axis=0) + cost @ loss_values(loss, t)


def run_weights(run: Path, bias: float = -1.0) -> np.ndarray:
    """Weights of a run's model, shape (d [+ 1], vectors), with the bias's weight where there is one."""
    from streamcd import load_model

    model = load_model(run)
    return model.weights if bias < 0 else np.vstack([model.weights, model.intercept / bias])


def run_dual(run: Path, dataset: Dataset, alpha_width: int, n_flags: int) -> tuple[np.ndarray, np.ndarray]:
    """Dual variables (rows, alpha_width) and active flags (rows, n_flags) of a run's last checkpoint."""
    with np.load(run / "state.npz") as archive:
        slots = archive["slots"]
    store = SlotStore(run / "dual", dataset, 8 * alpha_width + n_flags)
    store.restore(slots)
    alpha, active = np.zeros((dataset.n_rows, alpha_width)), np.zeros((dataset.n_rows, n_flags), np.uint8)
    for chunk in range(dataset.n_chunks):
        rows = slice(dataset.row_start[chunk], dataset.row_start[chunk + 1])
        assert store.load(chunk, [alpha[rows], active[rows]]), f"chunk {chunk} was never saved"
    return alpha, active


# ---------------------------------------------------------------------------------------------------------------------
# Optima by other solvers


def liblinear(
    loss: str, x: sp.csr_array, y: np.ndarray, *, C: float = 1.0, bias: float = -1.0, eps: float = 1e-8,
    options: str = "", seed: int = 1,
) -> np.ndarray:  # fmt: skip
    """Weights that LIBLINEAR ends with, shape (d [+ 1], vectors), classes ascending, of two the larger positive.

    It draws from the C library's generator, which is shared by all that the process did before: `seed` sets that.
    """
    from liblinear import liblinearutil

    ctypes.CDLL(None).srand(seed)
    arguments = f"-s {LIBLINEAR_NUMBERS[loss]} -c {C!r} -e {eps!r} -B {bias!r} -q {options}"
    matrix = sp.csr_matrix(x)
    model = liblinearutil.train(liblinearutil.problem(y, matrix, bias), liblinearutil.parameter(arguments))
    labels = model.get_labels()
    n_vectors = 1 if len(labels) == 2 and loss != "crammer_singer" else len(labels)
    n_features = x.shape[1] + (bias >= 0)
    # LIBLINEAR knows no features beyond the last that occurs; their weights are 0
    known = model.nr_feature + (bias >= 0)
    found = np.array(model.w[: known * n_vectors]).reshape(known, n_vectors)
    w = np.zeros((n_features, n_vectors))
    w[: model.nr_feature] = found[: model.nr_feature]
    if bias >= 0:
        w[-1] = found[-1]
    if n_vectors == 1:
        return w if labels[0] > labels[1] else -w
    return np.ascontiguousarray(w[:, np.argsort(labels)])


_OPTIMA: dict[tuple[Any, ...], np.ndarray] = {}


def exact_optimum(
    loss: str, x: np.ndarray, y: np.ndarray, cost: np.ndarray | float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (d, vectors) and objectives (lanes,) at the optimum of small problems, by an interior-point method.

    Each problem is solved once: that takes longer than the training that it judges.
    """
    key = loss, x.shape, x.tobytes(), y.tobytes(), np.asarray(cost).tobytes()
    if key not in _OPTIMA:
        sides = (
            [np.unique(y, return_inverse=True)[1]]
            if loss in OF_CLASSES
            else list(signs_of(y, np.unique(y)).T)
        )
        _OPTIMA[key] = np.hstack([optimal_weights(model(loss, x, side, cost)) for side in sides])
    return _OPTIMA[key], primal_objectives(loss, x, y, _OPTIMA[key], cost)


# ---------------------------------------------------------------------------------------------------------------------
# Twins of the kernels: one row and one lane after another, dense rows, straight from the formulas


class Twin:
    """State of dual coordinate descent for single-margin losses, as plain as can be.

    Parameters
    ----------
    loss : str
    x : ndarray, shape (rows, d + 1)
        Dense, with the bias's column (zeros where there is none).
    y, cost : ndarray, shape (rows, lanes)
    alpha : ndarray, shape (rows, lanes); `rest` is C - alpha, used by the logistic loss
    """

    def __init__(
        self, loss: str, x: np.ndarray, y: np.ndarray, cost: np.ndarray, alpha: np.ndarray, w: np.ndarray
    ) -> None:
        self.loss, self.x, self.y, self.cost = loss, x, y, cost
        self.alpha, self.rest, self.w = alpha.copy(), cost - alpha, w.copy()
        self.active = np.ones(alpha.shape, dtype=np.uint8)
        self.high, self.low, self.omega = np.inf, -np.inf, 1.0
        self.totals = np.zeros((alpha.shape[1], N_TOTALS))
        self.totals[:, Total.VIOLATION_MAX], self.totals[:, Total.VIOLATION_MIN] = -np.inf, np.inf

    def visit(self, order: np.ndarray) -> None:
        """Each row once, each lane in turn."""
        for i in order:
            for lane in range(self.alpha.shape[1]):
                if self.active[i, lane] and self.cost[i, lane] > 0:
                    self._visit_row(i, lane)

    def certify(self, order: np.ndarray) -> np.ndarray:
        """Sums at fixed w; returns ``Σ y alpha x``."""
        w_alpha = np.zeros_like(self.w)
        for i in order:
            for lane in range(self.alpha.shape[1]):
                if self.cost[i, lane] <= 0:
                    continue
                gap, primal, dual = self.terms(i, lane)
                self.totals[lane, Total.GAP] += gap
                self.totals[lane, Total.LOSS] += primal
                self.totals[lane, Total.DUAL] += dual
                self.totals[lane, Total.N_VISITED] += 1
                self._see(lane, self.projected(i, lane)[1])
                w_alpha[:, lane] += self.y[i, lane] * self.alpha[i, lane] * self.x[i]
        return w_alpha

    def terms(self, i: int, lane: int) -> tuple[float, float, float]:
        """phi, the primal loss, and the dual's terms of a row."""
        c, a, t = self.cost[i, lane], self.alpha[i, lane], self._margin(i, lane)
        if self.loss == "log_loss":
            rest = self.rest[i, lane]
            primal = c * float(np.logaddexp(0, -t))
            dual = _x_log_x(c) - _x_log_x(a) - _x_log_x(rest)
            return primal - dual + a * t, primal, dual
        slack = max(1 - t, 0.0)
        diagonal = 0.5 / c if self.loss == "squared_hinge" else 0.0
        primal = c * slack if self.loss == "hinge" else c * slack**2
        dual = a - 0.5 * diagonal * a**2
        return primal + 0.5 * diagonal * a**2 - a * (1 - t), primal, dual

    def projected(self, i: int, lane: int) -> tuple[float, float]:
        """G and the projected gradient."""
        c, a, t = self.cost[i, lane], self.alpha[i, lane], self._margin(i, lane)
        if self.loss == "log_loss":
            gradient = float(np.log(a / self.rest[i, lane])) + t
            return gradient, abs(gradient)  # its size is what stops
        gradient = t - 1 + (0.5 / c * a if self.loss == "squared_hinge" else 0.0)
        upper = c if self.loss == "hinge" else np.inf
        if a == 0:
            return gradient, min(gradient, 0.0)
        return gradient, max(gradient, 0.0) if a == upper else gradient

    def _margin(self, i: int, lane: int) -> float:
        return float(self.y[i, lane] * (self.x[i] @ self.w[:, lane]))

    def _see(self, lane: int, projected: float) -> None:
        self.totals[lane, Total.VIOLATION_MAX] = max(self.totals[lane, Total.VIOLATION_MAX], projected)
        self.totals[lane, Total.VIOLATION_MIN] = min(self.totals[lane, Total.VIOLATION_MIN], projected)

    def _visit_row(self, i: int, lane: int) -> None:
        before = self.terms(i, lane)
        self.totals[lane, Total.GAP] += before[0]
        self.totals[lane, Total.N_VISITED] += 1
        gradient, projected = self.projected(i, lane)
        if projected == 0 and ((self.alpha[i, lane] == 0 and gradient > self.high) or gradient < self.low):
            self.active[i, lane] = 0
            return
        self.totals[lane, Total.N_ACTIVE] += 1
        self._see(lane, projected)
        if abs(projected) <= 1e-12:
            return
        old = self.alpha[i, lane]
        self.alpha[i, lane], self.rest[i, lane] = self._minimiser(i, lane, gradient)
        self.w[:, lane] += (self.alpha[i, lane] - old) * self.y[i, lane] * self.x[i]
        self.totals[lane, Total.DUAL] += self.terms(i, lane)[2] - before[2]

    def _minimiser(self, i: int, lane: int, gradient: float) -> tuple[float, float]:
        c, q, old = self.cost[i, lane], float(self.x[i] @ self.x[i]), self.alpha[i, lane]
        if self.loss == "log_loss":
            t = self._margin(i, lane)

            def slope(u: float) -> float:  # of the dual along this variable, alpha = c / (1 + exp(-u))
                return u + q * (c / (1 + np.exp(-u)) - old) + t

            u = scipy.optimize.brentq(slope, -700, 700, xtol=1e-14, rtol=8.9e-16)
            return c / (1 + np.exp(-u)), c / (1 + np.exp(u))
        diagonal = 0.5 / c if self.loss == "squared_hinge" else 0.0
        upper = c if self.loss == "hinge" else np.inf
        new = (
            upper if q + diagonal == 0 else min(max(old - self.omega * gradient / (q + diagonal), 0.0), upper)
        )
        return new, c - new


def _x_log_x(x: float) -> float:
    return x * float(np.log(x)) if x > 0 else 0.0


def crammer_singer_subproblem(b: np.ndarray, q: float, upper: np.ndarray) -> np.ndarray:
    """``min ½ q Σ a² + b·a`` over ``a <= upper, Σ a = 0``: ``a = min(upper, (beta - b) / q)``, beta by bisection."""

    def excess(beta: float) -> float:
        return float(np.minimum(upper, (beta - b) / q).sum())

    low, high = float((b - 1e3 * (1 + q)).min()), float((b + q * upper).max()) + 1.0
    while excess(low) > 0:
        low -= 1e3 * (1 + q)
    beta = scipy.optimize.brentq(excess, low, high, xtol=1e-15, rtol=8.9e-16, maxiter=500)
    return np.minimum(upper, (beta - b) / q)


# ---------------------------------------------------------------------------------------------------------------------
# Arrays as kernels take them


def strided(array: np.ndarray) -> np.ndarray:
    """A copy that lies as the state of one lane does, in the records of rows."""
    copy = np.empty((array.shape[0], 2 * array.shape[1]), array.dtype)[:, : array.shape[1]]
    copy[:] = array
    return copy


def kernel_rows(
    x: sp.csr_array, code: np.ndarray, weight: np.ndarray | None = None, value_dtype: Any = np.float32
) -> Rows:
    """Rows as an arena has them, in the types that datasets have."""
    arena = RowArena(
        RowLayout(2, 2).record, (2, 2), (np.dtype(np.int32), np.dtype(value_dtype)), x.shape[0], x.nnz
    )
    n = x.shape[0]  # an arena may have room for more
    arena.indptr[: n + 1], arena.feature[:], arena.value[:] = x.indptr, x.indices, x.data
    arena.code[:n], arena.weight[:n] = code, 1.0 if weight is None else weight
    feature = unsigned(arena.feature)
    return Rows(arena.indptr, feature, arena.value, arena.code, arena.weight, arena.fold, arena.target)


def new_totals(n_lanes: int) -> np.ndarray:
    """Sums before the first row."""
    totals = np.zeros((n_lanes, N_TOTALS))
    totals[:, Total.VIOLATION_MAX], totals[:, Total.VIOLATION_MIN] = -np.inf, np.inf
    return totals


def slow_margins(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x·w by one loop per row and vector."""
    out: Any = np.zeros((x.shape[0], w.shape[1]))
    for i in range(x.shape[0]):
        for m in range(w.shape[1]):
            out[i, m] = sum(x[i, j] * w[j, m] for j in range(x.shape[1]))
    return out
