"""Sums over rows that are the same bits whoever makes them: of blocks of whole shards, the leaves of a binary tree.

A block's rows are added up in the order of the dataset, and the sums of two blocks, or of the joins of some, are joined only
where they are siblings. So memory, windows, threads and workers change nothing. While the blocks come in order one sum of
each level waits for its sibling; a part of the blocks, as a worker has them, leaves two at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..dataset.dataset import Dataset
from .protocol import State

_MOST_BLOCKS, _FEW_BLOCKS = 64, 8
"""Largest number of blocks, and that with large sums: as many workers can share the reads."""

_LARGE_SUMS, _VERY_LARGE_SUMS = 1 << 18, 1 << 23
"""Elements of a lane's matrix, of which sums keep half, from which on they are large, 1 MB for each level of the tree; and
from which on one block has all shards: none waits for another, as three of 34 MB or more would, and no reads are shared."""


class Node(NamedTuple):
    """A node of the tree: the join of up to ``2 ** level`` blocks."""

    level: int
    number: int  # in its level


class Tree(NamedTuple):
    """A binary tree over blocks, of which the last ones may lack siblings."""

    n_blocks: int

    @property
    def depth(self) -> int:
        """The number of levels below the root."""
        return max(self.n_blocks - 1, 0).bit_length()

    @property
    def root(self) -> Node:
        """The node of all blocks."""
        return Node(self.depth, 0)

    def climb(self, node: Node, join: Callable[[Node], bool]) -> Node:
        """Return where sums at a node go: up, joined with those of siblings, as long as `join` finds and adds these.

        A node without a sibling, at the end of the blocks, goes up alone.
        """
        level, number = node
        while level < self.depth:
            sibling = Node(level, number ^ 1)
            if sibling.number << level < self.n_blocks and not join(sibling):
                break
            level, number = level + 1, number >> 1
        return Node(level, number)


class Blocks:
    """Blocks of consecutive shards: a function of the dataset and of the elements of a lane's matrix."""

    def __init__(self, dataset: Dataset, matrix_size: int) -> None:
        shards = np.unique(dataset.chunk_part)  # those that have rows
        self.tree = Tree(min(shards.size, _most_blocks(matrix_size)))
        rank = np.searchsorted(shards, np.arange(dataset.n_shards), "right") - 1
        self.of_shard = np.maximum(rank, 0) * self.tree.n_blocks // max(shards.size, 1)
        self._of_chunk = self.of_shard[dataset.chunk_part]

    def pieces(self, chunks: np.ndarray) -> Iterator[tuple[int, slice, bool]]:
        """Cut ascending chunks where blocks end; yields each piece's block, its chunks, and whether the block ends there."""
        mine, start = self._of_chunk[chunks], 0
        while start < chunks.size:
            stop = int(np.searchsorted(mine, mine[start], "right"))
            following = int(chunks[stop - 1]) + 1
            ends = following == self._of_chunk.size or self._of_chunk[following] != mine[start]
            yield int(mine[start]), slice(start, stop), bool(ends)
            start = stop


def workers_share(matrix_size: int) -> bool:
    """Tell whether workers can share the reads: there may be several blocks."""
    return _most_blocks(matrix_size) > 1


def _most_blocks(matrix_size: int) -> int:
    if matrix_size >= _VERY_LARGE_SUMS:
        return 1
    return _MOST_BLOCKS if matrix_size < _LARGE_SUMS else _FEW_BLOCKS


class BlockSums:
    """Sums of a state, named arrays (lanes, …): of all rows, of the parts of an unfinished block, of nodes that wait.

    `kind` is a named tuple of these arrays, `parts` the number of sums that are made at a time, 0 where rows are added to
    those of the block. A worker, which does not read `whole` data, has sums that wait on both sides of its blocks.
    """

    def __init__(self, kind: Any, shapes: Mapping[str, tuple[int, ...]], blocks: Blocks, parts: int) -> None:
        self._kind, self._shapes, self.blocks, self.n_parts = kind, shapes, blocks, parts
        self.whole = True

    def new(self, *stack: int, prefix: str = "") -> dict[str, np.ndarray]:
        """Return sums over no rows, or a stack of them."""
        return {prefix + name: np.zeros((*stack, *shape)) for name, shape in self._shapes.items()}

    def new_partial(self) -> dict[str, np.ndarray]:
        """Return `State.partial`: sums of parts, and those that wait, with 1 + the number of the node that they are of."""
        n_waiting = self.blocks.tree.depth * (1 if self.whole else 2)
        waiting = {"waiting": np.zeros(n_waiting, dtype=np.int64)}
        return self.new(self.n_parts, prefix="part_") | self.new(n_waiting, prefix="waiting_") | waiting

    def of(self, state: State) -> Any:
        """Return the sums of a state, of all rows at the end of a read."""
        return self._kind(*(state.matrices[name] for name in self._shapes))

    def part(self, state: State, number: int) -> Any:
        """Return the sums of a part."""
        return self._stacked(state, "part", number)

    def clear(self, state: State, lanes: np.ndarray) -> None:
        """Clear the sums of some lanes."""
        for sums in self.of(state):
            sums[lanes] = 0.0

    def begin_part(self, state: State) -> None:
        """Clear all sums, those that wait too."""
        for array in (*self.of(state), *state.partial.values()):
            array[:] = 0

    def join_parts(self, state: State, lanes: np.ndarray) -> None:
        """Move the parts' sums to those of the block."""
        for part in range(self.n_parts):
            _move_sums(self.part(state, part), self.of(state), lanes)

    def end_block(self, state: State, lanes: np.ndarray, block: int) -> bool:
        """Join the sums of a block that has ended with those that wait for them; tells whether they are of all rows."""
        waiting = state.partial["waiting"]

        def join(node: Node) -> bool:
            place = self._place(node)
            if place >= waiting.size or waiting[place] != node.number + 1:
                return False
            _move_sums(self._stacked(state, "waiting", place), self.of(state), lanes)
            waiting[place] = 0
            return True

        self.join_parts(state, lanes)
        node = self.blocks.tree.climb(Node(0, block), join)
        if node == self.blocks.tree.root:
            return True
        place = self._place(node)
        _move_sums(self.of(state), self._stacked(state, "waiting", place), lanes)
        waiting[place] = node.number + 1
        return False

    def nodes(self, state: State) -> dict[Node, dict[str, np.ndarray]]:
        """Return copies of the sums of the nodes that were read, without siblings among each other."""
        waiting, depth = state.partial["waiting"], self.blocks.tree.depth
        found = {
            Node(place % depth, int(waiting[place]) - 1): self._stacked(state, "waiting", place)
            for place in np.flatnonzero(waiting).tolist()
        }
        found = found or {self.blocks.tree.root: self.of(state)}
        names = list(self._shapes)
        return {
            node: {name: array.copy() for name, array in zip(names, sums, strict=True)}
            for node, sums in found.items()
        }

    def _place(self, node: Node) -> int:
        """Return where the sums of a node wait; those of odd ones wait only where their sibling is not read."""
        return node.level + self.blocks.tree.depth * (node.number % 2)

    def _stacked(self, state: State, name: str, number: int) -> Any:
        return self._kind(*(state.partial[f"{name}_{field}"][number] for field in self._shapes))


def _move_sums(source: Sequence[np.ndarray], target: Sequence[np.ndarray], lanes: np.ndarray) -> None:
    """Add sums of some lanes to others, and clear them."""
    for added, total in zip(source, target, strict=True):
        for lane in lanes.tolist():
            total[lane] += added[lane]
            added[lane] = 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Rows of parts


Cut = tuple[np.ndarray, np.ndarray]
"""Rows, and the starts of pieces of them, as `kernels.newton.newton_visit` takes them."""


def cut(rows: np.ndarray, n_parts: int) -> list[Cut]:
    """Divide rows among the parts."""
    return [(part, np.array([0, part.size])) for part in np.array_split(rows, n_parts)]


def cut_chunks(start: np.ndarray, stop: np.ndarray, n_parts: int) -> list[Cut]:
    """Divide the rows of each chunk among the parts: what a part adds up does not depend on the window."""
    ends = start[:, None] + (stop - start)[:, None] * np.arange(n_parts + 1) // n_parts
    cuts = []
    for part in range(n_parts):
        ranges = [np.arange(first, last) for first, last in ends[:, part : part + 2]]
        starts = np.cumsum([0, *(rows.size for rows in ranges)])
        cuts.append((np.concatenate(ranges), starts))
    return cuts
