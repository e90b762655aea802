"""A run on disk: its configuration, the state of its last checkpoint, the log, and the lock."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..core.errors import CheckpointError, LockError, file_named
from ..core.files import (
    SEAL,
    WRITER,
    Kind,
    describe_other_kind,
    make_directory,
    read_metadata,
    release_lock,
    replacing,
    sync,
    take_lock,
    write_metadata,
)
from ..dataset.dataset import Dataset
from ..dataset.feature_order import SourceRows
from ..stream.slot_store import Identity, MemorySlots, SlotStore

RUN = Kind(
    "streamcd-run",
    6,
    dict[str, Any],
    CheckpointError,
    "restore it, or train again with --force",
)

STAMPS = "identity", "log_bytes", "log_crc"
"""Arrays of a checkpoint beside the state and the slots."""

_OWN_KEYS = ("format", "format_version", SEAL, "identity", WRITER)  # of config.json
LINE_BYTES = (
    1 << 20
)  # largest line of a log; and room for the headers of a state's arrays, and other small values
_BLOCK_BYTES = 1 << 18  # of a state, written at a time: its checksum is computed in the processor's cache
_PARTIAL = ("config.json.partial", "state.npz.partial", "scores.json.partial", "log.jsonl.partial")


class Run:
    """An existing run directory, locked while open; `locked` is False for a directory inside a run already locked."""

    def __init__(self, path: Path, identity: Identity, *, locked: bool = True) -> None:
        self.path = path
        self.identity = identity
        self.name = str(path)
        self.config_path = path / "config.json"
        self.state_path = path / "state.npz"
        self.log_path = path / "log.jsonl"
        self.model_path = path / "model"
        self._lock = take_lock(path / "lock", os.O_RDWR | os.O_CREAT) if locked else None
        if locked and self._lock is None:  # safety: resume::run_in_use
            raise LockError(f"{path}: another process is using this run; wait for it to end or stop it")
        self._log_bytes = self._log_crc = 0
        self._unsynced = set[Path]()
        self._early_lines: list[bytes] | None = []  # of the log, before there is a state; then None
        early_log = path / "log.jsonl.partial"
        if self.state_path.exists() and not self.log_path.exists() and early_log.exists():
            os.replace(early_log, self.log_path)  # by a process that was killed between the two
        for name in _PARTIAL:  # of a process that was killed
            (path / name).unlink(missing_ok=True)

    def part(self, name: str) -> Run:
        """Open a directory inside the run for a part of the work, which has its own plan; created if needed."""
        sync(*make_directory(self.path / name))  # safety: durability::power_cut[tune]
        part = Run(self.path / name, self.identity.part(name), locked=False)
        part.name = self.name  # in messages a part is the run
        return part

    def write_config(self, config: Mapping[str, Any]) -> None:
        write_metadata(self.config_path, RUN, {**config, "identity": self.identity.name})

    def write_state(self, arrays: Mapping[str, Any], files: Sequence[Path] = ()) -> None:
        """Replace ``state.npz``, atomically; it records length and checksum of the log, and refers to `files`.

        The first lines of the log get their name after the first state: without a state there is no log (`open_state`).
        """
        if not self.state_path.exists():
            # for the names of the slots' folder and of the early log
            self._unsynced.add(self.path)  # safety: durability::power_cut[train]
        paths = [self.state_path, *[self.log_path] * bool(self._early_lines)]
        files = [*files, *self._unsynced]  # safety: durability::power_cut[train streamed]
        with replacing(*paths, before=files) as (partial, *early_log):
            for path in early_log:
                lines = b"".join(self._early_lines or ())
                path.write_bytes(lines)
                self._log_bytes = len(lines)
                self._log_crc = zlib.crc32(lines)
            identity = np.frombuffer(bytes.fromhex(self.identity.name), np.uint8)
            log = {"log_bytes": np.int64(self._log_bytes), "log_crc": np.int64(self._log_crc)}
            with file_named(self.state_path), open(partial, "wb") as file:
                _write_archive(file, {**arrays, **log, "identity": identity})
        self._early_lines = None
        self._unsynced.clear()

    @contextmanager
    def open_state(self, room: int) -> Iterator[Mapping[str, np.ndarray]]:
        """Open the arrays of the last checkpoint, if any, each of which is read when it is got; then cut the log to it.

        A state much larger than `room` bytes is refused before it is read.
        """
        numbers = read_arrays(self.state_path, ("log_bytes", "log_crc"), self.identity, room + LINE_BYTES)
        if numbers is None:
            yield {}
            return
        with _damage_named(self.state_path):
            log = int(numbers["log_bytes"]), int(numbers["log_crc"])
        if self.log_path.exists():
            check_log(self.log_path, *log)  # safety: identity::same_shape[log.jsonl-resident]
            self._log_bytes, self._log_crc = log
        with _open_archive(self.state_path), np.load(self.state_path, allow_pickle=False) as arrays:
            yield arrays
        if self.log_path.exists():
            with file_named(self.log_path), open(self.log_path, "ab") as file:
                file.truncate(self._log_bytes)  # safety: resume::log_is_cut_back
        self._early_lines = None

    def append_log(self, record: Mapping[str, Any]) -> None:
        """Add a line to ``log.jsonl``."""
        line = (json.dumps(record) + "\n").encode()
        if self._early_lines is not None:
            self._early_lines.append(line)
        else:
            with file_named(self.log_path), open(self.log_path, "ab") as file:
                file.write(line)
            self._unsynced |= {self.log_path} if self._log_bytes else {self.log_path, self.path}
            self._log_bytes += len(line)
            self._log_crc = zlib.crc32(line, self._log_crc)

    def open_slots(self, dataset: Dataset, row_bytes: int) -> SlotStore:
        """Open the slots of a dataset's chunks, as files of this run."""
        return SlotStore(self.path / "dual", dataset, row_bytes, self.identity)

    def state_rows(self, part: str, name: str, block_rows: int) -> Iterator[np.ndarray]:
        """Iterate over blocks of rows of an array in a part's last checkpoint; "" is the run itself."""
        return read_array_rows(self.path / part / "state.npz", name, block_rows)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            release_lock(self._lock)
            self._lock = None


def check_log(path: Path, n_bytes: int, crc: int) -> None:
    """Refuse a log that does not begin with the bytes of the last checkpoint."""
    checksum = 0
    if path.exists():
        with file_named(path), open(path, "rb") as file:
            while block := file.read(min(LINE_BYTES, n_bytes - file.tell())):
                checksum = zlib.crc32(block, checksum)
    if checksum != crc:
        raise CheckpointError(
            f"{path}: damaged, or of another run; restore it from a copy, or train again with --force"
        )


class MemoryRun:
    """A run without files, which keeps its last state in memory and cannot be resumed."""

    name = "(in memory)"

    def __init__(self) -> None:
        self.path = Path(self.name)
        self.state_path = self.path
        self._arrays: Mapping[str, Any] = {}
        self._parts: dict[str, MemoryRun] = {}
        self._slots = MemorySlots()

    def part(self, name: str) -> MemoryRun:
        """Return the part of that name; with "" the run itself."""
        return self._parts.setdefault(name, MemoryRun()) if name else self

    def write_state(self, arrays: Mapping[str, Any], files: Sequence[Path] = ()) -> None:
        """Keep the arrays, not copied."""
        self._arrays = arrays

    @contextmanager
    def open_state(self, room: int) -> Iterator[Mapping[str, np.ndarray]]:
        """Open no arrays: every run in memory is new."""
        yield {}

    def open_slots(self, dataset: Dataset, row_bytes: int) -> SlotStore:
        return self._slots

    def state_rows(self, part: str, name: str, block_rows: int) -> Iterator[np.ndarray]:
        """Iterate over blocks of rows of an array over features of the last state, copied where they are used."""
        rows: SourceRows = self.part(part)._arrays[name]
        for start in range(0, rows.array.shape[0], block_rows):
            yield rows[start : start + block_rows]


AnyRun = Run | MemoryRun


def _write_archive(file: BinaryIO, arrays: Mapping[str, Any]) -> None:
    """Write arrays as ``np.savez`` does, which would copy them: that took half of a checkpoint's processor time."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            blocks: Iterable[np.ndarray]
            if isinstance(array, SourceRows):
                whole = array.array
                blocks = (array[features] for features in array.blocks())
            else:
                whole = np.ascontiguousarray(array).reshape(np.shape(array))
                blocks = np.array_split(whole.reshape(-1), 1 + whole.nbytes // _BLOCK_BYTES)
            with archive.open(name + ".npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(whole))
                for block in blocks:
                    member.write(block.reshape(-1).view(np.uint8).data)


def read_arrays(
    path: Path,
    names: Sequence[str] | None = None,
    identity: Identity | None = None,
    room: int | None = None,
    *,
    whole: bool = False,
) -> dict[str, np.ndarray] | None:
    """Read arrays of a state, all or those named; None if there is none yet. Raises `CheckpointError` if it is damaged.

    The state must belong to the run `identity`, if given, and hold at most `room` bytes. `whole` verifies the checksums of
    all arrays.
    """
    log = path.with_name("log.jsonl")
    has_log = (
        log.exists() and log.stat().st_size > 0
    )  # first: a process that trains writes the state before it
    if not path.exists():
        if has_log:  # safety: resume::truncated_or_missing[gone-state.npz]
            raise CheckpointError(
                f"{path}: missing, though the run's log tells of passes; restore it from a copy, or train again with --force"
            )
        return None
    with _open_archive(path, room) as members, np.load(path, allow_pickle=False) as archive:
        if whole and (damaged := members.testzip()):
            raise ValueError(f"bad checksum of {damaged}")
        stored = archive["identity"].tobytes().hex() if "identity" in archive.files else None
        arrays = {name: archive[name] for name in names or archive.files}
    if identity is not None:
        identity.check(stored, path)  # safety: identity::same_shape[state.npz-resident]
    return arrays


@contextmanager
def _open_archive(path: Path, room: int | None = None) -> Iterator[zipfile.ZipFile]:
    """Open an ``.npz`` file and refuse compressed members: streamcd does not write such files."""
    with _damage_named(path), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
        if not stored or size > path.stat().st_size:  # safety: identity::state_of_another_size[inflates]
            raise ValueError("compressed, or larger than its file")
        if room is not None and size > room:  # safety: identity::state_of_another_size[too large]
            raise ValueError(f"{size:,} bytes, where the state of this run takes {room:,} at most")
        yield archive


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turn the many errors that a damaged archive can raise into a `CheckpointError` that names the file."""
    try:
        with file_named(path):
            yield
    except (
        OSError,
        ValueError,
        EOFError,
        LookupError,
        RuntimeError,  # a flipped bit can mark the file as encrypted, or its compression as unknown
        AssertionError,
        MemoryError,  # a header that claims more than the file holds
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
    """Iterate over blocks of rows of a two-dimensional array in an ``.npz`` file, without reading it as a whole."""
    with _open_archive(path) as archive, archive.open(name + ".npy") as member:
        # for two dimensions and a plain dtype numpy writes version 1.0 of the header
        assert np.lib.format.read_magic(member) == (1, 0)
        (n_rows, n_columns), fortran, dtype = np.lib.format.read_array_header_1_0(member)
        assert not fortran
        for start in range(0, n_rows, block_rows):
            data = member.read(min(block_rows, n_rows - start) * n_columns * dtype.itemsize)
            yield np.frombuffer(data, dtype=dtype).reshape(-1, n_columns)


def read_config(path: Path) -> dict[str, Any]:
    """Read the configuration of a run directory; raises `CheckpointError` if it is not a run, or is damaged."""
    config_path = path / "config.json"
    try:
        config, _ = read_metadata(config_path, RUN)
    except (FileNotFoundError, NotADirectoryError):
        kind = "is not a run (no config.json in it)" if path.exists() else "does not exist"
        if (path / "lock").exists():
            kind = "is a run that ended before its configuration was written"
        absence = f"{path} {kind}; 'streamcd train DATASET {path}' makes a run"
        raise CheckpointError(describe_other_kind(path, "a run") or absence) from None
    return {key: value for key, value in config.items() if key not in _OWN_KEYS}


def read_identity(path: Path) -> Identity:
    """Read the identity of a run."""
    raw, _ = read_metadata(path / "config.json", RUN)
    name = raw.get("identity")
    if not isinstance(name, str) or not re.fullmatch("[0-9a-f]{32}", name):
        raise CheckpointError(f"{path / 'config.json'}: damaged (identity {name!r}); {RUN.remedy}")
    return Identity(name)


def _refuse_links(path: Path) -> None:
    """Refuse a run that contains symbolic links, so that nothing is written through one."""
    for folder, directories, files in os.walk(path):
        for name in (*directories, *files):
            if os.path.islink(os.path.join(folder, name)):
                raise CheckpointError(
                    f"{os.path.join(folder, name)} is a symbolic link, and a run writes to files of its own only; put "
                    "what it points to in its place"
                )


def _content(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if entry.name not in ("lock", *_PARTIAL)]


def create_run(path: Path, *, force: bool) -> Run:
    """Create a run directory, or with `force` empty an existing one; the caller protects runs that must not be replaced."""
    if os.path.lexists(path) and not path.is_dir():
        raise CheckpointError(f"{path} exists and is not a run; name another directory")
    sync(*make_directory(path))
    # a process that ended before it wrote the configuration leaves only the lock
    leftovers = _content(path)
    if leftovers and not (path / "config.json").exists():  # safety: resume::something_else_in_it
        raise CheckpointError(f"{path} is not empty and not a run; name another directory")
    if leftovers and not force:
        raise CheckpointError(
            f"{path} is not empty; name another directory, or give --force to replace what is in it"
        )
    run = Run(path, Identity(os.urandom(16).hex()))
    # the configuration is removed last: after an interruption the directory is still a run, which --force can replace
    with ExitStack() as stack:
        stack.callback(run.close)
        # listed again: a run that is opened gives an early log its name
        for entry in sorted(_content(path), key=lambda entry: entry.name == "config.json"):
            if entry.name == "config.json":
                sync(path)
            if (
                entry.is_dir()
                and not entry.is_symlink()  # safety: identity::symbolic_link_in_a_run[True-dual]
            ):
                shutil.rmtree(entry)
            else:
                entry.unlink()
        stack.pop_all()
    return run


def open_run(path: Path) -> Run:
    """Lock an existing run directory."""
    read_config(path)
    _refuse_links(path)  # safety: identity::symbolic_link_in_a_run[False-model]
    return Run(path, read_identity(path))
