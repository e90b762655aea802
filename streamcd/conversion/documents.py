"""Documents as tables: lines of a label, a tab and a text; and folders of files, one for each class."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError
from ..dataset.arrow_columns import Strings, arrow_encoded, arrow_strings, numbers_of
from ..kernels import text as kernels
from .byte_sources import ByteBlock, ByteRange, display_name, read_blocks, read_head
from .sources import FILE, LABEL, TEXT, Block, Counted, FilePart, Reader, TextReader
from .table_columns import FIRST_ROWS

_HEAD_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def _refuse_damaged(texts: pa.Array, place: Any) -> None:
    """Refuse text that is not in UTF-8; `place` describes the location of a row."""
    with suppress(pa.ArrowInvalid):
        texts.validate(full=True)
        return
    for row in range(len(texts)):
        try:
            texts.slice(row, 1).validate(full=True)
        except pa.ArrowInvalid:
            raise DataError(
                f"{place(row)}: expected text in UTF-8, found other bytes; write it in UTF-8"
            ) from None


# ---------------------------------------------------------------------------------------------------------------------
# Lines


class _Cut:
    """Documents of a block of lines."""

    def __init__(self, text: np.ndarray, start: int, stop: int, needs_label: bool) -> None:
        n_lines = int(np.count_nonzero(text[start:stop] == 0x0A))
        size = stop - start
        found = [(np.empty(size, np.uint8), np.zeros(n_lines + 1, np.int64)) for _ in range(2)]
        labelled, lines = np.zeros(n_lines, np.bool_), np.zeros(n_lines, np.int64)
        filled = (*found, labelled, lines)
        self.n_rows, self.n_lines = kernels.cut_documents(text, start, stop, needs_label, *filled)
        n_rows = max(self.n_rows, 0)
        self.labels, texts = (Strings(data, ends[: n_rows + 1]) for data, ends in found)
        self.texts, self.lines = texts.to_arrow(), lines[:n_rows]
        self.labelled = labelled[:n_rows]

    def label_column(self) -> pa.Array:
        """Labels as strings; null where there is none."""
        if self.labelled.all():
            return self.labels.to_arrow()
        texts = (self.labels.text(row) if given else None for row, given in enumerate(self.labelled.tolist()))
        return arrow_strings(texts)


@dataclass(frozen=True)
class DocumentReader(TextReader):
    """Lines of a label, a tab and a text; a line without a tab is a text where labels are not needed."""

    def types(self) -> dict[str, str]:
        labels = self._first.label_column().drop_null()
        with suppress(pa.ArrowInvalid):
            numbers = labels.cast(pa.float64())
            if len(numbers) and np.isfinite(numbers_of(numbers)).all():
                return {LABEL: "number", TEXT: "string"}
        return {LABEL: "string", TEXT: "string"}

    def first_rows(self, types: Mapping[str, str]) -> Any:
        found = self._first
        label = found.label_column()
        label = label.cast(pa.float64()) if types[LABEL] == "number" else label
        return pa.record_batch([label, found.texts], [LABEL, TEXT]).slice(0, FIRST_ROWS)

    def kept_types(self, names: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(names, "string")

    @cached_property
    def _first(self) -> _Cut:
        head, text = read_head(self.all_of(self.paths[0]), _HEAD_BYTES, self.reading.decoder_bytes)
        end = text.rfind(b"\n") + 1 if max(len(head), len(text)) >= _HEAD_BYTES else len(text)
        text = text[: end or len(text)].removeprefix(_BYTE_ORDER_MARK)
        text += b"\n" * (not text.endswith(b"\n"))
        return _Cut(np.frombuffer(text, np.uint8), 0, len(text), False)

    def count(self, piece: ByteRange) -> Counted:
        n_rows = n_lines = 0
        with closing(read_blocks([piece], *self.reading.of_text)) as blocks:
            for block in blocks:
                cut = _Cut(block.as_array(), _start(block), block.stop, False)
                n_rows, n_lines = n_rows + cut.n_rows, n_lines + cut.n_lines
        return Counted(n_rows, n_lines)

    def blocks(
        self, pieces: Sequence[ByteRange], first_line: int, types: dict[str, str]
    ) -> Generator[Block, None, None]:
        """Read the columns of `types` of some pieces, a block at a time."""
        read_before = 0
        for piece in pieces:
            line = first_line if piece is pieces[0] else 0
            with closing(read_blocks([piece], *self.reading.of_text)) as texts:
                for text in texts:
                    cut = _Cut(text.as_array(), _start(text), text.stop, self.reading.needs_label)
                    if cut.n_rows < 0:
                        raise DataError(
                            f"{text.name}:{line + cut.n_lines + 1}: expected a label, a tab and a text, found no tab; "
                            "correct the line"
                        )
                    message = _at_lines(text.name, cut.lines + line)
                    batch = self._columns(cut, types, message)
                    yield Block(message, batch, read_before + text.bytes_read)
                    line += cut.n_lines
            read_before += piece.n_bytes if piece.path != "-" else 0

    def _columns(self, cut: _Cut, types: Mapping[str, str], message: Any) -> pa.RecordBatch:
        columns = {TEXT: cut.texts}
        if LABEL in types:
            columns[LABEL] = cut.label_column()
        for column in columns.values():
            _refuse_damaged(column, message)
        if types.get(LABEL) == "number":
            columns[LABEL] = _numbers(columns[LABEL], message)
        return pa.record_batch([columns[name] for name in types], list(types))


def _start(block: ByteBlock) -> int:
    marked = block.first and bytes(block.buffer[block.start : block.start + 3]) == _BYTE_ORDER_MARK
    return block.start + 3 * marked


def _at_lines(name: str, lines: np.ndarray) -> Any:
    return lambda row: f"{name}:{int(lines[row]) + 1}" if lines.size else name


def _numbers(labels: pa.Array, message: Any) -> pa.Array:
    """Read labels as numbers, as those of the first rows are."""
    try:
        return labels.cast(pa.float64())
    except pa.ArrowInvalid:
        for row, text in enumerate(labels.to_pylist()):
            with suppress(ValueError):
                float(text or "nan")
                continue
            raise DataError(
                f"{message(row)}: expected a number as the label, as in the first lines, found {text[:40]!r}; correct "
                "the line"
            ) from None
        raise


# ---------------------------------------------------------------------------------------------------------------------
# Folders


@dataclass(frozen=True)
class FolderReader(Reader):
    """Files of text, in a folder for each class where labels are needed.

    `files` are their paths, `roots` the folders above, by which each is named.
    """

    notes = MappingProxyType({FILE: f"--id {FILE} keeps it"})

    files: list[str]
    roots: dict[str, str]
    block_bytes: int
    most_bytes: int

    @property
    def paths(self) -> list[str]:  # type: ignore[override]
        """Folders whose files are read: a file each would make a long description."""
        return sorted(set(self.roots.values()))

    @property
    def has_classes(self) -> bool:
        """Tell if every file is in the folder of a class."""
        return all(len(self._folders(file)) > 1 for file in range(len(self.files)))

    @cached_property
    def _sizes(self) -> list[int]:
        return [os.path.getsize(path) for path in self.files]

    @property
    def total_bytes(self) -> int | None:
        return sum(self._sizes)

    def whole(self) -> list[FilePart]:
        return self.pieces(1)

    def pieces(self, n_tasks: int) -> list[FilePart]:
        """Return ranges of files, numbered in their order."""
        ends = np.cumsum(self._sizes)
        cuts = np.unique(np.searchsorted(ends, np.arange(1, n_tasks) * (int(ends[-1]) / n_tasks)))
        borders = [0, *(int(cut) for cut in cuts if 0 < cut < ends.size), ends.size]
        return [
            FilePart(self.files[start], start, stop, sum(self._sizes[start:stop]))
            for start, stop in pairwise(borders)
        ]

    def count(self, piece: FilePart) -> Counted:
        n_files = (len(self.files) if piece.stop is None else piece.stop) - piece.start
        return Counted(n_files, n_files)

    def expected_bytes(self, pieces: Sequence[FilePart]) -> int | None:
        return sum(piece.n_bytes for piece in pieces)

    def types(self) -> dict[str, str]:
        return dict.fromkeys((LABEL, TEXT, FILE) if self.has_classes else (TEXT, FILE), "string")

    def kept_types(self, names: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(names, "string")

    def first_rows(self, types: Mapping[str, str]) -> Any:
        return self._batch(range(min(len(self.files), 1)), types)

    def blocks(self, pieces: Sequence[FilePart], first_line: int, types: dict[str, str]) -> Iterator[Block]:
        """Read the columns of `types` of some pieces, a block at a time."""
        n_read = 0
        for piece in pieces:
            for files in self._groups(piece):
                batch = self._batch(files, types)
                n_read += sum(self._sizes[file] for file in files)
                yield Block(self._places(files), batch, n_read)

    def _places(self, files: Sequence[int]) -> Callable[[int], str]:
        return lambda row: display_name(self.files[files[row]])

    def _groups(self, piece: FilePart) -> Iterator[range]:
        """Yield files that fit in a block together."""
        start, n_bytes = piece.start, 0
        stop = len(self.files) if piece.stop is None else piece.stop
        for file in range(start, stop):
            n_bytes += self._sizes[file]
            if n_bytes >= self.block_bytes or file + 1 == stop:
                yield range(start, file + 1)
                start, n_bytes = file + 1, 0

    def _batch(self, files: Sequence[int], types: Mapping[str, str]) -> pa.RecordBatch:
        made = {
            LABEL: lambda file: self._folders(file)[0].encode(),
            TEXT: self._text,
            FILE: lambda file: "/".join(self._folders(file)).encode(),
        }
        columns = [arrow_encoded([made[name](file) for file in files]) for name in types]
        for column in columns:
            _refuse_damaged(column, self._places(files))
        return pa.record_batch(columns, list(types))

    def _folders(self, file: int) -> list[str]:
        """Return a file's path below its root, of which the class is the first part where there are several."""
        path = self.files[file]
        return os.path.relpath(path, self.roots[path]).split(os.sep)

    def _text(self, file: int) -> bytes:
        path, size = self.files[file], self._sizes[file]
        if size > self.most_bytes:
            raise DataError(
                f"{display_name(path)}: expected a text of up to {self.most_bytes:,} bytes under this memory budget, found "
                f"{size:,}; give a larger --memory"
            )
        with open(path, "rb") as opened:
            text = opened.read()
        if len(text) != size:
            raise DataError(f"{display_name(path)}: changed while it was read; convert it again")
        return text
