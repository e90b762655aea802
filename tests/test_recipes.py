"""The recipes of docs/format.md: what other tools read from a dataset is what is in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

for needed in ("duckdb", "polars", "pandas"):
    pytest.importorskip(needed)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Names that the page's Python leaves behind."""
    names: dict[str, Any] = {}
    text = (ROOT / "docs" / "format.md").read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("recipes"))
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            exec(block, names)
        names["directory"] = Path.cwd()
    return names


def test_duckdb_joins_entries_with_rows_and_names(found: dict[str, Any]) -> None:
    assert found["means"] == [
        ("age", 0.0, 26.0),
        ("age", 1.0, 37.5),
        ("city=Lima", 1.0, 0.5),
        ("city=Oslo", 0.0, 0.5),
        ("city=Oslo", 1.0, 0.5),
        ("city=Rome", 0.0, 0.5),
    ]


def test_polars_gives_entries_in_the_order_of_the_source(found: dict[str, Any]) -> None:
    assert found["named"].rows() == [
        (0, 1.0, "age", 31.0),
        (0, 1.0, "city=Oslo", 1.0),
        (1, 0.0, "city=Rome", 1.0),
        (2, 0.0, "age", 52.0),
        (2, 0.0, "city=Oslo", 1.0),
        (3, 1.0, "age", 44.0),
        (3, 1.0, "city=Lima", 1.0),
    ]


def test_pandas_and_scipy_give_the_matrix(found: dict[str, Any]) -> None:
    rows, X = found["rows"], found["X"]
    in_order = X.toarray()[np.argsort(rows["source"].to_numpy())]
    assert in_order.tolist() == [[31, 0, 1, 0], [0, 0, 0, 1], [52, 0, 1, 0], [44, 1, 0, 0]]


def test_lists_come_back_as_the_same_rows_and_entries(found: dict[str, Any]) -> None:
    streamcd = found["streamcd"]
    original = streamcd.open(found["directory"] / "shop").info()
    again = streamcd.open(found["directory"] / "again").info()
    assert again["data_digest"] == original["data_digest"]
