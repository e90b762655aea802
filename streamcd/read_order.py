"""The order of a read: all chunks in a fresh random order, cut into windows.

A pure function of (seed, read). A window holds many small chunks, and the items of all of them are mixed inside it. Measured
on real text, this converges as a full random permutation of the rows does (blocks of neighbouring rows do not), and costs no
random access to the disk.
"""

from __future__ import annotations

import numpy as np

from .chunked_table import MAX_OPEN_PARTS
from .kernels import shuffle
from .plan import Plan, Table, unit_start
from .randomness import random_key

_ORDER_OF_CHUNKS = 2**32 - 1  # stands for the window where a key belongs to the order of a whole read


def chunk_order(table: Table, units: np.ndarray, seed: int, read: int) -> np.ndarray:
    """A random order of units (chunks, or chunks that belong together) as a function of (seed, read).

    Where parts outnumber the footers kept open, random groups of parts come one after another, and the units of a group
    are mixed; the groups are new in every read.
    """
    key = random_key(seed, read, _ORDER_OF_CHUNKS)
    if table.n_shards <= MAX_OPEN_PARTS:
        order = units.copy()
        shuffle(order, key)
        return order
    parts = np.arange(table.n_shards)
    shuffle(parts, key)
    rank = np.empty_like(parts)
    rank[parts] = np.arange(parts.size)
    group = rank[table.chunk_part[unit_start(table)[units]]] // MAX_OPEN_PARTS
    pieces = []
    for number in range(int(group.max(initial=-1)) + 1):
        piece = units[group == number]
        shuffle(piece, random_key(seed, read, _ORDER_OF_CHUNKS, number))
        pieces.append(piece)
    return np.concatenate(pieces)


def cut_windows(table: Table, order: np.ndarray, plan: Plan) -> list[np.ndarray]:
    """Cut an order of units into windows that the plan's arenas can hold; gives their chunks."""
    starts = unit_start(table)
    first, behind = starts[order], starts[order + 1]
    entry_sum = np.cumsum(table.entry_start[behind] - table.entry_start[first])
    item_sum = np.cumsum(table.item_start[behind] - table.item_start[first])
    windows = []
    start = 0
    while start < order.size:
        entry_limit = (entry_sum[start - 1] if start else 0) + plan.window_entries
        item_limit = (item_sum[start - 1] if start else 0) + plan.window_rows
        stop = min(
            int(np.searchsorted(entry_sum, entry_limit, "right")),
            int(np.searchsorted(item_sum, item_limit, "right")),
        )
        stop = max(stop, start + 1)
        if table.unit_start is None:
            windows.append(order[start:stop])
        else:
            pieces = zip(first[start:stop].tolist(), behind[start:stop].tolist(), strict=True)
            windows.append(np.concatenate([np.arange(*piece) for piece in pieces]))
        start = stop
    return windows or [order]  # a window without chunks, where the bias is all there is to train
