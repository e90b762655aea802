"""Workers of a training: processes of this machine, those of a dask scheduler, or those of the caller's client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import UsageError, refuse
from ..core.options import Listener


@dataclass(frozen=True)
class Workers:
    """Workers asked for; none if this process trains alone."""

    client: Any = None  # of the caller
    scheduler: str | None = None  # address
    local: int = 0  # processes of this machine, which share the memory: the client's, or to be started

    @classmethod
    def asked(cls, client: Any, workers: int | None, scheduler: str | None, *, fewest: int) -> Workers:
        """Make workers from options; fewer than `fewest` are none."""
        both = scheduler is not None and (workers is not None or client is not None)
        refuse(
            UsageError,
            (workers is not None and workers < 1, f"workers: expected at least 1, found {workers}"),
            (both, "--workers are of this machine, --scheduler uses those of a cluster: give one of them"),
        )
        return cls(client, scheduler, 0 if workers is None or workers < fewest else workers)

    def __bool__(self) -> bool:
        return self.client is not None or self.scheduler is not None or self.local > 0

    @contextmanager
    def reached(self, listener: Listener) -> Iterator[Workers]:
        """Provide workers whose scheduler is connected already: where none answers, no run is made or replaced."""
        if self.scheduler is None:
            yield self
            return
        with self.connected(listener) as client:
            yield replace(self, client=client, scheduler=None)

    @contextmanager
    def connected(self, listener: Listener, run: Path | None = None) -> Iterator[Any]:
        """Provide a client of the workers, which are started if necessary, with files in the run; None if there are none."""
        if self.client is not None or not self:
            yield self.client
            return
        from ..cluster.dask_engine import open_client  # only where there are workers

        folder = None if run is None else run / "workers"
        with open_client(self.scheduler, self.local, listener, folder) as client:
            yield client
