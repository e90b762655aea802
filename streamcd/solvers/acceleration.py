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
from collections.abc import Mapping
from functools import partial

import numpy as np

from ..core.parallel import Threads
from ..dataset.dataset import Dataset
from ..kernels import weights as weight_kernels
from ..kernels.loss_table import LOG_LOSS, LOSSES, PLANES
from ..kernels.primitives import Total
from ..kernels.weights import ALPHA_NORM, MOVED, N_BUCKETS, NORM, Movement
from .problem import Problem
from .protocol import TRAIN, State, deviation

LEAST_KAPPA, MOST_KAPPA = 1e-3, 1e9

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
_RECALL_EVERY = 4  # passes; see `primitives.PATIENCE`
_FIRST_STRETCHES = (
    8  # of the first pass, of as many entries a weight: each ends with a sweep over the weights
)

TOLD = ("kappa", "extrapolation")
"""Arrays of lanes that results and the log tell of, where they are; the second is a primal method's."""


class Acceleration:
    """Centres and kappa of the lanes of a solver over rows; `asked` is a fixed kappa, or "auto" for the rule."""

    def __init__(self, problem: Problem, asked: float | str, dataset: Dataset) -> None:
        entry, n_lanes = LOSSES[problem.loss], problem.n_lanes
        # the first pass has stretches; hinge takes as many passes to 1e-3 with them, and more to 1e-4
        self._problem, self._width, self._ramps = problem, problem.lane_vectors, entry.smooth
        self.adapts, self._most = asked == "auto", np.full(n_lanes, np.inf)
        if not self.adapts:
            self._first = np.full(n_lanes, float(asked))
            return
        square = ((problem.free_bias and dataset.centre) or dataset).mean_square
        curvature = _mean_cost(problem, dataset) * ((1.0 if square is None else square) + problem.bias**2)
        share = _FIRST_SHARE / 8 if entry.kind == LOG_LOSS else _FIRST_SHARE
        self._first = np.clip(share * curvature, LEAST_KAPPA, _MOST_FIRST_KAPPA)
        # alpha grows with the targets, where it has no bounds; the curvature, that of squared errors at most, does not
        if entry.has_targets and entry.smooth:
            # rows are in random order: the first chunk tells of their weights
            weight = dataset.read_rows(0, ("weight",))[0].mean() if dataset.weighted else 1.0
            self._most = 2.0 * weight * curvature

    def add_to(self, state: State) -> None:
        """Add the arrays of acceleration to a new state: ``centre_or_w_alpha``, which holds
        the centre v while ``in_pass`` is set, else w(alpha) (see `kernels.weights`), and per lane:

        ``in_pass``, set while w is the iterate of an unfinished training read; ``moves``, the number of finished ones, and
        ``earlier_moves``, of those counted as made before a warm start;
        ``distance``, the penalty's term of the gap, ``½‖w - w(alpha)‖²``; ``theta``, the factor on the bounds of kappa, 0 if
        kappa is fixed.
        """
        n_lanes = self._first.size
        state.matrices["centre_or_w_alpha"] = np.zeros(state.w.shape)
        of_pass = ("distance", "w_alpha_square", "cosine")
        of_rows = ("alpha_sum", "alpha_curvature", "alpha_square")
        state.lanes.update({name: np.zeros(n_lanes) for name in (*of_pass, *of_rows)})
        state.lanes["kappa"], state.lanes["theta"] = self._first.copy(), np.full(n_lanes, float(self.adapts))
        state.lanes["in_pass"] = np.zeros(n_lanes, dtype=bool)
        for name in ("moves", "earlier_moves"):
            state.lanes[name] = np.zeros(n_lanes, dtype=np.int64)
        state.matrices["movement"] = np.zeros((n_lanes, N_BUCKETS))

    def begin_pass(self, state: State, lanes: np.ndarray, threads: Threads) -> None:
        """Move the centres of lanes that begin a training read."""
        kept, new = state.lanes, lanes[~state.lanes["in_pass"][lanes]]
        if not new.size:
            return
        w, beside = self._penalised(state)
        columns, kappa = self._problem.columns(new), np.repeat(kept["kappa"], self._width)
        begin = weight_kernels.begin_pass
        threads.share(lambda rows: begin(w[rows], beside[rows], columns, kappa), w.shape[0], w.size)
        if self._problem.free_bias:  # it has a centre of its own, with 1 + kappa for kappa (`free_bias`)
            bias, centre, mu = state.w[-1], state.matrices["centre_or_w_alpha"][-1], 1.0 + kappa[columns]
            bias[columns], centre[columns] = centre[columns] / mu + bias[columns], bias[columns]
        kept["in_pass"][new] = True

    def _penalised(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        rows = self._problem.penalised
        return state.w[rows], state.matrices["centre_or_w_alpha"][rows]

    def end_pass(self, state: State, trained: np.ndarray, threads: Threads) -> None:
        """Measure the movement by a training read, and leave w at the point that a certificate would refer to."""
        kept, previous, n_lanes = state.lanes, state.matrices["movement"], self._first.size
        n_vectors, sketch = n_lanes * self._width, np.zeros((N_BUCKETS, n_lanes))
        sums, kappas = np.zeros((3, n_vectors)), np.repeat(kept["kappa"], self._width)
        n_parts = min(threads.parts(state.w.size), trained.size)
        end = partial(weight_kernels.end_pass, *self._penalised(state))
        calls = [
            partial(end, part, kappas, Movement(sums, sketch, np.empty(n_vectors)))
            for part in np.array_split(trained, n_parts)  # a lane has sums of its own
        ]
        threads.run(calls)
        sums = sums.reshape(3, n_lanes, -1).sum(axis=2)
        kappa = kept["kappa"][trained]
        mu, totals = 1.0 + kappa, state.totals[trained]  # kernels count with q/mu
        if self._problem.free_bias:
            columns, centre = self._problem.columns(trained), state.matrices["centre_or_w_alpha"][-1]
            centre[columns] = (1.0 + kappas[columns]) * (state.w[-1, columns] - centre[columns])
        kept["in_pass"][trained] = False
        kept["moves"][trained] += 1
        for block in np.array_split(trained, 1 + trained.size // 64):
            now, before = np.ascontiguousarray(sketch[:, block].T), previous[block]
            squares, others, products = (
                np.einsum("ij,ij->i", *pair) for pair in ((now, now), (before, before), (now, before))
            )
            norms = np.sqrt(squares * others)
            kept["cosine"][block] = np.divide(products, norms, out=np.zeros(norms.size), where=norms > 0)
            previous[block] = now
        kept["distance"][trained] = 0.5 * kappa**2 * sums[MOVED, trained]
        kept["w_alpha_square"][trained] = sums[ALPHA_NORM, trained]
        kept["alpha_sum"][trained] += totals[:, Total.ALPHA]
        kept["alpha_curvature"][trained] += totals[:, Total.ALPHA_CURVATURE] * mu
        kept["alpha_square"][trained] += totals[:, Total.ALPHA_SQUARE] * mu
        # w(alpha) is w, with the rounding of the pass's steps, times mu
        steps = mu * np.sqrt((totals[:, Total.N_VISITED] + 9.0) * sums[NORM, trained])
        size = steps + 3.0 * mu * np.sqrt(sums[MOVED, trained]) + np.sqrt(kept["alpha_square"][trained])
        kept["v_error"][trained] += deviation(size)

    def first_stretches(self, state: State, lanes: np.ndarray, n_rows: int, n_entries: int) -> np.ndarray:
        """Return where stretches of the first window of the first pass end, after which kappa is set anew; else nothing.

        Their lengths grow, as kappa has to by a factor of 10 to 100 from its first value: without them it takes four passes,
        and the smooth losses take one or two more to 1e-3.
        There are none after a warm start, or where sweeps over the weights would take long beside the `n_entries` of a pass.
        """
        begun = state.lanes["moves"][lanes].any() or state.w[self._problem.penalised].any()
        sweeps = n_entries // (_FIRST_STRETCHES * state.w.size)
        if begun or not (self.adapts and self._ramps) or sweeps < _FIRST_STRETCHES:
            return np.zeros(0, dtype=np.int64)
        shares = np.arange(1, _FIRST_STRETCHES) / _FIRST_STRETCHES
        ends = (n_rows * shares**3).astype(np.int64)
        return ends[ends > 0]

    def end_stretch(self, state: State, lanes: np.ndarray, gap: np.ndarray, threads: Threads) -> None:
        """Set kappa anew and move the centre, within the first pass; `gap` is the estimate from the stretch's rows."""
        self.end_pass(state, lanes, threads)
        state.totals[:, [Total.ALPHA, Total.ALPHA_CURVATURE, Total.ALPHA_SQUARE]] = 0.0
        self._set_kappa(state.lanes, lanes, gap)
        # the pass goes on
        state.lanes["moves"][lanes] = 0
        self.begin_pass(state, lanes, threads)

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Set kappa of the next pass, and reactivate all rows every few passes.

        Not in lanes certified next: that read does not write rows' states.
        """
        kept = state.lanes
        if self.adapts:
            self._set_kappa(kept, trained, state.totals[:, Total.GAP])
        due = (kept["passes"][trained] % _RECALL_EVERY == 0) & (kept["phase"][trained] == TRAIN)
        due &= kept["kappa"][trained] > 0.0
        kept["restore"][trained[due]], kept["shrunk"][trained[due]] = True, False

    def _set_kappa(self, kept: dict[str, np.ndarray], lanes: np.ndarray, inner_gap: np.ndarray) -> None:
        """Balance inner gap and movement, within bounds computed from alpha; adapt their factor theta to the cosine."""
        used = (kept["distance"] > 0.0) & np.isfinite(kept["distance"])
        used &= (kept["alpha_sum"] > 0.0) & (kept["alpha_square"] > 0.0)
        lanes = lanes[used[lanes]]
        distance, old, theta, cosine = (
            kept[name][lanes] for name in ("distance", "kappa", "theta", "cosine")
        )
        of_alpha = (kept[f"alpha_{name}"][lanes] for name in ("sum", "curvature", "square"))
        (alpha, curvature, square), n_moves = of_alpha, kept["moves"][lanes]
        n_passes = np.maximum(n_moves + kept["earlier_moves"][lanes], 1)
        early, ratio = n_passes <= _EARLY_PASSES, np.maximum(inner_gap[lanes], 0.0) / distance
        change = np.where(early, _EARLY_CHANGE, np.minimum(_LATE_CHANGE, _CHANGE_SHARE / n_passes))
        far_too_large = (ratio < 0.25) & (n_moves <= _EARLY_PASSES)  # after a warm start
        fall = np.where(far_too_large, _EARLY_CHANGE, change)
        beyond, rate = _COSINE - cosine, np.minimum(_THETA_RATE, _THETA_SHARE / n_passes)
        moved = np.clip(theta * np.exp(rate * beyond), _MOST_THETA / 500.0, _MOST_THETA)
        theta = np.where(~early & ((beyond > 0.0) | (ratio < _BALANCED)), moved, theta)
        coupling = kept["w_alpha_square"][lanes] / square
        middle = (
            theta * np.minimum(curvature / alpha, self._most[lanes]) * np.minimum(1.0, _COUPLING / coupling)
        )
        kappa = old * np.exp(np.clip(0.5 * np.log(ratio), -fall, change))
        kappa = np.clip(kappa, middle / _SPAN, middle * _SPAN)
        # late, the bounds move kappa no faster either
        slow = np.clip(kappa, old * np.exp(-fall), old * np.exp(change))
        kept["theta"][lanes] = theta
        kept["kappa"][lanes] = np.clip(np.where(early, kappa, slow), LEAST_KAPPA, MOST_KAPPA)


def recalls_after(lanes: Mapping[str, np.ndarray], training: np.ndarray) -> bool:
    """Tell whether shrunk rows of an accelerated lane return when it ends the pass that it is in."""
    return "kappa" in lanes and bool(((lanes["passes"][training] + 1) % _RECALL_EVERY == 0).any())


def _mean_cost(problem: Problem, dataset: Dataset) -> np.ndarray:
    """Compute the mean of C_i over each lane's rows; weights of rows are unknown."""
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
    return mean_cost


def weights_of_alpha(lanes: Mapping[str, np.ndarray], w: np.ndarray, beside: np.ndarray) -> np.ndarray:
    """Compute w(alpha) of every lane from rows of w and of ``centre_or_w_alpha``."""
    width = w.shape[1] // lanes["kappa"].size
    in_pass, kappa = (np.repeat(lanes[name], width) for name in ("in_pass", "kappa"))
    return np.where(in_pass, w + kappa * (w - beside), beside)
