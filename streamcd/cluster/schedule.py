"""The schedule of a distributed training: joint rounds of all workers, alternating with passes of one worker alone.

Joint rounds reach the optimum of the dual long before that of w: each worker steps as if the others stood still, and where
the loss has a kink (hinge) the errors that this leaves in w weigh in the primal in full. One worker alone makes the passes
of a single process, of which one can be enough (imdb, hinge, 4 workers: after 99 rounds it took the gap from 6.7e-5 to
7.9e-6). Which of the two is faster from a point on cannot be known. So after a certificate has failed, or after more rounds
than training takes that converges well, each gets half of the time, in turns that grow: from there the training takes about
twice as long as the better of the two alone.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

ROUNDS_BEFORE_SOLO = 128
"""Joint rounds before the first solo turn: 1e-3 took 2 to 103 for most sets and losses (docs/cluster.md)."""

MIN_JOINT_PASSES = 4
"""Solo passes whose time joint rounds take at the least before the first solo turn, which is short beside them."""


@dataclass
class RoundSchedule:
    """Turns of one training."""

    rounds: int = 0  # joint rounds before the first solo turn
    failed: bool = False  # whether a certificate has failed in them
    passes: int = 0  # length of a turn in reads of all data by one worker; 0 before the first solo turn
    alone: bool = False  # whether the current turn is a solo turn
    left: int = 0  # rounds left in the turn
    n_together: int = 1  # workers in the last joint round; 1 where there was none
    was_alone: bool = False  # whether the last round was part of a solo turn

    @classmethod
    def from_array(cls, array: np.ndarray) -> RoundSchedule:
        """Restore what `to_array` returned."""
        rounds, failed, passes, alone, left, n_together, was_alone = array.tolist()
        return cls(rounds, bool(failed), passes, bool(alone), left, n_together, bool(was_alone))

    def to_array(self) -> np.ndarray:
        """Pack the schedule for a checkpoint."""
        return np.array(astuple(self), dtype=np.int64)

    def certificate_failed(self, local_passes: int) -> None:
        """Begin solo turns soon, if they have not begun."""
        self.failed = True
        self._begin_if_due(local_passes)

    def trained(self, n_workers: int, local_passes: int) -> None:
        """Count a training round of `n_workers`."""
        self.was_alone = self.alone
        if not self.alone:
            self.n_together = n_workers
        if not self.passes:
            self.rounds += 1
            self._begin_if_due(local_passes)
            return
        self.left -= 1
        if self.left:
            return
        self.alone = not self.alone
        if self.alone:
            self.passes *= 2
        self.left = self.passes if self.alone else self._joint_rounds(self.passes, local_passes)

    def _begin_if_due(self, local_passes: int) -> None:
        least = self._joint_rounds(MIN_JOINT_PASSES, local_passes)
        due = self.rounds >= (least if self.failed else max(least, ROUNDS_BEFORE_SOLO))
        if due and not self.passes and self.n_together > 1:
            self.passes = self.left = 1
            self.alone = True

    def _joint_rounds(self, passes: int, local_passes: int) -> int:
        """Return the joint rounds that take as long as `passes` solo passes over all data."""
        return -(-passes * self.n_together // local_passes)
