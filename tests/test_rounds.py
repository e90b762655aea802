"""Training in rounds: the mathematics of a step, partitions in one process, and what makes rounds converge."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from interrupted import log, stopping_after, weights
from reference import dual_values
from scipy.special import entr
from small_datasets import NAMED, multiclass, random_rows, write_dataset

import streamcd
from streamcd import Dataset
from streamcd.cluster.assignment import Assignment
from streamcd.cluster.block_steps import new_direction, newton_step, next_sigma_prime, quadratic_step
from streamcd.cluster.partition import open_same
from streamcd.cluster.rounds import WorkersLost, WorkerSpec
from streamcd.core.errors import DatasetError, EnvironmentFailure, Interrupted, UsageError
from streamcd.kernels import rounds as kernels
from streamcd.kernels.loss_table import row_loss
from streamcd.kernels.rounds import DUAL_CHANGE, LINEAR, LONGEST, QUADRATIC, Step
from streamcd.runs import config
from streamcd.runs.options import ProblemOptions
from streamcd.stream.memory_plan import Plan
from tools.simulated_cluster import SerialEngine, Simulation

LOSSES = ["hinge", "squared_hinge", "log_loss", "crammer_singer", "multinomial"]
ENTROPIC = ("log_loss", "multinomial")
BINARY = LOSSES[:3]
FREE = {"bias": 1.0, "unpenalized_bias": True}

pytestmark = pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two noisy classes in eight shards."""
    path = tmp_path_factory.mktemp("rounds") / "data"
    return write_dataset(path, random_rows(400, 12, seed=3), n_chunks=16, n_shards=8)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Four classes in six shards."""
    path = tmp_path_factory.mktemp("rounds") / "classes"
    return write_dataset(path, multiclass(), n_chunks=12, n_shards=6)


def problem_of(dataset: Dataset, loss: str, C: Any = 0.7) -> Any:
    options = ProblemOptions(loss=loss, method="dual", C=C, acceleration="none", bias="none")
    return config.problem_of(options, dataset)


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
    if problem.loss == "multinomial":
        return cost * rng.dirichlet(np.full(problem.classes.size, 0.3), code.size), cost
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
    kernels.add_slopes(row_loss("log_loss"), base, candidate, eta, np.empty(2), sums)
    return sums


def direction(
    problem: Any, base: np.ndarray, candidate: np.ndarray, cost: np.ndarray, code: np.ndarray
) -> np.ndarray:
    sums, change = new_direction(problem.n_lanes), np.empty(base.shape[1] // problem.n_lanes)
    y = problem.row_labels(code, None)
    kernels.add_direction(problem.row_loss, y, code, cost, base, candidate, change, sums)
    return sums


def row_objective(problem: Any, alpha: np.ndarray, cost: np.ndarray, code: np.ndarray) -> np.ndarray:
    """Rows' part of f, per lane."""
    if problem.loss == "crammer_singer":
        return np.array([alpha.sum() - alpha[np.arange(code.size), code].sum()])
    if problem.loss == "multinomial":
        return np.array([-entr(alpha / cost).sum(axis=1) @ cost[:, 0]])
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
    if loss in ENTROPIC:
        found = np.zeros((problem.n_lanes, 3))
        change = np.empty(base.shape[1] // problem.n_lanes)
        half = np.full(problem.n_lanes, 0.5)
        kernels.add_slopes(problem.row_loss, base, candidate, half, change, found)
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
        elif loss == "multinomial":
            ok = (point >= -1e-12).all()
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
    eta, _, count = newton_step(
        product,
        squared,
        problem_sums,
        2,
        lambda at: log_slopes(base, candidate, at),
    )

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
        product,
        np.array([0.1]),
        longest,
        2,
        lambda at: log_slopes(base, candidate, at),
    )
    assert count < 6
    assert 1.0 <= eta[0] < longest[0, 2]


def test_a_step_wakes_rows_that_it_leaves_off_their_bounds(data: Dataset) -> None:
    problem = problem_of(data, "hinge")
    code, cost = np.array([0, 1, 1]), np.full((3, 1), 0.7)
    base, candidate = np.array([[0.7], [0.2], [0.0]]), np.array([[0.0], [0.0], [0.0]])
    active = np.zeros((3, 1), dtype=np.uint8)
    point, y = np.empty(base.shape), problem.row_labels(code, None)
    half, whole = (Step(base, candidate, np.array([eta])) for eta in (0.5, 1.0))
    kernels.apply_step(problem.row_loss, y, code, cost, half, active, point)
    np.testing.assert_allclose(point, [[0.35], [0.1], [0.0]])
    assert active[:, 0].tolist() == [1, 1, 0]
    kernels.apply_step(problem.row_loss, y, code, cost, whole, active, point)
    assert (point == candidate).all()


# ---------------------------------------------------------------------------------------------------------------------
# Partitions in one process


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


@pytest.mark.parametrize(("name", "loss"), zip(NAMED, itertools.cycle(BINARY), strict=False))
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

    def small_plan(*_: Any) -> Plan:
        return Plan(window_entries=800, window_rows=120, resident=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamcd.cluster.partition.make_plan", small_plan)
        patch.setattr("streamcd.cluster.partition.plan_shards", lambda *_: None)
        streamed = streamcd.train(
            data, tmp_path / "streamed", loss=loss, max_passes=3000, client=Simulation(2)
        )
    resident = streamcd.train(data, tmp_path / "resident", loss=loss, max_passes=3000, client=Simulation(2))
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


@pytest.mark.parametrize("loss", ["hinge", "log_loss", "crammer_singer", "multinomial", "squared_error"])
@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_run_on_workers_is_the_beginning_of_one_in_one_process_or_on_other_workers(
    loss: str, n_workers: int, data: Dataset, classes: Dataset, tmp_path: Path
) -> None:
    """The dual goes on from where the last step of the workers ended, and does not fall."""
    if loss == "squared_error":
        x, y = random_rows(300, 8, seed=2)
        sizes = {"chunk_size": "1kB", "shard_size": "1kB", "target": True}
        data = streamcd.convert((x, y + x[:, 0].toarray().ravel()), tmp_path / "targets", **sizes)
        assert data.n_shards >= 3
    elif loss in ("crammer_singer", "multinomial"):
        data = classes
    options: dict[str, Any] = {"loss": loss, "method": "dual", "tol": 1e-9, "acceleration": "none"}
    before = streamcd.train(data, tmp_path / "before", client=Simulation(3), max_passes=9, **options)
    client = Simulation(n_workers) if n_workers else None
    options |= {"start_from": tmp_path / "before", "client": client}
    after = streamcd.train(data, tmp_path / "after", max_passes=1, **options)
    assert after.dual_objective >= before.dual_objective - 1e-9 * abs(before.dual_objective)
    if not n_workers:
        assert after.gap < 1.2 * before.gap
    more = streamcd.train(data, tmp_path / "more", C=3.0, max_passes=3000, **(options | {"tol": 1e-2}))
    assert more.converged


def test_stopped_and_resumed_with_another_number_of_workers(data: Dataset, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(Interrupted, match="round"):
        streamcd.train(data, run, client=Simulation(3), tol=1e-4, stop_requested=stopping_after(40))
    before = len(log(run))
    assert before > 1
    with pytest.raises(UsageError, match="begun on workers"):
        streamcd.resume(run)
    assert streamcd.resume(run, client=Simulation(2)).converged
    records = log(run)
    assert [record["round"] for record in records] == list(range(1, len(records) + 1))
    assert len(records) > before


def test_memory_of_a_run_of_a_cluster_is_divided_on_one_machine(data: Dataset, tmp_path: Path) -> None:
    """Each of two local workers had all of it."""
    run, memory = tmp_path / "run", []
    streamcd.train(data, run, client=Simulation(2), max_passes=1, tol=1e-9, memory="1GB")
    for n_passes, n_local in enumerate((2, 1, None, 2), start=2):
        streamcd.resume(run, client=Simulation(2), workers=n_local, max_passes=n_passes)
        memory.append(json.loads((run / "config.json").read_text())["memory"])
    assert memory == pytest.approx([4e8, 8e8, 1e9, 4e8], rel=1e-3)


@pytest.mark.parametrize("bias", [{}, FREE], ids=["", "free"])
@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss", "multinomial"])
def test_stopped_and_resumed_with_the_same_workers_gives_the_same_bits(
    loss: str, bias: dict[str, Any], data: Dataset, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"loss": loss, "tol": 1e-9, "max_passes": 12, "client": Simulation(3), **bias}
    streamcd.train(data, tmp_path / "whole", **options)
    with pytest.raises(Interrupted):
        streamcd.train(data, tmp_path / "cut", stop_requested=stopping_after(30), **options)
    streamcd.resume(tmp_path / "cut", client=Simulation(3))
    assert (weights(tmp_path / "whole") == weights(tmp_path / "cut")).all()


@pytest.mark.parametrize("loss", ["squared_hinge", "multinomial"])
def test_ended_at_its_passes_and_resumed_a_run_goes_on_to_the_optimum(
    loss: str, classes: Dataset, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"loss": loss, "tol": 1e-3, "C": [0.1, 1.0], "client": Simulation(3)}
    whole = streamcd.train(classes, tmp_path / "whole", max_passes=3000, **options)
    assert not streamcd.train(classes, tmp_path / "run", max_passes=3, **options).converged
    found = streamcd.resume(tmp_path / "run", client=Simulation(3), max_passes=3000)
    assert found.converged
    assert found.primal_objective == pytest.approx(whole.primal_objective, rel=1e-3)


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(
            loss, marks=[pytest.mark.slow] * (loss in ("hinge", "crammer_singer"))
        )  # hundreds of rounds
        for loss in LOSSES
    ],
)
def test_a_free_bias_in_rounds_ends_at_the_optimum_of_one_process(
    loss: str, classes: Dataset, tmp_path: Path
) -> None:
    """A path, whose lanes have their first certificate in different rounds; windows from disk."""
    options: dict[str, Any] = {"loss": loss, "C": [0.01, 0.2], "tol": 1e-6, "max_passes": 5000, **FREE}
    one = streamcd.train(classes, tmp_path / "one", **(options | {"tol": 1e-8}))
    with pytest.MonkeyPatch.context() as patch:
        plan = Plan(window_entries=300, window_rows=40, resident=False)
        patch.setattr("streamcd.cluster.partition.make_plan", lambda *_: plan)
        patch.setattr("streamcd.cluster.partition.plan_shards", lambda *_: None)
        split = streamcd.train(classes, tmp_path / "split", client=Simulation(3), **options)
    assert one.converged
    assert split.converged
    for ours, theirs in zip(split.lanes, one.lanes, strict=True):
        assert ours["primal_objective"] <= theirs["primal_objective"] * (1 + 1.1e-6)
        assert ours["dual_objective"] <= theirs["primal_objective"]
        assert ours["primal_objective"] >= theirs["dual_objective"]


@pytest.mark.parametrize(("step", "every"), [("round", 3), ("collect", 3), ("round", 1)])
def test_a_round_that_is_lost_leaves_no_trace_and_one_that_always_is_ends_the_run(
    step: str, every: int, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are lost after they wrote candidates, or after their dual variables came home."""
    options: dict[str, Any] = {"client": Simulation(3), "max_passes": 15, "tol": 1e-3, "loss": "multinomial"}
    options |= FREE
    streamcd.train(data, tmp_path / "calm", **options)
    calls, carry_out = itertools.count(1), getattr(SerialEngine, step)

    def lose(self: SerialEngine, *arguments: Any) -> Any:
        result = carry_out(self, *arguments)
        if next(calls) % every == 0:
            raise WorkersLost("pulled the plug")
        return result

    monkeypatch.setattr(SerialEngine, step, lose)
    if every == 1:
        with pytest.raises(EnvironmentFailure, match=r"lost 10 times in a row.*resume"):
            streamcd.train(data, tmp_path / "run", **options)
        return
    streamcd.train(data, tmp_path / "run", **options)
    assert (weights(tmp_path / "calm") == weights(tmp_path / "run")).all()
    assert max(record["attempts"] for record in log(tmp_path / "run")) == 2


def test_what_does_not_go_with_workers_is_refused(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="worker_timeout"):
        streamcd.train(data, tmp_path / "run", worker_timeout=2.0)
    with pytest.raises(UsageError, match="plan: workers make their own"):
        streamcd.train(data, tmp_path / "run", workers=2, memory="2GB", plan=(1000, 100))
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="too small"):
        streamcd.train(data, tmp_path / "run", memory="200MB", client=Simulation(2))
    with pytest.raises(UsageError, match="one process"):
        streamcd.train(data, tmp_path / "run", penalty="l1", client=Simulation(2))
    streamcd.train(data, tmp_path / "alone")
    with pytest.raises(UsageError, match=r"begun in one process.*start_from"):
        streamcd.resume(tmp_path / "alone", client=Simulation(2))


# ---------------------------------------------------------------------------------------------------------------------
# Dealing


def test_shards_are_dealt_evenly_as_a_function_of_seed_and_round() -> None:
    entries = np.array([256, 255, 257, 254, 256, 258, 255, 256, 31, 5], dtype=np.int64)
    met: set[tuple[int, int]] = set()
    assignment = Assignment(entries, seed=0)
    for number in range(150):
        dealt = assignment.shares(number, 3)
        assert sorted(itertools.chain(*dealt)) == list(range(entries.size))
        loads = [int(entries[shards].sum()) for shards in dealt]
        assert max(loads) - min(loads) <= 300
        for shards in dealt:
            met |= set(itertools.combinations(shards, 2))
    assert met == set(
        itertools.combinations(range(entries.size), 2)
    )  # every two shards share a worker now and then
    assert dealt == Assignment(entries, seed=0).shares(149, 3)
    assert dealt != Assignment(entries, seed=1).shares(149, 3)
    assignment.shares(150, 2)  # a worker is lost, and another one comes
    assert dealt == assignment.shares(149, 3)


def test_half_of_the_shards_stay_with_their_worker_from_round_to_round() -> None:
    assignment = Assignment(np.full(16, 100), seed=0)
    changes = []
    for number in range(1, 50):
        before, after = (
            {shard: worker for worker, shards in enumerate(assignment.shares(which, 4)) for shard in shards}
            for which in (number - 1, number)
        )
        changes.append(sum(before[shard] != after[shard] for shard in range(16)))
    assert max(changes) <= 8
    assert np.mean(changes) > 4


def test_a_shard_for_each_worker_stays_where_it_is() -> None:
    entries = np.array([50, 10, 40], dtype=np.int64)
    dealt = [Assignment(entries, seed=0).shares(number, 3) for number in range(5)]
    assert all(deal == [[0], [2], [1]] for deal in dealt)


# ---------------------------------------------------------------------------------------------------------------------
# Stiff models


def test_sigma_prime_is_what_makes_the_partitions_models_add_up() -> None:
    rng = np.random.default_rng(0)
    same = np.repeat(rng.standard_normal((1, 50)), 6, axis=0)
    orthogonal = np.linalg.qr(rng.standard_normal((50, 6)))[0].T
    opposed = np.concatenate([same[:3], -same[:3]])
    halves = np.concatenate([same[:3], orthogonal[:3] * 1e-3])
    for changes, expected in ((same, 4.0), (orthogonal, 1.0), (opposed, 1.0), (halves, 4.0), (same * 0, 1.0)):
        squared, apart = np.array([(changes.sum(axis=0) ** 2).sum()]), np.array([(changes**2).sum()])
        found = next_sigma_prime(squared, apart, 6, np.array([8.0]))
        assert found[0] in (expected, 2 * expected) if expected > 1 else found[0] == expected
        assert np.log2(found[0]) % 1 == 0  # scaling by it loses no bit
    assert next_sigma_prime(np.array([1e9]), np.array([1.0]), 4, np.array([1.0]))[0] == 4.0


def test_sigma_prime_that_was_too_small_is_rounded_up() -> None:
    for before, expected in ((1.0, 4.0), (2.0, 4.0), (4.0, 2.0)):
        found = next_sigma_prime(np.array([2.6]), np.array([1.0]), 4, np.array([before]))
        assert found[0] == expected


# ---------------------------------------------------------------------------------------------------------------------
# Rounds


@pytest.mark.parametrize(
    ("loss", "workers", "C"),
    [("log_loss", 2, 1e8), ("log_loss", 3, 1e8), ("log_loss", 2, 1e4)]
    + [("crammer_singer", 2, C) for C in (1.0, 1e4, 1e8)],
)
def test_a_slope_that_is_rounding_does_not_end_the_run(
    loss: str, workers: int, C: float, tmp_path: Path
) -> None:
    """Rows of size 1e6, near the optimum: a slope of 4e-25 from weights of 3e-5, one of 3e-17 from costs of 1."""
    x = sp.csr_array(np.array([[1_250_000.0], [-750_000.0], [500_000.0], [-1_500_000.0]]))
    rows = x, np.array([1.0, -1.0, 1.0, -1.0])
    data = write_dataset(tmp_path / "data", rows, n_chunks=4, n_shards=4, value_dtype=np.float64)
    options: dict[str, Any] = {"loss": loss, "method": "dual", "C": C, "tol": 1e-6, "max_passes": 100}
    found = streamcd.train(data, tmp_path / "run", client=Simulation(workers), **options)
    assert found.passes >= 100 or found.converged


# ---------------------------------------------------------------------------------------------------------------------
# Real sets


def test_a_worker_refuses_another_dataset_than_that_of_the_run(tmp_path: Path) -> None:
    """Under the path of the run there may be another one on the worker's machine."""
    dataset = write_dataset(tmp_path / "data", random_rows())
    problem = problem_of(dataset, "squared_hinge")
    spec = WorkerSpec(str(dataset.path), dataset.fingerprint, problem, "dual", 0, 1_000_000_000)
    assert open_same(spec).fingerprint == dataset.fingerprint
    with pytest.raises(DatasetError, match="fingerprint of another"):
        open_same(replace(spec, fingerprint="of another"))
