"""Engines, which carry out rounds: their interface, and the sum of their partitions' responses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..dataset.dataset import Dataset
from ..solvers.protocol import join_totals
from .block_steps import Change, add_direction
from .partition import RoundRequest, RoundResponse


class WorkersLost(Exception):
    """Loss of a worker during a round."""


@dataclass(kw_only=True)
class RoundResult(RoundResponse):
    """Sum of the partitions' responses; `seconds` is the longest time of one."""

    worker_seconds: dict[str, float]
    bytes_sent: int  # between processes: w to the workers, changes back


class Engine(Protocol):
    """Interface of an engine, which carries out the rounds of a training."""

    def round(self, request: RoundRequest, w: np.ndarray, progress: Callable[[int], None]) -> RoundResult:
        """Have every partition make its local passes; raises `WorkersLost` when a result is lost."""

    def slopes(self, request: RoundRequest, eta: np.ndarray) -> np.ndarray:
        """Sum `Partition.slopes` over the partitions of the last round."""

    def close(self) -> None:
        """Release the resources held for this run."""


def join_responses(
    names: list[str], responses: list[RoundResponse], change: Change, bytes_out: int
) -> RoundResult:
    """Add up the responses, except the changes, which a tree has already added."""
    totals, sums = responses[0].totals.copy(), responses[0].direction.copy()
    for response in responses[1:]:
        join_totals(totals, response.totals)
        sums = add_direction(sums, response.direction)
    w = responses[0].w if len(responses) == 1 else None
    last_leg = w.nbytes if w is not None else change.n_bytes
    return RoundResult(
        totals=totals,
        direction=sums,
        change=change,
        w=w,
        n_passes=responses[0].n_passes,
        seconds=max(response.seconds for response in responses),
        bytes_read=sum(response.bytes_read for response in responses),
        worker_seconds={name: response.seconds for name, response in zip(names, responses, strict=True)},
        bytes_sent=bytes_out + change.moved_bytes + last_leg,
    )


def shard_entries(dataset: Dataset) -> np.ndarray:
    entries = np.diff(dataset.entry_start)
    return np.bincount(dataset.chunk_part, weights=entries, minlength=dataset.n_shards).astype(np.int64)
