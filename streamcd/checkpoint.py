"""A run on disk: its configuration, the dual variables in two slots a chunk, the state, the log, and the lock.

The rule that makes a run safe: a slot to which the last durable checkpoint points is never overwritten. The first save
of a chunk after a checkpoint goes to its other slot, later ones rewrite that one; a checkpoint syncs what was written
and then replaces ``state.npz``, whose slot bits point to it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .atomic_files import replacing, sync
from .errors import CheckpointError, LockError, file_named
from .locks import release_lock, take_lock
from .metadata import Kind, content_digest, read_metadata, write_metadata

NO_SLOT = 2  # a chunk that was never saved; its rows start from the solver's initial values

_HEADER_BYTES = 16  # checksum, chunk, zeros


RUN = Kind(
    "streamcd-run",
    1,
    dict[str, Any],
    CheckpointError,
    "restore it, or train again with --force",
    "checksum",
    lambda config: "sha256:" + content_digest(config, "checksum"),
)


class SlotStore:
    """Dual variables and active flags of every chunk, in a file per shard with two slots a chunk.

    Parameters
    ----------
    folder : Path
        Made where it is not there.
    chunk_part : ndarray of int, shape (n_chunks,)
        The shard of each chunk.
    n_rows : ndarray of int, shape (n_chunks,)
        Rows of each chunk.
    row_bytes : int
        Bytes that a row's state takes.

    Attributes
    ----------
    current : ndarray of uint8, shape (n_chunks,)
        The slot (0, 1) that holds a chunk's latest state, or `NO_SLOT`.
    bytes_read : int
        Bytes read so far.
    """

    def __init__(self, folder: Path, chunk_part: np.ndarray, n_rows: np.ndarray, row_bytes: int) -> None:
        self._folder = folder
        self._part = chunk_part
        self._slot_bytes = _HEADER_BYTES + np.asarray(n_rows, dtype=np.int64) * row_bytes
        # chunks come part after part, so an offset is what precedes the chunk, less what precedes its part
        self._offset = np.cumsum(2 * self._slot_bytes) - 2 * self._slot_bytes
        self._offset -= self._offset[np.searchsorted(chunk_part, chunk_part)]
        self.current = np.full(chunk_part.size, NO_SLOT, dtype=np.uint8)
        self._durable = self.current.copy()
        self._files: dict[int, int] = {}
        self._unsynced: set[int] = set()
        self.bytes_read = 0
        folder.mkdir(exist_ok=True)

    def allocate(self) -> None:
        """Claim the disk space of all slots now, so that a disk too small is found before any work."""
        last = np.searchsorted(self._part, np.unique(self._part), side="right") - 1
        for chunk in last.tolist():
            size = int(self._offset[chunk] + 2 * self._slot_bytes[chunk])
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._open(chunk), 0, size)

    def restore(self, current: np.ndarray) -> None:
        """Take the slot bits of a checkpoint."""
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
                f"{self._path(int(self._part[chunk]))}: the state of chunk {chunk} is damaged or truncated; "
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
        for piece in body:
            checksum = zlib.crc32(piece, checksum)
        pieces = [checksum.to_bytes(4, "little"), *body]
        assert sum(len(piece) for piece in pieces) == size
        _write_all(self._open(chunk), pieces, int(self._offset[chunk]) + int(self.current[chunk]) * size)
        self._unsynced.add(int(self._part[chunk]))

    def sync(self) -> None:
        """Make all that was saved durable."""
        for part in sorted(self._unsynced):
            os.fsync(self._files[part] if part in self._files else self._open_part(part))
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

    def _path(self, part: int) -> Path:
        return self._folder / f"part-{part:05d}.bin"

    def _open(self, chunk: int) -> int:
        return self._open_part(int(self._part[chunk]))

    def _open_part(self, part: int) -> int:
        if part not in self._files:
            if len(self._files) >= 256:
                os.close(self._files.pop(next(iter(self._files))))
            self._files[part] = os.open(self._path(part), os.O_RDWR | os.O_CREAT, 0o644)
        return self._files[part]


def _write_all(descriptor: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
    written = os.pwritev(descriptor, pieces, offset)
    data = memoryview(b"".join(pieces))[written:] if written < sum(len(piece) for piece in pieces) else b""
    while len(data):  # a short write: the disk is nearly full, the next one says so
        count = os.pwrite(descriptor, data, offset + written)
        written, data = written + count, data[count:]


class Run:
    """A run directory, locked while it is open.

    Parameters
    ----------
    path : Path
        An existing directory; see `create_run` and `open_run`.
    locked : bool
        False for a part of a run that is locked.
    """

    def __init__(self, path: Path, *, locked: bool = True) -> None:
        self.path = path
        self._lock = _lock(path) if locked else None
        self._log_bytes = 0

    def part(self, name: str) -> Run:
        """A directory inside for a part of the work, made where it is not there."""
        (self.path / name).mkdir(exist_ok=True)
        return Run(self.path / name, locked=False)

    @property
    def config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def state_path(self) -> Path:
        return self.path / "state.npz"

    @property
    def log_path(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def model_path(self) -> Path:
        return self.path / "model"

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write ``config.json``, whole."""
        write_metadata(self.config_path, RUN, config)

    def write_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace ``state.npz``: temporary name, sync, rename; remembers how long the log is."""
        if self._log_bytes:
            sync(self.log_path)
        with replacing(self.state_path) as partial, open(partial, "wb") as file:
            np.savez(file, **{**arrays, "log_bytes": np.int64(self._log_bytes)})  # type: ignore[arg-type]

    def read_state(self) -> dict[str, np.ndarray] | None:
        """Arrays of the last checkpoint; None where there was none yet. Cuts the log back to it.

        Raises
        ------
        CheckpointError
            Where the file is damaged; names it.
        """
        arrays = read_arrays(self.state_path)
        if arrays is None:
            self._cut_log(0)
            return None
        with _damage_named(self.state_path):
            log_bytes = int(arrays.pop("log_bytes"))
        self._cut_log(log_bytes)
        return arrays

    def append_log(self, record: Mapping[str, Any]) -> None:
        """Add a line to ``log.jsonl``."""
        line = (json.dumps(record) + "\n").encode()
        with open(self.log_path, "ab") as file:
            file.write(line)
        self._log_bytes += len(line)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            release_lock(self._lock)
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut_log(self, n_bytes: int) -> None:
        with open(self.log_path, "ab") as file:
            self._log_bytes = min(n_bytes, file.tell())
            file.truncate(self._log_bytes)


def read_arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray] | None:
    """Arrays of an ``.npz`` file, all or those named; None where there is no file.

    Raises
    ------
    CheckpointError
        Where the file is damaged; names it.
    """
    if not path.exists():
        return None
    with _damage_named(path), np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in names or archive.files}


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Whatever the readers of archives stumble over in a damaged one, as one error that names the file."""
    try:
        with file_named(path):
            yield
    except (
        OSError,
        ValueError,
        EOFError,
        LookupError,
        RuntimeError,  # a flipped bit says that the file is encrypted, or packed in a way that is not known
        AssertionError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # the machine failed, not the file
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{path}: damaged ({reason}); restore the run directory from a copy, or train again with --force"
        ) from None


def read_array_rows(path: Path, name: str, block_rows: int) -> Iterator[np.ndarray]:
    """Rows of a two-dimensional array in an ``.npz`` file, in blocks, so that it is never whole in memory.

    Raises
    ------
    CheckpointError
        Where the file is damaged; names it.
    """
    with _damage_named(path), zipfile.ZipFile(path) as archive, archive.open(name + ".npy") as file:
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        (n_rows, n_columns), fortran, dtype = read_header(file)
        assert not fortran
        for start in range(0, n_rows, block_rows):
            count = min(block_rows, n_rows - start) * n_columns
            yield np.frombuffer(file.read(count * dtype.itemsize), dtype=dtype).reshape(-1, n_columns)


def _lock(path: Path) -> int:
    lock = take_lock(path / "lock", os.O_RDWR | os.O_CREAT)
    if lock is None:
        raise LockError(f"{path}: another process is using this run; wait for it to end or stop it")
    return lock


def read_config(path: Path) -> dict[str, Any]:
    """Read the configuration of a run directory.

    Raises
    ------
    CheckpointError
        Where it is not a run, or its configuration is damaged.
    """
    config_path = path / "config.json"
    try:
        config, _ = read_metadata(config_path, RUN)
    except (FileNotFoundError, NotADirectoryError):
        kind = "is not a run (no config.json in it)" if path.exists() else "does not exist"
        raise CheckpointError(f"{path} {kind}; 'streamcd train DATASET {path}' makes a run") from None
    return {
        key: value for key, value in config.items() if key not in ("format", "format_version", "checksum")
    }


def create_run(path: Path, *, force: bool) -> Run:
    """Make an empty run directory, or empty one with `force`.

    Raises
    ------
    CheckpointError
        Where there is something in it already; the caller says what, if it is a run.
    """
    path.mkdir(parents=True, exist_ok=True)
    leftovers = [entry for entry in path.iterdir() if entry.name != "lock"]
    if leftovers and not force:
        raise CheckpointError(
            f"{path} is not empty; name another directory, or give --force to replace what is in it"
        )
    if leftovers and not (path / "config.json").exists():
        raise CheckpointError(
            f"{path} is not empty and not a run; --force replaces runs only, name another directory"
        )
    run = Run(path)
    # the configuration goes last: what an interrupted removal leaves is still known as a run, and --force removes it
    try:
        for entry in sorted(leftovers, key=lambda entry: entry.name == "config.json"):
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    except BaseException:
        run.close()
        raise
    return run


def open_run(path: Path) -> Run:
    """Lock an existing run directory."""
    read_config(path)
    return Run(path)
