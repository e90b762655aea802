"""The exact area under the ROC curve of more scores than fit in memory: sorted runs on disk, then one merge."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO

import numpy as np

_RECORD = np.dtype([("score", np.float64), ("positive", np.bool_)])
# At the worst moment of the merge: its record in a block, in the batch and in the sorted batch, the order, and four numbers
# for its group of ties.
_BYTES_PER_SCORE = 3 * _RECORD.itemsize + 8 + 4 * 8
_MAX_READ = 1 << 24  # records; a system call reads less than 2 GB


class RocArea:
    """Takes scores in any order and any number of blocks.

    Parameters
    ----------
    memory_bytes : int
        What scores may take; beyond it they are sorted and written to a temporary file, run by run.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._capacity = max(1024, memory_bytes // _BYTES_PER_SCORE)
        self._blocks: list[np.ndarray] = []
        self._n_held = 0
        self._run_starts = [0]
        self._file: BinaryIO | None = None

    def __enter__(self) -> RocArea:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, score: np.ndarray, positive: np.ndarray) -> None:
        """Take notice of rows: their scores, and whether they are of the positive class."""
        for start in range(0, score.size, self._capacity):
            block = np.empty(min(self._capacity, score.size - start), dtype=_RECORD)
            block["score"] = score[start : start + block.size] + 0.0  # -0 is a tie with 0
            block["positive"] = positive[start : start + block.size]
            if self._n_held + block.size > self._capacity:
                self._spill()
            self._blocks.append(block)
            self._n_held += block.size

    def value(self) -> float | None:
        """The area: the chance that a positive row scores above a negative one, ties counted half; None for one class."""
        n_positive = n_negative = doubled = 0
        tied_score, tied_positive, tied_negative = None, 0, 0
        for batch in self._batches():
            score = batch["score"]
            group = np.flatnonzero(np.concatenate([[True], score[1:] != score[:-1]]))
            positives = np.add.reduceat(batch["positive"], group, dtype=np.int64)
            negatives = np.diff(group, append=score.size) - positives
            if tied_score != score[0]:
                tied_positive = tied_negative = 0
            # rows of the group that a batch boundary cut: pairs of its two halves are ties as well
            doubled += int(negatives[0]) * tied_positive - int(positives[0]) * tied_negative
            below = np.cumsum(negatives) - negatives
            doubled += (
                int((positives * (2 * below + negatives)).sum()) + 2 * int(positives.sum()) * n_negative
            )
            n_positive += int(positives.sum())
            n_negative += int(negatives.sum())
            same = tied_score == score[-1]
            tied_positive = int(positives[-1]) + (tied_positive if same else 0)
            tied_negative = int(negatives[-1]) + (tied_negative if same else 0)
            tied_score = score[-1]
        if not n_positive or not n_negative:
            return None
        return doubled / (2 * n_positive * n_negative)

    def _take(self) -> np.ndarray:
        run = np.concatenate(self._blocks) if self._blocks else np.empty(0, dtype=_RECORD)
        self._blocks, self._n_held = [], 0
        return run[np.argsort(run["score"])]

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="streamcd-scores-")  # noqa: SIM115 - closed in __exit__
        run = self._take()
        self._file.write(run.view(np.uint8).data)
        self._run_starts.append(self._run_starts[-1] + run.size)

    def _batches(self) -> Iterator[np.ndarray]:
        """All records in batches, each batch's scores at or above those before it."""
        if self._file is None:
            batch = self._take()
            if batch.size:
                yield batch
            return
        self._spill()
        self._file.flush()
        n_runs = len(self._run_starts) - 1
        block = max(1, min(_MAX_READ, self._capacity // n_runs))
        runs = [_Run(self._file.fileno(), *extent, block) for extent in pairwise(self._run_starts)]
        while any(run.held.size for run in runs):
            # what is still on disk is no smaller than the last record held of its run
            bounds = [run.held["score"][-1] for run in runs if run.n_left]
            batch = np.concatenate([run.take(min(bounds) if bounds else np.inf) for run in runs])
            yield batch[np.argsort(batch["score"])]


class _Run:
    """One sorted run in the file, read block by block."""

    def __init__(self, descriptor: int, start: int, stop: int, block: int) -> None:
        self._descriptor, self._place, self._stop, self._block = descriptor, start, stop, block
        self.held = np.empty(0, dtype=_RECORD)
        self._refill()

    @property
    def n_left(self) -> int:
        return self._stop - self._place

    def take(self, bound: float) -> np.ndarray:
        """The records up to `bound` of those held."""
        n = int(np.searchsorted(self.held["score"], bound, side="right"))
        taken, self.held = self.held[:n], self.held[n:]
        if not self.held.size:
            self._refill()
        return taken

    def _refill(self) -> None:
        n = min(self._block, self.n_left)
        data = os.pread(self._descriptor, n * _RECORD.itemsize, self._place * _RECORD.itemsize)
        self.held = np.frombuffer(data, dtype=_RECORD)
        self._place += n
