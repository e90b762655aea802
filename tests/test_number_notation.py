"""Numbers in text: decimal commas, parted thousands, percent; told where they became categories, and read where asked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from heard import Heard

import streamcd
from streamcd import convert
from streamcd.core.errors import DataError, UsageError
from streamcd.dataset.text_numbers import text_numbers

ROWS = 600


@pytest.fixture(scope="module")
def numbers() -> np.ndarray:
    """Columns with a share, an amount of thousands, and a number with a fraction."""
    rng = np.random.default_rng(5)
    return np.stack(
        [rng.integers(0, 100, ROWS), rng.integers(0, 9_000_000, ROWS), rng.integers(-99, 99, ROWS)], 1
    )


def texts(numbers: np.ndarray, mark: str) -> dict[str, list[str]]:
    """Write the numbers as people do."""
    other = "." if mark == "," else ","
    return {
        "share": [f"{share} %" if k % 2 else f"{share}%" for k, share in enumerate(numbers[:, 0])],
        "amount": [
            f"{amount:,}".replace(",", other if k % 3 else " ") for k, amount in enumerate(numbers[:, 1])
        ],
        "mean": [str(number / 8).replace(".", mark) for number in numbers[:, 2]],
        "kind": [f"kind {k % 7}" for k in range(ROWS)],
        "y": ["yes" if number > 0 else "no" for number in numbers[:, 2]],
    }


def as_numbers(numbers: np.ndarray, mark: str) -> pd.DataFrame:
    values = {"share": numbers[:, 0] / 100.0, "amount": numbers[:, 1] * 1.0, "mean": numbers[:, 2] / 8}
    return pd.DataFrame(texts(numbers, mark) | values)


def entries(dataset: streamcd.Dataset) -> list[Any]:
    """Return all that training reads of a dataset's rows, to the bit."""
    rows = map(dataset.read, range(dataset.n_chunks))
    return [[array.tobytes() for array in (r.indptr, r.feature, r.value, r.label, r.source)] for r in rows]


def write(table: dict[str, list[str]], path: Path) -> Path:
    if path.suffix == ".csv":
        pd.DataFrame(table).to_csv(path, index=False, sep=";")
    else:
        pq.write_table(pa.table(table), path, row_group_size=100)
    return path


@pytest.mark.parametrize("mark", [".", ","])
@pytest.mark.parametrize("ending", ["csv", "parquet", "frame"])
def test_numbers_in_text_are_those_of_a_table_of_numbers(
    numbers: np.ndarray, tmp_path: Path, ending: str, mark: str
) -> None:
    table = texts(numbers, mark)
    source: Any = pd.DataFrame(table) if ending == "frame" else write(table, tmp_path / f"rows.{ending}")
    found = convert(source, tmp_path / "found", label="y", number="share,amount,mean", decimal=mark)
    expected = convert(as_numbers(numbers, mark), tmp_path / "expected", label="y")
    assert found.n_features == 3 + 7
    assert entries(found) == entries(expected)


def test_a_decimal_comma_alone_makes_numbers_of_columns_of_text_files(
    numbers: np.ndarray, tmp_path: Path
) -> None:
    table = {name: texts(numbers, ",")[name] for name in ("mean", "kind", "y")}
    found = convert(write(table, tmp_path / "rows.csv"), tmp_path / "found", label="y", decimal=",")
    assert found.n_features == 1 + 7
    frame = as_numbers(numbers, ",")[["mean", "kind", "y"]]
    assert entries(found) == entries(convert(frame, tmp_path / "expected", label="y"))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_workers_and_memory_change_no_bit_of_numbers_in_text(
    numbers: np.ndarray, tmp_path: Path, ending: str
) -> None:
    source = write(texts(numbers, ","), tmp_path / f"rows.{ending}")
    options: dict[str, Any] = {"label": "y", "number": ["share", "amount", "mean"], "decimal": ","}
    one = convert(source, tmp_path / "one", **options)
    several = convert(source, tmp_path / "several", workers=2, memory="1.5GB", **options)
    assert one.fingerprint == several.fingerprint


def test_a_model_alone_parses_numbers_in_text_like_its_training_data(
    numbers: np.ndarray, tmp_path: Path
) -> None:
    table = texts(numbers, ",")
    source = write(table, tmp_path / "rows.csv")
    options: dict[str, Any] = {"label": "y", "number": "share,amount", "decimal": ",", "scale": "maxabs"}
    data = convert(source, tmp_path / "data", **options)
    streamcd.train(data, tmp_path / "run", bias=1.0)
    model = streamcd.load_model(tmp_path / "run")
    model.save(tmp_path / "model")
    model = streamcd.load_model(tmp_path / "model")
    expected = model.decision_function(as_numbers(numbers, ","))
    assert np.array_equal(model.decision_function(pd.DataFrame(table)), expected)
    for path in (source, write(table, tmp_path / "rows.parquet")):
        streamcd.predict(path, tmp_path / "model", tmp_path / "out.parquet", force=True)
        assert np.array_equal(pq.read_table(tmp_path / "out.parquet")["decision"].to_numpy(), expected)
    like = convert(source, tmp_path / "like", like=tmp_path / "model")
    assert entries(like) == entries(data)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("hashed", [False, True])
def test_columns_of_nearly_numbers_are_told_with_an_example_and_the_option(
    numbers: np.ndarray, tmp_path: Path, workers: int, hashed: bool
) -> None:
    """They became categories in silence."""
    heard, source = Heard(), write(texts(numbers, ","), tmp_path / "rows.csv")
    more = {"hash": 10} if hashed else {}
    convert(source, tmp_path / "data", label="y", workers=workers, memory="1.5GB", listener=heard, **more)
    said = [text for text in heard.warnings if text.startswith("column")]
    became = "were hashed" if hashed else "became categories"
    assert [text.partition(":")[0] for text in said] == ["column 'share'", "column 'amount'", "column 'mean'"]
    assert all(became in text for text in said)
    assert "--number share reads" in said[0]
    assert "%'" in said[0]
    assert "--number mean --decimal , reads" in said[2]


def test_strings_that_are_no_numbers_or_plain_ones_are_not_told(tmp_path: Path) -> None:
    """Codes of digits alone, such as postal ones, are strings on purpose where a table has types."""
    heard = Heard()
    table = pa.table(
        {
            "postal": [f"{10_000 + k}" for k in range(40)],
            "word": [f"word {k}" for k in range(40)],
            "few": ["1,5", "2,5", *(f"w{k}" for k in range(38))],
            "y": [0, 1] * 20,
        }
    )
    convert(table, tmp_path / "data", label="y", listener=heard)
    assert not heard.warnings


def test_a_column_of_numbers_but_for_a_word_is_told_with_the_word(tmp_path: Path) -> None:
    """A question mark among 40 measurements made 40 features of them, without a word."""
    heard = Heard()
    path = tmp_path / "rows.csv"
    path.write_text("v,y\n" + "".join(f"{1.5 * k if k != 7 else '?'},{k % 2}\n" for k in range(40)))
    convert(path, tmp_path / "data", label="y", listener=heard)
    (told,) = heard.warnings
    assert "column 'v': 39 of 40 distinct strings are numbers, and became categories" in told
    assert "such as '?', are none" in told


def test_what_is_no_number_is_refused_by_line_and_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a;y\n1 000;0\nmany;1\n")
    with pytest.raises(
        DataError, match=r"rows\.csv:3: column 'a': expected a number .* found 'many'; correct the row"
    ):
        convert(path, tmp_path / "data", label="y", number="a")
    for options, message in (
        ({"number": "b"}, r"'b' \(--number\)"),
        ({"number": "y"}, "--number 'y': expected a column that becomes a feature"),
        ({"decimal": ";"}, "decimal: expected one of"),
    ):
        with pytest.raises(UsageError, match=message):
            convert(path, tmp_path / "data", label="y", **options)
    refused = command_line.run("convert", path, tmp_path / "data", "--label", "y", "--number", "a")
    assert (refused.returncode, "found 'many'" in refused.stderr) == (2, True)
    assert not (tmp_path / "data").exists()


def test_missing_numbers_in_text_are_missing_numbers(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": ["1 000", None, "", "NA", "2%"], "y": [0, 1, 0, 1, 0]})
    with pytest.raises(DataError, match="expected a value, found none"):
        convert(frame, tmp_path / "data", label="y", number="a", missing="error")
    found = convert(frame, tmp_path / "data", label="y", number="a", shuffle=False)
    X, *_ = found.to_scipy()
    assert X.toarray().tolist() == [[1000, 0], [0, 1], [0, 1], [0, 1], [np.float32(0.02), 0]]


@pytest.mark.parametrize(
    ("mark", "text", "number"),
    [
        (".", "1,234,567.5", 1234567.5),
        (".", "1'000", 1000.0),
        (".", "1\u00a0000", 1000.0),
        (".", "1\u202f000.25", 1000.25),
        (".", " +5 ", 5.0),
        (".", "-.5", -0.5),
        (".", "3.", 3.0),
        (".", "1e3", 1000.0),
        (".", "12,5 %", None),
        (",", "12,5 %", 0.125),
        (",", "1.234,5", 1234.5),
        (",", "0,5", 0.5),
        (",", "1.5", None),
        (".", "1,00", None),
        (".", "0,500", None),
        (".", "1,0000", None),
        (".", "0x10", None),
        (".", "five", None),
        (".", "--5", None),
        (".", "%", None),
    ],
)
def test_the_notation_of_numbers(mark: str, text: str, number: float | None) -> None:
    (found,) = text_numbers(pa.array([text]), mark).tolist()
    assert found == (math.inf if number is None else number)
