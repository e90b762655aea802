"""The parser of libsvm text: what it takes, what it refuses, and that numbers are exact."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamcd
from streamcd.conversion.formats import expand
from streamcd.conversion.libsvm import LibsvmReader, write_rows
from streamcd.conversion.rows import RowBatch
from streamcd.conversion.sources import Reading, check_rows
from streamcd.core.errors import DataError, UsageError
from streamcd.core.parallel import AHEAD


@dataclass
class Parsed:
    label: list[float]
    rows: list[list[tuple[int, float]]]
    counts: Any


def batches_of(paths: list[str], reading: Reading) -> Generator[RowBatch, None, None]:
    reader = LibsvmReader(paths, reading)
    return reader.batches(reader.pieces())


def parse(source: Any, **options: Any) -> Parsed:
    """All rows of a source; values in float64 unless said otherwise."""
    label: list[float] = []
    rows: list[list[tuple[int, float]]] = []
    counts: Any = None
    form = Reading(**{"value_dtype": np.float64, **options})
    paths = expand(source)[0]
    for batch in batches_of(paths, form):
        found, counts = batch.rows, batch.counts
        assert found.source_row[0] == len(label)
        label += found.label.tolist()
        index, value = found.index.tolist(), found.value.tolist()
        for start, stop in zip(found.indptr[:-1], found.indptr[1:], strict=True):
            rows.append(list(zip(index[start:stop], value[start:stop], strict=True)))
    check_rows(len(rows), paths)
    assert counts.n_rows == len(rows)
    assert counts.n_entries == sum(map(len, rows))
    return Parsed(label, rows, counts)


@pytest.fixture
def parse_text(tmp_path: Path) -> Callable[..., Parsed]:
    """``parse_text(b"1 1:2")`` parses bytes from a file."""

    def run(text: bytes | str, **options: Any) -> Parsed:
        path = tmp_path / "data.libsvm"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return parse(path, **options)

    return run


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


def parsed_number(text: str, folder: Path) -> float:
    path = folder / "number.libsvm"
    path.write_text(f"1 1:{text}\n")
    parsed = parse(path)
    return parsed.rows[0][0][1] if parsed.rows[0] else 0.0


HARD_NUMBERS = [
    "9007199254740993",  # half-way between two numbers: to the even one
    "9007199254740993.0000000000000000000000000001",
    "9007199254740992.99999999999999999999999999",
    "0.1", "0.30000000000000004", "123456789012345678901234567890", "1e22", "1e23", "8.5e22", "3.5844466002796428e+298",
    "2.2250738585072011e-308", "2.2250738585072014e-308", "5e-324", "4.9406564584124654e-324", "2.4703282292062328e-324",
    "1.7976931348623157e308", "1.7976931348623158e308", "0." + "0" * 400 + "1e400", "1" + "0" * 400 + "e-400",
    "6.631236846766476e-316", "1448997445238699", "7.2057594037927933e16", "1e-400", "123.456e-300", "1.",
    ".5", "+.5e+1", "-0.0", "0e999999999999", "00000000000000000000000000000000001.5", "1E5", "0x10"[:1],
    "179769313486231580793e287", "9.5367431640625e-7", "100000000000000016777215", "100000000000000016777216",
]  # fmt: skip


@pytest.mark.parametrize("text", HARD_NUMBERS, ids=lambda text: text[:30])
def test_hard_numbers_are_correctly_rounded(text: str, tmp_path: Path) -> None:
    assert parsed_number(text, tmp_path) == float(text)


def test_random_bit_patterns_survive_a_round_trip(parse_text: Callable[..., Parsed]) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 2**63, 60_000, dtype=np.uint64).view(np.float64)
    numbers = numbers[np.isfinite(numbers) & (numbers != 0)]
    texts = [
        format(number, f".{digits}g")
        for number, digits in zip(numbers, rng.integers(1, 25, numbers.size), strict=True)
    ]
    texts = [text for text in texts if 0 < float(text) < np.inf]
    parsed = parse_text("1 " + " ".join(f"{i}:{text}" for i, text in enumerate(texts)))
    assert [value for _, value in parsed.rows[0]] == [float(text) for text in texts]


DECIMALS = st.tuples(
    st.sampled_from(["", "-", "+"]),
    st.text("0123456789", max_size=25),
    st.just("") | st.text("0123456789", max_size=30).map(".{}".format),
    st.just("") | st.integers(-330, 300).map("e{}".format),
).map("".join)


def refusal_of(text: str) -> str:
    """What is said of a number that is refused; nothing of one that is taken."""
    try:
        return "" if np.isfinite(float(text)) else "finite in float64"
    except ValueError:
        return r"number\.libsvm:1: expected a number"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(DECIMALS, min_size=1, max_size=12))
def test_any_decimal_number_equals_python_float(
    texts: list[str], parse_text: Callable[..., Parsed], tmp_path: Path
) -> None:
    """Numbers of a row; one that Python's float refuses, or that is infinite, is refused in a row of its own."""
    refused = {text: reason for text in texts if (reason := refusal_of(text))}
    for text, reason in list(refused.items())[:2]:
        with pytest.raises(DataError, match=reason):
            parsed_number(text, tmp_path)
    kept = [float(text) for text in texts if text not in refused]
    row = " ".join(f"{i}:{text}" for i, text in enumerate(text for text in texts if text not in refused))
    found = dict(parse_text(f"1 {row}").rows[0])
    assert [struct.pack("d", found.get(i, 0.0)) for i in range(len(kept))] == [
        struct.pack("d", number + 0.0) for number in kept
    ]


def test_float32_is_the_float64_rounded_once_more(parse_text: Callable[..., Parsed]) -> None:
    text = "1.00000005960464477539062500001"  # above half-way in float32; half-way once it is a float64
    value = parse_text(f"1 1:{text}", value_dtype=np.float32).rows[0][0][1]
    assert value == float(np.float32(float(text)))


# ---------------------------------------------------------------------------------------------------------------------
# Whole files


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.integers(-5, 5), st.floats(-1e6, 1e6)),
            st.dictionaries(
                st.integers(1, 200), st.floats(allow_nan=False, allow_infinity=False, width=64), max_size=12
            ),
        ),
        min_size=1,
        max_size=20,
    ),
    block_bytes=st.sampled_from([64, 200, 1 << 20]),
)
def test_agrees_with_scikit_learn(rows: list[Any], block_bytes: int, tmp_path: Path) -> None:
    from sklearn.datasets import load_svmlight_file

    lines = [" ".join([repr(y), *(f"{i}:{v!r}" for i, v in sorted(x.items()))]) for y, x in rows]
    path = tmp_path / "data.libsvm"
    path.write_text("\n".join(lines) + "\n")
    x, y = load_svmlight_file(str(path), zero_based=True)
    x.eliminate_zeros()
    parsed = parse(path, block_bytes=block_bytes)
    assert parsed.label == y.tolist()
    expected = [list(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in x]
    assert parsed.rows == expected


HOSTILE = st.text("0123456789:.+-eE #\t\r\nqidnaf\x00_,x", max_size=60)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=HOSTILE, block_bytes=st.sampled_from([16, 1 << 16]))
def test_hostile_text_is_parsed_like_the_plain_twin_or_refused_by_line(
    text: str, block_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / "hostile.libsvm"
    path.write_bytes(text.encode())
    expected = plain_twin(text)
    if isinstance(expected, int):
        where = (
            r"hostile\.libsvm: expected rows" if expected == 0 else rf"hostile\.libsvm:{expected}: expected "
        )
        with pytest.raises(DataError, match=where):
            parse(path, block_bytes=block_bytes)
    else:
        parsed = parse(path, block_bytes=block_bytes)
        assert list(zip(parsed.label, parsed.rows, strict=True)) == expected


def plain_twin(text: str) -> int | list[tuple[float, list[tuple[int, float]]]]:
    """The rows, or the first bad line (0: no rows), by Python's own means."""
    import re

    number = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    found = []
    for n, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r") if "#" not in line else line
        tokens = [token for token in re.split("[ \t]+", line.split("#")[0]) if token]
        if not tokens:
            continue
        row: list[tuple[int, float]] = []
        last = -1
        if not re.fullmatch(number, tokens[0]) or abs(float(tokens[0])) >= 2**53:
            return n
        for token in tokens[1:]:
            if token.startswith("qid:") and re.fullmatch(r"[^\x00-\x20]*", token):
                continue
            index, colon, value = token.partition(":")
            if not (re.fullmatch("[0-9]+", index) and colon and re.fullmatch(number, value)):
                return n
            if int(index) <= last or int(index) > 2**62 or np.isinf(float(value)):
                return n
            last = int(index)
            if float(value) != 0:
                row.append((last, float(value)))
        found.append((float(tokens[0]), row))
    return found or 0


def test_the_same_rows_whatever_the_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(300):
        index = np.cumsum(rng.integers(1, 50, rng.integers(0, 30)))
        entries = zip(index.tolist(), rng.random(index.size).tolist(), strict=True)
        lines.append(" ".join([str(rng.integers(-1, 2)), *(f"{i}:{v!r}" for i, v in entries)]))
    path = tmp_path / "data.libsvm"
    path.write_text("\n".join(lines))
    whole = parse(path)
    for block_bytes in (1, 17, 1000, 4096):
        small = parse(path, block_bytes=block_bytes)
        assert (small.label, small.rows, small.counts) == (whole.label, whole.rows, whole.counts)


# ---------------------------------------------------------------------------------------------------------------------
# What is taken

VARIETIES: dict[str, tuple[bytes, list[float], list[list[tuple[int, float]]]]] = {
    "crlf": (b"1 1:2\r\n-1 3:4\r\n", [1, -1], [[(1, 2)], [(3, 4)]]),
    "crlf_without_last_newline": (b"1 1:2\r\n-1 3:4\r", [1, -1], [[(1, 2)], [(3, 4)]]),
    "blank_lines": (b"\n\n1 1:2\n  \t\n\r\n-1 3:4\n\n", [1, -1], [[(1, 2)], [(3, 4)]]),
    "comments": (
        b"# head\n1 1:2 # tail 5:x\n  # indented\n-1 3:4# close\n1#\n",
        [1, -1, 1],
        [[(1, 2)], [(3, 4)], []],
    ),
    "qid": (b"1 qid:7 1:2\n-1 qid:8\t3:4\n", [1, -1], [[(1, 2)], [(3, 4)]]),
    "labels": (b"+1 1:2\n1e0 1:2\n-0.5\n2.50 1:1\n", [1, 1, -0.5, 2.5], [[(1, 2)], [(1, 2)], [], [(1, 1)]]),
    "rows_without_entries": (b"1\n-1 \n1\t\n", [1, -1, 1], [[], [], []]),
    "explicit_zeros": (b"1 1:0 2:1 3:0.0 4:-0 5:0e5\n", [1], [[(2, 1)]]),
    "no_last_newline": (b"1 1:2\n-1 3:4", [1, -1], [[(1, 2)], [(3, 4)]]),
    "spaces_and_tabs": (b" \t1 \t 1:2\t\t3:4  \n", [1], [[(1, 2), (3, 4)]]),
    "large_indices": (b"1 0:1 4611686018427387904:2\n", [1], [[(0, 1), (1 << 62, 2)]]),
    "leading_zeros": (b"1 0000000000000000000000000007:1\n", [1], [[(7, 1)]]),
    "byte_order_mark": (b"\xef\xbb\xbf1 1:2\n", [1], [[(1, 2)]]),
}


@pytest.mark.parametrize("variety", VARIETIES)
def test_takes(variety: str, parse_text: Callable[..., Parsed]) -> None:
    text, label, rows = VARIETIES[variety]
    for block_bytes in (8, 1 << 20):
        parsed = parse_text(text, block_bytes=block_bytes)
        assert parsed.label == label
        assert parsed.rows == rows


def test_counts_what_it_drops(parse_text: Callable[..., Parsed]) -> None:
    counts = parse_text("1 qid:3 1:0 2:1e-60 3:1\n0.5 2:-1e-50 4:0\n", value_dtype=np.float32).counts
    assert (counts.n_explicit_zeros, counts.n_underflows, counts.n_query_ids) == (2, 2, 1)
    assert [message.split()[0] for message in counts.messages(np.dtype(np.float32))] == ["2", "2", "1"]


@pytest.mark.parametrize(("last", "kind"), [("2e1", "integer"), ("0.5", "decimal")])
def test_labels_written_with_a_point_are_integers_still(tmp_path: Path, last: str, kind: str) -> None:
    (tmp_path / "t.txt").write_text(f"1.0 1:1\n-1.0 1:1\n{last} 1:1\n")
    assert streamcd.convert(tmp_path / "t.txt", tmp_path / "data").label_kind == kind


def test_notices_index_zero_and_the_largest_index(parse_text: Callable[..., Parsed]) -> None:
    counts = parse_text("1 3:1\n1 0:0 9:1\n1 9:2\n").counts
    assert counts.zero_index
    assert counts.max_index == 9
    assert counts.max_location.endswith("data.libsvm:2")


def test_entries_beyond_the_width_can_be_ignored(parse_text: Callable[..., Parsed]) -> None:
    parsed = parse_text("1 1:1 5:2 6:3\n1 7:4 8:0\n", index_base=1, n_features=5, ignore_beyond=True)
    assert parsed.rows == [[(1, 1), (5, 2)], []]
    assert parsed.counts.n_ignored == 2


@pytest.mark.parametrize("length", [1000, 300_000])
def test_a_line_longer_than_a_block_makes_it_grow(length: int, parse_text: Callable[..., Parsed]) -> None:
    line = "1 " + " ".join(f"{i}:1" for i in range(1, length))
    parsed = parse_text(f"-1 1:1\n{line}\n-1 2:1\n", block_bytes=256)
    assert [len(row) for row in parsed.rows] == [1, length - 1, 1]


def test_a_line_longer_than_the_memory_is_refused(parse_text: Callable[..., Parsed]) -> None:
    with pytest.raises(DataError, match=r"data\.libsvm: expected lines of at most 1 kB.*memory"):
        parse_text("1 " + "1:1 " * 1000, block_bytes=100, max_line_bytes=1000)


# ---------------------------------------------------------------------------------------------------------------------
# What is refused, naming file and line

REFUSED: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "malformed_label": (b"1 1:1\nx 1:1\n", {}, "2: expected a number as label, found 'x'"),
    "label_with_two_values": (b"1,2 1:1\n", {}, "1: expected a number as label, found '1,2'"),
    "label_missing": (b"1 1:1\n1:1\n", {}, "2: expected a number as label, found '1:1'"),
    "malformed_token": (b"1 1:1\n\n1 foo\n", {}, "3: expected index:value, found 'foo'"),
    "no_colon": (b"1 17\n", {}, "1: expected index:value, found '17'"),
    "malformed_value": (b"1 1:1 2:1x\n", {}, "1: expected a number after the index, found '2:1x'"),
    "value_missing": (b"1 1: 2:1\n", {}, "1: expected a number after the index, found '1:'"),
    "two_points": (b"1 1:1.2.3\n", {}, "1: expected a number after the index, found '1:1.2.3'"),
    "underscore": (b"1 1:1_0\n", {}, "1: expected a number after the index, found '1:1_0'"),
    "bad_exponent": (b"1 1:1e\n", {}, "1: expected a number after the index, found '1:1e'"),
    "lone_carriage_return": (b"1 1:1\r1 1:1\n", {}, "1: expected index:value"),
    "nul_byte": (b"1 1:1\n\x00\n", {}, "2: expected a number as label"),
    "long_token": (b"1 " + b"a" * 1000 + b"\n", {}, "1: expected index:value, found 'a{40}…'"),
    "negative_index": (b"1 -3:1\n", {}, "1: expected indices from 0 on, found '-3:1'"),
    "index_below_base": (b"1 0:1\n", {"index_base": 1}, "1: expected indices from 1 on, found '0:1'; use index_base 0"),
    "index_too_large": (b"1 4611686018427387905:1\n", {}, "1: expected indices up to 2\\^62"),
    "index_of_many_digits": (b"1 99999999999999999999999:1\n", {}, "1: expected indices up to 2\\^62"),
    "index_beyond_width": (b"1 5:1\n1 6:1\n", {"index_base": 1, "n_features": 5}, "2: expected indices up to 5 "),
    "out_of_order": (b"1 1:1\n1 3:1 2:1\n", {}, "2: expected increasing indices, found '2:1' after index 3"),
    "repeated": (b"1 3:1 3:1\n", {}, "1: expected every index once in a row, found '3:1' again"),
    "repeated_zero_value": (b"1 3:0 3:1\n", {}, "1: expected every index once in a row"),
    "nan": (b"1 1:nan\n", {}, "1: expected a finite value, found '1:nan'"),
    "inf": (b"1 1:1\n1 1:-inf\n", {}, "2: expected a finite value, found '1:-inf'"),
    "infinity": (b"1 1:Infinity\n", {}, "1: expected a finite value"),
    "nan_label": (b"NaN 1:1\n", {}, "1: expected a finite label, found 'NaN'"),
    "too_large_for_float32": (b"1 1:1e39\n", {"value_dtype": np.float32}, "1: .*finite in float32.*dtype=.float64"),
    "too_large_for_float64": (b"1 1:1e309\n", {}, "1: .*finite in float64, found '1:1e309'"),
    "label_of_several": (b"1 1:1\n9007199254740993 1:1\n", {}, "2: expected a label below 2.53 .*found '9007199254740993'"),
    "label_too_large": (b"1e400 1:1\n", {}, "1: .*finite in float64, found '1e400'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case: str, parse_text: Callable[..., Parsed]) -> None:
    text, options, message = REFUSED[case]
    for block_bytes in (8, 1 << 20):
        with pytest.raises(DataError, match=rf"data\.libsvm:{message}") as refused:
            parse_text(text, block_bytes=block_bytes, **options)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [b"", b"\n\n", b"# nothing but a comment\n", b"\xef\xbb\xbf"])
def test_refuses_files_without_rows(text: bytes, parse_text: Callable[..., Parsed]) -> None:
    with pytest.raises(DataError, match=r"data\.libsvm: expected rows, found none"):
        parse_text(text)


# ---------------------------------------------------------------------------------------------------------------------
# Sources

TEXT = b"".join(b"%d %d:%d.5\n" % (i % 2, i + 1, i) for i in range(2000))
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("codec", COMPRESS)
@pytest.mark.parametrize("kept", [0.5, 0.98])
def test_truncated_compressed_file_is_named(codec: str, kept: float, tmp_path: Path) -> None:
    data = COMPRESS[codec](TEXT)
    (tmp_path / "cut").write_bytes(data[: int(kept * len(data))])
    with pytest.raises(DataError, match="cut: expected a whole compressed file"):
        parse(tmp_path / "cut")


@pytest.mark.parametrize("codec", COMPRESS)
def test_what_is_damaged_after_the_first_stream_is_refused(codec: str, tmp_path: Path) -> None:
    """Of xz, a flipped bit in a later stream's header was the end of the file: a third of the rows, and no word."""
    stream = COMPRESS[codec](TEXT)
    flipped = bytearray(stream)
    flipped[1] ^= 4
    for rest in (bytes(flipped), b"garbage behind", stream[:2], stream + b"x"):
        (tmp_path / "data").write_bytes(stream + rest)
        with pytest.raises(DataError, match="data: expected a whole compressed file"):
            parse(tmp_path / "data")


@pytest.mark.parametrize("codec", ["gzip", "bz2", "xz"])
def test_a_flipped_byte_is_refused_or_changes_no_row(codec: str, tmp_path: Path) -> None:
    """The time in the header of gzip says nothing of the text; zstd has no checksum unless asked for one."""
    (tmp_path / "data").write_bytes(TEXT)
    expected = parse(tmp_path / "data")
    stream = COMPRESS[codec](TEXT)
    for place in [*range(4, 12), *range(100, len(stream), len(stream) // 20), len(stream) - 6]:
        flipped = bytearray(stream)
        flipped[place] ^= 0x55
        (tmp_path / "data").write_bytes(flipped)
        with suppress(DataError):
            assert parse(tmp_path / "data") == expected


def test_zeros_in_fours_may_stand_between_and_after_xz_streams(tmp_path: Path) -> None:
    stream = lzma.compress(TEXT)
    (tmp_path / "data").write_bytes(stream + bytes(8) + stream + bytes(400_000))
    assert len(parse(tmp_path / "data").rows) == 4000
    for data in (stream + bytes(3) + stream, stream + bytes(7)):
        (tmp_path / "data").write_bytes(data)
        with pytest.raises(DataError, match="data: expected a whole compressed file"):
            parse(tmp_path / "data")


def test_a_dictionary_that_is_larger_than_the_memory_is_refused(tmp_path: Path) -> None:
    """73 kB of xz took 716 MB of the 330 allowed."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 16 << 20}]
    (tmp_path / "data").write_bytes(lzma.compress(TEXT, filters=filters))
    assert len(parse(tmp_path / "data", decoder_bytes=20 << 20).rows) == 2000
    with pytest.raises(DataError, match=r"data: .* larger dictionary; give a larger memory"):
        parse(tmp_path / "data", decoder_bytes=10 << 20)


@pytest.mark.parametrize("token", ["qid:3:0.5", "qid:", "qid:x", "qid:-1", "qid:1.5"])
def test_a_bad_query_number_is_refused(token: str, parse_text: Callable[..., Parsed]) -> None:
    """A feature that was called so vanished as if it were a query's number."""
    with pytest.raises(DataError, match=f"data.libsvm:2: expected qid:number, found '{token}'"):
        parse_text(f"1 qid:2 1:1\n1 {token} 2:1\n")


def test_a_pattern_ends_where_links_lead_back(tmp_path: Path) -> None:
    for name in ("a", "b/a", "b/.hidden/a", ".c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1 1:1\n")
    for name in ("up", "b/up", "b/upper"):
        (tmp_path / name).symlink_to(tmp_path, target_is_directory=True)
    expected = [str(tmp_path / "a"), str(tmp_path / "b" / "a")]
    assert expand(str(tmp_path / "**"))[0] == expected
    assert expand(str(tmp_path / "**" / "a"))[0] == expected
    assert expand(str(tmp_path / "**" / "b" / "**" / "*"))[0] == expected[1:]


def test_a_pattern_from_here_gives_paths_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").mkdir()
    for name in ("a", "b/a"):
        (tmp_path / name).write_text("1 1:1\n")
    monkeypatch.chdir(tmp_path)
    assert expand("**/a")[0] == ["a", "b/a"]
    assert expand("b/**")[0] == ["b/a"]
    assert expand("./**/a")[0] == ["a", "b/a"]


def test_a_directory_is_read_in_order_of_names_without_hidden_files(tmp_path: Path) -> None:
    for name, label in (("b", 2), ("a", 1), ("c", 3), (".hidden", 9)):
        (tmp_path / name).write_text(f"{label} 1:1\n")
    assert parse(tmp_path).label == [1, 2, 3]
    assert parse([str(tmp_path / "*"), tmp_path / "a"]).label == [1, 2, 3, 1]


def test_a_source_that_does_not_exist_is_named(tmp_path: Path) -> None:
    for source in (tmp_path / "none", tmp_path / "none*", tmp_path):
        with pytest.raises(UsageError, match=str(source.name).replace("*", r"\*")):
            expand(source)[0]


def test_batches_count_the_bytes_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    (tmp_path / "b.gz").write_bytes(gzip.compress(TEXT))
    paths = [str(tmp_path / name) for name in ("a", "b.gz")]
    seen = [batch.bytes_read for batch in batches_of(paths, Reading(block_bytes=5000))]
    assert seen == sorted(seen)
    assert len(seen) > 8
    assert seen[-1] == sum(map(os.path.getsize, paths))


def test_stopping_early_ends_the_reading_thread(tmp_path: Path) -> None:
    import threading

    (tmp_path / "a").write_bytes(TEXT * 10)
    before = set(threading.enumerate())
    batches = batches_of([str(tmp_path / "a")], Reading(block_bytes=1000))
    next(batches)
    assert set(threading.enumerate()) - before
    batches.close()
    assert not set(threading.enumerate()) - before


# ---------------------------------------------------------------------------------------------------------------------
# Writing


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_written_rows_come_back_bit_for_bit(dtype: type, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2**32 if dtype is np.float32 else 2**63, 5000, dtype=np.uint64)
    value = bits.astype(np.uint32).view(np.float32) if dtype is np.float32 else bits.view(np.float64)
    value = value[np.isfinite(value) & (value != 0)]
    value[:3] = [0.1, 1, 1e-7]
    label = np.array([-1, 1, 2.5, 3e10])
    indptr = np.array([0, 10, 10, 700, value.size])
    feature = np.concatenate([np.arange(count) for count in np.diff(indptr)])
    stream = io.BytesIO()
    write_rows(stream, label, indptr, feature, value, index_base=1)
    (tmp_path / "data").write_bytes(stream.getvalue())
    assert stream.getvalue().startswith(b"-1 1:0.1 2:1 3:1e-7 ")
    parsed = parse(tmp_path / "data", value_dtype=dtype)
    assert parsed.label == label.tolist()
    assert [entry for row in parsed.rows for entry in row] == list(
        zip((feature + 1).tolist(), value.tolist(), strict=True)
    )


def test_batches_stay_while_the_next_are_parsed_though_texts_between_them_have_no_rows(
    tmp_path: Path,
) -> None:
    """A thread parses ahead of the one that uses a batch: a text without rows takes no set of buffers."""
    paths = [tmp_path / f"{number}.svm" for number in range(8)]
    for number, path in enumerate(paths):
        path.write_text("# none\n\n" if number % 3 == 2 else f"{number} {number + 1}:{number}.5\n")
    found: list[tuple[int, Any]] = []
    batches = batches_of([*map(str, paths)], Reading())
    for number, batch in zip([0, 1, 3, 4, 6, 7], batches, strict=True):
        found.append((number, batch.rows))
        for earlier, rows in found[-1 - AHEAD :]:
            assert (rows.label[0], rows.index[0], rows.value[0]) == (earlier, earlier + 1, earlier + 0.5)
