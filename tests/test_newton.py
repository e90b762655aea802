"""Newton's method: the optimum of others in few reads, certificates that hold, and the same bits however it is run."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
import scipy.sparse as sp
from exact_optimum import model, nearly_least
from heard import Heard
from interrupted import ended, log, stopping_after, train_by_turns, weights
from reference import augmented, exact_optimum, loss_values, run_weights
from small_datasets import multiclass, random_rows, windows_of, write_dataset

import streamcd
from streamcd import Dataset, Result, resume, train
from streamcd.cluster.kinds import make_assignment
from streamcd.cluster.rounds import WorkersLost, WorkerSpec
from streamcd.core.errors import ConvergenceWarning, Interrupted, UsageError
from streamcd.core.memory_budget import RUNNING_BYTES
from streamcd.kernels import newton as kernels
from streamcd.kernels import triangle
from streamcd.kernels.primitives import Rows
from streamcd.runs.choices import choose_method, settle
from streamcd.runs.describe import describe_dataset
from streamcd.runs.lane_groups import resolve
from streamcd.runs.options import TrainOptions
from streamcd.runs.problem_options import ProblemOptions
from streamcd.solvers.dual import rows_of
from streamcd.solvers.kept_rows import ROW_UNITS
from streamcd.solvers.memory import kept_rows, kept_units, newton_memory
from streamcd.solvers.newton import NewtonSolver
from streamcd.stream.arenas import RowLayout
from streamcd.stream.stream import Stream
from tools.simulated_cluster import SerialEngine, Simulation

LOSSES = ("squared_hinge", "log_loss")


@pytest.fixture(autouse=True)
def _few_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of small data would be, and their problem be solved between two reads."""
    monkeypatch.setattr("streamcd.solvers.memory._KEPT", 1500)


def fit(dataset: Dataset, run: Path, *, windows: int | None = 2, **options: Any) -> Result:
    """Train in windows of so many chunks, so that a read has several."""
    asked = {"method": "newton", "tol": 1e-12, "max_passes": 200, "memory": "1GB"} | options
    return train(dataset, run, plan=windows_of(dataset, windows, resident=windows is None), **asked)


def test_lanes_weights_and_folds_end_where_runs_of_their_own_do(tmp_path: Path) -> None:
    """Several C and classes, class weights and row weights, in one read; a row of weight 0 has no part in it."""
    rows = multiclass(3, 200)
    weight = np.linspace(0.0, 2.0, 200)
    data = write_dataset(tmp_path / "data", rows, weight=weight)
    asked = {"loss": "log_loss", "bias": 1.0, "class_weight": {2.0: 3.0}}
    together = fit(data, tmp_path / "run", C=[0.1, 10.0], **asked)
    cost = weight * np.where(rows[1] == 2.0, 3.0, 1.0)
    for number, C in enumerate((0.1, 10.0)):
        best = exact_optimum("log_loss", augmented(rows[0], 1.0), rows[1], C * cost)[1]
        found = [lane["primal_objective"] for lane in together.lanes[3 * number : 3 * number + 3]]
        np.testing.assert_allclose(found, best, rtol=1e-9)


@pytest.mark.parametrize("parts", [True, False])
@pytest.mark.parametrize("loss", [*LOSSES, "multinomial"])
def test_the_number_of_threads_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, parts: bool
) -> None:
    """Both where each part of a window has a Hessian of its own, and where it has rows of one."""
    if not parts:
        monkeypatch.setattr("streamcd.solvers.memory._MOST_PARTS", 0)
    data = write_dataset(tmp_path / "data", multiclass(3, 900), n_chunks=9)
    runs = [tmp_path / str(threads) for threads in (1, 2, 5)]
    for threads, run in zip((1, 2, 5), runs, strict=True):
        fit(data, run, loss=loss, windows=4, C=[0.5, 2.0], bias=1.0, threads=threads)
    assert ended(runs[0]) == ended(runs[1]) == ended(runs[2])


WORKED: dict[str, dict[str, Any]] = {
    "paths of C": {"loss": "log_loss", "C": [0.5, 200.0], "bias": 1.0},
    "a free bias": {"loss": "squared_hinge", "bias": 1.0, "unpenalized_bias": True},
    "l1": {"loss": "log_loss", "penalty": "l1", "l1": [5.0, 0.5], "bias": 1.0},
    "elastic net": {"loss": "squared_hinge", "penalty": "elasticnet", "l1": 2.0, "l2": 0.5},
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Three classes in seven shards of unequal size: a tree without some siblings."""
    rows = multiclass(3, 1100)
    return write_dataset(tmp_path_factory.mktemp("newton") / "data", rows, n_chunks=19, n_shards=7)


@pytest.mark.parametrize(
    ("name", "parts"),
    [*((name, True) for name in WORKED), ("paths of C", False), ("multinomial", False)],
)
def test_any_number_of_workers_ends_with_the_bits_of_one_process_whatever_its_windows(
    tmp_path: Path, shards: Dataset, name: str, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamcd.solvers.memory._SAMPLE_ENTRIES", 700)  # two chunks
    if not parts:
        monkeypatch.setattr("streamcd.solvers.memory._MOST_PARTS", 0)
    asked: dict[str, Any] = {"method": "newton", "tol": 1e-10, "memory": "1GB", **WORKED[name]}
    alone = train(shards, tmp_path / "alone", **asked)
    streamed = fit(shards, tmp_path / "streamed", windows=3, threads=2, **WORKED[name], tol=1e-10)
    assert streamed.passes == alone.passes
    for n_workers in (1, 2, 5):
        run = tmp_path / str(n_workers)
        assert train(shards, run, client=Simulation(n_workers), **asked).passes == alone.passes
        assert (weights(run) == weights(tmp_path / "alone")).all()
    assert (weights(tmp_path / "streamed") == weights(tmp_path / "alone")).all()


def test_workers_that_are_lost_or_leave_change_no_bit(
    tmp_path: Path, shards: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is repeated; a run is resumed with fewer workers; each worker reads its own shards alone."""
    asked: dict[str, Any] = {"method": "newton", "loss": "log_loss", "C": 30.0, "tol": 1e-10, "memory": "1GB"}
    whole = train(shards, tmp_path / "whole", client=Simulation(3), **asked)
    calls, carry_out = itertools.count(1), SerialEngine.round

    def lose(self: SerialEngine, *arguments: Any) -> Any:
        result = carry_out(self, *arguments)
        if next(calls) % 2:
            raise WorkersLost("pulled the plug")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(SerialEngine, "round", lose)
        with pytest.raises(Interrupted):
            train(shards, tmp_path / "run", client=Simulation(3), stop_requested=stopping_after(20), **asked)
    assert resume(tmp_path / "run", client=Simulation(2)).passes == whole.passes
    assert (weights(tmp_path / "run") == weights(tmp_path / "whole")).all()
    assert log(tmp_path / "run")[0]["attempts"] == 2


def test_sums_of_very_large_matrices_never_wait_and_are_not_for_workers(
    tmp_path: Path, shards: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shards are one block, with the same bits in any windows."""
    monkeypatch.setattr("streamcd.solvers.memory._SAMPLE_ENTRIES", 700)  # two chunks
    monkeypatch.setattr("streamcd.solvers.block_sums._VERY_LARGE_SUMS", 1)
    asked: dict[str, Any] = {"loss": "log_loss", "C": 3.0, "bias": 1.0}
    for name, windows in (("alone", None), ("streamed", 3)):
        fit(shards, tmp_path / name, windows=windows, **asked)
    assert (weights(tmp_path / "streamed") == weights(tmp_path / "alone")).all()
    assert newton_memory(problem_of(shards), shards, keeps_rows=False).more["sums of blocks"] == 0
    with pytest.raises(UsageError, match=r"in one block of all shards, .* workers cannot share its reads"):
        train(shards, tmp_path / "run", client=Simulation(2), method="newton", memory="1GB", **asked)
    tall = TrainOptions(memory=10**9, on_workers=True, loss="log_loss")
    assert (
        choose_method(tall, write_dataset(tmp_path / "tall", random_rows(4000, 12, density=1.0)))[0] == "dual"
    )


def test_matrices_of_five_thousand_features_fit_in_400_mb_however_many_the_shards(tmp_path: Path) -> None:
    rows = random_rows(2000, 5570, density=0.003)
    data = write_dataset(tmp_path / "data", rows, n_chunks=12, n_shards=9)
    memory = newton_memory(problem_of(data), data, keeps_rows=True)
    assert RUNNING_BYTES + memory.state + sum(memory.more.values()) < 270e6


def test_workers_share_the_reading(tmp_path: Path, shards: Dataset) -> None:
    """Each reads its own neighbouring shards; together they read the dataset once a round."""
    spec = WorkerSpec(
        str(shards.path), shards.fingerprint, str(tmp_path), problem_of(shards), "newton", 0, 10**9
    )
    dealt = make_assignment(spec, shards).of_round(0, ["a", "b", "c"])
    assert list(itertools.chain(*dealt.values())) == list(range(7))
    assert max(map(len, dealt.values())) == 3


def problem_of(dataset: Dataset) -> Any:
    return ProblemOptions(loss="log_loss", method="newton", acceleration="none").make_problem(dataset)


def test_both_ways_to_sum_up_the_hessian_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamcd.solvers.memory._KEPT", 0)  # with large matrices none are
    data = write_dataset(tmp_path / "data", random_rows(500, 30, density=0.6))
    asked: dict[str, Any] = {"loss": "log_loss", "C": 3.0, "bias": 1.0}
    one = fit(data, tmp_path / "one", **asked)
    monkeypatch.setattr("streamcd.solvers.memory._MOST_PARTS", 0)
    other = fit(data, tmp_path / "other", **asked)
    np.testing.assert_allclose(
        run_weights(tmp_path / "one", 1.0), run_weights(tmp_path / "other", 1.0), atol=1e-9
    )
    assert one.passes == other.passes


@pytest.mark.parametrize("loss", [*LOSSES, "multinomial"])
def test_stopped_anywhere_and_resumed_ends_with_the_same_bits(tmp_path: Path, loss: str) -> None:
    data = write_dataset(tmp_path / "data", multiclass(3, 700), n_chunks=10)
    asked: dict[str, Any] = {"loss": loss, "C": 20.0, "bias": 1.0, "tol": 1e-9}
    fit(data, tmp_path / "whole", **asked)
    for windows in (1, 4, 7):
        run = tmp_path / str(windows)
        train_by_turns(fit, data, run, windows, (3,), **asked)
        assert ended(run) == ended(tmp_path / "whole")


def test_more_passes_go_on_as_if_there_had_been_no_end(tmp_path: Path) -> None:
    """The model of the last read is kept, so resuming needs no read of its own."""
    data = write_dataset(tmp_path / "data", random_rows(500, 12))
    asked: dict[str, Any] = {"loss": "log_loss", "C": 50.0, "tol": 1e-12}
    whole = fit(data, tmp_path / "whole", **asked)
    with pytest.warns(UserWarning, match="not converged"):
        fit(data, tmp_path / "run", **asked | {"max_passes": 2})
    assert resume(tmp_path / "run", max_passes=200).passes == whole.passes
    assert ended(tmp_path / "run")[0] == ended(tmp_path / "whole")[0]


def test_no_dual_variables_are_on_disk(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(500, 12))
    fit(data, tmp_path / "run", loss="squared_hinge")
    assert not [path for path in (tmp_path / "run" / "dual").rglob("*") if path.stat().st_size > 4096]


def test_a_warm_start_begins_with_the_weights_of_any_method(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(500, 12))
    train(data, tmp_path / "dual", loss="log_loss", tol=1e-8, memory="1GB")
    warm = fit(data, tmp_path / "warm", loss="log_loss", tol=1e-6, start_from=tmp_path / "dual")
    assert warm.converged
    assert warm.passes == 1
    asked: dict[str, Any] = {
        "method": "newton",
        "start_from": tmp_path / "dual",
        "loss": "log_loss",
        "tol": 1e-6,
    }
    assert train(data, tmp_path / "workers", client=Simulation(2), memory="1GB", **asked).passes == 1


def test_what_the_method_does_not_train_is_refused(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows())
    with pytest.raises(UsageError, match="no solver for hinge by method newton"):
        fit(data, tmp_path / "run", loss="hinge")
    wide = write_dataset(tmp_path / "wide", random_rows(20, 20_000, density=0.001))
    with pytest.raises(UsageError, match=r"20,001 x 20,001.*--method dual"):
        train(wide, tmp_path / "run", method="newton", memory="1GB")


def test_auto_takes_it_for_tall_data_that_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamcd.runs.choices._has_room", lambda *_: True)  # of rows as few as these
    data = write_dataset(tmp_path / "data", random_rows(3000, 5))
    streamed = RUNNING_BYTES + data.n_entries  # little is left beside the interpreter

    def chosen(**options: Any) -> str:
        return choose_method(TrainOptions(**{"memory": streamed, "loss": "log_loss"} | options), data)[0]

    assert chosen() == "newton"
    assert chosen(memory=10**9) == "dual"
    assert chosen(C=[0.1] * 100) == "dual"
    assert chosen(memory=10**9, on_workers=True) == "newton"
    assert chosen(memory=10**9, on_workers=True, loss="hinge") == "dual"
    assert chosen(memory=10**9, on_workers=True, penalty="l1") == "newton"


def test_auto_takes_it_where_features_have_large_means(tmp_path: Path) -> None:
    """Dual takes 150 passes where the means are 30 deviations, and more than 500 where they are 300, not of centred rows."""
    x, _ = random_rows(3000, 5)
    score = x @ np.arange(1.0, 6.0)
    far = sp.csr_array(x.toarray() + 1000.0)
    near, data = (
        streamcd.convert((rows, score), tmp_path / str(k), target=True) for k, rows in enumerate((x, far))
    )
    asked: dict[str, Any] = {"loss": "squared_error", "bias": 1.0}
    assert choose_method(TrainOptions(memory=10**9, **asked), near)[0] == "dual"
    assert choose_method(TrainOptions(memory=10**9, unpenalized_bias=True, **asked), data)[0] == "dual"
    result = train(data, tmp_path / "run", memory="1GB", tol=1e-6, **asked)
    assert result.converged
    assert result.passes <= 3


def test_auto_takes_it_where_dual_would_not_end_for_scales_whatever_the_number_of_rows(
    tmp_path: Path,
) -> None:
    """Searches and starts take it too: 5 folds of 3 costs by dual took 1,000 passes, and scored 0.65 for 0.77."""

    def method(run: str) -> Any:
        return command_line.run_json("info", tmp_path / run)["options"]["method"]

    x, y = random_rows(300, 8)
    data = write_dataset(tmp_path / "data", (x.multiply(np.logspace(0, 6, 8)).tocsr(), y))
    near = write_dataset(tmp_path / "near", (x, y))
    result = train(data, tmp_path / "run", memory="1GB")
    assert result.converged
    assert result.passes <= 8
    search: dict[str, Any] = {"C": [0.1, 1.0], "memory": "1GB"}
    chosen = streamcd.tune(data, tmp_path / "search", **search)
    assert chosen.converged
    assert method("search") == "newton"
    streamcd.tune(near, tmp_path / "near-search", **search)
    assert method("near-search") == "dual"
    train(data, tmp_path / "next", start_from=tmp_path / "run")
    assert method("next") == "newton"
    assert choose_method(TrainOptions(loss="hinge"), data)[0] == "dual"


def test_rows_are_kept_where_there_is_room_and_auto_takes_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamcd.solvers.memory._KEPT", 1 << 19)
    data = write_dataset(tmp_path / "data", random_rows(3000, 5))

    def planned(memory: int, heard: Heard, **options: Any) -> ProblemOptions:
        asked = TrainOptions(**{"loss": "log_loss", "memory": memory} | options)
        return resolve(data, settle(asked, data, heard), heard).config.options

    def least(**options: Any) -> int:
        low, high = RUNNING_BYTES // 2, RUNNING_BYTES + (1 << 28)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                planned(middle, Heard(), **options)
                high = middle
            except UsageError:
                low = middle
        return high

    heard, without = Heard(), least(method="newton", acceleration="none")
    assert least(method="newton") == without
    assert planned(without, heard, method="newton").acceleration == "none"
    assert any(
        "room for rows that are kept from a read: that does not fit" in text for text in heard.messages
    )
    units = kept_units(TrainOptions(loss="log_loss", C=1.0).make_problem(data), data, keeps_rows=True)
    assert planned(without + 128 * units, heard, method="newton").acceleration == "auto"

    # of so many features the matrices outweigh the kernels that dual has and newton has not
    data = write_dataset(tmp_path / "wider", random_rows(3000, 500), n_chunks=20)
    heard, without = Heard(), least(method="newton", acceleration="none", penalty="l1")
    assert planned(without, heard, penalty="l1").method == "newton"
    assert planned(without - 1, heard, penalty="l1").method == "dual"
    assert any("newton, which needs fewer reads, does not fit" in text for text in heard.messages)


def test_l1_is_certified_where_gradients_are_ten_million_times_its_strength(tmp_path: Path) -> None:
    """The bound on the rounding of v, which is taken off all dual variables, was a share of a million of them."""
    rng = np.random.default_rng(4)
    x = np.exp(2.5 * rng.standard_normal((3000, 6)))
    y = np.where(np.log(x) @ rng.standard_normal(6) + 3.0 * rng.standard_normal(3000) > 0.0, 1.0, -1.0)
    data = write_dataset(tmp_path / "data", (sp.csr_array(x), y), n_chunks=5, value_dtype=np.float64)
    asked: dict[str, Any] = {"loss": "log_loss", "penalty": "l1", "max_passes": 15}
    result = fit(data, tmp_path / "run", C=1e4, tol=1e-6, **asked)
    assert result.converged, result.gap
    with pytest.warns(ConvergenceWarning, match="with what rounding may add"):
        result = fit(data, tmp_path / "further", C=1e6, tol=1e-6, **asked)
    assert result.stop_reason == "rounding"


def test_a_training_ends_where_rounding_hides_the_gap_and_goes_on_with_another_tolerance(
    tmp_path: Path,
) -> None:
    """Times in milliseconds leave sums over the rows without the digits that a proof takes."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.standard_normal(2000), 1.7e12 + 1e10 * rng.random(2000)])
    y = np.where(x[:, 0] + rng.standard_normal(2000) > 0.0, 1.0, -1.0)
    data = write_dataset(tmp_path / "data", (sp.csr_array(x), y), n_chunks=5, value_dtype=np.float64)
    assert "rounding hides whether an optimum is reached" in describe_dataset(data)["advice"][0]
    with pytest.warns(ConvergenceWarning, match="with what rounding may add"):
        result = fit(data, tmp_path / "run", loss="log_loss", bias=1.0)
    assert (result.stop_reason, result.converged) == ("rounding", False)
    assert result.passes <= 10
    assert resume(tmp_path / "run").passes == result.passes
    assert resume(tmp_path / "run", tol=1.01 * result.gap).stop_reason == "gap"
    with pytest.warns(ConvergenceWarning):
        assert resume(tmp_path / "run", tol=0.0, max_passes=result.passes + 3).passes == result.passes + 3


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("room", "most"), [(0, None), (4000, 15), (1 << 19, 15)])
def test_kept_rows_spare_reads_of_separable_data_with_a_large_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, room: int, most: int | None
) -> None:
    """The quadratic model alone takes steps that are too long, again and again; the optimum is the same."""
    monkeypatch.setattr("streamcd.solvers.memory._KEPT", room)
    x, y = random_rows(600, 60, density=0.5)
    data = write_dataset(tmp_path / "data", (x, y), n_chunks=5)
    result = fit(data, tmp_path / "run", loss=loss, C=1000.0, tol=1e-6)
    assert result.converged
    best = exact_optimum(loss, augmented(x, 0.0), y, np.full(600, 1000.0))[1]
    assert result.primal_objective == pytest.approx(best, rel=1e-6)
    assert most is None or result.passes <= most, result.passes


def test_the_same_nearest_rows_are_kept_however_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties go by the row's number, and no row that fits is passed over for one that is farther away."""
    monkeypatch.setattr("streamcd.solvers.memory._KEPT", 2 * 900)
    x, y = multiclass(2, 400)
    data = write_dataset(tmp_path / "data", (x, y), n_chunks=8, n_shards=3)
    asked = ProblemOptions(loss="squared_hinge", method="newton", C=(1.0, 9.0), acceleration="none")
    problem = asked.make_problem(data)
    room, rng = kept_rows(problem, data, keeps_rows=True), np.random.default_rng(3)
    rows = whole_rows(data)
    distance = np.round(rng.random(400), 1).astype(np.float32)  # with ties
    length = np.diff(rows.indptr[:401])
    order = np.lexsort((np.arange(400), distance))
    nearest = set(order[np.cumsum(length[order] + ROW_UNITS) <= 900].tolist())
    for parts in (1, 3, 7):
        pieces = [np.sort(piece) for piece in np.array_split(rng.permutation(400), parts)]
        kept, others = room.new(), room.new()
        for k, piece in enumerate(pieces):
            room.offer((kept, others)[k % 2], 1, rows, (piece, piece, distance[piece]))
        room.join(kept, others)
        n = room.count(kept, 1)
        assert set(kept["kept_number"][1, :n].tolist()) == nearest
        loaded, order = room.load(kept, 1, RowLayout(0, 0).new_arena(data, *room.sizes))
        for i in order[:20].tolist():
            own = slice(*loaded.indptr[i : i + 2])
            number = int(kept["kept_number"][1, i])
            theirs = slice(*rows.indptr[number : number + 2])
            assert (loaded.value[own] == rows.value[theirs]).all()
            assert (loaded.feature[own] == rows.feature[theirs]).all()
        assert room.count(kept, 0) == 0


def whole_rows(dataset: Dataset) -> Rows:
    """Return all rows, in stored order."""
    layout = RowLayout(0, 0)
    with Stream(
        dataset, windows_of(dataset, None, resident=True), replace(layout, in_order=True), 0
    ) as stream:
        return rows_of(next(stream.windows(0)))


def slow_sums(
    loss: str, x: np.ndarray, y: np.ndarray, cost: np.ndarray, w: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Loss, v and Hessian of one lane, by NumPy."""
    t = y * (x @ w)
    if loss == "log_loss":
        a = 1.0 / (1.0 + np.exp(t))
        curve = a * (1.0 - a)
    else:
        a, curve = 2.0 * np.maximum(1.0 - t, 0.0), 2.0 * (t < 1.0)
    return float(cost @ loss_values(loss, t)), x.T @ (cost * a * y), x.T @ (x * (cost * curve)[:, None])


@pytest.mark.parametrize("density", [0.1, 0.9])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_read_sums_up_what_numpy_does(tmp_path: Path, loss: str, density: float) -> None:
    """Of sparse rows pair by pair, of others in dense blocks."""
    x, y = random_rows(300, 21, density=density)
    data = write_dataset(tmp_path / "data", (x, y))
    asked = ProblemOptions(loss=loss, method="newton", bias=1.5, C=2.0, acceleration="none")
    solver = asked.make_solver(asked.make_problem(data), data)
    state = solver.new_state()
    state.w[:, 0] = np.random.default_rng(1).standard_normal(22)
    with Stream(data, windows_of(data, None, resident=True), solver.layout, 0) as stream:
        for window in stream.windows(0):
            state.lanes["begun"][:] = True
            solver.add_window(window, state)
    value, v, hessian = slow_sums(loss, augmented(x, 1.5), y, np.full(300, 2.0), state.w[:, 0])
    np.testing.assert_allclose(state.matrices["line"][0, kernels.AT_POINT], value, rtol=1e-12)
    np.testing.assert_allclose(state.matrices["v"][0].sum(axis=0), v, rtol=1e-9, atol=1e-9)
    lower = hessian[np.tril_indices(22)]
    np.testing.assert_allclose(state.matrices["hessian"][0], lower, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1, 5, 32, 75])
def test_a_linear_system_is_solved_and_a_variable_without_curvature_is_left_at_zero(size: int) -> None:
    rng = np.random.default_rng(size)
    root = rng.standard_normal((size, size + 3))
    matrix, right = root @ root.T, rng.standard_normal(size)
    expected = np.linalg.solve(matrix, right)
    with_zero = np.zeros((size + 1, size + 1))
    with_zero[:size, :size] = matrix
    x = np.append(right, 3.0)
    lower, panel = with_zero[np.tril_indices(size + 1)], np.zeros((triangle.PANEL, size + 1))
    triangle.solve_positive(lower, x, np.full(size + 1, 1e-14), panel)
    np.testing.assert_allclose(x, np.append(expected, 0.0), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_few_reads_are_enough(tmp_path: Path, loss: str) -> None:
    data = write_dataset(tmp_path / "data", random_rows(5000, 15, density=0.8), n_chunks=10)
    assert fit(data, tmp_path / "run", loss=loss, tol=1e-6, bias=1.0).passes <= 6


@pytest.mark.parametrize("method", ["newton", "primal"])
def test_huber_moves_where_no_error_is_on_the_curved_part(tmp_path: Path, method: str) -> None:
    """Both stood still: the second derivative of the loss is 0 at errors beyond delta, as all are for targets 1000 off."""
    x, _ = random_rows(300, 6, density=1.0)
    dense, noise = augmented(x, 1.0), np.random.default_rng(0).standard_normal(300)
    y = dense @ np.arange(7.0) + noise
    data = streamcd.convert((x, y + 1000.0), tmp_path / "data", target=True)
    streamcd.make_columns(data)
    asked: dict[str, Any] = {"loss": "huber", "method": method, "bias": 1.0, "unpenalized_bias": True}
    result = streamcd.train(data, tmp_path / "run", C=2.0, tol=1e-9, memory="1GB", max_passes=60, **asked)

    assert result.converged
    least = nearly_least(model("huber", dense, y, 2.0, free=True, parameter=1.35))
    assert result.primal_objective == pytest.approx(least, rel=1e-8)


def test_the_dual_variables_that_a_model_expects_prove_a_smaller_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a large C those at the weights of the read prove it a read or two later, where no rows are kept."""
    monkeypatch.setattr("streamcd.solvers.memory._KEPT", 0)
    data = write_dataset(tmp_path / "data", random_rows(2000, 20, density=0.5), n_chunks=4)
    asked: dict[str, Any] = {"loss": "log_loss", "C": 1000.0, "bias": 1.0}
    best = fit(data, tmp_path / "best", **asked).primal_objective

    def gap_after(passes: int, name: str) -> float:
        with pytest.warns(UserWarning, match="not converged"):
            result = fit(data, tmp_path / f"{name}{passes}", max_passes=passes, tol=0.0, **asked)
        assert result.dual_objective <= best * (1 + 1e-12)
        return result.gap

    found = [gap_after(passes, "with") for passes in (2, 3, 4)]
    monkeypatch.setattr(NewtonSolver, "_least_gap", lambda self, state, norm, gap, rounding: (gap, rounding))
    without = [gap_after(passes, "without") for passes in (2, 3, 4)]
    assert all(0.0 < own <= other for own, other in zip(found, without, strict=True))
    assert found[2] < 0.1 * without[2]
