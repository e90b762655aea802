"""Columns of every kind at the first try, and the summary that repeats a conversion."""

from __future__ import annotations

import datetime
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import ROOT
from heard import Heard
from test_tables import entries_by_row, names_of, write_table

import streamcd
from streamcd import StreamcdError
from streamcd.dataset.arrow_columns import RECIPES, seconds_of
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


@pytest.mark.parametrize(
    "codes",
    [
        pa.array([2**60, 2**60 + 1, None]),
        pa.array([2**60, 2**60 + 1, None], pa.uint64()),
        pa.array([Decimal(2**60), Decimal(2**60 + 1), None]),
        pa.array([-(2**60), -(2**60) - 1, None]),
    ],
    ids=lambda codes: str(codes.type),
)
def test_whole_numbers_that_differ_by_one_are_two_categories(tmp_path: Path, codes: pa.Array) -> None:
    """They were rounded to a float64, which holds 53 bits."""
    table = pa.table({"code": codes, "y": [0, 1, 0]})
    made = streamcd.convert(table, tmp_path / "data", label="y", category="code")
    names = [f"code={code}" for code in sorted(filter(None, codes.to_pylist()), key=str)]
    assert [*names_of(made).values()] == [*names, "code is missing"]
    model = streamcd.load_model(streamcd.train(made, tmp_path / "run").run)
    other = pa.table({"code": pa.array([int(codes[1].as_py()) + 2], pa.int64())})
    with pytest.warns(UserWarning, match=rf"such as '{int(codes[1].as_py()) + 2}'"):
        model.predict(other)


LARGE = [2**60, 2**60 + 1, 5]


@pytest.mark.parametrize(
    "make",
    [
        lambda path: (np.arange(3.0)[:, None], np.array(LARGE)),
        lambda path: (np.arange(3.0)[:, None], np.array(LARGE, np.uint64)),
        lambda path: (pd.DataFrame({"x": [1, 2, 3]}), pd.Series(LARGE)),
        lambda path: write_table(pa.table({"x": [1, 2, 3], "label": LARGE}), path / "t.parquet"),
        lambda path: write_table(pa.table({"x": [1, 2, 3], "label": LARGE}), path / "t.csv"),
        lambda path: write_table(
            pa.table({"x": [1, 2, 3], "label": pa.array(map(Decimal, LARGE))}), path / "t.arrow"
        ),
        lambda path: write_text("".join(f"{label} 1:1\n" for label in LARGE), path / "t.txt"),
    ],
)
def test_labels_that_may_stand_for_several_are_refused_and_targets_are_not(tmp_path: Path, make: Any) -> None:
    """Two whole numbers from 2^53 on became one class where they are one float64."""
    source = make(tmp_path)
    options: dict[str, Any] = {"label": "label"} if str(source).endswith(("parquet", "csv", "arrow")) else {}
    with pytest.raises(StreamcdError, match=r"(row |csv:2|txt:1).*2\^53.*found '?1.*give target"):
        streamcd.convert(source, tmp_path / "data", **options)
    made = streamcd.convert(source, tmp_path / "data", target=options.pop("label", True))
    assert made.targets == {"min": 5.0, "max": 2.0**60}


def test_an_evaluation_refuses_labels_that_may_stand_for_several(tmp_path: Path) -> None:
    x = np.arange(3.0)[:, None]
    run = streamcd.train(streamcd.convert((x, [0, 1, 1]), tmp_path / "data"), tmp_path / "run").run
    with pytest.raises(StreamcdError, match=r"row 1: .*2\^53.*; correct the data$"):
        streamcd.evaluate((x, np.array(LARGE)), run)
    streamcd.predict((x, np.array(LARGE)), run, tmp_path / "p.txt")


def write_text(text: str, path: Path) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("columns", "options", "names"),
    [
        ({"a": [1, None], "a is missing": [2, 5]}, {}, ["a", "a.1 is missing", "a is missing"]),
        ({"a": ["x", "z"], "a=x": [2, 5], "a.1": [3, 4]}, {}, ["a.2=x", "a.2=z", "a=x", "a.1"]),
        ({"a": ["b=c", "d"], "a=b": ["c", "d"]}, {}, ["a.1=b=c", "a.1=d", "a=b=c", "a=b=d"]),
        ({"a": ["u", "v"], "hash 0": [2, 5]}, {"hash": 1}, ["hash 0", "hash.1 0", "hash.1 1"]),
        ({"i": [[0], [1]], "v": [[1], [1]], "i[1]": [2, 5]}, {"features": "i:v,i[1]"}, ["i[1]", "i.1[0]", "i.1[1]"]),
        ({"age": [1, None], "age group": [2, 5]}, {}, ["age", "age is missing", "age group"]),
    ],
)  # fmt: skip
def test_two_features_never_have_one_name(
    tmp_path: Path, columns: dict[str, list[Any]], options: dict[str, Any], names: list[str]
) -> None:
    table = pa.table({**columns, "y": [0, 1]})
    made = streamcd.convert(table, tmp_path / "data", label="y", **options)
    like = streamcd.convert(table, tmp_path / "like", like=made)
    run = streamcd.train(made, tmp_path / "run").run
    model = streamcd.load_model(run)
    for found in (first_feature_names(made), first_feature_names(like)):
        assert found == names
    assert model.feature_names(np.arange(len(names))) == names
    assert len({*names_of(made).values()}) == len(names_of(made))


# ---------------------------------------------------------------------------------------------------------------------
# Types that show late, or not


DAY = datetime.datetime(2024, 1, 1)


@pytest.mark.parametrize(
    "values", [["u", "v"], [1, 2], [True, False], [DAY, DAY + datetime.timedelta(1)]], ids=str
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_part_of_nulls_may_come_before_or_after_one_of_values(
    tmp_path: Path, values: list[Any], first: int
) -> None:
    """Nulls alone made numbers of a column, and text in the next file was refused."""
    parts = [pa.table({"a": column, "b": [1, 2], "y": [0, 1]}) for column in (pa.nulls(2), pa.array(values))]
    parts = parts[::-1] if first else parts
    for form in ("parquet", "arrow"):
        (tmp_path / form).mkdir()
        for number, part in enumerate(parts):
            write_table(part, tmp_path / form / f"{number}.{form}")
    whole = pa.concat_tables(parts, promote_options="default")
    sources = [tmp_path / "parquet", tmp_path / "arrow", iter(parts), whole]
    if isinstance(values[0], datetime.datetime):  # in a type of times a first part of nulls has no origin
        sources.pop()
    made = [streamcd.convert(source, tmp_path / f"{n}", label="y") for n, source in enumerate(sources)]
    assert len({dataset.fingerprint for dataset in made}) == 1


@pytest.mark.parametrize("value", ["word", "2.5", "2024-01-01", "true"])
def test_a_column_of_text_may_begin_with_a_megabyte_of_nothing(tmp_path: Path, value: str) -> None:
    rows = "".join(f",{number % 9},{number % 2}\n" for number in range(200_000))
    paths = [
        write_text(f"a,b,y\n{text}", tmp_path / name)
        for name, text in (("0.csv", rows), ("1.csv", f"{value},1,1\n"))
    ]
    made = streamcd.convert(paths, tmp_path / "data", label="y")
    short = streamcd.convert(paths[::-1], tmp_path / "short", label="y")
    assert names_of(made) == names_of(short)


def test_hexadecimal_text_is_text(tmp_path: Path) -> None:
    """Arrow takes it for whole numbers where it looks for types, and refuses it as numbers."""
    text = "a,b,y\n0xdead,1,0x1\n0xbeef,0x1F,0x2\n0xdead,3,0x1\n"
    made = streamcd.convert(write_text(text, tmp_path / "t.csv"), tmp_path / "data", label="y")
    assert list(names_of(made).values()) == ["a=0xbeef", "a=0xdead", "b=0x1F", "b=1", "b=3"]
    assert list(made.class_names) == ["0x1", "0x2"]


LATE = 200_000


@pytest.mark.parametrize(
    ("header", "row", "last", "options", "message"),
    [
        ("a,b,y", "1,1,0", "word,1,0", {}, "'a': expected a number, as in its first.*'word'; .* with drop.* category a"),
        ("a,b,y", "1,1,0", "word,1,0", {"features": "a,b"}, "found 'word'; correct the line, or .* category a$"),
        ("a,b,y", "1,1,0", "1,1,word", {}, "'y': expected a number.* found 'word'; correct the line$"),
        ("a,w,y", "1,1,0", "1,word,1", {"weight_column": "w"}, "'w': .*found 'word'; correct the line$"),
        ("a;b;y", "1;1;0", "1,5;1;0", {}, "found '1,5'; turn its decimal comma into a point before .docs/tables.md"),
        ("a,b,y", "2024-01-01T00:00Z,1,0", "2024-01-02T00:00,1,0", {}, "time with a zone, .*'2024-01-02T00:00'; correct"),
        ("a,b,y", "2024-01-01T00:00,1,0", "2024-01-02T00:00Z,1,0", {}, "time without a zone, .*'2024-01-02T00:00Z'; c"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_told_at_its_line_with_advice_that_works(
    tmp_path: Path, header: str, row: str, last: str, options: dict[str, Any], message: str
) -> None:
    path = write_text("\n".join([header, *[row] * LATE, last, ""]), tmp_path / "t.csv")
    with pytest.raises(StreamcdError, match=rf"t\.csv:{LATE + 2}: column .*{message}") as refused:
        streamcd.convert(path, tmp_path / "data", label="y", **options)
    for option in ("category", "drop"):
        if f"--{option}" in str(refused.value):
            streamcd.convert(path, tmp_path / option, label="y", **options, **{option: "a"})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a,b,y\n1,u,0\n"2,v,1\n3,w,0\n', 3),
        ('a,b,y\n1,"u,0\n2,v,1\n', 2),
        ('a,b,y\n1,u,0\n2,v,1\n3,w,"0\n', 4),
        ('a,b,y\n1,5" pipe,0\n2,v,1\n3,w\n', 4),
    ],
)
def test_a_stray_quote_is_told_at_its_line_and_moves_no_other(tmp_path: Path, text: str, line: int) -> None:
    for workers in (1, 2):
        with pytest.raises(StreamcdError, match=rf"t\.csv:{line}: "):
            streamcd.convert(
                write_text(text, tmp_path / "t.csv"), tmp_path / "data", label="y", workers=workers
            )


# ---------------------------------------------------------------------------------------------------------------------
# Numbers that are taken as text


@pytest.mark.parametrize("source", ["csv", "parquet", "frame"])
@pytest.mark.parametrize("options", [{}, {"hash": 4}, {"category": "a"}], ids=str)
@pytest.mark.parametrize("distinct", [64, 5000])
@pytest.mark.parametrize("odd", ["unknown", "3,5"])
def test_a_column_of_numbers_with_a_word_or_commas_is_told_with_its_row(
    tmp_path: Path, source: str, options: dict[str, Any], distinct: int, odd: str
) -> None:
    """It became categories, or was left out with advice for names."""
    values = [str(number % distinct) for number in range(5000)]
    values[3999] = odd
    frame = pd.DataFrame({"a": values, "b": 1, "y": np.arange(5000) % 2})
    data: Any = frame
    if source != "frame":
        data = tmp_path / f"t.{source}"
        frame.to_csv(data, index=False, sep=";") if source == "csv" else frame.to_parquet(data)
    heard = Heard()
    streamcd.convert(data, tmp_path / "data", label="y", listener=heard, **options)
    said = [text for text in heard.warnings + heard.messages if "column 'a'" in text]
    if "category" in options:
        assert not said
        return
    (text,) = said
    is_used = distinct == 64 or "hash" in options
    assert text.startswith("column 'a' is not used: ") != is_used
    assert (text in heard.warnings) == is_used
    place = {"csv": r"t\.csv:4001", "parquet": r"t\.parquet, row 4000", "frame": "row 4000"}[source]
    assert re.search(rf"{place}: (column 'a': )?'{odd}' ", text)
    assert ("decimal comma" in text) == (odd == "3,5")
    assert "--category" not in text


def test_text_and_codes_are_not_told_as_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"text": rng.choice(["u", "v", "7"], 900), "grade": rng.choice(["1", "2", "A"], 900)}
    )
    heard = Heard()
    streamcd.convert(frame.assign(y=np.arange(900) % 2), tmp_path / "data", label="y", listener=heard)
    assert heard.warnings == []


def test_the_section_that_messages_point_to_is_there() -> None:
    """Its example is run by `test_docs`."""
    page, section = re.fullmatch(r"(.*), '(.*)'", RECIPES).groups()  # type: ignore[union-attr]
    assert f"\n## {section}\n" in (ROOT / page).read_text()


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
