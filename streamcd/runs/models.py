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
    records = _records(directory, run, result)
    paths = {}
    for lanes in records:
        lane = run.problem.lanes[lanes.start]
        paths[lanes] = model_path if len(records) == 1 else model_path / Setting(lane.C, lane.l1).name
    if all(stored_certificate(paths[lanes]) == record.certificate for lanes, record in records.items()):
        return False
    encoding = encoding_of(run.dataset, held=False)
    deviations = run.dataset.read_deviations()
    for lanes, record in records.items():
        shape = run.problem.n_features, len(lanes) * run.problem.lane_vectors
        read_rows = partial(_weight_rows, directory, run, lanes)
        weights = sparse_weights(read_rows, shape)
        rows = None
        if weights is None:  # the rows are written from the state, and those of the model never read
            weights = np.zeros(shape)
            rows = read_rows()
        model = _make_model(run, record, weights, encoding)
        model.deviations = deviations
        model.save(paths[lanes], rows)
    return True


def make_models(directory: checkpoint.AnyRun, run: ResolvedRun, result: Result) -> list[Model]:
    """Make the models of every C and λ, in memory."""
    models = []
    encoding = encoding_of(run.dataset)
    for lanes, record in _records(directory, run, result).items():
        weights = np.concatenate(list(_weight_rows(directory, run, lanes)))
        models.append(_make_model(run, record, weights, encoding))
    return models


def _records(directory: checkpoint.AnyRun, run: ResolvedRun, result: Result) -> dict[range, ModelFile]:
    """Describe the models, by their lanes; their certificates sum up those of the lanes."""
    problem = run.problem
    dataset = run.dataset
    bias = float(run.config.options.bias)
    n_lanes = problem.block_lanes
    bias_weights = next(_weight_rows(directory, run, range(problem.n_lanes), last=True))
    intercepts = (bias_weights * problem.bias).reshape(-1, n_lanes * problem.lane_vectors)
    made_by = versions()
    records = {}
    for model, intercept in enumerate(intercepts.tolist()):
        lanes = range(model * n_lanes, (model + 1) * n_lanes)
        lane = problem.lanes[lanes.start]
        of_model = result.lanes[lanes.start : lanes.stop]
        factors = zip(problem.classes.tolist(), problem.class_factors(lanes).tolist(), strict=False)
        records[lanes] = ModelFile(
            loss=problem.loss,
            C=lane.C,
            n_features=problem.n_features,
            intercept=intercept,
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
            class_weight={label: factor for label, factor in factors if factor != 1.0},
            ridge=problem.ridge,
            slack=problem.slack,
            parameter=problem.parameter if LOSSES[problem.loss].parameter else None,
            fingerprint=dataset.fingerprint,
            versions=made_by,
            certificate={
                "primal_objective": sum(lane["primal_objective"] for lane in of_model),
                "dual_objective": sum(lane["dual_objective"] for lane in of_model),
                "gap": max(lane["gap"] for lane in of_model),
                "converged": all(lane["converged"] for lane in of_model),
                "passes": [lane["passes"] for lane in of_model],
            },
        )
    return records


def _make_model(
    run: ResolvedRun,
    record: ModelFile,
    weights: Any,  # an array, or SciPy's CSR
    encoding: Encoding | None,
) -> Model:
    """Make a model from the rows of features of its lanes' w."""
    return Model(
        record,
        weights,
        scaling=run.dataset.read_scaling(),
        encoding=encoding,
        indices=indices_of(run.dataset).kept,
    )


def _weight_rows(
    directory: checkpoint.AnyRun, run: ResolvedRun, lanes: range, *, last: bool = False
) -> Iterator[np.ndarray]:
    """Yield rows of w of some lanes, for values as they are stored: those of the features, or the last one, the bias's."""
    problem = run.problem
    vectors = problem.lane_vectors
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
        if not last:
            yield rows[: problem.n_features - start]
        start += len(rows)
        if last and start > problem.n_features:
            yield rows[-1:]
