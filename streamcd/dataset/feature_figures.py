"""Statistics of the features that occur, of several datasets together, and names of features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..core.errors import DatasetError
from ..core.storage import Location
from .parquet import column_values, read_groups, read_tables
from .schema import FEATURES

Figures = dict[str, np.ndarray]
"""Columns of some features, ascending."""


def joined_figures(paths: Sequence[Location], n_rows: Sequence[int]) -> Iterator[Figures]:
    """Read all numbers of the features (see `schema.FEATURES`), in blocks, as figures over the rows of all files.

    Each of `paths` describes as many rows as `n_rows` says.
    """
    names = [name for name in FEATURES.names if name != "name"]
    streams = [read_groups(path, names) for path in paths]
    blocks = [next(stream, None) for stream in streams]
    while waiting := [block for block in blocks if block is not None]:
        stop = min(int(block["feature"][-1]) for block in waiting)
        cut: list[Figures | None] = []
        for number, block in enumerate(blocks):
            n = 0 if block is None else int(np.searchsorted(block["feature"], stop, side="right"))
            cut.append(None if block is None else {name: column[:n] for name, column in block.items()})
            if block is not None:
                rest = {name: column[n:] for name, column in block.items()}
                blocks[number] = rest if rest["feature"].size else next(streams[number], None)
        yield _joined(cut, np.array(n_rows, np.float64))


def read_name(path: Location, feature: int) -> str:
    """Read the name of a feature that occurs; without names its index in the source."""
    for table in read_tables(path, ("feature", "index", "name"), first=("feature", feature)):
        for place in np.flatnonzero(column_values(table["feature"]) == feature).tolist():
            name: str | None = table["name"][place].as_py()
            return f"feature {table['index'][place]}" if name is None else name
        break
    raise DatasetError(f"{path}: expected feature {feature}, found none")


def _joined(blocks: Sequence[Figures | None], n_rows: np.ndarray) -> Figures:
    """Join the figures of the same range of features in several sets of rows, as `schema.FEATURES` defines them."""
    found = [(block, rows) for block, rows in zip(blocks, n_rows / n_rows.sum(), strict=True) if block]
    feature = np.unique(np.concatenate([block["feature"] for block, _ in found]))
    places = [np.searchsorted(feature, block["feature"]) for block, _ in found]
    everywhere = np.bincount(np.concatenate(places), minlength=feature.size) == n_rows.size
    zero = np.where(everywhere, np.nan, 0.0)  # of rows among which a feature does not occur
    joined: Figures = {"feature": feature}
    for name in found[0][0].keys() - {"feature"}:
        column = zero.copy() if name in ("min", "max") else np.zeros(feature.size, found[0][0][name].dtype)
        for place, (block, share) in zip(places, found, strict=True):
            if name in ("min", "max"):
                column[place] = (np.fmin if name == "min" else np.fmax)(column[place], block[name])
            elif name == "index":
                column[place] = block[name]
            else:
                column[place] += block[name] if name == "n_entries" else share * block[name]
        joined[name] = column
    return joined
