"""Rows that a solver keeps of a read: of every lane those whose margins are nearest to where their loss bends.

They are the first ones by (distance, number of the row) that fit, so whatever windows, threads and workers offer them, the
same are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..kernels.primitives import Rows, unsigned
from ..kernels.rows import gather_entries

ROW_UNITS = 6
"""Room that a row takes beside its entries, in units of the 8 bytes of one."""


class KeptRows:
    """Room for rows of every lane, as arrays (lanes, …) of a state, whose names begin with ``kept_``.

    What has no room for rows is false. Rows are of classes: none has a target.
    """

    def __init__(
        self,
        n_lanes: int,
        units: int,
        data: tuple[int, int],
        dtypes: tuple[np.dtype[Any], np.dtype[Any]],
    ) -> None:
        """Take the room of a lane, `ROW_UNITS` for a row and one for an entry; `data` has so many rows and entries."""
        self._units = units
        self._shape, self._n_entries = (n_lanes, min(units // ROW_UNITS, data[0])), min(units, data[1])
        self._dtypes = dtypes

    def __bool__(self) -> bool:
        return self._shape[1] > 0

    def new(self) -> dict[str, np.ndarray]:
        """Return the arrays, without rows."""
        if not self:
            return {}
        entries = self._shape[0], self._n_entries
        arrays = {
            "count": np.zeros(self._shape[0], dtype=np.int64),
            "cut": np.zeros(self._shape[0], dtype=bool),  # rows were left out
            "number": np.zeros(self._shape, dtype=np.int64),
            "distance": np.zeros(self._shape, dtype=np.float32),
            "length": np.zeros(self._shape, dtype=np.int64),
            "code": np.zeros(self._shape, dtype=np.int32),
            "weight": np.zeros(self._shape),
            "fold": np.zeros(self._shape, dtype=np.uint8),
            "feature": np.zeros(entries, dtype=self._dtypes[0]),
            "value": np.zeros(entries, dtype=self._dtypes[1]),
        }
        return {f"kept_{name}": array for name, array in arrays.items()}

    def load_kernels(self) -> None:
        """Load the kernel that gathers entries, with none."""
        none, feature, value = np.zeros(0, np.int64), *(np.zeros(0, dtype) for dtype in self._dtypes)
        gather_entries(none, none, feature, value, feature, value)

    def clear(self, arrays: Mapping[str, np.ndarray], lanes: np.ndarray | slice = slice(None)) -> None:
        """Forget the rows of some lanes."""
        if self:
            arrays["kept_count"][lanes] = 0
            arrays["kept_cut"][lanes] = False

    @property
    def n_offered(self) -> int:
        """Rows to offer at a time, about: a quarter of the most that are kept, which are sorted with them."""
        return -(-self._shape[1] // 4)

    def count(self, arrays: Mapping[str, np.ndarray], lane: int) -> int:
        """Count the rows of a lane."""
        return int(arrays["kept_count"][lane]) if self else 0

    def within(self, arrays: Mapping[str, np.ndarray], lane: int) -> float:
        """Return the distance up to which rows of a lane are kept."""
        if not arrays["kept_cut"][lane]:
            return np.inf
        return float(arrays["kept_distance"][lane, : arrays["kept_count"][lane]].max(initial=-1.0))

    @property
    def sizes(self) -> tuple[int, int]:
        """The rows and entries of an arena for the rows of a lane."""
        return self._shape[1], self._n_entries if self else 0

    def load(self, arrays: Mapping[str, np.ndarray], lane: int, arena: Any) -> tuple[Rows, np.ndarray]:
        """Load the rows of a lane into an arena; returns them, and their order in the dataset."""
        n = int(arrays["kept_count"][lane])
        arena.indptr[0] = 0
        np.cumsum(arrays["kept_length"][lane, :n], out=arena.indptr[1 : n + 1])
        for name in ("code", "weight", "fold"):
            getattr(arena, name)[:n] = arrays[f"kept_{name}"][lane, :n]
        for name in ("feature", "value"):
            getattr(arena, name)[: arena.indptr[n]] = arrays[f"kept_{name}"][lane, : arena.indptr[n]]
        each = arena.indptr, unsigned(arena.feature), arena.value, arena.code, arena.weight, arena.fold
        return Rows(*each, arena.target), np.argsort(arrays["kept_number"][lane, :n], kind="stable")

    def of(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return copies of the rows among a state's arrays."""
        return {name: array.copy() for name, array in arrays.items() if name.startswith("kept_")}

    def offer(
        self,
        arrays: Mapping[str, np.ndarray],
        lane: int,
        rows: Rows,
        numbers: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> None:
        """Keep those of some more rows that are among the nearest ones of a lane.

        `numbers` are the rows' offsets in `rows`, ascending, their numbers in the dataset and their distances.
        """
        offsets, number, distance = self._nearest(arrays, lane, numbers)
        if not offsets.size:
            return
        own = {name: array[lane] for name, array in arrays.items() if name.startswith("kept_")}
        n, known = int(arrays["kept_count"][lane]), {"number": number, "distance": distance}
        known["length"] = rows.indptr[offsets + 1] - rows.indptr[offsets]

        def joint(name: str) -> np.ndarray:
            more = known[name] if name in known else getattr(rows, name)[offsets]
            return np.concatenate([own[f"kept_{name}"][:n], more])

        order = np.lexsort((joint("number"), joint("distance")))
        n_fitting = int(np.searchsorted(np.cumsum(joint("length")[order] + ROW_UNITS), self._units, "right"))
        arrays["kept_cut"][lane] |= n_fitting < order.size
        chosen = np.sort(order[:n_fitting])
        self._gather(own, rows, chosen[chosen < n], offsets[chosen[chosen >= n] - n])
        # one at a time: together they take as much as the rows that are kept
        for name in (*known, "code", "weight", "fold"):
            own[f"kept_{name}"][:n_fitting] = joint(name)[chosen]
        arrays["kept_count"][lane] = n_fitting

    def join(self, arrays: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> None:
        """Offer what others have kept."""
        for lane in range(self._shape[0]):
            n = int(others["kept_count"][lane])
            own = {name.removeprefix("kept_"): array[lane] for name, array in others.items()}
            indptr = np.concatenate([[0], np.cumsum(own["length"][:n])])
            of_rows = own["code"], own["weight"], own["fold"]
            rows = Rows(indptr, own["feature"], own["value"], *of_rows, np.zeros(0))
            numbers = np.arange(n), own["number"][:n], own["distance"][:n]
            arrays["kept_cut"][lane] |= others["kept_cut"][lane]
            self.offer(arrays, lane, rows, numbers)

    def _nearest(
        self, arrays: Mapping[str, np.ndarray], lane: int, numbers: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rows that may be among the nearest: no more than there is room for."""
        offsets, number, distance = numbers
        near = distance <= np.float32(self.within(arrays, lane))
        near &= distance < np.inf
        most = self._shape[1]
        if np.count_nonzero(near) > most:
            arrays["kept_cut"][lane] = True
            limit = np.partition(distance, most - 1)[most - 1]
            ties = np.flatnonzero(distance == limit)
            near = distance < limit
            near[ties[: most - np.count_nonzero(near)]] = True
        return offsets[near], number[near], distance[near]

    def _gather(self, own: Mapping[str, np.ndarray], rows: Rows, kept: np.ndarray, added: np.ndarray) -> None:
        """Put the entries of rows that stay, and of rows that come, one after another."""
        n = own["kept_length"]
        indptr = np.concatenate([[0], np.cumsum(n)])
        size = int(n[kept].sum())
        total = size + int((rows.indptr[added + 1] - rows.indptr[added]).sum())
        feature, value = np.empty(total, self._dtypes[0]), np.empty(total, self._dtypes[1])
        mine = indptr, own["kept_feature"], own["kept_value"]
        gather_entries(kept, *mine, feature[:size], value[:size])
        if added.size:
            first, last = int(added[0]), int(added[-1])
            starts = np.ascontiguousarray(rows.indptr[first : last + 2])
            theirs = starts, rows.feature.view(self._dtypes[0]), rows.value
            gather_entries(added - first, *theirs, feature[size:], value[size:])
        own["kept_feature"][:total], own["kept_value"][:total] = feature, value
