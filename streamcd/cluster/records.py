"""Dual variables of shards on their way between a run and the disks of workers that do not see it, some pieces at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..stream.slot_store import shard_file

BATCH_BYTES = 2_000_000
"""Bytes sent at a time, a part of what a worker and the coordinating process have for messages."""


class Piece(NamedTuple):
    """Bytes of a shard's file from an offset on."""

    shard: int
    offset: int
    data: bytes


Place = tuple[int, int]
"""Position in the files of some shards: number of the file, offset in it."""


def read_batch(folder: Path, shards: Sequence[int], place: Place) -> tuple[list[Piece], Place | None]:
    """Read the next pieces of the files of `shards`, `BATCH_BYTES` at most; also returns where the next begin, if any do."""
    pieces, room = list[Piece](), BATCH_BYTES
    (first, offset) = place
    for number in range(first, len(shards)):
        with open(shard_file(folder, shards[number]), "rb") as file:
            file.seek(offset)
            data = file.read(room)
        pieces.append(Piece(shards[number], offset, data))
        room -= len(data)
        if room == 0:
            return pieces, (number, offset + len(data))
        offset = 0
    return pieces, None


def write_batch(folder: Path, pieces: Sequence[Piece]) -> None:
    """Write pieces into the files of shards."""
    os.makedirs(folder, exist_ok=True)
    for piece in pieces:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(shard_file(folder, piece.shard), flags, 0o644)
        with open(descriptor, "wb") as file:
            file.seek(piece.offset)
            file.write(piece.data)
