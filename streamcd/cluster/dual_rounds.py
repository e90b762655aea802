"""Rounds of block-diagonal dual steps: local passes of coordinate descent, and one step along their joint direction.

The state on disk names the folder of the dual variables and the step eta. The mathematics is in `block_steps`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..core.atomic_files import sync
from ..kernels.loss_table import CLASSES
from ..kernels.primitives import DUAL
from ..kernels.rounds import APART, LINEAR, MAGNITUDE, QUADRATIC
from ..solvers.dual import RowSolver
from ..solvers.gap_bounds import violation
from ..solvers.protocol import CERTIFY, DONE, START, TRAIN
from ..stream.slot_store import chunk_slots
from ..training.stopping import BY_MAX_PASSES, BY_VIOLATION
from .block_steps import (
    has_entropy,
    lane_columns,
    lane_products,
    newton_step,
    next_sigma_prime,
    quadratic_step,
)
from .loop import RoundLoop
from .memory import paired_layout
from .rounds import Engine, RoundRequest, RoundResponse

_QUICK_PASS = 1 << 25
"""Number of entries below which passes of workers are short: about 0.05 s on four; a round takes about 0.1 s beside them."""


def local_passes(n_rows: int, n_features: int, n_entries: int) -> int:
    """Choose the passes of every worker in a round, where several share the rows.

    One takes fewer passes to the gap, three take fewer rounds: see docs/cluster.md. So three where a pass takes less time
    than the rest of a round, unless there are more features than rows: then the rounds are nearly as many.
    """
    return 3 if n_features < n_rows and n_entries < _QUICK_PASS else 1


@dataclass
class _Step:
    """The step of a round, per lane."""

    eta: np.ndarray
    dual_change: np.ndarray | None
    n_evaluations: int
    sigma_prime: np.ndarray  # of the next round


class DualRounds(RoundLoop):
    """Rounds of local passes."""

    def __init__(self, *loop: Any) -> None:
        super().__init__(*loop)
        task, dataset = self.task, self.task.dataset
        assert isinstance(task.solver, RowSolver)
        self.solver = task.solver
        self.n_passes = local_passes(dataset.n_rows, dataset.n_features, dataset.n_entries)
        self.state.lanes["sigma_prime"] = np.ones(task.problem.n_lanes)
        self._restore_checkpoint()
        self._remove_other_attempts()

    def _prepare(self) -> None:
        self.solver.begin_pass(self.state, self.state.phase(TRAIN))

    def _request(self) -> RoundRequest:
        request = super()._request()
        if request.phase(TRAIN).size:
            (self._folder / request.token).mkdir()
        return request

    # -- the step -----------------------------------------------------------------------------------------------------

    def _step(self, engine: Engine, request: RoundRequest, result: RoundResponse) -> _Step:
        """Choose every lane's step along the joint direction; 1 for lanes that did not train."""
        n_lanes = self.task.problem.n_lanes
        trained = request.phase(TRAIN)
        sigma_prime = request.lanes["sigma_prime"].copy()
        if not trained.size:
            return _Step(np.ones(n_lanes), None, 0, sigma_prime)
        change = result.change
        product, squared = np.zeros(n_lanes), np.zeros(n_lanes)
        columns = lane_columns(trained, n_lanes, change.shape[1])
        product[trained] = lane_products(self.state.w[:, columns], change[:, columns], trained.size)
        squared[trained] = lane_products(change[:, columns], change[:, columns], trained.size)
        sums, k = result.direction, result.n_parts
        # rounding up took Crammer–Singer 41 rounds in place of 35 (badly conditioned rows, 2 workers, mean of 3 seeds)
        exceeded = sigma_prime if self.task.problem.form != CLASSES else np.full(n_lanes, np.inf)
        sigma_prime[trained] = next_sigma_prime(squared, sums[:, APART], k, exceeded)[trained]
        # Δw is a difference of two w, each of them rounded
        mu = self.solver.mu(self.state)
        product, squared = mu * product, mu * squared
        sums[trained, MAGNITUDE] += mu[trained] * lane_products(
            self.state.w[:, columns], self.state.w[:, columns], trained.size
        )
        if not has_entropy(self.task.problem):  # the dual is quadratic along the step
            eta = quadratic_step(product, squared, sums, k)
            dual_change = -(eta * sums[:, LINEAR] + 0.5 * eta**2 * sums[:, QUADRATIC])
            return _Step(eta, dual_change, 0, sigma_prime)
        eta, dual_change, count = newton_step(product, squared, sums, k, partial(engine.slopes, request))
        return _Step(eta, dual_change, count, sigma_prime)

    def _conclude_round(self, request: RoundRequest, result: RoundResponse, step: _Step) -> dict[str, Any]:
        """Move w and decide what each lane does next; returns the line for the log."""
        state = self.state
        trained, certified = request.phase(TRAIN), request.phase(START, CERTIFY)
        self._move(result, step, trained, certified)
        state.totals[:] = result.totals
        for name, sums in result.sums.items():
            state.matrices[name] += sums
        if step.dual_change is not None:
            state.totals[trained, DUAL] = step.dual_change[trained]
        # the rules are those of a single process, for which the last pass counts
        state.lanes["passes"][trained] += request.n_passes - 1
        state.lanes["sigma_prime"][:] = step.sigma_prime
        self._conclude_read(trained, certified)
        self._begin_next(request.n_passes)
        self.round += 1
        if trained.size:
            self.committed, self.eta = request.token, step.eta
            self.assigned_round = request.assigned
        return {
            **self._record(request, result),
            "parts": result.n_parts,
            "eta": _range(step.eta[trained]),
            "stiffness": _range(request.lanes["sigma_prime"][trained]),
            "line_search_reductions": step.n_evaluations,
        }

    def _move(self, result: RoundResponse, step: _Step, trained: np.ndarray, certified: np.ndarray) -> None:
        state, n_lanes = self.state, self.task.problem.n_lanes
        n_vectors = state.w.shape[1]
        values = result.change
        columns = lane_columns(certified, n_lanes, n_vectors)
        state.w_alpha[:, columns] = values[:, columns]
        columns = lane_columns(trained, n_lanes, n_vectors)
        state.w[:, columns] += np.repeat(step.eta, n_vectors // n_lanes)[columns] * values[:, columns]

    def _review_phases(self, certified: np.ndarray) -> None:
        """Reopen lanes whose violation was small at the workers' own w, but is not at the common w."""
        lanes, eps = self.state.lanes, self.task.rule.eps
        if eps is None:
            return
        found = violation(self.state.totals)
        doubtful = (lanes["phase"] == DONE) & (lanes["reason"] == BY_VIOLATION) & (found > eps)
        phase, reason = (DONE, BY_MAX_PASSES) if self.state.pause else (TRAIN, 0)
        for lane in np.intersect1d(np.flatnonzero(doubtful), certified):
            lanes["phase"][lane], lanes["reason"][lane], lanes["converged"][lane] = phase, reason, False

    # -- the run on disk ----------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        sync(self._folder)
        self._write_state()
        self._remove_other_attempts()

    def _remove_other_attempts(self) -> None:
        """Remove the folders of attempts that were not committed, or that later commits have replaced."""
        for entry in self._folder.iterdir():
            if entry.is_dir() and entry.name != self.committed:
                shutil.rmtree(entry)

    def _begin(self) -> None:
        start, task = self.task.warm_start, self.task
        if start is not None:  # the other run's dual variables are the first commit
            layout = paired_layout(task.solver.layout)
            self.committed = "000000-start"
            store = chunk_slots(
                self._folder / self.committed,
                task.dataset,
                layout.state_bytes,
                self.directory.identity,
                n_slots=1,
            )
            start.begin_with_alpha(self.state, self.solver, store, layout.n_flags, copies=2)
            store.sync()
            store.close()
        self._commit()

    def _shown_step(self) -> str:
        return f", step {_shown(self.eta)}"


def _range(numbers: np.ndarray) -> list[float] | None:
    return [float(numbers.min()), float(numbers.max())] if numbers.size else None


def _shown(eta: np.ndarray) -> str:
    low, high = float(eta.min()), float(eta.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
