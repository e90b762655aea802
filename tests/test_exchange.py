"""A dataset as others see it: SciPy, Arrow and text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from small_datasets import (
    empty_rows,
    multiclass,
    random_rows,
    write_dataset,
)

from streamcd import Dataset
from streamcd.core.errors import UsageError


def shuffled(path: Path, rows: tuple[sp.csr_array, np.ndarray], **manifest: object) -> Dataset:
    """A dataset of rows that do not lie in the order of their source."""
    x, y = rows
    source = np.random.default_rng(0).permutation(y.size)
    return write_dataset(path, (sp.csr_array(x[source]), y[source]), source=source, **manifest)


@pytest.mark.parametrize("rows", [random_rows(), empty_rows(), multiclass()])
def test_matrix_and_table_are_the_source(rows: tuple[sp.csr_array, np.ndarray], tmp_path: Path) -> None:
    x, y = rows
    dataset = shuffled(tmp_path, rows)
    found, labels = dataset.to_scipy()
    assert np.array_equal(found.toarray(), x.toarray())
    assert found.has_canonical_format
    assert np.array_equal(labels, y)
    assert labels.dtype == np.int64
    table = dataset.head(y.size).sort_by("source")
    assert table["source"].to_pylist() == list(range(y.size))
    assert table["label"].to_pylist() == y.tolist()
    features, values = (np.concatenate(table[name].to_pylist()) for name in ("feature", "value"))
    assert np.array_equal(features, sp.csr_array(x).indices)
    assert np.array_equal(values, sp.csr_array(x).data)


@pytest.mark.parametrize("n_rows", [0, 1, 5, 10**6])
def test_head_is_the_first_rows_as_they_lie(n_rows: int, tmp_path: Path) -> None:
    dataset = shuffled(tmp_path, random_rows())
    whole = dataset.head(200).sort_by("source")
    found = dataset.head(n_rows)
    assert found.num_rows == min(n_rows, 200)
    sources = found["source"].to_pylist()
    assert sources == dataset.read_rows(0, ("source",))[0].tolist()[: len(sources)] or n_rows > 40
    assert found.equals(whole.take(sources)) if sources else True


def test_more_than_fits_in_memory_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    dataset = shuffled(tmp_path, random_rows())
    with pytest.raises(UsageError, match="needed; give a larger memory"):
        dataset.to_scipy(memory="210MB")
    dataset.to_scipy(memory="301MB")


def test_labels_beyond_the_memory_are_refused(tmp_path: Path) -> None:
    dataset = shuffled(tmp_path, random_rows())
    assert np.array_equal(dataset.labels(memory="301MB"), random_rows()[1])
    with pytest.raises(UsageError, match=r"the labels .*needed"):
        dataset.labels(memory="210MB")


def test_the_text_of_a_dataset_tells_the_figures(tmp_path: Path) -> None:
    dataset = shuffled(tmp_path, random_rows())
    assert "rows: 200\n  features: 20\n" in repr(dataset)
    assert "-1 (" in repr(dataset)
