"""Rounds as data: what the coordinating process asks of every partition, what a partition answers, and sums of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from ..kernels.rounds import LONGEST
from ..solvers.problem import Problem
from ..solvers.protocol import TRAIN, join_totals
from ..stream.identity import Identity

Item = TypeVar("Item")


@dataclass(frozen=True)
class WorkerSpec:
    """Description of a run for its workers, the same in every round."""

    dataset: str  # absolute path
    fingerprint: str  # of the dataset
    folder: str  # absolute path of the folder of dual variables: the run's, in a worker its own
    problem: Problem
    method: str
    seed: int
    memory: int  # budget of a worker, bytes
    identity: Identity | None = None  # of the run
    acceleration: float | str = "none"  # as `registry.make_solver` takes it
    cache: str | None = None  # directory, of a dataset at a URL


@dataclass(frozen=True)
class RoundRequest:
    """Work of one round."""

    token: str  # name of this attempt at the round, and of the folder it writes
    committed: str  # folder of the last committed round; empty where there is none
    eta: np.ndarray  # step of that round, per lane
    read: int  # number of the first read of the data
    n_passes: int  # reads, numbered from `read`
    lanes: dict[str, np.ndarray]  # per-lane arrays of the state, sigma_prime among them (see `block_steps`)
    assigned: int  # number of the round's assignment of shards; the last round's leaves them where they are

    def phase(self, *phases: int) -> np.ndarray:
        return np.flatnonzero(np.isin(self.lanes["phase"], phases))

    def sigma_prime(self) -> np.ndarray:
        """Return sigma' of every lane's local models; 1 for lanes that do not train."""
        return np.where(self.lanes["phase"] == TRAIN, self.lanes["sigma_prime"], 1.0)


@dataclass(kw_only=True)
class SumResponse:
    """Result of one part of a round: sums over its rows at fixed weights, or the sum of several."""

    sums: dict[str, np.ndarray]
    seconds: dict[str, float]  # of every worker
    bytes_read: int
    n_parts: int = 1
    bytes_sent: int = 0  # between processes: w to the workers, responses back

    def __add__(self, other: Self) -> Self:
        """Add another response."""
        return replace(
            self,
            sums={name: array + other.sums[name] for name, array in self.sums.items()},
            seconds=_added(self.seconds, other.seconds),
            bytes_read=self.bytes_read + other.bytes_read,
            n_parts=self.n_parts + other.n_parts,
        )

    @property
    def n_bytes(self) -> int:
        """Bytes to send."""
        return sum(array.nbytes for array in self.sums.values())


@dataclass(kw_only=True)
class RoundResponse(SumResponse):
    """Result of one part's local passes, or the sum of several; `sums` are those of lanes certified (`RowSolver.new_sums`).

    `totals` are those of the first pass: in later ones the partition's own rows are nearly solved, which says nothing about
    the whole. But the change of the dual is that of all passes, and Newton's steps are those of the last. `change` is that
    of w for lanes that trained, the partition's share of w(alpha) for those certified.
    """

    totals: np.ndarray  # (lanes, N_TOTALS)
    direction: np.ndarray  # (lanes, 5), see `block_steps.direction`
    change: np.ndarray  # shaped like w

    def __add__(self, other: RoundResponse) -> RoundResponse:
        """Add another response."""
        totals = self.totals.copy()
        join_totals(totals, other.totals)
        return replace(
            super().__add__(other),
            totals=totals,
            direction=add_directions(self.direction, other.direction),
            change=self.change + other.change,
        )

    @property
    def n_bytes(self) -> int:
        """Bytes to send."""
        return super().n_bytes + self.change.nbytes


def _added(seconds: dict[str, float], others: dict[str, float]) -> dict[str, float]:
    """Add the seconds of workers, each of which may have carried out several parts."""
    return {
        worker: seconds.get(worker, 0.0) + others.get(worker, 0.0)
        for worker in dict.fromkeys([*seconds, *others])
    }


def add_directions(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Add sums over rows, see `block_steps.direction`."""
    total = a + b
    total[:, LONGEST] = np.minimum(a[:, LONGEST], b[:, LONGEST])
    return total


def add_in_tree(items: Sequence[Item], add: Callable[[Item, Item], Item]) -> Item:
    """Add the partitions' responses, or what stands for them, in the order in which a tree of processes adds them."""
    level = list(items)
    while len(level) > 1:
        pairs = [add(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


class WorkersLost(Exception):
    """Loss of a worker during a round."""


class Engine(Protocol):
    """Executor of the rounds of a training: dask's workers, or a simulation of them."""

    def round(self, request: RoundRequest, w: np.ndarray, progress: Callable[[int], None]) -> Any:
        """Have every partition do its part, and add their responses, `RoundResponse` or `SumResponse`.

        Raises `WorkersLost` when one is lost.
        """

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum `Partition.slopes` over the partitions of the last round."""

    def close(self) -> None:
        """Release the resources held for this run."""
