"""Stopping rules for all solvers: after every read, decide which lanes are certified, restored, or done.

During a training read the active rows' terms of the gap are summed to an estimate; once it predicts that a certificate will
succeed, the lane spends a read over all rows at fixed w. Only that read decides, by the table of `REASONS`, so a bad
estimate can delay a result, but not make it wrong. If the certificate fails, the next one waits for a smaller estimate, by
how wrong this one was; if the gap lies in shrunk rows, they are restored. (The usual rule, to wait until the estimate over a
shrunk set is a tenth of the allowed gap, takes up to twice the passes.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.errors import DatasetError, UsageError
from ..dataset.dataset import Dataset
from ..kernels.losses import add_losses
from ..kernels.primitives import DUAL, GAP, LOSS, N_ACTIVE, N_SHRUNK, NO_STEP, UNIT
from ..solvers.problem import Problem
from ..solvers.protocol import CERTIFY, DONE, START, TRAIN, Estimates, Solver, State

_OUTSIDE = 2.0  # a certified gap this many times the estimate lies in shrunk rows
_LEAST_CAUTION = 0.005  # with 0.05 a twin training took 44 certificates in place of 3
_STAYS = 1e-13  # of the objective: by less it changes at an optimum, by rounding

CERTIFIED = ("primal", "dual", "gap", "violation", "rounding")
"""Arrays of a certificate (`protocol.Solver.certificate`)."""

Lanes = dict[str, np.ndarray]


@dataclass(frozen=True)
class StopRule:
    """Conditions for stopping; one of `tol` and `eps` is None."""

    tol: float | None  # largest relative duality gap, (primal - dual) / primal
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
# Reasons


class Reason(NamedTuple):
    """A reason why a lane ends."""

    name: str  # `Result.stop_reason`
    holds: Callable[[Lanes, StopRule], np.ndarray]  # of certified lanes
    converged: bool = False
    shortfall: str = ""  # what a result says of it


def _is_within_the_tolerance(lanes: Lanes, rule: StopRule) -> np.ndarray:
    return lanes["gap"] <= _tolerance(rule) * np.abs(lanes["primal"])


def _is_zero(lanes: Lanes, rule: StopRule) -> np.ndarray:
    """The objective is as good as 0, and not proven to be above 0."""
    small = np.abs(lanes["primal"]) <= lanes["negligible"]
    return small & (lanes["dual"] <= 0.0) & (rule.tol is not None)


def _is_optimal(lanes: Lanes, rule: StopRule) -> np.ndarray:
    """LIBLINEAR's rule holds over a pass with all rows."""
    eps = -1.0 if rule.eps is None else rule.eps
    return lanes["whole"] & (lanes["seen_violation"] <= eps)


def _is_all_rounding(lanes: Lanes, rule: StopRule) -> np.ndarray:
    """The gap is within the tolerance but for rounding, and all passes were made, or one that changed no objective."""
    without = lanes["gap"] - lanes["rounding"] <= _tolerance(rule) * np.abs(lanes["primal"])
    return without & (lanes["stays"] & bool(rule.tol) | _has_made_all_passes(lanes, rule))


def _has_made_all_passes(lanes: Lanes, rule: StopRule) -> np.ndarray:
    return lanes["passes"] >= rule.max_passes


def _never(lanes: Lanes, rule: StopRule) -> np.ndarray:
    return np.zeros(lanes["passes"].size, dtype=bool)


def _tolerance(rule: StopRule) -> float:
    return -np.inf if rule.tol is None else rule.tol


REASONS = (
    Reason("gap", _is_within_the_tolerance, True),
    Reason("zero", _is_zero, True),
    Reason("violation", _is_optimal, True),
    Reason(
        "rounding",
        _is_all_rounding,
        shortfall="not converged {after}: with what rounding may add, the relative gap is {gap:.2g}, which more passes "
        "hardly change; scale the values ('convert --scale maxabs'), or give a larger tolerance or, of a loss that has "
        "one, a smaller C",
    ),
    Reason(
        "max_passes",
        _has_made_all_passes,
        shortfall="not converged {after}: the relative gap is {gap:.2g}{slowly}",
    ),
    # of the session; never in a state
    Reason("time", _never, shortfall="not converged: the time was up {after}"),
    Reason("unfinished", _never),
)
"""Reasons why lanes end, from good to bad: the first that holds. A state has their places."""

BY_TIME, UNFINISHED = len(REASONS) - 2, len(REASONS) - 1


def _decide(lanes: Lanes, rule: StopRule) -> np.ndarray:
    """Return the reason why each lane would end after its last certificate."""
    with np.errstate(invalid="ignore"):  # nan before the first
        holds = np.array([reason.holds(lanes, rule) for reason in REASONS[:UNFINISHED]])
    return np.where(holds.any(axis=0), holds.argmax(axis=0), UNFINISHED)


def _end(lanes: Lanes, ended: np.ndarray, reasons: np.ndarray) -> None:
    """Set the lanes in `ended` done for their reason, or open where they have none."""
    lanes["reason"][ended] = reasons[ended]
    lanes["converged"][ended] = np.array([reason.converged for reason in REASONS])[reasons[ended]]
    lanes["phase"][ended] = np.where(reasons[ended] == UNFINISHED, TRAIN, DONE)


# ---------------------------------------------------------------------------------------------------------------------
# Lanes


def new_lane_arrays(problem: Problem, dataset: Dataset, *, centred: bool) -> Lanes:
    """Make the per-lane arrays of the rules."""
    n_lanes = problem.n_lanes
    numbers = (*CERTIFIED, "estimate", "estimated_primal", "seen_violation")
    return {
        **{name: np.full(n_lanes, np.nan) for name in numbers},
        **{name: np.zeros(n_lanes, dtype=np.int64) for name in ("passes", "n_active")},
        **{name: np.zeros(n_lanes, dtype=bool) for name in ("shrunk", "converged", "stays")},
        "whole": np.ones(n_lanes, dtype=bool),  # the last pass visited all rows
        "reason": np.full(n_lanes, UNFINISHED),
        # share of the allowed gap that the estimate has to reach; smaller after a failure
        "caution": np.ones(n_lanes),
        "negligible": _rounding_at_zero(problem, dataset, centred=centred),
    }


def _rounding_at_zero(problem: Problem, dataset: Dataset, *, centred: bool) -> np.ndarray:
    """Bound the rounding of every lane's objective at w = 0, as if all targets, which may be centred, were the largest.

    It is 0 where weights of rows are not known, and minus infinity without targets, where no optimum is 0.
    """
    share = max((dataset.n_rows + 64.0) * UNIT, NO_STEP)
    if dataset.targets is None or not problem.has_targets:
        return np.full(problem.n_lanes, -np.inf)
    if dataset.weighted:
        return np.zeros(problem.n_lanes)
    ends, losses = np.array([dataset.targets["min"], dataset.targets["max"]]), np.zeros(2)
    if centred and dataset.centre is not None:
        ends -= dataset.centre.target
    add_losses(problem.row_loss, ends, np.zeros(2), np.ones(2), losses)
    # of a sum over the rows; and margins that are nearer to what the loss wants are left alone
    return np.asarray(share * losses.max() * dataset.n_rows * problem.cost.sum(axis=0))


def update_lane_phases(
    state: State, rule: StopRule, solver: Solver, data: str, *, at_fixed_w: bool = False
) -> None:
    """Decide what each lane does next, from the totals of the read that ended; changes `state` in place.

    With `at_fixed_w` the violation is the certificate's, in place of the passes'. Raises `DatasetError`, which names
    `data`, if sums or certificates are not finite.
    """
    _refuse_infinite(state, data)
    lanes, trained, certified = state.lanes, state.phase(TRAIN), state.phase(START, CERTIFY)
    lanes["passes"][trained] += 1
    lanes["n_active"][trained] = state.totals[trained, N_ACTIVE].astype(np.int64)
    lanes["dual_sum"][trained] += state.totals[trained, DUAL]
    estimates = solver.estimate(state, trained) if trained.size else None
    if estimates is None:  # the pass was made at fixed w
        at_fixed_w = at_fixed_w or trained.size > 0
        lanes["phase"][trained], certified = CERTIFY, np.union1d(trained, certified)
    if certified.size:
        _conclude_certificates(state, rule, solver, at_fixed_w=at_fixed_w)
    if estimates is None:
        lanes["estimate"][trained], lanes["estimated_primal"][trained] = (
            lanes["gap"][trained],
            lanes["primal"][trained],
        )
    else:
        _conclude_passes(state, rule, trained, estimates)
    _refuse_infinite(state, data)


def _refuse_infinite(state: State, data: str) -> None:
    certificates = np.array([state.lanes["primal"], state.lanes["dual"]])  # nan before the first
    if np.isfinite(state.totals[:, [GAP, LOSS, DUAL]]).all() and not np.isinf(certificates).any():
        return
    raise DatasetError(
        f"{data}: the sums over its rows are not finite: values too large for these weights and C, or not finite; "
        "'streamcd verify' finds the latter; 'convert --scale maxabs', or a smaller C or bias, mends the former"
    )


def _conclude_certificates(state: State, rule: StopRule, solver: Solver, *, at_fixed_w: bool) -> None:
    lanes, starting, certified = state.lanes, state.phase(START), state.phase(CERTIFY)
    proof = solver.certificate(state)
    lanes["dual_sum"][starting] = state.totals[starting, DUAL]
    lanes["dual_sum"][certified] = state.totals[certified, DUAL]
    lanes["phase"][starting] = TRAIN
    change = np.abs(proof["primal"] - lanes["primal"])
    lanes["stays"][certified] = (change <= _STAYS * np.abs(proof["primal"]))[certified]
    for name in CERTIFIED:
        lanes[name][certified] = proof[name][certified]
    if at_fixed_w:
        lanes["seen_violation"][certified] = proof["violation"][certified]
    _end(lanes, certified, _decide(lanes, rule))
    failed = certified[lanes["phase"][certified] == TRAIN]
    gap, estimate = lanes["gap"][failed], lanes["estimate"][failed]
    lanes["caution"][failed] = _caution_after_failure(lanes["caution"][failed], estimate, gap)
    restore(state, failed[lanes["shrunk"][failed] & (gap > _OUTSIDE * estimate)])


def _caution_after_failure(caution: np.ndarray, estimate: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """Return the share of the allowed gap that the expected gap has to reach after a failed certificate.

    It goes by the ratio of the estimate to the certified gap: accelerated passes gain so much that halving would cost a
    tenth to a fifth of them. An estimate above the gap was right, and only the fall expected beside it did not come: that of
    a first pass, which has the losses of new rows. The caution until then counts as much as the ratio, as the point where a
    pass ends may be worse than those around it.
    """
    ratio = np.fmin(0.97 * estimate / gap, 1.0)  # nan before the first pass
    return np.clip(np.sqrt(ratio * caution), _LEAST_CAUTION, 1.0)


def _conclude_passes(state: State, rule: StopRule, trained: np.ndarray, estimates: Estimates) -> None:
    """Choose the lanes that are certified next: where success is expected, or all passes were made."""
    lanes = state.lanes
    previous, whole = lanes["estimate"][trained], ~lanes["shrunk"][trained]
    for name, array in estimates._asdict().items():
        lanes[name][trained] = array[trained]
    lanes["whole"][trained] = whole
    lanes["shrunk"][trained] |= state.totals[trained, N_SHRUNK] > 0
    size, caution = np.abs(lanes["estimated_primal"][trained]), lanes["caution"][trained]
    if rule.tol is not None:
        expected = _expected_gaps(lanes, trained, previous)
        hopeful = expected <= caution * rule.tol * size
        hopeful |= size <= caution * lanes["negligible"][trained]
    else:
        hopeful = _is_optimal(lanes, rule)[trained]
    ends = hopeful | _has_made_all_passes(lanes, rule)[trained]
    lanes["phase"][trained[ends]] = CERTIFY
    if rule.eps is not None:  # where it holds for the rows that are left
        restore(state, trained[~ends & (lanes["seen_violation"][trained] <= rule.eps)])


def _expected_gaps(lanes: Lanes, trained: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """Return the gaps expected of certificates, from the estimates of this pass and of the `previous` one.

    Each row's term was computed before the row's own step, on average halfway through the pass, so at the end of the pass
    their sum is smaller, by about the factor by which the estimate fell since the previous pass. The distance of w from
    w(alpha), which acceleration adds to the estimate, is measured at the end.
    """
    estimate = lanes["estimate"][trained]
    at_end = lanes["distance"][trained] if "distance" in lanes else np.zeros_like(estimate)
    fall = np.ones_like(estimate)
    np.divide(estimate, previous, out=fall, where=previous > 0.0)  # nan before the first pass
    return (estimate - at_end) * np.minimum(fall, 1.0) + at_end


def restore(state: State, lanes: np.ndarray) -> None:
    """Make all rows of these lanes active again in the next read, and reset the shrinking thresholds."""
    state.lanes["restore"][lanes] = True
    state.lanes["shrunk"][lanes] = False
    state.lanes["high"][lanes] = np.inf
    state.lanes["low"][lanes] = -np.inf


def reopen(state: State, rule: StopRule) -> None:
    """Decide anew, by this rule, about lanes that are done; those that have no reason to be train again, with all rows."""
    lanes, done = state.lanes, np.flatnonzero(state.lanes["phase"] == DONE)
    _end(lanes, done, _decide(lanes, rule))
    again = done[lanes["phase"][done] == TRAIN]
    lanes["caution"][again] = 1.0
    restore(state, again)
