"""Training in rounds: the mathematics of a step, partitions in one process, dask workers that come, go and are killed."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
from conftest import ROOT
from forking import PIPE, Forked
from reference import dual_values
from small_datasets import NAMED, multiclass, random_rows, write_dataset

import streamcd
from streamcd.cluster.block_steps import apply_step, direction, newton_step, quadratic_step
from streamcd.cluster.dask_engine import DaskEngine, open_client
from streamcd.cluster.dask_worker import Seat
from streamcd.cluster.partition import Partition
from streamcd.cluster.rounds import WorkersLost, add_changes, make_change
from streamcd.core.errors import EnvironmentFailure, Interrupted, UsageError
from streamcd.core.progress import Listener
from streamcd.dataset.dataset import Dataset
from streamcd.kernels.rounds import DUAL_CHANGE, LINEAR, LONGEST, QUADRATIC, add_log_slopes
from streamcd.runs.problem_options import ProblemOptions
from tools.simulated_cluster import SerialEngine, Simulation

LOSSES = ["hinge", "squared_hinge", "log_loss", "crammer_singer"]
BINARY = LOSSES[:3]


def weights(run: Path) -> np.ndarray:
    with np.load(run / "state.npz") as arrays:
        found: np.ndarray = arrays["w"]
    return found


def log(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "identity"} for line in lines]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two noisy classes in eight shards."""
    path = tmp_path_factory.mktemp("cluster") / "data"
    return write_dataset(path, random_rows(400, 12, seed=3), n_chunks=16, n_shards=8)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Four classes in six shards."""
    path = tmp_path_factory.mktemp("cluster") / "classes"
    return write_dataset(path, multiclass(), n_chunks=12, n_shards=6)


def problem_of(dataset: Dataset, loss: str) -> Any:
    return ProblemOptions(loss=loss, method="dual", C=0.7, acceleration="none").make_problem(dataset)


# ---------------------------------------------------------------------------------------------------------------------
# The mathematics


def feasible(problem: Any, code: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random dual variables within their bounds, with costs."""
    cost = np.ascontiguousarray(problem.cost[code])
    alpha = rng.random(cost.shape) * np.where(rng.random(cost.shape) < 0.3, 0.0, 1.0)
    alpha *= 3.0 if problem.loss == "squared_hinge" else cost
    if problem.loss == "log_loss":
        alpha = np.clip(alpha, 1e-8 * cost, (1 - 1e-8) * cost)
        return np.hstack([alpha, cost - alpha]), cost
    if problem.loss == "crammer_singer":
        k = problem.classes.size
        alpha = -rng.random((code.size, k))
        alpha[np.arange(code.size), code] = 0.0
        own = np.minimum(-alpha.sum(axis=1), cost[:, 0])
        alpha *= (own / -alpha.sum(axis=1))[:, None]
        alpha[np.arange(code.size), code] = own
    return alpha, cost


def log_slopes(base: np.ndarray, candidate: np.ndarray, eta: np.ndarray) -> np.ndarray:
    sums = np.zeros((eta.size, 3))
    add_log_slopes(base, candidate, eta, sums)
    return sums


def row_objective(problem: Any, alpha: np.ndarray, cost: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Rows' part of f, per lane."""
    if problem.loss == "crammer_singer":
        return np.array([alpha.sum() - alpha[np.arange(code.size), code].sum()])
    return -dual_values(problem.loss, alpha[:, : problem.n_lanes], cost).sum(axis=0)


@pytest.mark.parametrize("loss", LOSSES)
def test_sums_of_a_direction_are_derivatives_of_the_dual(loss: str, classes: Dataset) -> None:
    problem, rng = problem_of(classes, loss), np.random.default_rng(0)
    code = rng.integers(0, problem.classes.size, 50)
    base, cost = feasible(problem, code, rng)
    candidate, _ = feasible(problem, code, rng)
    sums = direction(problem, base, candidate, cost, code)

    def along(eta: float) -> np.ndarray:
        point = base + eta * (candidate - base)
        return row_objective(problem, point, cost, code)

    h = 1e-3
    if loss == "log_loss":
        found = log_slopes(base, candidate, np.full(problem.n_lanes, 0.5))
        np.testing.assert_allclose(found[:, 0], (along(0.5 + h) - along(0.5 - h)) / (2 * h), rtol=1e-4)
        second = (along(0.5 + h) - 2 * along(0.5) + along(0.5 - h)) / h**2
        np.testing.assert_allclose(found[:, 1], second, rtol=1e-3)
        np.testing.assert_allclose(found[:, DUAL_CHANGE], along(0.0) - along(0.5), rtol=1e-9)
    else:
        expected = along(0.0) + sums[:, LINEAR] + 0.5 * sums[:, QUADRATIC]
        np.testing.assert_allclose(along(1.0), expected, rtol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_longest_step_is_feasible_and_no_longer_one_is(loss: str, classes: Dataset) -> None:
    problem, rng = problem_of(classes, loss), np.random.default_rng(1)
    code = rng.integers(0, problem.classes.size, 30)
    base, cost = feasible(problem, code, rng)
    candidate = base + 0.3 * (feasible(problem, code, rng)[0] - base)
    longest = direction(problem, base, candidate, cost, code)[:, LONGEST]
    assert (longest > 1.0).all()
    for factor, inside in ((1 - 1e-9, True), (1 + 1e-6, False)):
        eta = np.repeat(longest * factor, base.shape[1] // problem.n_lanes)
        if loss == "log_loss":
            eta = np.tile(longest * factor, 2)
        point = base + eta * (candidate - base)
        if loss == "crammer_singer":
            upper = np.zeros_like(point)
            upper[np.arange(code.size), code] = cost[:, 0]
            ok = (point <= upper + 1e-12).all()
        else:
            n = problem.n_lanes
            upper = np.inf if loss == "squared_hinge" else cost
            ok = bool((point[:, :n] >= -1e-12).all() and (point[:, :n] <= upper + 1e-12).all())
        assert ok == inside


def test_the_closed_form_minimises_a_quadratic_and_is_cut_at_the_longest_step() -> None:
    sums = np.array([[-3.0, 2.0, 5.0, 0, 0], [-3.0, 2.0, 0.7, 0, 0], [0.0, 0.0, np.inf, 0, 0]])
    eta = quadratic_step(np.array([1.0, 1.0, 0.0]), np.array([2.0, 0.0, 0.0]), sums, 4)
    np.testing.assert_allclose(eta, [0.5, 0.7, 1.0])


def test_a_direction_that_does_not_descend_is_reported_and_rounding_takes_the_safe_step() -> None:
    with pytest.raises(EnvironmentFailure, match="does not descend"):
        quadratic_step(np.array([5.0]), np.array([1.0]), np.array([[-3.0, 0.0, np.inf, 0.0, 0.0]]), 2)
    eta = quadratic_step(
        np.array([3.0 + 1e-15]), np.array([1e-20]), np.array([[-3.0, 0.0, np.inf, 0.0, 0.0]]), 4
    )
    assert eta[0] == 0.25


def test_newtons_step_finds_the_minimum_of_a_steep_function() -> None:
    """A row that the step carries to within 1e-6 of its bound: the slope grows without limit there."""
    base, candidate = np.array([[0.5, 0.5]]), np.array([[1 - 1e-6, 1e-6]])
    product, squared = np.array([-9.0]), np.array([0.1])
    problem_sums = np.array([[0.0, 0.0, 0.5 / (0.5 - 1e-6), 0.0, 0.0]])
    eta, _, count = newton_step(product, squared, problem_sums, 2, lambda at: log_slopes(base, candidate, at))

    def fall(at: np.ndarray) -> float:
        return float((log_slopes(base, candidate, at)[:, 2] - at * product - 0.5 * at**2 * squared)[0])

    best = max(fall(np.array([at])) for at in 1 - np.geomspace(1e-9, 0.1, 3001))
    assert fall(eta) > (1 - 1e-3) * best
    assert count < 10


def test_a_row_beside_its_bound_does_not_hold_up_the_line_search() -> None:
    """Its barrier is at 1.002, so thin that the slope falls until there: 30 sums over all rows were made in vain."""
    base = np.array([[0.5, 0.5], [1e-3, 1 - 1e-3]])
    candidate = np.array([[0.5 + 1e-3, 0.5 - 1e-3], [2e-6, 1 - 2e-6]])
    longest = np.array([[0.0, 0.0, 1e-3 / (1e-3 - 2e-6), 0.0, 0.0]])
    product = np.array([-9.0])
    eta, _, count = newton_step(
        product, np.array([0.1]), longest, 2, lambda at: log_slopes(base, candidate, at)
    )
    assert count < 6
    assert 1.0 <= eta[0] < longest[0, 2]


def test_a_step_wakes_rows_that_it_leaves_off_their_bounds(data: Dataset) -> None:
    problem = problem_of(data, "hinge")
    code, cost = np.array([0, 1, 1]), np.full((3, 1), 0.7)
    base, candidate = np.array([[0.7], [0.2], [0.0]]), np.array([[0.0], [0.0], [0.0]])
    active = np.zeros((3, 1), dtype=np.uint8)
    point = apply_step(problem, base, candidate, active, np.array([0.5]), cost, code)
    np.testing.assert_allclose(point, [[0.35], [0.1], [0.0]])
    assert active[:, 0].tolist() == [1, 1, 0]
    assert (apply_step(problem, base, candidate, active, np.array([1.0]), cost, code) == candidate).all()


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_changes_add_up_sparse_or_dense(share: float) -> None:
    rng = np.random.default_rng(0)
    dense = [rng.standard_normal((200, 2)) * (rng.random((200, 1)) < share) for _ in range(3)]
    packed = [make_change(values) for values in dense]
    assert (packed[0].index is None) == (share == 1.0)
    total = add_changes(add_changes(packed[0], packed[1]), packed[2])
    np.testing.assert_allclose(total.dense(), sum(dense), atol=1e-15)
    assert total.moved_bytes == packed[1].n_bytes + packed[2].n_bytes


# ---------------------------------------------------------------------------------------------------------------------
# Partitions in one process


@pytest.mark.parametrize("acceleration", ["auto", "none"])
@pytest.mark.parametrize("loss", LOSSES)
def test_one_partition_is_the_single_process_bit_for_bit(
    loss: str, acceleration: str, classes: Dataset, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"loss": loss, "max_passes": 10, "tol": 1e-9, "acceleration": acceleration}
    streamcd.train(classes, tmp_path / "one", **options)
    streamcd.train(classes, tmp_path / "round", client=Simulation(1), **options)
    assert (weights(tmp_path / "one") == weights(tmp_path / "round")).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_partitions_reach_the_optimum_of_one(loss: str, classes: Dataset, tmp_path: Path) -> None:
    exact = streamcd.train(classes, tmp_path / "one", loss=loss, C=0.1, tol=1e-4, max_passes=5000)
    split = streamcd.train(
        classes, tmp_path / "split", loss=loss, C=0.1, tol=1e-3, max_passes=5000, client=Simulation(3)
    )
    assert split.converged
    assert split.gap <= 1e-3
    assert split.primal_objective == pytest.approx(exact.primal_objective, rel=2e-3)
    assert all(eta > 0 for record in log(tmp_path / "split") for eta in record["eta"] or [])


@pytest.mark.parametrize("loss", BINARY)
@pytest.mark.parametrize("name", NAMED)
def test_named_problems_in_partitions(name: str, loss: str, tmp_path: Path) -> None:
    """Badly scaled features take two partitions thousands of rounds, so C is small."""
    dataset = write_dataset(tmp_path / "data", NAMED[name](), n_chunks=4, n_shards=2)
    result = streamcd.train(
        dataset, tmp_path / "run", loss=loss, C=0.01, tol=1e-2, max_passes=1000, client=Simulation(2)
    )
    assert result.converged


@pytest.mark.parametrize(("acceleration", "rounding"), [("auto", 1e-6), ("none", 1e-9)])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_dual_never_falls_and_is_what_the_certificate_finds(
    loss: str, acceleration: str, rounding: float, classes: Dataset, tmp_path: Path
) -> None:
    """The sum kept along the steps and w against a read of alpha: a wrong step or a step applied wrongly would show.

    A certificate takes off what rounding may do, which is more where w is far from w(alpha); and an accelerated round
    descends on another dual.
    """
    run, options = tmp_path / "run", {"max_passes": 14, "tol": 1e-9, "acceleration": acceleration}
    streamcd.train(classes, run, loss=loss, client=Simulation(3), **options)
    records = log(run)
    kept = [r["objective_estimate"] - r["gap_estimate"] for r in records if r["kind"] == "train"]
    if acceleration == "none":
        assert all(later >= earlier - 1e-9 * abs(earlier) for earlier, later in itertools.pairwise(kept))
    assert records[-1]["kind"] == "certify"
    assert records[-1]["dual"] == pytest.approx(kept[-1], rel=rounding)


@pytest.mark.parametrize("loss", BINARY)
def test_streaming_partitions_do_as_resident_ones(loss: str, data: Dataset, tmp_path: Path) -> None:
    """Windows of four chunks, read from disk in every pass, against all rows in memory: the same optimum."""
    from streamcd.stream.memory_plan import Plan

    def small_plan(*_: Any) -> Plan:
        return Plan(window_entries=800, window_rows=120, resident=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamcd.cluster.partition.make_plan", small_plan)
        patch.setattr("streamcd.cluster.partition.plan_shards", lambda *_: None)
        streamed = streamcd.train(
            data, tmp_path / "streamed", loss=loss, max_passes=3000, local_passes=2, client=Simulation(2)
        )
    resident = streamcd.train(
        data, tmp_path / "resident", loss=loss, max_passes=3000, local_passes=2, client=Simulation(2)
    )
    assert streamed.converged
    assert streamed.primal_objective == pytest.approx(resident.primal_objective, rel=2e-3)
    assert streamed.bytes_read > 1.5 * resident.bytes_read


def test_liblinears_rule_is_certified_at_the_common_weights(data: Dataset, tmp_path: Path) -> None:
    result = streamcd.train(data, tmp_path / "run", eps=0.05, C=0.1, max_passes=5000, client=Simulation(2))
    assert result.stop_reason == "violation"
    assert result.violation <= 0.05


def test_a_path_of_costs_and_a_warm_start_in_rounds(data: Dataset, tmp_path: Path) -> None:
    """Lanes step each by its own eta; a run of one process is the beginning of one on workers."""
    streamcd.train(data, tmp_path / "alone", C=0.5)
    path = streamcd.train(data, tmp_path / "path", C=[0.1, 1.0], max_passes=3000, client=Simulation(3))
    assert path.converged
    warm = streamcd.train(
        data, tmp_path / "warm", C=1.0, start_from=tmp_path / "alone", max_passes=3000, client=Simulation(2)
    )
    assert warm.converged
    assert warm.primal_objective == pytest.approx(path.lanes[1]["primal_objective"], rel=2e-3)
    with pytest.raises(UsageError, match="was trained on workers"):
        streamcd.train(data, tmp_path / "back", C=2.0, start_from=tmp_path / "path")


def test_stopped_and_resumed_with_another_number_of_workers(data: Dataset, tmp_path: Path) -> None:
    run = tmp_path / "run"
    asked = 0

    def stop_later() -> int | None:
        nonlocal asked
        asked += 1
        return signal.SIGTERM if asked > 40 else None

    with pytest.raises(Interrupted, match="round"):
        streamcd.train(data, run, client=Simulation(3), tol=1e-4, stop_requested=stop_later)
    before = len(log(run))
    assert before > 1
    with pytest.raises(UsageError, match="begun on workers"):
        streamcd.resume(run)
    result = streamcd.resume(run, client=Simulation(2))
    assert result.converged
    records = log(run)
    assert [record["round"] for record in records] == list(range(1, len(records) + 1))
    assert len(records) > before
    assert len(list((run / "dual").iterdir())) == 1


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
def test_stopped_and_resumed_with_the_same_workers_gives_the_same_bits(
    loss: str, data: Dataset, tmp_path: Path
) -> None:
    streamcd.train(data, tmp_path / "whole", loss=loss, client=Simulation(3), tol=1e-9, max_passes=12)
    asked = 0

    def stop_later() -> int | None:
        nonlocal asked
        asked += 1
        return signal.SIGTERM if asked > 30 else None

    options = {"loss": loss, "tol": 1e-9, "max_passes": 12}
    with pytest.raises(Interrupted):
        streamcd.train(data, tmp_path / "cut", client=Simulation(3), stop_requested=stop_later, **options)
    streamcd.resume(tmp_path / "cut", client=Simulation(3))
    assert (weights(tmp_path / "whole") == weights(tmp_path / "cut")).all()


class _Flaky(SerialEngine):
    """Loses its workers in the middle of every third round, after they wrote candidates."""

    def round(self, request: Any, w: np.ndarray, progress: Callable[[int], None]) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        result = super().round(request, w, progress)
        if self.calls % 3 == 0:
            raise WorkersLost("pulled the plug")
        return result


def test_a_round_that_is_lost_leaves_no_trace(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamcd.train(data, tmp_path / "calm", client=Simulation(3), max_passes=15, tol=1e-9)
    monkeypatch.setattr("tools.simulated_cluster.SerialEngine", _Flaky)
    streamcd.train(data, tmp_path / "flaky", client=Simulation(3), max_passes=15, tol=1e-9)
    assert (weights(tmp_path / "calm") == weights(tmp_path / "flaky")).all()
    assert max(record["attempts"] for record in log(tmp_path / "flaky")) == 2


def test_a_round_that_is_always_lost_ends_with_an_error(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: Any) -> Any:
        raise WorkersLost("pulled the plug")

    monkeypatch.setattr(SerialEngine, "round", lose)
    with pytest.raises(EnvironmentFailure, match=r"lost 10 times in a row.*resume"):
        streamcd.train(data, tmp_path / "run", client=Simulation(2))


def test_what_does_not_go_with_workers_is_refused(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="local_passes"):
        streamcd.train(data, tmp_path / "run", local_passes=2)
    with pytest.raises(UsageError, match="at least 1"):
        streamcd.train(data, tmp_path / "run", local_passes=0, client=Simulation(2))
    with pytest.raises(UsageError, match="too small"):
        streamcd.train(data, tmp_path / "run", memory="200MB", client=Simulation(2))
    streamcd.train(data, tmp_path / "alone")
    with pytest.raises(UsageError, match=r"begun in one process.*--start-from"):
        streamcd.resume(tmp_path / "alone", client=Simulation(2))


# ---------------------------------------------------------------------------------------------------------------------
# Dask, with workers in threads of this process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as made:
        yield made


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster, set_as_default=False) as made:
        yield made


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_dask_does_what_the_simulation_does(loss: str, client: Any, data: Dataset, tmp_path: Path) -> None:
    """To the bit; but a worker reads the shards that it is given, which the simulation has in memory already."""
    options: dict[str, Any] = {"loss": loss, "max_passes": 12, "tol": 1e-9}
    found = streamcd.train(data, tmp_path / "dask", client=client, **options)
    made = streamcd.train(data, tmp_path / "made", client=Simulation(2), **options)
    assert made.bytes_read < found.bytes_read
    assert (weights(tmp_path / "dask") == weights(tmp_path / "made")).all()
    record = log(tmp_path / "dask")[-2]
    assert record["workers"] == 2
    assert len(record["seconds"]["workers"]) == 2
    assert record["bytes_sent"] > 0
    assert record["eta"]


@pytest.mark.parametrize(("n_shards", "warned"), [(3, True), (4, False)])
def test_too_few_shards_to_be_dealt_anew_are_warned_of(
    n_shards: int, warned: bool, client: Any, tmp_path: Path
) -> None:
    data = write_dataset(tmp_path / "data", random_rows(60, 5, seed=3), n_chunks=16, n_shards=n_shards)
    assert data.n_shards == n_shards
    heard = _Heard()
    streamcd.train(data, tmp_path / "run", client=client, max_passes=2, listener=heard)
    assert any("with fewer than two for each" in text for text in heard.warnings) == warned


def test_a_worker_that_comes_late_is_used_and_one_that_leaves_is_not_missed(
    cluster: Any, client: Any, data: Dataset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    seen: list[int] = []

    def rescale() -> int | None:
        rounds = len(log(run)) if (run / "log.jsonl").exists() else 0
        if rounds >= 3 and not seen:
            seen.append(cluster.scale(3))
        if rounds >= 12 and len(seen) == 1:
            seen.append(cluster.scale(1))
        return signal.SIGTERM if len(seen) == 2 and log(run)[-1]["workers"] == 1 else None

    try:
        with pytest.raises(Interrupted):
            streamcd.train(data, run, client=client, tol=1e-12, max_passes=10_000, stop_requested=rescale)
    finally:
        cluster.scale(2)
        client.wait_for_workers(2)
    used = [record["workers"] for record in log(run)]
    assert {1, 2, 3} == set(used)
    result = streamcd.resume(run, client=client, tol=1e-3)
    assert result.converged


def test_errors_of_workers_are_told_in_one_line(client: Any, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows(), n_chunks=6, n_shards=3)
    entries = dataset.path / dataset.manifest["parts"][1]["entries"]
    content = bytearray(entries.read_bytes())
    content[-20:] = bytes(20)  # of the footer
    entries.write_bytes(content)
    with pytest.raises(streamcd.StreamcdError) as caught:
        streamcd.train(dataset, tmp_path / "run", client=client)
    assert str(entries) in str(caught.value)


def test_a_silent_worker_is_given_up(
    client: Any, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker hangs in its first round, as on a dead disk: the other finishes the training alone."""
    streamcd.train(
        data, tmp_path / "compiled", client=client, max_passes=2
    )  # which may take longer than the timeout
    released, hung = threading.Event(), threading.Event()
    run_partition = Partition.run

    def hang_once(self: Partition, *arguments: Any) -> Any:
        if not hung.is_set():
            hung.set()
            released.wait(60)
        return run_partition(self, *arguments)

    monkeypatch.setattr(Partition, "run", hang_once)
    monkeypatch.setattr("streamcd.cluster.dask_engine._LOOK_SECONDS", 0.1)
    try:
        result = streamcd.train(
            data, tmp_path / "run", client=client, worker_timeout=2.0, tol=1e-3, max_passes=3000
        )
    finally:
        released.set()
    assert result.converged
    records = log(tmp_path / "run")
    assert records[0]["attempts"] == 2
    assert records[-1]["workers"] == 1
    time.sleep(0.1)


def test_two_sessions_on_the_same_workers_do_not_disturb_each_other(
    client: Any, data: Dataset, tmp_path: Path
) -> None:
    """Workers used to keep one partition and one w: each session made the other's rounds fail until both gave up."""
    found: dict[str, Any] = {}

    def train(name: str, loss: str) -> None:
        try:
            streamcd.train(data, tmp_path / name, loss=loss, client=client, max_passes=12, tol=1e-9)
        except Exception as error:  # told by the assertion below
            found[name] = error

    threads = [threading.Thread(target=train, args=(loss, loss)) for loss in ("hinge", "log_loss")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not found
    for loss in ("hinge", "log_loss"):
        alone = tmp_path / f"{loss} alone"
        streamcd.train(data, alone, loss=loss, client=Simulation(2), max_passes=12, tol=1e-9)
        assert (weights(tmp_path / loss) == weights(alone)).all()
        assert {record["attempts"] for record in log(tmp_path / loss)} == {1}


def test_an_abandoned_round_ends_at_the_next_window(
    client: Any, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker loses its part while another is at work, which would go on to the end of its passes."""
    begun, ended, left = threading.Event(), threading.Event(), iter(["at work", "lost"])
    run_partition = Partition.run

    def run(self: Partition, request: Any, w: np.ndarray, report: Any, worker: str) -> Any:
        part = next(left, "")
        if part == "lost":
            begun.wait(60)
            raise WorkersLost("pulled the plug")
        deadline = time.monotonic() + 60
        try:
            while part == "at work" and time.monotonic() < deadline:
                begun.set()
                report(0)
        except WorkersLost:
            ended.set()
            raise
        return run_partition(self, request, w, report, worker)

    monkeypatch.setattr(Partition, "run", run)
    assert streamcd.train(data, tmp_path / "run", client=client, max_passes=3).passes == 3
    assert ended.is_set()
    assert log(tmp_path / "run")[0]["attempts"] == 2


def seats(client: Any, change: Callable[[Any], Any] = lambda seat: seat) -> int:
    """Count what workers keep for trainings, and put something in its place."""

    def look(dask_worker: Any) -> int:
        held = {key: seat for key, seat in dask_worker.data.items() if isinstance(seat, Seat)}
        for key, seat in held.items():
            dask_worker.data[key] = change(seat)
        return len(held)

    return sum(client.run(look).values())


def test_a_client_that_is_gone_leaves_no_partition_behind(
    cluster: Any, client: Any, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run, begun anew with another loss, must not be given the partitions of the first."""
    monkeypatch.setattr(DaskEngine, "close", lambda self: None)  # as a client that is killed
    with distributed.Client(cluster, set_as_default=False) as killed:
        streamcd.train(data, tmp_path / "run", loss="hinge", client=killed, max_passes=3)
    deadline = time.monotonic() + 60
    while seats(client) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert seats(client) == 0
    streamcd.train(data, tmp_path / "run", loss="log_loss", client=client, max_passes=3, force=True)
    streamcd.train(data, tmp_path / "made", loss="log_loss", client=Simulation(2), max_passes=3)
    assert (weights(tmp_path / "run") == weights(tmp_path / "made")).all()


def test_workers_that_lost_partition_and_w_are_sent_the_whole(client: Any, tmp_path: Path) -> None:
    """They used to be sent the changes again and again; dask may write what a worker keeps to disk, which empties it."""
    x, y = random_rows(300, 12, seed=3)
    x.resize((300, 400))  # so that sending what changed pays
    data = write_dataset(tmp_path / "wide", (x, y), n_chunks=8, n_shards=4)
    run, struck = tmp_path / "run", []

    def forget() -> int | None:
        if not struck and (run / "log.jsonl").exists() and len(log(run)) == 3:
            struck.append(seats(client, lambda seat: pickle.loads(pickle.dumps(seat))))
        return None

    streamcd.train(data, run, client=client, max_passes=8, tol=1e-9, stop_requested=forget)
    streamcd.train(data, tmp_path / "made", client=Simulation(2), max_passes=8, tol=1e-9)
    assert struck == [2]
    assert max(record["attempts"] for record in log(run)) == 2
    assert (weights(run) == weights(tmp_path / "made")).all()


def test_a_worker_that_dask_would_end_for_its_memory_is_refused(data: Dataset, tmp_path: Path) -> None:
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with (
        distributed.LocalCluster(memory_limit="4GB", **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        with pytest.raises(EnvironmentFailure, match=r"no worker can take part.* 4 GB .*--memory-limit 0"):
            streamcd.train(data, tmp_path / "run", client=client, memory="3900MB")
        assert streamcd.train(data, tmp_path / "run", client=client, memory="500MB", force=True).converged


def test_local_workers_are_reached_from_this_machine_only_and_answer_no_browser(tmp_path: Path) -> None:
    """Dask's web server was open on all interfaces, and told a scheduler's state to whoever asked."""
    import urllib.error
    import urllib.request

    import psutil

    def listening() -> set[Any]:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        found = [each for process in processes for each in process.net_connections("inet")]
        return {each.laddr for each in found if each.status == "LISTEN"}

    before = listening()  # of other tests
    with open_client(None, 2) as client:
        found = listening() - before
        info = client.scheduler_info()
        spoken = [
            info["address"],
            *info["workers"],
            *(worker["nanny"] for worker in info["workers"].values()),
        ]
        assert len(found) >= len(spoken) == 5
        assert {address.ip for address in found} == {"127.0.0.1"}
        for port in {address.port for address in found} - {int(name.rpartition(":")[2]) for name in spoken}:
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/json/identity.json", timeout=5)


@pytest.mark.parametrize("begun", [False, True])
def test_ctrl_c_during_training_on_local_workers_is_one_line(
    data: Dataset, tmp_path: Path, begun: bool
) -> None:
    """The terminal sends it to workers too: the start failed with status 1, and later they printed tracebacks."""
    run, options = (
        tmp_path / "run",
        "--workers 2 --tol 1e-15 --max-passes 1000000 --loss hinge -C 100 --checkpoint-every 0.1s",
    )
    command = ["-m", "streamcd", "train", data.path, run, *options.split()]
    process = Forked(command, stdout=PIPE, stderr=PIPE, start_new_session=True)
    if begun:
        _wait_for_rounds(run, 1, process)
    else:  # a worker is there, and nothing else yet
        deadline = time.monotonic() + 60
        while not _children(process.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "streamcd resume" in errors.strip().splitlines()[-1]


@pytest.mark.parametrize("killed", ["forkserver", "worker"])
def test_a_process_of_dask_killed_at_the_start_is_one_line(
    data: Dataset, tmp_path: Path, killed: str
) -> None:
    """It was 134 lines of traceback."""
    import psutil

    command = ["-m", "streamcd", "train", data.path, tmp_path / "run", "--workers", "2"]
    process = Forked(command, stdout=PIPE, stderr=PIPE, start_new_session=True)
    deadline, found = time.monotonic() + 60, []
    while not found and time.monotonic() < deadline:
        children = psutil.Process(process.pid).children(recursive=True)
        server = [child for child in children if "forkserver" in " ".join(child.cmdline())]
        found = [child for child in server if (child.ppid() == process.pid) == (killed == "forkserver")]
        time.sleep(0.005)
    found[0].kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    last = errors.strip().splitlines()[-1]
    assert "2 worker processes of this machine could not be started" in last
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_memory_of_local_workers_is_shared_out_anew(client: Any, data: Dataset, tmp_path: Path) -> None:
    """What --memory bounds is the sum of this machine's processes, however many workers a run goes on with."""
    run = tmp_path / "run"
    options: dict[str, Any] = {"memory": "1GB", "max_passes": 2, "acceleration": "none"}
    streamcd.train(data, run, client=client, workers=2, **options)
    memory = {2: json.loads((run / "config.json").read_text())["memory"]}
    for n in (1, 0):
        streamcd.resume(run, client=client, workers=n or None, max_passes=3 + n)
        memory[n] = json.loads((run / "config.json").read_text())["memory"]
    # eight copies of w, of which this process holds as many, two as they are written, and four of parts that are certified
    weights = 14 * 13 * 8
    assert memory == {n: (800_000_000 - weights) // max(n, 1) for n in (2, 1, 0)}
    with pytest.raises(UsageError, match=r"too small for 3 workers: 200 MB .*resume with fewer --workers"):
        streamcd.resume(run, client=client, workers=3)


# ---------------------------------------------------------------------------------------------------------------------
# Processes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_killed_worker_changes_nothing(seed: int, real_data: Any, tmp_path: Path) -> None:
    """One of three processes is killed at a random moment of a round; dask starts another."""
    text = str(real_data("imdb.bigram.tfidf"))
    data = streamcd.convert(text, tmp_path / "imdb", shard_size="4.5MB", chunk_size="250KB")
    calm = streamcd.train(data, tmp_path / "calm", loss="log_loss", tol=1e-4, client=Simulation(3))
    moment = 0.5 + 3 * np.random.default_rng(seed).random()  # it takes some four seconds on two cores
    run = tmp_path / "run"
    with open_client(None, 3) as client:
        victims = list(client.run(os.getpid).values())
        begun: list[float] = []

        def kill() -> int | None:
            begun.append(time.monotonic())
            if victims and begun[-1] - begun[0] > moment:
                os.kill(victims[0], signal.SIGKILL)
                victims.clear()
            return None

        result = streamcd.train(
            data, run, loss="log_loss", tol=1e-4, client=client, stop_requested=kill, worker_timeout=60
        )
    assert not victims
    assert result.converged
    assert result.primal_objective == pytest.approx(calm.primal_objective, rel=2e-4)


@pytest.mark.slow
def test_five_kills_in_one_run_change_nothing(tmp_path: Path) -> None:
    """One of three processes is killed at a random moment, five times; dask starts others."""
    data = write_dataset(tmp_path / "data", random_rows(3000, 40, seed=5), n_chunks=48, n_shards=12)
    # without acceleration, where a dual that falls would show a round that was applied wrongly
    options: dict[str, Any] = {"loss": "hinge", "tol": 1e-3, "max_passes": 30_000, "acceleration": "none"}
    calm = streamcd.train(data, tmp_path / "calm", client=Simulation(3), **options)
    rng, begun, killed = np.random.default_rng(7), time.monotonic(), []
    moments = begun + 5 + np.cumsum(2 + 3 * rng.random(5))
    run = tmp_path / "run"
    with open_client(None, 3) as client:

        def kill() -> int | None:
            if len(killed) < 5 and time.monotonic() > moments[len(killed)]:
                live = list(client.run(os.getpid).values())
                if live:
                    killed.append(live[rng.integers(len(live))])
                    os.kill(killed[-1], signal.SIGKILL)
            assert time.monotonic() - begun < 300, "it hangs"
            # it would converge before the last kill
            return signal.SIGTERM if len(killed) == 5 else None

        with pytest.raises(Interrupted):
            streamcd.train(
                data, run, client=client, worker_timeout=60, stop_requested=kill, **{**options, "tol": 1e-9}
            )
        result = streamcd.resume(run, client=client, tol=1e-3)
    assert len(killed) == 5
    assert result.converged
    assert result.primal_objective == pytest.approx(calm.primal_objective, rel=2e-3)
    kept = [r["objective_estimate"] - r["gap_estimate"] for r in log(run) if r["kind"] == "train"]
    assert all(later >= earlier - 1e-9 * abs(earlier) for earlier, later in itertools.pairwise(kept))


@pytest.mark.slow
def test_workers_without_streamcd_or_with_another_are_told_and_not_used(
    commands: _Commands, data: Dataset, tmp_path: Path
) -> None:
    """One without it used to end as soon as it was asked, and the training waited for workers for minutes."""
    none, other = tmp_path / "none" / "streamcd", tmp_path / "other" / "streamcd"
    none.mkdir(parents=True)
    (none / "__init__.py").write_text("raise ImportError('no streamcd here')\n")
    shutil.copytree(Path(streamcd.__file__).parent, other, ignore=shutil.ignore_patterns("__pycache__"))
    (other / "_version.py").write_text('__version__ = "0"\n')
    for folder in (none, other):
        commands.start_worker(commands.address, folder.parent)
    with open_client(commands.address, 0) as client:
        client.wait_for_workers(2)
        with pytest.raises(EnvironmentFailure, match=r"no worker can take part"):
            streamcd.train(data, tmp_path / "run", client=client)
        commands.start_worker(commands.address)
        client.wait_for_workers(3)
        heard = _Heard()
        assert streamcd.train(data, tmp_path / "run", client=client, listener=heard, force=True).converged
    assert any("no streamcd here" in text for text in heard.warnings)
    assert any("it has streamcd 0, the coordinating process" in text for text in heard.warnings)


class _Heard(Listener):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)


class _Commands:
    """``dask scheduler`` and ``dask worker`` as a user starts them, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, []
        self.scheduler, self.address = self.start_scheduler()

    def start_scheduler(self) -> tuple[subprocess.Popen[bytes], str]:
        file = self.folder / f"scheduler-{len(self.processes)}.json"
        process = self.start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file, "--no-dashboard"
        )
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        return process, json.loads(file.read_text())["address"]

    def start_worker(self, address: str, package: Path = ROOT) -> subprocess.Popen[bytes]:
        options = "--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "60"
        return self.start("worker", address, *options, package=package)

    def start(self, *arguments: Any, package: Path = ROOT) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{os.environ['PYTHONPATH']}"},
        )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[_Commands]:
    made = _Commands(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_the_examples_of_the_documentation_run_on_three_workers(
    commands: _Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/shared` is a folder here, and what is trained there is what the first example has made."""
    from test_docs import examples

    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared").mkdir()
    used = []
    for _, text in examples("cluster.md"):
        text = text.replace("tcp://127.0.0.1:8786", commands.address).replace(
            "tcp://HOST:8786", commands.address
        )
        for line in text.replace("/shared", "shared").splitlines():
            program, *arguments = shlex.split(line, comments=True)
            if arguments[0] == "worker" and not used:
                for _ in range(3):
                    commands.start(*arguments, "--no-nanny", "--no-dashboard")
                with open_client(commands.address, 0) as client:
                    client.wait_for_workers(3)
            elif program == "streamcd":
                process = _train_command(*arguments)
                _, errors = process.communicate(timeout=120)
                assert process.returncode == 0, (line, errors)
                used += [record["workers"] for run in ("run", "shared/run") for record in _log_or_none(run)]
        if not (tmp_path / "shared" / "data").exists():
            shutil.copytree("data", "shared/data")
    assert set(used) == {3}


def _log_or_none(run: str) -> list[dict[str, Any]]:
    return log(Path(run)) if Path(run, "log.jsonl").exists() else []


def _train_command(*arguments: Any) -> Forked:
    return Forked(["-m", "streamcd", *arguments], stdout=PIPE, stderr=PIPE)


def _wait_for_rounds(run: Path, n: int, process: Forked) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (run / "log.jsonl").exists() and len((run / "log.jsonl").read_text().splitlines()) >= n:
            return
        time.sleep(0.05)
    raise AssertionError(process.communicate(timeout=10))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["LocalCluster", "dask worker"])
@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
def test_a_worker_stays_within_its_memory_on_data_that_it_has_to_stream(
    loss: str, how: str, commands: _Commands, tmp_path: Path
) -> None:
    """Four times as many entries for each as its windows hold."""
    from streamcd.cli.synthetic import write_text_like
    from streamcd.core.memory_budget import peak_memory_bytes

    write_text_like(tmp_path / "text", n_rows=250_000, n_features=50_000, entries_per_row=90, seed=0)
    data = streamcd.convert(tmp_path / "text", tmp_path / "data", shard_size="20MB")
    memory = 420_000_000
    if how == "dask worker":
        for _ in range(2):
            commands.start_worker(commands.address)
    with open_client(commands.address if how == "dask worker" else None, 2) as client:
        client.wait_for_workers(2)
        streamcd.train(data, tmp_path / "run", loss=loss, client=client, memory=memory, max_passes=4)
        peaks = client.run(peak_memory_bytes)
    read = sum(record["bytes_read"] for record in log(tmp_path / "run"))
    assert read > 4 * 8 * data.n_entries / 2, "it was kept in memory: the test shows nothing"
    assert len(peaks) == 2
    assert max(peaks.values()) < memory


@pytest.mark.slow
def test_real_scheduler_and_workers_survive_kills_and_a_lost_scheduler_is_an_error_that_resume_heals(
    commands: _Commands, real_data: Any, tmp_path: Path
) -> None:
    text = str(real_data("imdb.bigram.tfidf"))
    data = streamcd.convert(text, tmp_path / "imdb", shard_size="4.5MB", chunk_size="250KB")
    calm = streamcd.train(data, tmp_path / "calm", loss="hinge", tol=1e-3)  # slow enough to be killed
    run = tmp_path / "run"
    workers = [commands.start_worker(commands.address) for _ in range(3)]
    process = _train_command(
        "train", data.path, run, "--loss", "hinge", "--tol", "1e-9", "--scheduler", commands.address
    )
    _wait_for_rounds(run, 3, process)
    workers[0].kill()
    _wait_for_rounds(run, 8, process)
    commands.start_worker(commands.address)  # one that comes late
    _wait_for_rounds(run, 20, process)
    commands.scheduler.kill()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.strip().splitlines()[-1].startswith("streamcd: error: the dask scheduler is gone")
    assert "Traceback" not in errors
    committed = len(log(run))

    _, address = commands.start_scheduler()
    for _ in range(2):
        commands.start_worker(address)
    process = _train_command("resume", run, "--tol", "1e-3", "--scheduler", address, "--json")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    result = json.loads(output)
    assert result["converged"]
    assert result["primal_objective"] == pytest.approx(calm.primal_objective, rel=2e-3)
    used = [record["workers"] for record in log(run)]
    assert used[committed:] == [2] * (len(used) - committed)
    assert {2, 3} <= set(used[:committed])
