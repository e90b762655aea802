"""Kernels of text: words cut from UTF-8, counted in each document by a hash table or hashed, and weighed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import inlined, kernel
from .tables import (
    FULL,
    UNKNOWN,
    fetch_bytes,
    fetch_slot,
    fetch_string,
    last_start,
    murmur,
    number_of,
    string_hash,
)

SIGMA = 0x3A3
"""The capital sigma, whose lower case depends on the letters around it."""

_LEAST_CHARACTERS = 2  # of a word


class Words(NamedTuple):
    """Words of documents, a space between neighbours; document ``d`` has the words ``indptr[d]:indptr[d + 1]``."""

    data: np.ndarray  # uint8
    starts: np.ndarray  # (words,) int64
    ends: np.ndarray
    indptr: np.ndarray  # (documents + 1,) int64


_SLOTS_AHEAD, _STRINGS_AHEAD, _BYTES_AHEAD = 24, 16, 8
"""Distances of prefetching, in n-grams ahead of the one that is counted."""


@inlined
def _decoded(data, k, stop):
    """Code point at `k` and its bytes; a malformed one is one byte of no word."""
    byte = np.int64(data[k])
    if byte >= 0xF0 and byte < 0xF8 and k + 3 < stop:
        point = ((byte & 0x07) << 18) | (np.int64(data[k + 1] & 0x3F) << 12)
        point |= (np.int64(data[k + 2] & 0x3F) << 6) | np.int64(data[k + 3] & 0x3F)
        return point, 4
    if byte >= 0xE0 and byte < 0xF0 and k + 2 < stop:
        return ((byte & 0x0F) << 12) | (np.int64(data[k + 1] & 0x3F) << 6) | np.int64(data[k + 2] & 0x3F), 3
    if byte >= 0xC0 and byte < 0xE0 and k + 1 < stop:
        return ((byte & 0x1F) << 6) | np.int64(data[k + 1] & 0x3F), 2
    return np.int64(0), 1


@inlined
def _put(point, out, end):
    """Write a code point in UTF-8; returns the end."""
    if point < 0x80:
        out[end] = point
        return end + 1
    if point < 0x800:
        out[end], out[end + 1] = 0xC0 | (point >> 6), 0x80 | (point & 0x3F)
        return end + 2
    if point < 0x10000:
        out[end], out[end + 1] = 0xE0 | (point >> 12), 0x80 | ((point >> 6) & 0x3F)
        out[end + 2] = 0x80 | (point & 0x3F)
        return end + 3
    out[end], out[end + 1] = 0xF0 | (point >> 18), 0x80 | ((point >> 12) & 0x3F)
    out[end + 2], out[end + 3] = 0x80 | ((point >> 6) & 0x3F), 0x80 | (point & 0x3F)
    return end + 4


@kernel
def cut_documents(text, start, stop, needs_label, labels, documents, labelled, lines):
    """Cut lines into a label and, after a tab, a document; blank lines are passed over.

    Parameters
    ----------
    text : (bytes,) uint8
    start, stop : int
        Whole lines are between these.
    needs_label : bool
        Refuse a line without a tab; else it is a document alone.
    labels, documents : (bytes,) uint8, (lines + 1,) int64
        Strings and their ends. There is room for all of the text; filled in place, as the next ones.
    labelled, lines : (lines,) bool, (lines,) int64
        If a document has a label, and the number of its line.

    Returns
    -------
    (int, int)
        The number of documents, and that of lines; the first is -1 where the last line has no tab.
    """
    label_bytes, label_ends = labels
    document_bytes, document_ends = documents
    n, line, k = 0, 0, start
    while k < stop:
        end = k
        tab = np.int64(-1)
        while text[end] != 0x0A:
            if text[end] == 0x09 and tab < 0:
                tab = end
            end += 1
        last = end - 1 if end > k and text[end - 1] == 0x0D else end
        if last > k:
            if tab < 0 and needs_label:
                return -1, line
            label_end, document_end = label_ends[n], document_ends[n]
            for j in range(k, tab):
                label_bytes[label_end + j - k] = text[j]
            label_ends[n + 1] = label_end + max(tab - k, 0)
            first = tab + 1 if tab >= 0 else k
            for j in range(first, last):
                document_bytes[document_end + j - first] = text[j]
            document_ends[n + 1] = document_end + last - first
            labelled[n], lines[n] = tab >= 0, line
            n += 1
        line += 1
        k = end + 1
    return n, line


@kernel
def cut_words(documents, lowered, longer, words, state):
    """Cut documents into words of two characters and more, in lower case.

    Parameters
    ----------
    documents
        As strings for `tables.number_strings`; null has no words.
    lowered : (code points,) int32
        The lower case of each: a character of words; -1 for one of no word; -2 - k for those in line k of `longer`.
    longer : (lines, 3) int32
        Lower cases of more than one character, ended by -2; -1 is one of no word.
    words : Words
        ``data[starts[i]:ends[j]]`` are the words i to j, a space after each. There is room for twice the documents' bytes,
        and eight more. Filled in place.
    state : (1,) int64
        Set to 1 where a capital sigma occurs.

    Returns
    -------
    int
        The number of words.
    """
    data, offsets, valid = documents
    out, starts, ends, indptr = words
    word, end = 0, np.int64(0)
    for document in range(offsets.size - 1):
        k, stop = offsets[document], offsets[document + 1]
        if valid.size and not valid[document]:
            stop = k
        start, n_characters = end, 0
        while k <= stop:
            first, line, at = np.int64(-1), -1, 0  # the end of a document ends a word
            if k == stop:
                k += 1
            elif data[k] < 0x80:
                first = np.int64(lowered[data[k]])
                k += 1
            else:
                point, width = _decoded(data, k, stop)
                k += width
                if point == SIGMA:
                    state[0] = 1
                first = np.int64(lowered[point]) if point < lowered.size else np.int64(-1)
                if first < -1:
                    line = -2 - first
                    first = np.int64(longer[line, 0])
            while first != -2:
                if first >= 0:
                    end = _put(first, out, end)
                    n_characters += 1
                else:
                    if n_characters >= _LEAST_CHARACTERS:
                        starts[word], ends[word] = start, end
                        word += 1
                        out[end] = 0x20
                        end += 1
                    else:
                        end = start
                    start, n_characters = end, 0
                at += 1
                first = np.int64(longer[line, at]) if line >= 0 and at < longer.shape[1] else np.int64(-2)
        indptr[document + 1] = word
    return word


@inlined
def _hash_ngrams(column, words, document, ngrams, hashes, end):
    """Write the hashes of a document's n-grams, in their order, to `hashes` from `end` on; returns their end."""
    data, starts, ends, indptr = words
    for first in range(indptr[document], indptr[document + 1]):
        for last in range(first + ngrams[0] - 1, min(first + ngrams[1], indptr[document + 1])):
            hashes[end] = np.int64(string_hash(column, data, starts[first], ends[last] - starts[first]))
            end += 1
    return end


@inlined
def _fetch_ahead(hashes, k, end, table, places):
    """Prefetch what the n-grams after the `k`-th will need of the table, which is larger than caches."""
    if k + _SLOTS_AHEAD < end:
        fetch_slot(np.uint64(hashes[k + _SLOTS_AHEAD]), table)
    if k + _STRINGS_AHEAD < end:
        fetch_string(np.uint64(hashes[k + _STRINGS_AHEAD]), table)
    if k + _BYTES_AHEAD < end:
        fetch_bytes(np.uint64(hashes[k + _BYTES_AHEAD]), table, places)


@kernel
def count_ngrams(column, first_document, words, ngrams, bits, add, table, places, documents, no_prefix, rows):
    """Count the n-grams of every document: an entry for each that occurs, in order of appearance.

    Parameters
    ----------
    column : int
    first_document : int
        To begin with; those before it are done.
    words : Words
    ngrams : (int, int)
        Least and largest lengths of n-grams.
    bits : int
        2^bits buckets take the n-grams by their hash, each counted with the hash's sign; 0 for the hash table.
    add : bool
        Let the hash table take new n-grams; see `tables.number_strings`.
    table : HashTable
    places : (numbers or buckets,) int32
        Scratch.
    documents : (numbers or buckets,) int64
        Documents in which each occurs, counted on; empty if not to be counted.
    no_prefix : (0,) uint8
    rows : CSR
        Numbers or buckets, and counts; filled in place. There is room for all n-grams: `feature` holds the hashes of a
        document's n-grams until they are counted, no later than their entries are written.

    Returns
    -------
    int
        The first document that there is no room for in the hash table; the number of documents where all are done.
    """
    data, starts, ends, indptr = words
    index, value, mask = rows.feature, rows.value, (1 << bits) - 1
    for document in range(first_document, indptr.size - 1):
        begin = entry = hashed = rows.indptr[document]
        if not bits:
            hash_end = _hash_ngrams(column, words, document, ngrams, index, begin)
        for first in range(indptr[document], indptr[document + 1]):
            for last in range(first + ngrams[0] - 1, min(first + ngrams[1], indptr[document + 1])):
                start, length = starts[first], ends[last] - starts[first]
                count = 1.0
                if bits:
                    number = murmur(no_prefix, data, start, length)
                    count = 1.0 if number >= 0 else -1.0
                    number = abs(number) & mask
                else:
                    _fetch_ahead(index, hashed, hash_end, table, places)
                    wanted = np.uint64(index[hashed])
                    hashed += 1
                    number = number_of(wanted, column, data, start, length, add, table)
                    if number == FULL:
                        return document
                    if number == UNKNOWN:
                        continue
                place = np.int64(places[number])
                if begin <= place < entry and index[place] == number:
                    value[place] += count
                else:
                    places[number], index[entry], value[entry] = entry, number, count
                    entry += 1
        kept = begin
        for k in range(begin, entry):
            if documents.size:
                documents[index[k]] += 1
            if value[k] != 0.0:  # signs may cancel each other
                index[kept], value[kept] = index[k], value[k]
                kept += 1
        rows.indptr[document + 1] = kept
    return indptr.size - 1


@kernel
def insert_rows(rows, border, more, out):
    """Join two tables' rows: of the first one's entries those below `border`, the second one's, and the others."""
    indptr, index, value = rows
    out_indptr, out_index, out_value = out
    entry = 0
    for row in range(indptr.size - 1):
        k = indptr[row]
        while k < indptr[row + 1] and index[k] < border:
            out_index[entry], out_value[entry] = index[k], value[k]
            entry, k = entry + 1, k + 1
        for m in range(more.indptr[row], more.indptr[row + 1]):
            out_index[entry], out_value[entry] = more.feature[m], more.value[m]
            entry += 1
        while k < indptr[row + 1]:
            out_index[entry], out_value[entry] = index[k], value[k]
            entry, k = entry + 1, k + 1
        out_indptr[row + 1] = entry


@inlined
def _sift(index, value, start, root, end):
    """Let an entry sink in the heap ``start:end``."""
    moved, number = index[start + root], value[start + root]
    child = 2 * root + 1
    while start + child < end:
        if start + child + 1 < end and index[start + child + 1] > index[start + child]:
            child += 1
        if index[start + child] <= moved:
            break
        index[start + root], value[start + root] = index[start + child], value[start + child]
        root = child
        child = 2 * root + 1
    index[start + root], value[start + root] = moved, number


@inlined
def _sort_entries(index, value, start, end):
    """Sort entries by index: few by insertion, more as a heap, after which no scratch is needed."""
    if end - start <= 24:
        for k in range(start + 1, end):
            moved, number, at = index[k], value[k], k
            while at > start and index[at - 1] > moved:
                index[at], value[at] = index[at - 1], value[at - 1]
                at -= 1
            index[at], value[at] = moved, number
        return
    for root in range((end - start) // 2 - 1, -1, -1):
        _sift(index, value, start, root, end)
    for last in range(end - 1, start, -1):
        index[start], index[last] = index[last], index[start]
        value[start], value[last] = value[last], value[start]
        _sift(index, value, start, 0, last)


@kernel
def sort_tokens(indptr, index, value, text_start, text_stop):
    """Drop the entries of no feature, and sort those of text, from the first to the last one in every row, by feature.

    Parameters
    ----------
    indptr, index, value : (rows + 1,) int64, (entries,) integer, (entries,) float
        Changed in place: rows close up.
    text_start, text_stop : int
        Features of text, or of all where they are not together; no feature is -1.

    Returns
    -------
    int
        The number of entries left.
    """
    kept, start = 0, indptr[0]
    for row in range(indptr.size - 1):
        stop = indptr[row + 1]
        first = last = np.int64(-1)
        for k in range(start, stop):
            if index[k] < 0:
                continue
            index[kept], value[kept] = index[k], value[k]
            if text_start <= index[k] < text_stop:
                first = kept if first < 0 else first
                last = kept
            kept += 1
        if last > first:
            _sort_entries(index, value, first, last + 1)
        start = stop
        indptr[row + 1] = kept
    return kept


@kernel
def find_tokens(index, starts, places, ranges, place):
    """Find the entries of text among those of rows.

    Parameters
    ----------
    index : (entries,) integer
        Features.
    starts : (ranges,) int64
        The first feature of each range of text, ascending.
    places : (ranges + 1,) int64
        The place of the first feature of each range among those of all, and their number.
    ranges : (entries,) int32
        The range of each entry, -1 where it is not of text. Filled in place.
    place : (entries,) int64
        Places of the entries of text, in their order. Filled in place.

    Returns
    -------
    int
        The number of entries of text.
    """
    n = 0
    for k in range(index.size):
        number = last_start(starts, -1, index[k])
        ranges[k] = -1
        if number >= 0 and index[k] - starts[number] < places[number + 1] - places[number]:
            ranges[k], place[n] = number, index[k] - starts[number] + places[number]
            n += 1
    return n


@kernel
def weigh_tokens(indptr, ranges, value, owners, weighted, weights, norms):
    """Multiply counts of tokens by weights, and divide each weighted column's part of a row by its Euclidean norm.

    Parameters
    ----------
    indptr, ranges, value
        Rows, the ranges of their entries as `find_tokens` finds them, and the values, which are changed in place.
    owners : (ranges,) int64
        The column of text of each range.
    weighted : (text columns,) bool
        Others keep their counts.
    weights : (entries of text,) float64
        In their order.
    norms : (text columns,) float64
        Scratch.
    """
    done = 0
    for row in range(indptr.size - 1):
        norms[:] = 0.0
        first = done
        for k in range(indptr[row], indptr[row + 1]):
            if ranges[k] >= 0:
                norms[owners[ranges[k]]] += (np.float64(value[k]) * weights[done]) ** 2
                done += 1
        for column in range(norms.size):
            norms[column] = np.sqrt(norms[column])
        done = first
        for k in range(indptr[row], indptr[row + 1]):
            if ranges[k] >= 0:
                column = owners[ranges[k]]
                if weighted[column] and norms[column] > 0.0:
                    value[k] = np.float64(value[k]) * weights[done] / norms[column]
                done += 1
