"""Files that appear whole or not at all, metadata sealed by a digest, and locks: one process writes a directory.

Locks end with the last process that holds them. A forked child inherits its parent's, and would hold them after the parent's
end, so children release them at once. Only workers keep them: however the coordinator ended, its directory is free only when
no worker writes there any more.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import re
import reprlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from .._version import __version__
from .errors import DataError, StreamcdError, UsageError, file_named
from .storage import Location, Url

# ---------------------------------------------------------------------------------------------------------------------
# Whole or not at all: temporary name, sync, replace, sync of the directory


def sync(*paths: Path) -> None:
    """Make the bytes of files, or the names in directories, durable; several at a time share writes of the journal."""
    if len(paths) != 1:
        with ThreadPoolExecutor(8, thread_name_prefix="streamcd-sync") as pool:
            list(pool.map(sync, paths))
        return
    descriptor = os.open(paths[0], os.O_RDONLY)
    try:
        with file_named(paths[0]):
            os.fsync(descriptor)  # safety: durability::power_cut[train]
    finally:
        os.close(descriptor)


@contextmanager
def replacing(*paths: Path, before: Sequence[Path] = ()) -> Iterator[list[Path]]:
    """Yield temporary names to write to; the files written there replace `paths`, of one directory, when the block ends.

    If the block fails, they stay as they were and the temporary files are removed. The directory is made if needed. The
    files `before` are made durable first. The last one tells of the others: it is gone before the first of them is
    replaced, and comes last.
    """
    *others, last = paths
    partials = [path.with_name(
        path.name
        + ".partial"  # safety: metadata::replaced_whole
    ) for path in paths]  # fmt: skip
    new = make_directory(last.parent)
    for partial in partials:
        if partial.is_symlink():  # safety: files_of_others::through_a_symbolic_link[predict]
            raise UsageError(f"{partial}: a symbolic link, through which nothing is written; remove it")
    try:
        with file_named(last):
            yield partials
        sync(*new, *before, *partials)  # safety: durability::power_cut[predict]
        if others:
            if last.exists():
                last.unlink()  # safety: durability::power_cut[a model over another]
                # its name is gone before the others get theirs
                sync(last.parent)
            for partial, path in zip(partials, others, strict=False):
                os.replace(partial, path)
            # the others have theirs before it has its own
            sync(last.parent)  # safety: durability::power_cut[a model over another]
        os.replace(partials[-1], last)
        sync(last.parent)  # safety: durability::power_cut[predict]
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)


def check_output(
    path: Path, kind: str, is_kind: Callable[[Path], bool], *, force: bool, inputs: Iterable[str | Path] = ()
) -> None:
    """Refuse an output that would replace an input, a file that `is_kind` rejects or, without `force`, anything at all.

    The message names --force only where it helps.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        wrong = f"no such directory: {folder}; make it first"
    elif not os.path.lexists(path):
        return
    elif any(
        os.path.exists(source) and os.path.exists(path) and path.samefile(source) for source in inputs
    ):  # safety: files_of_others::the_text_they_are_of
        wrong = f"{path} is an input; name another place for the output"
    elif not is_kind(path):  # safety: files_of_others::of_another_kind[export a model-letter- --force]
        wrong = f"{path} exists and is not {kind}; name another place"
    elif not force:  # safety: files_of_others::is_replaced_by_force[predict]
        wrong = f"{path} exists; name another place, or give --force to replace it"
    else:
        return
    raise UsageError(wrong)


_OTHER_FORMATS = re.compile(
    r"\.(onnx|pmml|csv|tsv|jsonl?|parquet|arrow|feather|np[yz]|pkl|pickle|joblib|xml|html|yaml|xlsx|h5|pt|pb|safetensors|"
    r"mlmodel|ubj|arff|zip|gz|bz2|xz|zst)"
)
"""Endings of the names of files."""


def refuse_other_ending(path: Path, written: str) -> None:
    """Refuse a name that ends as files of another format than plain text do; `written` is what would be in the file."""
    if _OTHER_FORMATS.fullmatch(path.suffix.lower()):
        raise UsageError(
            f"{path}: expected a name for {written}, such as {path.stem}.txt, found the ending of another format, "
            f"{path.suffix}"
        )


def begins_with(path: Path, pattern: bytes) -> bool:
    """Check if a regular file begins with a match of a regular expression; false for devices and pipes."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return re.match(pattern, file.read(4096)) is not None


def work_directory(path: Path) -> Path:
    """Name the directory beside `path` in which is made what will be there."""
    path = path.absolute()
    return path.with_name(f".{path.name}.partial")


def make_directory(path: Path) -> list[Path]:
    """Make a directory, with its parents, unless it exists; returns the directories to `sync` for its name to be durable."""
    if path.is_dir():
        return []
    changed = make_directory(path.parent)
    path.mkdir(exist_ok=True)
    return [
        *changed,
        path.parent,  # safety: durability::power_cut[train]
    ]


def put_directory(new: Path, path: Path, *, force: bool) -> None:
    """Move a complete directory to `path`; with `force` an existing one is replaced in one step, and then is at `new`."""
    if force and path.exists():
        exchange(new, path)  # safety: metadata::two_directories_change
    else:
        os.rename(new, path)
    sync(path.parent)  # safety: durability::power_cut[convert]


def exchange(path: Path, other: Path) -> None:
    """Let two directories change places in one step, which some file systems cannot."""
    working_directory = -100  # AT_FDCWD, and 2 is RENAME_EXCHANGE
    paths = working_directory, os.fsencode(path), working_directory, os.fsencode(other)
    if ctypes.CDLL(None, use_errno=True).renameat2(*paths, 2) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(path), None, os.fspath(other))


# ---------------------------------------------------------------------------------------------------------------------
# Metadata in JSON: checked by declared structures, written whole, sealed by a digest


WRITER = "streamcd"
"""Key for the version of streamcd that wrote the file."""

SEAL = "seal"
"""Key for the digest of the other keys."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A non-negative integer, in a declared structure."""

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
"""A positive integer, in a declared structure."""

Seconds = Annotated[float, msgspec.Meta(gt=0)]
"""A time above 0, in a declared structure."""

FileName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^([\w-]+/)?[\w-][\w.-]*\Z",  # safety: dataset::names_of_files_that_leave
    ),
]
"""Name of a file in the directory of the metadata file, or in a folder of that directory."""

Folder = Annotated[str, msgspec.Meta(pattern=r"^[\w-]*\Z")]
"""Name of a folder in the directory of the metadata file; empty for that directory itself."""


class Structure(msgspec.Struct, omit_defaults=True):
    """Fields and types of a JSON object; keys beyond the fields are allowed."""

    def record(self) -> Any:
        """Return its fields that differ from their defaults, for JSON."""
        return msgspec.to_builtins(self, str_keys=True)

    def but(self: AnyStructure, **fields: Any) -> AnyStructure:
        """Return a copy with other values of some fields."""
        return msgspec.structs.replace(self, **fields)


AnyStructure = TypeVar("AnyStructure", bound=Structure)


Content = TypeVar("Content")


@dataclass(frozen=True)
class Kind(Generic[Content]):
    """A kind of metadata file."""

    format: str  # value of its key "format"
    version: int  # value of its key "format_version"
    structure: type[Content]  # of its content: a `Structure`, or any mapping
    error: type[StreamcdError]  # raised if the file is damaged
    remedy: str  # advice in that error
    fingerprint: Callable[[Mapping[str, Any]], str] | None = None  # of the content, which the file tells


_DIRECTORIES = {"manifest.json": "a dataset", "config.json": "a run", "model.json": "a model"}


def kind_of_directory(path: Location) -> str:
    """Tell by its metadata if a directory is a dataset, a run or a model; empty for anything else, and for a damaged one."""
    for name, kind in _DIRECTORIES.items():
        file = path / name
        if file.exists() if isinstance(file, Url) else begins_with(file, rb'\s*{\s*"format": "streamcd-'):
            return kind
    return ""


def describe_other_kind(path: Location, expected: str) -> str:
    """Describe a directory of another kind than expected; empty for what is none of streamcd's."""
    kind = kind_of_directory(path)
    return f"{path} is {kind}, expected {expected}" if kind else ""


def content_digest(content: Mapping[str, Any], *without: str) -> str:
    """Compute 32 digits of the SHA-256 of the content as canonical JSON, leaving out its seal and the keys `without`."""
    sealed = {key: value for key, value in content.items() if key not in (SEAL, *without)}
    return hashlib.sha256(json.dumps(sealed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def read_metadata(path: Location, kind: Kind[Content]) -> tuple[dict[str, Any], Content]:
    """Read a metadata file: all its keys as they are, and the declared ones in the declared types.

    Raises the error that `kind` names if the file is damaged or of another kind, and FileNotFoundError or
    NotADirectoryError if there is none.
    """
    if isinstance(path, Path) and path.exists() and not path.is_file():
        raise kind.error(  # safety: dataset::manifest_that_is_no_file[rows]
            f"{path}: expected a file, found a device, a pipe or a directory; {kind.remedy}"
        )
    try:
        raw = json.loads(path.read_bytes())
        # half a surrogate pair is no text, and cannot be printed
        json.dumps(raw, ensure_ascii=False).encode()
        if not isinstance(raw, dict) or raw.get("format") != kind.format:
            problem = f"expected a {kind.format}, found something else"
        elif raw.get("format_version") != kind.version:  # safety: metadata::another_version
            version, writer = (reprlib.repr(raw.get(key)) for key in ("format_version", WRITER))
            problem = f"expected format version {kind.version}, found {version}, written by streamcd {writer}"
        elif raw.get(SEAL) != content_digest(raw):  # safety: resume::changed_configuration
            problem = "changed since it was written"
        else:
            return raw, msgspec.convert(raw, kind.structure, str_keys=True)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        reason = str(error)
        problem = f"damaged ({reason[:1].lower()}{reason[1:]})"
    raise kind.error(f"{path}: {problem}; {kind.remedy}")


def as_structure(content: Mapping[str, Any], structure: type[Content], name: str) -> Content:
    """Return a part of a file's content in the declared types; raises DataError with `name` where it has others."""
    try:
        return msgspec.convert(content, structure, str_keys=True)
    except msgspec.ValidationError as error:
        raise DataError(f"{name}: damaged ({error}); convert the data again") from None


def write_metadata(path: Path, kind: Kind[Any], fields: Mapping[str, Any]) -> None:
    """Write a metadata file, whole or not at all, with its format and seal."""
    with replacing(path) as (partial,):
        partial.write_bytes(metadata_text(kind, fields))


def metadata_text(kind: Kind[Any], fields: Mapping[str, Any], *, allow_nan: bool = True) -> bytes:
    """Return the content of a metadata file, with its format, the version that wrote it, and its seal."""
    content = {"format": kind.format, "format_version": kind.version, WRITER: __version__, **fields}
    if kind.fingerprint is not None:
        content["fingerprint"] = kind.fingerprint(content)
    content[SEAL] = content_digest(content)
    return (json.dumps(content, indent=1, allow_nan=allow_nan) + "\n").encode()


# ---------------------------------------------------------------------------------------------------------------------
# Locks


_held: set[int] = set()
_copies_keep = False
_DYING_SECONDS = 5.0
"""The time in which the workers of a killed process, which hold its locks, end on a busy machine."""


def take_lock(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Open a file or a directory, which is no link, and lock it for this process alone.

    Returns the descriptor that holds the lock; None if another process has it. Where that one has ended, its workers are
    ending: they are waited for.
    """
    flags |= os.O_NOFOLLOW  # safety: durability::are_no_links convert::work_goes_to_no_directory
    descriptor = os.open(path, flags, 0o644)
    until = time.monotonic() + _DYING_SECONDS
    while True:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # safety: resume::run_in_use
            _held.add(descriptor)
            return descriptor
        if _is_of_a_living_process(descriptor) or time.monotonic() > until:
            os.close(descriptor)
            return None
        time.sleep(0.02)


def _is_of_a_living_process(descriptor: int) -> bool:
    """Check if the process that took the lock of a file still lives; the system lists who took which."""
    number = os.fstat(descriptor).st_ino
    lines = Path("/proc/locks").read_text(encoding="ascii")
    # "1: FLOCK  ADVISORY  WRITE 4242 08:01:1234567 0 EOF", in its own namespace of processes
    owners = re.findall(rf"FLOCK +\w+ +\w+ (\d+) \w+:\w+:{number} ", lines)
    return not lines or any(os.path.exists(f"/proc/{owner}") for owner in owners)


def release_lock(descriptor: int) -> None:
    _held.discard(descriptor)
    os.close(descriptor)


@contextmanager
def scratch_directory(parent: Path, purpose: str) -> Iterator[Path]:
    """Make a directory in `parent` for temporary files, removed at the end.

    Directories left there by killed processes for the same purpose are removed first: nobody holds their locks.
    """
    prefix = f".streamcd-{purpose}-"
    for old in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # another process may remove it too
            if old.is_dir() and not old.is_symlink() and old.stat().st_uid == os.geteuid():
                _remove_locked(old, take_lock(old))
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):  # another process may have removed it before it is locked
            lock = take_lock(path)
            if lock is not None and path.exists():
                break
    try:
        yield path
    finally:
        _remove_locked(path, lock)


def _remove_locked(path: Path, lock: int | None) -> None:
    if lock is not None:
        shutil.rmtree(path, ignore_errors=True)
        release_lock(lock)


@contextmanager
def kept_by_copies() -> Iterator[None]:
    """Let processes forked within the block keep this process's locks."""
    global _copies_keep
    _copies_keep = True  # safety: parallel::nobody_begins[copied]
    try:
        yield
    finally:
        _copies_keep = False


class HeldLocks:
    """All locks of this process, as an argument for a spawned one, which holds them once it has unpickled this."""

    def __reduce__(self) -> tuple[Callable[..., HeldLocks], tuple[Any, ...]]:
        return _hold, (
            *map(reduction.DupFd, _held),  # safety: parallel::nobody_begins[spawned]
        )


def _hold(*received: Any) -> HeldLocks:
    _held.update(descriptor.detach() for descriptor in received)
    return HeldLocks()


def _let_go() -> None:
    if not _copies_keep:  # safety: durability::forked_child_holds_no_lock
        for descriptor in tuple(_held):
            release_lock(descriptor)


os.register_at_fork(after_in_child=_let_go)
