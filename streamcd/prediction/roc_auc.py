"""Exact areas under the ROC and precision-recall curves for more scores than fit in memory, by ranges of scores on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ..core.external_partition import Layout, PartitionReader, PartitionWriter, Records, take
from ..core.locks import scratch_directory
from .sums import ExactSum

_LAYOUT = Layout((np.dtype(np.float64), np.dtype(np.float64)))
"""A score, and the row's weight, with a minus for the negative class."""
_BYTES_PER_SCORE = 110
"""Peak memory of a row: score and weight as taken, joined and sorted, their order, six numbers for each group of ties."""
_N_BOUNDS = 127
_LEAST_SCORES = 1024


class RocArea:
    """Receiver of scores in any order and any number of blocks; a context manager, which removes its files.

    Scores beyond the memory are partitioned by bounds that are scores themselves: a bucket for each bound, and one for the
    scores between two of them. Scores equal to a bound are ties, and only counted; those between two bounds are sorted, or,
    if they do not fit, partitioned again by bounds of their own.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._capacity = max(_LEAST_SCORES, memory_bytes // _BYTES_PER_SCORE)
        self._memory_bytes = self._capacity * _LAYOUT.record_bytes
        self._weighted = False
        self._held: list[Records] = []
        self._n_held = 0
        self._opened = ExitStack()
        self._scratch: Path | None = None

    def __enter__(self) -> RocArea:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def add(self, score: np.ndarray, positive: np.ndarray, weight: np.ndarray | None = None) -> None:
        """Take rows: their scores, flags of those of the positive class, and their weights, all 1 by default."""
        if weight is None:
            weight = np.ones(score.size)
        elif (weight != 1.0).any():
            self._weighted = True
            score, positive, weight = (array[weight > 0] for array in (score, positive, weight))
        signed = np.where(positive, weight, -weight)
        for start in range(0, score.size, self._capacity):
            stop = min(start + self._capacity, score.size)
            # descending, and -0 a tie with 0; copied, since the caller reuses its memory
            block = Records((0.0 - score[start:stop], signed[start:stop]))
            if self._scratch is None and self._n_held + block.size > self._capacity:
                self._spill()
            if self._scratch is None:
                self._held.append(block)
                self._n_held += block.size
            else:
                self._writer.append(_number(block, self._bounds), block)

    def _spill(self) -> None:
        """Partition the scores held, and later ones, by the quantiles of those held."""
        self._scratch = self._opened.enter_context(scratch_directory(Path(tempfile.gettempdir()), "scores"))
        held, self._held = _join(self._held), []
        self._bounds = _quantiles(held.fields[0])
        self._path = self._scratch / "run"
        self._writer = self._write(self._path, self._bounds)
        self._writer.append(_number(held, self._bounds), held)

    def _write(self, path: Path, bounds: np.ndarray) -> PartitionWriter:
        return PartitionWriter(path, _LAYOUT, 2 * bounds.size + 1, self._memory_bytes)

    def areas(self) -> tuple[float, float] | None:
        """Compute the areas under the ROC and the precision-recall curve; None for one class.

        The first is the probability that a positive row scores above a negative one, ties counted half. The second is the
        average precision: the mean over the positive rows of the precision among the rows that score as high or higher.
        Rows count by their weights; without any, the counts are integers, and the areas rounded once.
        """
        doubled: float = 0
        precisions = ExactSum()  # of the positive rows; does not depend on the blocks
        n_above_positive: float = 0
        n_above_negative: float = 0
        for positives, negatives in self._ties():
            # scores come in descending order
            first, second = np.cumsum(positives), np.cumsum(negatives)
            above = n_above_positive + first - positives
            doubled += (negatives * (2 * above + positives)).sum().item()
            found = n_above_positive + first
            precisions.add(positives * (found / (found + n_above_negative + second)))
            n_above_positive, n_above_negative = found[-1].item(), n_above_negative + second[-1].item()
        n_positive, n_negative = n_above_positive, n_above_negative
        if not n_positive or not n_negative:
            return None
        return doubled / (2 * n_positive * n_negative), precisions.value() / n_positive

    def _ties(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield weights of positives and negatives of every score, descending by score, many scores at a time."""
        for ties in self._weights_of_ties():
            positives, negatives = ties if self._weighted else (part.astype(np.int64) for part in ties)
            yield positives, negatives

    def _weights_of_ties(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if self._scratch is None:
            if self._held:
                yield _count_ties(_join(self._held))
            return
        self._writer.close()
        del self._writer  # its memory
        yield from self._ties_of_run(self._path, self._bounds.size)

    def _ties_of_run(self, path: Path, n_bounds: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        block_bytes = self._memory_bytes // 4
        with PartitionReader([path], _LAYOUT) as reader:
            for bucket in range(2 * n_bounds + 1):
                n_scores, _ = reader.size(bucket)
                if bucket % 2:
                    sums = np.zeros(2)
                    for block in reader.blocks(bucket, block_bytes):
                        sums += [part.sum() for part in _by_sign(block.fields[1])]
                    yield sums[:1], sums[1:]
                elif n_scores > self._capacity:
                    first = next(reader.blocks(bucket, block_bytes))
                    bounds, again = _quantiles(first.fields[0]), path.with_name(path.name + "-again")
                    with self._write(again, bounds) as writer:
                        for block in reader.blocks(bucket, block_bytes):
                            writer.append(_number(block, bounds), block)
                    del writer
                    yield from self._ties_of_run(again, bounds.size)
                elif n_scores:
                    yield _count_ties(reader.read(bucket))


def _join(blocks: list[Records]) -> Records:
    return Records([np.concatenate([block.fields[k] for block in blocks]) for k in range(2)])


def _quantiles(score: np.ndarray) -> np.ndarray:
    """Return distinct scores that cut all scores into parts of about the same size."""
    return np.unique(np.sort(score)[np.linspace(0, score.size - 1, _N_BOUNDS).astype(np.int64)])


def _number(scores: Records, bounds: np.ndarray) -> np.ndarray:
    """Number buckets: 2 i + 1 for the scores equal to bound i, 2 i for those below it and above the one before."""
    score = scores.fields[0]
    number = np.searchsorted(bounds, score, side="left") + np.searchsorted(bounds, score, side="right")
    return number.astype(np.uint16)


def _by_sign(signed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of positive rows and of negative ones, each 0 in the place of the others."""
    return np.maximum(signed, 0.0), np.maximum(-signed, 0.0)


def _count_ties(scores: Records) -> tuple[np.ndarray, np.ndarray]:
    """Sum up the weights of positives and negatives of every distinct score, ascending."""
    order = np.argsort(scores.fields[0], kind="stable")
    score, signed = (take(field, order) for field in scores.fields)
    group = np.flatnonzero(np.concatenate([[True], score[1:] != score[:-1]]))
    positives, negatives = (np.add.reduceat(part, group) for part in _by_sign(signed))
    return positives, negatives
