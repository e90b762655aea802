"""Whose turn it is in a distributed training: all workers together, or one of them alone.

Rounds of several workers have the optimum's dual long before its w: each steps as if the others stood still, and where the
loss has a kink (hinge) the errors of w that this leaves weigh in the primal in full. One worker alone makes the passes of a
single process, of which one may do (imdb, hinge, 4 workers: after 99 rounds it took the gap from 6.7e-5 to 7.9e-6). Which
of the two is faster from a point on cannot be known, so from the first certificate that fails, or when what converges
well would be done, half of the time goes to each, in turns that grow: from there about twice what the better one takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_FIRST_PASSES = 1
_PATIENCE = 64
"""Rounds of all workers before the first turn of one: 1e-3 took 4 to 51 for most sets and losses (docs/cluster.md)."""


@dataclass
class Turns:
    """The turns of one training.

    Attributes
    ----------
    passes : int
        Reads of all data that one turn takes the time of; 0 before there are turns.
    alone : bool
        Whether it is one worker's turn.
    left : int
        Rounds left of the turn, or before the first one.
    n_together : int
        Workers in the last round of several; 1 where there was none.
    was_alone : bool
        Whether the last round was a turn of one worker.
    """

    passes: int = 0
    alone: bool = False
    left: int = _PATIENCE
    n_together: int = 1
    was_alone: bool = False

    @classmethod
    def from_array(cls, array: np.ndarray) -> Turns:
        """As `to_array` gave it."""
        passes, alone, left, n_together, was_alone = array.tolist()
        return cls(passes, bool(alone), left, n_together, bool(was_alone))

    def to_array(self) -> np.ndarray:
        """For a checkpoint."""
        return np.array([self.passes, self.alone, self.left, self.n_together, self.was_alone], dtype=np.int64)

    def certificate_failed(self) -> None:
        """Begin to take turns, if there are several workers and they have not begun yet."""
        if not self.passes and self.n_together > 1:
            self._begin()

    def trained(self, n_workers: int, local_passes: int) -> None:
        """Count a round of so many workers."""
        self.was_alone = self.alone
        if not self.alone:
            self.n_together = n_workers
        if n_workers == 1 and not self.alone:  # there are no others
            return
        self.left -= 1
        if self.left > 0:
            return
        if not self.passes:
            self._begin()
            return
        self.alone = not self.alone
        if self.alone:
            self.passes *= 2
        # a pass of one worker takes the time of so many of all
        self.left = self.passes if self.alone else -(-self.passes * self.n_together // local_passes)

    def _begin(self) -> None:
        self.passes = self.left = _FIRST_PASSES
        self.alone = True
