"""Stopping rules for all solvers: after every read, decide which lanes are certified, restored, or done.

During a training read the active rows' terms of the gap are summed to an estimate; once it predicts that a certificate will
succeed, the lane spends a read over all rows at fixed w. Only that read decides, so a bad estimate can delay a result, but
not make it wrong. If the certificate fails, it is tried again at half the estimate, or with acceleration by how wrong that
was; if the gap lies in shrunk rows, they are restored. (The usual rule, to wait until the estimate over a shrunk set is a
tenth of the allowed gap, takes up to twice the passes.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..core.errors import DatasetError, UsageError
from ..dataset.dataset import Dataset
from ..kernels.losses import add_losses
from ..kernels.primitives import DUAL, GAP, LOSS, N_ACTIVE, N_SHRUNK, NO_STEP, UNIT
from ..solvers.problem import Problem
from ..solvers.protocol import CERTIFY, DONE, START, TRAIN, Estimate, Solver, State

BY_GAP, BY_VIOLATION, BY_MAX_PASSES, BY_ROUNDING, BY_TIME, BY_ZERO = 1, 2, 3, 4, 5, 7
REASONS = {
    0: "unfinished",
    BY_GAP: "gap",
    BY_VIOLATION: "violation",
    BY_MAX_PASSES: "max_passes",
    # but for rounding the gap is within the tolerance, and all passes were made, or one that changed no objective
    BY_ROUNDING: "rounding",
    BY_TIME: "time",  # of the session; never in a state
    BY_ZERO: "zero",  # the objective is below the rounding of that of w = 0, and not proven to be above 0
}
"""Reasons why a lane ended, by the number in its state."""

_OUTSIDE = 2.0  # a certified gap this many times the estimate lies in shrunk rows, or in features that were not visited
_LEAST_CAUTION = 0.005  # with 0.05 a twin training took 44 certificates in place of 3
_UNSEEN = 0.6  # of such a gap that is expected to remain after another pass, which visits about this share of the features
_NEAR = 1.5  # times the allowed gap is as small as the extrapolated one has to be; with 1 letter took 90 passes, not 82
_STAYS = 1e-13  # of the objective: by less it changes at an optimum, by rounding
_SLOWEST = 0.97  # per pass: the least fall by which the gaps of failed certificates are extrapolated


CERTIFIED = ("primal", "dual", "gap", "violation", "rounding", "primal_rounding")
"""Arrays of a certificate (`protocol.Solver.certificate`)."""


@dataclass(frozen=True)
class StopRule:
    """Conditions for stopping; exactly one of `tol` and `eps` is given."""

    tol: float | None  # largest relative duality gap, (primal - dual) / primal
    eps: float | None  # LIBLINEAR 2.50's rule: M - m, |M| and |m| at most eps over a full pass
    max_passes: int  # training passes of a lane
    negligible: ClassVar[Any] = np.zeros(1)

    def __post_init__(self) -> None:
        if (self.tol is None) == (self.eps is None):
            raise UsageError(
                f"expected one stopping rule, found {'neither' if self.tol is None else 'both'}: give the relative gap "
                "(tol) or LIBLINEAR's eps"
            )
        for name, number in (("tol", self.tol), ("eps", self.eps)):
            if number is not None and not (np.isfinite(number) and number >= 0):
                raise UsageError(f"{name}: expected a number >= 0, found {number}")
        if self.max_passes < 1:
            raise UsageError(f"max_passes: expected at least 1, found {self.max_passes}")


@dataclass(frozen=True)
class LaneRule(StopRule):
    """Conditions for stopping with the objective of every lane, (lanes,), up to which it is taken for 0."""

    negligible: Any = None  # type: ignore[misc]


def rounding_at_zero(problem: Problem, dataset: Dataset, *, centred: bool) -> np.ndarray:
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


def make_rule(tol: float | None, eps: float | None, max_passes: int) -> StopRule:
    """Make the stopping rule: a relative gap of 1e-3 if neither rule is given."""
    if tol is None and eps is None:
        tol = 1e-3
    gap, violation = (None if number is None else float(number) for number in (tol, eps))
    return StopRule(gap, violation, int(max_passes))


def new_lane_arrays(n_lanes: int) -> dict[str, np.ndarray]:
    """Make the per-lane arrays of the rules."""
    numbers = {
        name: np.full(n_lanes, np.nan)
        for name in ("estimate", *CERTIFIED, "estimated_primal", "seen_violation")
    }
    return {
        **numbers,
        "passes": np.zeros(n_lanes, dtype=np.int64),
        "n_active": np.zeros(n_lanes, dtype=np.int64),
        "shrunk": np.zeros(n_lanes, dtype=bool),
        "reason": np.zeros(n_lanes, dtype=np.int64),
        "converged": np.zeros(n_lanes, dtype=bool),
        # share of the allowed gap that the estimate has to reach; smaller after a failure
        "caution": np.ones(n_lanes),
    }


def update_lane_phases(state: State, rule: StopRule, solver: Solver, data: str) -> None:
    """Decide what each lane does next, from the totals of the read that ended; changes `state` in place.

    Raises `DatasetError`, which names `data`, if sums or certificates are not finite.
    """
    _refuse_infinite(state, data)
    if solver.estimate == "exact":
        _count_certified_passes(state, rule, solver)
    certified, trained = state.phase(START, CERTIFY), state.phase(TRAIN)
    estimates = solver.conclude_pass(state, trained)
    if certified.size:
        _conclude_certificates(state, rule, solver)
    if trained.size:
        _update_training_lanes(state, rule, solver, trained, estimates)
    if certified.size and not state.pause:
        solver.adopt_certified_w(state, certified)
    _refuse_infinite(state, data)


def _refuse_infinite(state: State, data: str) -> None:
    certificates = np.array([state.lanes["primal"], state.lanes["dual"]])  # nan before the first
    if np.isfinite(state.totals[:, [GAP, LOSS, DUAL]]).all() and not np.isinf(certificates).any():
        return
    raise DatasetError(
        f"{data}: the sums over its rows are not finite: values too large for these weights and C, or not finite; "
        "'streamcd verify' finds the latter; 'convert --scale maxabs', or a smaller C or bias, mends the former"
    )


def reopen(state: State, rule: StopRule, solver: Solver) -> bool:
    """Resume training of lanes that are done but do not satisfy this rule; returns True if there are any.

    All rows return at once, but where the solver has them return every few passes, and declares that to be enough.
    """
    lanes = state.lanes
    if state.pause and _goes_on(state, rule):
        _unpause(state, solver)
    done = lanes["phase"] == DONE
    if not done.any():
        return False
    stopped = np.zeros(done.size, dtype=bool)
    satisfied = _satisfied(state, rule)
    if rule.tol is not None:  # perhaps a looser one than that of the passes which have ended
        if solver.estimate == "exact" and rule.tol > 0.0:
            stopped |= (lanes["reason"] == BY_ROUNDING) & _only_rounding(lanes, rule.tol)
        reached = done & satisfied & np.isin(lanes["reason"], (BY_MAX_PASSES, BY_ROUNDING))
        lanes["converged"][reached], lanes["reason"][reached] = True, _by_gap_or_zero(lanes, rule)[reached]
    unsatisfied = done & ~satisfied & ~stopped
    again = unsatisfied & (lanes["passes"] < rule.max_passes) & (not state.pause)
    lanes["reason"][unsatisfied & lanes["converged"]] = BY_MAX_PASSES
    lanes["converged"][unsatisfied] = False
    lanes["phase"][again] = TRAIN
    lanes["reason"][again] = 0
    lanes["caution"][again] = 1.0
    restore(state, np.flatnonzero(again & ~solver.recalling(state)))
    return bool(again.any())


def pause(state: State, rule: StopRule, solver: Solver) -> None:
    """End the run where a lane has made its passes: all open lanes are certified next, for the result alone.

    The state is otherwise kept, and what the certificate changes is copied to ``state.pause``: a run that is resumed goes on
    as if it had not ended. Lanes that missed a pass for a certificate of their own end too, as in later reads others would
    miss one. Where passes are certificates themselves (`Solver.estimate` "exact") there is nothing to keep.
    """
    lanes, is_open = state.lanes, state.lanes["phase"] != DONE
    if state.pause or solver.estimate == "exact" or not (lanes["passes"][is_open] >= rule.max_passes).any():
        return
    state.pause = {f"lane_{name}": array.copy() for name, array in lanes.items()}
    state.pause |= {f"array_{name}": array.copy() for name, array in solver.changed_at_end(state).items()}
    state.pause["read"] = np.array(state.read)
    lanes["phase"][is_open], lanes["restore"][:] = CERTIFY, False
    lanes["reason"][is_open & (lanes["reason"] == 0)] = BY_MAX_PASSES


def _goes_on(state: State, rule: StopRule) -> bool:
    """Tell whether a run that has ended at its passes is to make more."""
    lanes = state.lanes
    ended = (lanes["phase"] == DONE) & _satisfied(state, rule)
    open_before = state.pause["lane_phase"] != DONE
    return bool((~ended).any() and state.pause["lane_passes"][open_before].max() < rule.max_passes)


def _unpause(state: State, solver: Solver) -> None:
    """Return to the state before the certificate at the end."""
    for name, array in state.lanes.items():
        array[:] = state.pause[f"lane_{name}"]
    for name, array in solver.changed_at_end(state).items():
        array[:] = state.pause[f"array_{name}"]
    state.read, state.pause = int(state.pause["read"]), {}


def _satisfied(state: State, rule: StopRule) -> np.ndarray:
    lanes = state.lanes
    if rule.tol is not None:
        return _gap_reached(lanes, rule)
    return lanes["converged"] & (lanes["seen_violation"] <= rule.eps)


def _gap_reached(lanes: dict[str, np.ndarray], rule: StopRule) -> np.ndarray:
    """Mark the lanes whose gap is proven to be within the tolerance, whatever the rounding of the primal objective.

    Where the optimum is 0 no gap is small beside it: there the objective itself has to be as good as 0.
    """
    least_primal = np.abs(lanes["primal"]) - lanes["primal_rounding"]
    return np.asarray(lanes["gap"] <= rule.tol * least_primal) | _is_zero(lanes, rule)


def _is_zero(lanes: dict[str, np.ndarray], rule: StopRule) -> np.ndarray:
    """Mark the lanes with an objective as good as 0, and no proof of a positive one."""
    size = np.abs(lanes["primal"])
    return np.asarray((size <= rule.negligible) & (lanes["dual"] <= 0.0))


def _by_gap_or_zero(lanes: dict[str, np.ndarray], rule: StopRule) -> np.ndarray:
    return np.where(_is_zero(lanes, rule) & ~(lanes["gap"] == 0.0), BY_ZERO, BY_GAP)


def _only_rounding(lanes: dict[str, np.ndarray], tol: float) -> np.ndarray:
    """Mark the lanes whose gap would be within the tolerance without rounding."""
    return np.asarray(lanes["gap"] - lanes["rounding"] <= tol * np.abs(lanes["primal"]))


def restore(state: State, lanes: np.ndarray) -> None:
    """Make all rows of these lanes active again in the next read, and reset the shrinking thresholds."""
    state.lanes["restore"][lanes] = True
    state.lanes["shrunk"][lanes] = False
    state.lanes["high"][lanes] = np.inf
    state.lanes["low"][lanes] = -np.inf


def _conclude_certificates(state: State, rule: StopRule, solver: Solver) -> None:
    lanes = state.lanes
    starting = state.phase(START)
    proof = solver.certificate(state)
    change = np.abs(proof["primal"] - lanes["primal"])
    ended = (solver.estimate == "exact" and bool(rule.tol)) & (change <= _STAYS * np.abs(proof["primal"]))
    lanes["dual_sum"][state.phase(START, CERTIFY)] = state.totals[state.phase(START, CERTIFY), DUAL]
    lanes["phase"][starting] = TRAIN
    for lane in state.phase(CERTIFY):
        for name in CERTIFIED:
            lanes[name][lane] = proof[name][lane]
        gap_reached = rule.tol is not None and bool(_gap_reached(lanes, rule)[lane])
        if gap_reached:
            lanes["reason"][lane] = _by_gap_or_zero(lanes, rule)[lane]
        elif rule.tol is not None and (
            (lanes["reason"][lane] or ended[lane]) and _only_rounding(lanes, rule.tol)[lane]
        ):
            lanes["reason"][lane] = BY_ROUNDING
        if solver.estimate == "exact":
            lanes["estimate"][lane], lanes["estimated_primal"][lane] = (
                lanes["gap"][lane],
                lanes["primal"][lane],
            )
        lanes["converged"][lane] = gap_reached or lanes["reason"][lane] == BY_VIOLATION
        if lanes["reason"][lane]:
            lanes["phase"][lane] = DONE
            continue
        lanes["phase"][lane] = TRAIN
        lanes["caution"][lane] = _caution_after_failure(lanes, lane, solver.estimate)
        if solver.estimate == "noisy":
            _record_failure(lanes, lane)
        if lanes["shrunk"][lane] and lanes["gap"][lane] > _OUTSIDE * lanes["estimate"][lane]:
            restore(state, np.array([lane]))


def _count_certified_passes(state: State, rule: StopRule, solver: Solver) -> None:
    """Count passes that are certificates themselves, and choose where lanes stop for another reason than the gap."""
    lanes, trained = state.lanes, state.phase(TRAIN)
    lanes["passes"][trained] += 1
    lanes["n_active"][trained] = state.totals[trained, N_ACTIVE].astype(np.int64)
    lanes["seen_violation"][trained] = solver.violation(state)[trained]
    lanes["phase"][trained] = CERTIFY
    at_end = lanes["passes"][trained] >= rule.max_passes
    lanes["reason"][trained[at_end]] = BY_MAX_PASSES
    if rule.eps is not None:
        lanes["reason"][trained[lanes["seen_violation"][trained] <= rule.eps]] = BY_VIOLATION


def _update_training_lanes(
    state: State, rule: StopRule, solver: Solver, trained: np.ndarray, estimates: np.ndarray
) -> None:
    lanes, totals = state.lanes, state.totals[trained]
    lanes["passes"][trained] += 1
    lanes["dual_sum"][trained] += totals[:, DUAL]
    lanes["n_active"][trained] = totals[:, N_ACTIVE].astype(np.int64)
    previous, was_shrunk = lanes["estimate"].copy(), lanes["shrunk"].copy()
    lanes["estimate"][trained] = estimates[trained]
    lanes["estimated_primal"][trained] = solver.estimated_primals(state, estimates)[trained]
    lanes["seen_violation"][trained] = solver.violation(state)[trained]
    lanes["shrunk"][trained] |= totals[:, N_SHRUNK] > 0
    for lane in trained.tolist():
        _update_phase(state, rule, lane, float(previous[lane]), bool(was_shrunk[lane]), solver.estimate)


def _update_phase(
    state: State, rule: StopRule, lane: int, previous: float, was_shrunk: bool, kind: Estimate
) -> None:
    """Decide what a lane does after training, given its previous estimate and whether it was shrunk before this read."""
    lanes, primal = state.lanes, float(state.lanes["estimated_primal"][lane])
    if rule.tol is not None:
        expected, allowed = _expected_gap(lanes, lane, previous, kind), rule.tol * abs(primal)
        near = kind != "noisy" or _extrapolated_gap(lanes, lane) <= _NEAR * allowed
        hopeful = expected <= lanes["caution"][lane] * allowed and near
        if hopeful or abs(primal) <= lanes["caution"][lane] * rule.negligible[lane]:
            lanes["phase"][lane] = CERTIFY
    elif rule.eps is not None and lanes["seen_violation"][lane] <= rule.eps:
        if was_shrunk:
            restore(state, np.array([lane]))
        else:
            lanes["phase"][lane], lanes["reason"][lane] = CERTIFY, BY_VIOLATION


def _expected_gap(lanes: dict[str, np.ndarray], lane: int, previous: float, kind: Estimate) -> float:
    """Return the gap expected of a certificate, from the estimates of this pass and of the `previous` one.

    Each row's term was computed before the row's own step, on average halfway through the pass, so at the end of the pass
    their sum is smaller, by about the factor by which the estimate fell since the previous pass. The distance of w from
    w(alpha), which acceleration adds to the estimate, is measured at the end.
    """
    estimate = float(lanes["estimate"][lane])
    fall = min(estimate / previous, 1.0) if previous > 0 else 1.0  # nan in the first pass
    if kind == "noisy":
        lanes["unseen_gap"][lane] *= _UNSEEN
        return max(estimate * fall, float(lanes["unseen_gap"][lane]))
    if kind == "plain":
        return estimate * fall
    at_end = float(lanes["distance"][lane])
    lanes["known_estimate"][lane] = estimate
    return (estimate - at_end) * fall + at_end


def _caution_after_failure(lanes: dict[str, np.ndarray], lane: int, kind: Estimate) -> float:
    """Return the share of the allowed gap that the expected gap has to reach after a failed certificate.

    With acceleration it goes by the ratio of the estimate to the certified gap: accelerated passes gain so much that halving
    would cost a tenth to a fifth of them. An estimate above the gap was right, and only the fall expected beside it did not
    come: that of a first pass, which has the losses of new rows. The caution until then counts as much as the ratio, as the
    point where a pass ends may be worse than those around it.
    """
    if kind == "noisy" and lanes["gap"][lane] > _OUTSIDE * lanes["estimate"][lane]:
        lanes["unseen_gap"][lane] = lanes["gap"][lane]
    if kind != "proximal":
        return max(0.5 * float(lanes["caution"][lane]), 0.05)
    ratio = 0.97 * float(lanes["known_estimate"][lane] / lanes["gap"][lane])
    return max(math.sqrt(min(ratio, 1.0) * float(lanes["caution"][lane])), _LEAST_CAUTION)


def _extrapolated_gap(lanes: dict[str, np.ndarray], lane: int) -> float:
    """Return the gap of this pass by extrapolation of the last two failed certificates.

    Where estimates are noisy the smallest of them is not that of the smallest gap: the online method has seen estimates of
    a fourteenth to a half of the gaps that were then certified.
    """
    age = lanes["passes"][lane] - lanes["failed_at"][lane]
    return float(lanes["failed_gap"][lane] * lanes["gap_fall"][lane] ** age)


def _record_failure(lanes: dict[str, np.ndarray], lane: int) -> None:
    """Keep the gap of a failed certificate, and its fall per pass since the one before."""
    gap, n_passes = float(lanes["gap"][lane]), float(lanes["passes"][lane])
    previous, since = float(lanes["failed_gap"][lane]), n_passes - float(lanes["failed_at"][lane])
    fell = 0.0 < gap < previous and since > 0.0
    lanes["gap_fall"][lane] = min((gap / previous) ** (1.0 / since), _SLOWEST) if fell else 0.0
    lanes["failed_gap"][lane], lanes["failed_at"][lane] = gap, n_passes
