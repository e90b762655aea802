"""Weights of rows from a file of their own."""

from __future__ import annotations

import numpy as np

from .errors import DataError
from .problem import LEAST_WEIGHT
from .svmlight import RowBlock, iterate_blocks


class RowWeights:
    """Weights of rows from a file with a number a line, read along with the rows."""

    def __init__(self, path: str) -> None:
        self._path = path
        # a line with a number and nothing else is a row of libsvm text that has only a label
        self._blocks = iterate_blocks(path, value_dtype=np.float64, block_bytes=1 << 18)
        self._held = np.empty(0)
        self._n_taken = 0

    def take(self, n_rows: int) -> np.ndarray:
        """The weights of the next rows."""
        while len(self._held) < n_rows:
            block = next(self._blocks, None)
            if block is None:
                raise DataError(
                    f"{self._path}: expected a weight for every row, found {self._n_taken + len(self._held):,}, fewer "
                    "than the source has rows; give one number a line"
                )
            self._check(block)
            self._held = np.concatenate([self._held, block.label])
        taken, self._held = self._held[:n_rows], self._held[n_rows:]
        self._n_taken += n_rows
        return taken

    def _check(self, block: RowBlock) -> None:
        weight = block.label
        possible = (weight == 0) | ((weight >= LEAST_WEIGHT) & (weight <= 1 / LEAST_WEIGHT))
        bad = np.flatnonzero(~possible | (np.diff(block.indptr) > 0))
        if bad.size:
            raise DataError(
                f"{self._path}: expected a weight a line, 0 or from {LEAST_WEIGHT:g} to {1 / LEAST_WEIGHT:g}, "
                f"found something else at row {block.place0 + int(bad[0]) + 1}; correct the line"
            )

    def check_end(self, n_rows: int) -> None:
        """Refuse weights that are left over."""
        if len(self._held) or next(self._blocks, None) is not None:
            raise DataError(
                f"{self._path}: expected {n_rows:,} weights, one a row, found more; is it the right file?"
            )
