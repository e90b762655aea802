"""What method `auto` takes: by an estimate of the time, but for what only the dual method has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamcd
from streamcd import Dataset
from streamcd.runs.resolve import newton_is_faster
from streamcd.training.checkpoint import read_config


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A table of numbers, many of them far from 0, to predict one."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40_000, 10)) + 5.0
    return streamcd.convert((x, x[:, 0]), tmp_path_factory.mktemp("tall") / "data", target=True)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ({}, "newton"),
        ({"loss": "huber"}, "newton"),
        ({"loss": "epsilon_insensitive"}, "dual"),
        ({"omega": 1.2}, "dual"),
        ({"acceleration": 2.0}, "dual"),
        ({"eps": 0.1}, "dual"),
    ],
)
def test_narrow_regression_is_trained_by_newton_unless_an_option_is_of_dual_alone(
    tall: Dataset, tmp_path: Path, options: dict[str, Any], method: str
) -> None:
    streamcd.train(tall, tmp_path / "run", tol=None if "eps" in options else 0.1, **options)
    assert read_config(tmp_path / "run")["options"]["method"] == method


@pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")
@pytest.mark.parametrize(
    ("options", "method"),
    [
        ({}, "newton"),
        ({"l1": np.geomspace(1.0, 8.0, 8)}, "working-set"),
        ({"code": np.resize([1, -1, -1], (4, 8))}, "working-set"),
        ({"C": 1.0, "cv": 4}, "working-set"),
    ],
)
def test_matrices_of_all_lanes_take_at_most_an_eighth_of_the_memory(
    tmp_path: Path, options: dict[str, Any], method: str
) -> None:
    """Several λ, columns of a code matrix, and folds were not counted."""
    x = np.random.default_rng(0).standard_normal((60, 400))
    data = streamcd.convert((x, np.arange(60) % 4), tmp_path / "data")
    streamcd.make_columns(data)
    train = streamcd.tune if "cv" in options else streamcd.train
    train(data, tmp_path / "run", penalty="l1", memory="300MB", max_passes=1, **options)
    assert read_config(tmp_path / "run")["options"]["method"] == method


@pytest.mark.parametrize(
    ("loss", "rows", "features", "entries", "C_mean_square", "expected"),
    [
        ("squared_error", 50_000, 300, 300, 300.0, True),
        ("log_loss", 50_000, 300, 300, 300.0, False),
        ("squared_hinge", 494_000, 118, 12.5, 9.5, False),
        ("squared_hinge", 494_000, 118, 12.5, 9500.0, True),
        ("squared_error", 600_000, 276_000, 105, 1.0, False),
        ("squared_error", 300, 5, 5, 5.0, False),
    ],
)
def test_the_estimate_takes_the_method_measured_as_the_faster(
    loss: str, rows: int, features: int, entries: float, C_mean_square: float, expected: bool
) -> None:
    sizes = rows, features + 1, int(rows * entries), C_mean_square
    assert newton_is_faster(loss, *sizes, 1e-3, is_streamed=False) == expected


def test_few_reads_count_for_more_where_data_are_streamed() -> None:
    sizes = 50_000, 23, 650_000, 1.5
    assert not newton_is_faster("squared_hinge", *sizes, 1e-3, is_streamed=False)
    assert newton_is_faster("squared_hinge", *sizes, 1e-3, is_streamed=True)


def test_a_gap_of_0_takes_the_most_passes_in_the_estimate() -> None:
    """It was taken for 1e-3."""
    sizes = 50_000, 14, 650_000, 100.0
    faster = [newton_is_faster("log_loss", *sizes, tol, is_streamed=False) for tol in (1e-3, 0.0)]
    assert faster == [False, True]
