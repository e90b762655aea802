"""Made data for benchmarks: clicks, and the presets."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import forking
import numpy as np
import pytest

import streamcd
from streamcd.cli.synthetic import RowPiece, iterate_rows
from tools.make_data import clicks_block, field_starts

TOOL = ["-m", "tools.make_data"]
FIELDS = {"n_fields": 6, "most_values": 2000}


@pytest.fixture(scope="module")
def clicks() -> RowPiece:
    return clicks_block(3, **FIELDS, seed=1)


def test_a_row_of_clicks_has_one_category_of_every_field(clicks: RowPiece) -> None:
    starts = field_starts(**FIELDS)
    assert np.diff(starts)[[0, -1]].tolist() == [3, 2000]
    assert np.all(np.diff(clicks.indptr) == 6)
    of_row = clicks.feature.reshape(-1, 6)
    assert np.all((of_row >= starts[:-1]) & (of_row < starts[1:]))
    assert np.all(clicks.value == 1)
    assert set(clicks.label) == {-1.0, 1.0}


def test_categories_follow_a_power_law(clicks: RowPiece) -> None:
    """The n-th most frequent value occurs about n to the minus 1.1 times as often as the first."""
    pieces = [clicks_block(number, **FIELDS, seed=1) for number in range(10)]
    last = np.concatenate([piece.feature.reshape(-1, 6)[:, -1] for piece in pieces])
    count = np.sort(np.bincount(last))[::-1]
    rank = np.arange(4, 100)
    slope = np.polyfit(np.log(rank + 1.5), np.log(count[rank]), 1)[0]
    assert slope == pytest.approx(-1.1, abs=0.1)


def test_parts_made_apart_are_the_rows_of_the_whole() -> None:
    make_block = partial(clicks_block, **FIELDS, seed=0)
    whole = list(iterate_rows(make_block, 0, 10_000))
    parts = [*iterate_rows(make_block, 0, 6_000), *iterate_rows(make_block, 6_000, 4_000)]
    for name in ("label", "feature"):
        joined = [np.concatenate([getattr(piece, name) for piece in made]) for made in (whole, parts)]
        np.testing.assert_array_equal(*joined)


def test_a_linear_model_of_clicks_ranks_rows_that_it_has_not_seen(tmp_path: Path) -> None:
    """Labels come from a linear model, with noise: neither a coin's nor a certain matter."""
    size = ["--fields", "8", "--values", "100", "--chunk-size", "100kB", "--shard-size", "250kB"]
    for name, rows in {
        "train": ["--rows", "16000"],
        "test": ["--first-row", "16384", "--rows", "8000"],
    }.items():
        assert forking.run([*TOOL, "clicks", tmp_path / name, *size, *rows]).returncode == 0
    dataset = streamcd.open(tmp_path / "train")
    assert dataset.n_shards == 4
    assert dataset.verify() == []
    result = streamcd.train(dataset, tmp_path / "run", loss="log_loss", C=0.1)
    figures = streamcd.evaluate(tmp_path / "test", result.model)
    assert 0.7 < figures["auc"] < 0.9
    assert figures["accuracy"] > 0.75


def test_sizes_without_a_meaning_are_refused_in_one_line(tmp_path: Path) -> None:
    done = forking.run([*TOOL, "clicks", tmp_path / "x", "--values", "2"])
    assert done.returncode == 2
    assert done.stderr == (
        "make_data: clicks: expected a field or more and 3 values or more, found 38 fields and 2 values\n"
    )
    assert not (tmp_path / "x").exists()
