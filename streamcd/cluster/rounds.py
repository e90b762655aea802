"""Rounds as data: what the coordinating process asks of every worker, what a worker answers, and what a run has of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels.rounds import LONGEST
from ..solvers.problem import Problem
from ..solvers.protocol import TRAIN, Array, join_totals
from ..stream.arenas import RowLayout
from ..stream.slot_store import NO_SLOT, Identity, SlotStore
from ..training.loop import ARRAYS as LOOP_ARRAYS

_BATCH_BYTES = 2_000_000
"""Bytes of rows' state sent at a time, a part of what a worker and the coordinating process have for messages."""

ARRAYS = (
    *LOOP_ARRAYS,
    Array("round", "number of the last round, the same for all lanes", int),
    Array("assigned", "number of the assignment of shards, likewise", int),
    Array("sigma_prime", "sigma' of the lane's local models (`block_steps`)", initial=1.0),
)
"""State of the loop on workers."""


@dataclass(frozen=True)
class WorkerSpec:
    """Description of a run for its workers, the same in every round."""

    dataset: str  # absolute path
    fingerprint: str  # of the dataset
    problem: Problem
    method: str
    seed: int
    memory: int  # budget of a worker, bytes
    identity: Identity | None = None  # of the run
    acceleration: float | str = "none"  # as `protocol.SolverOptions` has it
    cache: str | None = None  # directory, of a dataset at a URL


@dataclass(frozen=True)
class RoundRequest:
    """Work of one round."""

    token: str  # name of this attempt at the round
    committed: str  # name of the attempt that ended in the state of rows with which this one begins
    read: int  # number of the first read of the data
    n_passes: int  # reads, numbered from `read`
    lanes: dict[str, np.ndarray]  # `State.lanes`, sigma_prime among them (see `block_steps`)
    assigned: int  # number of the round's assignment of shards; the last round's leaves them where they are

    def lanes_in(self, *phases: int) -> np.ndarray:
        return np.flatnonzero(np.isin(self.lanes["phase"], phases))

    def sigma_prime(self) -> np.ndarray:
        """Return sigma' of every lane's local models; 1 for lanes that do not train."""
        return np.where(self.lanes["phase"] == TRAIN, self.lanes["sigma_prime"], 1.0)


@dataclass
class Response:
    """Sums over a worker's rows, or over those of several.

    Those of local passes are ``totals`` (lanes, N_TOTALS) of the first pass: in later ones a worker's own rows are nearly
    solved, which says nothing about the whole. But the change of the dual is that of all passes, and Newton's steps are
    those of the last. ``direction`` (lanes, 5) is that of `block_steps.direction`; ``change``, shaped like w, that of w for
    lanes that trained, the worker's share of w(alpha) for those certified. Others are `RowSolver.sums`.
    """

    sums: dict[str, np.ndarray]
    seconds: dict[str, float]  # of every worker
    bytes_read: int
    bytes_sent: int = 0  # between processes: w to the workers, responses back

    def __add__(self, other: Response) -> Response:
        """Add another worker's response."""
        sums = {name: array + other.sums[name] for name, array in self.sums.items()}
        if "totals" in sums:
            sums["totals"] = self.sums["totals"].copy()
            join_totals(sums["totals"], other.sums["totals"])
        if "direction" in sums:
            sums["direction"] = add_directions(self.sums["direction"], other.sums["direction"])
        n_bytes = self.bytes_read + other.bytes_read
        return Response(sums, self.seconds | other.seconds, n_bytes)


def add_directions(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Add sums over rows, see `block_steps.direction`."""
    total = a + b
    total[:, LONGEST] = np.minimum(a[:, LONGEST], b[:, LONGEST])
    return total


class ChunkRows(NamedTuple):
    """Dual variables and flags of a chunk's rows; None before the first round."""

    chunk: int
    alpha: np.ndarray | None
    active: np.ndarray | None


class HomeRows:
    """Dual variables of all chunks as the run has them, between the rounds."""

    def __init__(self, slots: SlotStore, dataset: Dataset, layout: RowLayout) -> None:
        self._slots = slots
        self._dataset = dataset
        self._layout = layout

    def batches(self, shards: Sequence[int]) -> Iterator[list[int]]:
        """Divide the chunks of shards into messages; none where rows have no state."""
        if not self._layout.state_bytes:
            return
        batch = list[int]()
        n_bytes = 0
        for chunk in np.flatnonzero(np.isin(self._dataset.chunk_part, shards)).tolist():
            size = self._n_rows(chunk) * self._layout.state_bytes
            if batch and n_bytes + size > _BATCH_BYTES:
                yield batch
                batch = []
                n_bytes = 0
            batch.append(chunk)
            n_bytes += size
        if batch:
            yield batch

    def load(self, chunks: Sequence[int]) -> list[ChunkRows]:
        """Read the state of chunks."""
        rows = []
        for chunk in chunks:
            if self._slots.current[chunk] == NO_SLOT:
                rows.append(ChunkRows(chunk, None, None))
                continue
            alpha = np.empty((self._n_rows(chunk), self._layout.alpha_width))
            active = np.empty((alpha.shape[0], self._layout.n_flags), dtype=np.uint8)
            self._slots.load(chunk, [alpha, active])
            rows.append(ChunkRows(chunk, alpha, active))
        return rows

    def save(self, rows: Sequence[ChunkRows]) -> None:
        """Write the state of chunks, which the next checkpoint makes durable."""
        for chunk, alpha, active in rows:
            assert alpha is not None
            assert active is not None
            self._slots.save(chunk, [alpha, active])

    def _n_rows(self, chunk: int) -> int:
        return int(self._dataset.row_start[chunk + 1] - self._dataset.row_start[chunk])


class WorkersLost(Exception):
    """Loss of a worker during a round."""
