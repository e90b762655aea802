"""Columns of every kind at the first try, and the summary that repeats a conversion."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from test_tables import entries_by_row, names_of, write_table

import streamcd
from streamcd import StreamcdError
from streamcd.dataset.arrow_columns import seconds_of
from streamcd.models.encoding import first_feature_names

N_ROWS = 300
FIRST = datetime.datetime(2020, 1, 30, 6, 6, 10)


def mixed_table() -> pa.Table:
    rng = np.random.default_rng(5)

    def missing(values: list[Any]) -> list[Any]:
        return [value if number % 7 else None for number, value in enumerate(values, 1)]

    days = rng.integers(0, 800, N_ROWS).tolist()
    return pa.table(
        {
            "y": rng.choice(["no", "yes"], N_ROWS),
            "flag": missing((rng.random(N_ROWS) < 0.5).tolist()),
            "day": pa.array(missing([FIRST.date() + datetime.timedelta(days=day) for day in days])),
            "when": pa.array(
                [FIRST + datetime.timedelta(seconds=86_399 * day) for day in days], pa.timestamp("us")
            ),
            "clock": pa.array([datetime.time(day % 24, day % 60) for day in days], pa.time32("s")),
            "code": rng.integers(0, 5, N_ROWS),
            "price": pa.array(rng.normal(size=N_ROWS).round(2).tolist()).cast(pa.decimal128(12, 2)),
            "city": missing(rng.choice(["Oslo", "Rome"], N_ROWS).tolist()),
            "nothing": pa.nulls(N_ROWS),
        }
    )


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"category": "code"},
        {"hash": 6, "category": "code"},
        {"missing": "zero"},
        {"scale": "maxabs", "dtype": "float64"},
    ],
    ids=str,
)
def test_a_table_of_every_kind_of_column_is_the_same_dataset_from_all_formats(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    table = mixed_table()
    sources = [write_table(table, tmp_path / name) for name in ("t.csv", "t.parquet", "t.arrow")]
    made = [
        streamcd.convert(source, tmp_path / f"data{number}", label="y", **options)
        for number, source in enumerate([*sources, table, table.to_pandas()])
    ]
    assert len({dataset.fingerprint for dataset in made}) == 1
    assert made[0].verify() == []
    assert made[0].info()["table"] == made[1].info()["table"]
    workers = streamcd.convert(sources[0], tmp_path / "workers", label="y", workers=2, **options)
    assert workers.fingerprint == made[0].fingerprint


def test_indicators_are_made_where_values_are_missing_and_elsewhere_prediction_counts(tmp_path: Path) -> None:
    dataset = streamcd.convert(mixed_table(), tmp_path / "data", label="y", scale="maxabs")
    names = set(names_of(dataset).values())
    assert {"flag is missing", "day is missing", "city is missing"} <= names
    assert not {"when is missing", "code is missing", "price is missing"} & names
    model = streamcd.load_model(streamcd.train(dataset, tmp_path / "run", loss="log_loss").run)
    later = mixed_table().to_pandas()
    later.loc[3:5, "code"] = None
    with pytest.warns(UserWarning, match="3 missing values taken for zero, in columns that had none"):
        decisions = model.decision_function(later)
    zeros = mixed_table().to_pandas()
    zeros.loc[3:5, "code"] = 0
    np.testing.assert_array_equal(decisions, model.decision_function(zeros))


def test_times_are_seconds_since_the_first(tmp_path: Path) -> None:
    times = ["2021-03-31 23:00:00", "2021-04-01 01:30:00.5", None, "2020-12-31 00:00:00"]
    table = pa.table({"t": pa.array(times).cast(pa.timestamp("us")), "y": [0, 1, 0, 1]})
    origin = datetime.datetime(2021, 3, 31, 23)
    expected = [(datetime.datetime.fromisoformat(time) - origin).total_seconds() for time in times if time]
    for number, source in enumerate((table, write_table(table, tmp_path / "t.csv"))):
        dataset = streamcd.convert(source, tmp_path / f"data{number}", label="y", dtype="float64")
        entries = entries_by_row(dataset)
        assert [entries[row].get(0, 0.0) for row in (0, 1, 3)] == expected
        assert dataset.info()["table"][0]["use"] == "seconds since 2021-03-31 23:00:00"


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_seconds_are_the_same_of_every_unit_and_before_1970(unit: str) -> None:
    texts = ["1969-12-31 23:59:58", "2262-01-01 00:00:00", None, "1970-01-01 00:00:01"]
    typed = pa.array(texts).cast(pa.timestamp(unit))
    found = seconds_of(typed, 1)
    assert (found[0], found[1], found[3]) == (-3.0, 9214646399.0, 0.0)
    assert np.isnan(found[2])


def test_a_text_among_the_dates_of_a_csv_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("t,y\n2020-01-01,1\n" + "2020-01-02,0\n" * 100_000 + "soon,1\n")
    with pytest.raises(StreamcdError, match=r"t\.csv:100003: column 't': expected a time, .*found 'soon'"):
        streamcd.convert(tmp_path / "t.csv", tmp_path / "data", label="y")
    made = streamcd.convert(tmp_path / "t.csv", tmp_path / "data", label="y", category="t")
    assert "t=soon" in names_of(made).values()


@pytest.mark.parametrize("year", [1, 1600, 9999, 40_000])
def test_times_far_from_1970_are_converted(tmp_path: Path, year: int) -> None:
    """Beyond the years of the calendar as well, as of milliseconds taken for seconds."""
    seconds = (year - 1970) * 31_556_952
    table = pa.table({"t": pa.array([seconds, seconds + 86400], pa.timestamp("s")), "y": [0, 1]})
    made = streamcd.convert(table, tmp_path / "data", label="y")
    assert [entries.get(0, 0.0) for _, entries in sorted(entries_by_row(made).items())] == [0.0, 86400.0]


def test_structs_are_columns_with_dotted_names(tmp_path: Path) -> None:
    rows = [
        {"who": {"age": age, "home": {"city": city}}, "y": age % 2}
        for age, city in ((3, "Oslo"), (4, "Rome"))
    ]
    table = pa.Table.from_pylist([*rows, {"who": None, "y": 1}])
    made = [
        streamcd.convert(source, tmp_path / f"data{number}", label="y")
        for number, source in enumerate(
            [table, write_table(table, tmp_path / "t.parquet"), write_table(table, tmp_path / "t.arrow")]
        )
    ]
    assert len({dataset.fingerprint for dataset in made}) == 1
    expected = [
        "who.age",
        "who.age is missing",
        "who.home.city=Oslo",
        "who.home.city=Rome",
        "who.home.city is missing",
    ]
    assert list(names_of(made[0]).values()) == expected
    model = streamcd.load_model(streamcd.train(made[0], tmp_path / "run").run)
    np.testing.assert_array_equal(
        model.decision_function(table), model.decision_function(pa.parquet.read_table(tmp_path / "t.parquet"))
    )


def test_numbers_as_categories_are_named_alike_whatever_their_type(tmp_path: Path) -> None:
    whole = pd.DataFrame({"code": [10, 2, 10], "y": [0, 1, 0]})
    decimal = pd.DataFrame({"code": [10.0, 2.0, 10.0], "y": [0, 1, 0]})
    made = [
        streamcd.convert(frame, tmp_path / f"data{number}", label="y", category="code")
        for number, frame in enumerate((whole, decimal))
    ]
    assert made[0].fingerprint == made[1].fingerprint
    assert list(names_of(made[0]).values()) == ["code=10", "code=2"]
    typed = streamcd.convert(whole.astype({"code": "category"}), tmp_path / "typed", label="y")
    assert names_of(typed) == names_of(made[0])


# ---------------------------------------------------------------------------------------------------------------------
# The summary


def test_the_summary_tells_what_was_done_with_each_column(tmp_path: Path) -> None:
    path = write_table(mixed_table(), tmp_path / "t.csv")
    arguments = ["convert", str(path), str(tmp_path / "data"), "--label", "y", "--drop", "code"]
    shown = command_line.run(*arguments, "--json")
    facts = {fact["column"]: fact for fact in json.loads(shown.stdout)["table"]}
    assert list(facts) == ["flag", "day", "when", "clock", "price", "city", "nothing", "y", "code"]
    assert facts["flag"] == {
        "column": "flag", "use": "true or false", "features": 2, "missing": N_ROWS // 7, "note": ""
    }  # fmt: skip
    assert facts["when"]["use"].startswith("seconds since 20")
    assert facts["clock"]["use"] == "seconds"
    assert (facts["code"]["use"], facts["code"]["note"]) == ("not used", "--drop")
    assert facts["nothing"]["missing"] == N_ROWS
    told = command_line.run(*arguments, "--force").stdout
    assert "columns of the table" in told
    assert "not used (--drop)" in told


@pytest.mark.parametrize("form", ["u{}", "{}"])
def test_classes_of_a_row_or_two_are_told_of(tmp_path: Path, form: str) -> None:
    """A column that identifies rows, taken as label, made a class of nearly every row without a word."""
    table = pa.table({"uid": [form.format(row) for row in range(100)], "x": np.arange(100.0)})
    write_table(table, tmp_path / "t.csv")
    shown = command_line.run("convert", tmp_path / "t.csv", tmp_path / "data", "--label", "uid")
    assert "classes have a row or two: 100 classes in 100 rows" in " ".join(shown.stdout.split())
    few = pa.table({"uid": [form.format(row % 20) for row in range(100)], "x": np.arange(100.0)})
    command_line.run("convert", write_table(few, tmp_path / "f.csv"), tmp_path / "few", "--label", "uid")
    assert "a row or two" not in command_line.run("info", tmp_path / "few").stdout


def test_codes_in_text_are_categories_as_they_stand(tmp_path: Path) -> None:
    """Zeros before a number are digits of a code."""
    (tmp_path / "t.csv").write_text("code,y\n00501,p\n501,q\n10001,p\n")
    made = streamcd.convert(tmp_path / "t.csv", tmp_path / "data", label="y", category="code")
    assert first_feature_names(made) == ["code=00501", "code=10001", "code=501"]
    rows = "".join(f"{number % 49 + 1},{number % 2}\n" for number in range(300_000))
    (tmp_path / "late.csv").write_text(f"code,y\n{rows}A0,1\n")
    with pytest.raises(StreamcdError, match=r"late\.csv:300002: column 'code'.* category code"):
        streamcd.convert(tmp_path / "late.csv", tmp_path / "late", label="y")
    late = streamcd.convert(tmp_path / "late.csv", tmp_path / "late", label="y", category="code")
    assert late.n_features == 50
