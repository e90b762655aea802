"""Mutated libsvm text against scikit-learn's parser and LIBLINEAR's for Python: what two accept, they must read alike."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np

from .trials import Finding

BATCH = 200
"""Texts in a trial: a text takes a millisecond."""

TOKENS = (
    "1", "-1", "+1", "0", "1:2", "3:0.5", "2:1e3", "4:-.5", "7:1.", "1:nan", "1:inf", "5:1e-400", "6:1e400", "2:0x10",
    "qid:3",
    "qid:3:0.5", "#", "# 1:2", ":", "1:", ":1", "1::2", "-3:1", "99999999999:1", "2147483648:1", "1:1_0", "1,2", "\t", "  ",
    "\r", "\n", "\n\n", "\0", "\ufeff", "é", "1e", "1e+", "--1", "1.5.2", "00001:1", "1:00000000000000000000001",
)  # fmt: skip
_FINE = ("1 1:0.5 3:2e-3", "-1 2:1 5:-7.25 8:1e10", "2.5", "+1 qid:3 1:1 # word", "0 4:123456789.123456789")


class Text:
    """Trial k mutates and parses `BATCH` texts."""

    default_count = 500

    def prepare(self, place: Path) -> None:
        _parse_ours(_saved(place / "first", b"1 1:1\n"))

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        findings = []
        for _ in range(BATCH):
            text = mutated(rng)
            finding = compare(text, place)
            if finding is not None:
                findings.append(Finding(finding.column, f"{text!r}: {finding.what}"))
        return findings


def mutated(rng: random.Random) -> bytes:
    """Make a few valid lines with tokens inserted, bytes changed, parts doubled and cut out."""
    text = bytearray("\n".join(rng.choices(_FINE, k=rng.randint(1, 4))).encode())
    if rng.random() < 0.8:
        text += b"\n"
    for _ in range(rng.randint(0, 4)):
        place = rng.randint(0, len(text))
        match rng.randrange(4):
            case 0:
                text[place:place] = rng.choice(TOKENS).encode()
            case 1:
                text[place:place] = b" " + rng.choice(TOKENS).encode() + b" "
            case 2:
                text[place : place + 1] = bytes(
                    [rng.choice(b"0123456789:.-+eE #\t\n\r") if rng.random() < 0.8 else rng.randrange(256)]
                )
            case _:
                stop = place + rng.randint(0, 12)
                text[place:stop] = text[place:stop] * rng.choice((0, 0, 2))
    return bytes(text)


def compare(text: bytes, place: Path) -> Finding | None:
    """Compare the parsers' results for a text; a refusal by one of them is no fault."""
    from streamcd.core.errors import StreamcdError

    path = _saved(place / "text", text)
    try:
        ours = _parse_ours(path)
    except StreamcdError as error:
        return Finding("ugly", f"an error of {len(str(error))} letters") if len(str(error)) > 1000 else None
    except Exception as error:
        return Finding("ugly", repr(error))
    for name, parse in (("scikit-learn", _parse_scikit_learn), ("LIBLINEAR", _parse_liblinear)):
        try:
            theirs = parse(path)
        except Exception:
            continue
        if not np.array_equal(ours[0], theirs[0]):
            return Finding("wrong", f"labels {ours[0].tolist()}, {name}'s {theirs[0].tolist()}")
        if ours[1] != theirs[1]:
            return Finding("wrong", f"rows {ours[1]}, {name}'s {theirs[1]}")
    return None


Parsed = tuple[np.ndarray, list[dict[int, float]]]
"""Labels, and of each row its values by feature, without zeros."""


def _parse_scikit_learn(path: Path) -> Parsed:
    from sklearn.datasets import load_svmlight_file

    x, y = load_svmlight_file(io.BytesIO(path.read_bytes()), zero_based=True)
    x.eliminate_zeros()
    return y, [dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in x]


def _parse_liblinear(path: Path) -> Parsed:
    from liblinear.commonutil import svm_read_problem

    labels, rows = svm_read_problem(str(path))
    return np.array(labels), [{index: value for index, value in row.items() if value} for row in rows]


def _saved(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


def _parse_ours(path: Path) -> Parsed:
    from streamcd.conversion.byte_sources import ByteRange, check_rows
    from streamcd.conversion.libsvm import iterate_batches
    from streamcd.conversion.sources import Reading

    labels: list[float] = []
    rows: list[dict[int, float]] = []
    options: dict[str, Any] = {"value_dtype": np.float64, "index_base": 0, "block_bytes": 1 << 16}
    for batch in iterate_batches([ByteRange(str(path))], Reading(**options)):
        found = batch.rows
        labels += found.label.tolist()
        index, value = found.index.tolist(), found.value.tolist()
        for start, stop in zip(found.indptr[:-1], found.indptr[1:], strict=True):
            rows.append(dict(zip(index[start:stop], value[start:stop], strict=True)))
    check_rows(len(rows), [str(path)])
    return np.array(labels), rows
