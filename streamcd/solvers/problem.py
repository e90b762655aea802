"""The objective: loss, costs, signs, bias; and the losses of rows with given scores.

Objective: ``½‖w‖² + Σ_i C_i loss(y_i w·x_i)`` per lane, with ``C_i = C · class_weight[y_i] · weight_i`` (LIBLINEAR's).
A lane is one binary problem on the same rows: a sign per class, a C, and a fold that it leaves out. Where rows have targets,
numbers to predict, the loss is that of ``w·x_i`` and y_i: all rows are of one kind, as if of one class, with the sign 1.

A twin plane of class k is a lane too. It is fitted to the rows of k and keeps the others at a distance:
``r/2 ‖w‖² + ½ Σ_k weight_i (w·x_i)² + Σ_others C_i loss(w·x_i)``. Divided by r it has the form above, with the loss ``½ t²``
for rows of k (whose y is -1) and costs divided by r. All objectives and dual variables here and in the solvers have this
form; those shown to users are multiplied by r, `Problem.scale`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.memory_budget import BLOCK_WEIGHTS, require
from ..core.setting import default_code, diagonal_view
from ..kernels.loss_table import CLASSES, LOG_LOSS, LOSSES, MARGINS, MULTINOMIAL, PLANES, Loss, row_loss
from ..kernels.losses import add_losses
from ..kernels.primitives import Costs

LEAST_COST = 1e-60
LEAST_WEIGHT = 1e-30
"""C times a class's weight, and a row's weight, are 0 or lie between these and their inverses: the squares of their products
stay finite, as does the smallest dual variable of the logistic loss divided by one."""

_MAX_TABLE = 1 << 18  # elements of a table of classes and lanes that is stored in full: 2 MB


@dataclass(frozen=True)
class Lane:
    """One binary problem."""

    label: float | None  # class on the positive side; None if there is no single one
    C: float
    fold: int = -1  # fold that is left out; -1 for none
    l1: float = 0.0  # λ of the penalty


@dataclass(frozen=True)
class Problem:
    """All lanes of a run; k classes. Made by `make_problem`."""

    loss: str  # a key of `loss_table.LOSSES`
    classes: np.ndarray  # (k,) float64; none where rows have targets
    lanes: tuple[Lane, ...]
    # (k, vectors) int8: sign of each class for each weight vector of one (C, fold); 0 leaves it out
    code: np.ndarray
    # (k, lanes) float64: y of a row of that class in that lane; (1, lanes) where rows have targets
    sign: np.ndarray
    cost: np.ndarray  # like `sign`: C times the class weight
    lane_fold: np.ndarray  # (lanes,) int64
    n_folds: int  # 0 for none
    bias: float  # value of the constant feature appended to every row; 0 for none
    n_features: int
    l2: float = 1.0  # the penalty of a lane is l1 Σ|w_j| + l2/2 ‖w‖²; 1 without L1
    strength: float = 1.0  # r of r/2 ‖w‖² without L1, by which the objective is divided
    free_bias: bool = False  # the bias's weight is not penalised
    ridge: float = 1.0  # r of the twin planes
    slack: str = "hinge"  # loss of rows that a twin plane keeps at a distance, a key of `loss_table.SLACKS`
    parameter: float = 0.0  # of the loss, if it has one

    # computed from these
    n_lanes: int = field(init=False)
    n_kinds: int = field(init=False)  # number of classes; 1 where rows have targets
    has_targets: bool = field(init=False)  # rows have numbers to predict, rather than classes
    form: str = field(init=False)  # of the loss
    row_loss: Loss = field(init=False)  # as kernels take it
    lane_vectors: int = field(
        init=False
    )  # weight vectors of a lane: one, or one per class for losses of all classes
    n_vectors: int = field(init=False)  # of all lanes
    vectors: np.ndarray = field(init=False)  # (lanes, lane_vectors) int64: the weight vectors of each lane
    block_lanes: int = field(init=False)  # lanes of one classifier, with one C and fold
    scale: float = field(init=False)  # factor from the lanes' objectives to the user's
    penalised: slice = field(init=False)  # rows of w that are in the penalty
    l1: np.ndarray = field(init=False)  # (lanes,) float64: λ
    costs: Costs = field(init=False)  # as kernels take it
    full_table_bytes: int = field(init=False)  # of a float64 table of classes and lanes; 0 if it is small
    table_bytes: int = field(
        init=False
    )  # of `sign` and `cost`; 0 if they are small, or views made by `_lane_tables`

    def __post_init__(self) -> None:
        entry = LOSSES[self.loss]
        n_lanes = len(self.lanes)
        of_classes = entry.form == CLASSES
        width = int(self.classes.size) if of_classes else 1
        loss = row_loss(self.loss, self.slack, self.parameter)
        left_out = np.zeros((self.n_folds + 1, 256), np.bool_)
        np.fill_diagonal(left_out[: self.n_folds], True)
        is_large = self.sign.size > _MAX_TABLE
        tables = [table for table in (self.sign, self.cost) if is_large and table.flags.c_contiguous]
        vars(self).update(
            n_lanes=n_lanes,
            n_kinds=int(self.sign.shape[0]),
            has_targets=entry.has_targets,
            form=entry.form,
            row_loss=loss,
            lane_vectors=width,
            n_vectors=n_lanes * width,
            vectors=np.arange(n_lanes * width).reshape(n_lanes, width),
            block_lanes=1 if of_classes else int(self.code.shape[1]),
            scale=self.ridge if entry.form == PLANES else self.strength,
            penalised=slice(-1 if self.free_bias else None),
            l1=np.array([lane.l1 for lane in self.lanes]),
            costs=Costs(loss, self.bias, self.sign, self.cost, self.lane_fold, left_out),
            full_table_bytes=8 * self.sign.size if is_large else 0,
            table_bytes=sum(table.nbytes for table in tables),
        )

    def subset(self, lanes: Sequence[int] | np.ndarray) -> Problem:
        chosen = np.asarray(lanes, dtype=np.int64)
        return replace(
            self,
            lanes=tuple(self.lanes[lane] for lane in chosen),
            sign=_take_lanes(self.sign, chosen),
            cost=_take_lanes(self.cost, chosen),
            lane_fold=self.lane_fold[chosen],
        )

    def row_costs(self, code: np.ndarray, weight: np.ndarray, fold: np.ndarray) -> np.ndarray:
        """Return C_i of rows in every lane, (rows, lanes); 0 where a lane leaves a row out; `code` holds their classes."""
        cost = self.cost[code] * weight[:, None]
        if self.n_folds:
            cost[self.costs.left_out[self.lane_fold, fold[:, None]]] = 0.0
        return cost

    def row_labels(self, code: np.ndarray, target: np.ndarray | None) -> np.ndarray:
        """Return y of rows in every lane, (rows, lanes): the signs of their classes `code`, or their targets."""
        if self.has_targets:
            assert target is not None
            return np.repeat(target[:, None], self.n_lanes, axis=1)
        return np.asarray(self.sign[code])

    def penalty(self, w: np.ndarray) -> np.ndarray:
        """Compute g of every vector, see `kernels.penalties`."""
        rows = w[self.penalised]
        ridge = np.asarray(0.5 * self.l2 * np.einsum("ij,ij->j", rows, rows))
        return ridge + self.l1 * np.abs(rows).sum(axis=0) if self.l1.any() else ridge

    def add_losses_at_zero(
        self, total: np.ndarray, kinds: np.ndarray, weights: np.ndarray, targets: np.ndarray, shift: float
    ) -> None:
        """Add every lane's losses of some rows with all weights 0 to `total`, (lanes,).

        `kinds` are the rows' classes times the folds, plus their folds; `weights` is empty if all are 1, `targets`, by
        `shift` too small, where rows have classes.
        """
        loss = self.row_loss
        entropy = math.log(max(self.lane_vectors, 2)) if loss.kind in (LOG_LOSS, MULTINOMIAL) else 1.0
        # by blocks, one of which is made of no rows, too: that loads the kernel
        for start in range(0, max(kinds.size, 1), BLOCK_WEIGHTS):
            rows = slice(start, start + BLOCK_WEIGHTS)
            kind = kinds[rows]
            weight = np.ascontiguousarray(weights[rows])
            if self.has_targets:
                weight = losses_of(
                    loss, targets[rows] + shift, np.zeros(kind.size), weight if weight.size else np.ones(1)
                )
            sums = np.bincount(kind, weight if weight.size else None)
            of_block = np.zeros(self.n_lanes)
            # one by one: a table of classes and lanes may be a large view
            for number in np.flatnonzero(sums).tolist():
                code, fold = divmod(number, max(self.n_folds, 1))
                counts = self.lane_fold != fold
                if self.form == PLANES:  # the loss of the rows that a plane is fitted to is 0
                    counts &= self.sign[code] > 0
                of_block += sums[number] * (self.cost[code] * counts)
            total += entropy * of_block

    def class_factors(self, lanes: Sequence[int]) -> np.ndarray:
        """Return the factor on C of each class, in lanes of one C; 0 if none of them includes the class."""
        chosen = np.asarray(lanes, dtype=np.int64)
        cost = _take_lanes(self.cost, chosen)
        sign = _take_lanes(self.sign, chosen)
        if self.form == PLANES:  # C applies to the rows kept at a distance
            pairs = zip(cost, sign, strict=True)
            largest = self.ridge * np.array([costs[signs > 0].max(initial=0.0) for costs, signs in pairs])
        else:
            largest = cost.max(axis=1)
        factors: np.ndarray = largest / self.lanes[lanes[0]].C
        return factors


def _take_lanes(table: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """Return the columns of some lanes; a view if the table is a view and the lanes are adjacent."""
    if not table.flags.c_contiguous and (np.diff(lanes) == 1).all():
        return table[:, lanes[0] : lanes[-1] + 1]
    return np.ascontiguousarray(table[:, lanes])


def make_problem(
    *,
    loss: str,
    classes: np.ndarray | None,
    n_features: int,
    C: Sequence[float] = (1.0,),
    bias: float = -1.0,
    factors: np.ndarray | None = None,
    code: np.ndarray | None = None,
    n_folds: int = 0,
    free_bias: bool = False,
    l1: Sequence[float] = (0.0,),
    l2: float = 1.0,
    ridge: float = 1.0,
    slack: str = "hinge",
    parameter: float | None = None,
    memory: int | None = None,
) -> Problem:
    """Make the problem: for every C, every λ, and every fold left out (or none), a lane per column of the code matrix.

    `factors` multiply C for the rows of each class. A negative `bias` means none, as in LIBLINEAR; the code matrix is
    one-vs-rest by default, and a single column for targets. `parameter` is that of a loss that has one, or its default.

    Raises `UsageError` for values that do not go together, and if the budget `memory` is too small for tables of classes and
    lanes.
    """
    entry = LOSSES[loss]
    form = entry.form
    classes = np.zeros(0) if classes is None or entry.has_targets else classes
    factors = np.ones(max(classes.size, 1)) if factors is None else factors
    if free_bias and bias <= 0:
        raise UsageError(f"an unpenalised bias needs a bias > 0, found {bias:g}; give --bias 1 with it")
    costs = np.append([1.0] if form == PLANES else [], np.outer(C, factors)) / ridge
    wrong = costs[(costs != 0) & ~((costs >= LEAST_COST) & (costs <= 1 / LEAST_COST))]
    if wrong.size:
        raise UsageError(
            f"expected C times class weight / ridge 0 or from {LEAST_COST:g} to {1 / LEAST_COST:g}, found {wrong[0]:g}"
        )

    if code is not None:
        _check_code(code, loss, classes)
        signs = code
    else:
        signs = np.ones((1, 1), np.int8) if entry.has_targets else default_code(form, classes.size)

    positives = [np.flatnonzero(column > 0) for column in signs[: classes.size].T]
    labels = [float(classes[rows[0]]) if rows.size == 1 else None for rows in positives]
    lanes = [
        Lane(label, float(c), fold, float(strength))
        for c in C
        for strength in l1
        for fold in (range(n_folds) if n_folds else (-1,))
        for label in ([None] if form == CLASSES else labels)
    ]

    strength = 1.0 if any(l1) or form == PLANES else float(l2)
    lane_C = np.array([lane.C for lane in lanes]) / strength
    sign, cost = _lane_tables(form, signs, lane_C, factors, ridge, views=code is None, memory=memory)
    return Problem(
        loss=loss,
        classes=classes,
        lanes=tuple(lanes),
        code=signs[: classes.size],
        sign=sign,
        cost=cost,
        lane_fold=np.array([lane.fold for lane in lanes], dtype=np.int64),
        n_folds=n_folds,
        bias=max(float(bias), 0.0),
        n_features=n_features,
        l2=float(l2) / strength,
        strength=strength,
        free_bias=bool(free_bias),
        ridge=float(ridge),
        slack=slack,
        parameter=row_loss(loss, slack, parameter).parameter,
    )


def _lane_tables(
    form: str,
    code: np.ndarray,
    lane_C: np.ndarray,
    factors: np.ndarray,
    ridge: float,
    *,
    views: bool,
    memory: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Make the tables of signs and costs by class and lane; for many classes as views without memory, if possible.

    Views need the default code (`views`) and either equal class weights or a single C; twin planes need both.
    """
    shape = len(factors), lane_C.size
    one_factor, one_C = (bool((values == values[0]).all()) for values in (factors, lane_C))
    if views and len(factors) * lane_C.size > _MAX_TABLE and form != CLASSES:
        if form == PLANES and one_factor and one_C:
            rest = lane_C[0] * factors[0] / ridge
            cost = diagonal_view(*shape, 1.0 / ridge, rest, np.float64)
            return diagonal_view(*shape, -1.0, 1.0, np.float64), cost
        if form != PLANES and (one_factor or one_C):
            cost = lane_C * factors[0] if one_factor else (lane_C[0] * factors)[:, None]
            return diagonal_view(*shape, 1.0, -1.0, np.float64), np.broadcast_to(cost, shape)
    if memory is not None and len(factors) * lane_C.size > _MAX_TABLE:
        # both, and another while they are made
        require(memory, {"costs of classes": 3 * 8 * len(factors) * lane_C.size})
    if form == CLASSES:
        code = code[:, :1]
    sign = np.tile(code, lane_C.size // code.shape[1]).astype(np.float64)
    cost = lane_C * (
        factors[:, None] if factors.ndim == 1 else np.tile(factors, lane_C.size // code.shape[1])
    )
    if form == PLANES:
        return 1.0 - 2.0 * sign, np.where(sign > 0, 1.0, cost) / ridge
    return sign, cost if form == CLASSES else cost * np.abs(sign)


def _check_code(code: np.ndarray, loss: str, classes: np.ndarray) -> None:
    if LOSSES[loss].form != MARGINS or not classes.size:
        raise UsageError(f"a code matrix does not apply to {loss}: it is for losses of two classes at a time")
    if code.ndim != 2 or code.shape[0] != classes.size:
        wrong = f"shape {code.shape}, not a row for each of {classes.size} classes"
    elif columns := np.flatnonzero(~((code > 0).any(axis=0) & (code < 0).any(axis=0))).tolist():
        wrong = f"column {columns[0] + 1} with one side only, not a +1 and a -1 at least"
    elif rows := np.flatnonzero(~code.any(axis=1)).tolist():
        wrong = f"row {rows[0] + 1} (label {classes[rows[0]]:g}) all zeros: it could not be predicted"
    else:
        return
    raise UsageError(f"code matrix: found {wrong}")


# ---------------------------------------------------------------------------------------------------------------------
# Losses of rows, for predictions


def losses_of(loss: Loss, y: np.ndarray, t: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Compute the losses of rows with margins t times their costs; arrays of one shape, or that of `t` by broadcasting."""
    out = np.zeros(t.shape)
    arrays = list[np.ndarray]()
    for array in (y, t, cost):
        arrays.append(np.ascontiguousarray(np.broadcast_to(array, t.shape), np.float64).reshape(-1).view())
        arrays[-1].flags.writeable = False  # as broadcast arrays are: the kernel is compiled for these alone
    add_losses(loss, *arrays, out.reshape(-1))
    return out


def row_losses(
    model: Any, code: np.ndarray, decisions: np.ndarray, cost: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Compute ``cost_i loss_i`` of every row over its vectors; ``½ weight_i h²`` of the twin plane that is fitted to it.

    `code` holds the rows' class indices, `decisions` (rows, vectors) their scores by a `models.model.Model`.
    """
    if LOSSES[model.loss].form == CLASSES:
        return cost * class_losses(model.loss, decisions, code)
    sign = model.code[code].astype(np.float64)
    costs = cost[:, None]
    if LOSSES[model.loss].form == PLANES:
        sign, costs = 1.0 - 2.0 * sign, np.where(sign > 0, weight[:, None], costs)
    else:
        costs = costs * np.abs(sign)
    return np.asarray(losses_of(model.row_loss, sign, sign * decisions, costs).sum(axis=1))


def class_losses(loss: str, scores: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Compute the losses of rows by the scores of all classes, (rows, k); `code` has the rows' classes.

    Multinomial: ``log Σ_m exp(s_im) - s_i,y_i``. Crammer–Singer: ``max_m(s_im - s_i,y_i + [m ≠ y_i])``.
    """
    rows = np.arange(code.size)
    margin = scores - scores[rows, code][:, None]
    if LOSSES[loss].smooth:
        return np.asarray(np.logaddexp.reduce(margin, axis=1))
    margin += 1.0
    margin[rows, code] = 0.0
    return np.asarray(margin.max(axis=1))
