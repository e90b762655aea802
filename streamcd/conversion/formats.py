"""Formats of sources, recognised by content, and the source of rows for each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ..core.errors import DataError, UsageError
from ..core.storage import is_url
from .byte_sources import (
    STANDARD_INPUT,
    Piece,
    display_name,
    is_compressed,
    read_head,
    total_bytes,
)
from .options import TableOptions
from .sources import LIBSVM, Reading, Source

_TABLES = ("csv", "parquet", "arrow")
_MAGIC = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"\xff\xff\xff\xff", "arrow"),
    (b"PK\x03\x04", "npz"),
    (b"PK\x05\x06", "npz"),
    (b"\x93NUMPY", "npy"),
)
_FOREIGN = (
    (b"\x89HDF", "HDF5"),
    (b"SQLite format", "SQLite"),
    (b"ORC", "ORC"),
    (b"PARE", "encrypted Parquet"),
    (b"Obj\x01", "Avro"),
    (b"%PDF", "PDF"),
    (b"FEA1", "Feather's version 1"),
    (b"\x89PNG", "PNG"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
    (b'{"', "JSON"),
    (b"[{", "JSON"),
    (b"@relation", "ARFF"),
    (b"<", "HTML or XML"),
)
_HEAD_BYTES = 1 << 20
_DELIMITERS = ",;\t|"
_NAMED = 5
_WORD = re.compile(r"(?!(?:nan|inf|infinity)\b)[^\W\d_]{2}", re.IGNORECASE)
_LIBSVM_TOKEN = re.compile(r"(?:qid|[0-9]+):")


def recognise(path: str) -> tuple[str, bytes]:
    """Recognise a file's format by its first bytes; also returns these for standard input, which cannot be read again.

    A pipe, which can be opened only once, is not inspected: libsvm text is expected.
    """
    if path != STANDARD_INPUT and not is_url(path) and not os.path.isfile(path):
        return "libsvm", b""
    head, text = read_head(Piece(path), _HEAD_BYTES)
    kept = head if path == STANDARD_INPUT else b""
    foreign = [name for magic, name in _FOREIGN if text.lower().startswith(magic.lower())]
    if head.startswith(b"PK\x03\x04") and not _first_member(head).endswith(b".npy"):
        foreign = ["a ZIP archive, as Excel's workbooks are"]
    if foreign:
        raise DataError(
            f"{display_name(path)}: expected libsvm text, CSV, Parquet, Arrow, npz or npy, found {foreign[0]}; "
            "write it as one of these"
        )
    for magic, name in _MAGIC:
        if text.startswith(magic):
            return name, kept
    return ("csv" if delimiter_of(text) else "libsvm"), kept


def _first_member(head: bytes) -> bytes:
    """Return the name of the first file of a ZIP archive."""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")]


def delimiter_of(text: bytes) -> str | None:
    """Return the delimiter of a table's first line; None for a line of libsvm text, or of a single word."""
    lines = text.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace").splitlines()
    line = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if any(_LIBSVM_TOKEN.match(token) for token in line.split()[:2]):
        return None
    counts = {delimiter: line.count(delimiter) for delimiter in _DELIMITERS}
    most = max(counts, key=counts.__getitem__)
    return most if counts[most] else None


def open_source(
    paths: list[str], roots: dict[str, str], format: str, reading: Reading, options: TableOptions
) -> Source:
    """Make the source of rows of files, all of one format."""
    head = b""
    if format == "auto":
        found = {path: recognise(path) for path in paths}
        format, head = found[paths[0]][0], found.get(STANDARD_INPUT, ("", b""))[1]
        for path, (other, _) in found.items():
            if other != format:
                raise UsageError(
                    f"expected files of one format, found {format} in {paths[0]} and {other} in {path}; "
                    "convert them one by one, or name the --format"
                )
        if format == "libsvm" and options.label and not options.label.lstrip("-").isdigit():
            format = "csv"  # a table of one column
        if format == "libsvm" and paths[0] in roots:
            _check_rows(paths[0], roots[paths[0]])
    elif STANDARD_INPUT in paths:
        head, _ = read_head(Piece(STANDARD_INPUT), _HEAD_BYTES)
    if STANDARD_INPUT in paths and format not in ("libsvm", "csv"):
        raise UsageError(f"expected text on standard input, found {format}; name a file")
    if format == "libsvm":
        return _open_libsvm(paths, head, reading, options)
    if format in _TABLES:
        return _open_table(paths, roots, format, head, reading, options)
    from .matrix_files import open_matrices  # zip and npy: only where they are met

    _refuse_urls(paths, format)
    return open_matrices(paths, format, reading, options)


def _check_rows(path: str, root: str) -> None:
    """Refuse the file of a directory that begins with words, as notes or a document do, rather than with a label."""
    text = read_head(Piece(path), _HEAD_BYTES)[1].decode(errors="replace")
    line = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "0")
    if _WORD.match(line.lstrip("\ufeff \t")):
        raise UsageError(
            f"{root}: expected files of data, found text in {os.path.relpath(path, root)}; name the files of data"
        )


def _refuse_urls(paths: list[str], format: str) -> None:
    """Refuse what is mapped into memory, or found by name in a file."""
    for path in filter(is_url, paths):
        raise UsageError(
            f"{path}: expected a file on disk where it holds {format}, found a URL (text, CSV and Parquet are read from "
            "there); download it first"
        )


def _open_libsvm(paths: list[str], head: bytes, reading: Reading, options: TableOptions) -> Source:
    from .libsvm import LibsvmReader  # the parser's kernels: only where there is text

    if options.given and not reading.encoding:
        raise UsageError(
            f"{', '.join(options.given)}: expected a table with named columns, found libsvm text in "
            f"{display_name(paths[0])}; leave the option out, or name the --format"
        )
    if reading.encoding is not None and reading.encoding.string_columns:
        names = ", ".join(reading.encoding.string_columns[:3])
        raise UsageError(
            f"{display_name(paths[0])}: expected a table with the strings of the training data (columns {names}, …), found "
            "libsvm text"
        )
    reader = LibsvmReader(paths, reading, head=head)
    return Source(reader=reader, reading=reading, made_from=LIBSVM, what="rows of libsvm text")


def _open_table(
    paths: list[str], roots: dict[str, str], format: str, head: bytes, reading: Reading, options: TableOptions
) -> Source:
    from .table_columns import open_tables

    name = display_name(paths[0])
    if reading.encoding is None and not reading.needs_label:
        raise DataError(
            f"{name}: expected libsvm text or a matrix, found a table: the model's data came from none, and its features "
            "have no names; train on a dataset that was converted from a table"
        )
    reader = _table_reader(paths, roots, format, head, reading)
    types = reader.types_in(paths[0])
    first = reader.first_rows(types) if reading.encoding is None else None
    source = open_tables(reader, types, first, reading, options, name)
    _check_columns(reader, paths, source.table_types)
    return source


def _check_columns(reader: Any, paths: list[str], types: Mapping[str, str]) -> None:
    """Refuse files that lack a column to read which the first has."""
    first = set(types).intersection(reader.types_in(paths[0])) if len(paths) > 1 else set()
    for path in paths[1:]:
        found = list(reader.types_in(path))
        if lacking := first.difference(found):
            more = ", …" if len(found) > _NAMED else ""
            raise DataError(
                f"{display_name(path)}: expected the column {min(lacking)!r}, as in {display_name(paths[0])}, found "
                f"{', '.join(map(repr, found[:_NAMED]))}{more}; correct the file, or convert it by itself"
            )


def _table_reader(paths: list[str], roots: dict[str, str], format: str, head: bytes, reading: Reading) -> Any:
    if format == "csv":
        from .delimited import CsvReader

        first = Piece(paths[0], head=head if paths[0] == STANDARD_INPUT else b"")
        delimiter = delimiter_of(read_head(first, _HEAD_BYTES)[1]) or ","
        return CsvReader(paths, reading, delimiter, head=head)
    from .tables import ArrowReader, ParquetReader, partitions_of

    for path in paths:
        if total_bytes([path]) is None or is_compressed(path):
            raise UsageError(
                f"{display_name(path)}: expected a plain {format} file that can be read at any place, found another; "
                "decompress or download it first"
            )
    if format == "arrow":
        _refuse_urls(paths, format)
        return ArrowReader(paths, reading.batch_bytes)
    return ParquetReader(paths, reading.batch_bytes, partitions_of(roots))
