"""Mathematics of a round of block-diagonal dual steps, for any engine.

The dual is ``f(a) = ½‖w(a)‖² + g(a)``, ``w(a) = Σ_k A_k a_k`` over K partitions of the rows. In a round, partition k makes
passes of coordinate descent on its own rows from the common `w`, on the model

    m_k(Δa) = w·A_kΔa + ½ s ‖A_kΔa‖² + g_k(a_k + Δa),        1 <= s <= K,

where s, CoCoA+'s sigma', accounts for the simultaneous steps of the other partitions: each row stands for s similar rows.
With ``b = s a`` it is, up to a factor s, the partition's own dual with costs s C, so the kernels are those of one process.
Then

    1. Δw = Σ Δw_k, and one step eta along Δa is taken, exact to rounding (hinge, squared hinge, Crammer-Singer: f is
       quadratic along it) or by Newton's method in one variable (logistic, multinomial). ``m_k(Δa) < m_k(0)``, m_k is
       convex and has the slope of f at 0: so f descends along Δa whatever s is, and never rises from round to round.
       ``eta = 1/K`` is always safe, and is taken where rounding hides the slope's sign; a slope above the rounding is an
       error, and no step is taken.
    2. The next s is ``‖Σ Δw_k‖² / Σ ‖Δw_k‖²`` in [1, K], to a power of two (a scaling that loses no bit): with that s the
       models would have added up to f. It is 1 where the partitions' changes are orthogonal (wide text), K
       where they are all the same.
    3. **A part of the shards is reassigned** (`assignment`). Block methods converge slowly because their partitions are
       fixed: the division of `w` among the A_k a_k is determined by g alone, and where g is flat it keeps drifting. New
       blocks mix it anew.

An accelerated lane (`solvers.acceleration`) makes the round on the dual of its proximal point, in which ``½ mu ‖w‖²`` stands
for ``½‖w‖²``: the models have s mu for s, and the slope ``mu w·Δw``. Its next round begins at another centre.

Sources: Lee and Chang, Machine Learning 108 (2019), for the block-diagonal step with an exact line search; Ma et al.,
ICML 2015 (CoCoA+), for s, there fixed at K; Ioannou et al., NeurIPS 2019 (SySCD), who reassign rows to threads in every
pass.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.errors import EnvironmentFailure
from ..kernels.loss_table import CLASSES, LOG_LOSS
from ..kernels.rounds import CURVATURE, DUAL_CHANGE, LINEAR, LONGEST, MAGNITUDE, QUADRATIC, SLOPE
from ..solvers.problem import Problem

_ROUNDING = 1e-9  # a slope below this share of the magnitudes summed has no reliable sign
_SLOPE_LEFT = 1e-4  # Newton's method ends where the slope has fallen to this share of its value at 0
_NARROW = 1e-3  # or where the dual still falls, and the longest step is within this share of eta
_MAX_EVALUATIONS = 30
_EXCEEDED = 1.05  # times sigma': a quotient above it is no rounding


def new_direction(n_lanes: int) -> np.ndarray:
    """Return the sums of `kernels.rounds.add_direction`, shape (lanes, 5), before the first row."""
    sums = np.zeros((n_lanes, 5))
    sums[:, LONGEST] = np.inf
    return sums


# ---------------------------------------------------------------------------------------------------------------------
# The step


def quadratic_step(
    product: np.ndarray, squared: np.ndarray, sums: np.ndarray, n_partitions: int
) -> np.ndarray:
    """Find the exact step of every lane where the dual is quadratic: ``-(∇f·Δa) / (‖Δw‖² + Σ D Δa²)``, cut at the longest.

    Where epsilon is not 0 the sums are those of a quadratic that bounds the dual (`kernels.rounds.add_direction`).

    `product` and `squared` are ``w·Δw`` and ``‖Δw‖²`` per lane, `sums` those of `kernels.rounds.add_direction`. A direction
    that does not descend is an error.
    """
    slope = product + sums[:, LINEAR]
    curvature = squared + sums[:, QUADRATIC]
    eta = np.ones(slope.size)
    for lane in np.flatnonzero((slope != 0.0) | (curvature != 0.0)).tolist():
        if _descends(product[lane], sums[lane], lane):
            best = -slope[lane] / curvature[lane] if curvature[lane] > 0.0 else np.inf
            eta[lane] = min(best, sums[lane, LONGEST])
        else:
            eta[lane] = 1.0 / n_partitions
        if not np.isfinite(eta[lane]):
            eta[lane] = 1.0
    return eta


def newton_step(
    product: np.ndarray,
    squared: np.ndarray,
    sums: np.ndarray,
    n_partitions: int,
    evaluate: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray, int]:
    """Find the step of every lane by safeguarded Newton's method on the slope in eta.

    At an eta per lane `evaluate` returns the sums over all rows of `add_slopes`; the rest is as in `quadratic_step`. Returns
    eta, the change of the rows' terms of the dual per lane, and the number of evaluations.
    """
    start = product + sums[:, LINEAR]
    moving = np.isfinite(sums[:, LONGEST])
    low = np.zeros(start.size)
    high = np.where(moving, sums[:, LONGEST] * (1.0 - 1e-9), 1.0)
    eta = np.minimum(1.0, 0.5 * (low + high))
    eta[~moving] = 1.0
    solved = ~moving
    for lane in np.flatnonzero(moving).tolist():
        if not _descends(product[lane], sums[lane], lane):
            eta[lane] = 1.0 / n_partitions
            solved[lane] = True
    for count in range(1, _MAX_EVALUATIONS + 1):
        values = evaluate(eta)
        slope = product + eta * squared + values[:, SLOPE]
        solved |= np.abs(slope) <= _SLOPE_LEFT * np.abs(start)
        # only a row near its bound limits the step, and adds nothing to the sum: not worth another evaluation on workers
        solved |= (slope < 0.0) & (high - eta <= _NARROW * eta)
        last = count == _MAX_EVALUATIONS - 1
        if solved.all() or count == _MAX_EVALUATIONS:
            break
        low = np.where(slope < 0.0, eta, low)
        high = np.where(slope < 0.0, high, eta)
        curvature = np.where(solved, 1.0, squared + values[:, CURVATURE])
        newton = eta - slope / curvature
        inside = (newton > low) & (newton < high)
        # the slope is unbounded at the longest step: where Newton's step lies beyond, go nearer by a digit at a time
        outside = np.where(newton >= high, low + 0.9 * (high - low), 0.5 * (low + high))
        following = np.where(inside, newton, outside)
        if last:  # the lower end descends for certain
            following = np.where(low > 0.0, low, 1.0 / n_partitions)
        eta = np.where(solved, eta, following)
    return eta, values[:, DUAL_CHANGE], count


def next_sigma_prime(
    squared: np.ndarray, apart: np.ndarray, n_partitions: int, sigma_prime: np.ndarray
) -> np.ndarray:
    """Choose sigma' of the next round: a power of two near ``‖Σ Δw_k‖² / Σ ‖Δw_k‖²`` in [1, K].

    The nearest one; the next above where the round's `sigma_prime` was smaller than the quotient: the step came out short
    then (eta about 0.6), and rounding to the nearest could keep it short for many rounds. It takes a
    quarter fewer rounds so. `squared` and `apart` are these two sums per lane; 1 is the answer where nothing moved.
    """
    ratio = np.divide(squared, apart, out=np.ones_like(squared), where=apart > 0.0)
    power = np.log2(np.clip(ratio, 1.0, n_partitions))
    was_small = ratio > _EXCEEDED * sigma_prime
    chosen: np.ndarray = np.exp2(np.where(was_small, np.ceil(power), np.rint(power)))
    return chosen


def alpha_columns(problem: Problem, per_lane: np.ndarray) -> np.ndarray:
    """Expand a value per lane to one per column of the dual variables."""
    if problem.form == CLASSES:
        return np.repeat(per_lane, problem.classes.size)
    return np.tile(per_lane, 2) if problem.row_loss.kind == LOG_LOSS else per_lane


def _descends(product: float, sums: np.ndarray, lane: int) -> bool:
    """Return whether the direction descends; False where rounding hides the sign of its slope."""
    linear = sums[LINEAR]
    slope = product + linear
    if slope < 0.0:
        return True
    if slope <= _ROUNDING * (abs(product) + abs(linear) + sums[MAGNITUDE]):
        return False
    raise EnvironmentFailure(
        f"problem {lane + 1}: the workers' joint step does not descend (slope {slope:.3g} = {product:.3g} + {linear:.3g}), "
        "which is impossible with sound data and arithmetic; nothing was applied. 'streamcd verify DATASET', and check "
        "that all workers see the same files"
    )


def lane_products(u: np.ndarray, v: np.ndarray, n_lanes: int) -> np.ndarray:
    """Sum ``u * v`` per lane, of arrays of shape (rows, vectors)."""
    return np.einsum("ij,ij->j", u, v).reshape(n_lanes, -1).sum(axis=1)


def lane_columns(lanes: np.ndarray, n_lanes: int, n_vectors: int) -> np.ndarray:
    """Return the columns of `w` that belong to these lanes."""
    per_lane = n_vectors // n_lanes
    return (lanes[:, None] * per_lane + np.arange(per_lane)).reshape(-1)
