"""Summary of a table's columns: how each was used, as a conversion shows it and takes it back, edited."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DataError, UsageError
from ..core.progress import shortened
from ..dataset.arrow_columns import numbers_of, type_name
from ..dataset.derived_columns import (
    DATES,
    described_origin,
    have_dates,
    number_name,
    seconds_of,
    times_of,
    without_empty,
)
from ..models.encoding import PARTS, Column, Encoding

FIELDS = ("column", "use", "features", "missing", "example", "note")
"""Facts of a column, and the header of the file."""

_EXAMPLE = 40  # characters
_UNUSED, _HASHED, _INDICES, _SECONDS, _TEXT = "not used", "hashed", "indices of", "seconds", "text"
_USES = {
    ("number", ""): "number",
    ("number", "text"): "number in text",
    ("number", "boolean"): "true or false",
    ("number", "seconds"): _SECONDS,
    ("category", ""): "category",
    ("category", "numbers"): "category of numbers",
    ("hashed", ""): _HASHED,
    ("text", ""): _TEXT,
    ("sparse", ""): _INDICES,
}


def summarise(
    examples: Mapping[str, str],
    encoding: Encoding,
    n_missing: np.ndarray,
    notes: Mapping[str, str],
    word: str,
) -> list[dict[str, Any]]:
    """Describe every column of a table, in its order; those of features in the order of features.

    `examples` has a value of each column, `n_missing` counts the missing values of those of `encoding`; `notes` tell why
    columns are left out, or may be used in another way, `word` is the use of the column of labels or targets.
    """
    own = {
        **dict.fromkeys(encoding.keep, "kept"),
        encoding.id: "id",
        encoding.label: word,
        encoding.weight: "weight",
    }
    features: dict[str, dict[str, Any]] = {}
    for column, missing in zip(encoding.columns, n_missing.tolist(), strict=True):
        found = features.setdefault(
            column.name, _fact(column.name, _use(column, encoding), int(missing), examples)
        )
        found["features"] += encoding.n_buckets if column.kind == "hashed" else column.n_features
        if column.form in PARTS and column.form not in found["use"]:
            found["use"] += f", {column.form}"
        found["note"] = notes.get(column.name, "")
    for name, order in {column.name: column.order for column in encoding.columns if column.order}.items():
        features[name]["use"] += f", {order}"
    values = {column.values: f"values of {column.name}" for column in encoding.columns if column.values}
    others = [name for name in examples if name not in features]
    facts = [_fact(name, own.get(name) or values.get(name) or _UNUSED, 0, examples) for name in others]
    for fact in facts:
        if fact["use"] == _UNUSED:
            fact["note"] = notes.get(fact["column"], "not among --features")
    return [*features.values(), *facts]


def _fact(name: str, use: str, missing: int, examples: Mapping[str, str]) -> dict[str, Any]:
    return dict(zip(FIELDS, (name, use, 0, missing, examples.get(name, ""), ""), strict=True))


def _use(column: Column, encoding: Encoding) -> str:
    if column.form in PARTS:
        return column.form
    extra = {
        "seconds": f" since {described_origin(column.origin)}" if column.origin else "",
        "hashed": f" into 2^{encoding.bits}",
        "sparse": f" {column.values}",
        "text": _text_use(column),
    }
    return _USES[column.kind, column.form] + extra.get(column.form or column.kind, "")


def _text_use(column: Column) -> str:
    """Describe how text becomes features, but for its first word."""
    least, most = column.ngrams
    said = {
        f" into 2^{column.bits}": bool(column.bits),
        f", ngrams {least}-{most}": column.ngrams != (1, 1),
        ", tf-idf": column.tf_idf,
        f", min count {column.min_count}": column.min_count > 1,
    }
    return "".join(text for text, holds in said.items() if holds)


def example_of(array: Any, kind: str, order: str) -> str:
    """Return a column's first value that is not missing as text, alike for all formats; empty where there is none.

    `order` is that of day and month in text of the kind "time".
    """
    if kind == "time" and type_name(array.type) == "string":
        array = without_empty(array)
    array = array.drop_null()[:1]
    if not len(array):
        return ""
    if kind == "number":
        return shortened(number_name(float(numbers_of(array)[0])), _EXAMPLE)
    if kind == "boolean":
        return "true" if numbers_of(array)[0] else "false"
    if kind == "time":
        time = described_origin(int(seconds_of(times_of(array, order), 0)[0] // 1))
        return time.removesuffix(" 00:00:00") if have_dates(array) else time[-8:]
    if kind != "string":
        return ""
    return shortened(" ".join(str(array[0].as_py())[: 10 * _EXAMPLE].split()), _EXAMPLE)  # it may be a book


def columns_of(path: Path | str) -> str:
    """Write the summary of a dataset's table; refused for what was made from none."""
    from ..dataset.dataset import open_dataset

    manifest = open_dataset(path).manifest
    if not manifest.get("table"):
        raise UsageError(f"{path}: expected a dataset that was converted from a table, found another")
    return as_csv(manifest["table"], manifest["encoding"])


def as_csv(facts: Sequence[Mapping[str, Any]], encoding: Mapping[str, Any]) -> str:
    """Write a summary, with the options that hold for all columns in its first line."""
    out = io.StringIO()
    out.write(f"# --missing {encoding['missing']} --decimal {encoding.get('decimal', '.')}\n")
    writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(facts)
    return out.getvalue()


# ---------------------------------------------------------------------------------------------------------------------
# The way back


def read_columns(path: Path | str) -> dict[str, Any]:
    """Return the options that a summary stands for: that of a dataset, or one in a file as `as_csv` writes it.

    Raises
    ------
    UsageError
        If the file cannot be read as one; the message names the line.
    """
    place = Path(path)
    if place.is_dir():
        text = columns_of(place)
    else:
        try:
            text = place.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--columns-from {path}: cannot be read ({error})") from None
    return _options(list(_parsed(text, str(path))), _settings(text), str(path))


def _settings(text: str) -> dict[str, str]:
    first = text.partition("\n")[0]
    return dict(re.findall(r"--(missing|decimal) (\S+)", first)) if first.startswith("#") else {}


def _parsed(text: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the column and the use of every line."""
    skipped = text.startswith("#")
    reader = csv.DictReader(io.StringIO(text.partition("\n")[2] if skipped else text))
    if not reader.fieldnames or not {"column", "use"} <= set(reader.fieldnames):
        raise UsageError(
            f"{name}: expected a header with column and use, as of 'streamcd info DATASET --columns'"
        )
    for found in reader:
        place = f"{name}:{reader.line_num + skipped}"
        column, use = found["column"], found["use"]
        if not column or not use:
            raise UsageError(f"{place}: expected a column and its use, found {json.dumps([column, use])}")
        yield place, column, use.strip()


def _options(lines: Sequence[tuple[str, str, str]], settings: dict[str, str], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"features": [], "number": [], "category": [], "codes": [], "keep": []} | settings
    found |= {"date": {}, "text": {}}
    for place, column, use in lines:
        if use in ("label", "target", "weight", "id"):
            key = "weight_column" if use == "weight" else use
            if found.setdefault(key, column) != column:
                raise UsageError(f"{place}: expected one {use}, found {found[key]!r} and {column!r}")
        elif use == "kept":
            found["keep"].append(column)
        elif use == _UNUSED or use.startswith("values of "):
            continue
        elif use.startswith(_INDICES):
            found["features"].append(f"{column}:{use.removeprefix(_INDICES).strip()}")
        else:
            found["features"].append(column)
            _take_use(found, place, column, use)
    if not found["features"]:
        raise UsageError(f"{name}: expected a column that becomes features, found none")
    return {key: value for key, value in found.items() if value}


_TEXT_USE = re.compile(
    rf"{_TEXT}(?: into 2\^(\d+))?(?:, ngrams (\d+)-(\d+))?(, tf-idf)?(?:, min count (\d+))?"
)


def _take_use(found: dict[str, Any], place: str, column: str, use: str) -> None:
    *parts, order = re.split(r",\s*", use)
    if not parts or order not in DATES:
        parts, order = [*parts, order], ""
    if hashed := re.fullmatch(rf"{_HASHED} into 2\^(\d+)", use):
        found["hash"] = int(hashed[1])
    elif text := _TEXT_USE.fullmatch(use):
        bits, least, most, tf_idf, count = text.groups()
        ngrams = (int(least), int(most)) if least else (1, 1)
        found["text"][column] = {"ngrams": ngrams, "tf_idf": bool(tf_idf), "min_count": int(count or 1)}
        found |= {"hash": int(bits)} if bits else {}
    elif set(parts) <= set(PARTS):
        found["date"][column] = tuple(parts), order
    elif use.startswith(_SECONDS):
        found["date"][column] = _origin(place, parts[0]), order
    elif use == "number in text":
        found["number"].append(column)
    elif use in ("category", "category of numbers"):
        found["category"].append(column)
        if use == "category":
            found["codes"].append(column)
    elif use not in ("number", "true or false"):
        known = ", ".join([*_USES.values(), *PARTS, "label", "target", "weight", "id", "kept", _UNUSED])
        raise DataError(f"{place}: expected a use of the column {column!r} such as {known}, found {use!r}")


def _origin(place: str, use: str) -> int | str:
    """Return the time since which seconds count, in seconds since 1970; "seconds" where the table has to tell."""
    if use == _SECONDS:
        return _SECONDS
    try:
        since = datetime.fromisoformat(use.removeprefix(f"{_SECONDS} since ")).replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"{place}: expected '{_SECONDS} since 2020-03-31 14:30:00', found {use!r}") from None
    return int(since.timestamp())
