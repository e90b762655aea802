"""Columns of tables: which become features, labels and weights, and by which encoding; the source of rows of a table."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DataError, UsageError
from ..dataset.arrow_columns import flat_fields, numbers_of, strings_of, type_name
from ..dataset.derived_columns import DATES, NoTimeError, have_dates, orders_of, seconds_of, times_of
from ..models.encoding import PARTS, Column, Encoding, check_columns
from .column_summary import example_of
from .encoded_rows import EncodedSource
from .number_notation import notation_of
from .options import TableOptions
from .sources import Reader, Reading

FIRST_ROWS = 2000
"""Rows of a table by which some columns are understood: enough of them, and the same ones in all formats."""


def plan_encoding(types: dict[str, str], first: Any, options: TableOptions, name: str) -> Encoding:
    """Choose the columns that become features, and their encoding; `name` is the table's in messages.

    `first` has the first rows of all columns. Of times the first one is the origin of the others.
    """
    label, weight = options.label, options.weight_column
    asked = [(options.label_flag, label), ("--weight-column", weight)]
    asked += [("--drop", dropped) for dropped in options.drop]
    asked += [("--id", options.id), *(("--keep", kept) for kept in options.keep)]
    forms = [("--number", column) for column in options.number]
    forms += [("--category", column) for column in options.category]
    forms += [("--date", column) for column in options.date]
    forms += [("--text", column) for column in options.text]
    for option, column in asked + forms:
        if column and column not in types:
            raise UsageError(
                f"{name}: expected a column {column!r} ({option}), found {_listed(types)}; check the name"
            )
    beside = [column for column in (label, weight, options.id, *options.keep) if column]
    for column in (*beside, *options.features):
        if beside.count(column) > (column not in options.features):
            raise UsageError(
                f"{name}: column {column!r}: expected as label, weight, feature or kept alone, found as two of these; leave "
                "it out of one"
            )
    kept = options.features or tuple(column for column in types if column not in (*beside, *options.drop))
    for option, column in forms:
        if column not in kept:
            raise UsageError(
                f"{name}: {option} {column!r}: expected a column that becomes a feature; leave it out"
            )
    found = {column: _columns(column, types, first, options, name) for column in kept}
    _refuse_types({column: types[column] for column, made in found.items() if not made}, options, name)
    columns = [column for made in found.values() for column in made]
    ordered = sorted(columns, key=lambda column: _LAST.index(column.kind) if column.kind in _LAST else -1)
    if sum(column.kind == "sparse" for column in columns) > 1:
        raise UsageError(
            "--features: expected one pair INDICES:VALUES at most, found several; join their lists"
        )
    if not columns:
        raise UsageError(f"{name}: expected columns of features, found none besides {label!r}")
    _check_text_options(options, name)
    bits = options.hash or 0 if any(column.kind == "hashed" for column in columns) else 0
    _check_kept([name for name in (options.id, *options.keep) if name], types, name)
    return Encoding(
        tuple(ordered),
        options.missing,
        bits,
        label,
        weight,
        options.decimal,
        options.id,
        tuple(column for column in options.keep if column != options.id),
    )


def _check_label(reader: Reader, types: dict[str, str], options: TableOptions, name: str) -> None:
    """Refuse a table without a column of labels, with the place where it is named."""
    if options.label:
        return
    way = f"give {options.label_flag}, one of {_listed(types)}"
    if options.columns_file:
        way = f"set the use of one column to 'label' in {options.columns_file}, one of {_listed(types)}"
    elif len(types) == 2 and getattr(reader, "delimiter", "") == "\t":
        way += ", or --format documents where each line is a label, a tab and a text"
    raise UsageError(
        f"{name}: expected the name of the column of {'targets' if options.target else 'labels'}, found none; {way}"
    )


_LAST = ("text", "sparse")
"""Kinds of columns whose features come after those of others."""

_OF_PREDICTIONS = ("source", "prediction", "decision")


def _check_text_options(options: TableOptions, name: str) -> None:
    """Refuse options of text where no column is."""
    asked = [flag for flag in ("--ngrams", "--tf-idf", "--min-count") if flag in options.given]
    if asked and not options.text:
        raise UsageError(
            f"{name}: {', '.join(asked)}: expected columns of text, found none; name them with --text"
        )


def _check_kept(kept: Sequence[str], types: dict[str, str], name: str) -> None:
    """Refuse columns whose values have no text, and names that predictions have for their own columns."""
    for column in kept:
        if types[column] not in ("number", "string", "boolean", "time", "nothing"):
            raise UsageError(
                f"{name}: column {column!r}: expected numbers, strings, booleans or times to keep beside the rows, found "
                f"{types[column]}; leave it out"
            )
        if column in _OF_PREDICTIONS:
            raise UsageError(
                f"{name}: column {column!r}: expected another name to keep beside the rows, found that of a column of "
                "predictions; rename it"
            )


_LEAST_STRINGS, _MOST_DIFFERENT = 1000, 0.95
"""First strings of a column by which is told if they are nearly all different, and the share of different ones."""


def _nearly_distinct(first: Any, encoding: Encoding, options: TableOptions) -> dict[str, str]:
    """Find columns of strings, not asked for, nearly all of which are different: names, keys, free text; with the reason."""
    names = [column.name for column in encoding.columns if column.kind == "category" and not column.form]
    names = [name for name in names if name not in (*options.features, *options.category)]
    if first is None or len(encoding.columns) == len(names):
        return {}
    found = {}
    for name in names:
        given = first.column(name).drop_null()
        strings, n_distinct = strings_of(given)[0], len(given.unique())
        if (
            strings.size < _LEAST_STRINGS
            or n_distinct < _MOST_DIFFERENT * strings.size
            or notation_of(strings)
        ):
            continue
        found[name] = f"{n_distinct:,} of its first {strings.size:,} strings are different"
    return found


_LEAST_TEXTS, _FEW_ROWS = 20, 2
"""Different first strings of a column that look like text, where most have several words and are in few rows each."""

_WORD = r"\pL{2,}"
"""A word in what may be text: times, codes and initials have none."""


def _lookalikes(first: Any, encoding: Encoding, options: TableOptions) -> dict[str, tuple[str, str]]:
    """Find columns whose strings look like text or dates but are taken whole, not asked for; with option and reason."""
    found: dict[str, tuple[str, str]] = {}
    for column in encoding.columns if first is not None else ():
        if column.kind not in ("category", "hashed") or column.form or column.name in options.category:
            continue
        if orders_of(first.column(column.name)):
            found[column.name] = "--date", "looks like dates, with day or month first"
            continue
        distinct, n_rows = first.column(column.name).drop_null().value_counts().flatten()
        strings = strings_of(distinct)[0]
        if (
            strings.size < _LEAST_TEXTS
            or 2 * np.count_nonzero(numbers_of(n_rows) <= _FEW_ROWS) <= strings.size
        ):
            continue
        import pyarrow.compute as pc  # only where a column may be text: it takes a tenth of a second

        n_words = numbers_of(pc.count_substring_regex(strings.to_arrow(), _WORD))
        if 2 * np.count_nonzero(n_words > 1) > strings.size:
            found[column.name] = "--text", f"looks like text, of {n_words.mean():.0f} words in the mean"
    return found


def _listed(names: dict[str, str]) -> str:
    shown = ", ".join(list(names)[:20])
    return shown + (f", … ({len(names):,} in all)" if len(names) > 20 else "")


def _columns(
    feature: str, types: dict[str, str], first: Any, options: TableOptions, name: str
) -> list[Column]:
    """Describe how a column, or a pair ``INDICES:VALUES``, becomes features; empty where its type has no encoding."""
    index, _, values = feature.rpartition(":")
    if feature not in types and index in types and values in types:
        return [Column(index, "sparse", values)]
    if feature not in types:
        raise UsageError(
            f"{name}: expected a column {feature!r} (--features), found {_listed(types)}; check the name"
        )
    kind = types[feature]
    if feature in options.text and kind != "list" and kind not in _ADVICE:
        return [Column(feature, "text", bits=options.hash or 0, **options.of_text | options.text[feature])]
    if feature in options.number and kind in ("number", "nothing", "string"):
        return [Column(feature, "number", form="text")]
    given = pa.nulls(0) if first is None else first.column(feature)
    guessed = orders_of(given) if kind == "string" and feature not in options.category else []
    if kind == "time" or feature in options.date or len(guessed) == 1:
        return _time_columns(feature, kind, given, options, name)
    if feature in options.category and kind in ("number", "nothing"):
        return [Column(feature, "category", form="numbers")]
    if kind in ("number", "nothing"):
        return [Column(feature, "number")]
    if kind == "boolean":
        return [Column(feature, "number", form="boolean")]
    if kind == "string":
        hashed = options.hash and feature not in options.category
        return [Column(feature, "hashed" if hashed else "category")]
    return []


def _time_columns(feature: str, kind: str, first: Any, options: TableOptions, name: str) -> list[Column]:
    """Describe how a column of times becomes features: as seconds since the first one, or in parts."""
    asked, order = options.date.get(feature, ("seconds", ""))
    if kind not in ("time", "string", "nothing"):
        raise UsageError(f"{name}: --date {feature!r}: expected a column of times or text, found {kind}s")
    if feature in options.category:
        raise UsageError(
            f"{name}: --category {feature!r}: expected numbers or strings, found times; --date {feature}:parts makes "
            "categories of their parts"
        )
    if kind == "string" and not order:
        orders = orders_of(first) or [""]
        order = orders[0]
        if len(orders) > 1:
            raise UsageError(
                f"{name}: --date {feature!r}: expected dates whose order is known, found day and month that may be either, "
                f"such as {example_of(first, kind, '')!r}; give --date {feature}:dmy, or {feature}:mdy"
            )
    try:
        seconds = seconds_of(times_of(first, order), 0)
    except NoTimeError as error:
        raise UsageError(
            f"{name}: --date {feature!r}: expected times such as {DATES[order]}, found {error.text[:40]!r}; write them so, "
            "or leave the option out"
        ) from None
    seconds = seconds[~np.isnan(seconds)]
    dated = have_dates(first)
    if asked == "parts":
        timed = not dated or bool((seconds % 86400).any())
        asked = (PARTS[:-1] if dated else ()) + (PARTS[-1:] if timed else ())
    if isinstance(asked, tuple):
        return [Column(feature, "category", form=part, order=order) for part in asked]
    if asked == "seconds":
        asked = int(seconds[0] // 1) if dated and seconds.size else 0
    return [Column(feature, "number", form="seconds", origin=asked, order=order)]


_ADVICE = {
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
    """Return the columns of an Arrow schema with their types (`type_name`), those of structs by dotted names.

    Refuses duplicate names.
    """
    fields = flat_fields(schema)
    distinct_names([field.name for field in fields], where)
    return {field.name: type_name(field.type) for field in fields}


def _wanted_types(
    encoding: Encoding, types: dict[str, str], reading: Reading, is_text: bool, kept: dict[str, str]
) -> dict[str, str]:
    """Return the types of the columns to read; those of text have no types but those asked for."""
    wanted = {name: types[name] for name in encoding.names if name in types}
    for column in encoding.columns:
        if column.kind != "sparse" and not column.added:
            wanted[column.name] = _wanted_type(column, types.get(column.name), is_text)
    wanted |= kept
    for name in (encoding.label, encoding.weight):
        if name and name in types:
            wanted[name] = types[name]
    if encoding.label in wanted and reading.separator:
        wanted[encoding.label] = "list" if types[encoding.label] == "list" else "string"
    elif encoding.label in wanted and (reading.class_names or reading.of_numbers):
        wanted[encoding.label] = "string" if reading.class_names else "number"
    return wanted


def _wanted_type(column: Column, found: str | None, is_text: bool) -> str:
    """Return the type as which a column is read; text has none of its own."""
    if column.kind == "text":
        return "text"
    if column.form in ("seconds", *PARTS) or (column.form == "text" and (is_text or found == "string")):
        return "string" if is_text or found is None else found
    if column.form == "boolean":
        return "boolean"
    return "number" if column.kind == "number" or column.form == "numbers" else "string"


def open_tables(
    reader: Reader, types: dict[str, str], first: Any, reading: Reading, options: TableOptions, name: str
) -> EncodedSource:
    """Make the source of a reader's rows, with the encoding of the data to match, if any.

    `types` and `first` are the types and the first rows of the columns; `name` is for messages.
    """
    known = reading.encoding
    unused: dict[str, str] = {}
    lookalikes: dict[str, tuple[str, str]] = {}
    if known is None:
        if reader.is_text:  # which has the text of times and numbers to take for a category
            codes = {*options.codes, *reader.codes(options.category)}
            as_text = [
                column for column in options.category if types.get(column) == "time" or column in codes
            ]
            types |= dict.fromkeys(as_text, "string")
            first = reader.first_rows(types) if codes else first
        _check_label(reader, types, options, name)
        encoding = plan_encoding(types, first, options, name)
        unused = _nearly_distinct(first, encoding, options)
        lookalikes = _lookalikes(first, encoding, options)
        columns = tuple(column for column in encoding.columns if column.name not in unused)
        encoding = replace(encoding, columns=columns).without_counts()
    else:
        check_columns(known, types, reading.needs_label, name)
        weighted = reading.reads_weights and known.weight in types
        encoding = replace(
            known,
            weight=known.weight if weighted else "",
            id=known.id if known.id in types else "",
            keep=tuple(column for column in known.keep if column in types),
        )
    kept = reader.kept_types(encoding.kept)
    table_types = _wanted_types(encoding, types, reading, reader.is_text, kept)
    return EncodedSource(
        reader=reader,
        made_from="table",
        columns=tuple(types),
        encoding=encoding,
        grows=known is None,
        names_labels=bool(reading.class_names or reading.separator)
        or table_types.get(encoding.label) in ("string", "boolean"),
        class_names=reading.class_names,
        weighted=bool(encoding.weight),
        of_indices=encoding.sparse is not None and len(encoding.columns) == 1,
        held_bytes=reader.held_bytes(table_types),
        reading=reading,
        table_types=table_types,
        unused=unused,
        lookalikes=lookalikes,
        examples={} if first is None else _examples(types, first, encoding),
    )


def _examples(types: Mapping[str, str], first: Any, encoding: Encoding) -> dict[str, str]:
    """Return a value of each column; of times in text as they are understood."""
    orders = {column.name: column.order for column in encoding.columns if column.form in ("seconds", *PARTS)}
    return {
        name: example_of(first.column(name), "time" if name in orders else kind, orders.get(name, ""))
        for name, kind in types.items()
    }
