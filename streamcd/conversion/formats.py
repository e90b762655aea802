"""Formats of sources, recognised by content, and the source of rows for each."""

from __future__ import annotations

import os
import re
from typing import Any

from ..core.errors import DataError, UsageError, first_of, refuse
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

_TABLES, _REMOTE = ("csv", "parquet", "arrow"), ("libsvm", "csv", "parquet")
_SAID = {"libsvm": LIBSVM}
_MAGIC = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"\xff\xff\xff\xff", "arrow"),
    (b"PK\x03\x04", "npz"),
    (b"PK\x05\x06", "npz"),
    (b"\x93NUMPY", "npy"),
)
_FOREIGN = (
    (b"PARE", "encrypted Parquet"),
    (b"%PDF", "PDF"),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
    (b'{"', "JSON"),
    (b"[{", "JSON"),
    (b"@relation", "ARFF"),
    (b"<", "HTML or XML"),
)
_HEAD_BYTES, _BINARY_BYTES = 1 << 20, 1 << 10
_DELIMITERS = ",;\t|"
_LIBSVM_TOKEN = re.compile(r"(?:qid|[0-9]+):")


def recognise(path: str) -> tuple[str, bytes]:
    """Recognise a file's format by its first bytes; also returns these for standard input, which cannot be read again.

    A pipe, which can be opened only once, is not inspected: libsvm text is expected.
    """
    if path != STANDARD_INPUT and not is_url(path) and not os.path.isfile(path):
        return "libsvm", b""
    head, text = read_head(Piece(path), _HEAD_BYTES)
    kept = head if path == STANDARD_INPUT else b""
    known = [name for magic, name in _MAGIC if text.startswith(magic)]
    foreign = [name for magic, name in _FOREIGN if text.lower().startswith(magic.lower())]
    if head.startswith(b"PK\x03\x04") and not _first_member(head).endswith(b".npy"):
        foreign = ["a ZIP archive, as Excel's workbooks are"]
    elif not known and b"\0" in text[:_BINARY_BYTES]:
        foreign.append("binary data of another kind")
    if foreign:
        raise DataError(
            f"{display_name(path)}: expected libsvm text, CSV, Parquet, Arrow, npz or npy, found {foreign[0]}; "
            "write it as one of these"
        )
    if known:
        return known[0], kept
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
    head, name = b"", display_name(paths[0])
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
    elif STANDARD_INPUT in paths:
        head, _ = read_head(Piece(STANDARD_INPUT), _HEAD_BYTES)
    is_table, encoding, strings = format in _TABLES, reading.encoding, []
    if encoding is not None:
        strings = encoding.string_columns
    url = next(filter(is_url, paths), "") if format not in _REMOTE else ""
    given = [
        option for option in options.given if is_table or format == "libsvm" or option != options.label_flag
    ]
    refuse(
        UsageError,
        (
            STANDARD_INPUT in paths and format not in ("libsvm", "csv"),
            f"expected text on standard input, found {format}; name a file",
        ),
        (
            url,
            f"{url}: expected a file on disk where it holds {format}, found a URL (text, CSV and Parquet are read from "
            "there); download it first",
        ),
        (
            given and not is_table and not encoding,
            f"{', '.join(given)}: expected a table with named columns, found {_SAID.get(format, format)} in {name}",
        ),
        (
            strings and not is_table,
            f"{name}: expected a table with the strings of the training data (columns {first_of(strings, 3)}), found "
            f"{_SAID.get(format, format)}",
        ),
        (
            is_table and encoding is None and not reading.needs_label,
            f"{name}: expected libsvm text or a matrix, found a table: the model's data came from none, and its features "
            "have no names; train on a dataset that was converted from a table",
        ),
    )
    if format == "libsvm":
        from .libsvm import LibsvmReader  # the parser's kernels: only where there is text

        text = LibsvmReader(paths, reading, head=head)
        return Source(reader=text, reading=reading, made_from=LIBSVM, what="rows of libsvm text")
    if not is_table:
        from .matrix_files import open_matrices  # zip and npy: only where they are met

        return open_matrices(paths, format, reading, options)
    from .table_columns import open_tables

    reader = _table_reader(paths, roots, format, head, reading)
    types = reader.types_in(paths[0])
    first = reader.first_rows(types) if encoding is None else None
    source = open_tables(reader, types, first, reading, options, name)
    wanted = set(source.table_types).intersection(types)
    for path in paths[1:]:
        columns = list(reader.types_in(path))
        if lacking := wanted.difference(columns):
            raise DataError(
                f"{display_name(path)}: expected the column {min(lacking)!r}, as in {name}, found "
                f"{first_of(list(map(repr, columns)), 5)}; correct the file, or convert it by itself"
            )
    return source


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
        return ArrowReader(paths, reading.batch_bytes)
    return ParquetReader(paths, reading.batch_bytes, partitions_of(roots))
