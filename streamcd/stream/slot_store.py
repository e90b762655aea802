"""Dual variables and active flags of every chunk, on disk in two slots per chunk.

The slot that the last durable checkpoint points to is never overwritten. The first save of a chunk after a checkpoint goes
to its other slot, and later ones rewrite that slot; a checkpoint syncs the files and then replaces ``state.npz``, whose slot
numbers point to the new slots.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import numpy as np

from ..core.atomic_files import make_directory
from ..core.errors import CheckpointError, file_named
from ..dataset.dataset import Dataset
from .identity import Identity

NO_SLOT = 2  # the chunk was never saved: its rows start from the solver's initial values

_N_SLOTS = 2
_HEADER_BYTES = 16  # checksum, chunk (4 bytes each), tag of the run
_OPEN_FILES = 256


class SlotStore:
    """Store of the dual variables and active flags of every chunk, in a file per shard with two slots per chunk.

    Threads may load and save different chunks. The folder is created if needed.
    `chunk_shard` and `n_rows` hold the shard and the rows of every chunk; a row's state takes `row_bytes`. `current`, uint8,
    is the slot (0 or 1) with a chunk's latest state, or `NO_SLOT`; `identity` is the run's.
    """

    def __init__(self, folder: Path, chunk_shard: np.ndarray, n_rows: np.ndarray, row_bytes: int) -> None:
        self.folder, self._shard = folder, chunk_shard
        self._slot_bytes = _HEADER_BYTES + np.asarray(n_rows, dtype=np.int64) * row_bytes
        # chunks are sorted by shard: a chunk's offset is the bytes before the chunk, minus those before its shard
        self._offset = _N_SLOTS * (np.cumsum(self._slot_bytes) - self._slot_bytes)
        self._offset -= self._offset[np.searchsorted(chunk_shard, chunk_shard)]
        self.current = np.full(chunk_shard.size, NO_SLOT, dtype=np.uint8)
        self._durable = self.current.copy()
        self._files: dict[int, int] = {}
        self._users = Counter[int]()  # threads that use a file now
        self._lock = Lock()  # of both, and of the bytes read
        self._unsynced: set[int] = set()
        self.bytes_read = 0
        self.identity: Identity | None = None
        make_directory(folder)

    def allocate(self) -> None:
        """Allocate the disk space of all slots, so that a disk too small fails before any work."""
        last = np.searchsorted(self._shard, np.unique(self._shard), side="right") - 1
        for chunk in last.tolist():
            size = int(self._offset[chunk] + _N_SLOTS * self._slot_bytes[chunk])
            if hasattr(os, "posix_fallocate"):
                with file_named(self._path(chunk)), self._file(chunk) as file:
                    os.posix_fallocate(file, 0, size)

    @property
    def largest_bytes(self) -> int:
        """Size of the largest slot, in bytes."""
        return int(self._slot_bytes.max(initial=0))

    def restore(self, current: np.ndarray) -> None:
        """Restore the slot numbers of a checkpoint; raises `CheckpointError` if their number is another."""
        if current.shape != self.current.shape:
            raise CheckpointError(
                f"{self.folder}: the checkpoint has {current.size} parts of the rows' state, the run's configuration has "
                f"{self.current.size}; restore the run directory from a copy, or train again with --force"
            )
        self.current = current.copy()
        self._durable = current.copy()

    def load(self, chunk: int, arrays: Sequence[np.ndarray]) -> bool:
        """Read a chunk's latest state into `arrays`, in place; returns False if it was never saved."""
        if self.current[chunk] == NO_SLOT:
            return False
        # a record's field is not in one piece, and needs a copy
        whole = [a if a.flags.c_contiguous else np.empty(a.shape, a.dtype) for a in arrays]
        self._read(chunk, [array.reshape(-1).view(np.uint8).data for array in whole])
        for array, found in zip(arrays, whole, strict=True):
            if found is not array:
                array[...] = found
        return True

    def read(self, chunk: int) -> bytes:
        """Read a chunk's current slot with its header; raises `CheckpointError` if it is damaged or another run's."""
        body = bytearray(int(self._slot_bytes[chunk]) - _HEADER_BYTES)
        return bytes(self._read(chunk, [memoryview(body)]) + body)

    def _read(self, chunk: int, body: Sequence[memoryview]) -> bytearray:
        """Read a chunk's current slot into buffers of its size, and check it; returns its header."""
        slot = int(self.current[chunk])
        header = self._read_slot(chunk, slot, body)
        if header is None:
            # another run, after as many checkpoints as it had time for, may have its state in the other slot
            self._check_identity(chunk, self._read_slot(chunk, 1 - slot, body))
            raise CheckpointError(
                f"{self._path(chunk)}: the state of chunk {chunk} is damaged or truncated; "
                "restore the run directory from a copy, or train again with --force"
            )
        self._check_identity(chunk, header)
        return header

    def _read_slot(self, chunk: int, slot: int, body: Sequence[memoryview]) -> bytearray | None:
        """Read a slot into buffers of its size; returns its header, or None if it is not whole."""
        size, header = int(self._slot_bytes[chunk]), bytearray(_HEADER_BYTES)
        buffers = [memoryview(header), *body]
        assert sum(map(len, buffers)) == size
        try:
            with self._file(chunk, os.O_RDWR) as file:
                n_bytes = os.preadv(file, buffers, int(self._offset[chunk]) + slot * size)
        except FileNotFoundError:
            raise CheckpointError(
                f"{self._path(chunk)}: missing; restore the run directory from a copy, or train again with --force"
            ) from None
        with self._lock:
            self.bytes_read += n_bytes
        buffers[0] = buffers[0][4:]
        expected = _checksum(buffers).to_bytes(4, "little") + chunk.to_bytes(4, "little")
        return header if n_bytes == size and header[:8] == expected else None

    def _check_identity(self, chunk: int, header: bytearray | None) -> None:
        """Refuse a slot of another run."""
        if self.identity is None or header is None:
            return
        tag = bytes(header[8:])
        if not self.identity.accepts(tag):  # the path is made only for a refusal
            self.identity.check(tag, self._path(chunk))

    def save(self, chunk: int, arrays: Sequence[np.ndarray]) -> None:
        """Write a chunk's state to the slot that no durable checkpoint points to."""
        if self.current[chunk] == self._durable[chunk]:
            self.current[chunk] = 1 if self._durable[chunk] == 0 else 0
        size = int(self._slot_bytes[chunk])
        tag = bytes(8) if self.identity is None else self.identity.tag
        body: list[bytes | memoryview] = [chunk.to_bytes(4, "little") + tag]
        body += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
        buffers = [_checksum(body).to_bytes(4, "little"), *body]
        assert sum(map(len, buffers)) == size
        try:
            with self._file(chunk) as file:
                _write_all(file, buffers, int(self._offset[chunk]) + int(self.current[chunk]) * size)
        except OSError:
            # not around each call: to make the paths of all chunks takes time in every pass
            with file_named(self._path(chunk)):
                raise
        self._unsynced.add(int(self._shard[chunk]))

    def unsynced(self) -> list[Path]:
        """List the files, and their folder, that hold what was saved since `mark_durable`."""
        chunks = np.searchsorted(self._shard, sorted(self._unsynced)).tolist()
        return [*map(self._path, chunks), self.folder]

    def mark_durable(self) -> None:
        """Protect the current slots as those of the last durable checkpoint."""
        self._durable = self.current.copy()
        self._unsynced.clear()

    def roll_back(self) -> None:
        """Return to the slots of the last durable checkpoint."""
        self.current = self._durable.copy()

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _path(self, chunk: int) -> Path:
        return shard_file(self.folder, int(self._shard[chunk]))

    @contextmanager
    def _file(self, chunk: int, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
        """Open the file of a chunk, or find it open; it stays so while it is in use, and if few others are open."""
        shard = int(self._shard[chunk])
        with self._lock:
            if shard not in self._files:
                self._files[shard] = os.open(self._path(chunk), flags | os.O_NOFOLLOW, 0o644)
            self._users[shard] += 1
        try:
            yield self._files[shard]
        finally:
            with self._lock:
                self._users[shard] -= 1
                if len(self._files) > _OPEN_FILES and not self._users[shard]:
                    os.close(self._files.pop(shard))


class MemorySlots(SlotStore):
    """Slots in memory, for a run that leaves no files: one per chunk, nothing to make durable."""

    def __init__(self) -> None:
        self.current = np.zeros(0, dtype=np.uint8)
        self.bytes_read = 0
        self._kept: dict[int, list[np.ndarray]] = {}

    def allocate(self) -> None:
        """Do nothing: the first save allocates memory."""

    def load(self, chunk: int, arrays: Sequence[np.ndarray]) -> bool:
        """Copy a chunk's latest state into `arrays`; returns False if it was never saved."""
        for array, kept in zip(arrays, self._kept.get(chunk, ()), strict=False):
            array[:] = kept
        return chunk in self._kept

    def save(self, chunk: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy a chunk's state."""
        self._kept[chunk] = [array.copy() for array in arrays]

    def unsynced(self) -> list[Path]:
        """Return nothing: there are no files."""
        return []

    def mark_durable(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def chunk_slots(
    folder: Path,
    dataset: Dataset,
    row_bytes: int,
    identity: Identity | None,
) -> SlotStore:
    """Open the slots of a dataset's chunks; without slots if a row has no state."""
    n_chunks = dataset.n_chunks if row_bytes else 0
    rows = np.diff(dataset.row_start)[:n_chunks]
    store = SlotStore(folder, dataset.chunk_part[:n_chunks], rows, row_bytes)
    store.identity = identity
    return store


def shard_file(folder: Path, shard: int) -> Path:
    """Return the file of a shard's chunks."""
    return folder / f"part-{shard:05d}.bin"


def _checksum(buffers: Sequence[bytes | memoryview]) -> int:
    checksum = 0
    for buffer in buffers:
        checksum = zlib.crc32(buffer, checksum)
    return checksum


def _write_all(descriptor: int, buffers: Sequence[bytes | memoryview], offset: int) -> None:
    written = os.pwritev(descriptor, buffers, offset)
    # a short write: the disk is nearly full, and the next write raises the error
    data = memoryview(b"".join(buffers))[written:] if written < sum(map(len, buffers)) else b""
    while len(data):
        count = os.pwrite(descriptor, data, offset + written)
        written, data = written + count, data[count:]
