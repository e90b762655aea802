"""Digests of content, which depend neither on the compression of files nor on how writers cut them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from .arrow_columns import numbers_of, strings_of

_LABEL, _WEIGHT, _SOURCE = -1, -2, -3
"""In the place of features, for the numbers that a row has besides its entries."""


class RowContent:
    """Sum of 128-bit hashes of all entries and rows of a part, with their numbers: equal for the same ones in any order.

    Different ones have the same sum with probability 2⁻¹²⁸, unless they were made to.
    """

    def __init__(self) -> None:
        self.sums = np.zeros(2, np.uint64)

    def add_rows(self, row: np.ndarray, source: np.ndarray, label: np.ndarray, weight: np.ndarray) -> None:
        """Add rows: their numbers here and in the source, integers, labels and weights, float64; all of shape (rows,)."""
        for place, bits in ((_LABEL, label), (_WEIGHT, weight), (_SOURCE, source.astype(np.int64))):
            feature = np.full(row.size, place, row.dtype)
            _add(row, feature, np.ascontiguousarray(bits).view(np.uint64), self.sums)

    def add_entries(self, row: np.ndarray, feature: np.ndarray, value: np.ndarray) -> None:
        """Add entries: the numbers of their rows, features, values; all of shape (entries,)."""
        add_entries(row, feature, value, self.sums)

    def add_sums(self, sums: np.ndarray) -> None:
        """Add the `sums` of other rows."""
        self.sums += sums

    def text(self) -> str:
        """Return the sum as 32 hexadecimal digits."""
        return "".join(f"{part:016x}" for part in self.sums.tolist())


def add_entries(row: np.ndarray, feature: np.ndarray, value: np.ndarray, sums: np.ndarray) -> None:
    """Add hashes of entries (row, feature, value), all of shape (entries,), to `sums`, shape (2,) uint64, in place."""
    _add(row, feature, value.astype(np.float64).view(np.uint64), sums)


def _add(row: np.ndarray, feature: np.ndarray, bits: np.ndarray, sums: np.ndarray) -> None:
    from ..kernels.primitives import add_entry_hashes  # here, because it imports numba

    # copies of arrays that cannot be written to, for which numba would compile the kernel once more
    add_entry_hashes(*(np.require(array, requirements=("C", "W")) for array in (row, feature, bits)), sums)


class TableContent:
    """SHA-256 of columns of a table, numbers without nulls or strings, that comes in parts of any size."""

    def __init__(self, names: Sequence[str]) -> None:
        self._columns = {name: (hashlib.sha256(), hashlib.sha256()) for name in names}

    def add(self, table: pa.Table) -> None:
        """Add rows; other columns are left out."""
        for name, digests in self._columns.items():
            for array in table.column(name).chunks:
                for digest, data in zip(digests, _bytes_of(array), strict=True):
                    digest.update(np.ascontiguousarray(data).data)

    def text(self) -> str:
        """Return the digest as 32 hexadecimal digits."""
        whole = hashlib.sha256()
        for name, digests in self._columns.items():
            whole.update(name.encode() + b"\0" + b"".join(digest.digest() for digest in digests))
        return whole.hexdigest()[:32]


def _bytes_of(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of an array, or the lengths of its strings, -1 for null, and their bytes."""
    if pa.types.is_primitive(array.type):
        return numbers_of(array), np.empty(0, np.uint8)
    strings, valid = strings_of(array)
    lengths = np.diff(strings.offsets)
    if valid.size:
        lengths = np.where(valid, lengths, -1)
    return lengths, strings.data[strings.offsets[0] : strings.offsets[-1]]
