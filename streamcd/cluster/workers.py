"""The workers of a training, and a client of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.options import Listener


@dataclass(frozen=True)
class Workers:
    """Workers that train in place of this process."""

    client: Any  # of the caller
    scheduler: str | None  # address
    local: int  # processes of this machine, which share the memory: the client's, or to be started; else 0

    @contextmanager
    def connected(self, listener: Listener, run: Path | None = None) -> Iterator[Any]:
        """Provide a client of the workers, which are started if necessary, with files in the run."""
        if self.client is not None:
            yield self.client
            return
        from .dask_engine import open_client

        folder = None if run is None else run / "workers"
        with open_client(self.scheduler, self.local, listener, folder) as client:
            yield client
