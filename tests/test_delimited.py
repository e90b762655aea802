"""Plain delimited text: what our own parser takes it reads as Arrow does, and the rest it leaves alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from streamcd.conversion import tables
from streamcd.conversion.byte_sources import PADDING
from streamcd.conversion.delimited import PlainColumns

_TYPES = {"a": pa.float64(), "b": pa.large_string(), "d": pa.float64()}
_NAMES = ["a", "b", "dropped", "d"]


def _plain(text: str, names: list[str] = _NAMES) -> Any:
    encoded = text.encode("utf-8", "surrogateescape")
    buffer = np.frombuffer(encoded + b"," * PADDING, np.uint8)
    wanted = {name: type_ for name, type_ in _TYPES.items() if name in names}
    return PlainColumns(names, wanted, tables._NULLS, ",").read(buffer, 0, len(encoded), text.count("\n"))


def _arrow(text: str) -> Any:
    read = pa.csv.ReadOptions(use_threads=False, column_names=_NAMES)
    convert = pa.csv.ConvertOptions(
        null_values=tables._NULLS,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        column_types=_TYPES,
        include_columns=list(_TYPES),
    )
    return pa.csv.read_csv(pa.BufferReader(text.encode("utf-8", "surrogateescape")), read, None, convert)


_NUMBERS = [
    "0",
    "-0",
    "7",
    "-1.25",
    "007",
    "1e3",
    "3.5E-2",
    "12345678901234567890",
    "0.1",
]
_NUMBERS += ["", "NA", "nan", "null", "None", "#N/A"]
_ODD = [
    "+1",
    ".5",
    "5.",
    "1_0",
    "inf",
    "0x1",
    " 1",
    "1 ",
    "1e",
    "--1",
    "-",
    "Null",
    '"3"',
    "abc",
    "1.2.3",
    "9" * 41,
]
_STRINGS = [
    "x",
    "longer than eight bytes",
    "é",
    "日本語",
    "",
    "NA",
    "NaN",
    '""',
    '"NA"',
    '"a,b"',
    '"é"',
    " s ",
    "a'b",
]
_ODD_STRINGS = ['"a""b"', 'a"b', '"a" ', '"a\nb"', "\udcff", "a\rb", '"']


def _table(draw: random.Random, oddity: float) -> str:
    def cell(plain: list[str], odd: list[str]) -> str:
        return draw.choice(odd if draw.random() < oddity else plain)

    lines = []
    for _ in range(draw.randrange(1, 6)):
        cells = [cell(_NUMBERS, _ODD), *(cell(_STRINGS, _ODD_STRINGS) for _ in "bc"), cell(_NUMBERS, _ODD)]
        if draw.random() < oddity / 4:
            cells.pop()
        lines.append(",".join(cells) if draw.random() >= oddity / 4 else "")
    end = draw.choice(["\n", "\r\n"])
    return end.join(lines) + end


@pytest.mark.parametrize("oddity", [0.0, 0.05, 0.5])
def test_plain_text_is_read_as_arrow_reads_it(oddity: float) -> None:
    draw = random.Random(7)
    n_taken = 0
    for _ in range(1500):
        text = _table(draw, oddity)
        found = _plain(text)
        if found is not None:
            n_taken += 1
            assert found.equals(_arrow(text)), text
            found.validate(full=True)
    assert n_taken > (5 if oddity else 1000)


def test_usual_text_is_plain() -> None:
    """Quotes, missing values, both ends of lines, letters of other languages: none of it takes the slow way."""
    text = '1,"a,b",x,-2.5\r\n,NA,"y",1e3\r\nNA,日本語,,0\r\n'
    found = _plain(text)
    assert found.to_pydict() == {"a": [1, None, None], "b": ["a,b", None, "日本語"], "d": [-2.5, 1000, 0]}


@pytest.mark.parametrize(
    "text",
    [
        "1,a,x\n",
        "1,a,x,2,3\n",
        "1,a,x,y\n",
        '1,"a""b",x,2\n',
        "1,\udcff,x,2\n",
        "\n1,a,x,2\n",
        "1,a,x, 2\n",
        "",
    ],
)
def test_what_is_not_plain_is_left_to_arrow(text: str) -> None:
    assert _plain(text) is None


def test_a_blank_line_is_no_record_of_one_column() -> None:
    assert _plain("1\n\n2\n", ["a"]) is None
    assert _plain("1\r\n\r\n", ["a"]) is None
    assert _plain("1\nNA\n", ["a"]).to_pydict() == {"a": [1, None]}
