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

from ..core.errors import DataError, UsageError, first_of, refuse
from ..dataset.arrow_columns import described_origin, flat_fields, have_dates, seconds_of, type_name
from ..models.encoding import Column, Encoding, check_columns
from .options import TableOptions
from .sources import Reader, Reading, Source

FIRST_ROWS = 2000
"""Rows of a table by which some columns are understood: enough of them, and the same ones in all formats."""

_LEAST_STRINGS, _MOST_DIFFERENT = 1000, 0.5
"""First strings of a column by which is told if it holds categories, and the share of different ones above which it does
not."""

_OF_PREDICTIONS = ("source", "prediction", "decision")
_SINGLE = ("number", "string", "boolean", "time", "nothing")


def _check_names(types: Mapping[str, str], options: TableOptions, name: str) -> None:
    """Refuse columns that the table has not, and those that have two uses or none."""
    roles = {
        options.label_flag: options.label,
        "--weight-column": options.weight_column,
        "--id": options.id,
        "--fold": options.fold,
    }
    beside = [*filter(None, roles.values()), *options.drop]
    single = [column for column in options.features if _pair(column, types) is None]
    asked = {"--drop": options.drop, "--category": options.category, "--features": single}
    for option, columns in (
        {option: (column,) for option, column in roles.items() if column} | asked
    ).items():
        for column in columns:
            if column not in types:
                listed = first_of(list(types), 20)
                raise UsageError(
                    f"{name}: expected a column {column!r} ({option}), found {listed}; check the name"
                )
    uses, chosen = Counter([*beside, *options.features]), options.features or types
    for column in types:
        kept = column in (options.id, options.fold)
        at, kinds = f"{name}: column {column!r}: expected", "numbers, strings, booleans or times"
        refuse(
            UsageError,
            (uses[column] > 1, f"{at} one use of it, found two; leave it out of one"),
            (
                column in options.category and (column in beside or column not in chosen),
                f"{at} a column that becomes a feature for --category, found another",
            ),
            (
                kept and types[column] not in _SINGLE,
                f"{at} {kinds} to keep beside the rows, found {types[column]}",
            ),
            (
                kept and column in _OF_PREDICTIONS,
                f"{at} another name than a column of predictions has; rename it",
            ),
        )


def _pair(feature: str, types: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the columns of a pair ``INDICES:VALUES``."""
    index, _, values = feature.rpartition(":")
    return (index, values) if feature not in types and index in types and values in types else None


def _plan_encoding(
    types: Mapping[str, str], first: Any, options: TableOptions, name: str, index: Sequence[str] = ()
) -> tuple[Encoding, dict[str, str]]:
    """Choose the columns that become features, and their encoding; also tells why others are left out.

    `first` has the first rows of all columns; `index` names those of the table's index. Of times the first is the origin.
    """
    _check_names(types, options, name)
    roles = options.label, options.weight_column, options.id, options.fold
    beside = {*roles, *options.drop} - {""}
    chosen = options.features or tuple(column for column in types if column not in (*beside, *index))
    unused = {column: "it is the table's index" for column in index if column not in (*beside, *chosen)}
    columns = []
    for feature in chosen:
        column = _column(feature, types, first, options)
        if isinstance(column, Column):
            columns.append(column)
        else:
            unused[feature] = column
    columns.sort(key=lambda column: column.kind == "sparse")  # whose features come after those of others
    asked = next((column for column in unused if column in (*options.features, *options.category)), "")
    told = "".join(f"; {column!r} is left out: {reason}" for column, reason in list(unused.items())[:3])
    refuse(
        UsageError,
        (
            asked,
            f"{name}: column {asked!r}: expected numbers, strings, booleans or times; {unused.get(asked)}",
        ),
        (
            sum(column.kind == "sparse" for column in columns) > 1,
            "--features: expected one pair INDICES:VALUES at most, found several; join their lists",
        ),
        (not columns, f"{name}: expected columns of features, found none besides {options.label!r}{told}"),
    )
    bits = options.hash or 0 if any(column.kind == "hashed" for column in columns) else 0
    return Encoding(tuple(columns), options.missing, bits, *roles), unused


def _column(feature: str, types: Mapping[str, str], first: Any, options: TableOptions) -> Column | str:
    """Describe how a column, or a pair ``INDICES:VALUES``, becomes features, or tell why it does not."""
    if pair := _pair(feature, types):
        return Column(pair[0], "sparse", pair[1])
    kind = types[feature]
    if feature in options.category and kind in ("number", "nothing", "string"):
        return Column(feature, "category")
    if kind in ("number", "nothing"):
        return Column(feature, "number")
    if kind == "boolean":
        return Column(feature, "number", form="boolean")
    if kind == "time":
        seconds = seconds_of(first.column(feature), 0) if first is not None else np.empty(0)
        known = seconds[~np.isnan(seconds)]
        # times of day and lengths have no origin
        dated = known.size and have_dates(first.column(feature))
        return Column(feature, "number", form="seconds", origin=int(known[0] // 1) if dated else 0)
    if kind != "string":
        return f"it holds values of type {kind}"
    if options.hash:
        return Column(feature, "hashed")
    given = None if first is None or feature in options.features else first.column(feature).drop_null()
    # strings of which more than half differ are names, keys or text
    if given is not None and len(given) >= _LEAST_STRINGS:
        n_distinct = len(given.unique())
        if n_distinct > _MOST_DIFFERENT * len(given):
            told = f"{n_distinct:,} of its first {len(given):,} strings are different"
            return f"{told}; --category takes them, --id keeps them for predictions"
    return Column(feature, "category")


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


def column_types(schema: Any, where: str) -> dict[str, str]:
    """Return the columns of an Arrow schema with their types (`type_name`), those of structs by dotted names.

    Refuses duplicate names.
    """
    types: dict[str, str] = {}
    for field in flat_fields(schema):
        if field.name in types:
            raise DataError(
                f"{where}: expected every column's name once, found {field.name!r} twice; rename one"
            )
        types[field.name] = type_name(field.type)
    return types


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
) -> Source:
    """Make the source of a reader's rows, with the encoding of the data to match, if any.

    `types` and `first` are the types and the first rows of the columns; `name` is for messages.
    """
    known = reading.encoding
    unused: dict[str, str] = {}
    if known is None:
        if not options.label:
            raise UsageError(
                f"{name}: expected the name of the column of {'targets' if options.target else 'labels'}, found none; give "
                f"{options.label_flag}, one of {first_of(list(types), 20)}"
            )
        if first is not None:
            for column in (column for column, kind in types.items() if kind in ("binary", "large_binary")):
                with suppress(pa.ArrowInvalid):  # as Impala and old versions of Spark write strings
                    first.column(column).cast(pa.large_string())
                    types[column] = "string"
            first = text_columns(first, types, name)
        as_text = types.keys() & {*options.category, options.id, options.fold} if reader.is_text else ()
        if as_text:
            types |= dict.fromkeys(as_text, "string")  # as it stands, such as a code with zeros before it
            first = reader.first_rows(types)
        encoding, unused = _plan_encoding(types, first, options, name, reader.index_columns())
        encoding = encoding.without_counts()
    else:
        check_columns(known, types, reading.needs_label, name)
        if reading.needs_label:
            lacking = [name for name in known.kept if name not in types]
            unused = dict.fromkeys(lacking, "this source lacks it, whose values would be kept")
        weight = known.weight if reading.reads_weights else ""
        roles = (name if name in types else "" for name in (weight, known.id, known.fold))
        encoding = replace(known, **dict(zip(("weight", "id", "fold"), roles, strict=True)))  # type: ignore[arg-type]
    table_types = _wanted_types(encoding, types, reading, reader.is_text)
    return Source(
        reader=reader,
        reading=reading,
        made_from="table",
        encoding=encoding,
        grows=known is None,
        names_labels=bool(reading.class_names) or table_types.get(encoding.label) in ("string", "boolean"),
        weighted=bool(encoding.weight),
        table_types=table_types,
        columns=tuple(types) if known is None else (),
        unused=unused,
        renamed=reader.renamed() if known is None else {},
    )


def describe_uses(
    columns: Sequence[str],
    encoding: Encoding,
    n_missing: np.ndarray,
    notes: Mapping[str, str],
    word: str,
) -> list[dict[str, Any]]:
    """Describe every column of a table; those of features first, in the order of features.

    `columns` names all, `n_missing` counts the missing values of those of `encoding`; `notes` tell why columns are left out;
    `word` is the use of the column of labels or targets.
    """
    own = {encoding.id: "id", encoding.fold: "fold", encoding.label: word, encoding.weight: "weight"}
    own |= {column.values: f"values of {column.name}" for column in encoding.columns if column.values}
    uses: dict[str, tuple[Any, ...]] = {}
    for column, missing in zip(encoding.columns, n_missing.tolist(), strict=True):
        n_features = encoding.n_buckets if column.kind == "hashed" else column.n_features
        uses[column.name] = _use(column, encoding), n_features, int(missing), ""
    for name in (name for name in columns if name not in uses):
        note = "" if name in own else notes.get(name, "not among --features")
        uses[name] = own.get(name, "not used"), 0, 0, note
    names = ("column", "use", "features", "missing", "note")
    return [dict(zip(names, (name, *use), strict=True)) for name, use in uses.items()]


def _use(column: Column, encoding: Encoding) -> str:
    """Describe how a column becomes features."""
    if column.form == "seconds":
        return f"seconds since {described_origin(column.origin)}" if column.origin else "seconds"
    forms = {"hashed": f"hashed into 2^{encoding.bits}", "sparse": f"indices of {column.values}"}
    return "true or false" if column.form == "boolean" else forms.get(column.kind, column.kind)
