"""What carries out a round: one partition after another in this process; the module `cluster` does so on dask workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .block_steps import Change, add_direction, add_in_tree, deal_shards
from .dataset import Dataset
from .kernels import VIOLATION_MAX, VIOLATION_MIN
from .partition import Answer, Assignment, Order, Partition, open_same


class WorkersLost(Exception):
    """A worker went away, or came to a stop, in the middle of a round."""


@dataclass
class Joint:
    """The partitions' answers, added up.

    Attributes
    ----------
    totals, direction : ndarray
        As in `Answer`.
    change : Change
    w : ndarray or None
        Of the only partition, where there is one.
    seconds : dict of str to float
        What each worker was at work.
    bytes_read : int
        Asked of files, by all.
    bytes_sent : int
        Between processes: w out to the workers, changes in.
    n_passes : int
        That every partition made.
    """

    totals: np.ndarray
    direction: np.ndarray
    change: Change
    w: np.ndarray | None
    seconds: dict[str, float]
    bytes_read: int
    bytes_sent: int
    n_passes: int


class Engine(Protocol):
    """Carries rounds out."""

    def round(self, order: Order, w: np.ndarray, progress: Callable[[int], None]) -> Joint:
        """Let every partition work; raises `WorkersLost` where one cannot be had."""
        ...

    def slopes(self, order: Order, eta: np.ndarray) -> np.ndarray:
        """Sum of `Partition.slopes` over the partitions of the round that was just made."""
        ...

    def close(self) -> None:
        """Let go of what is held for this run."""
        ...


def join_answers(names: list[str], answers: list[Answer], change: Change, bytes_out: int) -> Joint:
    """Add up all but the changes, which a tree has added up already."""
    totals, sums = answers[0].totals.copy(), answers[0].direction.copy()
    for answer in answers[1:]:
        totals = _add_totals(totals, answer.totals)
        sums = add_direction(sums, answer.direction)
    w = answers[0].w if len(answers) == 1 else None
    last_leg = w.nbytes if w is not None else change.n_bytes
    return Joint(
        totals=totals,
        direction=sums,
        change=change,
        w=w,
        seconds={name: answer.seconds for name, answer in zip(names, answers, strict=True)},
        bytes_read=sum(answer.bytes_read for answer in answers),
        bytes_sent=bytes_out + change.moved_bytes + last_leg,
        n_passes=answers[0].n_passes,
    )


def _add_totals(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = a + b
    total[:, VIOLATION_MAX] = np.maximum(a[:, VIOLATION_MAX], b[:, VIOLATION_MAX])
    total[:, VIOLATION_MIN] = np.minimum(a[:, VIOLATION_MIN], b[:, VIOLATION_MIN])
    return total


def shard_entries(dataset: Dataset) -> np.ndarray:
    """Entries of every shard."""
    entries = np.diff(dataset.entry_start)
    return np.bincount(dataset.chunk_part, weights=entries, minlength=dataset.n_shards).astype(np.int64)


class SerialEngine:
    """K partitions one after another in this process: what a cluster would do, to the bit, without one.

    Parameters
    ----------
    assignment : Assignment
    n_partitions : int
        At most as many as there are shards are used.
    """

    def __init__(self, assignment: Assignment, n_partitions: int) -> None:
        self._assignment, self._dataset = assignment, open_same(assignment)
        self._entries = shard_entries(self._dataset)
        self._workers = [str(number) for number in range(n_partitions)]
        self._shards: dict[str, list[int]] = {}
        self.partitions: list[Partition] = []

    def round(self, order: Order, w: np.ndarray, progress: Callable[[int], None]) -> Joint:
        """Let every partition work, in turn."""
        self._deal(order)
        answers = [partition.run(order, w, progress) for partition in self.partitions]
        change = add_in_tree([answer.change for answer in answers])
        return join_answers(list(self._shards), answers, change, w.nbytes * len(answers))

    def _deal(self, order: Order) -> None:
        shards = deal_shards(self._entries, self._workers[: order.n_workers], order.deal)
        if shards != self._shards:
            self.close()
            self._shards = shards
            self.partitions = [Partition(self._assignment, parts, self._dataset) for parts in shards.values()]

    def slopes(self, order: Order, eta: np.ndarray) -> np.ndarray:
        """Sum over the partitions."""
        return np.sum([partition.slopes(order, eta) for partition in self.partitions], axis=0)

    def close(self) -> None:
        """Close the partitions' files."""
        for partition in self.partitions:
            partition.close()
        self._dataset.close()


@dataclass(frozen=True)
class Simulation:
    """Stands for a client with so many workers; the work is done in this process, one partition after another."""

    n_workers: int
