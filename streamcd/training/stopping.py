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
from ..solvers.protocol import CERTIFY, DONE, START, TRAIN, Estimates, Solver, State

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
        for name, number, least in (
            ("tol", self.tol, 0),
            ("eps", self.eps, 0),
            ("max_passes", self.max_passes, 1),
        ):
            if number is not None and not least <= number < np.inf:
                raise UsageError(f"{name}: expected a number >= {least}, found {number}")


def make_rule(tol: float | None, eps: float | None, max_passes: int) -> StopRule:
    """Make the stopping rule: a relative gap of 1e-3 if neither rule is given."""
    gap, violation = (None if number is None else float(number) for number in (tol, eps))
    return StopRule(1e-3 if gap is None and violation is None else gap, violation, int(max_passes))


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

BY_TIME, UNFINISHED = len(REASONS) - 2, len(REASONS) - 1


def _decide(lanes: Lanes, rule: StopRule, ended: np.ndarray) -> None:
    """Set the lanes in `ended` done, for the reason that their last certificate gives, or open where it gives none."""
    gap, passes = lanes["gap"], lanes["passes"] >= rule.max_passes
    stays = lanes["stays"] & bool(rule.tol)
    allowed = -np.inf if rule.tol is None else rule.tol * objective_size(lanes)
    holds = np.array(
        [
            gap <= allowed,
            _is_optimal(lanes, rule),
            (gap - lanes["rounding"] <= allowed) & (stays | passes)
            | stays & (lanes["idle_reads"] >= _MOST_IDLE),
            passes,
        ]
    )
    reasons = np.where(holds.any(axis=0), holds.argmax(axis=0), UNFINISHED)[ended]
    lanes["reason"][ended] = reasons
    lanes["converged"][ended] = np.array([reason.converged for reason in REASONS])[reasons]
    lanes["phase"][ended] = np.where(reasons == UNFINISHED, TRAIN, DONE)


def _is_optimal(lanes: Lanes, rule: StopRule) -> np.ndarray:
    eps = -1.0 if rule.eps is None else rule.eps
    return lanes["whole"] & (lanes["seen_violation"] <= eps)


# ---------------------------------------------------------------------------------------------------------------------
# Lanes


def new_lane_arrays(n_lanes: int) -> Lanes:
    """Make the per-lane arrays of the rules."""
    numbers = (*CERTIFIED, "estimate", "estimated_primal", "seen_violation")
    return {
        **{name: np.full(n_lanes, np.nan) for name in numbers},
        "at_zero": np.zeros(n_lanes),  # the objective with all weights 0, from the end of the first read on
        **{name: np.zeros(n_lanes, dtype=np.int64) for name in ("passes", "n_active", "idle_reads")},
        **{name: np.zeros(n_lanes, dtype=bool) for name in ("shrunk", "converged", "stays")},
        "whole": np.ones(n_lanes, dtype=bool),  # the last pass visited all rows
        "reason": np.full(n_lanes, UNFINISHED),
        # share of the allowed gap that the estimate has to reach; smaller after a failure
        "caution": np.ones(n_lanes),
    }


def update_lane_phases(
    state: State, rule: StopRule, solver: Solver, data: str, *, at_fixed_w: bool = False
) -> None:
    """Decide what each lane does next, from the totals of the read that ended; changes `state` in place.

    With `at_fixed_w` the violation is the certificate's, in place of the passes'. Raises `DatasetError`, which names
    `data`, if sums or certificates are not finite.
    """
    _refuse_infinite(state, data)
    lanes, trained, certified = state.lanes, state.phase(TRAIN), state.phase(START, CERTIFY)
    if state.read == 0:
        lanes["at_zero"][:] = state.totals[:, Total.AT_ZERO]
    lanes["passes"][trained] += 1
    lanes["n_active"][trained] = state.totals[trained, Total.N_ACTIVE].astype(np.int64)
    lanes["dual_sum"][trained] += state.totals[trained, Total.DUAL]
    estimates = solver.estimate(state, trained) if trained.size else None
    reads_train = estimates is None and trained.size > 0  # the pass was made at fixed w
    if estimates is None:
        lanes["phase"][trained], certified = CERTIFY, np.union1d(trained, certified)
    if certified.size:
        _conclude_certificates(state, rule, solver, at_fixed_w or reads_train, reads_train)
    if estimates is None:
        for name, found in (("estimate", "gap"), ("estimated_primal", "primal")):
            lanes[name][trained] = lanes[found][trained]
    else:
        _conclude_passes(state, rule, trained, estimates)
    _refuse_infinite(state, data)


def _refuse_infinite(state: State, data: str) -> None:
    certificates = np.array([state.lanes["primal"], state.lanes["dual"]])  # nan before the first
    sums = state.totals[:, [Total.GAP, Total.LOSS, Total.DUAL, Total.AT_ZERO]]
    if not np.isfinite(sums).all() or np.isinf(certificates).any():  # safety: solvers::values_whose_squares
        raise DatasetError(
            f"{data}: the sums over its rows are not finite: values too large for these weights and C, or not finite; "
            "'streamcd verify DATASET' finds the latter; convert with --scale maxabs, or a smaller C or bias, mends the "
            "former"
        )


def _conclude_certificates(
    state: State, rule: StopRule, solver: Solver, at_fixed_w: bool, reads_train: bool
) -> None:
    lanes, starting, certified = state.lanes, state.phase(START), state.phase(CERTIFY)
    proof = solver.certificate(state)
    for some in (starting, certified):
        lanes["dual_sum"][some] = state.totals[some, Total.DUAL]
    lanes["phase"][starting] = TRAIN
    change = np.abs(proof["primal"] - lanes["primal"])
    lanes["stays"][certified] = (change <= _STAYS * np.abs(proof["primal"]))[certified]
    lanes["idle_reads"][certified] = np.where(lanes["stays"] & reads_train, lanes["idle_reads"] + 1, 0)[
        certified
    ]
    for name in CERTIFIED:
        lanes[name][certified] = proof[name][certified]
    if at_fixed_w:
        lanes["seen_violation"][certified] = proof["violation"][certified]
    _decide(lanes, rule, certified)
    failed = certified[lanes["phase"][certified] == TRAIN]
    gap, estimate = lanes["gap"][failed], lanes["estimate"][failed]
    # The next certificate waits for an estimate that is smaller by as much as this one fell short of the gap: accelerated
    # passes gain so much that halving would cost a tenth to a fifth of them. An estimate above the gap was right, and only
    # the fall expected beside it did not come: that of a first pass, which has the losses of new rows. The caution until
    # then counts as much as the ratio, as the point where a pass ends may be worse than those around it.
    ratio = np.fmin(0.97 * estimate / gap, 1.0)  # nan before the first pass
    lanes["caution"][failed] = np.clip(np.sqrt(ratio * lanes["caution"][failed]), _LEAST_CAUTION, 1.0)
    restore(state, failed[lanes["shrunk"][failed] & (gap > _OUTSIDE * estimate)])


def _conclude_passes(state: State, rule: StopRule, trained: np.ndarray, estimates: Estimates) -> None:
    """Choose the lanes that are certified next: where success is expected, or all passes were made.

    Each row's term of the gap was computed before the row's own step, on average halfway through the pass, so at the end of
    the pass their sum is smaller, by about the factor by which the estimate fell since the previous pass. The distance of w
    from w(alpha), which acceleration adds to the estimate, is measured at the end.
    """
    lanes = state.lanes
    previous, lanes["whole"][trained] = lanes["estimate"][trained], ~lanes["shrunk"][trained]
    for name, array in estimates._asdict().items():
        lanes[name][trained] = array[trained]
    lanes["shrunk"][trained] |= state.totals[trained, Total.N_SHRUNK] > 0
    if rule.tol is not None:
        estimate, at_end = (
            lanes["estimate"][trained],
            lanes.get("distance", np.zeros(lanes["estimate"].size))[trained],
        )
        fall = np.divide(
            estimate, previous, out=np.ones_like(estimate), where=previous > 0.0
        )  # nan before the first pass
        expected = (estimate - at_end) * np.minimum(fall, 1.0) + at_end
        size, caution = objective_size(lanes, "estimated_primal")[trained], lanes["caution"][trained]
        hopeful = expected <= caution * rule.tol * size
    else:
        hopeful = _is_optimal(lanes, rule)[trained]
    ends = hopeful | (lanes["passes"][trained] >= rule.max_passes)
    lanes["phase"][trained[ends]] = CERTIFY
    if rule.eps is not None:  # where it holds for the rows that are left
        restore(state, trained[~ends & (lanes["seen_violation"][trained] <= rule.eps)])


def restore(state: State, lanes: np.ndarray) -> None:
    """Make all rows of these lanes active again in the next read, and reset the shrinking thresholds."""
    state.lanes["restore"][lanes] = True
    state.lanes["shrunk"][lanes] = False
    state.lanes["high"][lanes] = np.inf
    state.lanes["low"][lanes] = -np.inf


def reopen(state: State, rule: StopRule) -> None:
    """Decide anew, by this rule, about lanes that are done; those that have no reason to be train again, with all rows."""
    lanes, done = state.lanes, np.flatnonzero(state.lanes["phase"] == DONE)
    _decide(lanes, rule, done)
    again = done[lanes["phase"][done] == TRAIN]
    lanes["caution"][again] = 1.0
    restore(state, again)
