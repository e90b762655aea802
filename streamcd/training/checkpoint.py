"""A run on disk: its configuration, the state of its last checkpoint, the log, and the lock."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import replacing, sync
from ..core.errors import CheckpointError, LockError, file_named
from ..core.locks import release_lock, take_lock
from ..core.metadata import Kind, content_digest, read_metadata, write_metadata

RUN = Kind(
    "streamcd-run",
    1,
    dict[str, Any],
    CheckpointError,
    "restore it, or train again with --force",
    "checksum",
    lambda config: "sha256:" + content_digest(config, "checksum"),
)


class Run:
    """A run directory, locked while it is open.

    Parameters
    ----------
    path : Path
        An existing directory; see `create_run` and `open_run`.
    locked : bool
        Whether to lock; False for a directory inside a run that is locked already.
    """

    def __init__(self, path: Path, *, locked: bool = True) -> None:
        self.path = path
        self.config_path, self.state_path = path / "config.json", path / "state.npz"
        self.log_path, self.model_path = path / "log.jsonl", path / "model"
        self._lock = _lock(path) if locked else None
        self._log_bytes = 0

    def part(self, name: str) -> Run:
        """Open a directory inside the run for a part of the work; created where it does not exist."""
        (self.path / name).mkdir(exist_ok=True)
        return Run(self.path / name, locked=False)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write ``config.json``, whole."""
        write_metadata(self.config_path, RUN, config)

    def write_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace ``state.npz``: temporary name, sync, rename; with the length of the log."""
        if self._log_bytes:
            sync(self.log_path)
        with replacing(self.state_path) as partial, open(partial, "wb") as file:
            np.savez(file, **{**arrays, "log_bytes": np.int64(self._log_bytes)})  # type: ignore[arg-type]

    def read_state(self) -> dict[str, np.ndarray] | None:
        """Read the arrays of the last checkpoint, and cut the log back to it; None where there is none yet.

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
    """Read arrays of an ``.npz`` file, all or those named; None where there is no file.

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
    """Raise one error that names the file, whatever the readers of archives make of a damaged one."""
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
        tokenize.TokenError,  # numpy's, of a header that ends too early
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
    """Iterate over blocks of rows of a two-dimensional array in an ``.npz`` file, which is never whole in memory.

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
        Where it is not empty; the caller says what is in it, if it is a run.
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
    # the configuration goes last: a directory whose removal was interrupted is still known as a run, and --force removes it
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
