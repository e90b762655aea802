"""Columns of tables: which become features, labels and weights, and by which encoding; the source of rows of a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError, UsageError, first_of
from ..dataset.arrow_columns import (
    COMMA,
    MOST_ODD,
    RECIPES,
    WORD,
    described_origin,
    flat_fields,
    forms_of,
    odd_value,
    seconds_of,
    type_name,
)
from ..models.encoding import Column, Encoding
from .options import TableOptions

_LEAST_STRINGS = 1000
_MOST_DIFFERENT = 0.5
"""First strings of a column by which is told if it holds categories, and the share of different ones above which it does
not."""

FIRST_ROWS = 2000
"""Rows of a table by which some columns are understood: enough of them, and the same ones in all formats."""

_OF_PREDICTIONS = ("source", "prediction", "decision")
_SINGLE = ("number", "string", "boolean", "time", "nothing")
_BYTES = ("binary", "large_binary")


def column_types(schema: pa.Schema, name: str) -> dict[str, str]:
    """Return the columns of an Arrow schema with their types (`type_name`), those of structs by dotted names.

    Refuses duplicate names.
    """
    types: dict[str, str] = {}
    for field in flat_fields(schema):
        if field.name in types:
            raise DataError(
                f"{name}: expected every column's name once, found {field.name!r} twice; rename one"
            )
        types[field.name] = type_name(field.type)
    return types


def checked_columns(batch: pa.RecordBatch, types: Mapping[str, str], where: str) -> pa.RecordBatch:
    """Return a record batch that has the columns of `types`, those of bytes as strings where `types` has them so."""
    if lacking := types.keys() - batch.schema.names:
        raise DataError(
            f"{where}: expected the column {min(lacking)!r}, as in the first rows, "
            f"found {first_of([*map(repr, batch.schema.names)], 5) or 'none of the columns in use'}"
        )
    for number, field in enumerate(batch.schema):
        if types.get(field.name) == "string" and type_name(field.type) in _BYTES:
            texts = _as_text(batch.column(number))
            if texts is None:
                raise DataError(f"{where}: column {field.name!r}: expected text in UTF-8, found other bytes")
            batch = batch.set_column(number, field.name, texts)
    return batch


def _as_text(column: pa.Array) -> pa.Array | None:
    """Return bytes as text, as Impala and old versions of Spark write it; None where they are not in UTF-8."""
    with suppress(pa.ArrowInvalid):
        return column.cast(pa.large_string())
    return None


def index_of(schema: pa.Schema) -> list[str]:
    """Return the columns that pandas' metadata of an Arrow schema name as the index: no features, unless asked for."""
    try:
        columns = json.loads((schema.metadata or {})[b"pandas"]).get("index_columns", [])
    except (KeyError, ValueError, AttributeError):
        return []
    return [column for column in columns if isinstance(column, str)]


def _check_names(types: Mapping[str, str], options: TableOptions, name: str) -> None:
    """Refuse columns that the table has not, and those that have two uses or none."""
    roles = {
        options.label_flag: options.label,
        "--weight-column": options.weight_column,
        "--id": options.id,
        "--fold": options.fold,
    }
    named = {option: (column,) for option, column in roles.items() if column} | {
        "--drop": options.drop,
        "--category": options.category,
        "--features": tuple(column for column in options.features if _pair(column, types) is None),
    }
    beside = [*filter(None, roles.values()), *options.drop]
    uses = Counter([*beside, *options.features])
    chosen = options.features or types
    side_columns = [column for column in (options.id, options.fold) if column]

    def refuse_first(columns: Iterable[str], expected: str) -> None:
        for column in columns:
            raise UsageError(f"{name}: column {column!r}: expected {expected}")

    for option, columns in named.items():
        listed = first_of(list(types), 20)
        lacking = (column for column in columns if column not in types)
        refuse_first(lacking, f"one of the table ({option}), found {listed}; check the name")
    refuse_first(
        (column for column in types if uses[column] > 1), "one use of it, found two; leave it out of one"
    )
    others = (column for column in options.category if column in beside or column not in chosen)
    refuse_first(others, "a column that becomes a feature for --category, found another")
    odd = (column for column in side_columns if types[column] not in _SINGLE)
    refuse_first(odd, "numbers, strings, booleans or times to keep beside the rows, found others")
    taken = (column for column in side_columns if column in _OF_PREDICTIONS)
    refuse_first(taken, "another name than a column of predictions has; rename it")


def _pair(feature: str, types: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the columns of a pair ``INDICES:VALUES``."""
    index, _, values = feature.rpartition(":")
    return (index, values) if feature not in types and index in types and values in types else None


def choose_encoding(
    types: dict[str, str],
    index: Sequence[str],
    keys: Container[str],
    reader: Any,
    options: TableOptions,
    name: str,
) -> tuple[Encoding, dict[str, str], dict[str, str]]:
    """Choose the columns that become features, and their encoding; also the types of all, and why others are left out.

    `keys` are columns by the names of folders. Of times the first is the origin.
    """
    unknown = [
        column for column, kind in types.items() if kind in ("nothing", *_BYTES) and column not in keys
    ]
    for given, block in zip(unknown, reader.first_blocks(unknown), strict=True):
        rows = block.content.column(given).slice(0, FIRST_ROWS)
        types[given] = type_name(rows.type)
        if types[given] in _BYTES and _as_text(rows) is not None:
            types[given] = "string"
    if not options.label:
        raise UsageError(
            f"{name}: expected the name of the column of {'targets' if options.target else 'labels'}, found none; give "
            f"{options.label_flag}, one of {first_of(list(types), 20)}"
        )
    # a code with zeros before it stays as it stands
    as_text = types if reader.is_text else keys
    named = {*options.category, options.id, options.fold} & types.keys()
    types |= {given: "string" for given in named if given in as_text}
    _check_names(types, options, name)
    roles = options.label, options.weight_column, options.id, options.fold
    beside = {*roles, *options.drop} - {""}
    chosen = options.features or tuple(column for column in types if column not in (*beside, *index))
    unused = {column: "it is the table's index" for column in index if column not in (*beside, *chosen)}
    columns = []
    read = [column for column in chosen if types.get(column) in ("time", "string") and column not in keys]
    blocks = reader.first_blocks(read)
    for feature in chosen:
        column = _column(feature, types, next(blocks) if feature in read else None, options)
        if isinstance(column, Column):
            columns.append(column)
        else:
            unused[feature] = column
    columns.sort(key=lambda column: column.kind == "sparse")  # whose features come after those of others
    wanted = next((column for column in unused if column in (*options.features, *options.category)), "")
    if wanted:
        raise UsageError(
            f"{name}: column {wanted!r}: expected numbers, strings, booleans or times; {unused[wanted]}"
        )
    if sum(column.kind == "sparse" for column in columns) > 1:
        raise UsageError(
            "--features: expected one pair INDICES:VALUES at most, found several; join their lists"
        )
    if not columns:
        left_out = "".join(f"; {given!r} is left out: {reason}" for given, reason in list(unused.items())[:3])
        raise UsageError(
            f"{name}: expected columns of features, found none besides {options.label!r}{left_out}"
        )
    bits = options.hash or 0 if any(column.kind == "hashed" for column in columns) else 0
    return Encoding(tuple(columns), options.missing, bits, *roles), types, unused


def _column(
    feature: str,
    types: Mapping[str, str],
    block: Any,
    options: TableOptions,
) -> Column | str:
    """Describe how a column, or a pair ``INDICES:VALUES``, becomes features, or tell why it does not.

    `block` has the first rows of times and strings; None for a key of folders.
    """
    if pair := _pair(feature, types):
        return Column(pair[0], "sparse", pair[1])
    kind = types[feature]
    if feature in options.category and kind in ("number", "nothing", "string"):
        return Column(feature, "category")
    if kind in ("number", "nothing"):
        return Column(feature, "number")
    if kind == "boolean":
        return Column(feature, "number", form="boolean")
    what = "bytes that are no text in UTF-8" if kind in _BYTES else f"values of type {kind}"
    if kind not in ("time", "string"):
        return f"it holds {what}"
    if kind == "string" and options.hash:
        return Column(feature, "hashed")
    if block is None:
        return Column(feature, "category")
    strings = block.content.column(feature)
    given = strings.slice(0, FIRST_ROWS)
    if kind == "time":
        # times of day and lengths have no origin
        has_origin = pa.types.is_date(given.type) or pa.types.is_timestamp(given.type)
        known = given.drop_null() if has_origin else given[:0]
        origin = int(seconds_of(known[:1], 0)[0] // 1) if len(known) else 0
        return Column(feature, "number", form="seconds", origin=origin)
    n_given = len(given) - given.null_count
    n_distinct = len(given.drop_null().unique())
    # strings of which more than half differ are names, keys or text
    differ = n_given >= _LEAST_STRINGS and n_distinct > _MOST_DIFFERENT * n_given
    if differ and feature not in options.features:
        forms = forms_of(strings)
        if np.count_nonzero(forms == WORD) <= MOST_ODD * forms.size:
            rows = [row for form in (COMMA, WORD) for row in np.flatnonzero(forms == form)[:1].tolist()]
            odd = [odd_value(block.place(row), strings[row], forms[row]) for row in rows]
            return (
                "; ".join(odd)
                or f"all its strings are numbers; to have numbers, cast them before ({RECIPES})"
            )
        share = f"{n_distinct:,} of its first {n_given:,} strings are different"
        return f"{share}; --category takes them, --id keeps them for predictions"
    return Column(feature, "category")


def wanted_types(
    encoding: Encoding, types: Mapping[str, str], as_text: Container[str], label_type: str | None
) -> dict[str, str]:
    """Return the types of the columns to read; those `as_text` have no types but those wanted."""
    wanted = {name: types[name] for name in encoding.names if name in types}
    for column in encoding.columns:
        if column.kind == "number":
            wanted[column.name] = {"seconds": "time", "boolean": "boolean"}.get(column.form, "number")
        elif column.kind != "sparse" and (column.name in as_text or wanted[column.name] != "number"):
            wanted[column.name] = "string"
    wanted |= dict.fromkeys(encoding.kept, "kept")
    wanted |= {name: types[name] for name in (encoding.label, encoding.weight) if name and name in types}
    if encoding.label in wanted and label_type is not None:
        wanted[encoding.label] = label_type
    return wanted


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
    roles = {encoding.id: "id", encoding.fold: "fold", encoding.label: word, encoding.weight: "weight"}
    roles |= {column.values: f"values of {column.name}" for column in encoding.columns if column.values}
    uses: dict[str, tuple[Any, ...]] = {}
    for column, missing in zip(encoding.columns, n_missing.tolist(), strict=True):
        n_features = encoding.n_buckets if column.kind == "hashed" else column.n_features
        uses[column.name] = _use(column, encoding), n_features, int(missing), ""
    for name in (name for name in columns if name not in uses):
        note = "" if name in roles else notes.get(name, "not among --features")
        uses[name] = roles.get(name, "not used"), 0, 0, note
    names = ("column", "use", "features", "missing", "note")
    return [dict(zip(names, (name, *use), strict=True)) for name, use in uses.items()]


def _use(column: Column, encoding: Encoding) -> str:
    """Describe how a column becomes features."""
    if column.form == "seconds":
        return f"seconds since {described_origin(column.origin)}" if column.origin else "seconds"
    forms = {"hashed": f"hashed into 2^{encoding.bits}", "sparse": f"indices of {column.values}"}
    return "true or false" if column.form == "boolean" else forms.get(column.kind, column.kind)
