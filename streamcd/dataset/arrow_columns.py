"""Arrow tables: columns as numpy arrays (numbers, strings, lists), and Parquet files, read a row group at a time.

Numbers are viewed in place (DLPack): Arrow's own `to_numpy`, `scalar` and `array` import pandas where it is installed, which
would cost a training 30 MB of its budget.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import math
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import DataError, DatasetError, EnvironmentFailure, StreamcdError, shortened
from ..core.storage import Location, Url, open_bytes

# Arrow's default allocator, mimalloc, fragments with chunks of unequal sizes: reading the 916 chunks of a column layout in
# random order it grew from 148 to 240 MB, jemalloc from 142 to 155; and jemalloc decoded 300 M entries/s, mimalloc 200.
if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ and "jemalloc" in pa.supported_memory_backends():
    pa.set_memory_pool(pa.jemalloc_memory_pool())

_ENVIRONMENT = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOSYS)
"""Errors that do not mean that the file's content is damaged."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class Strings(NamedTuple):
    """Concatenated strings: string ``i`` is ``data[offsets[i]:offsets[i + 1]]``, in UTF-8."""

    data: np.ndarray  # uint8
    offsets: np.ndarray  # (strings + 1,) int64

    @property
    def size(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes + self.offsets.nbytes)

    def text(self, number: int) -> str:
        return bytes(self.data[self.offsets[number] : self.offsets[number + 1]]).decode(errors="replace")

    def slice(self, start: int, stop: int) -> Strings:
        """Return the strings ``start:stop``, without a copy."""
        return Strings(self.data, self.offsets[start : stop + 1])

    def to_arrow(self) -> pa.Array:
        """Return the strings as an Arrow array, without a copy."""
        buffers = [None, pa.py_buffer(np.ascontiguousarray(self.offsets)), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_string(), self.size, buffers)


def no_strings() -> Strings:
    return Strings(np.empty(0, np.uint8), np.zeros(1, np.int64))


@functools.lru_cache(maxsize=256)
def type_name(type_: pa.DataType) -> str:
    """Classify a column type: "number", "string", "boolean", "time", "list", "nothing", or else Arrow's own name."""
    if pa.types.is_dictionary(type_):
        return "string" if type_name(type_.value_type) in ("string", "number", "nothing") else str(type_)
    kinds = {
        "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
        "string": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        "boolean": (pa.types.is_boolean,),
        "time": (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration),
        "list": (
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_fixed_size_list,
            pa.types.is_list_view,
            pa.types.is_large_list_view,
        ),
        "nothing": (pa.types.is_null,),
    }
    return next((kind for kind, tests in kinds.items() if any(is_it(type_) for is_it in tests)), str(type_))


def frame_reader(frame: Any) -> pa.RecordBatchReader:
    """Open a frame, which is anything with ``__arrow_c_stream__``, to be read in batches; a single column is refused."""
    try:
        return pa.RecordBatchReader.from_stream(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        # pyarrow's arguments name the column of a frame that has several types
        reason = " ".join(map(str, error.args))
        raise DataError(
            f"expected a frame of named columns of one type each, found {type(frame).__name__} ({reason}); make it one"
        ) from None


def flat_fields(schema: pa.Schema) -> list[pa.Field]:
    """Return the fields of a schema, in place of a struct its own, whose names follow the struct's after a point."""
    fields = list(schema)
    while any(pa.types.is_struct(field.type) for field in fields):
        fields = [
            part
            for field in fields
            for part in (field.flatten() if pa.types.is_struct(field.type) else [field])
        ]
    return fields


def flat_columns(table: Any) -> Any:
    """Return a table or record batch with columns as `flat_fields` names them."""
    if not any(pa.types.is_struct(field.type) for field in table.schema):
        return table
    flat = table if isinstance(table, pa.Table) else pa.Table.from_batches([table])
    while any(pa.types.is_struct(field.type) for field in flat.schema):
        flat = flat.flatten()
    return flat if isinstance(table, pa.Table) else one_batch(flat)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch."""
    batches = table.combine_chunks().to_batches()
    empty = [pa.nulls(0, field.type) for field in table.schema]
    return batches[0] if batches else pa.RecordBatch.from_arrays(empty, schema=table.schema)


def valid_of(array: pa.Array) -> np.ndarray:
    """Mark the elements that are not null; empty if there are no nulls."""
    if not array.null_count:
        return np.empty(0, np.bool_)
    return np.from_dlpack(array.is_valid().cast(pa.uint8())).view(np.bool_)


def numbers_of(array: pa.Array) -> np.ndarray:
    """Return numbers, read-only, in their own type; with nulls, and for decimals, as float64 with NaN for null."""
    if pa.types.is_null(array.type):
        return np.full(len(array), np.nan)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if is_decimal := pa.types.is_decimal(array.type):
        array = array.cast(pa.large_string())  # Arrow's cast from decimals to floats is not exact
    if array.null_count or is_decimal:
        array = array.cast(pa.float64(), safe=False)
    return filled(array, np.nan)


def filled(array: pa.Array, value: float) -> np.ndarray:
    """Return the numbers of an array, read-only, in their own type, with `value` for null."""
    if not array.null_count:
        return np.from_dlpack(array)
    buffers = [None, array.buffers()[1]]
    plain = pa.Array.from_buffers(array.type, len(array), buffers, offset=array.offset)
    return np.where(valid_of(array), np.from_dlpack(plain), value)


def strings_of(array: pa.Array) -> tuple[Strings, np.ndarray]:
    """Return strings (numbers are formatted; null becomes ""), and the elements that are not null, as `valid_of`."""
    valid = valid_of(array)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if not pa.types.is_large_string(array.type):
        array = array.cast(pa.large_string())
    _, offsets, data = array.buffers()
    ends = np.zeros(1, np.int64)
    if offsets is not None and offsets.size:
        ends = np.frombuffer(offsets, np.int64, count=len(array) + 1, offset=8 * array.offset)
    bytes_ = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return Strings(bytes_, ends), valid


def dictionary_of(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the different values of an array and the place of each element among them, -1 for null."""
    if pa.types.is_null(array.type):
        array = array.cast(pa.large_string())  # whose dictionary has no null
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    codes = numbers_of(array.indices) if not array.null_count else filled(array.indices.cast(pa.int64()), -1)
    valid = valid_of(array.dictionary)
    return array.dictionary, np.where(valid[codes], codes, -1) if valid.size else codes


def lists_of(array: pa.Array, name: str) -> tuple[np.ndarray, pa.Array]:
    """Return the offsets of lists, shape (lists + 1,), and the array of all their elements; a null list is a ValueError."""
    if array.null_count:
        raise ValueError(f"column {name!r}: expected a list in every row, found a null; give an empty list")
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        # pyarrow's cast to lists takes the place of an empty one, which is any, for its end
        ends = np.cumsum(numbers_of(array.sizes), dtype=np.int64)
        return np.concatenate([[0], ends]), array.flatten()
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        array = array.cast(pa.large_list(array.type.value_type))
    starts = numbers_of(array.offsets).astype(np.int64)
    return starts - starts[0], array.flatten()


def arrow_array(column: Any, type_: pa.DataType) -> pa.Array:
    """Make an Arrow array of a column, numbers without a copy where they have its type; an Arrow array stays as it is."""
    if isinstance(column, pa.Array):
        return column
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return arrow_strings(column).cast(type_)
    if not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        return pa.array(column, type_)
    values = np.ascontiguousarray(column, type_.to_pandas_dtype())
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def arrow_strings(texts: Iterable[str | None]) -> pa.Array:
    """Make an Arrow array of strings; None is null."""
    encoded = [None if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *(len(text or b"") for text in encoded)])
    valid = np.packbits(np.array([text is not None for text in encoded], np.bool_), bitorder="little")
    parts = (valid, ends, b"".join(text or b"" for text in encoded))
    return pa.Array.from_buffers(pa.large_string(), len(encoded), [pa.py_buffer(part) for part in parts])


def prefixed_strings(prefix: str, strings: Strings, chosen: np.ndarray) -> pa.Array:
    """Return the strings numbered `chosen`, ascending, after a prefix."""
    import pyarrow.compute as pc

    first, stop = (int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else (0, 0)
    taken = strings.slice(first, stop).to_arrow().take(arrow_array(chosen - first, pa.int64()))
    before, between = arrow_strings([prefix, ""])  # pyarrow.scalar loads pandas
    return pc.binary_join_element_wise(before, taken, between)


def joined_arrays(arrays: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays(arrays)


# ---------------------------------------------------------------------------------------------------------------------
# Times as seconds, numbers as categories


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


def names_of_numbers(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct numbers as text, and the place of each row's among them, -1 for null and NaN.

    Whole numbers have all their digits and no decimal point, whatever their type.
    """
    values, codes = dictionary_of(array)
    numbers = [math.nan if number is None else number for number in values.to_pylist()]
    texts = [
        str(int(number)) if math.isfinite(number) and number == int(number) else repr(float(number))
        for number in numbers
    ]
    known = np.array([*(not math.isnan(number) for number in numbers), False])
    return arrow_strings(texts), np.where(known[codes], codes, -1)


_NUMBER, _COMMAS = (
    rf"^\s*[-+]?{digits}([eE][-+]?[0-9]+)?\s*$"
    for digits in (r"([0-9]+\.?[0-9]*|\.[0-9]+)", r"[0-9.]*,[0-9]+")
)
NUMBER, COMMA, WORD = range(3)
"""Forms of strings: a number, a number with a decimal comma, another text."""

RECIPES = "docs/tables.md, 'Put right before'"

MOST_ODD = 0.1
"""Share of strings that are no numbers up to which a column is taken for one of numbers."""


def forms_of(strings: pa.Array) -> np.ndarray:
    """Return the forms of strings; that of a null is `NUMBER`."""
    import pyarrow.compute as pc

    texts = strings_of(strings)[0].to_arrow()
    forms = np.full(len(texts), WORD, np.int8)
    for form, pattern in ((COMMA, _COMMAS), (NUMBER, _NUMBER)):
        forms[numbers_of(pc.match_substring_regex(texts, pattern)).astype(np.bool_)] = form
    valid = valid_of(strings)
    if valid.size:
        forms[~valid] = NUMBER
    return forms


def odd_value(where: str, value: pa.Scalar, form: int) -> str:
    """Describe a value of a column of text that looks like numbers otherwise, or for its decimal commas."""
    what = "is no number, nearly all of its column are"
    change = "make such words missing values"
    if form == COMMA:
        what = "looks like a number with a decimal comma"
        change = "turn the commas into points"
    return f"{where}: {shortened(str(value), 40)!r} {what}; to have numbers, {change} before ({RECIPES})"


def described_origin(origin: int) -> str:
    """Describe a time in seconds since 1970, in UTC; by the number outside the years 1 to 9999."""
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=origin)
    except OverflowError:
        return f"1970 and {origin} s"
    return time.strftime("%Y-%m-%d %H:%M:%S")


# ---------------------------------------------------------------------------------------------------------------------
# Parquet files


def file_checksum(path: Location) -> str:
    """Compute the SHA-256 of a file, as ``"sha256:<hex>"``."""
    with open_bytes(path) if isinstance(path, Url) else open(path, "rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def reading(path: Location, where: str = "") -> Iterator[None]:
    """Turn the errors that pyarrow raises for a damaged file into a `DatasetError` that names the file, in one line."""
    location = f"{path}, {where}" if where else str(path)
    try:
        yield
    except FileNotFoundError:
        raise DatasetError(f"{location}: the file is missing; restore it or convert the data again") from None
    except StreamcdError:
        raise
    except (OSError, pa.ArrowException, KeyError, ValueError, IndexError) as error:
        if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
            raise EnvironmentFailure(f"{location}: {error.strerror}") from None
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(
            f"{location}: damaged ({reason}); run 'streamcd verify DATASET', restore the file or convert the data again"
        ) from None


def column_values(column: pa.ChunkedArray) -> np.ndarray:
    """Return the numbers of a column without nulls; the array is read-only. Arrow's `to_numpy` would load pandas."""
    if column.num_chunks == 1:
        return np.from_dlpack(column.chunk(0))
    arrays = [np.from_dlpack(array) for array in column.chunks]
    return np.concatenate(arrays) if arrays else np.empty(0, column.type.to_pandas_dtype())


def parquet_file(path: Location, **options: Any) -> pq.ParquetFile:
    if isinstance(path, Url):
        return pq.ParquetFile(pa.PythonFile(io.BufferedReader(open_bytes(path)), mode="r"), **options)
    return pq.ParquetFile(path, **options)


def read_table(path: Location, checksum: str, remedy: str) -> dict[str, np.ndarray]:
    """Read all columns of a small file at once, verifying its checksums; `remedy` is the advice where they differ."""
    with reading(path):
        content = path.read_bytes()
        if "sha256:" + hashlib.sha256(content).hexdigest() != checksum:
            raise DatasetError(  # safety: dataset::a_flipped_byte[chunks.parquet]
                f"{path}: checksum differs from the manifest's; {remedy}"
            )
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        table = file.read(use_threads=False)
        return {name: column_values(table.column(name)) for name in table.column_names}


def make_table(columns: Mapping[str, list[Any]]) -> pa.Table:
    """Make an in-memory table of numbers, strings, lists of numbers or lists of (string, number); None is null."""
    arrays = {}
    for name, values in columns.items():
        first = next((value for value in values if value is not None), 0.0)
        pairs = isinstance(first, list) and bool(first) and isinstance(first[0], tuple)
        kind = pa.map_(pa.string(), pa.float64()) if pairs else None
        array = pa.array(values, kind)
        arrays[name] = array.cast(pa.float64()) if pa.types.is_null(array.type) else array
    return pa.table(arrays)


def has_column(path: Path, name: str) -> bool:
    """Check if a path is a Parquet file with a given column."""
    try:
        return path.is_file() and name in pq.read_schema(path).names
    except (OSError, pa.ArrowException):
        return False


def read_groups(
    path: Location, columns: Sequence[str] | None = None, *, first: tuple[str, int] | None = None
) -> Generator[dict[str, np.ndarray], None, None]:
    """Read columns of numbers (by default all columns) of a file; otherwise as `read_tables`."""
    for table in read_tables(path, columns, first=first):
        yield {name: column_values(table.column(name)) for name in table.column_names}


def read_tables(
    path: Location, columns: Sequence[str] | None = None, *, first: tuple[str, int] | None = None
) -> Iterator[pa.Table]:
    """Read columns (by default all) of a file, one row group at a time.

    With `first`, a column that ascends and a number in it, row groups that hold smaller numbers alone are passed over.
    """
    # pre-buffering would copy once more what is in the page cache
    with reading(path), parquet_file(path, page_checksum_verification=True, pre_buffer=False) as reader:
        for group in range(reader.num_row_groups):
            if first is not None:
                column = reader.metadata.row_group(group).column(reader.schema_arrow.names.index(first[0]))
                if column.statistics.max < first[1]:
                    continue
            yield reader.read_row_group(group, columns=columns, use_threads=False)


def extent_of(metadata: pq.FileMetaData, group: int, first: str) -> tuple[int, int]:
    """Return offset and length in a file of a row group's columns from `first` on."""
    row_group = metadata.row_group(group)
    start = row_group.column(metadata.schema.names.index(first)).data_page_offset
    last = row_group.column(row_group.num_columns - 1)
    return start, last.data_page_offset + last.total_compressed_size - start
