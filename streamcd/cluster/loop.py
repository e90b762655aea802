"""Loop of a distributed training: rounds, stopping, logging, commits, for any engine.

The coordinating process holds w, decides every lane's next phase by the rules of a single process (`stopping`), and commits
after every round as the loop of one process does at a checkpoint. A round that loses a worker leaves no trace and is
repeated from the last commit.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from ..core.errors import EnvironmentFailure
from ..kernels.loss_table import CLASSES, LOSSES
from ..kernels.primitives import Total
from ..kernels.rounds import APART, LINEAR, MAGNITUDE, QUADRATIC
from ..solvers.protocol import CERTIFY, START, TRAIN
from ..stream.arenas import RowLayout
from ..training.checkpoint import Run
from ..training.loop import TrainingLoop
from .block_steps import (
    lane_columns,
    lane_products,
    newton_step,
    next_sigma_prime,
    quadratic_step,
)
from .rounds import ARRAYS, HomeRows, Response, RoundRequest, WorkersLost, WorkerSpec

_MAX_ATTEMPTS = 10  # at one round: so many losses are no accident
_QUICK_PASS = 1 << 25
"""Number of entries below which passes of workers are short: about 0.05 s on four; a round takes about 0.1 s beside them."""


class RoundLoop(TrainingLoop):
    """Training on workers of a client, round after round; every round is a checkpoint.

    A worker, which `spec` describes the run to, loses its shards to others if it does not respond for `worker_timeout`
    seconds.
    """

    passes_are_local = True
    arrays = ARRAYS

    n_passes = 1
    """Reads of a worker in a round that trains."""

    def __init__(self, *loop: Any, spec: WorkerSpec, worker_timeout: float) -> None:
        super().__init__(*loop)
        self.client = self.session.client
        self.spec = spec
        self.worker_timeout = worker_timeout
        self.engine: Any = None  # a `DaskEngine`, or a simulation of one
        self.bytes_read = 0
        self.committed = _new_name()
        self._restore_checkpoint()

    def _train(self) -> None:
        layout = self.solver.layout
        assert isinstance(layout, RowLayout)
        home = HomeRows(self.slots, self.dataset, layout)
        if make := getattr(self.client, "make_engine", None):  # of a client that is not dask's
            self.engine = make(self.spec, home)
        else:
            from .dask_engine import DaskEngine

            given = self.spec, self.dataset, home, self.listener, self.worker_timeout, self.directory.name
            self.engine = DaskEngine(self.client, *given)
        with closing(self.engine):
            while self._has_open_lanes():
                self._stop_if_requested()
                self._round()

    @property
    def round(self) -> int:
        return int(self.state.round.max())

    def _round(self) -> None:
        """Carry out one round, up to its commit; start it again where workers are lost on the way."""
        started = time.monotonic()
        attempts = 0
        self._prepare()
        while True:
            attempts += 1
            request = self._request()
            try:
                result = self.engine.round(request, self._weights(), self._progress(request))
                worked = time.monotonic()
                step = self._step(request, result)
                break
            except WorkersLost as loss:
                self.slots.roll_back()  # safety: rounds::leaves_no_trace[collect-3]
                if attempts >= _MAX_ATTEMPTS:
                    raise EnvironmentFailure(
                        f"round {self.round + 1} was lost {attempts} times in a row, the last time because {loss}; "
                        "look at the workers' logs (memory?), then "
                        f"'streamcd resume {self.directory.name} --scheduler ADDRESS'"
                    ) from None
                self.listener.warning(f"round {self.round + 1} is repeated from the last commit: {loss}")
        stepped = time.monotonic()
        self.state.round += 1
        trained = request.lanes_in(TRAIN)
        figures = self._take(request, result, step)
        self._conclude_read(trained, request.n_passes)
        self.bytes_read += result.bytes_read
        record = {
            "round": self.round,
            "read": self.state.read,
            "kind": "train" if trained.size else "certify",
            **self._lane_figures(),
            "workers": len(result.seconds),
            "attempts": attempts,
            "bytes_read": result.bytes_read,
            "bytes_sent": result.bytes_sent,
            **figures,
            "seconds": {
                "total": round(time.monotonic() - started, 6),
                "workers": {name: round(seconds, 6) for name, seconds in result.seconds.items()},
                "line_search": round(stepped - worked, 6),
            },
        }
        assert isinstance(self.directory, Run)
        self.directory.append_log(record)
        self._checkpoint()  # the state records the length of the log

    @abstractmethod
    def _prepare(self) -> None:
        """Move the state to where the round begins."""

    def _weights(self) -> np.ndarray:
        """Return what every worker is sent in a round."""
        return self.state.w

    def _request(self) -> RoundRequest:
        """Ask for a round, under a new name."""
        training = self.state.lanes_in(TRAIN).size > 0
        return RoundRequest(
            token=_new_name(),
            committed=self.committed,
            read=self.state.read,
            n_passes=self.n_passes if training else 1,
            lanes={name: array.copy() for name, array in self.state.lanes.items()},
            # a read at fixed w leaves the shards where they are
            assigned=int(self.state.assigned.max()) + training,
        )

    def _step(self, request: RoundRequest, result: Response) -> Any:
        """Choose how far the round goes, and bring the dual variables home, which takes the workers again."""

    @abstractmethod
    def _take(self, request: RoundRequest, result: Response, step: Any) -> dict[str, Any]:
        """Take the sums of a round, and move w; returns figures for the log."""

    # -- reports ------------------------------------------------------------------------------------------------------

    def _bytes_read(self) -> int:
        return self.bytes_before + self.bytes_read

    def _before_stop(self) -> str:
        return f" --scheduler ADDRESS' (or --workers N) goes on from round {self.round}"

    def _progress(self, request: RoundRequest) -> Callable[[int], None]:
        total = self.dataset.n_entries * request.n_passes
        training = request.lanes_in(TRAIN).size > 0
        phase = f"{'round' if training else 'certify in round'} {self.round + 1}"
        done = 0

        def visited(n_entries: int) -> None:
            nonlocal done
            self._stop_if_requested()
            done = min(done + n_entries, total)
            self._report(phase, done, total)

        return visited


class SumRounds(RoundLoop):
    """Rounds that are a read each at fixed weights, by Newton's method."""

    def _prepare(self) -> None:
        self.solver.begin_read(self.state)

    def _weights(self) -> np.ndarray:
        return self.solver.to_send(self.state)

    def _take(self, request: RoundRequest, result: Response, step: None) -> dict[str, Any]:
        self.solver.take_sums(self.state, result.sums, request.lanes_in(TRAIN, START, CERTIFY))
        return {}


class DualRounds(RoundLoop):
    """Rounds of block-diagonal dual steps: local passes of coordinate descent, and one step along their joint direction.

    The mathematics is in `block_steps`. With three local passes a round, there are fewer rounds: so three where a pass
    takes less time than the rest of a round, unless there are more features than rows: then rounds are nearly as many.
    """

    def __init__(self, *loop: Any, **workers: Any) -> None:
        super().__init__(*loop, **workers)
        data = self.dataset
        self.n_passes = 3 if data.n_features < data.n_rows and data.n_entries < _QUICK_PASS else 1

    def _prepare(self) -> None:
        if self.solver.acceleration:
            self.solver.acceleration.begin_pass(self.state, self.state.lanes_in(TRAIN), self.solver.threads)

    def _step(self, request: RoundRequest, result: Response) -> tuple[np.ndarray, np.ndarray, int]:
        """Choose every lane's step along the joint direction; 1 for lanes that did not train.

        Also returns the change of the rows' terms of the dual, and the number of times that workers were asked for slopes.
        """
        state = self.state
        problem = self.problem
        n_lanes = self.problem.n_lanes
        trained = request.lanes_in(TRAIN)
        n_workers = len(result.seconds)
        if not trained.size:
            return np.ones(n_lanes), np.zeros(n_lanes), 0
        product = np.zeros(n_lanes)
        squared = np.zeros(n_lanes)
        size = np.zeros(n_lanes)
        columns = lane_columns(trained, n_lanes, state.w.shape[1])
        w = state.w[:, columns]
        change = result.sums["change"][:, columns]
        product[trained] = lane_products(w, change, trained.size)
        squared[trained] = lane_products(change, change, trained.size)
        size[trained] = lane_products(w, w, trained.size)
        sums = result.sums["direction"].copy()
        # rounding up took Crammer–Singer 41 rounds in place of 35 (badly conditioned rows, 2 workers, mean of 3 seeds)
        sigma_prime = request.lanes["sigma_prime"]
        exceeded = sigma_prime if problem.form != CLASSES else np.full(n_lanes, np.inf)
        following = next_sigma_prime(squared, sums[:, APART], n_workers, exceeded)
        # Δw is a difference of two w, each of them rounded
        mu = 1.0 + (state.kappa if self.solver.acceleration else np.zeros(n_lanes))
        product = mu * product
        squared = mu * squared
        sums[:, MAGNITUDE] += mu * size
        n_evaluations = 0
        if LOSSES[problem.loss].probabilities:  # terms `a log a`
            slopes = partial(self.engine.slopes, request)
            eta, dual_change, n_evaluations = newton_step(product, squared, sums, n_workers, slopes)
        else:  # the dual is quadratic along the step
            eta = quadratic_step(product, squared, sums, n_workers)
            dual_change = -(eta * sums[:, LINEAR] + 0.5 * eta**2 * sums[:, QUADRATIC])
        self.engine.collect(request, eta)
        state.sigma_prime[trained] = following[trained]
        return eta, dual_change, n_evaluations

    def _take(
        self, request: RoundRequest, result: Response, step: tuple[np.ndarray, np.ndarray, int]
    ) -> dict[str, Any]:
        state = self.state
        (eta, dual_change, n_evaluations) = step
        sums = result.sums
        trained = request.lanes_in(TRAIN)
        n_lanes = self.problem.n_lanes
        n_vectors = state.w.shape[1]
        columns = lane_columns(self.solver.summing(state), n_lanes, n_vectors)
        getattr(state, self.solver.w_alpha)[:, columns] = sums["change"][:, columns]
        columns = lane_columns(trained, n_lanes, n_vectors)
        state.w[:, columns] += np.repeat(eta, n_vectors // n_lanes)[columns] * sums["change"][:, columns]
        state.totals[:] = sums["totals"]
        state.totals[trained, Total.DUAL] = dual_change[trained]
        for array in self.solver.sums if request.lanes_in(START, CERTIFY).size else ():
            total = getattr(state, array.name)
            total += sums[array.name]
        # the rules are those of a single process, for which the last pass counts
        state.passes[trained] += request.n_passes - 1
        if trained.size:
            self.committed = request.token
            state.assigned[:] = request.assigned
        return {
            "eta": _range(eta[trained]),
            "stiffness": _range(request.lanes["sigma_prime"][trained]),
            "line_search_reductions": n_evaluations,
        }


def _new_name() -> str:
    return os.urandom(8).hex()


def _range(numbers: np.ndarray) -> list[float] | None:
    return [float(numbers.min()), float(numbers.max())] if numbers.size else None
