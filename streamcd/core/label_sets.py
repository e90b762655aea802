"""Sets of labels, one a row: their text, the labels that occur, and which sets have which labels.

A set is text: its labels, joined by a separator, each once, numbers before words and in order; "" without labels. A set
that occurs is a class of the rows, and each label a problem of its own: the sets with it against the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SEPARATOR = ","


def labels_in(text: str, separator: str) -> list[str]:
    """Return the labels of a set, each once and in order."""
    return sorted({label.strip() for label in text.split(separator)} - {""}, key=_place)


def set_text(text: str, separator: str) -> str:
    """Return the one text of a set of labels, however it is written."""
    return separator.join(labels_in(text, separator))


def distinct_labels(texts: Iterable[str], separator: str) -> list[str]:
    """Return the labels of all sets, in order."""
    return sorted({label for text in texts for label in labels_in(text, separator)}, key=_place)


def _place(label: str) -> tuple[bool, float, str]:
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label


def membership(texts: Sequence[str], labels: Sequence[str], separator: str) -> tuple[np.ndarray, np.ndarray]:
    """Mark the labels of every set, bool of shape (sets, labels), and count its labels that are not among `labels`."""
    import numpy as np  # here: the declaration of an option takes the separator from this module

    number_of = {label: number for number, label in enumerate(labels)}
    has, n_others = np.zeros((len(texts), len(labels)), np.bool_), np.zeros(len(texts), np.int64)
    for row, text in enumerate(texts):
        for label in labels_in(text, separator):
            if (number := number_of.get(label)) is None:
                n_others[row] += 1
            else:
                has[row, number] = True
    return has, n_others
