"""Formats of sources, recognised by content, and the source of rows for each."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import DataError, UsageError
from ..core.progress import counted
from ..core.storage import is_url
from .byte_sources import (
    STANDARD_INPUT,
    ByteRange,
    display_name,
    expand_sources,
    is_compressed,
    read_head,
    total_bytes,
)
from .options import TableOptions
from .sources import FILE, LABEL, TEXT, Reading, Source

_DOCUMENTS = ("documents", "folder")
_TABLES = ("csv", "parquet", "arrow", *_DOCUMENTS)
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
_LINES, _LEAST_WORDS = 200, 3  # by which documents are told
_ROWS = 20  # by which data are told from notes
_NAMED = 5
_WORD = re.compile(r"(?!(?:nan|inf|infinity)\b)[^\W\d_]{2}", re.IGNORECASE)
_LIBSVM_TOKEN = re.compile(r"(?:qid|[0-9]+):")


def expand(
    sources: str | Path | Sequence[str | Path], format: str = "auto"
) -> tuple[list[str], dict[str, str]]:
    """List the files of the sources, and the directory in which each was found, if any.

    Of a directory those in its folders are taken where it has no files of its own, or none but notes beside folders of
    classes.
    """
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    paths, roots = [], {}
    for source in (os.fspath(source) for source in given):
        found = _files_in_folders(source, format) or expand_sources(source) if os.path.isdir(source) else []
        roots.update(dict.fromkeys(found, source))
        paths += found or [source]
    return expand_sources(paths), roots


def left_beside(paths: Sequence[str], roots: Mapping[str, str]) -> str:
    """Tell which plain files lie beside the folders from which all files were taken; empty if there are none."""
    in_folders = {
        roots[path] for path in paths if path in roots and os.sep in os.path.relpath(path, roots[path])
    }
    plain = sorted(entry.path for root in in_folders for entry in _visible(root) if entry.is_file())
    others = [counted(len(plain) - _NAMED, "more file")] if len(plain) > _NAMED else []
    named = ", ".join([*plain[:_NAMED], *others])
    return f"left out, being in no folder: {named}" if plain else ""


def _visible(root: str) -> list[os.DirEntry[str]]:
    return [entry for entry in os.scandir(root) if not _is_hidden(entry.name)]


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _files_in_folders(root: str, format: str) -> list[str]:
    entries = _visible(root)
    plain = [entry.path for entry in entries if entry.is_file()]
    folders = [entry.name for entry in entries if entry.is_dir()]
    if plain and format != "folder":
        of_classes = len(folders) > 1 and not any("=" in name for name in folders)
        if format != "auto" or not of_classes or any(map(_holds_rows, plain)):
            return []
    found = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if not _is_hidden(name)]
        found += [os.path.join(folder, name) for name in names if not _is_hidden(name)]
    found = sorted(set(found).difference(plain))
    return found if format == "folder" or len(plain) < len(found) else []


def _holds_rows(path: str) -> bool:
    """Tell if a file holds a matrix, a table or lines of data, rather than notes."""
    head, text = read_head(ByteRange(path), _HEAD_BYTES)
    if head.startswith(tuple(magic for magic, _ in _MAGIC)) or are_documents(text):
        return True
    lines = text.decode(errors="replace").splitlines()
    lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")][:_ROWS]
    tokens = [token for line in lines for token in line.split()[1:]]
    if tokens and all(map(_LIBSVM_TOKEN.match, tokens)):
        return True
    widths = {len(record) for record in csv.reader(lines, delimiter=delimiter_of(text) or ",")}
    return len(lines) > 1 and len(widths) == 1 and widths != {1}


def recognise(path: str) -> tuple[str, bytes]:
    """Recognise a file's format by its first bytes; also returns these for standard input, which cannot be read again.

    A pipe, which can be opened only once, is not inspected: libsvm text is expected.
    """
    if path != STANDARD_INPUT and not is_url(path) and not os.path.isfile(path):
        return "libsvm", b""
    head, text = read_head(ByteRange(path), _HEAD_BYTES)
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
    if are_documents(text):
        return "documents", kept
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


def are_documents(head: bytes) -> bool:
    """Tell if text is lines of a label, a tab and a text, without names: labels repeat, texts have several words."""
    lines = head.removeprefix(b"\xef\xbb\xbf").decode(errors="replace").split("\n")[:-1][:_LINES]
    pairs = [line.split("\t") for line in lines if line.strip()]
    if len(pairs) < 2 or any(len(pair) != 2 or _LIBSVM_TOKEN.match(pair[1]) for pair in pairs):
        return False
    labels = [label for label, _ in pairs]
    n_words = sorted(len(text.split()) for _, text in pairs)
    repeat = labels[0] in labels[1:] and 2 * len(set(labels)) <= len(labels)
    return repeat and n_words[len(n_words) // 2] >= _LEAST_WORDS


def open_source(
    paths: list[str], roots: dict[str, str], format: str, reading: Reading, options: TableOptions
) -> Source:
    """Make the source of rows of files, all of one format."""
    head = b""
    if format == "auto" and _are_in_class_folders(paths, roots):
        _check_texts(paths[0])
        format = "folder"
    elif format == "auto" and _are_texts_to_score(paths, roots, reading):
        format = "folder"
    elif format == "auto":
        found = {path: recognise(path) for path in paths}
        format, head = found[paths[0]][0], found.get(STANDARD_INPUT, ("", b""))[1]
        for path, (other, _) in found.items():
            if other != format:
                raise UsageError(
                    f"expected files of one format, found {format} in {paths[0]} and {other} in {path}; "
                    "convert them one by one, or name the --format"
                )
        format = _text_format(format, ByteRange(paths[0], head=head), reading, options)
        if format == "libsvm" and paths[0] in roots:
            _check_rows(paths[0], roots[paths[0]])
    elif STANDARD_INPUT in paths:
        head, _ = read_head(ByteRange(STANDARD_INPUT), _HEAD_BYTES)
    if STANDARD_INPUT in paths and format not in ("libsvm", "csv", "documents"):
        raise UsageError(f"expected text on standard input, found {format}; name a file")
    if format == "libsvm":
        return _open_libsvm(paths, head, reading, options)
    if format in _TABLES:
        return _open_table(paths, roots, format, head, reading, options)
    from .matrix_files import open_matrices  # zip and npy: only where they are met

    _refuse_urls(paths, format)
    return open_matrices(paths, format, reading, options)


def _are_in_class_folders(paths: list[str], roots: dict[str, str]) -> bool:
    """Tell if files are in a folder for each class, rather than in partitions, ``key=value``."""
    if not paths or any(path not in roots for path in paths):
        return False
    folders = [os.path.relpath(path, roots[path]).split(os.sep)[:-1] for path in paths]
    return all(folders) and "=" not in folders[0][0]


def _are_texts_to_score(paths: list[str], roots: dict[str, str], reading: Reading) -> bool:
    """Tell if a directory's files are a document each, by a model whose documents are identified by their files."""
    known = reading.encoding
    if known is None or reading.needs_label or (known.names, known.id) != ([TEXT], FILE):
        return False
    if not paths or any(path not in roots for path in paths):
        return False
    head = read_head(ByteRange(paths[0]), _HEAD_BYTES)[1]
    return not head.startswith(tuple(magic for magic, _ in _MAGIC)) and not _has_text_column(head)


def _has_text_column(head: bytes) -> bool:
    """Tell if the first line of text names a column as that of documents."""
    line = head.partition(b"\n")[0].decode(errors="replace")
    return TEXT in re.split(f"[{_DELIMITERS}]", line.strip())


def _check_texts(path: str) -> None:
    """Refuse folders of tables or matrices."""
    head, _ = read_head(ByteRange(path), _HEAD_BYTES)
    found = [name for magic, name in _MAGIC if head.startswith(magic)]
    if found:
        raise UsageError(
            f"{display_name(path)}: expected files of text in a folder for each class, or folders key=value, found "
            f"{found[0]}; name the files"
        )


def _check_rows(path: str, root: str) -> None:
    """Refuse the file of a directory that begins with words, as notes or a document do, rather than with a label."""
    text = read_head(ByteRange(path), _HEAD_BYTES)[1].decode(errors="replace")
    line = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "0")
    if _WORD.match(line.lstrip("\ufeff \t")):
        raise UsageError(
            f"{root}: expected files of data, or a folder for each class with its documents, found text in "
            f"{os.path.relpath(path, root)}; name files of data, or put each document into the folder of its class"
        )


def _text_format(found: str, first: ByteRange, reading: Reading, options: TableOptions) -> str:
    """Choose among libsvm text, tables and documents, where a model or a name of the label tells more than the text."""
    encoding = reading.encoding
    if encoding is not None and encoding.names == [TEXT] and found in ("csv", "libsvm", "documents"):
        return "csv" if _has_text_column(read_head(first, _HEAD_BYTES)[1]) else "documents"
    if found == "documents" and (options.label or not reading.needs_label or encoding is not None):
        return "csv"
    if found == "libsvm" and options.label and not options.label.lstrip("-").isdigit():
        return "csv"  # a table of one column
    return found


def _refuse_urls(paths: list[str], format: str) -> None:
    """Refuse what is mapped into memory, or found by name in a file."""
    for path in filter(is_url, paths):
        raise UsageError(
            f"{path}: expected a file on disk where it holds {format}, found a URL (text, CSV and Parquet are read from "
            "there); download it first"
        )


def _open_libsvm(paths: list[str], head: bytes, reading: Reading, options: TableOptions) -> Source:
    from .libsvm import LibsvmReader, LibsvmSource  # the parser's kernels: only where there is text

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
    known = reading.class_names if reading.separator else ()
    return LibsvmSource(reader=reader, names_labels=bool(reading.separator), class_names=known)


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
    if format == "documents" and (options.id or options.keep):
        raise UsageError(
            f"{name}: {'--id' if options.id else '--keep'}: expected a table, or a folder of texts, found lines of a label, "
            "a tab and a text, which have no other columns; leave it out: predictions tell each row's number"
        )
    if format in _DOCUMENTS and reading.encoding is None:
        options = replace(
            options,
            label=options.label or LABEL,
            features=options.features or (TEXT,),
            text=options.text or {TEXT: options.of_text},
        )
    reader = _table_reader(paths, roots, format, head, reading, options)
    types = reader.types()
    first = reader.first_rows(types) if reading.encoding is None else None
    source = open_tables(reader, types, first, reading, options, name)
    if format not in _DOCUMENTS:
        _check_columns(reader, paths, source.table_types)
    return source


def _check_columns(reader: Any, paths: list[str], types: Mapping[str, str]) -> None:
    """Refuse files that lack a column to read which the first has."""
    first = set(types).intersection(reader.names_in(paths[0])) if len(paths) > 1 else set()
    for path in paths[1:]:
        found = reader.names_in(path)
        if lacking := first.difference(found):
            more = ", …" if len(found) > _NAMED else ""
            raise DataError(
                f"{display_name(path)}: expected the column {min(lacking)!r}, as in {display_name(paths[0])}, found "
                f"{', '.join(map(repr, found[:_NAMED]))}{more}; correct the file, or convert it by itself"
            )


_NAMED = 5  # columns in a message


def _table_reader(
    paths: list[str], roots: dict[str, str], format: str, head: bytes, reading: Reading, options: TableOptions
) -> Any:
    if format == "csv":
        from .delimited import CsvReader

        first = ByteRange(paths[0], head=head if paths[0] == STANDARD_INPUT else b"")
        delimiter = delimiter_of(read_head(first, _HEAD_BYTES)[1]) or ","
        decimal = options.decimal if reading.encoding is None else reading.encoding.decimal
        return CsvReader(paths, reading, delimiter, decimal, head=head)
    if format in _DOCUMENTS:
        return _document_reader(paths, roots, format, head, reading)
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
    partitions = {path: partitions_of(path, root) for path, root in roots.items()}
    return ParquetReader(paths, reading.batch_bytes, partitions)


def _document_reader(
    paths: list[str], roots: dict[str, str], format: str, head: bytes, reading: Reading
) -> Any:
    from .documents import DocumentReader, FolderReader  # kernels of text: only where there is text

    if format == "documents":
        return DocumentReader(paths, reading, head=head)
    _refuse_urls(paths, "folders of texts")
    reader = FolderReader(paths, roots, reading.block_bytes, reading.max_line_bytes or 1 << 30)
    if any(path not in roots for path in paths) or (reading.needs_label and not reader.has_classes):
        raise UsageError(
            f"{display_name(paths[0])}: expected a folder with a folder of texts for each class, found a file; name the "
            "folder above those of the classes"
        )
    return reader
