"""Make a table of mixed types of any size: classes, numbers, categories, booleans, times, a key, missing values.

    python tools/make_table.py --rows 15000000 mixed.csv mixed.parquet

The same rows go to every file named, as its suffix says. They are made block by block, so memory does not grow with their
number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

LABEL = "outcome"
BLOCK_ROWS = 1 << 17
_N_CATEGORIES = (5, 50, 500, 5_000)  # of the columns of strings
_INCOMPLETE, _MISSING = (
    ("decimal0", "category1", "member", "day"),
    0.03,
)  # columns that lack values, and the share
_FROM, _TO = 1_577_836_800, 1_735_689_600  # times, in seconds since 1970: the years 2020 to 2024


def table_block(number: int, seed: int, n_rows: int = BLOCK_ROWS) -> pa.Table:
    """Make one block of rows; categories follow a power law, the outcome a logistic model of columns of every kind."""
    rng = np.random.default_rng([seed, number])
    columns: dict[str, Any] = {LABEL: rng.random(n_rows)}
    for k in range(3):
        columns[f"decimal{k}"] = np.round(10 * rng.normal(size=n_rows), 3)
    for k in range(3):
        columns[f"integer{k}"] = rng.integers(1, 10 ** (k + 1), n_rows)
    for k in range(2):
        columns[f"count{k}"] = rng.poisson(0.5, n_rows)
    score = 0.06 * (columns["decimal0"] - columns["decimal1"]) + 0.3 * columns["count0"] - 2.0
    for k, n_categories in enumerate(_N_CATEGORIES):
        names = np.array([f"c{k}_{j}" for j in range(n_categories)])
        categories = rng.zipf(1.5, n_rows) % n_categories
        columns[f"category{k}"] = names[categories]
        score += 0.5 * np.sin(categories)
    seconds = rng.integers(_FROM, _TO, n_rows)
    columns["member"] = rng.random(n_rows) < 0.4
    columns["day"] = seconds.astype("datetime64[s]").astype("datetime64[D]")
    columns["moment"] = seconds.astype("datetime64[s]")
    columns["key"] = [f"k{number}-{row}" for row in range(n_rows)]
    score += 0.7 * columns["member"] + (seconds - _FROM) / (_TO - _FROM)
    columns[LABEL] = np.where(columns[LABEL] < 1 / (1 + np.exp(-score)), "yes", "no")
    columns["weight"] = rng.choice([0.5, 1.0, 2.0], n_rows)
    missing = {name: rng.random(n_rows) < _MISSING for name in _INCOMPLETE}
    return pa.table({name: pa.array(column, mask=missing.get(name)) for name, column in columns.items()})


def blocks(n_rows: int, seed: int) -> Iterator[pa.Table]:
    """Make all rows, block by block."""
    starts = [*range(0, n_rows, BLOCK_ROWS), n_rows]
    for number, (start, stop) in enumerate(pairwise(starts)):
        yield table_block(number, seed).slice(0, stop - start)


def _writer(path: Path, schema: pa.Schema, stack: ExitStack) -> Callable[[pa.Table], None]:
    if path.suffix == ".parquet":
        return stack.enter_context(pq.ParquetWriter(path, schema)).write_table
    options = csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",", quoting_style="needed")
    return stack.enter_context(csv.CSVWriter(path, schema, write_options=options)).write


@click.command(help=__doc__.split("\n")[0])
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(paths: tuple[Path, ...], rows: int, seed: int) -> None:
    schema = table_block(0, seed, 1).schema
    with ExitStack() as stack:
        writers = [_writer(path, schema, stack) for path in paths]
        for block in blocks(rows, seed):
            for write in writers:
                write(block)


if __name__ == "__main__":
    main()
