"""Columns derived from those of a table: times as seconds, parts of times and numbers as categories."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from .arrow_columns import arrow_strings, filled, numbers_of, type_name, valid_of

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86400  # seconds
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_FORMS = [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ns", "UTC")]
_HALF_DAY = 43_200_000_000  # microseconds

DATES = {
    "": "2020-03-31, 2020-03-31 14:30:00 or 31 March 2020",
    "dmy": "31.03.2020 or 31/03/2020 14:30:00",
    "mdy": "03/31/2020 or 03/31/2020 02:30:00 PM",
}
"""Examples of dates, by the order in which text has the day, the month and the year; "" is that of ISO 8601."""

_TIME = r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
_MONTHS = [
    "jan(?:uary)?", "feb(?:ruary)?", "mar(?:ch)?", "apr(?:il)?", "may", "june?", "july?", "aug(?:ust)?",
    "sep(?:t|tember)?", "oct(?:ober)?", "nov(?:ember)?", "dec(?:ember)?",
]  # fmt: skip


def _with_month(month: str) -> tuple[str, str]:
    """Return patterns of dates with a month's name: the day before it and after it."""
    return (
        rf"(?i)^([0-9]{{1,2}})\.?[ -](?:{month})\.?,?[ -]([0-9]{{4}})(?:,|\b)",
        rf"(?i)^(?:{month})\.? ([0-9]{{1,2}})(?:st|nd|rd|th)?,? ([0-9]{{4}})(?:,|\b)",
    )


_HAS_MONTH = "|".join(_with_month("|".join(_MONTHS)))
_LOOKS = {"": rf"^([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([ T][0-9]|$)|{_TIME}$)|{_HAS_MONTH}"}
_LOOKS |= dict.fromkeys(("dmy", "mdy"), r"^[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{4}(,? |T|$)")
_DAY_AND_MONTH = r"^([0-9]{1,2})[./-]([0-9]{1,2})[./-]([0-9]{4}),?"
_YEARS_OF_TWO_DIGITS = (
    (r"^([0-9]+[./-][0-9]+[./-])(69|[7-9][0-9])\b", r"\119\2"),  # as strptime has them
    (r"^([0-9]+[./-][0-9]+[./-])([0-9]{2})\b", r"\120\2"),
)
_IN_ORDER = {"dmy": r"\3-0\2-0\1", "mdy": r"\3-0\1-0\2"}
_TO_ISO = (
    (r"^([0-9]{4})-0?([0-9]{2})-0?([0-9]{2})", r"\1-\2-\3"),
    (r"^([-0-9]+[ T])([0-9]):", r"\10\2:"),
)
_AFTERNOON = r"(?i)^[-0-9]+[ T](0[1-9]|1[0-2])[0-9:.]* ?pm$"
_TO_24_HOURS = (
    (r"(?i)^([-0-9]+[ T])12([0-9:.]* ?[ap]m)$", r"\100\2"),
    (r"(?i)^([-0-9]+[ T](0[0-9]|1[01])[0-9:.]*) ?[ap]m$", r"\1"),
)


class NoTimeError(ValueError):
    """A text that is no time, in row `row` of an array."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(row, text)
        self.row, self.text = row, text


def times_of(array: pa.Array, order: str = "") -> pa.Array:
    """Return times as they are, or read from text: as ISO 8601 writes them, or with day and month in an `order` of `DATES`.

    A time of day is of 1970-01-01, and empty text is no time, null. Raises `NoTimeError`.
    """
    if type_name(array.type) != "string":
        return array
    array = without_empty(array)
    found = _read(array, order)
    if found is not None:
        return found
    if len(array) == 1:
        raise NoTimeError(0, array[0].as_py())
    return pa.concat_arrays([_time_of_row(array, row, order) for row in range(len(array))])


def orders_of(array: pa.Array) -> list[str]:
    """List the orders of `DATES` in which all texts are dates with a year of four digits; times of day have the first.

    There are two where no day is above 12.
    """
    texts = without_empty(array).drop_null().unique()
    if not any(
        re.match(r"\s*[0-9]|\s*[a-z]{3,9}\.? [0-9]", str(text), re.I) for text in texts[:1].to_pylist()
    ):
        return []
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(texts.cast(pa.large_string()))
    return [
        order
        for order, look in _LOOKS.items()
        if numbers_of(pc.match_substring_regex(texts, look)).all() and _read(texts, order) is not None
    ]


def without_empty(array: pa.Array) -> pa.Array:
    """Return texts with null for those of white space alone, which tables other than CSV have in place of it."""
    import pyarrow.compute as pc

    texts = array.cast(pa.large_string())
    is_empty = pc.match_substring_regex(texts, r"^\s*$")
    return pc.if_else(is_empty, pa.nulls(len(texts), texts.type), texts)  # scalars would load pandas


def _read(array: pa.Array, order: str) -> pa.Array | None:
    """Read texts as times; None if some are none, or all are not of one form."""
    import pyarrow.compute as pc  # 30 ms, which a training saves

    texts = pc.utf8_trim_whitespace(array.cast(pa.large_string()))
    found = None if order else _in_one_form(texts)
    if found is not None:
        return found
    if order:
        for pattern, replacement in (*_YEARS_OF_TWO_DIGITS, (_DAY_AND_MONTH, _IN_ORDER[order])):
            texts = pc.replace_substring_regex(texts, pattern, replacement)
    else:
        texts = pc.replace_substring_regex(texts, r"^([0-9]+:)", r"1970-01-01 \1")
        texts = _without_month_names(texts)
    for pattern, replacement in _TO_ISO:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    is_late = pc.match_substring_regex(texts, _AFTERNOON)
    for pattern, replacement in _TO_24_HOURS:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    found = _in_one_form(texts)
    if found is None or not numbers_of(is_late).any():
        return found
    return pc.add(found, pc.multiply(is_late.cast(pa.int64()), _HALF_DAY).cast(pa.duration("us")))


def _without_month_names(texts: pa.Array) -> pa.Array:
    """Write dates that name their month as year, month and day."""
    import pyarrow.compute as pc

    if not numbers_of(pc.match_substring_regex(texts, _HAS_MONTH)).any():
        return texts
    for number, month in enumerate(_MONTHS, 1):
        for pattern in _with_month(month):
            texts = pc.replace_substring_regex(texts, pattern, rf"\2-{number:02}-0\1")
    return texts


def _in_one_form(texts: pa.Array) -> pa.Array | None:
    """Read texts as times, in the first form that fits them all; None if there is none."""
    for form in _FORMS:
        with suppress(pa.ArrowInvalid):
            return texts.cast(form)
    return None


def _time_of_row(array: pa.Array, row: int, order: str) -> pa.Array:
    """Read a text by itself, where the texts of some rows are not all of one form."""
    try:
        return times_of(array.slice(row, 1), order).cast(pa.timestamp("ns"))
    except NoTimeError as error:
        raise NoTimeError(row, error.text) from None


def _whole_seconds(array: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the whole seconds of times (since 1970, since midnight, or of a length), the rest, and where they are null."""
    array = times_of(array)
    if pa.types.is_null(array.type):
        array = array.cast(_FORMS[0])
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("ms"))
    per_second = _PER_SECOND[array.type.unit]
    counts = (array.cast(pa.int32()) if array.type.bit_width == 32 else array).cast(pa.int64())
    whole, rest = np.divmod(filled(counts, 0), per_second)
    valid = valid_of(counts)
    return whole, rest / per_second, ~valid if valid.size else np.zeros(len(counts), np.bool_)


def seconds_of(array: pa.Array, origin: int) -> np.ndarray:
    """Return times in seconds since `origin`, itself in seconds since 1970; NaN for null. Raises `NoTimeError`."""
    whole, rest, null = _whole_seconds(array)
    seconds: np.ndarray = (whole - origin) + rest
    seconds[null] = np.nan
    return seconds


def have_dates(array: pa.Array) -> bool:
    """Check if times are dates, with a time of day or without, rather than times of day or lengths alone."""
    if type_name(array.type) == "string":
        first = without_empty(array).drop_null()[:1].to_pylist()
        return any(":" not in str(text).strip()[:3] for text in first)
    return bool(pa.types.is_date(array.type) or pa.types.is_timestamp(array.type))


def parts_of(array: pa.Array, part: str) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct years, months, weekdays or hours of times, in UTC, and each row's place among them, -1 for null.

    Raises `NoTimeError`.
    """
    whole, _, null = _whole_seconds(array)
    if part == "hour":
        number = whole // 3600 % 24
    elif part == "weekday":
        number = (whole // _DAY + 3) % 7  # 1970 began on a Thursday
    else:
        months = whole.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
        number = months // 12 + 1970 if part == "year" else months % 12 + 1
    return _categories(number, null, _NAMES[part])


_NAMES: dict[str, Callable[[int], str]] = {
    "year": lambda year: f"{year:04}",
    "month": lambda month: f"{month:02}",
    "weekday": lambda day: _WEEKDAYS[day],
    "hour": lambda hour: f"{hour:02}",
}


def names_of_numbers(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct numbers as text, and the place of each row's among them, -1 for null and NaN.

    Whole numbers have no decimal point, whatever their type.
    """
    numbers = numbers_of(array).astype(np.float64) + 0.0  # -0 is 0
    return _categories(numbers, np.isnan(numbers), number_name)


def number_name(number: float) -> str:
    """Write a number: a whole one without a decimal point."""
    return str(int(number)) if number.is_integer() else repr(number)


def _categories(
    numbers: np.ndarray, null: np.ndarray, name: Callable[..., str]
) -> tuple[pa.Array, np.ndarray]:
    distinct, found = np.unique(numbers[~null], return_inverse=True)
    places = np.full(numbers.size, -1)
    places[~null] = found
    return arrow_strings([name(number) for number in distinct.tolist()]), places


def described_origin(origin: int) -> str:
    """Describe a time in seconds since 1970, in UTC."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=origin)).strftime("%Y-%m-%d %H:%M:%S")
