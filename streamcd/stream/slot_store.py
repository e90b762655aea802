"""Dual variables and active flags of every chunk on disk, in two slots a chunk.

A slot to which the last durable checkpoint points is never overwritten. The first save of a chunk after a checkpoint goes
to its other slot, later ones rewrite that one; a checkpoint syncs what was written and then replaces ``state.npz``, whose
slot bits point to it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..core.atomic_files import sync
from ..core.errors import CheckpointError

NO_SLOT = 2  # of a chunk that was never saved: its rows start from the solver's initial values

_HEADER_BYTES = 16  # checksum, chunk, zeros


class SlotStore:
    """Store of the dual variables and active flags of every chunk, in a file per shard with two slots a chunk.

    Parameters
    ----------
    folder : Path
        Created where it does not exist.
    chunk_shard : ndarray of int, shape (n_chunks,)
        The shard of each chunk.
    n_rows : ndarray of int, shape (n_chunks,)
        Rows of each chunk.
    row_bytes : int
        Bytes of a row's state.

    Attributes
    ----------
    current : ndarray of uint8, shape (n_chunks,)
        The slot (0, 1) that holds a chunk's latest state, or `NO_SLOT`.
    bytes_read : int
        Bytes read so far.
    """

    def __init__(self, folder: Path, chunk_shard: np.ndarray, n_rows: np.ndarray, row_bytes: int) -> None:
        self._folder = folder
        self._shard = chunk_shard
        self._slot_bytes = _HEADER_BYTES + np.asarray(n_rows, dtype=np.int64) * row_bytes
        # chunks come shard after shard, so an offset is what precedes the chunk, less what precedes its shard
        self._offset = np.cumsum(2 * self._slot_bytes) - 2 * self._slot_bytes
        self._offset -= self._offset[np.searchsorted(chunk_shard, chunk_shard)]
        self.current = np.full(chunk_shard.size, NO_SLOT, dtype=np.uint8)
        self._durable = self.current.copy()
        self._files: dict[int, int] = {}
        self._unsynced: set[int] = set()
        self.bytes_read = 0
        folder.mkdir(exist_ok=True)

    def allocate(self) -> None:
        """Claim the disk space of all slots now, so that a disk too small is found before any work."""
        last = np.searchsorted(self._shard, np.unique(self._shard), side="right") - 1
        for chunk in last.tolist():
            size = int(self._offset[chunk] + 2 * self._slot_bytes[chunk])
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._open(chunk), 0, size)

    def restore(self, current: np.ndarray) -> None:
        """Restore the slot bits of a checkpoint."""
        self.current = current.copy()
        self._durable = current.copy()

    def load(self, chunk: int, arrays: Sequence[np.ndarray]) -> bool:
        """Read a chunk's latest state into `arrays` (contiguous, filled in place).

        Returns
        -------
        bool
            False where the chunk was never saved; the arrays are then as they were.

        Raises
        ------
        CheckpointError
            Where the file is missing, truncated or damaged; names it.
        """
        slot = int(self.current[chunk])
        if slot == NO_SLOT:
            return False
        size = int(self._slot_bytes[chunk])
        data = os.pread(self._open(chunk), size, int(self._offset[chunk]) + slot * size)
        self.bytes_read += len(data)
        found = int.from_bytes(data[:4], "little")
        if (
            len(data) != size
            or found != zlib.crc32(memoryview(data)[4:])
            or data[4:12] != chunk.to_bytes(8, "little")
        ):
            raise CheckpointError(
                f"{self._path(int(self._shard[chunk]))}: the state of chunk {chunk} is damaged or truncated; "
                "restore the run directory from a copy, or train again with --force"
            )
        start = _HEADER_BYTES
        for array in arrays:
            flat = array.reshape(-1).view(np.uint8)
            flat[:] = np.frombuffer(data, dtype=np.uint8, count=flat.size, offset=start)
            start += flat.size
        return True

    def save(self, chunk: int, arrays: Sequence[np.ndarray]) -> None:
        """Write a chunk's state to the slot that no durable checkpoint points to."""
        if self.current[chunk] == self._durable[chunk]:
            self.current[chunk] = 1 if self._durable[chunk] == 0 else 0
        size = int(self._slot_bytes[chunk])
        body: list[bytes | memoryview] = [chunk.to_bytes(8, "little") + bytes(_HEADER_BYTES - 12)]
        body += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
        checksum = 0
        for buffer in body:
            checksum = zlib.crc32(buffer, checksum)
        buffers = [checksum.to_bytes(4, "little"), *body]
        assert sum(len(buffer) for buffer in buffers) == size
        _write_all(self._open(chunk), buffers, int(self._offset[chunk]) + int(self.current[chunk]) * size)
        self._unsynced.add(int(self._shard[chunk]))

    def sync(self) -> None:
        """Make durable everything that was saved."""
        for shard in sorted(self._unsynced):
            os.fsync(self._open_shard(shard))
        sync(self._folder)
        self._unsynced.clear()

    def mark_durable(self) -> None:
        """Declare the current slots those of the last durable checkpoint."""
        self._durable = self.current.copy()

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _path(self, shard: int) -> Path:
        return self._folder / f"part-{shard:05d}.bin"

    def _open(self, chunk: int) -> int:
        return self._open_shard(int(self._shard[chunk]))

    def _open_shard(self, shard: int) -> int:
        if shard not in self._files:
            if len(self._files) >= 256:
                os.close(self._files.pop(next(iter(self._files))))
            self._files[shard] = os.open(self._path(shard), os.O_RDWR | os.O_CREAT, 0o644)
        return self._files[shard]


def _write_all(descriptor: int, buffers: Sequence[bytes | memoryview], offset: int) -> None:
    written = os.pwritev(descriptor, buffers, offset)
    data = (
        memoryview(b"".join(buffers))[written:] if written < sum(len(buffer) for buffer in buffers) else b""
    )
    while len(data):  # a short write: the disk is nearly full, the next one says so
        count = os.pwrite(descriptor, data, offset + written)
        written, data = written + count, data[count:]
