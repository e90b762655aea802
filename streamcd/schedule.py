"""Whose turn it is in a distributed training: all workers together, or one of them alone.

Rounds of several workers have the optimum's dual long before its w: each steps as if the others stood still, and where the
loss has a kink (hinge) the errors of w that this leaves weigh in the primal in full. One worker alone makes the passes of a
single process, of which one may do (imdb, hinge, 4 workers: after 99 rounds it took the gap from 6.7e-5 to 7.9e-6). Which
of the two is faster from a point on cannot be known, so after a certificate has failed, or when what converges well would
be done, half of the time goes to each, in turns that grow: from there about twice what the better one takes.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

_PATIENCE = 128
"""Rounds of all workers before the first turn of one: 1e-3 took 2 to 103 for most sets and losses (docs/cluster.md)."""

_WARRANT = 4
"""Reads of all data in whose time all workers have come to no certificate before: the first turn is short beside it."""


@dataclass
class Turns:
    """The turns of one training.

    Attributes
    ----------
    rounds : int
        Of all workers, before the first turn.
    failed : bool
        Whether a certificate has failed in them.
    passes : int
        Reads of all data that one turn takes the time of; 0 before there are turns.
    alone : bool
        Whether it is one worker's turn.
    left : int
        Rounds left of the turn.
    n_together : int
        Workers in the last round of several; 1 where there was none.
    was_alone : bool
        Whether the last round was a turn of one worker.
    """

    rounds: int = 0
    failed: bool = False
    passes: int = 0
    alone: bool = False
    left: int = 0
    n_together: int = 1
    was_alone: bool = False

    @classmethod
    def from_array(cls, array: np.ndarray) -> Turns:
        """As `to_array` gave it."""
        rounds, failed, passes, alone, left, n_together, was_alone = array.tolist()
        return cls(rounds, bool(failed), passes, bool(alone), left, n_together, bool(was_alone))

    def to_array(self) -> np.ndarray:
        """For a checkpoint."""
        return np.array(astuple(self), dtype=np.int64)

    def certificate_failed(self, local_passes: int) -> None:
        """Begin to take turns soon, if that has not begun."""
        self.failed = True
        self._begin_if_due(local_passes)

    def trained(self, n_workers: int, local_passes: int) -> None:
        """Count a round of so many workers."""
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
        self.left = self.passes if self.alone else self._rounds_in(self.passes, local_passes)

    def _begin_if_due(self, local_passes: int) -> None:
        patience = self._rounds_in(_WARRANT, local_passes)
        due = self.rounds >= (patience if self.failed else max(patience, _PATIENCE))
        if due and not self.passes and self.n_together > 1:
            self.passes = self.left = 1
            self.alone = True

    def _rounds_in(self, passes: int, local_passes: int) -> int:
        """Rounds of all workers in the time that one worker takes for passes over all data."""
        return -(-passes * self.n_together // local_passes)
