"""Files written past the page cache hold what was written, whatever the file system thinks of that."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamcd.dataset import direct_writer
from streamcd.dataset.direct_writer import BUFFER_BYTES, DirectWriter


def write(path: Path, sizes: list[int]) -> bytes:
    rng = np.random.default_rng(0)
    pieces = [rng.bytes(size) for size in sizes]
    file = DirectWriter(path)
    for piece in pieces:
        assert file.write(piece) == len(piece)
    file.close()
    assert file.n_bytes == sum(sizes)
    return b"".join(pieces)


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [1], [4096], [BUFFER_BYTES], [BUFFER_BYTES - 1, 2, 5 * BUFFER_BYTES + 77], [313] * 9000],
)
def test_a_file_holds_what_was_written(tmp_path: Path, sizes: list[int]) -> None:
    expected = write(tmp_path / "file", sizes)
    assert (tmp_path / "file").read_bytes() == expected


def test_an_earlier_longer_file_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "file", [100_000])
    expected = write(tmp_path / "file", [10])
    assert (tmp_path / "file").read_bytes() == expected


@pytest.mark.parametrize("refused", ["open", "write"])
def test_a_file_system_without_direct_writes_will_do(
    tmp_path: Path, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open, real_write, direct = os.open, os.write, os.O_DIRECT
    refusals = []

    def opened(path: Any, flags: int, mode: int = 0o777) -> int:
        if refused == "open" and flags & direct:
            refusals.append(path)
            raise OSError(errno.EINVAL, "no direct writes")
        return real_open(path, flags, mode)

    def written(descriptor: int, data: Any) -> int:
        if refused == "write" and fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct:
            refusals.append(descriptor)
            raise OSError(errno.EINVAL, "no direct writes")
        return real_write(descriptor, data[: len(data) // 2 + 1])  # and writes a part at a time

    monkeypatch.setattr(direct_writer.os, "open", opened)
    monkeypatch.setattr(direct_writer.os, "write", written)
    expected = write(tmp_path / "file", [3 * BUFFER_BYTES + 5])
    assert (tmp_path / "file").read_bytes() == expected
    assert len(refusals) == 1


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(direct_writer.os, "write", full)
    file = DirectWriter(tmp_path / "file")
    file.write(b"x")
    with pytest.raises(OSError, match="No space left"):
        file.close()
    assert file.closed
    file.close()
