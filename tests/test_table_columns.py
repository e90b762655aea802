"""Columns of every kind at the first try, and the summary that repeats a conversion."""

from __future__ import annotations

import csv
import datetime
import json
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from heard import Heard
from test_tables import entries_by_row, names_of, write_table

import streamcd
from streamcd import StreamcdError
from streamcd.dataset.derived_columns import seconds_of
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
            "clock": pa.array([datetime.time(day % 24, day % 60) for day in days], pa.time64("us")),
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
        {"date": "day:parts,when:parts,clock:parts"},
        {"category": "code", "date": "when:parts"},
        {"hash": 6, "date": "day:parts", "category": "code"},
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


def test_times_are_seconds_since_the_first_or_parts(tmp_path: Path) -> None:
    times = ["2021-03-31 23:00:00", "2021-04-01 01:30:00.5", None, "2020-12-31"]
    table = pa.table({"t": times, "y": [0, 1, 0, 1]})
    dataset = streamcd.convert(table, tmp_path / "data", label="y", date="t", dtype="float64")
    origin = datetime.datetime(2021, 3, 31, 23)
    expected = [(datetime.datetime.fromisoformat(time) - origin).total_seconds() for time in times if time]
    entries = entries_by_row(dataset)
    assert [entries[row].get(0, 0.0) for row in (0, 1, 3)] == expected
    assert dataset.info()["table"][0]["use"] == "seconds since 2021-03-31 23:00:00"
    parts = streamcd.convert(table, tmp_path / "parts", label="y", date="t:parts")
    names = names_of(parts)
    found = {row: {names[feature] for feature in features} for row, features in entries_by_row(parts).items()}
    assert found[1] == {"t year=2021", "t month=04", "t weekday=Thu", "t hour=01"}
    assert found[2] == {"t year is missing"}
    assert found[3] == {"t year=2020", "t month=12", "t weekday=Thu", "t hour=00"}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_seconds_are_the_same_of_every_unit_and_before_1970(unit: str) -> None:
    texts = ["1969-12-31 23:59:58", "2262-01-01 00:00:00", None, "1970-01-01 00:00:01"]
    typed = pa.array(texts).cast(pa.timestamp(unit))
    np.testing.assert_array_equal(seconds_of(typed, 1), seconds_of(pa.array(texts), 1))
    assert seconds_of(typed, 1).tolist()[::3] == [-3.0, 0.0]


def test_zones_and_unlike_forms_of_text_are_read(tmp_path: Path) -> None:
    texts = pa.array(["2020-01-01T10:00:00Z", "2020-01-01 10:00:00", "2020-01-01T12:00:00+02:00"])
    assert len(set(seconds_of(texts, 0).tolist())) == 1
    (tmp_path / "t.csv").write_text("t,y\n2020-01-01,1\n" + "2020-01-02,0\n" * 100_000 + "soon,1\n")
    with pytest.raises(
        StreamcdError, match=r"t\.csv:100003: column 't': expected a time, such as .*found 'soon'"
    ):
        streamcd.convert(tmp_path / "t.csv", tmp_path / "data", label="y")


TIMES = [FIRST.replace(second=0) + datetime.timedelta(hours=7 * number) for number in range(N_ROWS)]


def dated_table(form: str, times: list[datetime.datetime] = TIMES) -> pa.Table:
    """One column of times in text, as `form` writes them."""
    return pa.table(
        {"t": [time.strftime(form) for time in times], "y": [number % 2 for number in range(len(times))]}
    )


@pytest.mark.parametrize("column", [{}, {"date": "t:parts"}])
@pytest.mark.parametrize(
    ("form", "order"),
    [
        ("%Y-%m-%d %H:%M", ""),
        ("%d %B %Y %H:%M", ""),
        ("%-d-%b-%Y %H:%M", ""),
        ("%b %-d, %Y %I:%M:%S %p", ""),
        ("%d.%m.%Y %H:%M:%S", "dmy"),
        ("%-d.%-m.%Y, %-H:%M", "dmy"),
        ("%d/%m/%YT%H:%M:%S", "dmy"),
        ("%d-%m-%Y %H:%M:%S.%f", "dmy"),
        ("%m/%d/%Y %H:%M", "mdy"),
        ("%-m/%-d/%Y %I:%M:%S %p", "mdy"),
    ],
)
def test_dates_in_text_are_understood_where_a_day_above_12_tells_the_order(
    tmp_path: Path, form: str, order: str, column: dict[str, str]
) -> None:
    table = dated_table(form)
    typed = table.set_column(0, "t", pa.array(TIMES, pa.timestamp("us")))
    expected = streamcd.convert(typed, tmp_path / "typed", label="y", **column)
    sources = [write_table(table, tmp_path / name) for name in ("t.csv", "t.parquet")]
    fingerprints = set()
    frames = [table.to_pandas(), table.to_pandas().astype({"t": "category"})]
    for number, source in enumerate([*sources, *frames]):
        made = streamcd.convert(source, tmp_path / f"data{number}", label="y", **column)
        assert made.manifest["data_digest"] == expected.manifest["data_digest"]
        fingerprints.add(made.fingerprint)
        assert made.info()["table"][0]["example"] == expected.info()["table"][0]["example"]
        assert made.info()["table"][0]["use"].endswith(f", {order}" if order else ("hour", "00"))
    assert len(fingerprints) == 1
    # its first rows do not tell the order of days and months
    later = table.take([number for number, time in enumerate(TIMES) if time.day <= 12])
    again = streamcd.convert(table, tmp_path / "again", columns_from=made.path)
    assert again.fingerprint == made.fingerprint
    moved = streamcd.convert(later, tmp_path / "moved", columns_from=made.path)
    model = streamcd.load_model(streamcd.train(made, tmp_path / "run", loss="log_loss").run)
    decisions = model.decision_function(table)
    np.testing.assert_array_equal(model.decision_function(typed), decisions)
    of_later = model.decision_function(later)
    np.testing.assert_array_equal(of_later, decisions[[time.day <= 12 for time in TIMES]])
    if not column:
        assert moved.manifest["encoding"] == made.manifest["encoding"]


def test_dates_with_no_day_above_12_stay_categories_which_is_said(tmp_path: Path) -> None:
    times = [datetime.datetime(2020, number % 7 + 1, number % 5 + 1) for number in range(1200)]
    table = dated_table("%d/%m/%Y", times)
    heard = Heard()
    made = streamcd.convert(table, tmp_path / "data", label="y", listener=heard)
    assert made.info()["table"][0]["use"] == "category"
    assert (
        made.info()["table"][0]["note"] == "looks like dates, with day or month first: --date t:dmy or :mdy"
    )
    (said,) = [text for text in heard.messages if "looks like dates" in text]
    assert said.endswith("--date t:dmy or --date t:mdy reads it as times")
    for order, form in (("dmy", "%Y-%m-%d"), ("mdy", "%Y-%d-%m")):
        read = streamcd.convert(table, tmp_path / order, label="y", date=f"t:parts:{order}")
        iso = streamcd.convert(dated_table(form, times), tmp_path / f"{order}-iso", label="y", date="t:parts")
        assert read.manifest["data_digest"] == iso.manifest["data_digest"]
    with pytest.raises(
        StreamcdError, match=r"--date 't': .* such as '01/01/2020'; give --date t:dmy, or t:mdy"
    ):
        streamcd.convert(table, tmp_path / "none", label="y", date="t")
    with pytest.raises(StreamcdError, match=r"--date t:ymd: expected t:parts or .*, found 'ymd'"):
        streamcd.convert(table, tmp_path / "none", label="y", date="t:ymd")
    for order, form in (("dmy", "%d/%m/%y"), ("mdy", "%m/%d/%y")):
        short = streamcd.convert(
            dated_table(form, times), tmp_path / f"{order}-short", label="y", date=f"t:parts:{order}"
        )
        iso = streamcd.convert(
            dated_table("%Y-%m-%d", times), tmp_path / f"{order}-long", label="y", date="t:parts"
        )
        assert short.manifest["data_digest"] == iso.manifest["data_digest"]
    distinct = [datetime.datetime(1900 + number // 12, number % 12 + 1, 1) for number in range(1200)]
    months = dated_table("%d.%m.%Y", distinct).append_column("x", pa.array(range(1200)))
    streamcd.convert(months, tmp_path / "left-out", label="y", listener=heard)
    (said,) = [text for text in heard.messages if "is not used" in text]
    assert "--date t:dmy or --date t:mdy reads it as times, --id t keeps it" in said


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_text_among_dates_is_refused_with_its_place_and_categories_are_taken_if_asked(
    tmp_path: Path, name: str
) -> None:
    for form in ("%d.%m.%Y", "%Y-%m-%d"):
        days = dated_table(form, TIMES * 10)
        source = write_table(
            pa.concat_tables([days, pa.table({"t": ["soon"], "y": [1]})]), tmp_path / f"{name}"
        )
        with pytest.raises(
            StreamcdError,
            match=rf"{name}(:|, row )300[12]: .*'t': expected a time, such as .*'soon'.*--category$",
        ):
            streamcd.convert(source, tmp_path / "data", label="y", force=True)
        made = streamcd.convert(source, tmp_path / "data", label="y", category="t", force=True)
        assert "t=soon" in names_of(made).values()
        plain = streamcd.convert(
            write_table(days, source), tmp_path / "plain", label="y", category="t", force=True
        )
        assert f"t={FIRST:{form}}" in names_of(plain).values()
    with pytest.raises(
        StreamcdError, match=r"--category 't': expected numbers or strings, found times; --date t:parts"
    ):
        streamcd.convert(pa.table({"t": TIMES[:2], "y": [0, 1]}), tmp_path / "typed", label="y", category="t")


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


def test_the_summary_repeats_the_conversion_and_can_be_edited(tmp_path: Path) -> None:
    table = mixed_table()
    options = {
        "date": "day:parts",
        "category": "code",
        "hash": 5,
        "drop": "price",
        "id": "clock",
        "keep": "nothing",
    }
    made = streamcd.convert(table, tmp_path / "data", label="y", **options)
    shown = command_line.run("info", made.path, "--columns")
    assert shown.returncode == 0
    (tmp_path / "columns.csv").write_text(shown.stdout)
    later = write_table(table.slice(7), tmp_path / "later.csv")  # another first row
    for source in (tmp_path / "columns.csv", made.path):
        again = streamcd.convert(table, tmp_path / "again", columns_from=source, force=True)
        assert again.fingerprint == made.fingerprint
        moved = streamcd.convert(later, tmp_path / "moved", columns_from=source, force=True)
        assert moved.manifest["encoding"] == made.manifest["encoding"]
    lines = list(csv.reader(shown.stdout.splitlines()[1:]))
    for line in lines:
        if line[0] == "city":
            line[1] = "not used"
        if line[0] == "price":
            line[1] = "number"
    with (tmp_path / "edited.csv").open("w") as file:
        csv.writer(file).writerows(lines)
    edited = streamcd.convert(table, tmp_path / "edited", columns_from=tmp_path / "edited.csv")
    uses = {fact["column"]: (fact["use"], fact["note"]) for fact in edited.info()["table"]}
    assert uses["city"] == ("not used", "by edited.csv")
    names = set(names_of(edited).values())
    assert "price" in names
    assert not any(name.startswith(("city", "hash")) for name in names)


def test_the_summary_tells_what_was_done_with_each_column(tmp_path: Path) -> None:
    path = write_table(mixed_table(), tmp_path / "t.csv")
    arguments = ["convert", str(path), str(tmp_path / "data"), "--label", "y", "--drop", "code"]
    shown = command_line.run(*arguments, "--json")
    facts = {fact["column"]: fact for fact in json.loads(shown.stdout)["table"]}
    assert list(facts) == ["flag", "day", "when", "clock", "price", "city", "nothing", "y", "code"]
    assert facts["flag"] | {"example": ""} == {
        "column": "flag", "use": "true or false", "features": 2, "missing": N_ROWS // 7, "example": "", "note": ""
    }  # fmt: skip
    assert facts["when"]["use"].startswith("seconds since 20")
    assert facts["clock"]["use"] == "seconds"
    assert (facts["code"]["use"], facts["code"]["note"]) == ("not used", "--drop")
    assert facts["nothing"]["missing"] == N_ROWS
    told = command_line.run(*arguments, "--force").stdout
    assert "columns of the table" in told
    assert "not used (--drop)" in told


def test_an_example_that_is_cut_has_a_mark(tmp_path: Path) -> None:
    texts = {"whole": "a" * 40, "cut": "a" * 41, "spaced": "a \n  a", "long": "a b " * 200}
    table = pa.table({"y": [0, 1], "x": [1e300, 2.0]} | {name: [text, "b"] for name, text in texts.items()})
    facts = streamcd.convert(table, tmp_path / "data", label="y", dtype="float64").info()["table"]
    examples = {fact["column"]: fact["example"] for fact in facts}
    assert (examples["whole"], examples["spaced"]) == ("a" * 40, "a a")
    assert examples["cut"] == "a" * 39 + "…"
    assert (len(examples["long"]), examples["long"][-1]) == (40, "…")
    assert (len(examples["x"]), examples["x"][-1]) == (40, "…")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "expected a header with column and use"),
        (
            "column,use\ncode,magic\n",
            r"columns\.csv:2: expected a use of the column 'code' such as .*found 'magic'",
        ),
        (
            "column,use\ncode,number\ny,label\nday,label\n",
            r"columns\.csv:4: expected one label, found 'y' and 'day'",
        ),
        (
            "# x\ncolumn,use\nwhen,seconds since noon\n",
            r"columns\.csv:3: expected 'seconds since 2020-03-31.*noon'",
        ),
        ("column,use\ny,label\n", r"columns\.csv: expected a column that becomes features, found none"),
        ("column,use\ny,label\nx,number\n", r"expected a column 'x' \(--features\), found y, flag"),
        (
            "column,use\ny,not used\nprice,number\n",
            r"found none; set the use of one column to 'label' in .*columns\.csv, one of y, flag",
        ),
        ("column,use\n,label\n", r"columns\.csv:2: expected a column and its use"),
    ],
)
def test_a_summary_that_says_nothing_useful_is_refused_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "columns.csv").write_text(text)
    with pytest.raises(StreamcdError, match=message) as raised:
        streamcd.convert(mixed_table(), tmp_path / "data", columns_from=tmp_path / "columns.csv")
    assert "\n" not in str(raised.value)
    with pytest.raises(StreamcdError, match="--columns-from and --label exclude each other"):
        streamcd.convert(mixed_table(), tmp_path / "data", columns_from=tmp_path / "columns.csv", label="y")


def test_two_columns_by_a_tab_may_be_documents_which_the_message_says(tmp_path: Path) -> None:
    """Two lines are too few to be told from a table by their content: the names of columns were a label and a text."""
    (tmp_path / "two.txt").write_text("spam\twin a free prize now\nham\tsee you at noon today\n")
    with pytest.raises(StreamcdError, match=r"give --label, one of spam, .*, or --format documents where"):
        streamcd.convert(tmp_path / "two.txt", tmp_path / "data")
    read = streamcd.convert(tmp_path / "two.txt", tmp_path / "data", format="documents")
    assert (read.n_rows, list(read.class_names)) == (2, ["ham", "spam"])


def test_an_option_that_stands_alone_is_named_where_it_took_the_source(tmp_path: Path) -> None:
    refused = command_line.run("convert", "--multilabel", "q.svm", tmp_path / "dq")
    assert "found" in refused.stderr
    assert "--multilabel took 'q.svm': put an option that stands alone last, behind " in refused.stderr
    assert "took" not in command_line.run("convert", tmp_path / "dq").stderr


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


@pytest.mark.parametrize(("first", "used"), [("2020-03-{:02}", "seconds"), ("{:02}.03.2020", "seconds")])
def test_empty_text_among_dates_is_missing_from_every_format(tmp_path: Path, first: str, used: str) -> None:
    """An empty string of Parquet, which is no null, made the column one of categories."""
    dates = ["", *(first.format(day % 28 + 1) for day in range(60)), "  "]
    missing = [None if not text.strip() else text for text in dates]
    y = np.arange(len(dates)) % 2
    found = []
    for name, column in (("empty.parquet", dates), ("null.parquet", missing), ("t.csv", missing)):
        write_table(pa.table({"y": y, "d": column}), tmp_path / name)
        made = streamcd.convert(tmp_path / name, tmp_path / "data", label="y", force=True)
        of_date = next(fact for fact in made.info()["table"] if fact["column"] == "d")
        assert of_date["use"].startswith(used)
        assert (of_date["missing"], of_date["features"]) == (2, 2)
        found.append((made.fingerprint, of_date["example"]))
    assert len(set(found)) == 1
    parts = streamcd.convert(tmp_path / "empty.parquet", tmp_path / "parts", label="y", date="d:parts")
    assert {fact["missing"] for fact in parts.info()["table"] if fact["column"] == "d"} == {2}


def test_codes_in_text_are_categories_as_they_stand(tmp_path: Path) -> None:
    """Zeros before a number are digits of a code; later letters need to be said before."""
    (tmp_path / "t.csv").write_text("code,y\n00501,p\n501,q\n10001,p\n")
    made = streamcd.convert(tmp_path / "t.csv", tmp_path / "data", label="y", category="code")
    assert made.info()["table"][0]["example"] == "00501"
    assert first_feature_names(made) == ["code=00501", "code=10001", "code=501"]
    again = streamcd.convert(tmp_path / "t.csv", tmp_path / "again", columns_from=made.path)
    assert again.fingerprint == made.fingerprint
    rows = "".join(f"{number % 49 + 1},{number % 2}\n" for number in range(300_000))
    (tmp_path / "late.csv").write_text(f"code,y\n{rows}A0,1\n")
    with pytest.raises(StreamcdError, match=r"late\.csv:300002: column 'code'.* --category code:text"):
        streamcd.convert(tmp_path / "late.csv", tmp_path / "late", label="y", category="code")
    late = streamcd.convert(tmp_path / "late.csv", tmp_path / "late", label="y", category="code:text")
    assert late.n_features == 50
