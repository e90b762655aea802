"""A simulated cluster: the rounds of several workers, carried out in this process, to the same bits as on dask workers.

A `Simulation` takes the place of a client: ``streamcd.train(data, run, client=Simulation(4))``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from streamcd.cluster.assignment import Assignment
from streamcd.cluster.partition import Partition, open_same
from streamcd.cluster.rounds import (
    Engine,
    RoundRequest,
    RoundResponse,
    WorkerSpec,
    add_in_tree,
    add_responses,
    shard_entries,
)


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

    def round(self, request: RoundRequest, w: np.ndarray, progress: Callable[[int], None]) -> RoundResponse:
        """Have the partitions make their local passes, in turn."""
        self._assign(request)
        responses = [
            partition.run(request, w, progress, name)
            for name, partition in zip(self._shards, self._in_turn(), strict=True)
        ]
        return add_in_tree(responses, add_responses)

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

    def make_engine(self, spec: WorkerSpec) -> Engine:
        """Make the engine of a training."""
        return SerialEngine(spec, self.n_workers)
