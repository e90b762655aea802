"""Messages of Arrow's IPC formats, read without decoding them: rows of a record batch, and bytes that it inflates to.

pyarrow decompresses all of a batch at once, so its size has to be known before. Metadata are flatbuffers, of which the few
fields needed are read here; pyarrow has verified them by then. Source: the Arrow columnar format's specification (section
"Serialization and Interprocess Communication", and ``Message.fbs``, ``File.fbs``).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

_MAGIC = b"ARROW1"
_BLOCK = struct.Struct("<qi4xq")  # of a file's footer: offset, length of the metadata, length of the body
_BUFFER = struct.Struct("<qq")  # offset and length in the body
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


class BatchSize(NamedTuple):
    """Size of a record batch or of a batch of a dictionary's values; `inflated` is 0 where it is not compressed."""

    n_rows: int
    stored: int
    inflated: int


class Block(NamedTuple):
    """Place of a message in a file."""

    start: int
    metadata_bytes: int
    body_bytes: int


def footer_blocks(data: Any) -> tuple[list[Block], list[Block]]:
    """List the dictionaries and the record batches of a file in Arrow's file format, given as bytes or a map of it."""
    end = len(data) - len(_MAGIC) - 4
    (size,) = struct.unpack_from("<i", data, end)
    footer = _Table.root(data, end - size)
    return footer.structs(2, _BLOCK, Block), footer.structs(3, _BLOCK, Block)


def block_size(data: Any, block: Block) -> BatchSize | None:
    """Return the size of the message at a place in a file; see `batch_size`."""
    body = block.start + block.metadata_bytes
    # a marker and the length come first; files of before version 0.15 have the length alone
    first = block.start + (8 if data[block.start : block.start + 4] == b"\xff\xff\xff\xff" else 4)
    return batch_size(memoryview(data)[first:body], memoryview(data)[body : body + block.body_bytes])


def batch_size(metadata: Any, body: Any) -> BatchSize | None:
    """Return the size of a message; None if it is neither a record batch nor a batch of a dictionary's values.

    Each compressed buffer begins with the number of its bytes, as int64, or with -1 where it is stored as it is.
    """
    message = _Table.root(metadata, 0)
    kind = message.number(1, "<B")
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return None
    batch = message.table(2)
    if batch is not None and kind == _DICTIONARY_BATCH:
        batch = batch.table(1)
    if batch is None:
        return None
    n_rows, inflated = batch.number(0, "<q"), 0
    if batch.table(3) is not None:
        for start, length in batch.structs(2, _BUFFER, tuple):
            if length >= 8:
                (found,) = struct.unpack_from("<q", body, start)
                inflated += length - 8 if found == -1 else found
    return BatchSize(n_rows, len(body), inflated)


class _Table(NamedTuple):
    """A table of a flatbuffer at a place in `data`."""

    data: Any
    place: int

    @classmethod
    def root(cls, data: Any, start: int) -> _Table:
        """Find the root table of the flatbuffer that begins at `start`."""
        return cls(data, start + struct.unpack_from("<I", data, start)[0])

    def _field(self, number: int) -> int:
        """Find the place of a field; 0 if it has its default."""
        entries = self.place - struct.unpack_from("<i", self.data, self.place)[0]
        at = 4 + 2 * number
        if at >= struct.unpack_from("<H", self.data, entries)[0]:
            return 0
        offset = struct.unpack_from("<H", self.data, entries + at)[0]
        return self.place + int(offset) if offset else 0

    def number(self, number: int, form: str) -> int:
        """Read an integer of a format of `struct`."""
        place = self._field(number)
        return int(struct.unpack_from(form, self.data, place)[0]) if place else 0

    def table(self, number: int) -> _Table | None:
        place = self._field(number)
        return _Table.root(self.data, place) if place else None

    def structs(self, number: int, form: struct.Struct, made: Any) -> list[Any]:
        """Read a vector of structures."""
        place = self._field(number)
        if not place:
            return []
        start = place + struct.unpack_from("<I", self.data, place)[0]
        (count,) = struct.unpack_from("<I", self.data, start)
        found = [form.unpack_from(self.data, start + 4 + k * form.size) for k in range(count)]
        return [tuple(values) if made is tuple else made(*values) for values in found]
