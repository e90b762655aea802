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
from ..core.progress import shortened
from ..dataset.arrow_columns import flat_fields, numbers_of, type_name
from ..dataset.derived_columns import described_origin, have_dates, number_name, seconds_of
from ..models.encoding import Column, Encoding, check_columns
from .options import TableOptions
from .sources import Reader, Reading, Source

FIRST_ROWS = 2000
"""Rows of a table by which some columns are understood: enough of them, and the same ones in all formats."""

_LEAST_STRINGS, _MOST_DIFFERENT = 1000, 0.5
"""First strings of a column by which is told if it holds categories, and the share of different ones above which it does
not."""

_OF_PREDICTIONS = ("source", "prediction", "decision")


def _check_names(types: Mapping[str, str], options: TableOptions, name: str) -> None:
    """Refuse columns that the table has not, and those that have two uses or none."""
    roles = {
        options.label_flag: options.label,
        "--weight-column": options.weight_column,
        "--id": options.id,
        "--fold": options.fold,
    }
    for option, columns in {**roles, "--drop": options.drop, "--category": options.category}.items():
        for column in (columns,) if isinstance(columns, str) else columns:
            if column and column not in types:
                raise _lacking(column, option, types, name)
    beside = [*filter(None, roles.values()), *options.drop]
    for column, n_uses in Counter([*beside, *options.features]).items():
        if n_uses > 1:
            raise UsageError(
                f"{name}: column {column!r}: expected one use of it, found two; leave it out of one"
            )
    for column in options.category:
        if column in beside or (options.features and column not in options.features):
            raise UsageError(f"{name}: --category {column!r}: expected a column that becomes a feature")
    for column in filter(None, (options.id, options.fold)):
        if types[column] not in ("number", "string", "boolean", "time", "nothing"):
            raise UsageError(
                f"{name}: column {column!r}: expected numbers, strings, booleans or times to keep beside the rows, found "
                f"{types[column]}"
            )
        if column in _OF_PREDICTIONS:
            raise UsageError(
                f"{name}: column {column!r}: expected another name than that of a column of predictions; rename it"
            )


def _lacking(column: str, option: str, types: Mapping[str, str], name: str) -> UsageError:
    """Make the error of a column that an option names and the table has not."""
    return UsageError(
        f"{name}: expected a column {column!r} ({option}), found {_listed(types)}; check the name"
    )


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
        column = _column(feature, types, first, options, name)
        if isinstance(column, Column):
            columns.append(column)
        elif options.features or feature in options.category:
            raise UsageError(
                f"{name}: column {feature!r}: expected numbers, strings, booleans or times; {column}"
            )
        else:
            unused[feature] = column
    columns.sort(key=lambda column: column.kind == "sparse")  # whose features come after those of others
    if sum(column.kind == "sparse" for column in columns) > 1:
        raise UsageError(
            "--features: expected one pair INDICES:VALUES at most, found several; join their lists"
        )
    if not columns:
        told = "".join(f"; {column!r} is left out: {reason}" for column, reason in list(unused.items())[:3])
        raise UsageError(f"{name}: expected columns of features, found none besides {options.label!r}{told}")
    bits = options.hash or 0 if any(column.kind == "hashed" for column in columns) else 0
    return Encoding(tuple(columns), options.missing, bits, *roles), unused


def _column(
    feature: str, types: Mapping[str, str], first: Any, options: TableOptions, name: str
) -> Column | str:
    """Describe how a column, or a pair ``INDICES:VALUES``, becomes features, or tell why it does not."""
    index, _, values = feature.rpartition(":")
    if feature not in types and index in types and values in types:
        return Column(index, "sparse", values)
    if feature not in types:
        raise _lacking(feature, "--features", types, name)
    kind = types[feature]
    if feature in options.category and kind in ("number", "nothing", "string"):
        return Column(feature, "category")
    if kind in ("number", "nothing"):
        return Column(feature, "number")
    if kind == "boolean":
        return Column(feature, "number", form="boolean")
    if kind == "time":
        return Column(feature, "number", form="seconds", origin=_origin(first, feature))
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


def _origin(first: Any, column: str) -> int:
    """Return the first time of a column, in whole seconds since 1970; 0 for times of day and lengths."""
    if first is None or not have_dates(first.column(column)):
        return 0
    seconds = seconds_of(first.column(column), 0)
    known = seconds[~np.isnan(seconds)]
    return int(known[0] // 1) if known.size else 0


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
                f"{options.label_flag}, one of {_listed(types)}"
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
    return Source(
        reader=reader,
        made_from="table",
        encoding=encoding,
        grows=known is None,
        names_labels=bool(reading.class_names) or table_types.get(encoding.label) in ("string", "boolean"),
        class_names=reading.class_names,
        weighted=bool(encoding.weight),
        of_indices=encoding.sparse is not None and len(encoding.columns) == 1,
        reading=reading,
        table_types=table_types,
        unused=unused,
        renamed=reader.renamed() if known is None else {},
        examples={}
        if first is None
        else {column: _example_of(first.column(column), kind) for column, kind in types.items()},
    )


# ---------------------------------------------------------------------------------------------------------------------
# How each column was used


def describe_uses(
    examples: Mapping[str, str],
    encoding: Encoding,
    n_missing: np.ndarray,
    notes: Mapping[str, str],
    word: str,
) -> list[dict[str, Any]]:
    """Describe every column of a table; those of features first, in the order of features.

    `examples` has a value of each column, `n_missing` counts the missing values of those of `encoding`; `notes` tell why
    columns are left out; `word` is the use of the column of labels or targets.
    """
    own = {encoding.id: "id", encoding.fold: "fold", encoding.label: word, encoding.weight: "weight"}
    own |= {column.values: f"values of {column.name}" for column in encoding.columns if column.values}
    uses = {
        column.name: (
            _use(column, encoding),
            encoding.n_buckets if column.kind == "hashed" else column.n_features,
            int(missing),
            "",
        )
        for column, missing in zip(encoding.columns, n_missing.tolist(), strict=True)
    }
    for name in (name for name in examples if name not in uses):
        note = "" if name in own else notes.get(name, "not among --features")
        uses[name] = own.get(name, "not used"), 0, 0, note
    return [
        {
            "column": name,
            "use": use,
            "features": n_features,
            "missing": missing,
            "example": examples.get(name, ""),
            "note": note,
        }
        for name, (use, n_features, missing, note) in uses.items()
    ]


def _use(column: Column, encoding: Encoding) -> str:
    """Describe how a column becomes features."""
    if column.kind == "hashed":
        return f"hashed into 2^{encoding.bits}"
    if column.kind == "sparse":
        return f"indices of {column.values}"
    if column.form == "seconds":
        return f"seconds since {described_origin(column.origin)}" if column.origin else "seconds"
    return "true or false" if column.form == "boolean" else column.kind


def _example_of(array: Any, kind: str) -> str:
    """Return a column's first value that is not missing as text, alike for all formats; empty where there is none."""
    array = array.drop_null()[:1]
    if not len(array):
        return ""
    if kind == "number":
        return shortened(number_name(float(numbers_of(array)[0])), 40)
    if kind == "boolean":
        return "true" if numbers_of(array)[0] else "false"
    if kind == "time":
        time = described_origin(int(seconds_of(array, 0)[0] // 1))
        return time.removesuffix(" 00:00:00") if have_dates(array) else time[-8:]
    if kind != "string":
        return ""
    return shortened(" ".join(str(array[0].as_py())[:400].split()), 40)  # it may be a book
