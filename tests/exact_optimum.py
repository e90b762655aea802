"""Exact optima of small linear models: an interior-point method in float64, made right in fifty digits, and proven there.

Every problem is written as ``min ½ u·Qu + c·u + Σ cost smooth(M u)`` over ``A u = b`` with some ``u_j >= 0``, straight from
the definition of its loss and penalty. Nothing of it comes from the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mpmath
import numpy as np
import scipy.linalg
import scipy.sparse as sp
from mpmath import mp, mpf
from threadpoolctl import ThreadpoolController

# Of BLAS, for small matrices: more would only wait for the processors of other tests.
one_thread = ThreadpoolController().wrap(limits=1, user_api="blas")

DIGITS = 50


class Model(NamedTuple):
    """One problem: of one lane, or of all classes at once."""

    loss: str
    x: np.ndarray  # (rows, d), dense, with the bias's column where there is one
    y: np.ndarray  # (rows,): signs, targets, or numbers of classes
    cost: np.ndarray  # (rows,)
    l1: np.ndarray  # (d,): 0 for weights that are not penalised
    l2: np.ndarray  # (d,)
    parameter: float = 0.0
    own: np.ndarray | None = (
        None  # of a twin plane: the weights of the rows that it is fitted to, 0 for others
    )


def model(
    loss: str, x: np.ndarray, y: np.ndarray, cost: Any = 1.0, *, l1: float = 0.0, l2: float = 1.0, free: bool = False,
    parameter: float = 0.0, own: np.ndarray | None = None,
) -> Model:  # fmt: skip
    """A problem with the same penalty for every weight; with `free`, none for the last."""
    counted = np.ones(x.shape[1])
    counted[-1:] = 0.0 if free else 1.0
    cost = np.broadcast_to(np.asarray(cost, np.float64), y.shape)
    return Model(loss, np.asarray(x, np.float64), y, cost, l1 * counted, l2 * counted, parameter, own)


# ---------------------------------------------------------------------------------------------------------------------
# Objectives of weights, in fifty digits


def row_loss(loss: str, y: Any, z: Any, parameter: Any) -> Any:
    """Loss of a row with the score z and the sign or target y, as it is defined."""
    if loss == "log_loss":
        t = y * z
        return mp.log1p(mp.exp(-t)) if t > 0 else -t + mp.log1p(mp.exp(t))
    if loss in ("hinge", "squared_hinge"):
        return max(1 - y * z, mpf(0)) ** (1 + (loss == "squared_hinge"))
    e = abs(y - z)
    if loss in ("epsilon_insensitive", "squared_epsilon_insensitive"):
        return max(e - parameter, mpf(0)) ** (1 + loss.startswith("squared"))
    if loss == "huber":
        return e * e / 2 if e <= parameter else parameter * e - parameter * parameter / 2
    if loss == "quantile":
        return parameter * e if y > z else (1 - parameter) * e
    assert loss == "squared_error"
    return e * e


def exact_objective(given: Model, w: np.ndarray) -> Any:
    """Primal objective of weights (d, vectors) in fifty digits; the last one of a one-class model is minus its threshold."""
    with mp.workdps(DIGITS):
        columns = [
            [mpf(float(value)) for value in column] for column in np.reshape(w, (given.x.shape[1], -1)).T
        ]
        total = mpf(0)
        for column in columns:
            for value, l1, l2 in zip(column, given.l1, given.l2, strict=True):
                total += mpf(float(l1)) * abs(value) + mpf(float(l2)) * value * value / 2
        for i, row in enumerate(given.x):
            cost, places = mpf(float(given.cost[i])), np.flatnonzero(row)
            z = [mp.fsum(mpf(float(row[j])) * column[j] for j in places) for column in columns]
            if given.loss == "crammer_singer":
                own = z[int(given.y[i])]
                total += cost * max(score - own + (m != given.y[i]) for m, score in enumerate(z))
            elif given.loss == "multinomial":
                largest = max(z)
                total += cost * (
                    largest - z[int(given.y[i])] + mp.log(mp.fsum(mp.exp(s - largest) for s in z))
                )
            else:
                if cost:
                    total += cost * row_loss(given.loss, mpf(float(given.y[i])), z[0], mpf(given.parameter))
                if given.own is not None:
                    total += mpf(float(given.own[i])) * z[0] ** 2 / 2
        return total


# ---------------------------------------------------------------------------------------------------------------------
# The same problems as programs


@dataclass
class Program:
    """``min ½ u·diag(q)u + ½‖root u‖² + c·u + Σ cost smooth(M u)`` over ``A u = b`` and ``u_j >= 0`` where `bounded`."""

    q: list[np.ndarray] = field(default_factory=list)
    c: list[np.ndarray] = field(default_factory=list)
    bounded: list[np.ndarray] = field(default_factory=list)
    constraints: list[tuple[dict[int, Any], np.ndarray]] = field(default_factory=list)
    root: np.ndarray | None = None  # on the first variables, which make w
    scores: np.ndarray | None = None  # M on the first variables: (rows, vectors, variables)
    cost: np.ndarray | None = None
    kind: np.ndarray | None = None  # of the smooth losses: the row's class, 0 for the logistic one
    size: int = 0
    vectors: int = 1

    def add(self, size: int, *, q: Any = 0.0, c: Any = 0.0, bounded: bool = True) -> int:
        """Add variables; returns the number of the block."""
        self.q.append(np.broadcast_to(np.asarray(q, np.float64), size))
        self.c.append(np.broadcast_to(np.asarray(c, np.float64), size))
        self.bounded.append(np.full(size, bounded))
        self.size += size
        return len(self.q) - 1

    def require(self, blocks: dict[int, Any], right: np.ndarray) -> None:
        """Add the equations ``Σ matrix block = right``; a number stands for a multiple of the identity."""
        self.constraints.append((blocks, right))

    def equations(self) -> tuple[np.ndarray, np.ndarray]:
        starts = np.cumsum([0, *(block.size for block in self.q)])
        rows, rights = [np.zeros((0, self.size))], [np.zeros(0)]
        for blocks, right in self.constraints:
            part = np.zeros((right.size, self.size))
            for block, matrix in blocks.items():
                own = matrix * np.eye(right.size) if np.isscalar(matrix) else matrix
                part[:, starts[block] : starts[block + 1]] += own
            rows.append(part)
            rights.append(right)
        return np.vstack(rows), np.concatenate(rights)


def program_of(given: Model) -> Program:
    """Write a problem as a program; rows of cost 0 have no part in it."""
    made, used, d = Program(), given.cost > 0, given.x.shape[1]
    x, y, cost, n = given.x[used], given.y[used], given.cost[used], int(used.sum())
    k = int(given.y.max()) + 1 if given.loss in ("crammer_singer", "multinomial") else 1
    # where there is an l1, a weight is a positive part minus a negative one
    parts = np.flatnonzero(given.l1 > 0)
    weights = np.hstack([np.eye(d), -np.eye(d)[:, parts]])
    split = np.concatenate([given.l1 > 0, np.ones(parts.size, bool)])
    made.add(weights.shape[1] * k, c=np.tile(np.concatenate([given.l1, given.l1[parts]]), k))
    made.bounded[0], made.vectors = np.tile(split, k), k
    roots = [np.sqrt(given.l2)[:, None] * weights]
    if given.own is not None:
        roots.append(np.sqrt(given.own)[:, None] * given.x @ weights)
    made.root = np.kron(np.eye(k), np.vstack(roots))
    scores = x @ weights
    free = np.flatnonzero((given.l1 == 0) & (given.l2 == 0))
    if k > 1 and free.size:  # weights without a penalty may move together in all classes: those of one stay
        made.require({0: np.eye(weights.shape[1] * k)[free]}, np.zeros(free.size))
    if given.loss == "log_loss":
        made.scores, made.cost, made.kind = (-y[:, None] * scores)[:, None, :], cost, np.zeros(n, int)
    elif given.loss == "multinomial":
        made.scores = np.stack([np.kron(np.eye(k)[m], scores) for m in range(k)], axis=1)
        made.cost, made.kind = cost, y.astype(int)
    elif given.loss == "crammer_singer":
        slack = made.add(n, c=cost)
        for shift in range(1, k):  # each of the other classes
            sides = np.eye(k)[y.astype(int)] - np.eye(k)[(y.astype(int) + shift) % k]
            margins = np.vstack([np.kron(side, score) for side, score in zip(sides, scores, strict=True)])
            made.require({0: margins, slack: 1.0, made.add(n): -1.0}, np.ones(n))
    elif given.loss in ("hinge", "squared_hinge"):
        slack = made.add(n, c=cost) if given.loss == "hinge" else made.add(n, q=2 * cost)
        made.require({0: y[:, None] * scores, slack: 1.0, made.add(n): -1.0}, np.ones(n))
    else:
        _add_errors(made, given, scores, y, cost)
    return made


def _add_errors(made: Program, given: Model, scores: np.ndarray, y: np.ndarray, cost: np.ndarray) -> None:
    """Add the variables of a loss of targets: parts of the error ``y - z``."""
    n, parameter = y.size, given.parameter
    if given.loss in ("epsilon_insensitive", "squared_epsilon_insensitive"):
        for side in (1.0, -1.0):
            beyond = made.add(n, q=2 * cost) if given.loss.startswith("squared") else made.add(n, c=cost)
            made.require({0: side * scores, beyond: 1.0, made.add(n): -1.0}, side * y - parameter)
        return
    blocks: dict[int, Any] = {0: scores}
    if given.loss == "squared_error":
        blocks[made.add(n, q=2 * cost, bounded=False)] = 1.0
    elif given.loss == "huber":
        blocks[made.add(n, q=cost, bounded=False)] = 1.0
        blocks |= {made.add(n, c=parameter * cost): 1.0, made.add(n, c=parameter * cost): -1.0}
    else:
        assert given.loss == "quantile"
        blocks |= {made.add(n, c=parameter * cost): 1.0, made.add(n, c=(1 - parameter) * cost): -1.0}
    made.require(blocks, y)


# ---------------------------------------------------------------------------------------------------------------------
# Their solution


class Solved:
    """Interior-point method, then Newton's on the variables that are not at their bounds, with residuals in mpmath."""

    def __init__(self, made: Program) -> None:
        self.made = made
        self.a, self.b = made.equations()
        self.bounded, self.c = np.concatenate(made.bounded), np.concatenate(made.c)
        assert made.root is not None
        self.n_first = made.root.shape[1]
        self.quadratic = np.diag(np.concatenate(made.q))
        self.quadratic[: self.n_first, : self.n_first] += made.root.T @ made.root

    def derivatives(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and matrix of second derivatives, in float64."""
        gradient, second = self.quadratic @ u + self.c, self.quadratic.copy()
        made = self.made
        if made.scores is not None and made.cost is not None and made.kind is not None:
            own, m = np.s_[: self.n_first], made.scores
            z = m @ u[own]
            if z.shape[1] == 1:
                z = np.hstack([np.zeros_like(z), z])
                m = np.concatenate([np.zeros_like(m), m], axis=1)
            p = np.exp(z - z.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            ahead = np.einsum("im,imj->ij", p, m)
            gradient[own] += made.cost @ (ahead - m[np.arange(p.shape[0]), made.kind])
            second[own, own] += np.einsum("i,im,imj,imk->jk", made.cost, p, m, m, optimize=True)
            second[own, own] -= ahead.T @ (ahead * made.cost[:, None])
        return gradient, second

    def approach(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Follow the central path: variables, multipliers of the equations, and of the bounds."""
        n, m, bounded = self.c.size, self.b.size, self.bounded
        u, price, dual = np.where(bounded, 1.0, 0.0), np.where(bounded, 1.0, 0.0), np.zeros(m)
        for _ in range(200):
            mu = float(u[bounded] @ price[bounded]) / max(int(bounded.sum()), 1)
            target = 0.1 * mu
            gradient, second = self.derivatives(u)
            residual = np.concatenate([gradient - self.a.T @ dual - price, self.a @ u - self.b])
            if mu < 1e-15 and np.abs(residual).max(initial=0.0) < 1e-11 * (1 + np.abs(gradient).max()):
                break
            system = np.zeros((n + m, n + m))
            system[:n, :n] = second
            system[np.arange(n)[bounded], np.arange(n)[bounded]] += price[bounded] / u[bounded]
            system[:n, n:], system[n:, :n] = -self.a.T, self.a
            right = -residual
            right[:n][bounded] += target / u[bounded] - price[bounded]
            step = _solved(system, right)
            change = np.zeros(n)
            change[bounded] = (target - price[bounded] * step[:n][bounded]) / u[bounded] - price[bounded]
            size = 1.0
            for value, by in ((u[bounded], step[:n][bounded]), (price[bounded], change[bounded])):
                size = min(size, 0.99 * float((-value[by < 0] / by[by < 0]).min(initial=np.inf)))
            size = self._shortened(u, step[:n], size)
            u, dual, price = u + size * step[:n], dual + size * step[n:], price + size * change
        return u, dual, price

    def _shortened(self, u: np.ndarray, step: np.ndarray, size: float) -> float:
        """Halve a step of a smooth loss without bounds until the gradient along it no longer points back."""
        if self.made.scores is None or self.bounded.any():
            return size
        before = abs(float(self.derivatives(u)[0] @ step))
        while abs(float(self.derivatives(u + size * step)[0] @ step)) > before and size > 1e-6:
            size *= 0.5
        return size

    def exact(self) -> tuple[Any, Any]:
        """The optimum, and a bound on what the true one may be below it, both in fifty digits."""
        u, dual, price = self.approach()
        free = ~self.bounded | (u > price)
        _, second = self.derivatives(u)
        a = self.a[:, free]
        n, m = int(free.sum()), self.b.size
        inverse = scipy.linalg.pinv(
            np.block([[second[np.ix_(free, free)], -a.T], [a, np.zeros((m, m))]]), rtol=1e-13
        )
        with mp.workdps(DIGITS):
            point = [mpf(float(value)) if is_free else mpf(0) for value, is_free in zip(u, free, strict=True)]
            multipliers = [mpf(float(value)) for value in dual]
            places = np.flatnonzero(free)
            for _ in range(40):
                prices, missing = self._residuals(point, multipliers)
                errors = [prices[j] for j in places] + missing
                largest = max(map(abs, errors))
                if largest < mpf(10) ** -35:
                    break
                step = inverse @ np.array([float(error / largest) for error in errors])
                for k, j in enumerate(places):
                    point[j] -= largest * mpf(float(step[k]))
                for k in range(m):
                    multipliers[k] -= largest * mpf(float(step[n + k]))
            assert largest < mpf(10) ** -30, f"a residual of {mpmath.nstr(largest, 3)} stays"
            # f(v) >= f(u) + Σ price_j (v_j - u_j) for every v that satisfies the equations; v is near u
            size = 10 * (1 + mp.fsum(abs(value) for value in point))
            wrong = max((-prices[j] for j in np.flatnonzero(self.bounded)), default=mpf(0))
            outside = max((-point[j] for j in np.flatnonzero(self.bounded)), default=mpf(0))
            assert outside < mpf(10) ** -12, f"a variable of {mpmath.nstr(-outside, 3)}"
            slack = (max(wrong, mpf(0)) + 10 * largest) * size + max(outside, mpf(0)) * mp.fsum(
                map(abs, multipliers)
            )
            return self._value(point), slack

    def _residuals(self, u: list[Any], dual: list[Any]) -> tuple[list[Any], list[Any]]:
        """Gradient less what the equations take of it, and what the equations miss, in mpmath."""
        prices = [mpf(float(value)) for value in self.c]
        for i, j, value in _entries(self.quadratic):
            prices[i] += value * u[j]
        missing = [-mpf(float(value)) for value in self.b]
        for i, j, value in _entries(self.a):
            prices[j] -= value * dual[i]
            missing[i] += value * u[j]
        for cost, kind, p, m in self._smooth(u):
            for vector in range(len(p)):
                factor = cost * (p[vector] - (vector == kind))
                for j, value in m[vector]:
                    prices[j] += factor * value
        return prices, missing

    def _smooth(self, u: list[Any]) -> Any:
        """Of each row with a smooth loss: cost, class, probabilities, and the entries of its scores' rows."""
        made = self.made
        if made.scores is None or made.cost is None or made.kind is None:
            return
        for rows, cost, kind in zip(made.scores, made.cost, made.kind, strict=True):
            m = [[(j, mpf(float(row[j]))) for j in np.flatnonzero(row)] for row in rows]
            m = [[], *m] if len(m) == 1 else m
            z = [mp.fsum(value * u[j] for j, value in row) for row in m]
            e = [mp.exp(score - max(z)) for score in z]
            yield mpf(float(cost)), int(kind), [value / mp.fsum(e) for value in e], m

    def _value(self, u: list[Any]) -> Any:
        total = mp.fsum(mpf(float(c)) * value for c, value in zip(self.c, u, strict=True))
        total += mp.fsum(value * u[i] * u[j] for i, j, value in _entries(self.quadratic)) / 2
        return total - mp.fsum(cost * mp.log(p[kind]) for cost, kind, p, _ in self._smooth(u))


def _entries(matrix: np.ndarray) -> list[tuple[int, int, Any]]:
    sparse = sp.coo_array(matrix)
    return [
        (int(i), int(j), mpf(float(value))) for i, j, value in zip(*sparse.coords, sparse.data, strict=True)
    ]


def _solved(system: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve a linear system; where it is singular, by least squares."""
    try:
        found = np.linalg.solve(system, right)
    except np.linalg.LinAlgError:
        found = np.full(right.size, np.nan)
    if not np.isfinite(found).all():
        found = np.linalg.lstsq(system, right, rcond=1e-14)[0]
    return np.asarray(found)


@one_thread
def least_objective(given: Model) -> tuple[Any, Any]:
    """The least objective in fifty digits, and a bound on its error."""
    return Solved(program_of(given)).exact()


@one_thread
def optimal_weights(given: Model) -> np.ndarray:
    """Weights at the optimum, (d, vectors), to the accuracy of float64."""
    made = program_of(given)
    w = Solved(made).approach()[0][: made.bounded[0].size].reshape(-1, made.bounded[0].size // made.vectors)
    d, parts = given.x.shape[1], np.flatnonzero(given.l1 > 0)
    found = w[:, :d].T.copy()
    found[parts] -= w[:, d:].T
    return found


def nearly_least(given: Model) -> float:
    """The objective of `optimal_weights`, which is above the least by what float64 leaves."""
    return float(exact_objective(given, optimal_weights(given)))
