"""Primal coordinate descent: exact gradients, steps that never rise, certificates that hold, and runs that resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from exact_optimum import model, nearly_least
from heard import Heard
from interrupted import ended, stopping_after
from reference import exact_optimum
from small_datasets import (
    SMALL_COLUMNS,
    columns_of,
    multiclass,
    random_rows,
    unequal_columns,
    write_dataset,
)

from streamcd import Dataset, make_columns, resume, train, tune
from streamcd.core.errors import BudgetError, CheckpointError, DatasetError, Interrupted, UsageError
from streamcd.runs.options import TrainOptions
from streamcd.runs.resolve import resolve
from streamcd.solvers.problem import make_problem
from streamcd.solvers.protocol import CERTIFY, SolverOptions, solver_class
from streamcd.stream.memory_plan import Plan
from streamcd.stream.stream import Stream
from streamcd.training.checkpoint import read_arrays

LOSSES = ("squared_hinge", "log_loss")
METHODS = ("primal", "online")


def small_windows(dataset: Dataset, share: float = 0.25, *, resident: bool = False) -> Plan:
    """Windows of a share of the entries."""
    entries = max(int(share * dataset.n_entries), 1)
    return Plan(entries, max(dataset.n_features, 1), resident=resident)


# ---------------------------------------------------------------------------------------------------------------------
# Optima and certificates


def test_certificate_holds_where_the_scores_have_drifted(tmp_path: Path) -> None:
    """Any alpha is a dual point, so drift widens the gap; and the read at fixed w mends the scores."""
    x, y = random_rows()
    dataset = columns_of(tmp_path / "data", (x, y))
    problem = make_problem(loss="squared_hinge", classes=np.unique(y), n_features=x.shape[1], C=[1.0])
    solver = solver_class(problem, "primal")(problem, dataset, SolverOptions("primal"))
    state = solver.new_state()
    with Stream(dataset, small_windows(dataset, 1.0, resident=True), solver.layout, 0) as stream:
        (window,) = stream.windows(0)
    order = np.empty(window.stop.max() + 1, dtype=np.int64)
    for key in range(60):
        solver.visit(window, state, order, np.uint64(key))
        solver.end_read(state, np.array([0]))
    _, (best,) = exact_optimum("squared_hinge", x.toarray(), y)
    for drift in (0.0, 1e-3, 0.1):
        state.score += drift * np.random.default_rng(1).standard_normal((y.size, 1))
        state.phase[:] = CERTIFY
        state.totals[:] = 0.0
        solver.visit(window, state, order, np.uint64(0))
        proof = solver.certificate(state)
        assert proof["dual"][0] <= best * (1 + 1e-12) <= proof["primal"][0] * (1 + 1e-11)
        np.testing.assert_allclose(state.score, x @ state.w[:-1], atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Runs


@pytest.mark.parametrize(
    ("loss", "method", "options"),
    [
        ("squared_hinge", "primal", {"C": 0.5, "acceleration": "none"}),
        ("log_loss", "online", {"C": [0.3, 500.0], "bias": 0.7, "class_weight": {-1.0: 2.0}}),
        ("squared_hinge", "online", {"C": [0.3, 500.0]}),
        ("log_loss", "primal", {"C": 3.0, "bias": 1.0, "unpenalized_bias": True}),
    ],
    ids=["plain", "lanes", "online", "free bias"],
)
def test_a_column_in_segments_leads_to_the_same_optimum(
    tmp_path: Path, loss: str, method: str, options: dict[str, Any]
) -> None:
    weight = np.linspace(0.1, 3.0, 120) if "bias" in options else None
    rows = unequal_columns(3 if isinstance(options["C"], list) else 2)
    dataset = columns_of(tmp_path / "data", rows, weight=weight)
    whole, segments = (
        train(
            dataset,
            tmp_path / f"resident {resident}",
            loss=loss,
            method=method,
            tol=1e-6,
            max_passes=3000,
            plan=Plan(60, 90, resident=resident),
            **options,
        )
        for resident in (True, False)
    )
    assert whole.converged
    assert segments.converged
    assert segments.primal_objective == pytest.approx(whole.primal_objective, rel=2e-6)
    assert segments.passes <= 1.2 * whole.passes + 3


@pytest.mark.parametrize("method", METHODS)
def test_scores_that_do_not_fit_are_refused_in_favour_of_the_dual(tmp_path: Path, method: str) -> None:
    """18 bytes a row with one lane, without acceleration."""
    dataset = columns_of(tmp_path / "data", random_rows())
    dataset.n_rows = 10**9
    assert resolve(TrainOptions(method=method, memory="20GB"), dataset)[0].plan.window_entries
    with pytest.raises(BudgetError, match=r"18 GB rows .* = 18\.\d GB needed; .*method=\"dual\"") as refusal:
        train(dataset, tmp_path / "run", method=method, memory="10GB")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()
    assert resolve(TrainOptions(method="dual", memory="10GB"), dataset)


def test_a_run_stopped_while_it_is_certified_resumes(tmp_path: Path) -> None:
    """Scores summed up anew are in the checkpoint too: of more than 130,000 rows it was called damaged."""
    rng = np.random.default_rng(0)
    n_rows = 150_000
    x = sp.random_array((n_rows, 8), density=0.1, rng=rng, format="csr")
    dataset = write_dataset(tmp_path / "data", (x, np.where(rng.random(n_rows) < 0.5, 1.0, -1.0)))
    make_columns(dataset, chunk_size=20_000 * 8)
    asked: dict[str, Any] = {
        "method": "primal",
        "max_passes": 1,
        "plan": Plan(40_000, 8, resident=False),
    }
    train(dataset, tmp_path / "whole", **asked)
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(dataset, run, stop_requested=stopping_after(6), **asked)
    assert "fresh" in (read_arrays(run / "state.npz") or {})
    resume(run)
    assert ended(run) == ended(tmp_path / "whole")


def test_a_layout_made_anew_is_refused(tmp_path: Path) -> None:
    dataset = columns_of(tmp_path / "data", random_rows())
    train(dataset, tmp_path / "run", method="primal", tol=0.0, max_passes=2)
    make_columns(dataset, chunk_size=400, force=True)
    with pytest.raises(CheckpointError, match="column layout"):
        resume(tmp_path / "run", max_passes=3)
    make_columns(dataset, force=True, **SMALL_COLUMNS)
    assert resume(tmp_path / "run", max_passes=3).passes == 3


def test_without_a_layout_the_command_that_makes_it_is_named(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows())
    with pytest.raises(DatasetError, match=r"streamcd\.make_columns\("):
        train(dataset, tmp_path / "run", method="primal")


def test_auto_says_why_and_builds_nothing(tmp_path: Path) -> None:
    """The dual, which acceleration makes the faster on every real set, also where the bias is not penalised."""
    dataset, heard = write_dataset(tmp_path / "data", random_rows()), Heard()
    train(dataset, tmp_path / "run", listener=heard, max_passes=2)
    assert any(text.startswith("method dual: ") for text in heard.messages)
    assert not (dataset.path / "columns").exists()
    free = {"bias": 1.0, "unpenalized_bias": True}
    train(dataset, tmp_path / "free", listener=heard, max_passes=2, **free)
    assert sum(text.startswith("method dual: ") for text in heard.messages) == 2


def test_what_does_not_apply_is_refused(tmp_path: Path) -> None:
    dataset = columns_of(tmp_path / "data", random_rows())
    with pytest.raises(UsageError, match="no solver for hinge"):
        train(dataset, tmp_path / "run", method="primal", loss="hinge")
    with pytest.raises(UsageError, match="bias 1"):
        train(dataset, tmp_path / "run", method="primal", unpenalized_bias=True)
    train(dataset, tmp_path / "run", method="primal")
    with pytest.raises(UsageError, match="no dual variables to start from"):
        train(dataset, tmp_path / "run2", method="dual", start_from=tmp_path / "run")


@pytest.mark.parametrize(
    ("loss", "method"), [("squared_hinge", "dual"), ("log_loss", "dual"), *zip(LOSSES, METHODS, strict=True)]
)
def test_a_warm_start_begins_with_the_weights_and_their_scores(
    tmp_path: Path, loss: str, method: str
) -> None:
    """From a run of any method; at the same C the first certificate or the one after a pass or two is enough."""
    dataset = columns_of(tmp_path / "data", multiclass(n_rows=80), weight=np.linspace(0.1, 3.0, 80))
    options: dict[str, Any] = {"loss": loss, "bias": 1.5, "max_passes": 9000, "plan": small_windows(dataset)}
    train(dataset, tmp_path / "first", method=method, tol=1e-5, **options)
    for name, C in {"same": 1.0, "path": [0.9, 1.3]}.items():
        asked = {"method": "primal", "C": C, "tol": 1e-3, **options}
        cold = train(dataset, tmp_path / f"cold-{name}", **asked)
        warm = train(dataset, tmp_path / f"warm-{name}", start_from=tmp_path / "first", **asked)
        assert warm.converged
        assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=2e-3)
        assert warm.passes <= 3 if name == "same" else warm.passes < cold.passes


@pytest.mark.parametrize("method", METHODS)
def test_a_search_by_a_primal_method_scores_as_the_dual_does(tmp_path: Path, method: str) -> None:
    dataset = columns_of(tmp_path / "data", multiclass())
    asked = {"C": [0.01, 1.0], "cv": 3, "tol": 1e-5, "bias": 1.0, "max_passes": 9000}
    dual = tune(dataset, tmp_path / "dual", method="dual", **asked)
    primal = tune(dataset, tmp_path / method, method=method, **asked)
    assert primal.converged
    assert primal.best_C == dual.best_C
    for C, scores in dual.scores.items():
        # optima within 1e-5 of each other may put a row or two of a fold of 53 on either side
        np.testing.assert_allclose(primal.scores[C]["folds"], scores["folds"], atol=2.5 / 53)
    assert primal.primal_objective == pytest.approx(dual.primal_objective, rel=2e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Real data


@pytest.mark.parametrize(
    ("scale", "method"),
    [(1e3, "primal"), (1e7, "online"), (1e9, "primal"), (1e20, "primal"), (1e20, "online")],
)
def test_a_certificate_far_from_the_optimum_is_not_rounding_error(
    scale: float, method: str, tmp_path: Path
) -> None:
    """Of ½‖∇f‖² = 1e16 times the objective the best point's gain was taken off: nothing was left, and called a gap of 0."""
    rng = np.random.default_rng(1)
    x = rng.lognormal(0, 2, (300, 5))
    middle = np.median(x[:, 0])
    y = np.where(x[:, 0] * (1 + 0.8 * rng.standard_normal(300)) > middle, 1.0, -1.0)
    x = x.astype(np.float32).astype(np.float64)
    dataset = write_dataset(tmp_path / "data", (sp.csr_array(scale * x), y), value_dtype=np.float64)
    make_columns(dataset, **SMALL_COLUMNS)
    optimum = nearly_least(model("squared_hinge", x, y, l2=scale**-2))
    for passes in (1, 2, 5):
        found = train(dataset, tmp_path / f"run{passes}", method=method, max_passes=passes)
        assert found.dual_objective <= optimum * (1 + 1e-9)
        assert 0 <= found.gap <= 1
        assert found.primal_objective >= optimum * (1 - 1e-9)
