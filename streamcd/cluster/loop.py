"""Loop of a distributed training: rounds, stopping, logging, commits, for any engine.

The coordinating process holds w, decides every lane's next phase by the rules of a single process (`stopping`), and
commits: ``state.npz`` is replaced whole after every round. A round that loses a worker leaves no trace and is repeated from
the last commit. What workers do in a round, and what follows from it, is that of a kind: `dual_rounds`, `sum_rounds`.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..core.atomic_files import make_directory
from ..core.errors import EnvironmentFailure
from ..solvers.protocol import TRAIN
from ..training.checkpoint import Run
from ..training.loop import Session, Task, TrainingLoop
from .rounds import Engine, RoundRequest, WorkersLost, WorkerSpec

_MAX_ATTEMPTS = 10  # at one round: so many losses are no accident


class RoundLoop(TrainingLoop):
    """Training on workers of a client, round after round; every round is a checkpoint.

    `method` and `kappa` are the method and acceleration of `registry.make_solver`. `memory` is each worker's, in bytes. A
    worker that does not respond for `worker_timeout` seconds loses its shards to others.
    """

    n_passes = 1
    """Reads of a worker in a round that trains."""

    def __init__(
        self,
        directory: Run,
        task: Task,
        session: Session,
        method: str,
        kappa: float | str,
        memory: int,
        worker_timeout: float,
    ) -> None:
        super().__init__(directory, task, session)
        self.client, self.worker_timeout, dataset = session.client, worker_timeout, task.dataset
        self.spec = WorkerSpec(
            dataset=str(dataset.path.resolve()),
            fingerprint=dataset.fingerprint,
            folder=str(directory.path.resolve() / "dual"),
            problem=task.problem,
            method=method,
            seed=task.seed,
            memory=memory,
            identity=directory.identity,
            acceleration=kappa,
            cache=dataset.cache,
        )
        self.engine: Engine | None = None
        self.bytes_read = 0
        self.round, self.attempts = 0, 0
        self.assigned_round = 0  # number of the last assignment of shards
        self.committed, self.eta = "", np.ones(task.problem.n_lanes)
        make_directory(self._folder)

    def _train(self) -> None:
        self.engine = self._make_engine()
        while self._has_open_lanes():
            self._stop_if_requested()
            self._round(self.engine)

    def _make_engine(self) -> Engine:
        if make := getattr(self.client, "make_engine", None):  # of a client that is not dask's
            engine: Engine = make(self.spec)
            return engine
        from .dask_engine import DaskEngine

        return DaskEngine(
            self.client, self.spec, self.task.dataset, self.listener, self.worker_timeout, self.task.run
        )

    def _close(self) -> None:
        if self.engine is not None:
            self.engine.close()

    def _round(self, engine: Engine) -> None:
        """Carry out one round, up to its commit; start it again where workers are lost on the way."""
        started, self.attempts = time.monotonic(), 0
        self._prepare()
        while True:
            self.attempts += 1
            request = self._request()
            try:
                result = engine.round(request, self._weights(), self._progress(request))
                worked = time.monotonic()
                step = self._step(engine, request, result)
                break
            except WorkersLost as loss:
                if self.attempts >= _MAX_ATTEMPTS:
                    raise EnvironmentFailure(
                        f"round {self.round + 1} was lost {self.attempts} times in a row, the last time because {loss}; "
                        f"look at the workers' logs (memory?), then 'streamcd resume {self.task.run}'"
                    ) from None
                self.listener.warning(f"round {self.round + 1} is repeated from the last commit: {loss}")
        stepped = time.monotonic()
        record = self._conclude_round(request, result, step)
        self.bytes_read += result.bytes_read
        record["seconds"] = {
            "total": round(time.monotonic() - started, 6),
            "workers": {name: round(seconds, 6) for name, seconds in result.seconds.items()},
            "line_search": round(stepped - worked, 6),
        }
        self.directory.append_log(record)
        self._commit()  # the state records the length of the log

    @abstractmethod
    def _prepare(self) -> None:
        """Move the state to where the round begins."""

    def _weights(self) -> np.ndarray:
        """Return what every worker is sent in a round."""
        return self.state.w

    def _request(self) -> RoundRequest:
        """Ask for a round, under a new name."""
        training = self.state.phase(TRAIN).size > 0
        return RoundRequest(
            token=f"{self.round + 1:06d}-{os.urandom(4).hex()}",
            committed=self.committed,
            eta=self.eta,
            read=self.state.read,
            n_passes=self.n_passes if training else 1,
            lanes={name: array.copy() for name, array in self.state.lanes.items()},
            # a read at fixed w leaves the shards where they are
            assigned=self.assigned_round + training,
        )

    def _step(self, engine: Engine, request: RoundRequest, result: Any) -> Any:
        """Choose how far the round goes, which may take the workers again."""

    @abstractmethod
    def _conclude_round(self, request: RoundRequest, result: Any, step: Any) -> dict[str, Any]:
        """Move w and decide what each lane does next; returns the line for the log."""

    def _record(self, request: RoundRequest, result: Any) -> dict[str, Any]:
        """Return what the log has of every round."""
        return {
            "round": self.round,
            "read": self.state.read,
            "kind": "train" if request.phase(TRAIN).size else "certify",
            **self._lane_figures(),
            "workers": len(result.seconds),
            "attempts": self.attempts,
            "bytes_read": result.bytes_read,
            "bytes_sent": result.bytes_sent,
        }

    # -- the run on disk ----------------------------------------------------------------------------------------------

    @property
    def _folder(self) -> Path:
        return self.directory.path / "dual"

    def _commit(self) -> None:
        self._write_state()

    def _add_to_checkpoint(self, arrays: dict[str, np.ndarray]) -> None:
        arrays["committed"], arrays["eta"] = np.array(self.committed), self.eta
        arrays["round"], arrays["dealt"] = np.array(self.round), np.array(self.assigned_round)

    def _take_from_checkpoint(self, arrays: dict[str, np.ndarray]) -> None:
        self.committed, self.eta = str(arrays.pop("committed")), arrays.pop("eta")
        self.round = int(arrays.pop("round"))
        self.assigned_round = int(arrays.pop("dealt"))

    # -- reports ------------------------------------------------------------------------------------------------------

    def _bytes_read(self) -> int:
        return self.bytes_before + self.bytes_read

    def _before_stop(self) -> str:
        return f"with workers goes on from round {self.round}"

    def _progress(self, request: RoundRequest) -> Callable[[int], None]:
        total = self.task.dataset.n_entries * request.n_passes
        training = request.phase(TRAIN).size > 0
        phase = f"{'round' if training else 'certify in round'} {self.round + 1}"
        done = 0

        def visited(n_entries: int) -> None:
            nonlocal done
            self._stop_if_requested()
            done = min(done + n_entries, total)
            self._report(phase, done, total, request.n_passes if training else 0, self._shown_step())

        return visited

    def _shown_step(self) -> str:
        """Describe the step of the last round, for progress."""
        return ""
