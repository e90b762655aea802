"""Certificates against exact arithmetic: a gap that is reported is never below the true one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from interrupted import train_by_turns
from mpmath import mp, mpf
from reference import OF_CLASSES, run_dual
from small_datasets import Rows, windows_of, write_dataset

from streamcd import ConvergenceWarning, Dataset, convert, make_columns, train, tune
from streamcd.runs.describe import describe
from streamcd.solvers.problem import Problem, make_problem
from tools.simulated_cluster import Simulation

CASES = [
    ("hinge", "dual", {}),
    ("squared_hinge", "dual", {}),
    ("log_loss", "dual", {}),
    ("crammer_singer", "dual", {}),
    ("multinomial", "dual", {}),
    ("twin", "dual", {"slack": "hinge"}),
    ("twin", "dual", {"slack": "squared_hinge"}),
    ("twin", "sor", {"slack": "hinge"}),
    ("squared_hinge", "primal", {}),
    ("squared_hinge", "online", {}),
    ("log_loss", "primal", {}),
    ("log_loss", "online", {}),
]
Lane = tuple[float, float, Any, Any, bool, float, float]
"""Gap and primal objective as reported, primal objective and gap in exact arithmetic, converged, rounding of the gap."""

ALLOWED = 2e-8  # of the gap: less rounding leaves its digits alone


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    with mp.workdps(80):
        yield


def name_of(value: object) -> str:
    return "-".join(f"{it}" for it in value.values()) if isinstance(value, dict) else str(value)


def issue_example() -> Rows:
    """Four rows whose terms of the gap were numbers of size C log C, which cancel."""
    x = np.array([[1250000.0], [-750000.0], [500000.0], [-1500000.0]])
    return sp.csr_array(x), np.array([1.0, -1.0, 1.0, -1.0])


def badly_scaled(seed: int, n_classes: int = 2) -> tuple[Rows, float]:
    """Rows of sizes from 1e-6 to 1e8, and a C from 1e-3 to 1e6."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-3, 7) * 10.0 ** rng.uniform(-3, 1, 3)
    x = rng.standard_normal((14, 3)) * scale
    y = (np.arange(14) % n_classes).astype(np.float64)
    return (sp.csr_array(x), y), float(10.0 ** rng.uniform(-3, 6))


# ---------------------------------------------------------------------------------------------------------------------
# Objectives in exact arithmetic


def log1p_exp(t: Any) -> Any:
    return mp.log1p(mp.exp(t)) if t < 0 else t + mp.log1p(mp.exp(-t))


def x_log_x(x: Any) -> Any:
    return x * mp.log(x) if x > 0 else mpf(0)


def row_terms(loss: str, t: Any, c: Any, alpha: Any, rest: Any) -> tuple[Any, Any]:
    """The primal loss and the dual's term of a row."""
    if loss == "log_loss":
        return c * log1p_exp(-t), x_log_x(c) - x_log_x(alpha) - x_log_x(rest)
    if loss == "square":
        return c * t * t / 2, -alpha * alpha / (2 * c)
    slack = max(1 - t, mpf(0))
    if loss == "hinge":
        return c * slack, alpha
    return c * slack * slack, alpha - alpha * alpha / (4 * c)


def exact_gap(
    problem: Problem, lane: int, x: np.ndarray, code: np.ndarray, w: np.ndarray, alpha: np.ndarray
) -> tuple[Any, Any]:
    """Primal objective, and primal minus dual, of a lane; `alpha` (rows, alpha_width) as the run keeps it."""
    l1, l2 = mpf(float(problem.l1[lane])), mpf(problem.l2)
    rows = [[mpf(float(value)) for value in row] for row in x]
    weights = [mpf(float(value)) for value in w[:, lane]]
    v = [mpf(0)] * len(weights)
    primal, dual = sum(l1 * abs(value) + l2 * value * value / 2 for value in weights), mpf(0)
    for i, row in enumerate(rows):
        y, c = mpf(float(problem.sign[code[i], lane])), mpf(float(problem.cost[code[i], lane]))
        t = y * sum(a * b for a, b in zip(row, weights, strict=True))
        a, rest = mpf(float(alpha[i, lane])), mpf(0)
        if problem.loss == "log_loss":  # the smaller of alpha and C - alpha says what both are
            rest = mpf(float(alpha[i, problem.n_lanes + lane]))
            a, rest = (a, c - a) if a <= rest else (c - rest, rest)
        loss = problem.loss
        if loss == "twin":
            loss = "square" if y < 0 else problem.slack
        xi, term = row_terms(loss, t, c, a, rest)
        primal, dual = primal + xi, dual + term
        v = [old + y * a * value for old, value in zip(v, row, strict=True)]
    return primal, primal - dual + sum(max(abs(value) - l1, mpf(0)) ** 2 for value in v) / (2 * l2)


def exact_class_gap(
    problem: Problem, x: np.ndarray, code: np.ndarray, w: np.ndarray, alpha: np.ndarray
) -> tuple[Any, Any]:
    """As `exact_gap` for Crammer–Singer and multinomial logistic regression."""
    k, l1, l2 = problem.classes.size, mpf(float(problem.l1[0])), mpf(problem.l2)
    weights = [[mpf(float(value)) for value in w[:, m]] for m in range(k)]
    v = [[mpf(0)] * w.shape[0] for _ in range(k)]
    primal = sum(l1 * abs(value) + l2 * value * value / 2 for own in weights for value in own)
    dual = mpf(0)
    for i, row in enumerate([[mpf(float(value)) for value in row] for row in x]):
        y, c = int(code[i]), mpf(float(problem.cost[code[i], 0]))
        scores = [sum(a * b for a, b in zip(row, own, strict=True)) for own in weights]
        a = [mpf(float(number)) for number in alpha[i]]
        if problem.loss == "multinomial":
            largest = max(scores)
            primal += c * (largest - scores[y] + mp.log(sum(mp.exp(score - largest) for score in scores)))
            a[y] = c - sum(a[:y] + a[y + 1 :])  # the others say what it is
            dual += x_log_x(c) - sum(map(x_log_x, a))
            a = [c * (m == y) - own for m, own in enumerate(a)]
        else:
            primal += c * max(scores[m] - scores[y] + (m != y) for m in range(k))
            dual -= sum(a) - a[y]
        for m in range(k):
            v[m] = [old + a[m] * value for old, value in zip(v[m], row, strict=True)]
    beyond = sum(max(abs(value) - l1, mpf(0)) ** 2 for own in v for value in own)
    return primal, primal - dual + beyond / (2 * l2)


def exact_excess(problem: Problem, x: np.ndarray, code: np.ndarray, w: np.ndarray) -> tuple[Any, Any]:
    """Primal objective, and how far it is above the optimum, which Newton's method finds from `w` on.

    A primal method keeps no alpha, and its certificate is that of an alpha near the optimum's.
    """
    rows = [
        mp.matrix([mpf(float(v)) * float(y) for v in row])
        for row, y in zip(x, problem.sign[code, 0], strict=True)
    ]
    costs = [mpf(float(c)) for c in problem.cost[code, 0]]

    def primal(at: Any) -> Any:
        margins = [(row.T * at)[0] for row in rows]
        losses = (row_terms(problem.loss, t, c, mpf(0), c)[0] for t, c in zip(margins, costs, strict=True))
        return (at.T * at)[0] / 2 + sum(losses)

    def newton_step(at: Any) -> Any:
        gradient, curvature = at.copy(), mp.eye(len(at))
        for row, c in zip(rows, costs, strict=True):
            t = (row.T * at)[0]
            if problem.loss == "log_loss":
                p = 1 / (1 + mp.exp(t))
                slope, bend = -c * p, c * p * (1 - p)
            else:
                slope, bend = -2 * c * max(1 - t, mpf(0)), 2 * c * (t < 1)
            gradient, curvature = gradient + slope * row, curvature + bend * row * row.T
        return mp.lu_solve(curvature, -gradient)

    start = mp.matrix([mpf(float(value)) for value in w[:, 0]])
    best, least = start, primal(start)
    for _ in range(60):
        step, length = newton_step(best), mpf(1)
        while primal(best + length * step) >= least and length > mpf(2) ** -40:
            length /= 2
        if length <= mpf(2) ** -40:
            break
        best = best + length * step
        least = primal(best)
    return primal(start), primal(start) - least


# ---------------------------------------------------------------------------------------------------------------------


def certify(
    folder: Path,
    rows: Rows,
    loss: str,
    method: str,
    C: float,
    *,
    tol: float = 1e-6,
    max_passes: int = 100,
    **options: Any,
) -> list[Lane]:
    """Train, and compare every lane with exact arithmetic."""
    columns = method in ("primal", "online")
    dataset = write_dataset(folder / "data", rows, value_dtype=np.float64, n_chunks=2, n_shards=2)
    if columns:
        make_columns(dataset)
    train(
        dataset,
        folder / "run",
        loss=loss,
        method=method,
        C=[C],
        tol=tol,
        max_passes=max_passes,
        memory="1GB",
        **options,
    )
    classes, code = np.unique(rows[1], return_inverse=True)
    problem = make_problem(
        loss=loss,
        classes=classes,
        n_features=rows[0].shape[1],
        C=[C],
        slack=options.get("slack", "hinge"),
        l1=[options.get("l1", 0.0)],
        l2=options.get("l2", 1.0),
    )
    return compare(folder / "run", dataset, rows, code, problem, columns=columns)


def compare(
    run: Path, dataset: Dataset, rows: Rows, code: np.ndarray, problem: Problem, *, columns: bool
) -> list[Lane]:
    x, loss = rows[0].toarray(), problem.loss
    with np.load(run / "state.npz") as archive:
        state = {name: archive[name] for name in archive.files}
    w = state["w"][:-1]
    if columns:
        exact = [exact_excess(problem, x, code, w)]
    else:
        n_vectors = problem.n_lanes * problem.lane_vectors
        n_flags = problem.n_lanes if loss == "multinomial" else n_vectors
        alpha, _ = run_dual(run, dataset, n_vectors * (2 if loss == "log_loss" else 1), n_flags)
        if loss in OF_CLASSES:
            exact = [exact_class_gap(problem, x, code, w, alpha)]
        else:
            exact = [exact_gap(problem, lane, x, code, w, alpha) for lane in range(problem.n_lanes)]
    names = ("gap", "primal", "converged", "rounding", "at_zero")
    figures = zip(*(state[name].tolist() for name in names), exact, strict=True)
    return [(gap, primal, *found, done, *figures) for gap, primal, done, *figures, found in figures]


def assert_holds(lanes: list[Lane], tol: float) -> None:
    for gap, primal, true_primal, true_gap, converged, rounding, at_zero in lanes:
        assert true_gap >= 0
        assert abs(primal - true_primal) <= rounding
        true_gap = min(true_gap, true_primal)  # alpha = 0 is a point of the dual too
        assert gap * (1 + ALLOWED) >= true_gap, f"{gap} is reported, {mp.nstr(true_gap, 6)} is true"
        if converged:
            assert true_gap <= tol * max(true_primal, mpf(1e-9 * at_zero)) * (1 + 1e-6)


@pytest.mark.parametrize(("loss", "method", "options"), CASES, ids=name_of)
def test_no_certificate_is_below_the_true_gap_of_the_example(
    tmp_path: Path, loss: str, method: str, options: dict[str, Any]
) -> None:
    for number, C in enumerate((1.0, 1e4)):
        lanes = certify(tmp_path / str(number), issue_example(), loss, method, C, **options)
        assert_holds(lanes, 1e-6)


@pytest.mark.parametrize("seeds", [slice(2), pytest.param(slice(2, None), marks=pytest.mark.slow)])
@pytest.mark.parametrize(("loss", "method", "options"), CASES, ids=name_of)
def test_no_certificate_is_below_the_true_gap_where_scales_are_bad(
    tmp_path: Path, loss: str, method: str, options: dict[str, Any], seeds: slice
) -> None:
    """Each of twelve problems is one of the first two of some losses."""
    n_classes = 3 if loss in (*OF_CLASSES, "twin") else 2
    first = 2 * CASES.index((loss, method, options))
    for seed in np.roll(range(12), -first)[seeds].tolist():
        rows, C = badly_scaled(seed, n_classes)
        lanes = certify(tmp_path / str(seed), rows, loss, method, C, tol=1e-9, **options)
        assert_holds(lanes, 1e-9)


@pytest.mark.parametrize(("loss", "method", "options"), CASES, ids=name_of)
def test_the_bound_of_rounding_costs_no_digits_where_scales_are_good(
    tmp_path: Path, loss: str, method: str, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    rows = sp.csr_array(rng.standard_normal((20, 3))), (np.arange(20) % 2).astype(np.float64)
    for gap, primal, true_primal, true_gap, converged, rounding, _ in certify(
        tmp_path, rows, loss, method, 1.0, tol=1e-9, max_passes=300, **options
    ):
        assert converged
        assert rounding <= 1e-11 * true_primal
        assert method in ("primal", "online") or gap - true_gap <= 1e-12 * true_primal
        assert abs(primal - true_primal) <= 1e-12 * true_primal
    with np.load(tmp_path / "run" / "state.npz") as state:
        assert (state["rounding"] <= 1e-12 * state["primal"]).all()


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss"])
def test_no_certificate_of_workers_excludes_a_better_primal(tmp_path: Path, loss: str) -> None:
    """Joint rounds sum up the same terms; the primal that one process reaches is the judge, in exact arithmetic."""
    for seed in range(3):
        rows, C = badly_scaled(seed)
        code, zeros = rows[1].astype(int), np.zeros((14, 2))
        problem = make_problem(loss=loss, classes=np.array([0.0, 1.0]), n_features=3, C=[C])
        dataset = write_dataset(
            tmp_path / f"data{seed}", rows, value_dtype=np.float64, n_chunks=2, n_shards=2
        )
        primals, gaps = [], []
        for name, options in (
            ("one", {"max_passes": 300}),
            ("two", {"max_passes": 4, "client": Simulation(2)}),
        ):
            run = tmp_path / f"{name}{seed}"
            train(dataset, run, loss=loss, method="dual", C=[C], tol=1e-9, memory="1GB", **options)
            with np.load(run / "state.npz") as archive:
                primals.append(exact_gap(problem, 0, rows[0].toarray(), code, archive["w"][:-1], zeros)[0])
                gaps.append(float(archive["gap"][0]))
        assert gaps[1] * (1 + ALLOWED) >= primals[1] - primals[0]
        assert gaps[0] * (1 + ALLOWED) >= primals[0] - primals[1]


def test_a_training_that_only_rounding_keeps_from_its_tolerance_says_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4))
    y = (x[:, 0] + 0.5 * rng.standard_normal(60) > 0) * 1.0
    dataset = convert((1e8 * x, y), tmp_path / "data", dtype="float64")
    with pytest.warns(
        ConvergenceWarning, match='with what rounding may add, the relative gap is .*scale="maxabs"'
    ):
        result = train(dataset, tmp_path / "run", method="newton", tol=1e-12)
    assert result.stop_reason == "rounding"
    assert result.rounding > 1e-12
    assert not result.converged
    assert result.to_json()["rounding"] == result.rounding
    assert not result.more_passes_help
    assert describe(str(tmp_path / "run"))["next"] == f"streamcd evaluate FILE {tmp_path / 'run'}"


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss"])
@pytest.mark.parametrize("acceleration", ["auto", "none", 1e4])
def test_the_kept_sum_of_alpha_is_within_its_bound_after_a_thousand_passes(
    tmp_path: Path, loss: str, acceleration: Any
) -> None:
    rng = np.random.default_rng(5)
    rows = sp.csr_array(rng.standard_normal((40, 5))), (rng.random(40) < 0.5).astype(np.float64)
    dataset = write_dataset(tmp_path / "data", rows, value_dtype=np.float64, n_chunks=4)
    options = {"loss": loss, "method": "dual", "acceleration": acceleration}
    with pytest.warns(ConvergenceWarning):
        train(dataset, tmp_path / "run", **options, tol=0.0, max_passes=1000)
    with np.load(tmp_path / "run" / "state.npz") as state:
        kept = state["centre_or_w_alpha" if acceleration != "none" else "w"][:-1, 0]
        bound, n_passes = float(state["v_error"][0]), int(state["passes"][0])
    alpha, _ = run_dual(tmp_path / "run", dataset, 2 if loss == "log_loss" else 1, 1)
    signs = np.where(rows[1] > 0, 1, -1)
    summed = [
        sum(
            int(sign) * mpf(float(a)) * mpf(float(x))
            for sign, a, x in zip(signs, alpha[:, 0], column, strict=True)
        )
        for column in rows[0].toarray().T
    ]
    error = mp.sqrt(sum((own - mpf(float(value))) ** 2 for own, value in zip(summed, kept, strict=True)))
    assert n_passes == 1000
    assert error <= bound < 1e-7 * np.linalg.norm(kept)


@pytest.mark.parametrize("scale", [1e-8, 1e8])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss"])
def test_no_certificate_is_below_the_true_gap_of_scaled_features(
    tmp_path: Path, loss: str, scale: float
) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((30, 4)) * np.array([scale, 1.0, 1.0, 1.0])
    rows = sp.csr_array(x), (np.arange(30) % 2).astype(np.float64)
    assert_holds(certify(tmp_path, rows, loss, "dual", 1.0, tol=1e-9), 1e-9)


@pytest.mark.parametrize("loss", ["squared_error", "epsilon_insensitive", "huber"])
def test_no_certificate_excludes_the_optimum_of_targets_around_a_million(tmp_path: Path, loss: str) -> None:
    """A training to a gap of 1e-12 is the judge of one to 1e-5."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((60, 4))
    y = 1e6 * (1.0 + x @ rng.standard_normal(4)) + 1e4 * rng.standard_normal(60)
    dataset = convert((sp.csr_array(x), y), tmp_path / "data", target=True)
    asked: dict[str, Any] = {"loss": loss, "bias": 1.0, "unpenalized_bias": True, "max_passes": 3000}
    rough = train(dataset, tmp_path / "rough", tol=1e-5, **asked)
    exact = train(dataset, tmp_path / "exact", tol=1e-9, **asked)
    assert rough.converged
    assert exact.converged
    assert rough.primal_objective - exact.primal_objective <= rough.gap * rough.primal_objective * (1 + 1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# What gaps are relative to: the objective with all weights 0 counts where the optimum is nearly 0


def at_zero(run: Path) -> np.ndarray:
    with np.load(run / "state.npz") as state:
        return np.asarray(state["at_zero"])


@pytest.mark.parametrize(
    ("loss", "method", "options"),
    [
        *CASES,
        ("squared_hinge", "newton", {}),
        ("log_loss", "newton", {"penalty": "elasticnet", "l2": 0.5}),
        ("log_loss", "working-set", {"penalty": "l1"}),
        ("squared_error", "newton", {}),
        ("squared_error", "primal", {}),
        ("huber", "dual", {"delta": 1.5}),
        ("squared_epsilon_insensitive", "working-set", {"epsilon": 0.2, "penalty": "l1"}),
    ],
    ids=name_of,
)
def test_the_first_read_sums_the_objective_of_all_weights_0(
    tmp_path: Path, loss: str, method: str, options: dict[str, Any]
) -> None:
    """With weights of rows and classes, for every C, of targets as given; a run stopped in its first read has it too."""
    rng, targets = np.random.default_rng(0), loss.startswith(("squared_e", "huber"))
    x, weight = rng.standard_normal((60, 3)), rng.integers(0, 3, 60) / 2
    y = (
        50.0 + x[:, 0]
        if targets
        else (np.arange(60) % 3 if loss in (*OF_CLASSES, "twin") else np.arange(60) % 2)
    )
    data = convert((x, y, weight), tmp_path / "data", target=targets, chunk_size="200B")
    make_columns(data)
    asked = {"loss": loss, "method": method, "C": [0.5, 4.0], "max_passes": 3, "seed": 3, **options}
    if targets:
        asked |= {"bias": 1.0, "unpenalized_bias": method != "dual"}  # centred then
        size = {"squared_error": y**2, "huber": 1.5 * y - 1.125}.get(loss, (y - 0.2) ** 2)
        expected = [weight @ size]
    else:
        asked["class_weight"] = {0: 2.0}
        weight = np.where(y == 0, 2.0 * weight, weight)
        unit = {"log_loss": np.log(2), "multinomial": np.log(3)}.get(loss, 1.0)
        expected = [unit * weight.sum()]
        if loss == "twin":
            expected = [weight[y != k].sum() for k in range(3)]
    if method in ("dual", "sor", "newton"):
        asked["plan"] = windows_of(data, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        train_by_turns(train, data, tmp_path / "run", 1 if method == "working-set" else 2, (1, 3), **asked)
    assert at_zero(tmp_path / "run") == pytest.approx(np.outer([0.5, 4.0], expected).ravel(), rel=1e-12)


@pytest.mark.parametrize(("loss", "method"), [("log_loss", "dual"), ("squared_error", "newton")])
def test_workers_sum_the_objective_of_all_weights_0(tmp_path: Path, loss: str, method: str) -> None:
    x, y = np.random.default_rng(0).standard_normal((60, 3)), np.arange(60.0) % 2
    data = convert((x, y), tmp_path / "data", target=loss == "squared_error", shard_size="200B")
    train(data, tmp_path / "run", loss=loss, method=method, tol=0.01, client=Simulation(2))
    assert at_zero(tmp_path / "run") == pytest.approx([np.log(2) * 60 if loss == "log_loss" else y @ y])


def test_a_search_sums_the_objective_of_all_weights_0_without_each_fold(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).standard_normal((60, 3)), np.arange(60.0)
    data = convert((x, y), tmp_path / "data", target=True, chunk_size="200B")
    tune(data, tmp_path / "run", loss="squared_error", C=[0.5, 2.0], cv=3, method="dual", tol=0.1)
    fold = data.folds_of(data.read_in_source_order("source")[0], 0, 3)
    expected = [C * (y[fold != k] ** 2).sum() for C in (0.5, 2.0) for k in range(3)]
    assert at_zero(tmp_path / "run" / "folds") == pytest.approx(expected)


@pytest.mark.parametrize("method", ["dual", "newton", "primal"])
@pytest.mark.parametrize("size", [0.0, 1e6, 1e12])
def test_a_gap_is_small_where_the_optimum_is_nearly_0(tmp_path: Path, method: str, size: float) -> None:
    """It was 1, and the result called converged. All that tell the gap tell the same."""
    x = np.random.default_rng(0).standard_normal((60, 4))
    data = convert((x * max(size, 1.0), x[:, 0] * size), tmp_path / "data", target=True, dtype="float64")
    make_columns(data)
    result = train(data, tmp_path / "run", loss="squared_error", method=method, bias=1.0, l2=2.0, tol=1e-4)
    assert result.converged
    assert result.stop_reason == "gap"
    assert not result.more_passes_help
    assert result.gap <= 1e-4
    assert size or result.gap == result.primal_objective == 0.0
    described = describe(str(tmp_path / "run"))
    assert (
        described["gap"] == described["model"]["certificate"]["gap"] == result.lanes[0]["gap"] == result.gap
    )
    assert result.history["relative_gap"].to_pylist()[-1] == result.gap
