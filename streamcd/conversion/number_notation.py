"""Warnings of columns whose strings are numbers in a notation that takes an option to be read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..dataset.arrow_columns import Strings, arrow_strings, strings_of
from ..dataset.text_numbers import MARKS, count_numbers
from ..models.encoding import Encoding
from .dictionary_files import SAMPLES

_AT_A_TIME = 1 << 16  # strings
_MOST_WARNINGS = 10


def notation_warnings(directory: Path, encoding: Encoding) -> Iterator[str]:
    """Describe the columns of strings most of whose distinct strings, or of the first ones if hashed, are numbers."""
    found = [
        (name, strings.size, advice, became)
        for name, strings, became in _strings_of_columns(directory, encoding)
        if (advice := notation_of(strings))
    ]
    for name, n_strings, (mark, n_numbers, example, stray), became in found[:_MOST_WARNINGS]:
        numbers = f"column {name!r}: {n_numbers:,} of {n_strings:,} distinct strings are numbers"
        if example is None:
            yield (
                f"{numbers}, and {became}, since others, such as {stray!r}, are none; where it is a measurement, leave the "
                "place of these empty, which --missing is about"
            )
            continue
        option = f"--number {shlex.quote(name)}" + f" --decimal {mark}" * (mark != MARKS[0])
        yield f"{numbers}, such as {example!r}, and {became}; {option} reads them as numbers"
    if len(found) > _MOST_WARNINGS:
        yield f"so are those of {len(found) - _MOST_WARNINGS:,} more columns"


def _strings_of_columns(directory: Path, encoding: Encoding) -> Iterator[tuple[str, Strings, str]]:
    samples: Mapping[str, Sequence[str]] = {}
    if (directory / SAMPLES).exists():
        samples = json.loads((directory / SAMPLES).read_text())
    n_before = 0
    for column in encoding.columns:
        if column.kind == "category" and encoding.categories is not None:
            strings = encoding.categories.slice(n_before, n_before + column.n_categories)
            yield column.name, strings, "became categories"
        elif column.name in samples:
            strings, _ = strings_of(arrow_strings(samples[column.name]))
            yield column.name, strings, "were hashed"
        n_before += column.n_categories


def notation_of(strings: Strings) -> tuple[str, int, str | None, str | None] | None:
    """Return the decimal mark with which most strings are numbers, and their count; None if few are, or all are plain.

    Further one that is not plain, if there is any, and one that is no number.
    """
    counts = dict.fromkeys(MARKS, 0)
    examples: dict[str, str] = {}
    strays: dict[str, str] = {}
    for start in range(0, strings.size, _AT_A_TIME):
        part = strings.slice(start, min(start + _AT_A_TIME, strings.size))
        more, of_part, none = count_numbers(part.to_arrow())
        counts = {mark: count + more[mark] for mark, count in counts.items()}
        examples, strays = of_part | examples, none | strays
    mark = max(MARKS, key=counts.__getitem__)  # the first of equal ones
    if 2 * counts[mark] <= strings.size or not (mark in examples or mark in strays):
        return None
    return mark, counts[mark], examples.get(mark), strays.get(mark)
