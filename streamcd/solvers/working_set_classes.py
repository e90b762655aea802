"""Working sets of columns for multinomial logistic regression: one class's weights at a time.

Beside fixed weights of the other classes the problem in those of one is a logistic regression, of the row's class against
the others, whose scores are less ``log Σ exp(z_m)`` over the others: held columns are solved for as those of two classes
are. What is added to a feature's weights of all classes alike changes no probability: the penalty alone chooses it.
Source: Friedman, Hastie, Tibshirani, J. Stat. Software 33 (2010), sections 4 and 4.1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels import class_columns as kernels
from ..kernels.class_columns import CLASS_COST, N_CLASS_SUMS, PULL_SQUARES, PULL_SUM, ClassRows
from ..kernels.columns import ColumnCosts, Columns, Scores
from ..kernels.loss_table import LOG_LOSS, Loss
from ..kernels.primal import N_SUMS
from .class_biases import mixture
from .class_support import ClassProblem, SupportStep
from .held_solution import HeldProblem, HeldSolution
from .primal import costs_of_kinds
from .problem import Problem
from .protocol import State
from .working_set import Held, Read, Until, WorkingSetSolver

_CLASS_SOLVED = 0.1  # of a class's gap at the start of its turn, to which it is solved
_MOST_TURNS = 100  # of every class
_FEATURES = 4096  # whose common parts are chosen at a time


class MultinomialWorkingSetSolver(WorkingSetSolver):
    """`WorkingSetSolver` for lanes of all classes."""

    def __init__(self, problem: Problem, dataset: Dataset, seed: int) -> None:
        super().__init__(problem, dataset, seed)
        shape = problem.n_lanes, problem.lane_vectors
        self._t, self._rho = np.zeros(shape[0]), np.zeros(shape)  # see `kernels.class_columns`

    def load_row_kernels(self, scores: Scores, columns: Columns) -> ColumnCosts:
        """See `WorkingSetSolver.load_row_kernels`."""
        k = self.problem.lane_vectors
        none, rho, rows = np.zeros((k, 0)), np.zeros(k), self._rows(0, scores.kind, scores.weight)
        scratch = np.empty((3, k))
        kernels.set_class_pull(none, rows, 0.0, rho, none, np.zeros((N_CLASS_SUMS, k)), scratch)
        kernels.add_class_terms(none, none, rows, (0.0, 1.0), rho, np.zeros(N_SUMS), scratch)
        kernels.other_classes(none, 0, scores.score)
        offsets, w = np.zeros(0, dtype=np.int64), np.zeros((k, 1))
        self._support_step(0, rows, none, (columns, offsets, w)).load_kernels()
        costs: ColumnCosts = self._new_costs()[0][0]
        return costs

    def _new_costs(self) -> list[Any]:
        """Return the costs of every lane: a list of those of each class against the others."""
        problem, costs = self.problem, costs_of_kinds(self.problem, self.problem.cost)
        label, rest = self._labels_of_kinds(), (Loss(LOG_LOSS), problem.bias, problem.free_bias)
        return [
            [
                ColumnCosts(np.where(label == m, own, -own)[:, None], *rest)
                for m in range(problem.lane_vectors)
            ]
            for own in costs.T
        ]

    def _labels_of_kinds(self) -> np.ndarray:
        n_kinds = self.problem.n_kinds * max(self.problem.n_folds, 1)
        return np.arange(n_kinds) // max(self.problem.n_folds, 1)

    def _rows(self, lane: int, kind: np.ndarray, weight: np.ndarray) -> ClassRows:
        cost = costs_of_kinds(self.problem, self.problem.cost)[:, lane]
        return ClassRows(kind, weight, np.ascontiguousarray(cost), self._labels_of_kinds())

    # -- a read

    def begin_lane(self, state: State, lane: int, read: Read) -> None:
        """See `WorkingSetSolver.begin_lane`; shares are mixed so that each class has a pull of 0 where biases are free."""
        own, k = self._vectors_of(lane), self.problem.lane_vectors
        scores, pull, rows = state.rows["score"][own], read.pull[own], self._lane_rows(lane)
        sums, scratch = np.zeros((N_CLASS_SUMS, k)), np.empty((3, k))
        self._t[lane], self._rho[lane] = 0.0, 0.0
        most = kernels.set_class_pull(scores, rows, 0.0, self._rho[lane], pull, sums, scratch)
        if self.problem.free_bias and sums[CLASS_COST].any():
            self._t[lane], self._rho[lane] = mixture(sums[CLASS_COST], sums[PULL_SUM])
            sums[:] = 0.0
            kernels.set_class_pull(scores, rows, self._t[lane], self._rho[lane], pull, sums, scratch)
        read.size[own], read.most[lane] = np.sqrt(sums[PULL_SQUARES]), most
        read.v[own, -1] = self.problem.bias * sums[PULL_SUM]

    def _lane_rows(self, lane: int) -> ClassRows:
        assert self._constants is not None
        return self._rows(lane, *self._constants[:2])

    # -- the end of a read

    def add_row_terms(self, state: State, lane: int, read: Read) -> np.ndarray:
        """See `WorkingSetSolver.add_row_terms`."""
        own, sums, mix = self._vectors_of(lane), np.zeros(N_SUMS), (self._t[lane], read.share[lane])
        rows = state.rows["score"][own], read.fresh[own], self._lane_rows(lane)
        kernels.add_class_terms(*rows, mix, self._rho[lane], sums, np.empty((3, self._rho.shape[1])))
        return sums

    def steepest(self) -> float:
        """Return the largest curvature of the loss of a row of cost 1 in the scores of its classes."""
        return 0.5

    def smaller_share(self) -> np.ndarray:
        """Return the share of the smallest class."""
        counts = self._class_counts
        assert counts is not None
        return np.full(self.problem.n_lanes, max(counts.min(), 1) / max(counts.sum(), 1))

    def _support_step(
        self, lane: int, rows: ClassRows, score: np.ndarray, held: tuple[Columns, np.ndarray, np.ndarray]
    ) -> SupportStep:
        return SupportStep(ClassProblem(score, rows, *held, self.problem.bias, self.penalty(lane)))

    def solve_lane(self, lane: int, read: Read, score: np.ndarray, held: Held, until: Until) -> None:
        """See `WorkingSetSolver.solve_lane`: the classes take turns, until their gaps are a part of what they were."""
        assert self._constants is not None
        key, solved, most_swept = until
        w, features = read.moved[self._vectors_of(lane)], np.append(held[0].feature[held[1]], -1)
        together = self._support_step(lane, self._lane_rows(lane), score, (*held, w))
        others, own = np.empty((2, score.shape[1]))
        at_least = max(_CLASS_SOLVED, solved)
        scores, norm, goal, swept = Scores(own, own, *self._constants), read.norm, 0.0, 0.0
        for turn in range(_MOST_TURNS):
            gap, before = 0.0, swept
            for m in range(len(score)):
                kernels.other_classes(score, m, others)
                np.subtract(score[m], others, out=own)
                parts = scores, self._costs[lane][m], self.penalty(lane)
                own_key, most = (*key, turn, m), most_swept - before
                of_class = HeldProblem(*parts, *held, w[m], norm, None, own_key, at_least, most)
                of_gap, n = HeldSolution(of_class).solve()
                gap, swept = gap + of_gap, swept + n / len(score)
                np.add(own, others, out=score[m])
            share_out(w, features, self.penalty(lane))
            goal = goal or solved * gap
            if gap <= goal or swept >= most_swept:
                return
            swept += together.move()


def share_out(w: np.ndarray, features: np.ndarray, penalty: tuple[float, float, bool]) -> None:
    """Take from a feature's weights in all classes what makes the penalty least; `w` is (classes, features + 1)."""
    l1, l2, is_free = penalty
    for start in range(0, features.size, _FEATURES):
        chosen = features[start : start + _FEATURES]
        chosen = chosen[(chosen >= 0) | (not is_free)]
        chosen = chosen[w[:, chosen].any(axis=0)]
        w[:, chosen] -= common_part(w[:, chosen], l1, l2)


def common_part(w: np.ndarray, l1: float, l2: float) -> np.ndarray:
    """Return t of each column of `w` that makes ``Σ_m l1 |w_m - t| + ½ l2 (w_m - t)²`` least, of several the nearest to 0.

    With k weights it is the median of them and of the k + 1 points to which the squares would move it, were all differences
    of the signs that they have in an interval. Source: Li and Osher, Communications in Information Systems 9 (2009).
    """
    k = len(w)
    if l1 == 0.0:
        return np.asarray(w.mean(axis=0))
    if l2 > 0.0:
        steps = l1 / (l2 * k) * (k - 2.0 * np.arange(k + 1))
        return np.asarray(np.median(np.concatenate([w, w.mean(axis=0) + steps[:, None]]), axis=0))
    w = np.sort(w, axis=0)
    return np.asarray(np.clip(0.0, w[(k - 1) // 2], w[k // 2]))
