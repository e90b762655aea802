"""Columns of tables: which become features, labels and weights, and by which encoding; the source of rows of a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError, UsageError
from ..dataset.arrow_columns import flat_fields, type_name
from ..dataset.derived_columns import have_dates, seconds_of
from ..models.encoding import Column, Encoding, check_columns
from .column_summary import example_of
from .encoded_rows import EncodedSource
from .options import TableOptions
from .sources import Reader, Reading

FIRST_ROWS = 2000
"""Rows of a table by which some columns are understood: enough of them, and the same ones in all formats."""

_LEAST_STRINGS, _MOST_DIFFERENT = 1000, 0.5
"""First strings of a column by which is told if it holds categories, and the share of different ones above which it does
not."""

_OF_PREDICTIONS = ("source", "prediction", "decision")


def _check_names(types: Mapping[str, str], options: TableOptions, name: str) -> None:
    """Refuse columns that the table has not, that have two uses, or none where an option asks for it."""
    beside = [column for column in (options.label, options.weight_column, options.id, options.fold) if column]
    asked = [
        (options.label_flag, options.label),
        ("--weight-column", options.weight_column),
        ("--id", options.id),
        ("--fold", options.fold),
        *(("--drop", column) for column in options.drop),
        *(("--category", column) for column in options.category),
    ]
    for option, column in asked:
        if column and column not in types:
            raise UsageError(
                f"{name}: expected a column {column!r} ({option}), found {_listed(types)}; check the name"
            )
    for column in (*beside, *options.features):
        if beside.count(column) > (column not in options.features):
            raise UsageError(
                f"{name}: column {column!r}: expected one use of it, found two; leave it out of one"
            )
    for column in set(beside).intersection(options.drop):
        raise UsageError(
            f"{name}: column {column!r}: expected one use of it, found two; leave it out of --drop"
        )
    left_out = {*beside, *options.drop}
    for column in options.category:
        if column in left_out or (options.features and column not in options.features):
            raise UsageError(f"{name}: --category {column!r}: expected a column that becomes a feature")
    for column in (options.id, options.fold):
        if column and types[column] not in ("number", "string", "boolean", "time", "nothing"):
            raise UsageError(
                f"{name}: column {column!r}: expected numbers, strings, booleans or times to keep beside the rows, found "
                f"{types[column]}"
            )
        if column in _OF_PREDICTIONS:
            raise UsageError(
                f"{name}: column {column!r}: expected another name than that of a column of predictions; rename it"
            )


def _plan_encoding(
    types: Mapping[str, str], first: Any, options: TableOptions, name: str, index: Sequence[str] = ()
) -> tuple[Encoding, dict[str, str]]:
    """Choose the columns that become features, and their encoding; also tells why others are left out.

    `first` has the first rows of all columns; `index` names those of the table's index. Of times the first is the origin.
    """
    _check_names(types, options, name)
    beside = {options.label, options.weight_column, options.id, options.fold, *options.drop} - {""}
    chosen = options.features or tuple(column for column in types if column not in (*beside, *index))
    unused = {column: "it is the table's index" for column in index if column not in (*beside, *chosen)}
    columns = []
    for feature in chosen:
        column = _column(feature, types, first, options, name)
        if column is not None and (reason := _no_category(column, first, options)):
            column, unused[feature] = None, reason
        elif column is None:
            unused[feature] = f"it holds values of type {types[feature]}"
            if options.features or feature in options.category:
                raise UsageError(
                    f"{name}: column {feature!r}: expected numbers, strings, booleans or times, found {types[feature]}"
                )
        if column is not None:
            columns.append(column)
    columns.sort(key=lambda column: column.kind == "sparse")  # whose features come after those of others
    if sum(column.kind == "sparse" for column in columns) > 1:
        raise UsageError(
            "--features: expected one pair INDICES:VALUES at most, found several; join their lists"
        )
    if not columns:
        told = "".join(f"; {column!r} is left out: {reason}" for column, reason in list(unused.items())[:3])
        raise UsageError(f"{name}: expected columns of features, found none besides {options.label!r}{told}")
    bits = options.hash or 0 if any(column.kind == "hashed" for column in columns) else 0
    roles = options.label, options.weight_column, options.id, options.fold
    return Encoding(tuple(columns), options.missing, bits, *roles), unused


def _column(
    feature: str, types: Mapping[str, str], first: Any, options: TableOptions, name: str
) -> Column | None:
    """Describe how a column, or a pair ``INDICES:VALUES``, becomes features; None where its type has no encoding."""
    index, _, values = feature.rpartition(":")
    if feature not in types and index in types and values in types:
        return Column(index, "sparse", values)
    if feature not in types:
        raise UsageError(
            f"{name}: expected a column {feature!r} (--features), found {_listed(types)}; check the name"
        )
    kind = types[feature]
    if feature in options.category and kind in ("number", "nothing", "string"):
        return Column(feature, "category")
    if kind in ("number", "nothing"):
        return Column(feature, "number")
    if kind == "boolean":
        return Column(feature, "number", form="boolean")
    if kind == "time":
        return Column(feature, "number", form="seconds", origin=_origin(first, feature))
    if kind == "string":
        return Column(feature, "hashed" if options.hash else "category")
    return None


def _origin(first: Any, column: str) -> int:
    """Return the first time of a column, in whole seconds since 1970; 0 for times of day and lengths."""
    if first is None or not have_dates(first.column(column)):
        return 0
    seconds = seconds_of(first.column(column), 0)
    known = seconds[~np.isnan(seconds)]
    return int(known[0] // 1) if known.size else 0


def _no_category(column: Column, first: Any, options: TableOptions) -> str:
    """Tell why strings, not asked for, are left out: more than half of the first ones differ, as of names, keys or text."""
    asked = (*options.features, *options.category)
    if column.kind != "category" or column.name in asked or first is None:
        return ""
    given = first.column(column.name).drop_null()
    n_distinct = len(given.unique())
    if len(given) < _LEAST_STRINGS or n_distinct <= _MOST_DIFFERENT * len(given):
        return ""
    told = f"{n_distinct:,} of its first {len(given):,} strings are different"
    return f"{told}; --category takes them, --id keeps them for predictions"


def _texts_of_bytes(types: Mapping[str, str], first: Any) -> list[str]:
    """List the columns of bytes that are text in UTF-8, as Impala and old versions of Spark write strings."""
    found = []
    for name in (name for name, kind in types.items() if kind in ("binary", "large_binary")):
        with suppress(pa.ArrowInvalid):
            first.column(name).cast(pa.large_string())
            found.append(name)
    return found


def text_columns(batch: Any, types: Mapping[str, str], where: str) -> Any:
    """Return a record batch with columns of bytes as strings, where `types` has them so."""
    for place, field in enumerate(batch.schema):
        if types.get(field.name) == "string" and type_name(field.type) in ("binary", "large_binary"):
            try:
                texts = batch.column(place).cast(pa.large_string())
            except pa.ArrowInvalid:
                raise DataError(
                    f"{where}: column {field.name!r}: expected text in UTF-8, found other bytes"
                ) from None
            batch = batch.set_column(place, field.name, texts)
    return batch


def index_of(schema: Any) -> list[str]:
    """Return the columns that pandas' metadata of an Arrow schema name as the index."""
    described = (schema.metadata or {}).get(b"pandas")
    if described is None:
        return []
    try:
        columns = json.loads(described).get("index_columns", [])
    except (ValueError, AttributeError):
        return []
    return [column for column in columns if isinstance(column, str)]


def _listed(names: Mapping[str, str]) -> str:
    shown = ", ".join(list(names)[:20])
    return shown + (f", … ({len(names):,} in all)" if len(names) > 20 else "")


def distinct_names(names: Sequence[str], where: str) -> list[str]:
    """Refuse duplicate names of columns."""
    for name, times in Counter(names).items():
        if times > 1:
            raise DataError(f"{where}: expected every column's name once, found {name!r} twice; rename one")
    return list(names)


def column_types(schema: Any, where: str) -> dict[str, str]:
    """Return the columns of an Arrow schema with their types (`type_name`), those of structs by dotted names.

    Refuses duplicate names.
    """
    fields = flat_fields(schema)
    distinct_names([field.name for field in fields], where)
    return {field.name: type_name(field.type) for field in fields}


def _wanted_types(
    encoding: Encoding, types: Mapping[str, str], reading: Reading, is_text: bool
) -> dict[str, str]:
    """Return the types of the columns to read; those of delimited text have no types but those asked for."""
    wanted = {name: types[name] for name in encoding.names if name in types}
    for column in encoding.columns:
        if column.kind == "number":
            wanted[column.name] = {"seconds": "time", "boolean": "boolean"}.get(column.form, "number")
        elif column.kind != "sparse" and (is_text or wanted[column.name] != "number"):
            wanted[column.name] = "string"
    wanted |= dict.fromkeys(encoding.kept, "kept")
    for name in (encoding.label, encoding.weight):
        if name and name in types:
            wanted[name] = types[name]
    if encoding.label in wanted and (reading.class_names or reading.of_numbers):
        wanted[encoding.label] = "string" if reading.class_names else "number"
    return wanted


def open_tables(
    reader: Reader, types: dict[str, str], first: Any, reading: Reading, options: TableOptions, name: str
) -> EncodedSource:
    """Make the source of a reader's rows, with the encoding of the data to match, if any.

    `types` and `first` are the types and the first rows of the columns; `name` is for messages.
    """
    known = reading.encoding
    unused: dict[str, str] = {}
    if known is None:
        if not options.label:
            raise UsageError(
                f"{name}: expected the name of the column of {'targets' if options.target else 'labels'}, found none; give "
                f"{options.label_flag}, one of {_listed(types)}"
            )
        if first is not None:
            types |= dict.fromkeys(_texts_of_bytes(types, first), "string")
            first = text_columns(first, types, name)
        as_text = types.keys() & {*options.category, options.id, options.fold} if reader.is_text else ()
        if as_text:
            types |= dict.fromkeys(as_text, "string")  # as it stands, such as a code with zeros before it
            first = reader.first_rows(types)
        encoding, unused = _plan_encoding(types, first, options, name, reader.index_columns())
        encoding = encoding.without_counts()
    else:
        check_columns(known, types, reading.needs_label, name)
        weighted = reading.reads_weights and known.weight in types
        if reading.needs_label:
            lacking = [name for name in known.kept if name not in types]
            unused = dict.fromkeys(lacking, "this source lacks it, whose values would be kept")
        encoding = replace(
            known,
            weight=known.weight if weighted else "",
            id=known.id if known.id in types else "",
            fold=known.fold if known.fold in types else "",
        )
    table_types = _wanted_types(encoding, types, reading, reader.is_text)
    return EncodedSource(
        reader=reader,
        made_from="table",
        columns=tuple(types),
        encoding=encoding,
        grows=known is None,
        names_labels=bool(reading.class_names) or table_types.get(encoding.label) in ("string", "boolean"),
        class_names=reading.class_names,
        weighted=bool(encoding.weight),
        of_indices=encoding.sparse is not None and len(encoding.columns) == 1,
        held_bytes=reader.held_bytes(table_types),
        reading=reading,
        table_types=table_types,
        unused=unused,
        renamed=reader.renamed() if known is None else {},
        examples={}
        if first is None
        else {column: example_of(first.column(column), kind) for column, kind in types.items()},
    )
