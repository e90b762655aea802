"""Acceleration: an outer proximal point around a dual solver, ``F_v(w) = P(w) + kappa/2 ‖w - v‖²`` with a moving centre v.

The dual depends on kappa only through ``mu = 1 + kappa``: ``w = (w(alpha) + kappa v)/mu``, a row's curvature is q/mu, and a
step adds ``Δalpha y x/mu`` to w. A training read is one pass over this better conditioned problem; then the centre moves to
w, and the next kappa is computed from sums of the pass. With kappa = 0 this is plain coordinate descent, bit for bit.
Objectives, gap and certificate are those of the original problem, at alpha and at the point w where a pass ended:
``P(w) - D(alpha) = Σ phi_i(w) + ½‖w - w(alpha)‖²``.

Sources: Shalev-Shwartz & Zhang, Math. Programming 155 (2016); Lin, Mairal & Harchaoui, JMLR 18 (2018); Güler, SIAM J.
Optim. 2 (1992). The rule for kappa is our own: it balances the inner gap and the movement of w, within bounds that are
computed from the nonzero dual variables and adapted to the cosine of successive movements: about -0.5 indicates noise
(kappa too small), near 1 drift (kappa too large).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ..core.parallel import Threads
from ..dataset.dataset import Dataset
from ..kernels import weights as weight_kernels
from ..kernels.loss_table import LOG_LOSS, LOSSES, PLANES
from ..kernels.primitives import Total
from ..kernels.weights import ALPHA_NORM, MOVED, N_BUCKETS, NORM, Movement
from .problem import Problem
from .protocol import ROUNDING, Array, State

LEAST_KAPPA = 1e-3
MOST_KAPPA = 1e9

_FIRST_SHARE, _MOST_FIRST_KAPPA = 0.1, 3.0  # of the mean of C_i q_i; where the alpha in use are not known yet
_COUPLING = 0.3  # rows that disturb each other (S large) want a smaller kappa: f = min(1, this/S)
_SPAN = 2.0  # kappa is within this factor of theta f A
_EARLY_PASSES = 4
_EARLY_CHANGE = math.log(8.0)  # the largest change of log kappa after each of them
_LATE_CHANGE, _CHANGE_SHARE = 0.26, 3.0  # min(first, second/c) after pass c
_COSINE = 0.2  # of two movements in a row, where kappa is best
_THETA_RATE, _THETA_SHARE = 0.3, 10.0  # log theta changes by min(first, second/c) (cosine - ...)
_MOST_THETA = 10.0  # 500 times the least
_BALANCED = 10.0  # theta falls only where the inner gap is below this many times the movement
RECALL_EVERY = 4  # passes; see `primitives.PATIENCE`
_FIRST_STRETCHES = (
    8  # of the first pass, of as many entries a weight: each ends with a sweep over the weights
)

TOLD = ("kappa", "extrapolation")
"""Arrays of lanes that results and the log have, where they are; the second is a primal method's."""

ARRAYS = (
    Array(
        "centre_or_w_alpha",
        "centre of the proximal point while `in_pass`, else w(alpha)",
        axes=("features", "vectors"),
    ),
    Array("in_pass", "w is the iterate of an unfinished training read", bool),
    Array("kappa", "strength of the proximal point"),
    Array("theta", "factor on the bounds of kappa; 0 if kappa is fixed"),
    Array("moves", "finished training reads", int),
    Array("earlier_moves", "those counted as made before a warm start", int),
    Array("distance", "the penalty's term of the gap, ½‖w - w(alpha)‖²"),
    Array("w_alpha_square", "‖w(alpha)‖²"),
    Array("alpha_sum", "Σ a, see `primitives.Total.ALPHA`"),
    Array("alpha_curvature", "Σ a² q, of the same rows"),
    Array("alpha_square", "Σ a² q, of all rows"),
    Array("movement", "sketch of the last movement of w", axes=("lanes", N_BUCKETS)),
    Array("cosine", "of the last two movements"),
)
"""State of acceleration, and of a free bias."""


class Acceleration:
    """Centres and kappa of the lanes of a solver over rows; `kappa` is fixed, or "auto" for the rule."""

    def __init__(self, problem: Problem, kappa: float | str, dataset: Dataset) -> None:
        entry = LOSSES[problem.loss]
        self._problem = problem
        self._width = problem.lane_vectors
        # the first pass has stretches; hinge takes as many passes to 1e-3 with them, and more to 1e-4
        self._ramps = entry.smooth
        self._most = np.full(problem.n_lanes, np.inf)
        self.adapts = kappa == "auto"
        if not self.adapts:
            self.first_kappa = np.full(problem.n_lanes, float(kappa))
            return
        square = ((problem.free_bias and dataset.centre) or dataset).mean_square
        # the mean of C_i over each lane's rows; weights of rows are unknown
        n_rows = np.array([dataset.n_rows]) if dataset.class_counts is None else dataset.class_counts
        mean_cost = np.empty(problem.n_lanes)
        # by blocks: an array of classes and lanes has the square of the classes' number, which may be thousands
        for first in range(0, problem.n_lanes, 64):
            lanes = slice(first, first + 64)
            cost = problem.cost[:, lanes]
            if problem.form == PLANES:
                cost = np.where(problem.sign[:, lanes] < 0, 0.5 * cost, cost)
            counts = np.where(cost > 0, n_rows[:, None], 0)
            mean_cost[lanes] = (cost * counts).sum(axis=0) / np.maximum(counts.sum(axis=0), 1)
        curvature = mean_cost * ((1.0 if square is None else square) + problem.bias**2)
        share = _FIRST_SHARE / 8 if entry.kind == LOG_LOSS else _FIRST_SHARE
        self.first_kappa = np.clip(share * curvature, LEAST_KAPPA, _MOST_FIRST_KAPPA)
        # alpha grows with the targets, where it has no bounds; the curvature, that of squared errors at most, does not
        if entry.has_targets and entry.smooth:
            # rows are in random order: the first chunk tells of their weights
            weight = dataset.read_rows(0, ("weight",))[0].mean() if dataset.weighted else 1.0
            self._most = 2.0 * weight * curvature

    def begin_pass(self, state: State, lanes: np.ndarray, threads: Threads) -> None:
        """Move the centres of lanes that begin a training read: ``v, w = w, (w(alpha) + kappa w)/(1 + kappa)``."""
        new = lanes[~state.in_pass[lanes]]
        if not new.size:
            return
        penalised = self._problem.penalised
        columns = self._problem.vectors[new].reshape(-1)
        kappa = np.repeat(state.kappa, self._width)
        n_parts = threads.parts(state.w.size)
        arrays = [np.array_split(of[penalised], n_parts) for of in (state.w, state.centre_or_w_alpha)]
        each = zip(*arrays, strict=True)
        threads.run([partial(weight_kernels.begin_pass, *part, columns, kappa) for part in each])
        if self._problem.free_bias:  # it has a centre of its own, with 1 + kappa for kappa (`free_bias`)
            bias = state.w[-1]
            centre = state.centre_or_w_alpha[-1]
            mu = 1.0 + kappa[columns]
            bias[columns], centre[columns] = centre[columns] / mu + bias[columns], bias[columns]
        state.in_pass[new] = True

    def end_pass(self, state: State, trained: np.ndarray, threads: Threads) -> None:
        """Leave w and w(alpha) where a training read ended, and measure the read.

        With the centre v, m = w - v and the m₀ of the read before, n rows visited, kernels counting with q/mu::

            w(alpha) = mu w - kappa v          (of a free bias: mu (b - c))
            distance = ½ ‖w - w(alpha)‖² = ½ kappa² ‖m‖²
            cosine   = m·m₀ / (‖m‖ ‖m₀‖)       (of their sketches)
            v_error  + ROUNDING (mu √((n + 9) ‖w‖²) + 3 mu ‖m‖ + √(Σ a² q))

        The last is the rounding of w(alpha), that of the read's steps, times mu.
        """
        n_lanes = state.kappa.size
        n_vectors = state.w.shape[1]
        vector_sums = np.zeros((3, n_vectors))
        sketch = np.zeros((N_BUCKETS, n_lanes))
        penalised = self._problem.penalised
        points = state.w[penalised], state.centre_or_w_alpha[penalised]
        vector_kappa = np.repeat(state.kappa, self._width)
        parts = np.array_split(trained, min(threads.parts(state.w.size), trained.size))
        calls = []
        for part in parts:  # a lane has sums of its own
            movement = Movement(vector_sums, sketch, np.empty(n_vectors))
            calls.append(partial(weight_kernels.end_pass, *points, part, vector_kappa, movement))
        threads.run(calls)
        sums = vector_sums.reshape(3, n_lanes, -1).sum(axis=2)
        kappa = state.kappa[trained]
        mu = 1.0 + kappa
        if self._problem.free_bias:
            columns = self._problem.vectors[trained].reshape(-1)
            centre = state.centre_or_w_alpha[-1]
            centre[columns] = np.repeat(mu, self._width) * (state.w[-1, columns] - centre[columns])
        state.in_pass[trained] = False
        state.moves[trained] += 1
        for block in np.array_split(trained, 1 + trained.size // 64):
            moved = np.ascontiguousarray(sketch[:, block].T)
            before = state.movement[block]
            products, *squares = (
                np.einsum("ij,ij->i", *pair) for pair in ((moved, before), (moved, moved), (before, before))
            )
            norms = np.sqrt(squares[0] * squares[1])
            state.cosine[block] = np.divide(products, norms, out=np.zeros(norms.size), where=norms > 0)
            state.movement[block] = moved
        totals = state.totals[trained]
        state.distance[trained] = 0.5 * kappa**2 * sums[MOVED, trained]
        state.w_alpha_square[trained] = sums[ALPHA_NORM, trained]
        state.alpha_sum[trained] += totals[:, Total.ALPHA]
        state.alpha_curvature[trained] += totals[:, Total.ALPHA_CURVATURE] * mu
        state.alpha_square[trained] += totals[:, Total.ALPHA_SQUARE] * mu
        steps = mu * np.sqrt((totals[:, Total.N_VISITED] + 9.0) * sums[NORM, trained])
        end = 3.0 * mu * np.sqrt(sums[MOVED, trained])
        state.v_error[trained] += ROUNDING * (steps + end + np.sqrt(state.alpha_square[trained]))

    def first_stretches(self, state: State, lanes: np.ndarray, n_rows: int, n_entries: int) -> np.ndarray:
        """Return where stretches of the first window of the first pass end, after which kappa is set anew; else nothing.

        Their lengths grow, as kappa has to by a factor of 10 to 100 from its first value: without them it takes four passes,
        and the smooth losses take one or two more to 1e-3.
        There are none after a warm start, or where sweeps over the weights would take long beside the `n_entries` of a pass.
        """
        begun = state.moves[lanes].any() or state.w[self._problem.penalised].any()
        sweeps = n_entries // (_FIRST_STRETCHES * state.w.size)
        if begun or not (self.adapts and self._ramps) or sweeps < _FIRST_STRETCHES:
            return np.zeros(0, dtype=np.int64)
        shares = np.arange(1, _FIRST_STRETCHES) / _FIRST_STRETCHES
        ends = (n_rows * shares**3).astype(np.int64)
        return ends[ends > 0]

    def set_kappa(self, state: State, lanes: np.ndarray, inner_gap: np.ndarray) -> None:
        """Balance inner gap and movement by kappa, within bounds computed from alpha; adapt their factor theta.

        In pass p, with ``ratio = inner gap / distance``::

            rise    = log 8 if p <= 4, else min(0.26, 3/p)
            fall    = rise; log 8 where ratio < ¼ in the first four passes after a warm start
            theta   → theta exp(min(0.3, 10/p) (0.2 - cosine)), from 0.02 to 10: if p > 4, and down only where ratio < 10
            middle  = theta min(Σ a² q / Σ a, most) min(1, 0.3 / coupling),  coupling = ‖w(alpha)‖² / Σ a² q
            kappa   → kappa exp(½ log ratio, from -fall to rise), from middle/2 to 2 middle

        and, if p > 4, no faster by these bounds than by rise and fall.
        """
        used = (state.distance > 0.0) & np.isfinite(state.distance)
        used &= (state.alpha_sum > 0.0) & (state.alpha_square > 0.0)
        lanes = lanes[used[lanes]]
        n_moves = state.moves[lanes]
        n_passes = np.maximum(n_moves + state.earlier_moves[lanes], 1)
        early = n_passes <= _EARLY_PASSES
        ratio = np.maximum(inner_gap[lanes], 0.0) / state.distance[lanes]

        rise = np.where(early, _EARLY_CHANGE, np.minimum(_LATE_CHANGE, _CHANGE_SHARE / n_passes))
        far_too_large = (ratio < 0.25) & (n_moves <= _EARLY_PASSES)
        fall = np.where(far_too_large, _EARLY_CHANGE, rise)

        beyond = _COSINE - state.cosine[lanes]
        rate = np.minimum(_THETA_RATE, _THETA_SHARE / n_passes)
        theta = state.theta[lanes]
        moved = np.clip(theta * np.exp(rate * beyond), _MOST_THETA / 500.0, _MOST_THETA)
        theta = np.where(~early & ((beyond > 0.0) | (ratio < _BALANCED)), moved, theta)

        curvature = np.minimum(state.alpha_curvature[lanes] / state.alpha_sum[lanes], self._most[lanes])
        coupling = state.w_alpha_square[lanes] / state.alpha_square[lanes]
        middle = theta * curvature * np.minimum(1.0, _COUPLING / coupling)

        old = state.kappa[lanes]
        kappa = old * np.exp(np.clip(0.5 * np.log(ratio), -fall, rise))
        kappa = np.clip(kappa, middle / _SPAN, middle * _SPAN)
        slow = np.clip(kappa, old * np.exp(-fall), old * np.exp(rise))
        state.theta[lanes] = theta
        state.kappa[lanes] = np.clip(np.where(early, kappa, slow), LEAST_KAPPA, MOST_KAPPA)


def restores_rows_after(state: State, training: np.ndarray) -> bool:
    """Tell whether shrunk rows of an accelerated lane return when it ends the pass that it is in."""
    return "kappa" in state.declared and bool(((state.passes[training] + 1) % RECALL_EVERY == 0).any())
