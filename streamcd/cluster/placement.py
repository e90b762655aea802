"""Parts of the rows on the workers that are there: that of a lost worker goes to another, whole, which keeps the bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

MOST_PARTS = 2  # of a worker, for which it has room: each keeps a change of w until all are added


class Placement:
    """The worker of every part, from round to round.

    There are as many parts as workers. They stay as many where workers are lost, as long as nobody takes more than two:
    another takes the part of a lost worker until a new one comes. Shards are dealt to parts, not to workers, so a round has
    the same bits whoever carries it out.
    """

    def __init__(self) -> None:
        self._workers: list[str] = []

    def place(self, workers: Collection[str], most_parts: int) -> list[str]:
        """Return the worker of every part, of which there are `most_parts` at most."""
        live = sorted(workers)
        wanted, before = min(len(live), most_parts), len(self._workers)
        n_parts = before if wanted <= before <= MOST_PARTS * len(live) else wanted
        placed, load = [""] * n_parts, Counter[str]()
        for part, worker in enumerate(self._workers[:n_parts]):
            if worker in workers and not (load[worker] and len(load) < len(live)):
                placed[part] = worker
                load[worker] += 1
        for part, worker in enumerate(placed):
            if not worker:
                placed[part] = min(live, key=load.__getitem__)
                load[placed[part]] += 1
        self._workers = placed
        return placed
