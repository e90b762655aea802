"""Models from outside: LIBLINEAR's package and ours read each other's files, JSON, predictions, evaluations."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse as sp
import sklearn.metrics
from liblinear import liblinearutil

import streamcd

TARGETS = ("squared_error", "epsilon_insensitive", "squared_epsilon_insensitive", "huber", "quantile")
LOSSES = ("squared_hinge", "hinge", "log_loss", "crammer_singer", "multinomial", "twin", *TARGETS)
LABELS = {2: [-3, 7], 3: [4, 0, 9]}


@functools.cache
def given(kind: str) -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    """Sparse rows, one of them empty, with labels of "2" or "3" classes or "targets", and weights."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((80, 6)) * (rng.random((80, 6)) < 0.6)
    x[5] = 0.0
    scores = x @ rng.standard_normal((6, 3)) + rng.standard_normal((80, 3))
    if kind == "targets":
        y = scores[:, 0]
    else:
        y = np.array(LABELS[int(kind)])[scores[:, : int(kind)].argmax(axis=1)].astype(np.float64)
    return sp.csr_array(x), y, rng.choice([0.5, 1.0, 2.0], 80)


def kinds_of(loss: str) -> tuple[str, ...]:
    return ("targets",) if loss in TARGETS else ("3",) if loss in ("multinomial",) else ("2", "3")


CASES = [(loss, kind, bias) for loss in LOSSES for kind in kinds_of(loss) for bias in ("none", 2.0)]


class Bench:
    """Datasets and runs, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def data(self, kind: str, weighted: bool = False) -> Path:
        path, options = self.folder / f"data {kind} {weighted}", {"target": True} if kind == "targets" else {}
        if not path.exists():
            streamcd.convert(given(kind)[: 2 + weighted], path, dtype="float64", seed=3, **options)
        return path

    def run(self, loss: str, kind: str, bias: Any, weighted: bool = False) -> Path:
        path = self.folder / f"run {loss} {kind} {bias} {weighted}"
        if not path.exists():
            streamcd.train(self.data(kind, weighted), path, loss=loss, bias=bias, C=0.3, tol=1e-5)
        return path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("models"))


def decisions_of(run: Path, kind: str) -> np.ndarray:
    """Scores by the weights that Python shows, a column a vector."""
    model = streamcd.load_model(run)
    return given(kind)[0].toarray() @ model.weights + model.intercept


def rows_of(x: sp.csr_array) -> list[dict[int, float]]:
    return [{int(j) + 1: float(row[j]) for j in np.flatnonzero(row)} for row in x.toarray()]


def libsvm_file(path: Path, kind: str) -> Path:
    """Write the rows as libsvm text with indices from 0 on, as those of arrays are."""
    x, y, _ = given(kind)
    rows = zip(y.tolist(), rows_of(x), strict=True)
    lines = [
        " ".join([f"{label!r}", *(f"{j - 1}:{value!r}" for j, value in row.items())]) for label, row in rows
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


# ---------------------------------------------------------------------------------------------------------------------
# LIBLINEAR

OF_LIBLINEAR = (
    "squared_hinge",
    "hinge",
    "log_loss",
    "crammer_singer",
    "epsilon_insensitive",
    "squared_epsilon_insensitive",
)


@pytest.mark.parametrize(("loss", "kind", "bias"), [case for case in CASES if case[0] in OF_LIBLINEAR])
def test_liblinear_predicts_by_our_models_what_we_do(
    bench: Bench, tmp_path: Path, loss: str, kind: str, bias: Any
) -> None:
    run, (x, _, _) = bench.run(loss, kind, bias), given(kind)
    command_line.run_json("export", run, tmp_path / "ours.model", "--format", "liblinear")
    theirs = liblinearutil.load_model(str(tmp_path / "ours.model"))
    labels, _, decisions = liblinearutil.predict([], rows_of(x), theirs, "-q")
    ours = streamcd.load_model(run)
    np.testing.assert_allclose(labels, ours.predict(x), rtol=1e-9, atol=1e-9)
    if kind == "2":  # the positive class is first
        assert theirs.get_labels()[0] == 7
    if kind == "3":
        decisions = np.array(decisions)[:, [theirs.get_labels().index(label) for label in sorted(LABELS[3])]]
    if kind == "3" or (kind == "2" and loss != "crammer_singer"):
        found = np.array(decisions)[:, : 3 if kind == "3" else 1]
        np.testing.assert_allclose(found, ours.decision_function(x).reshape(80, -1), rtol=1e-9, atol=1e-9)
    # and it comes back as it was
    model = command_line.imported(tmp_path / "ours.model")
    np.testing.assert_array_equal(model.predict(x), ours.predict(x))


SOLVERS = [(solver, kind) for solver in (0, 1, 2, 3, 4, 5, 6, 7) for kind in ("2", "3")]
SOLVERS += [(solver, "targets") for solver in (11, 12, 13)]


@pytest.mark.parametrize("bias", [-1, 2])
@pytest.mark.parametrize(("solver", "kind"), SOLVERS)
def test_we_predict_by_models_of_liblinear_what_it_does(
    tmp_path: Path, solver: int, kind: str, bias: int
) -> None:
    x, y, _ = given(kind)
    theirs = liblinearutil.train(y.tolist(), rows_of(x), f"-s {solver} -B {bias} -q")
    liblinearutil.save_model(str(tmp_path / "theirs"), theirs)
    ours = command_line.imported(tmp_path / "theirs")
    expected = liblinearutil.predict([], rows_of(x), theirs, "-q")[0]
    np.testing.assert_allclose(ours.predict(x), expected, rtol=1e-9, atol=1e-9)
    command_line.run_json(
        "export", tmp_path / "theirs-imported", tmp_path / "again.model", "--format", "liblinear"
    )
    written = [(tmp_path / name).read_text().replace("-0 ", "0 ") for name in ("theirs", "again.model")]
    assert written[0] == written[1]


@pytest.mark.parametrize("solver", [0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13])
def test_the_objective_of_each_number_is_at_most_that_of_liblinear(
    bench: Bench, tmp_path: Path, solver: int
) -> None:
    """By the weights of both, for the objective that LIBLINEAR states."""
    kind = "targets" if solver > 10 else "3" if solver == 4 else "2"
    x, y, _ = given(kind)
    theirs = liblinearutil.train(y.tolist(), rows_of(x), f"-s {solver} -c 0.3 -p 0.1 -B 1 -e 1e-8 -q")
    liblinearutil.save_model(str(tmp_path / "theirs"), theirs)
    result = command_line.run_json(
        "train", bench.data(kind), tmp_path / "run", "-s", solver, "-c", 0.3, "-B", 1, "--tol", 1e-7
    )
    found = []
    for model in (streamcd.load_model(tmp_path / "run"), command_line.imported(tmp_path / "theirs")):
        w = np.vstack([model.weights, model.intercept])
        z = np.hstack([x.toarray(), np.ones((80, 1))]) @ w
        t = np.where(y == max(y), 1.0, -1.0) * z[:, 0]
        e = np.maximum(np.abs(y - z[:, 0]) - 0.1, 0.0)
        place = np.searchsorted(np.unique(y), y)
        loss = {
            **dict.fromkeys((0, 6, 7), np.logaddexp(0.0, -t)),
            **dict.fromkeys((1, 2, 5), np.maximum(1.0 - t, 0.0) ** 2),
            3: np.maximum(1.0 - t, 0.0),
            **dict.fromkeys((11, 12), e**2),
            13: e,
        }
        if solver == 4:
            apart = z + 1.0 - np.eye(3)[place]
            loss[4] = apart.max(axis=1) - z[np.arange(80), place]
        penalty = np.abs(w).sum() if solver in (5, 6) else 0.5 * np.square(w).sum()
        found.append(float(penalty + 0.3 * loss[solver].sum()))
    assert found[0] == pytest.approx(result["primal_objective"], rel=1e-9)
    assert found[0] <= found[1] * (1 + 1e-6)
    assert found[1] >= result["dual_objective"] * (1 - 1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Files of each loss


@pytest.mark.parametrize(("loss", "kind", "bias"), CASES)
def test_a_model_of_each_loss_has_its_file_and_json(
    bench: Bench, tmp_path: Path, loss: str, kind: str, bias: Any
) -> None:
    run, (x, _, _) = bench.run(loss, kind, bias), given(kind)
    assert command_line.run_json("verify", run) == {"ok": True, "problems": []}
    model = streamcd.load_model(run)
    assert (model.loss, model.n_features) == (loss, 6)
    model.save(tmp_path / "copy")
    np.testing.assert_array_equal(streamcd.load_model(tmp_path / "copy").predict(x), model.predict(x))
    command_line.run_json("export", run, tmp_path / "model.json")
    content = json.loads((tmp_path / "model.json").read_text())
    assert content["loss"] == loss
    found = np.array(content["weights"], dtype=np.float64)
    found = found if found.shape == model.weights.shape else found.T
    np.testing.assert_array_equal(found, model.weights)
    if kind == "targets":
        np.testing.assert_allclose(model.predict(x), decisions_of(run, kind)[:, 0], rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Predictions


@pytest.mark.parametrize(("loss", "kind"), [(loss, kind) for loss in LOSSES for kind in kinds_of(loss)])
def test_predictions_have_the_columns_of_the_contract_in_source_order(
    bench: Bench, tmp_path: Path, loss: str, kind: str
) -> None:
    run, (x, _, _), n = bench.run(loss, kind, 2.0), given(kind), 80
    proba = ["--proba"] if loss in ("log_loss", "multinomial") else []
    model, tables = streamcd.load_model(run), []
    for source in (bench.data(kind), libsvm_file(tmp_path / "rows.txt", kind)):
        out = tmp_path / f"{len(tables)}.parquet"
        assert command_line.run_json("predict", source, run, "-o", out, *proba)["n_rows"] == n
        tables.append(pyarrow.parquet.read_table(out))
    labels = [f"{label}" for label in sorted(LABELS[int(kind)])] if kind != "targets" else []
    decisions = [f"decision_{label}" for label in labels] if kind == "3" else ["decision"]
    expected = ["source", "prediction", *([] if kind == "targets" else decisions)]
    expected += [f"probability_{label}" for label in labels] if proba else []
    for table in tables:
        assert table.column_names == expected
        assert str(table.schema.field("source").type) == "int64"
        np.testing.assert_array_equal(table["source"], np.arange(n))
        np.testing.assert_allclose(table["prediction"], model.predict(x), rtol=1e-9)
    if kind != "targets":
        found = np.column_stack([tables[0][name] for name in decisions])
        ours = model.decision_function(x).reshape(n, -1)
        if kind == "2" and ours.shape[1] == 2:  # of two vectors, what the second one has more
            ours = np.diff(ours)
        np.testing.assert_allclose(found, ours, rtol=1e-9, atol=1e-9)
    if proba:
        found = np.column_stack([tables[0][f"probability_{label}"] for label in labels])
        np.testing.assert_allclose(found, model.predict_proba(x), rtol=1e-9)
        np.testing.assert_allclose(found.sum(axis=1), 1.0)


def test_csv_and_text_have_decisions_when_asked(bench: Bench, tmp_path: Path) -> None:
    run, data, x = bench.run("log_loss", "3", 2.0), bench.data("3"), given("3")[0]
    labels = [f"{label:g}" for label in streamcd.load_model(run).predict(x)]
    for options, columns in (
        ([], ["source", "prediction"]),
        (["--decision"], ["source", "prediction", "decision_0", "decision_4", "decision_9"]),
        (["--proba"], ["source", "prediction", "probability_0", "probability_4", "probability_9"]),
    ):
        command_line.run_json("predict", data, run, "-o", tmp_path / "out.csv", "--force", *options)
        assert pyarrow.csv.read_csv(tmp_path / "out.csv").column_names == columns
        command_line.run_json("predict", data, run, "-o", tmp_path / "out.txt", "--force", *options)
        lines = (tmp_path / "out.txt").read_text().splitlines()
        assert [line.split()[0] for line in lines[-80:]] == labels
        assert len(lines[-1].split()) == len(columns) - 1
    printed = command_line.run("predict", data, run, "-o", "-")
    assert printed.stdout.splitlines() == labels
    refused = command_line.run(
        "predict", data, bench.run("hinge", "3", 2.0), "-o", tmp_path / "p.csv", "--proba"
    )
    assert refused.returncode == 2
    assert len(refused.stderr.strip().splitlines()) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Evaluations


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", ["", "weighted", "unweighted"])
@pytest.mark.parametrize("loss", ["log_loss", "hinge", "multinomial", "twin"])
def test_classes_are_evaluated_as_by_scikit_learn(bench: Bench, loss: str, way: str) -> None:
    kind = "2" if loss in ("log_loss", "hinge") else "3"
    run, data = bench.run(loss, kind, 2.0), bench.data(kind, bool(way))
    found = command_line.run_json("evaluate", data, run, *(["--unweighted"] if way == "unweighted" else []))
    x, y, weight = given(kind)
    weight = weight if way == "weighted" else np.ones(y.size)
    model, labels = streamcd.load_model(run), sorted(LABELS[int(kind)])
    predicted = model.predict(x)
    of = sklearn.metrics
    assert found["n_rows"] == 80
    assert found["labels"] == labels
    close(found["accuracy"], of.accuracy_score(y, predicted, sample_weight=weight))
    close(found["confusion"], of.confusion_matrix(y, predicted, labels=labels, sample_weight=weight))
    if kind == "2":
        decisions = model.decision_function(x).ravel()
        close(found["auc"], of.roc_auc_score(y, decisions, sample_weight=weight))
    if loss in ("log_loss", "multinomial"):
        close(found["log_loss"], of.log_loss(y, model.predict_proba(x), sample_weight=weight))
    else:
        assert found.get("log_loss") is None
    assert found["primal_objective"] > 0.0


@pytest.mark.parametrize("way", ["", "weighted", "unweighted"])
@pytest.mark.parametrize("loss", TARGETS)
def test_targets_are_evaluated_as_by_scikit_learn(bench: Bench, loss: str, way: str) -> None:
    run, data = bench.run(loss, "targets", 2.0), bench.data("targets", bool(way))
    found = command_line.run_json("evaluate", data, run, *(["--unweighted"] if way == "unweighted" else []))
    x, y, weight = given("targets")
    weight = weight if way == "weighted" else np.ones(y.size)
    predicted, of = streamcd.load_model(run).predict(x), sklearn.metrics
    close(found["mae"], of.mean_absolute_error(y, predicted, sample_weight=weight))
    close(found["mse"], of.mean_squared_error(y, predicted, sample_weight=weight))
    close(found["r2"], of.r2_score(y, predicted, sample_weight=weight))
    e = np.abs(y - predicted)
    losses = {
        "squared_error": e**2,
        "epsilon_insensitive": np.maximum(e - 0.1, 0.0),
        "squared_epsilon_insensitive": np.maximum(e - 0.1, 0.0) ** 2,
        "huber": np.where(e <= 1.35, 0.5 * e**2, 1.35 * e - 0.5 * 1.35**2),
        "quantile": 0.5 * e,
    }
    close(found["loss"], np.average(losses[loss], weights=weight))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "twin"])
def test_the_models_own_problem_is_evaluated_to_its_objective(
    bench: Bench, loss: str, weighted: bool
) -> None:
    kind = kinds_of(loss)[-1]
    run, data = bench.run(loss, kind, 2.0, weighted), bench.data(kind, weighted)
    told = streamcd.load_model(run).certificate
    found = command_line.run_json("evaluate", data, run)["primal_objective"]
    close(found, told["primal_objective"])
