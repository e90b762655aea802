"""Make data of any size, by name and seed, as libsvm text or straight as a dataset.

    python tools/make_data.py text --rows 1000000 --features 300000 --entries 100 big.dataset
    python tools/make_data.py text --rows 100000 --features 50000 --entries 60 small.txt --as text

Rows are made block by block, so memory does not grow with their number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
import numpy as np

from streamcd.cli.synthetic import BLOCK_ROWS, RowPiece, draw_labels, iterate_rows, text_block
from streamcd.conversion.chunking import ChunkRule
from streamcd.conversion.feature_statistics import LabelCounts, RangeStatistics, in_groups
from streamcd.conversion.libsvm import write_rows
from streamcd.conversion.rows import Rows, concatenate
from streamcd.conversion.staging import staging_directory
from streamcd.core.errors import StreamcdError
from streamcd.dataset.writer import DatasetWriter


def block_maker(
    name: str, n_features: int, entries: int, classes: int, seed: int
) -> Callable[[int], RowPiece]:
    """The function that makes the blocks of a data set."""
    if name == "dense":
        return partial(dense_block, n_features=n_features, seed=seed, n_classes=classes)
    return partial(text_block, n_features=n_features, entries_per_row=entries, seed=seed, n_classes=classes)


def dense_block(number: int, *, n_features: int, seed: int, n_classes: int = 2) -> RowPiece:
    """One block of rows in which every feature is a normal variable around its class's mean."""
    centers = np.random.default_rng([seed, n_features, n_classes]).standard_normal((n_classes, n_features))
    centers *= 1.5 / np.sqrt(np.square(centers).sum(axis=1, keepdims=True))
    rng = np.random.default_rng([seed, number, n_features, n_classes, 1])
    true, label = draw_labels(rng, BLOCK_ROWS, n_classes)
    value = np.round(centers[true] + rng.standard_normal((BLOCK_ROWS, n_features)), 4).astype(np.float32)
    value[value == 0] = np.float32(1e-4)
    indptr = np.arange(BLOCK_ROWS + 1, dtype=np.int64) * n_features
    return RowPiece(label, indptr, np.tile(np.arange(n_features), BLOCK_ROWS), value.ravel())


class ChunkCutter:
    """Cuts rows in final order into chunks."""

    def __init__(self, chunk_bytes: int, entry_bytes: int) -> None:
        self._rule = ChunkRule(chunk_bytes, entry_bytes)
        self._pending: list[Rows] = []

    def cut(self, rows: Rows, order: np.ndarray) -> Iterator[Rows]:
        """Take rows in the given order; give the chunks that are complete."""
        start = 0
        for end in self._rule.ends(rows.indptr[order + 1] - rows.indptr[order]):
            if end > start:
                self._pending.append(rows.take(order[start:end]))
            yield self.rest()
            start = end
        if start < len(order):
            self._pending.append(rows.take(order[start:]))

    def rest(self) -> Rows:
        """The chunk begun so far."""
        chunk = concatenate(self._pending)
        self._pending = []
        return chunk

    @property
    def has_rest(self) -> bool:
        """Whether a chunk is begun."""
        return bool(self._pending)


def write_dataset(
    pieces: Iterator[RowPiece],
    dest: Path,
    *,
    n_features: int,
    seed: int,
    name: str,
    chunk_bytes: int,
    force: bool,
) -> None:
    """Write rows to a dataset in the order in which they come, which is random as made."""
    if dest.exists() and not force:
        raise StreamcdError(f"{dest} exists; name another place or replace it with --force")
    labels, statistics = LabelCounts(), RangeStatistics(0, n_features)
    cutter = ChunkCutter(chunk_bytes, entry_bytes=8)
    with staging_directory(dest, force) as work:
        writer = DatasetWriter(
            work / "dataset", index_dtype=np.int32, value_dtype=np.float32, row_dtype=np.int64
        )

        def write(chunk: Rows) -> None:
            writer.write_chunk(chunk.source_row, chunk.label, None, chunk.indptr, chunk.index, chunk.value)
            statistics.add(writer.n_parts - 1, chunk.index, chunk.value)

        n_rows = 0
        for piece in pieces:
            place = np.arange(n_rows, n_rows + len(piece.label))
            n_rows += len(place)
            labels.add(piece.label)
            rows = Rows(place, piece.label, None, piece.indptr, piece.feature, piece.value)
            for chunk in cutter.cut(rows, np.arange(len(place))):
                write(chunk)
        if cutter.has_rest:
            write(cutter.rest())
        writer.write_features(in_groups(statistics.columns(n_rows)))
        writer.close(
            n_features=n_features,
            index_base=1,
            compact=False,
            **labels.manifest(),
            label_kind="integer",
            seed=seed,
            shuffle=False,
            chunk_bytes=chunk_bytes,
            source=[{"name": f"made: {name}", "bytes": None}],
        )


@click.command(help=__doc__.split("\n")[0])
@click.argument("name", type=click.Choice(["text", "dense", "multiclass"]))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--rows", "n_rows", default=100_000, show_default=True)
@click.option("--features", "n_features", default=50_000, show_default=True)
@click.option("--entries", default=60, show_default=True, help="Entries a row on average (text, multiclass).")
@click.option("--classes", default=None, type=int, help="Classes; 2, or 10 for multiclass.")
@click.option("--seed", default=0, show_default=True)
@click.option("--first-row", default=0, show_default=True, help="Make a part that begins here (text).")
@click.option("--as", "kind", type=click.Choice(["dataset", "text"]), default="dataset", show_default=True)
@click.option("--chunk-bytes", default=1_000_000, show_default=True)
@click.option("--force", is_flag=True, help="Replace an existing dataset.")
def main(
    name: str,
    out: Path,
    n_rows: int,
    n_features: int,
    entries: int,
    classes: int | None,
    seed: int,
    first_row: int,
    kind: str,
    chunk_bytes: int,
    force: bool,
) -> None:
    make_block = block_maker(name, n_features, entries, classes or (10 if name == "multiclass" else 2), seed)
    pieces = iterate_rows(make_block, first_row, n_rows)
    try:
        if kind == "text":
            with open(out, "wb") as stream:
                for piece in pieces:
                    write_rows(stream, piece.label, piece.indptr, piece.feature, piece.value)
        else:
            write_dataset(
                pieces, out, n_features=n_features, seed=seed, name=name, chunk_bytes=chunk_bytes, force=force
            )
    except StreamcdError as error:
        print(f"make_data: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
