"""Numbers written as people write them: with a decimal comma, grouped digits, or a percent sign."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from .arrow_columns import arrow_strings, numbers_of

NULLS = ["", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None"]
"""Texts that stand for a missing value."""

MARKS = (".", ",")
"""Decimal marks."""

_ROWS = 1 << 14  # parsed at a time
_GROUPS = " \u00a0\u2009\u202f\u2019"  # spaces of several widths, and a typographic apostrophe
_PLAIN = r"^[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$"


def _pattern(mark: str) -> str:
    """Return the expression of a number with this decimal mark: the other one, a space or ' may part thousands."""
    other = MARKS[1 - MARKS.index(mark)]
    grouped = rf"[1-9][0-9]{{0,2}}(?:[{other}'{_GROUPS}][0-9]{{3}})+"
    mark = re.escape(mark)
    digits = rf"(?:(?:{grouped}|[0-9]+)(?:{mark}[0-9]*)?|{mark}[0-9]+)"
    return rf"^\s*[-+]?{digits}(?:[eE][-+]?[0-9]+)?[{_GROUPS}]?%?\s*$"


def text_numbers(texts: pa.Array, mark: str) -> np.ndarray:
    """Parse texts as float64: NaN for null and `NULLS`, infinity for what is no number; ``12%`` is 0.12."""
    parts = [_parse(texts.slice(start, _ROWS), mark) for start in range(0, len(texts), _ROWS)]
    return np.concatenate(parts) if parts else np.empty(0)


def _parse(texts: pa.Array, mark: str) -> np.ndarray:
    import pyarrow.compute as pc  # 30 ms, which a training saves

    trimmed = pc.utf8_trim_whitespace(texts.cast(pa.large_string()))
    matches = pc.match_substring_regex(trimmed, _pattern(mark))
    plain = pc.replace_substring_regex(trimmed.filter(matches), rf"^\+|[^-+0-9eE{re.escape(mark)}]", "")
    found = np.full(len(texts), np.inf)
    found[_is_true(matches)] = numbers_of(pc.replace_substring(plain, mark, ".").cast(pa.float64()))
    found[_is_true(pc.ends_with(trimmed, "%"))] /= 100.0
    found[_is_true(pc.is_in(trimmed, value_set=arrow_strings([*NULLS, None])))] = np.nan
    return found


def _is_true(mask: pa.Array) -> np.ndarray:
    """Return a mask, false for null; scalars of Arrow's, which would do this there, load pandas where it is installed."""
    return numbers_of(mask) == 1


def count_numbers(texts: pa.Array) -> tuple[dict[str, int], dict[str, str], dict[str, str]]:
    """Count the texts that are numbers with each decimal mark.

    Also returns one of each that is written in no plain way, and one that is no number.
    """
    import pyarrow.compute as pc

    counts, examples, strays = {}, {}, {}
    is_plain = _is_true(pc.match_substring_regex(texts, _PLAIN))
    for mark in MARKS:
        is_number = _is_true(pc.match_substring_regex(texts, _pattern(mark)))
        counts[mark] = int(is_number.sum())
        if (others := np.flatnonzero(is_number & ~is_plain)).size:
            examples[mark] = texts[int(others[0])].as_py()
        if not is_number.all():
            strays[mark] = texts[int(np.argmin(is_number))].as_py()
    return counts, examples, strays
