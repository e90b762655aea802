"""Mutated and damaged tables: CSV, Parquet, Arrow, NumPy and SciPy files, converted and predicted."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import scipy.sparse

from .commands import Ended, files_of, run_command
from .damage import DAMAGES, damage
from .trials import Finding
from .workspace import make_table

CONVERT: dict[str, tuple[str, ...]] = {
    "t.csv": ("--label", "kind", "--missing", "zero"),
    "n.csv": ("--label", "y"),
    "r.csv": ("--target", "y"),
    "t.parquet": ("--label", "kind", "--missing", "zero"),
    "t.feather": ("--label", "kind", "--missing", "zero"),
    "t.npy": ("--label", "0"),
    "t.npz": ("--label", "y"),
}
"""Sources and the options of their conversion; ``n.csv`` and ``r.csv`` have nothing but numbers."""

TOKENS = (
    b",", b",,", b'"', b'""', b'"a,b"', b"\n", b"\r\n", b"\r", b"\n\n", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"nan", b"inf",
    b"-", b"1e400", b"1e-400", b"0x10", b"1_0", b"1 ", b" 1", b"+1", b"NA", b"NULL", b"true", b"2020-01-01", b"\xc3\xa9",
    b"99999999999999999999", b";", b"\t", b"#", b"1.5.2", b"--1", b"00001",
)  # fmt: skip


class Tables:
    """Trial k mutates the text, or damages the file, of source k modulo their number, converts it and predicts it."""

    default_count = 400

    def prepare(self, place: Path) -> None:
        self.sources = place / "sources"
        self.sources.mkdir()
        make_sources(self.sources)
        for name, options in CONVERT.items():
            for command in (
                ("convert", name, f"{name}.data", *options),
                (
                    "train",
                    f"{name}.data",
                    f"{name}.run",
                    "--method",
                    "dual",
                    "--max-passes",
                    2,
                    *_loss(options),
                ),
            ):
                ended = run_command(self.sources, *command)
                if ended.status not in (0, 1):
                    raise RuntimeError(f"{command}: {ended}")

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        name = list(CONVERT)[number % len(CONVERT)]
        file = place / name
        file.write_bytes((self.sources / name).read_bytes())
        if name.endswith(".csv") and rng.random() < 0.8:
            mutate(file, rng)
            what = f"{name} with {file.read_bytes()!r}"
        else:
            how = rng.choice(DAMAGES[:-1])
            what = f"{name}, {how} ({damage(file, how, rng)})"
        findings = []
        for command in (
            ("convert", name, "out", *CONVERT[name]),
            ("predict", name, self.sources / f"{name}.run", "-o", "out.csv"),
        ):
            ended = run_command(place, *command)
            findings += [
                Finding(column, f"{what}: {command[0]}: {said}") for column, said in judge(ended, place)
            ]
        if name in ("n.csv", "r.csv") and (place / "out").exists():
            findings += [Finding("wrong", f"{what}: {said}") for said in compare(file, place / "out")]
        return findings


def _loss(options: tuple[str, ...]) -> tuple[str, ...]:
    return ("--loss", "huber") if "--target" in options else ()


def make_sources(place: Path) -> None:
    """Write one table of mixed columns, and one of numbers, in every format."""
    make_table(place / "t.csv", 0)
    table = pyarrow.csv.read_csv(place / "t.csv")
    pyarrow.parquet.write_table(table, place / "t.parquet", row_group_size=16)
    pyarrow.feather.write_feather(table, place / "t.feather")
    values = np.round(np.random.default_rng(0).normal(size=(40, 4)), 3)
    labels = np.where(values.sum(1) > 0, 1.0, -1.0)
    np.save(place / "t.npy", np.column_stack([labels, values]))
    matrix = scipy.sparse.csr_array(values)
    parts = {"indices": matrix.indices, "indptr": matrix.indptr, "data": matrix.data, "shape": matrix.shape}
    np.savez(place / "t.npz", format=b"csr", y=labels, **parts)
    rows = [
        ",".join(map(str, (label, *row))) for label, row in zip(labels.tolist(), values.tolist(), strict=True)
    ]
    for name in ("n.csv", "r.csv"):
        (place / name).write_text("\n".join(["y,a,b,c,d", *rows]) + "\n")


def mutate(file: Path, rng: random.Random) -> None:
    """Insert tokens, change bytes, double and cut out parts of a text."""
    text = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(text))
        match rng.randrange(3):
            case 0:
                text[at:at] = rng.choice(TOKENS)
            case 1:
                text[at : at + 1] = rng.choice(TOKENS)
            case _:
                stop = at + rng.randint(0, 12)
                text[at:stop] = text[at:stop] * rng.choice((0, 2))
    file.write_bytes(bytes(text))


def judge(ended: Ended, place: Path) -> list[tuple[str, str]]:
    """Refused in a line with nothing half-written, or done with something that verifies."""
    found = []
    if ended.is_ugly or ended.status == 1 or len(ended.stderr) > 5000:
        found.append(("ugly", str(ended)))
    if ended.status == 0 and (place / "out").exists() and not (place / "out.csv").exists():
        verified = run_command(place, "verify", "out")
        if verified.status != 0:
            found.append(("wrong", f"converted, and verify says {verified}"))
    partial = [path.name for path in files_of(place) if "partial" in str(path)]
    if partial:
        found.append(("left", ", ".join(partial[:4])))
    return found


def compare(file: Path, dataset: Path) -> list[str]:
    """Compare a converted table of numbers with what Python reads in it by itself: its rows in any order."""
    import streamcd

    texts = file.read_bytes().decode("utf-8-sig", errors="replace").splitlines()
    lines = [[number(word) for word in text.split(",")] for text in texts[1:] if text]
    if '"' in "".join(texts) or any(None in line or len(line) != len(texts[0].split(",")) for line in lines):
        return []  # quotes, and words that only some readers take for numbers
    at = texts[0].split(",").index("y")
    expected = sorted((line[at], *line[:at], *line[at + 1 :]) for line in lines)
    matrix, labels = streamcd.open(dataset).to_scipy()
    rows = matrix.toarray().tolist()
    found = sorted((float(label), *row) for label, row in zip(labels, rows, strict=True))
    if len(found) != len(expected) or not np.allclose(found, np.array(expected, dtype=float), rtol=1e-6):
        return [f"{len(found)} rows, not those {len(expected)} of the text"]
    return []


def number(word: str) -> float | None:
    """Read a finite number as everybody writes it; None for anything else."""
    if not word or set(word) - set("0123456789.-e"):
        return None
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
