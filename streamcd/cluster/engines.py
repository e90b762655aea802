"""Engines, which carry out rounds: here one partition after another in this process; `dask_engine` uses dask workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..dataset.dataset import Dataset
from ..solvers.protocol import join_totals
from .assignment import Assignment
from .block_steps import Change, add_changes, add_direction, add_in_tree
from .partition import Partition, RoundRequest, RoundResponse, WorkerSpec, open_same


class WorkersLost(Exception):
    """Loss of a worker during a round."""


@dataclass(kw_only=True)
class RoundResult(RoundResponse):
    """Sum of the partitions' responses; `seconds` is the longest time of one."""

    worker_seconds: dict[str, float]
    bytes_sent: int  # between processes: w to the workers, changes back


class Engine(Protocol):
    """Interface of an engine, which carries out the rounds of a training."""

    def round(self, request: RoundRequest, w: np.ndarray, progress: Callable[[int], None]) -> RoundResult:
        """Have every partition make its local passes; raises `WorkersLost` when a result is lost."""

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum `Partition.slopes` over the partitions of the last round."""

    def close(self) -> None:
        """Release the resources held for this run."""


def join_responses(
    names: list[str], responses: list[RoundResponse], change: Change, bytes_out: int
) -> RoundResult:
    """Add up the responses, except the changes, which a tree has already added."""
    totals, sums = responses[0].totals.copy(), responses[0].direction.copy()
    for response in responses[1:]:
        join_totals(totals, response.totals)
        sums = add_direction(sums, response.direction)
    w = responses[0].w if len(responses) == 1 else None
    last_leg = w.nbytes if w is not None else change.n_bytes
    return RoundResult(
        totals=totals,
        direction=sums,
        change=change,
        w=w,
        n_passes=responses[0].n_passes,
        seconds=max(response.seconds for response in responses),
        bytes_read=sum(response.bytes_read for response in responses),
        worker_seconds={name: response.seconds for name, response in zip(names, responses, strict=True)},
        bytes_sent=bytes_out + change.moved_bytes + last_leg,
    )


def shard_entries(dataset: Dataset) -> np.ndarray:
    entries = np.diff(dataset.entry_start)
    return np.bincount(dataset.chunk_part, weights=entries, minlength=dataset.n_shards).astype(np.int64)


class SerialEngine:
    """Engine that runs partitions one after another in this process, to the same bits as on a cluster.

    Where all shards fit in a worker's memory, one partition takes the parts of all workers in turn.
    """

    def __init__(self, spec: WorkerSpec, n_partitions: int) -> None:
        self._spec, self._dataset = spec, open_same(spec)
        self._assignment = Assignment(shard_entries(self._dataset), spec.seed)
        self._workers = [str(number) for number in range(n_partitions)]
        self._shards: dict[str, list[int]] = {}
        self._partitions: list[Partition] = []

    def round(self, request: RoundRequest, w: np.ndarray, progress: Callable[[int], None]) -> RoundResult:
        """Have the partitions make their local passes, in turn."""
        self._assign(request)
        responses = [partition.run(request, w, progress) for partition in self._in_turn()]
        change = add_in_tree([response.change for response in responses], add_changes)
        return join_responses(list(self._shards), responses, change, w.nbytes * len(responses))

    def _assign(self, request: RoundRequest) -> None:
        shards = self._assignment.of_round(request.assigned, self._workers)
        if shards == self._shards:
            return
        self._shards, everything = shards, list(range(self._dataset.n_shards))
        if len(self._partitions) == 1 and self._partitions[0].has_room_for(everything):
            return
        self.close()
        first, *others = shards.values()
        self._partitions = [Partition(self._spec, first, self._dataset)]
        if not self._partitions[0].has_room_for(everything):
            self._partitions += [Partition(self._spec, owned, self._dataset) for owned in others]

    def _in_turn(self) -> Iterator[Partition]:
        """Iterate over the workers' partitions."""
        if len(self._partitions) == len(self._shards):
            yield from self._partitions
            return
        for shards in self._shards.values():
            self._partitions[0].assign(shards)
            yield self._partitions[0]

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum `Partition.slopes` over the partitions."""
        return np.sum([partition.slopes(request, eta) for partition in self._in_turn()], axis=0)

    def close(self) -> None:
        """Close the partitions' files."""
        for partition in self._partitions:
            partition.close()
        self._dataset.close()


@dataclass(frozen=True)
class Simulation:
    """Stand-in for a client with `n_workers`; this process does the work, one partition after another."""

    n_workers: int
