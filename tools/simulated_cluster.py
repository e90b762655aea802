"""A simulated cluster: the rounds of several workers, carried out in this process, to the same bits as on dask workers.

A `Simulation` takes the place of a client: ``streamcd.train(data, run, client=Simulation(4))``.
"""

from __future__ import annotations

import functools
import operator
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from streamcd.cluster.assignment import make_assignment
from streamcd.cluster.partition import make_part, makes_sums, open_same
from streamcd.cluster.rounds import HomeRows, Response, RoundRequest, WorkerSpec


class SerialEngine:
    """Engine that carries out the workers' parts one after another, in this process."""

    def __init__(self, spec: WorkerSpec, home: HomeRows, n_workers: int) -> None:
        with closing(open_same(spec)) as dataset:
            self._assignment = make_assignment(dataset, spec.seed, exchanges=not makes_sums(spec))
        self._home, self._folder = home, tempfile.TemporaryDirectory(prefix="streamcd-")
        folder = Path(self._folder.name)
        self._parts: list[Any] = [make_part(spec, folder / str(number)) for number in range(n_workers)]
        self._shards: list[list[int]] = []

    def round(self, request: RoundRequest, w: np.ndarray, progress: Callable[[int], None]) -> Response:
        """Have the parts carry out a round, in turn; all take the state of their rows from home."""
        self._shards = self._assignment.shares(request.assigned, len(self._parts))
        responses = []
        for number, (part, shards) in enumerate(zip(self._parts, self._shards, strict=True)):
            if shards:
                for chunks in self._home.batches(shards):
                    part.receive(request.committed, self._home.load(chunks))
                responses.append(part.run(shards, request, w, progress, str(number)))
        result: Response = functools.reduce(operator.add, responses)
        sizes = w.nbytes + sum(array.nbytes for array in result.sums.values())
        return replace(result, bytes_sent=len(responses) * sizes)

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum `Partition.slopes` over the parts."""
        busy = zip(self._parts, self._shards, strict=True)
        return np.sum([part.slopes(request, eta) for part, shards in busy if shards], axis=0)

    def collect(self, request: RoundRequest, eta: np.ndarray) -> None:
        """Bring the dual variables after a step home."""
        for part, shards in zip(self._parts, self._shards, strict=True):
            for chunks in self._home.batches(shards):
                self._home.save(part.step(request, eta, chunks))

    def close(self) -> None:
        """Close the parts' files."""
        for part in self._parts:
            part.close()
        self._folder.cleanup()


@dataclass(frozen=True)
class Simulation:
    """Stand-in for a client with `n_workers`; this process does the work, one part after another."""

    n_workers: int

    def make_engine(self, spec: WorkerSpec, home: HomeRows) -> SerialEngine:
        """Make the engine of a training."""
        return SerialEngine(spec, home, self.n_workers)
