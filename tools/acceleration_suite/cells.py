"""Cells of the suite: data, loss, C, method, workers; and the datasets they are trained on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from streamcd import convert, make_columns
from tools.make_data import SHAPES, write_dataset

N_SHARDS = 12
CHUNKS_PER_SHARD = 8
COSTS = (0.1, 1.0, 10.0, 100.0)
COARSE = 1e-3
PRIMAL_SETS = ("a9a", "ijcnn1", "mushrooms", "heart_scale", "letter.scale", "imdb", "clicks")
WORKERS = (2, 4)


@dataclass(frozen=True)
class Source:
    """A set of the suite: where its rows come from."""

    n_entries: int
    file: str = ""  # without .xz; empty for made data
    normalize: str = "none"
    several_classes: bool = False


# cheap ones first, so that an interrupted run has covered many cells
SOURCES = {
    "heart_scale": Source(3_378, "heart_scale"),
    "dna.scale": Source(91_233, "dna.scale", several_classes=True),
    "mushrooms": Source(170_604, "mushrooms"),
    "a9a": Source(451_592, "a9a"),
    "ijcnn1": Source(649_870, "ijcnn1"),
    "letter.scale": Source(240_000, "letter.scale", several_classes=True),
    "kdd99_10pct": Source(6_179_964, "kdd99_10pct"),
    "news20": Source(1_272_569, "news20", several_classes=True),
    "news20 unit": Source(1_272_569, "news20", normalize="l2", several_classes=True),
    "imdb": Source(8_689_547, "imdb.bigram.tfidf"),
    "clicks": Source(15_200_000),
}


@dataclass(frozen=True)
class Cell:
    """One training problem, and its solver. `workers` is 0 for this process alone."""

    data: str
    loss: str  # a loss of streamcd; twin_squared is twin with the slack squared_hinge
    C: float
    method: str = "dual"
    workers: int = 0

    @property
    def fine(self) -> float | None:
        """The relative gap of the second stage."""
        if self.method != "dual" or self.workers:
            return None
        return 1e-6 if self.loss in ("squared_hinge", "log_loss", "twin_squared") else 1e-4

    @property
    def tolerances(self) -> list[float]:
        """The relative gaps, one after another."""
        return [COARSE] if self.fine is None else [COARSE, self.fine]


def all_cells() -> Iterator[Cell]:
    """Every cell of the suite: moderate C first."""
    for cost_group in (COSTS[:2], COSTS[2:]):
        for name, source in SOURCES.items():
            losses = ["squared_hinge", "log_loss", "hinge", "twin_squared", "twin"]
            losses += ["crammer_singer"] if source.several_classes else []
            for loss, cost in product(losses, cost_group):
                yield Cell(name, loss, cost)
                if loss in ("squared_hinge", "log_loss") and name in PRIMAL_SETS:
                    yield from (Cell(name, loss, cost, method) for method in ("primal", "online"))
                if name == "a9a" and loss in ("squared_hinge", "hinge") and cost == 1.0:
                    yield from (Cell(name, loss, cost, workers=number) for number in WORKERS)


def prepare(name: str, folder: Path) -> Path:
    """Make the dataset of a set in `folder`, in 12 shards and with its column layout, where it is not there."""
    source, path = SOURCES[name], folder / name.replace(" ", "-")
    if not path.exists():
        entry_bytes = 8
        shard_bytes = source.n_entries * entry_bytes // N_SHARDS
        chunk_bytes = min(1_000_000, max(1, shard_bytes // CHUNKS_PER_SHARD))
        if source.file:
            given = Path(os.environ.get("STREAMCD_DATA", "../shared/data")) / f"{source.file}.xz"
            convert(
                given,
                path,
                shard_size=shard_bytes,
                chunk_size=chunk_bytes,
                normalize=source.normalize,
                memory="1GB",
            )
        else:
            shape = SHAPES["clicks-400k"]
            write_dataset(shape, path, name="clicks", chunk_bytes=chunk_bytes, shard_bytes=shard_bytes)
    if name in PRIMAL_SETS and not (path / "columns").exists():
        make_columns(path, memory="1GB")
    return path


def chosen(
    cells: Iterator[Cell],
    names: tuple[str, ...],
    losses: tuple[str, ...],
    costs: list[float],
    methods: tuple[str, ...],
) -> list[Cell]:
    """The cells of these sets, losses, costs and methods; an empty list stands for all."""
    return [
        cell
        for cell in cells
        if (not names or cell.data in names)
        and (not losses or cell.loss in losses)
        and (not costs or cell.C in costs)
        and (not methods or (f"{cell.workers} workers" if cell.workers else cell.method) in methods)
    ]
