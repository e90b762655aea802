"""Files, folders, globs and URLs; their formats, recognised by content, and the source of rows for each."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import DataError, UsageError, first_of, refuse
from ..core.files import describe_set_aside
from ..core.storage import Url, is_url, location
from .byte_sources import delimiter_of, is_compressed, read_head
from .options import TableOptions
from .sources import LIBSVM, STANDARD_INPUT, Reading, Source, display_name, open_tables, total_bytes

_TABLES, _TEXT, _MATRICES = ("csv", "parquet", "arrow"), ("libsvm", "csv"), ("npz", "npy")
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


def expand(sources: str | Path | Sequence[str | Path]) -> tuple[list[str], dict[str, str]]:
    """List the files of the sources, in an order that does not depend on the file system; also where each was found.

    Sources are files, directories (the files in them, or if there are none those in their folders; hidden ones are
    skipped), glob patterns, URLs of any of these, or ``"-"`` for standard input. The second are the directories given, by
    their files.
    """
    paths: list[str] = []
    roots: dict[str, str] = {}
    for given in [sources] if isinstance(sources, str | Path) else sources:
        found = _expand(source := os.fspath(given))
        if os.path.isdir(source):
            roots |= dict.fromkeys(found, source)
        paths += found
    if not paths:
        raise UsageError(
            "expected at least one source, found none; name files, directories, globs or - for standard input"
        )
    if paths.count(STANDARD_INPUT) > 1:
        raise UsageError("standard input (-) can be read once only, found it twice among the sources")
    return paths, roots


def _expand(source: str) -> list[str]:
    if source == STANDARD_INPUT:
        return [source]
    path = location(source)
    if isinstance(path, Url):
        found = [str(file) for file in path.expand()]
    elif path.is_dir():
        if (path / "manifest.json").exists() and (path / "rows").is_dir():
            raise UsageError(
                f"{source}: expected files of data, found a dataset of streamcd; 'streamcd export {source} FILE' makes text "
                "of it, and train, evaluate and predict take it as it is"
            )
        found = _visible(path.iterdir(), path) or _visible(path.rglob("*"), path)
    elif path.exists():
        found = [str(path)]
    elif not glob.has_magic(str(path)):
        aside = describe_set_aside(path) or "; check the name"
        raise UsageError(f"no such file or directory: {source}{aside}")
    else:
        # a pattern of pathlib's does not follow symbolic links, which may lead back
        pattern = path / "*" if path.name == "**" else path
        above = next(folder for folder in path.parents if not glob.has_magic(str(folder)))
        found = _visible(above.glob(str(pattern.relative_to(above))), above, ".")
    if not found:
        raise UsageError(f"expected files, found none: {source}; check the name, or the pattern")
    return found


def _visible(paths: Iterable[Path], root: Path, hidden: str = "._") -> list[str]:
    """Sort the names of files, but those hidden by a first letter of their own, or of a folder below `root`."""
    n = len(root.parts)
    return sorted(
        str(path)
        for path in paths
        if not any(part.startswith(tuple(hidden)) for part in path.parts[n:]) and not path.is_dir()
    )


def recognise(path: str, decoder_bytes: int) -> str:
    """Recognise a file's format by its first bytes.

    A pipe, which can be opened only once, is not inspected: libsvm text is expected.
    """
    if path != STANDARD_INPUT and not is_url(path) and not os.path.isfile(path):
        return "libsvm"
    text = read_head(path, decoder_bytes)
    found = next((name for magic, name in _MAGIC if text.startswith(magic)), "")
    first_member = text[30 : 30 + int.from_bytes(text[26:28], "little")]  # if it is a ZIP archive
    if text.startswith(b"PK\x03\x04") and not first_member.endswith(b".npy"):
        found = "a ZIP archive, as Excel's workbooks are"
    elif not found and b"\0" in text[:_BINARY_BYTES]:
        found = "binary data of another kind"
    found = found or ("csv" if delimiter_of(text) else "libsvm")
    if found not in _TEXT + _TABLES + _MATRICES:
        raise DataError(
            f"{display_name(path)}: expected libsvm text, CSV, Parquet, Arrow, npz or npy, found {found}; "
            "write it as one of these"
        )
    return found


def open_source(
    paths: list[str], roots: Mapping[str, str], format: str, reading: Reading, options: TableOptions
) -> Source:
    """Make the source of rows of files, all of one format; `roots` are the folders in which some were found."""
    if format == "auto":
        found = {recognise(path, reading.decoder_bytes): path for path in reversed(paths)}
        format, *others = found
        if others:
            raise UsageError(
                f"expected files of one format, found {format} in {found[format]} and {others[0]} in {found[others[0]]}; "
                "convert them one by one, or name the --format"
            )
        if format == "libsvm" and options.label and not options.label.lstrip("-").isdigit():
            format = "csv"  # a table of one column
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
            from .tables import ParquetReader, partitions_of

            reader = ParquetReader(paths, reading.batch_bytes, partitions_of(roots))
        else:
            from .tables import ArrowReader

            reader = ArrowReader(paths, reading.batch_bytes)
        source = open_tables(reader, reading, options, display_name(paths[0]))
    return replace(source, total_bytes=total_bytes(paths))


def is_plain(path: str) -> bool:
    """Tell a file that can be read at any place from others, and from compressed ones."""
    return total_bytes([path]) is not None and not is_compressed(path)


def _check(paths: list[str], format: str, reading: Reading, options: TableOptions) -> None:
    """Refuse what a format cannot be read from, or with."""
    name, said = display_name(paths[0]), LIBSVM if format == "libsvm" else format
    is_table, encoding = format in _TABLES, reading.encoding
    given = [option for option in options.given if format == "libsvm" or option != options.label_flag]
    strings = [] if encoding is None else encoding.string_columns
    ranges = " or a server that gives ranges" if format == "parquet" else ""
    odd = [
        path
        for path in paths
        if format not in _TEXT and not (is_plain(path) and (ranges or not is_url(path)))
    ]
    refuse(
        UsageError,
        (
            odd,
            f"{display_name(''.join(odd[:1]))}: expected a plain file where it holds {format}, on a disk{ranges}, found "
            "another; decompress or download it first",
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
