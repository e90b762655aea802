"""The models of a run, written from the states of its groups of lanes, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.memory_budget import BLOCK_WEIGHTS
from ..core.setting import Setting
from ..dataset.source_features import indices_of
from ..kernels.loss_table import LOSSES
from ..models.encoding import Encoding, encoding_of
from ..models.model import Model, ModelFile, sparse_weights, stored_certificate, stored_code
from ..training import checkpoint
from ..training.result import Result
from .config import ResolvedRun, versions
from .options import NO_BIAS


def save_models(
    model_path: Path,
    directory: checkpoint.Run,
    run: ResolvedRun,
    result: Result,
) -> bool:
    """Write the models of every C and λ; returns whether it did.

    Those on disk may be of this state already, and after a kill between the last checkpoint and its models of an older one.
    """
    models = {}
    for first in range(0, run.problem.n_lanes, run.problem.block_lanes):
        lanes = range(first, first + run.problem.block_lanes)
        single = len(lanes) == run.problem.n_lanes
        lane = run.problem.lanes[first]
        path = model_path if single else model_path / Setting(lane.C, lane.l1).name
        models[path] = lanes, _certificate(result, lanes)
    if all(stored_certificate(path) == certificate for path, (_, certificate) in models.items()):
        return False
    encoding = encoding_of(run.dataset, held=False)
    deviations = run.dataset.read_deviations()
    for path, (lanes, certificate) in models.items():
        shape = run.problem.n_features, len(lanes) * run.problem.lane_vectors
        read_rows = partial(_weight_rows, directory, run, lanes, last=False)
        weights = sparse_weights(read_rows, shape)
        rows = None
        if weights is None:  # the rows are written from the state, and those of the model never read
            weights = np.zeros(shape)
            rows = read_rows()
        model = make_model(directory, run, lanes, certificate, weights, encoding)
        model.deviations = deviations
        model.save(path, rows)
    return True


def make_models(directory: checkpoint.AnyRun, run: ResolvedRun, result: Result) -> list[Model]:
    """Make the models of every C and λ, in memory."""
    models = []
    encoding = encoding_of(run.dataset)
    for first in range(0, run.problem.n_lanes, run.problem.block_lanes):
        lanes = range(first, first + run.problem.block_lanes)
        weights = np.concatenate(list(_weight_rows(directory, run, lanes, last=False)))
        models.append(make_model(directory, run, lanes, _certificate(result, lanes), weights, encoding))
    return models


def make_model(
    directory: checkpoint.AnyRun,
    run: ResolvedRun,
    lanes: range,
    certificate: dict[str, Any],
    weights: Any,  # an array, or SciPy's CSR
    encoding: Encoding | None,
) -> Model:
    """Make the model of some lanes from the rows of their w: those of the features, and the last one, the bias's."""
    problem = run.problem
    dataset = run.dataset
    lane = problem.lanes[lanes.start]
    factors = problem.class_factors(lanes)
    bias = float(run.config.options.bias)
    bias_weight = next(_weight_rows(directory, run, lanes, last=True))[0]
    record = ModelFile(
        loss=problem.loss,
        C=lane.C,
        n_features=problem.n_features,
        intercept=(bias_weight * problem.bias).tolist(),
        classes=problem.classes.tolist(),
        code=stored_code(problem.loss, problem.code),
        method=run.config.options.method,
        bias=bias if bias >= 0 else NO_BIAS,
        free_bias=problem.free_bias,
        l1=lane.l1,
        l2=problem.l2 * problem.strength,
        index_base=1 if dataset.index_base else 0,
        label_kind=dataset.label_kind,
        class_names=dataset.class_names,
        class_weight={float(c): float(f) for c, f in zip(problem.classes, factors, strict=False) if f != 1.0},
        ridge=problem.ridge,
        slack=problem.slack,
        parameter=problem.parameter if LOSSES[problem.loss].parameter else None,
        fingerprint=dataset.fingerprint,
        versions=versions(),
        certificate=certificate,
    )
    return Model(
        record,
        weights,
        scaling=dataset.read_scaling(),
        encoding=encoding,
        indices=indices_of(dataset).kept,
    )


def _certificate(result: Result, lanes: range) -> dict[str, Any]:
    of_model = [result.lanes[lane] for lane in lanes]
    return {
        "primal_objective": sum(lane["primal_objective"] for lane in of_model),
        "dual_objective": sum(lane["dual_objective"] for lane in of_model),
        "gap": max(lane["gap"] for lane in of_model),
        "converged": all(lane["converged"] for lane in of_model),
        "passes": [lane["passes"] for lane in of_model],
    }


def _weight_rows(
    directory: checkpoint.AnyRun, run: ResolvedRun, lanes: range, *, last: bool
) -> Iterator[np.ndarray]:
    """Yield rows of w of some lanes, for values as they are stored: those of the features, or the last one, the bias's."""
    problem = run.problem
    vectors = run.problem.lane_vectors
    sources = []
    columns = []
    block_rows = max(1, BLOCK_WEIGHTS // (problem.n_lanes * vectors))
    for group, trained in run.groups.items():
        first = max(lanes.start, trained.start) - trained.start
        stop = min(lanes.stop, trained.stop) - trained.start
        if first < stop:
            columns.append(slice(first * vectors, stop * vectors))
            sources.append(directory.state_rows(group, "w", block_rows))
    blocks = (
        np.hstack([block[:, chosen] for block, chosen in zip(parts, columns, strict=True)])
        for parts in zip(*sources, strict=True)
    )
    start = 0
    for rows in blocks if run.centre is None else run.centre.leave(blocks, problem.bias):
        stop = start + rows.shape[0]
        if last and stop > problem.n_features:
            yield rows[-1:]
        elif not last and start < problem.n_features:
            yield rows[: problem.n_features - start]
        start = stop
