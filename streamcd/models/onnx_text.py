"""Text in an ONNX graph: lower case, words and counts of tokens, by operators of ONNX and of onnxruntime.

Lower case is made character by character from a table, since ONNX's operator takes that of a locale, which the machine may
not have. Words are cut by onnxruntime's own operator, which ONNX has none for.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ..dataset.text_tokens import lower_cases, pattern_of_words
from .onnx_builder import RUNTIME, Graph


def token_counts(graph: Graph, texts: str, tokens: Sequence[str], most_words: int) -> str:
    """Count tokens, each of up to `most_words` words with spaces between, in a column of texts.

    Returns
    -------
    str
        Of float64, (rows, tokens).
    """
    # of each number of words in turn, as the operator has them
    places = sorted(range(len(tokens)), key=lambda place: tokens[place].count(" "))
    words = [tokens[place].split(" ") for place in places]
    lengths = [len(of_token) for of_token in words]
    starts = [sum(n * lengths.count(n) for n in range(1, length)) for length in range(1, most_words + 1)]
    counts = graph.add(
        "TfIdfVectorizer",
        _words(graph, texts),
        mode="TF",
        min_gram_length=min(lengths),
        max_gram_length=most_words,
        max_skip_count=0,
        ngram_counts=starts,
        ngram_indexes=places,
        pool_strings=list(itertools.chain.from_iterable(words)),
    )
    return graph.to_double(counts)


def _words(graph: Graph, texts: str) -> str:
    """Cut texts into words in lower case; (rows, words), where there are fewer "" at the end."""
    blank = graph.add("Expand", graph.constant(np.array([[""]], object)), graph.add("Shape", texts))
    characters = graph.add("Concat", _tokenized(graph, texts, separators=[""]), blank, axis=1)
    lowered = graph.repeat(_lowered(graph, characters), lambda parts: _joined_pairs(graph, parts, blank))
    words = _tokenized(graph, lowered, tokenexp=pattern_of_words())
    return graph.add("Concat", words, blank, axis=1)  # without any word there would be no column


def _tokenized(graph: Graph, texts: str, **how: object) -> str:
    column = graph.column(texts)
    return graph.add("Tokenizer", column, domain=RUNTIME, mark=0, pad_value="", mincharnum=1, **how)


def _lowered(graph: Graph, characters: str) -> str:
    """Make lower case of single characters."""
    cases = lower_cases()
    found = graph.add(
        "LabelEncoder",
        characters,
        domain="ai.onnx.ml",
        keys_strings=list(cases),
        values_strings=list(cases.values()),
        default_string="",
    )
    is_other = graph.add("Equal", found, graph.constant(np.array("", object)))
    return graph.add("Where", is_other, characters, found)


def _joined_pairs(graph: Graph, parts: str, blank: str) -> tuple[str, str]:
    """Join each part with the next one; (rows, parts), and whether there is more than one left."""
    zero, one, two, end = (graph.constant(np.array([k])) for k in (0, 1, 2, 1 << 62))
    rest = graph.add("Concat", graph.add("Slice", parts, one, end, one), blank, axis=1)
    first, second = (graph.add("Slice", of, zero, end, one, two) for of in (parts, rest))
    joined = graph.add("StringConcat", first, second)
    n_parts = graph.add("Shape", joined, start=1)
    return joined, graph.add("Squeeze", graph.add("Greater", n_parts, one))
