"""Columns derived from those of a table: times as seconds, numbers as categories."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from .arrow_columns import arrow_strings, filled, numbers_of, valid_of

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def seconds_of(array: pa.Array, origin: int) -> np.ndarray:
    """Return times (since 1970, since midnight, or of a length) in seconds since `origin`; NaN for null."""
    if pa.types.is_null(array.type):
        return np.full(len(array), np.nan)
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("ms"))
    counts = (array.cast(pa.int32()) if array.type.bit_width == 32 else array).cast(pa.int64())
    per_second = _PER_SECOND[array.type.unit]
    whole, rest = np.divmod(filled(counts, 0), per_second)
    seconds: np.ndarray = (whole - origin) + rest / per_second
    valid = valid_of(counts)
    if valid.size:
        seconds[~valid] = np.nan
    return seconds


def have_dates(array: pa.Array) -> bool:
    """Check if times are dates, with a time of day or without, rather than times of day or lengths alone."""
    return bool(pa.types.is_date(array.type) or pa.types.is_timestamp(array.type))


def names_of_numbers(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct numbers as text, and the place of each row's among them, -1 for null and NaN.

    Whole numbers have no decimal point, whatever their type.
    """
    numbers = numbers_of(array).astype(np.float64) + 0.0  # -0 is 0
    known = ~np.isnan(numbers)
    distinct, found = np.unique(numbers[known], return_inverse=True)
    places = np.full(numbers.size, -1)
    places[known] = found
    return arrow_strings([number_name(number) for number in distinct.tolist()]), places


def number_name(number: float) -> str:
    """Write a number: a whole one without a decimal point."""
    return str(int(number)) if number.is_integer() else repr(number)


def described_origin(origin: int) -> str:
    """Describe a time in seconds since 1970, in UTC; by the number outside the years 1 to 9999."""
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=origin)
    except OverflowError:
        return f"1970 and {origin} s"
    return time.strftime("%Y-%m-%d %H:%M:%S")
