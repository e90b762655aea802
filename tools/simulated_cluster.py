"""A simulated cluster: the rounds of several workers, carried out in this process, to the same bits as on dask workers.

A `Simulation` takes the place of a client: ``streamcd.train(data, run, client=Simulation(4))``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from streamcd.cluster.dask_worker import Seat
from streamcd.cluster.kinds import Part, make_assignment
from streamcd.cluster.partition import Partition
from streamcd.cluster.rounds import (
    Engine,
    RoundRequest,
    WorkerSpec,
    add_in_tree,
)
from streamcd.cluster.shards import open_same
from streamcd.core.atomic_files import sync_together


class SerialEngine:
    """Engine that runs partitions one after another in this process, to the same bits as on a cluster.

    Where all shards fit in a worker's memory, one partition takes the parts of all workers in turn.
    """

    def __init__(self, spec: WorkerSpec, n_partitions: int) -> None:
        with closing(open_same(spec)) as dataset:
            self._everything = list(range(dataset.n_shards))
            self._assignment = make_assignment(spec, dataset)
        self._spec, self._n_parts = spec, n_partitions
        self._shards: dict[str, list[int]] = {}
        self._seats = [Seat(spec) for _ in range(n_partitions)]

    def round(self, request: RoundRequest, w: np.ndarray, progress: Callable[[int], None]) -> Any:
        """Have the partitions make their local passes, in turn."""
        shares = self._assignment.shares(request.assigned, self._n_parts)
        self._shards = {str(number): shards for number, shards in enumerate(shares) if shards}
        responses = [part.run(request, w, progress, name) for name, part in self._in_turn()]
        result: Any = add_in_tree(responses, operator.add)
        folder = Path(self._spec.folder) / request.token
        if folder.exists():  # dual variables of dask workers come home, and are made durable there
            sync_together([*folder.iterdir(), folder])
        result.bytes_sent = len(responses) * (w.nbytes + result.n_bytes)
        return result

    def _in_turn(self) -> Iterator[tuple[str, Part]]:
        """Iterate over the workers' partitions, with the workers' names."""
        first = next(iter(self._shards.values()))
        if len(self._seats) > 1:
            part = self._seats[0].take(first)
            if part.plan.resident and part.has_room_for(self._everything):
                del self._seats[1:]
        for (name, shards), seat in zip(self._shards.items(), cycle(self._seats), strict=False):
            yield name, seat.take(shards)

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum `Partition.slopes` over the partitions."""
        total = np.zeros((eta.size, 3))
        for _, part in self._in_turn():
            assert isinstance(part, Partition)
            total += part.slopes(request, eta)
        return total

    def close(self) -> None:
        """Close the partitions' files."""
        for seat in self._seats:
            seat.clear()


@dataclass(frozen=True)
class Simulation:
    """Stand-in for a client with `n_workers`; this process does the work, one partition after another."""

    n_workers: int

    def make_engine(self, spec: WorkerSpec) -> Engine:
        """Make the engine of a training."""
        return SerialEngine(spec, self.n_workers)
