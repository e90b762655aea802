"""Columns of Arrow tables as numpy arrays: numbers, strings, lists.

Numbers are viewed in place (DLPack): Arrow's own `to_numpy`, `scalar` and `array` import pandas where it is installed, which
would cost a training 30 MB of its budget.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ..core.errors import DataError


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

    def take(self, places: np.ndarray) -> Strings:
        """Return a copy of the strings at `places`."""
        taken, _ = strings_of(self.to_arrow().take(arrow_array(places, pa.int64())))
        return taken

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
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    places = numbers_of(array.indices) if not array.null_count else filled(array.indices.cast(pa.int64()), -1)
    valid = valid_of(array.dictionary)
    return array.dictionary, np.where(valid[places], places, -1) if valid.size else places


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
