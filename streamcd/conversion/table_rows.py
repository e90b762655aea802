"""Tables as a source of rows: choice of the columns for features, labels and weights; rows from batches of columns."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import DataError, UsageError
from ..core.threads import ahead
from ..dataset.arrow_columns import (
    Strings,
    arrow_strings,
    dictionary_of,
    numbers_of,
    strings_of,
    type_name,
)
from ..kernels import tables as kernels
from ..models.encoding import Column, Encoding, check_columns
from ..models.table_encoder import StringTable, TableEncoder
from ..solvers.problem import LEAST_WEIGHT
from .numbering import TaskDictionary
from .options import TableOptions
from .rows import Counts, RowBatch, Rows, are_weights, count_decimals
from .sources import Reader, Reading, Source


class TableBatch(NamedTuple):
    """Some rows of a table as Arrow columns; `message` describes the location of a row, by its number in the batch."""

    columns: Any
    bytes_read: int
    message: Callable[[int], str]


# ---------------------------------------------------------------------------------------------------------------------
# Columns


def plan_encoding(types: dict[str, str], options: TableOptions, name: str) -> Encoding:
    """Choose the columns that become features, and their encoding; `name` is the table's in messages."""
    label, weight = options.label, options.weight_column
    if not label:
        raise UsageError(
            f"{name}: expected the name of the column of {'targets' if options.target else 'labels'}, found none; give "
            f"{options.label_flag}, one of {_listed(types)}"
        )
    asked = [(options.label_flag, label), ("--weight-column", weight)]
    asked += [("--drop", dropped) for dropped in options.drop]
    for option, column in asked + [("--number", number) for number in options.number]:
        if column and column not in types:
            raise UsageError(
                f"{name}: expected a column {column!r} ({option}), found {_listed(types)}; check the name"
            )
    for column in (weight, *options.features):
        if column == label or (column == weight and column in options.features):
            raise UsageError(
                f"{name}: column {column!r}: expected as label, weight or feature alone, found as two of these; leave it "
                "out of one"
            )
    kept = options.features or tuple(
        column for column in types if column not in (label, weight, *options.drop)
    )
    if unread := [column for column in options.number if column not in kept]:
        raise UsageError(
            f"{name}: --number {unread[0]!r}: expected a column that becomes a feature; leave it out"
        )
    found = {column: _column(column, types, options, name) for column in kept}
    _refuse_types({column: types[column] for column, made in found.items() if made is None}, options, name)
    columns = tuple(column for column in found.values() if column is not None)
    ordered = sorted(columns, key=lambda column: column.kind == "sparse")
    if sum(column.kind == "sparse" for column in columns) > 1:
        raise UsageError(
            "--features: expected one pair INDICES:VALUES at most, found several; join their lists"
        )
    if not columns:
        raise UsageError(f"{name}: expected columns of features, found none besides {label!r}")
    bits = options.hash or 0 if any(column.kind == "hashed" for column in columns) else 0
    return Encoding(tuple(ordered), options.missing, bits, label, weight, options.decimal)


def wanted_types(
    encoding: Encoding, types: dict[str, str], class_names: Sequence[str], of_numbers: bool, of_text: bool
) -> dict[str, str]:
    """Return the types of the columns to read; `class_names` and `of_numbers` describe the labels of the data to match.

    With `of_text` columns have no types but those asked for.
    """
    wanted = {name: types[name] for name in encoding.names if name in types}
    kinds = {"category": "string", "hashed": "string", "number": "number"}
    wanted |= {column.name: kinds[column.kind] for column in encoding.columns if column.kind in kinds}
    for column in encoding.columns:
        if column.text and (of_text or types.get(column.name) == "string"):
            wanted[column.name] = "string"
    for name in (encoding.label, encoding.weight):
        if name and name in types:
            wanted[name] = types[name]
    if encoding.label in wanted and (class_names or of_numbers):
        wanted[encoding.label] = "string" if class_names else "number"
    return wanted


def _listed(names: dict[str, str]) -> str:
    shown = ", ".join(list(names)[:20])
    return shown + (f", … ({len(names):,} in all)" if len(names) > 20 else "")


def _column(feature: str, types: dict[str, str], options: TableOptions, name: str) -> Column | None:
    """Return a column, or a pair ``INDICES:VALUES``, as features are made from it; None where its type has no encoding."""
    index, _, values = feature.rpartition(":")
    if feature not in types and index in types and values in types:
        return Column(index, "sparse", values)
    if feature not in types:
        raise UsageError(
            f"{name}: expected a column {feature!r} (--features), found {_listed(types)}; check the name"
        )
    kind = types[feature]
    if feature in options.number and kind in ("number", "nothing", "string"):
        return Column(feature, "number", text=True)
    if kind in ("number", "nothing"):
        return Column(feature, "number")
    if kind == "string":
        return Column(feature, "hashed" if options.hash else "category")
    return None


_ADVICE = {
    "boolean": "make a boolean 0 and 1, or a string",
    "time": "make numbers of a time, such as days or seconds",
    "text not in UTF-8": "write the file in UTF-8",
    "list": "name a column of indices and one of values with --features INDICES:VALUES",
}


def _refuse_types(refused: dict[str, str], options: TableOptions, name: str) -> None:
    """Refuse columns by name and type, all at once, with the option that leaves them out."""
    if not refused:
        return
    shown = ", ".join(f"{column!r} ({kind})" for column, kind in list(refused.items())[:20])
    shown += f", … ({len(refused):,} in all)" if len(refused) > 20 else ""
    advice = [_ADVICE.get(kind, "make numbers or strings of other types") for kind in refused.values()]
    kept = [column for column in options.features if column not in refused]
    option, names = ("--features", kept) if options.features else ("--drop", [*options.drop, *refused])
    listed = shlex.quote(",".join(names)) if len(names) <= 100 else "and their names"
    raise UsageError(
        f"{name}: expected columns of numbers or strings, found {shown}; {'; '.join(dict.fromkeys(advice))}; or leave "
        f"{'it' if len(refused) == 1 else 'them'} out with {option} {listed}"
    )


def distinct_names(names: Sequence[str], where: str) -> list[str]:
    """Refuse duplicate names of columns."""
    for name, times in Counter(names).items():
        if times > 1:
            raise DataError(f"{where}: expected every column's name once, found {name!r} twice; rename one")
    return list(names)


def column_types(schema: Any, where: str) -> dict[str, str]:
    """Return the columns of an Arrow schema with their types (`type_name`); refuse duplicate names."""
    return {name: type_name(schema.field(name).type) for name in distinct_names(schema.names, where)}


# ---------------------------------------------------------------------------------------------------------------------
# Rows


@dataclass(frozen=True, kw_only=True)
class TableSource(Source):
    """Rows of tables.

    `table_types` gives the types of the columns to read. With `grows`, categories are numbered in order of appearance;
    else they are the encoding's. Without `needs_label` a label, or its column, may be missing: it is then NaN. Indices of
    a sparse column are less than `width_end`. The reader has `batches`, which reads pieces as `TableBatch`: the columns of
    the types given, those of text parsed as these types.
    """

    encoding: Encoding
    made_from: str = "table"
    table_types: dict[str, str]
    value_dtype: np.dtype
    needs_label: bool = True
    sparse_least: int = 0
    width_end: int = kernels.LARGEST_INDEX + 1
    ignore_beyond: bool = False

    def parse(
        self, pieces: Sequence[Any], first_row: int, first_line: int, dictionary: TaskDictionary | None
    ) -> Iterator[RowBatch]:
        table = dictionary.categories if dictionary is not None and self.grows else None
        encoder = TableEncoder(
            self.encoding,
            self.value_dtype,
            table,
            self.sparse_least,
            self.width_end,
            self.ignore_beyond,
        )
        if dictionary is not None:
            dictionary.collisions, dictionary.samples = encoder.collisions, encoder.samples
        labels = _Labels(self, None if dictionary is None else dictionary.labels)
        counts = Counts()
        batches = self.reader.batches(pieces, first_line, self.table_types)
        for batch in batches if self.in_memory else ahead(batches):
            encoder.message = batch.message
            label = labels.of(batch)
            weight = _weights(self.encoding.weight, batch) if self.weighted else None
            for found in encoder.encode(batch.columns):
                n_rows = found.indptr.size - 1
                mine = slice(found.start, found.start + n_rows)
                start = first_row + counts.n_rows
                counts.n_rows, counts.n_entries = (
                    counts.n_rows + n_rows,
                    counts.n_entries + found.feature.size,
                )
                _take_counts(counts, encoder, batch, self.of_indices)
                counts.n_decimal_labels = labels.n_decimal
                source_row = np.arange(start, start + n_rows)
                weights = None if weight is None else weight[mine]
                rows = Rows(source_row, label[mine], weights, found.indptr, found.feature, found.value)
                yield RowBatch(rows, batch.bytes_read, counts)


def open_tables(
    reader: Reader, types: dict[str, str], reading: Reading, options: TableOptions, name: str
) -> TableSource:
    """Make the source of a reader's rows, with the encoding of the data to match, if any; `name` is for messages."""
    known = reading.encoding
    if known is None:
        encoding = plan_encoding(types, options, name)
    else:
        check_columns(known, types, reading.needs_label, name)
        weighted = reading.reads_weights and known.weight in types
        encoding = known if weighted else replace(known, weight="")
    table_types = wanted_types(encoding, types, reading.class_names, reading.of_numbers, reader.is_text)
    return TableSource(
        reader=reader,
        encoding=encoding,
        grows=known is None,
        names_labels=bool(reading.class_names) or table_types.get(encoding.label) in ("string", "boolean"),
        class_names=reading.class_names,
        label_word=reading.label_word,
        weighted=bool(encoding.weight),
        of_indices=encoding.sparse is not None and len(encoding.columns) == 1,
        held_bytes=reader.held_bytes(table_types),
        table_types=table_types,
        value_dtype=np.dtype(reading.value_dtype),
        needs_label=reading.needs_label,
        sparse_least=reading.index_base or 0,
        width_end=reading.width_end - (0 if known is None else known.sparse_start),
        ignore_beyond=reading.ignore_beyond,
    )


def _take_counts(counts: Counts, encoder: TableEncoder, batch: TableBatch, of_indices: bool) -> None:
    state = encoder.state
    counts.n_explicit_zeros, counts.n_underflows = int(state[kernels.ZEROS]), int(state[kernels.UNDERFLOWS])
    counts.n_ignored, counts.n_unseen = int(state[kernels.IGNORED]), int(state[kernels.UNSEEN])
    counts.zero_index = counts.zero_index or bool(state[kernels.ZERO_INDEX])
    largest = int(state[kernels.MAX_INDEX])
    if not of_indices and encoder.encoding.sparse is not None:
        largest += encoder.sparse_start
    elif encoder.encoding.sparse is None:
        largest = encoder.n_codes - 1
    if largest > counts.max_index:
        counts.max_index, counts.max_location = largest, batch.message(int(state[kernels.MAX_ROW]))


class _Labels:
    """Labels of batches as numbers: as they are, or the codes of names."""

    def __init__(self, source: TableSource, table: StringTable | None) -> None:
        self._source, self._name, self.n_decimal = source, source.encoding.label, 0
        self._table = table or StringTable()
        self._dictionary: tuple[Any, np.ndarray] | None = None  # the last one, and its codes
        self._adds = table is not None
        if not self._adds and source.class_names:
            self._number(*strings_of(arrow_strings(source.class_names)), adds=True)

    def of(self, batch: TableBatch) -> np.ndarray:
        """Return the labels of a batch's rows."""
        if self._name not in batch.columns.schema.names:
            return np.full(batch.columns.num_rows, np.nan)
        array = batch.columns.column(self._name)
        if self._source.names_labels:
            label = self._names(array)
        elif type_name(array.type) in ("number", "nothing"):
            label = numbers_of(array).astype(np.float64) + 0.0  # -0 is 0
        else:
            raise DataError(
                f"{batch.message(0)}: column {self._name!r}: expected numbers as {self._source.label_word}s, found "
                f"{array.type}"
            )
        good = np.isfinite(label)
        if not good.all() and (bad := ~good & (np.isinf(label) | self._source.needs_label)).any():
            row = int(np.flatnonzero(bad)[0])
            raise DataError(
                f"{batch.message(row)}: column {self._name!r}: expected a {self._source.label_word}, found "
                f"{array[row].as_py()}; "
                "correct or remove the row"
            )
        if not self._source.names_labels:
            self.n_decimal += count_decimals(label)
        return label

    def _names(self, array: Any) -> np.ndarray:
        found = dictionary_of(array)
        if found is None:
            return self._number(*strings_of(array), adds=self._adds)
        values, places = found
        if self._dictionary is None or not self._dictionary[0].equals(values):
            self._dictionary = values, np.append(self._number(*strings_of(values), adds=self._adds), np.nan)
        label = np.empty(len(places))
        kernels.take_codes(self._dictionary[1], places, label)
        return label

    def _number(self, strings: Strings, valid: np.ndarray, adds: bool) -> np.ndarray:
        codes = self._table.number(0, strings, valid, adds, self._name)
        label = codes.astype(np.float64)
        label[codes == kernels.MISSING] = np.nan
        label[codes == kernels.UNKNOWN] = len(self._source.class_names)  # one number for all unknown ones
        return label


def _weights(name: str, batch: TableBatch) -> np.ndarray:
    array = batch.columns.column(name)
    if type_name(array.type) != "number":
        raise DataError(
            f"{batch.message(0)}: column {name!r}: expected numbers as weights, found {array.type}; check --weight-column"
        )
    weight = numbers_of(array).astype(np.float64)
    bad = np.flatnonzero(~are_weights(weight))
    if bad.size:
        row = int(bad[0])
        raise DataError(
            f"{batch.message(row)}: column {name!r}: expected a weight, 0 or from {LEAST_WEIGHT:g} to {1 / LEAST_WEIGHT:g}, "
            f"found {array[row].as_py()}; correct the row"
        )
    return weight
