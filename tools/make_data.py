"""Make data of any size, by name and seed, as libsvm text or straight as a dataset.

    python -m tools.make_data text --rows 1000000 --features 300000 --entries 100 big.dataset
    python -m tools.make_data text --rows 100000 --features 50000 --entries 60 small.txt --as text
    python -m tools.make_data clicks --rows 1000000 --fields 30 --values 5000000 clicks.dataset

A preset is a kind of data with default sizes: text-65m, classes-105 and short-rows stand in for sets that cannot be
redistributed; clicks-400k is the set of the acceleration suite.

    python -m tools.make_data clicks-400k clicks.dataset

Rows are made block by block, so memory does not grow with their number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import scipy.sparse as sp

from streamcd import StreamcdError, convert
from streamcd.cli.synthetic import BLOCK_ROWS, RowPiece, draw_labels, iterate_rows, text_block
from streamcd.conversion.libsvm import write_rows
from streamcd.core.errors import UsageError


@dataclass(frozen=True)
class Shape:
    """Kind and sizes of a data set."""

    kind: str
    rows: int = 100_000
    features: int = 50_000  # text, multiclass, dense
    entries: int = 60  # a row, on average: text, multiclass
    classes: int = 2
    fields: int = 38  # clicks
    values: int = 100_000  # clicks: of the field that has most

    @property
    def n_features(self) -> int:
        """Width of the rows."""
        if self.kind == "clicks":
            return int(field_starts(self.fields, self.values)[-1])
        return self.features

    def block_maker(self, seed: int) -> Callable[[int], RowPiece]:
        """The function that makes the blocks."""
        if self.kind == "clicks":
            return partial(clicks_block, n_fields=self.fields, most_values=self.values, seed=seed)
        if self.kind == "dense":
            return partial(dense_block, n_features=self.features, seed=seed, n_classes=self.classes)
        return partial(
            text_block,
            n_features=self.features,
            entries_per_row=self.entries,
            seed=seed,
            n_classes=self.classes,
        )


SHAPES = {
    "text": Shape("text"),
    "dense": Shape("dense"),
    "multiclass": Shape("text", classes=10),
    "clicks": Shape("clicks"),
    "clicks-400k": Shape("clicks", rows=400_000),
    "text-65m": Shape("text", rows=600_000, features=300_000, entries=108),
    "classes-105": Shape("text", rows=6_400, features=55_000, entries=80, classes=105),
    "short-rows": Shape("clicks", rows=50_000, fields=12, values=80),  # 300 features
}


# ---------------------------------------------------------------------------------------------------------------------
# Clicks

_FEWEST_VALUES = 3
_EXPONENT = 1.1  # of the power law of a field's values
_SPEAKING = 0.2  # share of the values with a weight in the model from which labels are drawn
_EVIDENCE = 1.5  # standard deviation of a row's log-odds over the rows
_INTERCEPT = -1.3  # log-odds of a row without evidence: a quarter of the rows are positive


@lru_cache(maxsize=4)
def field_starts(n_fields: int, most_values: int) -> np.ndarray:
    """First feature of every field, and the end of the last; fields have from 3 to ``most_values`` values.

    The numbers of values are a geometric sequence.
    """
    if n_fields < 1 or most_values < _FEWEST_VALUES:
        raise UsageError(
            f"clicks: expected a field or more and {_FEWEST_VALUES} values or more, found {n_fields} fields and "
            f"{most_values} values"
        )
    counts = np.rint(np.geomspace(_FEWEST_VALUES, most_values, n_fields)).astype(np.int64)
    return np.concatenate([[0], np.cumsum(counts)])


@lru_cache(maxsize=2)
def _click_model(n_fields: int, most_values: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of every field's values, most frequent first, and their weights in a row's log-odds."""
    starts = field_starts(n_fields, most_values)
    rng = np.random.default_rng([seed, n_fields, most_values])
    feature, weight = np.empty(starts[-1], np.int32), np.empty(starts[-1])
    variance = mean = 0.0
    for start, stop in pairwise(starts):
        n_values = stop - start
        feature[start:stop] = start + rng.permutation(n_values)
        drawn = rng.standard_normal(n_values) * (rng.random(n_values) < _SPEAKING)
        probability = _probabilities(n_values)
        mean += probability @ drawn
        variance += probability @ drawn**2 - (probability @ drawn) ** 2
        weight[start:stop] = drawn
    # any row has one value of each field, so the mean can be taken from every weight in equal shares
    return feature, (weight - mean / n_fields) * (_EVIDENCE / np.sqrt(variance))


def _probabilities(n_values: int) -> np.ndarray:
    """Probabilities of a field's values by rank: integrals of x to the minus `_EXPONENT` from rank + 1 to rank + 2."""
    bound = np.arange(1, n_values + 2, dtype=np.float64) ** (1 - _EXPONENT)
    return (bound[:-1] - bound[1:]) / (bound[0] - bound[-1])


def clicks_block(number: int, *, n_fields: int, most_values: int, seed: int) -> RowPiece:
    """One block of rows that look like logged clicks: of each field one category, its feature being 1.

    Categories follow a power law within their field. Labels are drawn from a logistic model in which a fifth of the
    categories have a weight.
    """
    starts = field_starts(n_fields, most_values)
    feature, weight = _click_model(n_fields, most_values, seed)
    rng = np.random.default_rng([seed, number, n_fields, most_values, 2])
    last = np.diff(starts) + 1.0
    quantile = rng.random((BLOCK_ROWS, n_fields))
    bound = 1 - quantile * (1 - last ** (1 - _EXPONENT))
    rank = (bound ** (1 / (1 - _EXPONENT))).astype(np.int64) - 1
    value = starts[:-1] + np.clip(rank, 0, np.diff(starts) - 1)
    odds = np.exp(_INTERCEPT + weight[value].sum(axis=1))
    label = np.where(rng.random(BLOCK_ROWS) * (1 + odds) < odds, 1.0, -1.0)
    indptr = np.arange(BLOCK_ROWS + 1, dtype=np.int64) * n_fields
    entries = BLOCK_ROWS * n_fields
    return RowPiece(label, indptr, feature[value].ravel().astype(np.int64), np.ones(entries, np.float32))


# ---------------------------------------------------------------------------------------------------------------------
# Dense data


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


# ---------------------------------------------------------------------------------------------------------------------
# Datasets


def write_dataset(shape: Shape, dest: Path, *, seed: int = 0, first_row: int = 0, **options: Any) -> None:
    """Write rows to a dataset; `options` are those of `convert`."""

    def batches() -> Iterator[tuple[sp.csr_array, np.ndarray]]:
        for piece in iterate_rows(shape.block_maker(seed), first_row, shape.rows):
            entries = piece.value, piece.feature, piece.indptr
            yield sp.csr_array(entries, shape=(len(piece.label), shape.n_features)), piece.label

    convert(batches(), dest, n_features=shape.n_features, **options)


@click.command(help=__doc__.split("\n")[0])
@click.argument("name", type=click.Choice(list(SHAPES)))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--rows", type=int)
@click.option("--features", type=int, help="Features (all but clicks).")
@click.option("--entries", type=int, help="Entries a row on average (text, multiclass).")
@click.option("--classes", type=int, help="Classes (all but clicks).")
@click.option("--fields", type=int, help="Fields, of which every row has one value each (clicks).")
@click.option("--values", type=int, help="Values of the field that has most; the least has 3 (clicks).")
@click.option("--seed", default=0, show_default=True)
@click.option("--first-row", default=0, show_default=True, help="Make a part that begins here.")
@click.option("--as", "kind", type=click.Choice(["dataset", "text"]), default="dataset", show_default=True)
@click.option("--chunk-size", default="1MB", show_default=True)
@click.option("--shard-size", default="256MB", show_default=True)
@click.option("--force", is_flag=True, help="Replace an existing dataset.")
def main(
    name: str, out: Path, seed: int, first_row: int, kind: str, chunk_size: str, shard_size: str, force: bool,
    **sizes: Any,
) -> None:  # fmt: skip
    try:
        shape = replace(SHAPES[name], **{size: given for size, given in sizes.items() if given is not None})
        if kind == "text":
            with open(out, "wb") as stream:
                for piece in iterate_rows(shape.block_maker(seed), first_row, shape.rows):
                    write_rows(stream, piece.label, piece.indptr, piece.feature, piece.value)
        else:
            cut = {"chunk_size": chunk_size, "shard_size": shard_size, "force": force}
            write_dataset(shape, out, seed=seed, first_row=first_row, **cut)
    except StreamcdError as error:
        print(f"make_data: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
