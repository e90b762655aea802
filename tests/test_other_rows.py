"""Starts from runs on other rows: features, classes and units are found again, and every optimum is certified as ever."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from heard import Heard
from small_datasets import Rows, multiclass, random_rows, write_dataset
from test_real_sets import rows_of

import streamcd
from streamcd import Dataset, Result, convert, make_columns, train
from streamcd.core.errors import UsageError
from streamcd.kernels.loss_table import LOSSES


def halves(rows: Rows) -> tuple[Rows, Rows]:
    x, y = rows
    half = y.size // 2
    return (x[:half], y[:half]), (x[half:], y[half:])


def targets(rows: Rows) -> Rows:
    """Numbers to predict in place of the classes."""
    x, _ = rows
    rng = np.random.default_rng(3)
    return x, np.asarray(x @ rng.standard_normal(x.shape[1])) + 0.1 * rng.standard_normal(x.shape[0])


def of_targets(y: np.ndarray) -> dict[str, Any]:
    ends = {"min": float(y.min()), "max": float(y.max())}
    return {"classes": None, "class_counts": None, "label_kind": "decimal", "targets": ends}


def write(path: Path, rows: Rows, **options: Any) -> Dataset:
    numbers = of_targets(rows[1]) if np.unique(rows[1]).size > 30 else {}
    return write_dataset(path, rows, **numbers, **options)


KINDS: list[tuple[str, str, Callable[..., Rows]]] = [
    ("squared_hinge", "dual", random_rows),
    ("hinge", "dual", random_rows),
    ("log_loss", "dual", multiclass),
    ("crammer_singer", "dual", multiclass),
    ("multinomial", "dual", multiclass),
    ("twin", "dual", random_rows),
    ("squared_error", "dual", lambda n_rows: targets(random_rows(n_rows))),
    ("quantile", "dual", lambda n_rows: targets(random_rows(n_rows))),
    ("squared_hinge", "primal", random_rows),
    ("log_loss", "online", multiclass),
    ("squared_hinge", "newton", random_rows),
    ("huber", "newton", lambda n_rows: targets(random_rows(n_rows))),
    ("log_loss", "working-set", random_rows),
]


@pytest.mark.parametrize(
    ("loss", "method", "make"), KINDS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_optimum_is_that_of_a_training_from_nothing(
    tmp_path: Path, loss: str, method: str, make: Callable[..., Rows]
) -> None:
    first, second = (write(tmp_path / f"data{n}", rows) for n, rows in enumerate(halves(make(n_rows=400))))
    if method in ("primal", "online", "working-set"):
        make_columns(first), make_columns(second)
    asked: dict[str, Any] = {"loss": loss, "method": method, "bias": 1.0, "tol": 1e-6, "max_passes": 5000}
    if method == "working-set":
        asked["penalty"] = "l1"
    train(first, tmp_path / "first", **asked)
    cold, told = train(second, tmp_path / "cold", **asked), Heard()
    warm = train(second, tmp_path / "warm", start_from=tmp_path / "first", listener=told, **asked)
    assert warm.converged
    assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=2e-6)
    assert any("20 of its 20 features" in text or "9 of its 9 features" in text for text in told.messages)


def frame(rows: Rows, order: list[int]) -> pd.DataFrame:
    """A table of the rows' features in another order, whose labels are names."""
    x, y = rows
    columns: dict[str, Any] = {f"column {j}": x.toarray()[:, j] for j in order}
    return pd.DataFrame({**columns, "label": [f"class {label:g}" for label in y]})


def newton(data: Dataset, run: Path, **options: Any) -> Result:
    asked = {"loss": "log_loss", "method": "newton", "tol": 1e-4, "memory": "1GB"} | options
    return train(data, run, **asked)


def test_features_with_names_are_found_by_them_in_another_order_and_other_units(tmp_path: Path) -> None:
    """Newton's first read certifies the weights that it is given: those of the same rows are the optimum."""
    rows = multiclass(n_rows=300)
    first = convert(frame(rows, list(range(9))), tmp_path / "first", label="label", shuffle=False)
    newton(first, tmp_path / "run", tol=1e-9)
    table = frame(rows, [4, 2, 8, 0, 1, 7, 3, 6, 5]).assign(more=0.0)
    units: dict[str, Any] = {"label": "label", "scale": "maxabs", "dtype": "float64"}
    again, told = convert(table, tmp_path / "again", **units), Heard()
    # other units are another penalty; with so large a C it does not matter
    newton(first, tmp_path / "large", C=1e6, tol=1e-12)
    warm = newton(again, tmp_path / "warm", C=1e6, start_from=tmp_path / "large", listener=told)
    assert warm.passes == 1 < newton(again, tmp_path / "cold", C=1e6).passes
    assert any("9 of its 9 features matched by name, 1 at 0, 4 of its 4 classes" in t for t in told.messages)
    same = convert(table, tmp_path / "same", label="label", memory="1GB")
    assert newton(same, tmp_path / "warm2", start_from=tmp_path / "run").passes == 1


def test_digests_of_names_that_do_not_fit_are_refused_with_the_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = multiclass(n_rows=100)
    for name in ("first", "other"):
        convert(frame(rows, list(range(9))), tmp_path / name, label="label", seed=len(name))
    newton(streamcd.open(tmp_path / "first"), tmp_path / "run")
    monkeypatch.setattr("streamcd.runs.previous_run.PLACES_BYTES", 100_000_000)
    convert(frame(rows, list(range(8))), tmp_path / "other", label="label", force=True)
    with pytest.raises(UsageError, match=r"1.7 GB their digests = .* needed"):
        newton(streamcd.open(tmp_path / "other"), tmp_path / "warm", start_from=tmp_path / "run")


def test_features_without_names_are_found_by_their_indices_whatever_the_base(tmp_path: Path) -> None:
    x, y = random_rows(300, 10)
    newton(write_dataset(tmp_path / "one", (x, y)), tmp_path / "run", tol=1e-9)
    wider = sp.csr_array(sp.hstack([sp.csr_array((300, 1)), x, sp.csr_array((300, 3))]))
    zero_based = write_dataset(tmp_path / "zero", (wider, y), index_base=0)
    told = Heard()
    assert newton(zero_based, tmp_path / "warm", start_from=tmp_path / "run", listener=told).passes == 1
    assert any("10 of its 10 features matched by number, 4 at 0" in text for text in told.messages)
    narrower = write_dataset(tmp_path / "narrow", (x[:, :6], y))
    result = newton(narrower, tmp_path / "less", start_from=tmp_path / "run", listener=told)
    assert result.converged
    assert any("6 of its 10 features" in text for text in told.messages)


def test_classes_are_found_by_label_and_two_of_them_share_a_vector(tmp_path: Path) -> None:
    """The vector for the larger of two classes is, with other signs, that of the smaller one beside a third."""
    x, y = random_rows(300, 10)
    asked = {"loss": "log_loss", "method": "dual", "tol": 1e-6}
    two = write_dataset(tmp_path / "two", (x, y))
    train(two, tmp_path / "run", **asked)
    three = write_dataset(tmp_path / "three", (x, np.where(np.arange(300) < 3, 5.0, y)))
    told = Heard()
    train(three, tmp_path / "warm", start_from=tmp_path / "run", listener=told, max_passes=1, **asked)
    assert any("2 of its 2 classes by label, 1 at 0" in text for text in told.messages)
    own = streamcd.load_model(tmp_path / "run").weights[:, 0]
    begun = streamcd.load_model(tmp_path / "warm").weights
    assert np.corrcoef(begun[:, 0], -own)[0, 1] > 0.9
    assert np.corrcoef(begun[:, 1], own)[0, 1] > 0.9
    others = write_dataset(tmp_path / "others", (x, y + 10.0))
    with pytest.raises(UsageError, match="no class of that run"):
        train(others, tmp_path / "refused", start_from=tmp_path / "run", **asked)
    assert not (tmp_path / "refused").exists()


def test_weights_that_do_not_fit_the_rows_are_dropped_and_that_is_told(tmp_path: Path) -> None:
    x, y = random_rows(400, 10)
    asked = {"tol": 1e-6, "method": "primal"}
    first, flipped = write_dataset(tmp_path / "first", (x, y)), write_dataset(tmp_path / "flipped", (x, -y))
    make_columns(first), make_columns(flipped)
    train(first, tmp_path / "run", **asked)
    told = Heard()
    warm = train(flipped, tmp_path / "warm", start_from=tmp_path / "run", listener=told, **asked)
    assert any("begins with nothing: on these rows the objective is" in text for text in told.messages)
    cold = train(flipped, tmp_path / "cold", **asked)
    assert (warm.passes, warm.primal_objective) == (cold.passes, cold.primal_objective)


def test_a_dual_method_without_a_centre_says_that_it_begins_with_nothing(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"data{n}", rows) for n, rows in enumerate(halves(random_rows(400))))
    train(first, tmp_path / "run")
    newton(first, tmp_path / "newton", loss="squared_hinge")
    for name, options in {"run": {"acceleration": "none"}, "newton": {}}.items():
        told = Heard()
        train(second, tmp_path / f"warm {name}", start_from=tmp_path / name, listener=told, **options)
        assert any("begins with nothing" in text for text in told.messages)


def test_the_start_is_the_models_and_needs_neither_the_old_dataset_nor_its_dual_variables(
    tmp_path: Path,
) -> None:
    first, second = (
        write(tmp_path / f"data{n}", rows) for n, rows in enumerate(halves(multiclass(n_rows=400)))
    )
    asked: dict[str, Any] = {"C": [0.1, 1.0], "bias": 1.0, "unpenalized_bias": True, "tol": 1e-6}
    train(first, tmp_path / "run", **asked)
    shutil.rmtree(tmp_path / "data0")
    shutil.rmtree(tmp_path / "run" / "dual")
    warm = train(second, tmp_path / "warm", start_from=tmp_path / "run", **asked)
    cold = train(second, tmp_path / "cold", **asked)
    assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=2e-6)
    streamcd.tune(second, tmp_path / "tune", C=[0.1, 1.0], cv=2, method="dual")
    shutil.rmtree(tmp_path / "tune" / "folds")
    third = write(tmp_path / "third", multiclass(n_rows=100))
    assert train(third, tmp_path / "after", start_from=tmp_path / "tune").converged


OF_CLASSES = ("squared_hinge", "hinge", "log_loss", "multinomial", "crammer_singer")
OF_TARGETS = ("squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive", "quantile")


def shuffled(path: Path, *, targets: bool) -> Rows:
    """Rows of a real set in random order, with numbers to predict in place of its classes if asked for."""
    x, y = rows_of(path)
    order = np.random.default_rng(0).permutation(y.size)
    x, y = sp.csr_array(x)[order], y[order]
    if targets:
        y = np.asarray(x @ np.random.default_rng(3).standard_normal(x.shape[1]))
        y = y / y.std() + 0.3 * np.random.default_rng(4).standard_normal(y.size)
    return x, y


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a9a", "ijcnn1"])
@pytest.mark.parametrize("loss", OF_CLASSES + OF_TARGETS)
def test_halves_of_real_sets_start_from_each_other(
    real_data: Callable[[str], Path], tmp_path: Path, name: str, loss: str
) -> None:
    """Passes to 1e-3 in all, from nothing and from the other half's weights: with -s these are the figures of the page."""
    x, y = shuffled(real_data(name), targets=loss in OF_TARGETS)
    first, second = (write(tmp_path / f"data{n}", rows, n_chunks=20) for n, rows in enumerate(halves((x, y))))
    make_columns(first), make_columns(second)
    for method in [name for name in ("dual", "primal", "newton") if name in LOSSES[loss].methods]:
        asked: dict[str, Any] = {"loss": loss, "method": method, "bias": 1.0, "tol": 1e-3}
        train(first, tmp_path / f"{method} first", **asked)
        cold = train(second, tmp_path / f"{method} cold", **asked)
        warm = train(second, tmp_path / f"{method} warm", start_from=tmp_path / f"{method} first", **asked)
        print(f"| {name} | {loss} | {method} | {cold.passes} | {warm.passes} |")
        assert warm.primal_objective == pytest.approx(cold.primal_objective, rel=2e-3)
        assert warm.passes <= (1.0 if method == "primal" else 1.5) * cold.passes
