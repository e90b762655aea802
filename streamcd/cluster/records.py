"""Dual variables of shards on their way between a run and the disks of workers that do not see it, some pieces at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..stream.slot_store import shard_file

BATCH_BYTES = 2_000_000
"""Bytes sent at a time, a part of what a worker and the coordinating process have for messages."""


class Place(NamedTuple):
    """Position in the files of some shards."""

    number: int  # of the file
    offset: int


FIRST = Place(0, 0)


class Piece(NamedTuple):
    """Bytes of a shard's file from an offset on."""

    shard: int
    offset: int
    data: bytes


Batch = tuple[list[Piece], Place | None]
"""Pieces of files, and where the next begin; None after the last."""


def read_batch(folder: Path, shards: Sequence[int], place: Place) -> Batch:
    """Read the next pieces of the files of `shards`, `BATCH_BYTES` at most."""
    pieces, room = list[Piece](), BATCH_BYTES
    for number in range(place.number, len(shards)):
        offset = place.offset if number == place.number else 0
        with open(shard_file(folder, shards[number]), "rb") as file:
            file.seek(offset)
            data = file.read(room)
            pieces.append(Piece(shards[number], offset, data))
            room -= len(data)
            if room == 0:
                more = file.read(1)
                return pieces, Place(number, offset + len(data)) if more else _next(number, shards)
    return pieces, None


def _next(number: int, shards: Sequence[int]) -> Place | None:
    return Place(number + 1, 0) if number + 1 < len(shards) else None


def batches(read: Callable[[Place], Batch]) -> Iterator[list[Piece]]:
    """Iterate over the pieces that `read` gives, batch after batch."""
    place: Place | None = FIRST
    while place is not None:
        pieces, place = read(place)
        if pieces:
            yield pieces


def write_batch(folder: Path, pieces: Sequence[Piece]) -> None:
    """Write pieces into the files of shards."""
    os.makedirs(folder, exist_ok=True)
    for piece in pieces:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(shard_file(folder, piece.shard), flags, 0o644)
        with open(descriptor, "wb") as file:
            file.seek(piece.offset)
            file.write(piece.data)
