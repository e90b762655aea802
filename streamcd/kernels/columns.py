"""Columns, rows and problems as the kernels of the primal methods take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import inlined
from .loss_table import Loss
from .losses import five_numbers


class Columns(NamedTuple):
    """Columns as an arena holds them; never changed by a kernel."""

    indptr: np.ndarray  # (columns + 1,) int64: column c has the entries ``indptr[c]:indptr[c + 1]``, by row
    feature: np.ndarray  # (columns,) int64: the feature of each
    row: np.ndarray  # (entries,): offsets into the arrays of `Scores`
    value: np.ndarray  # (entries,)


class Scores(NamedTuple):
    """Arrays kept of every row, the lanes of a row side by side.

    The margin is ``t = s z``, s the sign of the row's class; of a row with a target ``t = z - y``, and the loss is that of
    the target 0, which is the same: so all rows of a lane have the numbers of one kind of row.
    """

    score: np.ndarray  # (n * lanes,) float64: ``z = w·x``, changed in place
    fresh: np.ndarray  # like `score`, summed up anew by a read at fixed w; empty outside of one
    kind: np.ndarray  # (n,) uint16 or uint32: ``class * folds + fold`` (the class alone without folds)
    weight: np.ndarray  # (n,) float64; empty where all are 1
    target: np.ndarray  # (n,) float64; empty where rows have classes


class ColumnCosts(NamedTuple):
    """A problem as the primal methods take it."""

    signed: np.ndarray  # (kinds, lanes) float64: s C of a row of that kind in that lane; 0 leaves it out
    loss: Loss
    bias: float
    free_bias: bool  # whether the bias's weight is not penalised


class ColumnData(NamedTuple):
    """Columns with their rows and the problem."""

    columns: Columns
    scores: Scores
    costs: ColumnCosts


class Span(NamedTuple):
    """A segment of a column: ``row[start:stop]``, or, where `dense`, those rows themselves, each with the value `bias`."""

    start: int
    stop: int
    dense: bool


@inlined
def unit_numbers(scores, costs):
    """Return the five numbers of a row of cost 1."""
    return five_numbers(costs.loss, 1.0 if scores.target.size == 0 else 0.0, 1.0)


@inlined
def margin(j, sign, z, scores):
    """Return the margin of row j at the score z."""
    return sign * z - (scores.target[j] if scores.target.size > 0 else 0.0)


@inlined
def signed_cost(j, lane, scores, costs):
    """Return s C of row j, including its weight; 0 if the lane leaves it out."""
    c = costs.signed[np.uint64(scores.kind[j]), np.uint64(lane)]
    if scores.weight.size > 0:
        c *= scores.weight[j]
    return c
