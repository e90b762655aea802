"""Dual variables of a run on workers, as those of a run of one process are read: where the last round's step ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..dataset.dataset import Dataset
from ..kernels.rounds import Step
from ..solvers.problem import Problem
from ..stream.arenas import RowLayout, class_codes
from ..stream.slot_store import SlotStore, chunk_slots
from ..training.checkpoint import StoredState
from .block_steps import apply_step
from .memory import paired_layout


@dataclass(frozen=True)
class StoredRounds(StoredState):
    """`StoredState` of lanes of `problem` that were trained in rounds; `layout` is that of one process."""

    problem: Problem
    layout: RowLayout

    def saved_slots(self, dataset: Dataset, row_bytes: int) -> SlotStore:
        """Open the slots of the chunks of a dataset."""
        arrays = self.saved(("committed", "eta"))
        assert arrays is not None
        folder = self.path / "dual" / str(arrays["committed"])
        paired_bytes = paired_layout(self.layout).state_bytes
        pairs = chunk_slots(folder, dataset, paired_bytes, self.identity, n_slots=1)
        pairs.restore(np.zeros_like(pairs.current))
        return _SteppedSlots(pairs, dataset, self.problem, arrays["eta"])


class _SteppedSlots(SlotStore):
    """Slots to read alone: a step `eta` from the base of every row towards its candidate."""

    def __init__(self, pairs: SlotStore, dataset: Dataset, problem: Problem, eta: np.ndarray) -> None:
        self._pairs, self._dataset, self._problem, self._eta = pairs, dataset, problem, eta

    def load(self, chunk: int, arrays: Sequence[np.ndarray]) -> bool:
        """Read a chunk's dual variables and flags into `arrays`, in place."""
        alpha, active = arrays
        n_rows, width = alpha.shape
        pair = np.empty((n_rows, 2 * width))
        self._pairs.load(chunk, [pair, active])
        label, weight = self._dataset.read_rows(chunk, ("label", "weight"))
        code = class_codes(self._dataset, chunk, label)
        cost = self._problem.row_costs(code, weight, np.zeros(n_rows, dtype=np.uint8))
        step = Step(pair[:, width:], pair[:, :width], self._eta)
        alpha[:] = apply_step(self._problem, step, active, cost, code, label)
        return True

    def close(self) -> None:
        """Close all files."""
        self._pairs.close()
