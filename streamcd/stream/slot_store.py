"""Dual variables and active flags of every chunk, on disk in two slots per chunk.

The slot that the last durable checkpoint points to is never overwritten. The first save of a chunk after a checkpoint goes
to its other slot, and later ones rewrite that slot; a checkpoint syncs the files and then replaces ``state.npz``, whose slot
numbers point to the new slots.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
from isal.isal_zlib import crc32

from ..core.errors import CheckpointError, file_named
from ..core.files import make_directory
from ..dataset.dataset import Dataset

_TAG_BYTES = 8  # of the run's name, at its beginning


@dataclass(frozen=True)
class Identity:
    """Name of a run, or of a part of it."""

    name: str  # 32 hexadecimal digits

    def part(self, name: str) -> Identity:
        """Derive the identity of a part of the run; this one if `name` is empty."""
        if not name:
            return self
        return Identity(hashlib.sha256(f"{self.name}/{name}".encode()).hexdigest()[:32])

    def check(self, name: str | None, path: Path) -> None:
        """Refuse a file with the name or the tag of another run, or without one."""
        if name not in (self.name, self.name[: 2 * _TAG_BYTES]):
            raise CheckpointError(
                f"{path}: of another run than config.json beside it; restore the run directory from a copy, or train again "
                "with --force"
            )


NO_SLOT = 2  # the chunk was never saved: its rows start from the solver's initial values

_N_SLOTS = 2
_HEADER_BYTES = 4 + 4 + _TAG_BYTES  # checksum, chunk, tag of the run


class SlotStore:
    """Store of the dual variables and active flags of a dataset's chunks, in a file per shard with two slots per chunk.

    Threads may load and save different chunks. The folder is created if needed.
    A row's state takes `row_bytes`; there are no slots if it has none. `current`, uint8, is the slot (0 or 1) with a chunk's
    latest state, or `NO_SLOT`; `identity` is the run's.
    """

    def __init__(
        self, folder: Path, dataset: Dataset, row_bytes: int, identity: Identity | None = None
    ) -> None:
        self.folder = folder
        n_chunks = dataset.n_chunks if row_bytes else 0
        shard = dataset.chunk_part[:n_chunks]
        paths = [folder / f"part-{number:05d}.bin" for number in range(dataset.n_shards)]
        self._paths = [paths[number] for number in shard.tolist()]  # of every chunk
        self._last = np.flatnonzero(np.diff(shard, append=-1))  # chunks of the shards
        self.slot_bytes = _HEADER_BYTES + np.diff(dataset.row_start)[:n_chunks] * row_bytes
        # chunks are sorted by shard: a chunk's offset is the bytes before the chunk, minus those before its shard
        self._offset = _N_SLOTS * (np.cumsum(self.slot_bytes) - self.slot_bytes)
        self._offset -= self._offset[np.searchsorted(shard, shard)]
        self.current = np.full(n_chunks, NO_SLOT, dtype=np.uint8)
        self._durable = self.current.copy()
        self._unsynced: set[Path] = set()
        self._lock = Lock()
        self.bytes_read = 0
        self.identity = identity
        # of the run, for headers
        self._tag = bytes(_TAG_BYTES) if identity is None else bytes.fromhex(identity.name)[:_TAG_BYTES]
        make_directory(folder)  # its name is durable with the first state of a run

    def allocate(self) -> None:
        """Allocate the disk space of all slots, so that a disk too small fails before any work."""
        for chunk in self._last.tolist():
            size = int(self._offset[chunk] + _N_SLOTS * self.slot_bytes[chunk])
            with file_named(self._paths[chunk]), self._file(chunk, os.O_RDWR | os.O_CREAT) as file:
                os.posix_fallocate(file, 0, size)

    def restore(self, current: np.ndarray) -> None:
        """Restore the slot numbers of a checkpoint; raises `CheckpointError` if their number is another."""
        if current.shape != self.current.shape:  # safety: resume::slots_of_a_run_that_has_none
            raise CheckpointError(
                f"{self.folder}: the checkpoint has {current.size} parts of the rows' state, the run's configuration has "
                f"{self.current.size}; restore the run directory from a copy, or train again with --force"
            )
        self.current = current.copy()
        self._durable = current.copy()  # safety: durability::slot_of_the_last_checkpoint

    def load(self, chunk: int, arrays: Sequence[np.ndarray]) -> bool:
        """Read a chunk's latest state into `arrays`, in place; returns False if it was never saved.

        Raises `CheckpointError` if it is damaged or another run's.
        """
        slot = int(self.current[chunk])
        if slot == NO_SLOT:
            return False
        # a record's field is not in one piece, and needs a copy
        whole = [a if a.flags.c_contiguous else np.empty(a.shape, a.dtype) for a in arrays]
        body = [array.reshape(-1).view(np.uint8).data for array in whole]
        tag = self._read(chunk, slot, body)
        # another run, after as many checkpoints as it had time for, may have its state in the other slot
        other = self._read(chunk, 1 - slot, body) if tag is None else tag
        path = self._paths[chunk]
        if self.identity is not None and other not in (None, self._tag):
            self.identity.check(other.hex(), path)  # safety: identity::same_shape[dual-resident]
        if tag is None:
            raise CheckpointError(
                f"{path}: the state of chunk {chunk} is damaged or truncated; "
                "restore the run directory from a copy, or train again with --force"
            )
        for array, read in zip(arrays, whole, strict=True):
            if read is not array:
                array[...] = read
        return True

    def check(self, chunk: int) -> None:
        """Read a chunk's latest state; raises `CheckpointError` if it is damaged or another run's."""
        self.load(chunk, [np.empty(int(self.slot_bytes[chunk]) - _HEADER_BYTES, np.uint8)])

    def _read(self, chunk: int, slot: int, body: Sequence[memoryview]) -> bytes | None:
        """Read a slot into buffers of its size; returns the tag of its run, None if it is not whole."""
        size = int(self.slot_bytes[chunk])
        header = bytearray(_HEADER_BYTES)
        buffers = [memoryview(header), *body]
        assert sum(map(len, buffers)) == size
        try:
            with self._file(chunk, os.O_RDONLY) as file:
                n_bytes = os.preadv(file, buffers, int(self._offset[chunk]) + slot * size)
        except FileNotFoundError:
            raise CheckpointError(
                f"{self._paths[chunk]}: missing; restore the run directory from a copy, or train again with --force"
            ) from None
        with self._lock:
            self.bytes_read += n_bytes
        expected = _checksum([buffers[0][4:], *body]) + chunk.to_bytes(4, "little")
        if n_bytes != size or header[:8] != expected:  # safety: durability::flipped_bit_in_a_slot
            return None
        return bytes(header[8:])

    def save(self, chunk: int, arrays: Sequence[np.ndarray]) -> None:
        """Write a chunk's state to the slot that no durable checkpoint points to."""
        if self.current[chunk] == self._durable[chunk]:
            other = 1 if self._durable[chunk] == 0 else 0
            self.current[chunk] = other  # safety: durability::slot_of_the_last_checkpoint
        size = int(self.slot_bytes[chunk])
        body: list[bytes | memoryview] = [chunk.to_bytes(4, "little") + self._tag]
        body += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
        buffers = [_checksum(body), *body]
        assert sum(map(len, buffers)) == size
        offset = int(self._offset[chunk]) + int(self.current[chunk]) * size
        try:
            with self._file(chunk, os.O_RDWR | os.O_CREAT) as file:
                written = os.pwritev(file, buffers, offset)
                while written < size:  # the disk is nearly full, and the next write raises the error
                    written += os.pwrite(file, b"".join(buffers)[written:], offset + written)
        except OSError:
            with file_named(self._paths[chunk]):
                raise
        self._unsynced.add(self._paths[chunk])  # safety: durability::power_cut[train streamed]

    def unsynced(self) -> list[Path]:
        """List the files, and until every chunk is durable their folder, that hold what was saved since `mark_durable`."""
        files = sorted(self._unsynced)
        if NO_SLOT in self._durable:
            files.append(self.folder)  # safety: durability::power_cut[train]
        return files

    def mark_durable(self) -> None:
        """Protect the current slots as those of the last durable checkpoint."""
        self._durable = self.current.copy()  # safety: durability::slot_of_the_last_checkpoint
        self._unsynced.clear()

    def roll_back(self) -> None:
        """Return to the slots of the last durable checkpoint."""
        self.current = self._durable.copy()

    @contextmanager
    def _file(self, chunk: int, flags: int) -> Iterator[int]:
        """Open the file of a chunk's shard."""
        flags |= os.O_NOFOLLOW  # safety: durability::are_no_links
        descriptor = os.open(self._paths[chunk], flags, 0o644)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


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
        for array, saved in zip(arrays, self._kept.get(chunk, ()), strict=False):
            array[:] = saved
        return chunk in self._kept

    def save(self, chunk: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy a chunk's state."""
        self._kept[chunk] = [array.copy() for array in arrays]

    def unsynced(self) -> list[Path]:
        """Return nothing: there are no files."""
        return []

    def mark_durable(self) -> None:
        """Do nothing."""


def _checksum(buffers: Sequence[bytes | memoryview]) -> bytes:
    """Compute the CRC-32 of buffers, one after the other, as it stands in a header."""
    checksum = 0
    for buffer in buffers:
        checksum = crc32(buffer, checksum)
    return checksum.to_bytes(4, "little")
