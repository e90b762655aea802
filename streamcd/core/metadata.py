"""Metadata in JSON files: read and checked by declared structures, written whole, sealed by a digest of their content."""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from .._version import __version__
from .atomic_files import write_file
from .errors import DataError, StreamcdError
from .storage import Location

WRITER = "streamcd"
"""Key for the version of streamcd that wrote the file."""

SEAL = "seal"
"""Key for the digest of the other keys."""

MAX_DEPTH = 32
"""Levels of nesting allowed; streamcd's own files have at most five."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A non-negative integer, in a declared structure."""

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
"""A positive integer, in a declared structure."""

FileName = Annotated[str, msgspec.Meta(pattern=r"^([\w-]+/)?[\w-][\w.-]*\Z")]
"""Name of a file in the directory of the metadata file, or in a folder of that directory."""

Folder = Annotated[str, msgspec.Meta(pattern=r"^[\w-]*\Z")]
"""Name of a folder in the directory of the metadata file; empty for that directory itself."""


class Structure(msgspec.Struct, omit_defaults=True):
    """Fields and types of a JSON object; keys beyond the fields are allowed."""

    def record(self) -> Any:
        """Return its fields that differ from their defaults, for JSON."""
        return msgspec.to_builtins(self)

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


def content_digest(content: Mapping[str, Any], *without: str) -> str:
    """Compute 32 digits of the SHA-256 of the content as canonical JSON, leaving out its seal and the keys `without`."""
    kept = {key: value for key, value in content.items() if key not in (SEAL, *without)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def parse_json(data: bytes) -> Any:
    """Parse JSON; raises ValueError if it is malformed or nested more than `MAX_DEPTH` levels deep."""
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _elements(outer)]
    if any(_elements(value) for value in level):
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if re.search(rb"\\u[dD][89a-fA-F]", data):  # half a surrogate pair is no text, and cannot be printed
        json.dumps(content, ensure_ascii=False).encode()
    return content


def _elements(value: Any) -> Collection[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def read_metadata(path: Location, kind: Kind[Content]) -> tuple[dict[str, Any], Content]:
    """Read a metadata file: all its keys as they are, and the declared ones in the declared types.

    Raises the error that `kind` names if the file is damaged or of another kind, and FileNotFoundError or
    NotADirectoryError if there is none.
    """
    if isinstance(path, Path) and path.exists() and not path.is_file():
        raise kind.error(f"{path}: expected a file, found a device, a pipe or a directory; {kind.remedy}")
    try:
        raw = parse_json(path.read_bytes())
        if not isinstance(raw, dict) or raw.get("format") != kind.format:
            problem = f"expected a {kind.format}, found something else"
        elif raw.get("format_version") != kind.version:
            found, writer = (reprlib.repr(raw.get(key)) for key in ("format_version", WRITER))
            problem = f"expected format version {kind.version}, found {found}, written by streamcd {writer}"
        elif raw.get(SEAL) != content_digest(raw):
            problem = "changed since it was written"
        else:
            return raw, msgspec.convert(raw, kind.structure, str_keys=True)
    except (ValueError, msgspec.ValidationError) as error:
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
    write_file(path, metadata_text(kind, fields))


def metadata_text(kind: Kind[Any], fields: Mapping[str, Any], *, allow_nan: bool = True) -> bytes:
    """Return the content of a metadata file, with its format, the version that wrote it, and its seal."""
    content = {"format": kind.format, "format_version": kind.version, WRITER: __version__, **fields}
    if kind.fingerprint is not None:
        content["fingerprint"] = kind.fingerprint(content)
    content[SEAL] = content_digest(content)
    return (json.dumps(content, indent=1, allow_nan=allow_nan) + "\n").encode()
