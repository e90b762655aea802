"""The multiclass SVM of Crammer and Singer by a sequential dual method (`kernels/crammer_singer`).

Source: Keerthi et al., KDD 2008. A lane has a weight vector, a dual variable of each row and an active flag per class.
"""

from __future__ import annotations

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels import crammer_singer as crammer_singer_kernels
from ..kernels.crammer_singer import ClassScratch, LaneColumns
from ..stream.window import Window
from .acceleration import Acceleration
from .dual import RowSolver, acceleration_numbers, rows_of, shuffled_active_rows, variables_of, violation
from .problem import Problem
from .protocol import CERTIFY, START, TRAIN, State, all_rows


class CrammerSingerSolver(RowSolver):
    """Sequential dual method: each row's problem over its classes is solved exactly.

    Parameters
    ----------
    problem : Problem
    acceleration : Acceleration, optional
    """

    def __init__(self, problem: Problem, acceleration: Acceleration | None = None) -> None:
        super().__init__(problem, acceleration=acceleration)
        self._scratch = ClassScratch(*np.empty((3, problem.classes.size)))

    def new_state(self) -> State:
        """Return the state before the first read."""
        return self.start_state({"shrink_tolerance": np.ones(self.problem.n_lanes)}, TRAIN)

    def load_kernels(self, dataset: Dataset, state: State) -> None:
        """Do nothing: with windows for a budget of 350 MB the peak was 292 MB while these kernels were compiled."""

    def visit(self, window: Window, state: State, order: np.ndarray, key: np.uint64) -> None:
        """Certify lanes at their fixed w, then train the others, one lane after another."""
        arguments = (rows_of(window), self.costs, variables_of(window, state))
        for lane in state.phase(START, CERTIFY).tolist():
            columns = LaneColumns(lane, self.columns(lane).start, self.n_vectors)
            sums = (state.w_alpha.reshape(-1), state.totals, self._scratch.margin)
            crammer_singer_kernels.crammer_singer_certify(all_rows(window, order), *arguments, columns, *sums)
        training = state.phase(TRAIN)
        self.begin_pass(state, training)
        inverse_mu, uncounted = acceleration_numbers(state)
        for lane in training.tolist():
            own = self.columns(lane)
            numbers = (float(inverse_mu[lane]), float(uncounted[lane]))
            columns = LaneColumns(lane, own.start, self.n_vectors, *numbers)
            chosen = shuffled_active_rows(window, np.arange(own.start, own.stop), order, key)
            crammer_singer_kernels.crammer_singer_visit(
                chosen, *arguments, columns, state.totals, self._scratch
            )

    def end_read(self, state: State, trained: np.ndarray) -> None:
        """Restore shrunk rows of lanes whose active ones are solved to the shrink tolerance, which is then halved."""
        kept = state.lanes
        seen = violation(state.totals)
        for lane in trained:
            # not a lane that is certified next: a read at fixed w does not write the states of rows back
            open_lane = kept["phase"][lane] == TRAIN and kept["shrunk"][lane] and not kept["restore"][lane]
            if open_lane and seen[lane] < kept["shrink_tolerance"][lane]:
                kept["restore"][lane] = True
                kept["shrunk"][lane] = False
                kept["shrink_tolerance"][lane] *= 0.5
        if self.acceleration:
            self.acceleration.update_kappa(state, trained)
            self.acceleration.recall_rows(state, trained)
