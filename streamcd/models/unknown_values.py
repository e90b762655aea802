"""Values of a table that an encoding has no feature for: counted by column, with an example, and described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..core.errors import counted, shortened

_LISTED, _EXAMPLE = 3, 40  # columns; characters


class Unknown(NamedTuple):
    """Values of a column."""

    n_values: int
    example: str  # the first of them; empty where values are missing


def add_unknown(total: dict[str, Unknown], more: Mapping[str, Unknown]) -> None:
    """Take in, by column, the values of rows that come later."""
    for name, (n_values, example) in more.items():
        before = total.get(name, Unknown(0, example))
        total[name] = Unknown(before.n_values + n_values, before.example)


def count_unknown(of_columns: Mapping[str, Unknown]) -> int:
    """Return the number of values of all columns."""
    return sum(found.n_values for found in of_columns.values())


def listed(of_columns: Mapping[str, Unknown]) -> str:
    """List the columns with most values, the number of these, and an example of each."""
    most = sorted(of_columns.items(), key=lambda item: -item[1].n_values)
    texts = [f"{n_values:,} in {name}{_such_as(example)}" for name, (n_values, example) in most[:_LISTED]]
    if len(most) > _LISTED:
        texts.append(counted(len(most) - _LISTED, "more column"))
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _such_as(example: str) -> str:
    return f" (such as {shortened(example, _EXAMPLE)!r})" if example else ""


def unknown_values(
    unseen: Mapping[str, Unknown],
    unindicated: Mapping[str, Unknown],
    which: str = "the model has not seen in training",
) -> Iterator[str]:
    """Describe values of a table that those of training did not have: categories, and missing ones of complete columns."""
    if unseen:
        n_values = counted(count_unknown(unseen), "value")
        yield f"{n_values} ignored, of categories that {which}: {listed(unseen)}"
    if unindicated:
        n_values = counted(count_unknown(unindicated), "missing value")
        yield (
            f"{n_values} taken for zero, in columns that had none in the data trained on: {listed(unindicated)}"
        )
