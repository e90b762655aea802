"""Words of text: runs of Unicode's letters, digits and underscores, two at least, in lower case.

They are those of Python's ``re.findall(r"\\b\\w\\w+\\b", text.lower())``, which is scikit-learn's default.
"""

from __future__ import annotations

import functools
import re

import numpy as np

from ..kernels import text as kernels
from .arrow_columns import Strings, arrow_strings, strings_of

_POINTS = 0x110000
_BLOCK = 256  # code points looked at together
_NOT_OF_WORDS, _END = -1, -2


def words_of(documents: Strings, valid: np.ndarray) -> kernels.Words:
    """Cut documents into words."""
    found, has_sigma = _cut(documents, valid)
    if has_sigma:  # its lower case at the end of a word is another one
        texts = (documents.text(k) for k in range(documents.size))
        lowered = [text.lower() if chr(kernels.SIGMA) in text else text for text in texts]
        found, _ = _cut(strings_of(arrow_strings(lowered))[0], valid)
    return found


def _cut(documents: Strings, valid: np.ndarray) -> tuple[kernels.Words, bool]:
    n_bytes = int(documents.offsets[-1] - documents.offsets[0])
    starts, ends = (np.empty(n_bytes // 2 + 1, np.int64) for _ in range(2))
    words = kernels.Words(
        np.empty(2 * n_bytes + 8, np.uint8), starts, ends, np.zeros(documents.size + 1, np.int64)
    )
    state = np.zeros(1, np.int64)
    n_words = kernels.cut_words((*documents, valid), *_lower_cases(), words, state)
    return words._replace(starts=starts[:n_words], ends=ends[:n_words]), bool(state[0])


@functools.cache
def _lower_cases() -> tuple[np.ndarray, np.ndarray]:
    """Return the arrays `lowered` and `longer` of `kernels.cut_words`, by this Python's tables of characters."""
    text, of_words = _characters(), np.zeros(_POINTS, np.bool_)
    for start, stop in _runs_of_words():
        of_words[start:stop] = True
    lowered = np.arange(_POINTS, dtype=np.int32)
    longer: list[list[int]] = []
    for start in range(0, _POINTS, _BLOCK):
        block = text[start : start + _BLOCK]
        small = block.lower()
        if small == block:
            continue
        for place, character in enumerate(block, start):
            own = character.lower()
            lowered[place] = ord(own) if len(own) == 1 else -2 - len(longer)
            if len(own) > 1:
                marks = [ord(part) if of_words[ord(part)] else _NOT_OF_WORDS for part in own]
                longer.append([*marks, _END, _END][:3])
    single = lowered >= 0
    lowered[single] = np.where(of_words[lowered[single]], lowered[single], _NOT_OF_WORDS)
    return lowered, np.array(longer or [[_END] * 3], np.int32)


def _characters() -> str:
    return np.arange(_POINTS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _runs_of_words() -> list[tuple[int, int]]:
    return [run.span() for run in re.finditer(r"\w+", _characters())]
