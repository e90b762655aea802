"""Files, folders, globs and URLs; their formats, recognised by content, and the source of rows for each."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from ..core.errors import DataError, UsageError, counted, first_of
from ..core.files import describe_other_kind, kind_of_directory
from ..core.storage import Location, Url, is_url, location
from .byte_sources import delimiter_of, is_compressed, read_head
from .options import TableOptions
from .sources import (
    LIBSVM,
    STANDARD_INPUT,
    Reading,
    Source,
    check_rows,
    display_name,
    open_tables,
    total_bytes,
)

_TABLES = ("csv", "parquet", "arrow")
_TEXT = ("libsvm", "csv")
_MATRICES = ("npz", "npy")
_MAGIC = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"\xff\xff\xff\xff", "arrow"),
    (b"PK\x03\x04", "npz"),
    (b"PK\x05\x06", "npz"),
    (b"\x93NUMPY", "npy"),
    (b"PARE", "encrypted Parquet"),
    (b"%PDF", "PDF"),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
    (b'{"', "JSON"),
    (b"[{", "JSON"),
    (b"@relation", "ARFF"),
    (b"@RELATION", "ARFF"),
    (b"<", "HTML or XML"),
)
_BINARY_BYTES = 1 << 10
_NULL_KEY = "__HIVE_DEFAULT_PARTITION__"


class Files(NamedTuple):
    """Files of the sources, in an order that does not depend on the file system."""

    paths: list[str]
    roots: dict[str, str]  # of files in folders: the one that was given, or that above a pattern
    passed_over: dict[str, str]  # names in these folders that are not read, with the reason


def expand(sources: str | Path | Sequence[str | Path]) -> Files:
    """List the files of the sources.

    Sources are files, directories (the files in them and below; hidden ones are passed over), glob patterns, URLs of any of
    these, or ``"-"`` for standard input.
    """
    files = Files([], {}, {})
    for given in [sources] if isinstance(sources, str | os.PathLike) else sources:
        _expand(os.fspath(given), files)
    if not files.paths:
        raise UsageError(
            "expected at least one source, found none; name files, directories, globs or - for standard input"
        )
    if files.paths.count(STANDARD_INPUT) > 1:
        raise UsageError("standard input (-) can be read once only, found it twice among the sources")
    return files


def _expand(source: str, files: Files) -> None:
    """Add the files of a source."""
    path = location(source)
    passed_over = dict[str, str]()
    root = str(path)
    n_matched = 0
    if source == STANDARD_INPUT:
        listed = {source: 0}
    elif isinstance(path, Url):
        root = root.rstrip("/")
        names = [str(file) for file in path.expand()]
        if names and root not in names:
            _refuse_other_kind(path)
        if glob.has_magic(root):
            pattern = root
            root = re.split(r"[*?[]", root)[0].rpartition("/")[0]
            n_matched = sys.maxsize if "**" in pattern else pattern.count("/") - root.count("/")
        listed = dict.fromkeys(names, n_matched)
    else:
        is_pattern = not path.exists()
        matches = iter([path])
        if path.is_dir():
            _refuse_other_kind(path)
            matches = path.iterdir()
        elif is_pattern and not glob.has_magic(root):
            raise UsageError(f"no such file or directory: {source}; check the name")
        elif is_pattern:
            # a pattern of pathlib's does not follow symbolic links, which may lead back
            above = next(folder for folder in path.parents if not glob.has_magic(str(folder)))
            within = (path / "*" if path.name == "**" else path).relative_to(above)
            root = str(above)
            matches = above.glob(str(within))
        listed = {
            str(file): len(match.relative_to(root).parts) if is_pattern else 0
            for match in matches
            for file in _files_at(match, passed_over, is_pattern)
        }
    named = []
    for name, n_matched in sorted(listed.items()):
        parts = Path(name).relative_to(root).parts
        # of the parts that a pattern names an underscore hides none
        hidden = (n for n, part in enumerate(parts) if part[0] == "." or (part[0] == "_" and n >= n_matched))
        if (n := next(hidden, None)) is None:
            named.append(name)
        else:
            passed_over[name.rsplit("/", len(parts) - 1 - n)[0]] = "hidden"
    if not named:
        more = f"; {_describe(passed_over)}" if passed_over else ""
        raise UsageError(f"expected files, found none: {source}{more}; check the name, or the pattern")
    files.paths.extend(named)
    files.roots.update((name, root) for name in named if name != root)
    files.passed_over.update(passed_over)


def _refuse_other_kind(path: Location) -> None:
    if other := describe_other_kind(path, "files of data"):
        takes = f"; 'streamcd export {path} FILE' makes text of it, and train, evaluate and predict take it as it is"
        raise UsageError(other + (takes if kind_of_directory(path) == "a dataset" else ""))


def _files_at(path: Path, passed_over: dict[str, str], is_match: bool = False) -> Iterator[Path]:
    """List a file, or those in a folder and below; what is hidden, but for a match of a pattern, as a whole."""
    if not path.is_dir() or (path.name.startswith((".", "_")) and not is_match):
        yield path
    elif path.is_symlink():
        passed_over[str(path)] = "a link to a folder"
    elif kind := kind_of_directory(path):
        passed_over[str(path)] = kind
    else:
        for inner in path.iterdir():
            yield from _files_at(inner, passed_over)


def _describe(passed_over: Mapping[str, str]) -> str:
    listed = [f"{name} ({reason})" for name, reason in sorted(passed_over.items())]
    return f"passed over: {first_of(listed, 5)}"


def recognise(path: str, decoder_bytes: int, format: str) -> str:
    """Recognise a file's format, unless it is given, by its first bytes; empty for a file that is.

    A pipe, which can be opened only once, is not inspected: libsvm text is expected.
    """
    if path != STANDARD_INPUT and not is_url(path) and not os.path.isfile(path):
        return "libsvm" if format == "auto" else format
    text = read_head(path, decoder_bytes)
    if not text.strip() or format != "auto":
        return format if text.strip() else ""
    recognised = next((name for magic, name in _MAGIC if text.startswith(magic)), "")
    first_member = text[30 : 30 + int.from_bytes(text[26:28], "little")]  # if it is a ZIP archive
    if text.startswith(b"PK\x03\x04") and not first_member.endswith(b".npy"):
        recognised = "a ZIP archive, as Excel's workbooks are"
    elif not recognised and b"\0" in text[:_BINARY_BYTES]:
        recognised = "binary data of another kind"
    recognised = recognised or ("csv" if delimiter_of(text) else "libsvm")
    if recognised not in _TEXT + _TABLES + _MATRICES:
        raise DataError(
            f"{display_name(path)}: expected libsvm text, CSV, Parquet, Arrow, npz or npy, found {recognised}; "
            "write it as one of these"
        )
    return recognised


def open_source(files: Files, format: str, reading: Reading, options: TableOptions) -> Source:
    """Make the source of rows of files, all of one format but for empty ones."""
    by_format: dict[str, list[str]] = {}
    for path in files.paths:
        by_format.setdefault(recognise(path, reading.decoder_bytes, format), []).append(path)
    empty = by_format.pop("", [])
    check_rows(len(by_format), empty, "an empty file" if len(empty) == 1 else "empty files")
    (kind, paths), *others = by_format.items()
    for other, (first, *_) in others:
        raise UsageError(
            f"expected files of one format, found {kind} in {paths[0]} and {other} in {first}; convert them one by one, or "
            "name the --format"
        )
    if format == "auto" and kind == "libsvm" and options.label and not options.label.lstrip("-").isdigit():
        kind = "csv"  # a table of one column
    format = kind
    keys = {path: _keys_of(path, files.roots.get(path, path)) for path in paths}
    messages = []
    if len(paths) > 1:
        folders = {os.path.dirname(path) for path in paths}
        messages.append(f"reading {len(paths):,} files of {counted(len(folders), 'folder')}")
    if passed_over := files.passed_over | dict.fromkeys(empty, "empty"):
        messages.append(_describe(passed_over))
    _check(paths, format, reading, options)
    reader: Any
    # each with its libraries only where it is met: the parser's kernels, CSV, Parquet, zip
    if format == "libsvm":
        from .libsvm import LibsvmReader

        source = Source(reader=LibsvmReader(paths, reading), reading=reading, made_from=LIBSVM)
    elif format in _MATRICES:
        from .matrix_files import open_matrices

        source = open_matrices(paths, format == "npz", reading, options)
    else:
        if format == "csv":
            from .delimited import CsvReader

            reader = CsvReader(paths, reading, (options.label, options.weight_column), options.features)
        elif format == "parquet":
            from .tables import ParquetReader

            reader = ParquetReader(paths, reading.batch_bytes)
        else:
            from .tables import ArrowReader

            reader = ArrowReader(paths, reading.batch_bytes)
        source = open_tables(reader, reading, options, display_name(paths[0]), keys)
    if (names := dict.fromkeys(chain.from_iterable(keys.values()))) and format not in _TABLES:
        messages.append(
            f"the keys of folders ({', '.join(names)}) are not read: {format} has no named columns"
        )
    alone = next((path for path in paths if path not in files.roots and "=" in os.path.dirname(path)), "")
    if alone:
        messages.append(
            f"{alone}: keys of folders are columns of files in a folder that is named, not of single files"
        )
    return replace(source, total_bytes=total_bytes(paths), messages=(*messages, *source.messages))


def _keys_of(path: str, root: str) -> dict[str, str | None]:
    """Parse the names of the folders between a file and its root, of which ``key=value`` is a column."""
    pairs = (folder.partition("=") for folder in Path(path).relative_to(root).parts[:-1])
    return {
        unquote(key): None if value == _NULL_KEY else unquote(value) for key, is_key, value in pairs if is_key
    }


def is_plain(path: str) -> bool:
    """Tell a file that can be read at any place from others, and from compressed ones."""
    return total_bytes([path]) is not None and not is_compressed(path)


def _check(paths: list[str], format: str, reading: Reading, options: TableOptions) -> None:
    """Refuse what a format cannot be read from, or with."""
    name = display_name(paths[0])
    said = LIBSVM if format == "libsvm" else format
    is_table = format in _TABLES
    encoding = reading.encoding
    given = [option for option in options.given if format == "libsvm" or option != options.label_flag]
    strings = [] if encoding is None else encoding.string_columns
    ranges = " or a server that gives ranges" if format == "parquet" else ""
    for path in paths if format not in _TEXT else ():
        if not (is_plain(path) and (ranges or not is_url(path))):
            raise UsageError(
                f"{display_name(path)}: expected a plain file where it holds {format}, on a disk{ranges}, found another; "
                "decompress or download it first"
            )
    if given and not is_table and not encoding:
        raise UsageError(f"{', '.join(given)}: expected a table with named columns, found {said} in {name}")
    if strings and not is_table:
        raise UsageError(
            f"{name}: expected a table with the strings of the training data (columns {first_of(strings, 3)}), found {said}"
        )
    if is_table and encoding is None and not reading.needs_label:
        raise UsageError(
            f"{name}: expected libsvm text or a matrix, found a table: the model's data came from none, and its features "
            "have no names; train on a dataset that was converted from a table"
        )
