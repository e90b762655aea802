"""Formats of sources, recognised by content, and the source of rows for each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..core.errors import DataError, UsageError, first_of, refuse
from ..core.storage import is_url
from .byte_sources import is_compressed, read_head
from .options import TableOptions
from .sources import LIBSVM, STANDARD_INPUT, Reading, Source, display_name, open_tables, total_bytes

_TABLES, _TEXT = ("csv", "parquet", "arrow"), ("libsvm", "csv")
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


def recognise(path: str, decoder_bytes: int) -> str:
    """Recognise a file's format by its first bytes.

    A pipe, which can be opened only once, is not inspected: libsvm text is expected.
    """
    if path != STANDARD_INPUT and not is_url(path) and not os.path.isfile(path):
        return "libsvm"
    text = read_head(path, _HEAD_BYTES, decoder_bytes)
    known = [name for magic, name in _MAGIC if text.startswith(magic)]
    foreign = [name for magic, name in _FOREIGN if text.lower().startswith(magic.lower())]
    first_member = text[30 : 30 + int.from_bytes(text[26:28], "little")]  # if it is a ZIP archive
    if text.startswith(b"PK\x03\x04") and not first_member.endswith(b".npy"):
        foreign = ["a ZIP archive, as Excel's workbooks are"]
    elif not known and b"\0" in text[:_BINARY_BYTES]:
        foreign.append("binary data of another kind")
    if foreign:
        raise DataError(
            f"{display_name(path)}: expected libsvm text, CSV, Parquet, Arrow, npz or npy, found {foreign[0]}; "
            "write it as one of these"
        )
    return known[0] if known else "csv" if delimiter_of(text) else "libsvm"


def delimiter_of(text: bytes) -> str | None:
    """Return the delimiter of a table's first line; None for a line of libsvm text, or of a single word."""
    lines = text.decode("utf-8", errors="replace").splitlines()
    line = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if any(_LIBSVM_TOKEN.match(token) for token in line.split()[:2]):
        return None
    counts = {delimiter: line.count(delimiter) for delimiter in _DELIMITERS}
    most = max(counts, key=counts.__getitem__)
    return most if counts[most] else None


def open_source(
    paths: list[str], roots: Mapping[str, str], format: str, reading: Reading, options: TableOptions
) -> Source:
    """Make the source of rows of files, all of one format; `roots` are the folders in which some were found."""
    if format == "auto":
        found = {path: recognise(path, reading.decoder_bytes) for path in paths}
        format = found[paths[0]]
        for path, other in found.items():
            if other != format:
                raise UsageError(
                    f"expected files of one format, found {format} in {paths[0]} and {other} in {path}; "
                    "convert them one by one, or name the --format"
                )
        if format == "libsvm" and options.label and not options.label.lstrip("-").isdigit():
            format = "csv"  # a table of one column
    _check(paths, format, reading, options)
    if format == "libsvm":
        from .libsvm import LibsvmReader  # the parser's kernels: only where there is text

        reader = LibsvmReader(paths, reading)
        source = Source(reader=reader, reading=reading, made_from=LIBSVM)
    elif format in _TABLES:
        source = _open_tables(paths, roots, format, reading, options)
    else:
        from .matrix_files import open_matrices  # zip and npy: only where they are met

        source = open_matrices(paths, format == "npz", reading, options)
    return replace(source, total_bytes=total_bytes(paths))


def _is_plain(path: str, format: str) -> bool:
    """Check if a file can be read at any place."""
    if is_url(path) and format != "parquet":
        return False
    return total_bytes([path]) is not None and not is_compressed(path)


def _check(paths: list[str], format: str, reading: Reading, options: TableOptions) -> None:
    """Refuse what a format cannot be read from, or with."""
    name, said = display_name(paths[0]), LIBSVM if format == "libsvm" else format
    is_table, encoding = format in _TABLES, reading.encoding
    given = [option for option in options.given if format == "libsvm" or option != options.label_flag]
    strings = [] if encoding is None else encoding.string_columns
    odd = [path for path in paths if format not in _TEXT and not _is_plain(path, format)]
    refuse(
        UsageError,
        (
            odd,
            f"{display_name(''.join(odd[:1]))}: expected a plain file where it holds {format}, on a disk"
            f"{' or a server that gives ranges' if format == 'parquet' else ''}, found another; decompress or download "
            "it first",
        ),
        (
            given and not is_table and not encoding,
            f"{', '.join(given)}: expected a table with named columns, found {said} in {name}",
        ),
        (
            strings and not is_table,
            f"{name}: expected a table with the strings of the training data (columns {first_of(strings, 3)}), found {said}",
        ),
        (
            is_table and encoding is None and not reading.needs_label,
            f"{name}: expected libsvm text or a matrix, found a table: the model's data came from none, and its features "
            "have no names; train on a dataset that was converted from a table",
        ),
    )


def _open_tables(
    paths: list[str], roots: Mapping[str, str], format: str, reading: Reading, options: TableOptions
) -> Source:
    reader: Any
    if format == "csv":
        from .delimited import CsvReader

        reader = CsvReader(paths, reading)
    else:
        from .tables import ArrowReader, ParquetReader, partitions_of

        reader = ArrowReader(paths, reading.batch_bytes)
        if format == "parquet":
            reader = ParquetReader(paths, reading.batch_bytes, partitions_of(roots))
    return open_tables(reader, reading, options, display_name(paths[0]))
