"""Stopping rules for all solvers: after every read, decide which lanes are certified, restored, or done.

During a training read the active rows' terms of the gap are summed to an estimate; once it predicts that a certificate will
succeed, the lane spends a read over all rows at fixed w. Only that read decides, by the table of `REASONS`, so a bad
estimate can delay a result, but not make it wrong. If the certificate fails, the next one waits for a smaller estimate, by
how wrong this one was; if the gap lies in shrunk rows, they are restored. (The usual rule, to wait until the estimate over a
shrunk set is a tenth of the allowed gap, takes up to twice the passes.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.errors import DatasetError, UsageError
from ..kernels.primitives import Total
from ..solvers.protocol import CERTIFY, DONE, START, TRAIN, Array, Estimates, Solver, State

_OUTSIDE = 2.0  # a certified gap this many times the estimate lies in shrunk rows
_LEAST_CAUTION = 0.005  # with 0.05 a twin training took 44 certificates in place of 3
_STAYS = 1e-13  # of the objective: by less it changes at an optimum, by rounding
_MOST_IDLE = 10  # successive reads at fixed w that change no objective; with 1 working sets ended too early

CERTIFIED = ("primal", "dual", "gap", "violation", "rounding")
"""Arrays of a certificate (`protocol.Solver.certificate`)."""

Lanes = dict[str, np.ndarray]


@dataclass(frozen=True)
class StopRule:
    """Conditions for stopping; one of `tol` and `eps` is None."""

    tol: float | None  # largest relative duality gap, see `relative`
    eps: float | None  # LIBLINEAR 2.50's rule: M - m, |M| and |m| at most eps over a full pass
    max_passes: int  # training passes of a lane

    def __post_init__(self) -> None:
        if (self.tol is None) == (self.eps is None):
            raise UsageError("rule: expected one of tol and eps")
        for name, least in {"tol": 0, "eps": 0, "max_passes": 1}.items():
            number = getattr(self, name)
            if number is not None and not least <= number < np.inf:
                raise UsageError(f"{name}: expected a number >= {least}, found {number}")


# ---------------------------------------------------------------------------------------------------------------------
# Relative gaps


_LEAST_PRIMAL = 1e-9
"""Part of the objective with all weights 0 below which gaps are relative to that part: nearer to 0 lies rounding."""


def objective_size(lanes: Lanes, primal: str = "primal") -> np.ndarray:
    """Return what every lane's gap is relative to: ``max(|primal|, 1e-9 P(0))``, the primal alone in the first read."""
    return np.asarray(np.maximum(np.abs(lanes[primal]), _LEAST_PRIMAL * lanes["at_zero"]))


def relative(lanes: Lanes, part: str = "gap", primal: str = "primal") -> np.ndarray:
    """Return every lane's gap over its `objective_size`, or another `part`; 0 where both are 0, nan where not known."""
    size = objective_size(lanes, primal)
    return np.divide(lanes[part], size, out=np.zeros_like(size), where=size != 0)


# ---------------------------------------------------------------------------------------------------------------------
# Reasons


class Reason(NamedTuple):
    """A reason why a lane ends."""

    name: str  # `Result.stop_reason`
    converged: bool = False
    shortfall: str = ""  # what a result says of it


REASONS = (
    Reason("gap", True),  # it is within the tolerance
    Reason("violation", True),  # LIBLINEAR's rule holds over a pass with all rows
    # the gap is within the tolerance but for rounding, and all passes were made, or one that changed no objective; or many
    # reads that train changed none
    Reason(
        "rounding",
        shortfall="not converged {after}: with what rounding may add, the relative gap is {gap:.2g}, which more passes "
        "hardly change; scale the values (convert with --scale maxabs), or give a larger tolerance or, of a loss that has "
        "one, a smaller C",
    ),
    Reason("max_passes", shortfall="not converged {after}: the relative gap is {gap:.2g}{slowly}"),
    # of the session; never in a state
    Reason("time", shortfall="not converged: the time was up {after}"),
    Reason("unfinished"),
)
"""Reasons why lanes end, from good to bad: the first that holds. A state has their places."""

BY_TIME = len(REASONS) - 2
UNFINISHED = len(REASONS) - 1


def _decide(state: State, rule: StopRule, ended: np.ndarray) -> None:
    """Set the lanes in `ended` done, for the reason that their last certificate gives, or open where it gives none."""
    gap = state.gap
    passes = state.passes >= rule.max_passes
    stays = state.stays & bool(rule.tol)
    allowed = -np.inf if rule.tol is None else rule.tol * objective_size(state.lanes)
    holds = np.array(
        [
            gap <= allowed,
            state.whole & (state.seen_violation <= (-1.0 if rule.eps is None else rule.eps)),
            (gap - state.rounding <= allowed) & (stays | passes) | stays & (state.idle_reads >= _MOST_IDLE),
            passes,
        ]
    )
    reasons = np.where(holds.any(axis=0), holds.argmax(axis=0), UNFINISHED)[ended]
    state.reason[ended] = reasons
    state.converged[ended] = np.array([reason.converged for reason in REASONS])[reasons]
    state.phase[ended] = np.where(reasons == UNFINISHED, TRAIN, DONE)


# ---------------------------------------------------------------------------------------------------------------------
# Lanes


_SHOWN = "of the last certificate"
ARRAYS = (
    *(Array(name, _SHOWN, initial=np.nan) for name in CERTIFIED),
    Array("estimate", "estimated gap after the last pass", initial=np.nan),
    Array("estimated_primal", "estimated objective after it", initial=np.nan),
    Array("seen_violation", "LIBLINEAR's measure over it", initial=np.nan),
    Array("at_zero", "objective with all weights 0, from the end of the first read on"),
    Array("passes", "training passes made", int),
    Array("n_active", "rows active at the end of the last pass", int),
    Array("idle_reads", "successive reads that trained and changed no objective", int),
    Array("stays", "the last certificate's objective is that of the one before", bool),
    Array("shrunk", "some rows were left out since all returned", bool),
    Array("whole", "the last pass visited all rows", bool, True),
    Array("converged", "the lane ended by a rule that asks for an optimum", bool),
    Array("reason", "why the lane ended, an index of `stopping.REASONS`", int, UNFINISHED),
    Array(
        "caution",
        "share of the allowed gap that an estimate has to reach; smaller after a failure",
        initial=1.0,
    ),
)
"""State of the stopping rules."""


def update_lane_phases(
    state: State, rule: StopRule, solver: Solver, data: str, *, at_fixed_w: bool = False
) -> None:
    """Decide what each lane does next, from the totals of the read that ended; changes `state` in place.

    With `at_fixed_w` the violation is the certificate's, in place of the passes'. Raises `DatasetError`, which names
    `data`, if sums or certificates are not finite.
    """
    _refuse_infinite(state, data)
    trained = state.lanes_in(TRAIN)
    certified = state.lanes_in(START, CERTIFY)
    if state.read == 0:
        state.at_zero[:] = state.totals[:, Total.AT_ZERO]
    state.passes[trained] += 1
    state.n_active[trained] = state.totals[trained, Total.N_ACTIVE].astype(np.int64)
    state.dual_sum[trained] += state.totals[trained, Total.DUAL]
    estimates = solver.estimate(state, trained) if trained.size else None
    if estimates is not None:
        if certified.size:
            _conclude_certificates(state, rule, solver, at_fixed_w, reads_train=False)
        _conclude_passes(state, rule, trained, estimates)
    elif trained.size or certified.size:  # a pass is a read at fixed w
        state.phase[trained] = CERTIFY
        reads_train = trained.size > 0
        _conclude_certificates(state, rule, solver, at_fixed_w or reads_train, reads_train=reads_train)
        state.estimate[trained] = state.gap[trained]
        state.estimated_primal[trained] = state.primal[trained]
    _refuse_infinite(state, data)


def _refuse_infinite(state: State, data: str) -> None:
    certificates = np.array([state.primal, state.dual])  # nan before the first
    sums = state.totals[:, [Total.GAP, Total.LOSS, Total.DUAL, Total.AT_ZERO]]
    if not np.isfinite(sums).all() or np.isinf(certificates).any():  # safety: solvers::values_whose_squares
        raise DatasetError(
            f"{data}: the sums over its rows are not finite: values too large for these weights and C, or not finite; "
            "'streamcd verify DATASET' finds the latter; convert with --scale maxabs, or a smaller C or bias, mends the "
            "former"
        )


def _conclude_certificates(
    state: State, rule: StopRule, solver: Solver, at_fixed_w: bool, *, reads_train: bool
) -> None:
    """Adopt the certificates of lanes, and set those done whose gap is small enough.

    After a failure the next certificate waits for an estimate that is smaller by as much as this one fell short of the gap::

        caution ← √(caution · min(0.97 estimate / gap, 1)), at least 0.005

    since accelerated passes gain so much that halving would cost a tenth to a fifth of them. An estimate above the gap was
    right, and only the fall expected beside it did not come: that of a first pass, which has the losses of new rows. The
    caution until then counts as much as the ratio, as the point where a pass ends may be worse than those around it.
    """
    starting = state.lanes_in(START)
    certified = state.lanes_in(CERTIFY)
    proof = solver.certificate(state)
    for some in (starting, certified):
        state.dual_sum[some] = state.totals[some, Total.DUAL]
    state.phase[starting] = TRAIN
    stays = np.abs(proof["primal"] - state.primal) <= _STAYS * np.abs(proof["primal"])
    state.stays[certified] = stays[certified]
    idle_reads = np.where(state.stays & reads_train, state.idle_reads + 1, 0)
    state.idle_reads[certified] = idle_reads[certified]
    for name in CERTIFIED:
        state.lanes[name][certified] = proof[name][certified]
    if at_fixed_w:
        state.seen_violation[certified] = proof["violation"][certified]
    _decide(state, rule, certified)
    failed = certified[state.phase[certified] == TRAIN]
    gap = state.gap[failed]
    estimate = state.estimate[failed]
    ratio = np.fmin(0.97 * estimate / gap, 1.0)  # nan before the first pass
    state.caution[failed] = np.clip(np.sqrt(ratio * state.caution[failed]), _LEAST_CAUTION, 1.0)
    restore(state, failed[state.shrunk[failed] & (gap > _OUTSIDE * estimate)])


def _conclude_passes(state: State, rule: StopRule, trained: np.ndarray, estimates: Estimates) -> None:
    """Choose the lanes that are certified next: where success is expected, or all passes were made.

    With e the estimate, e₀ that of the pass before, and d the part of e that was measured at the end of the pass::

        (e - d) min(e/e₀, 1) + d  <=  caution · tol · max(|primal|, 1e-9 P(0))

    Each row's term of e - d was computed before the row's own step, on average halfway through the pass, so at the end of
    the pass their sum is smaller, by about the factor by which the estimate fell since the previous pass. Of acceleration d
    is the distance of w from w(alpha).
    """
    previous = state.estimate[trained]
    state.whole[trained] = ~state.shrunk[trained]
    state.estimate[trained] = estimates.gap[trained]
    state.estimated_primal[trained] = estimates.primal[trained]
    state.seen_violation[trained] = estimates.violation[trained]
    state.shrunk[trained] |= state.totals[trained, Total.N_SHRUNK] > 0
    if rule.tol is not None:
        estimate = state.estimate[trained]
        at_end = estimates.at_end[trained]
        fall = np.ones_like(estimate)  # nan before the first pass
        np.divide(estimate, previous, out=fall, where=previous > 0.0)
        expected = (estimate - at_end) * np.minimum(fall, 1.0) + at_end
        size = objective_size(state.lanes, "estimated_primal")[trained]
        hopeful = expected <= state.caution[trained] * rule.tol * size
    else:
        hopeful = state.whole[trained] & (state.seen_violation[trained] <= rule.eps)
    ends = hopeful | (state.passes[trained] >= rule.max_passes)
    state.phase[trained[ends]] = CERTIFY
    if rule.eps is not None:  # where it holds for the rows that are left
        restore(state, trained[~ends & (state.seen_violation[trained] <= rule.eps)])


def restore(state: State, lanes: np.ndarray) -> None:
    """Make all rows of these lanes active again in the next read, and reset the shrinking thresholds."""
    state.restore[lanes] = True
    state.shrunk[lanes] = False
    state.high[lanes] = np.inf
    state.low[lanes] = -np.inf


def reopen(state: State, rule: StopRule) -> None:
    """Decide anew, by this rule, about lanes that are done; those that have no reason to be train again, with all rows."""
    done = state.lanes_in(DONE)
    _decide(state, rule, done)
    again = done[state.phase[done] == TRAIN]
    state.caution[again] = 1.0
    restore(state, again)
