"""Streaming predictions and evaluation: against plain numpy and scikit-learn, in source order, in bounded memory."""

from __future__ import annotations

import contextlib
import io
import lzma
import os
import threading
from typing import Any

import command_line
import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import sklearn.metrics
from heard import Heard

from streamcd import Model, evaluate, predict
from streamcd.core.errors import DataError, ModelError, UsageError
from streamcd.core.memory_budget import RESERVED_BYTES
from streamcd.prediction.roc_auc import RocArea
from streamcd.prediction.source_order import SourceOrder

LOSSES = ["squared_hinge", "hinge", "log_loss", "crammer_singer"]
NAMES = ["random", "empty_row", "one_class", "separable", "unscaled", "multiclass"]


def a_model(x, y, loss: str = "squared_hinge", **changes: Any) -> Model:
    classes = np.unique(y)
    k = classes.size
    n_vectors = k if k > 2 or loss == "crammer_singer" else 1
    rng = np.random.default_rng(3)
    code = np.array([[-1], [1]]) if n_vectors == 1 and k == 2 else 2 * np.eye(k) - 1
    fields: dict[str, Any] = {
        "weights": rng.standard_normal((x.shape[1], n_vectors)),
        "intercept": rng.standard_normal(n_vectors),
        "classes": classes,
        "code": np.eye(k) if loss == "crammer_singer" else code,
        "loss": loss,
        "C": 0.7,
        "bias": 1.0,
    }
    return Model(**(fields | changes))


def plain_decisions(model: Model, x) -> np.ndarray:
    return x.toarray() @ model.weights + model.intercept


def plain_objective(model: Model, x, y, weight=None) -> float:
    h = plain_decisions(model, x)
    place = np.searchsorted(model.classes, y)
    cost = model.C * np.array([model.class_weight.get(label, 1.0) for label in y])
    cost = cost if weight is None else cost * weight
    total = 0.5 * ((model.weights**2).sum() + (model.bias_weight**2).sum())
    if model.loss == "crammer_singer":
        margin = h + 1 - (np.arange(model.n_classes) == place[:, None])
        return total + (cost * (margin.max(axis=1) - h[np.arange(y.size), place])).sum()
    for lane in range(model.n_vectors):
        t = model.code[place, lane] * h[:, lane]
        loss = {
            "hinge": np.maximum(1 - t, 0),
            "squared_hinge": np.maximum(1 - t, 0) ** 2,
            "log_loss": np.log1p(np.exp(-t)),
        }
        total += (cost * loss[model.loss]).sum()
    return total


# ---------------------------------------------------------------------------------------------------------------------
# Predictions


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", LOSSES)
def test_predictions_come_in_source_order_from_a_dataset_and_from_text(
    small_problem, made_dataset, libsvm_file, tmp_path, name, loss
):
    x, y = small_problem(name)
    model = a_model(x, y, loss)
    proba = loss == "log_loss"
    predict(made_dataset(x, y), model, tmp_path / "a.parquet", proba=proba)
    predict(libsvm_file(x, y), model, tmp_path / "b.parquet", proba=proba)
    a, b = pq.read_table(tmp_path / "a.parquet"), pq.read_table(tmp_path / "b.parquet")
    assert a.schema == b.schema
    h = plain_decisions(model, x)
    for table in (a, b):
        np.testing.assert_array_equal(table["source"].to_numpy(), np.arange(y.size))
        np.testing.assert_array_equal(table["prediction"].to_numpy(), model.labels(h))
        if model.n_classes > 2:
            found = np.stack([table[f"decision_{label}"].to_numpy() for label in model.label_texts()], axis=1)
        else:
            found = table["decision"].to_numpy()[:, None]
        expected = h[:, 1:] - h[:, :1] if h.shape[1] == 2 else h
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name or path.name.startswith(".")]


def test_prediction_columns_are_those_of_the_contract(small_problem, made_dataset, tmp_path):
    x, y = small_problem("random")
    predict(made_dataset(x, y), a_model(x, y, "log_loss"), tmp_path / "p.parquet", proba=True)
    schema = pq.read_schema(tmp_path / "p.parquet")
    assert [(field.name, str(field.type)) for field in schema] == [
        ("source", "int64"),
        ("prediction", "int64"),
        ("decision", "double"),
        ("probability_-1", "double"),
        ("probability_1", "double"),
    ]


def test_predictions_join_the_rows_of_their_dataset_by_the_columns_they_share(
    small_problem, made_dataset, tmp_path
):
    """They were numbered by `row`, which in the dataset is another number: a join by it was silently wrong."""
    x, y = small_problem("random")
    model = a_model(x, y)
    dataset = made_dataset(x, y)
    predict(dataset, model, tmp_path / "p.parquet")
    rows = pq.read_table(next((dataset.path / "rows").glob("*.parquet")))
    predictions = pq.read_table(tmp_path / "p.parquet")
    shared = set(rows.column_names) & set(predictions.column_names)
    assert shared == {"source"}
    joined = rows.join(predictions, keys="source")
    source = joined["source"].to_numpy()
    np.testing.assert_allclose(
        joined["decision"].to_numpy(), plain_decisions(model, x)[source, 0], atol=1e-12
    )
    np.testing.assert_array_equal(joined["label"].to_numpy(), y[source])


def test_decimal_labels_stay_decimal(small_problem, made_dataset, tmp_path):
    x, y = small_problem("random")
    data = made_dataset(x, y / 2, label_kind="decimal")
    predict(data, a_model(x, y / 2, label_kind="decimal"), tmp_path / "p.parquet")
    assert set(pq.read_table(tmp_path / "p.parquet")["prediction"].to_pylist()) == {-0.5, 0.5}
    text = io.StringIO()
    predict(data, a_model(x, y / 2, label_kind="decimal"), text)
    assert set(text.getvalue().split()) == {"-0.5", "0.5"}


def test_a_stream_gets_the_labels_one_a_line(small_problem, made_dataset, libsvm_file):
    x, y = small_problem("multiclass")
    model = a_model(x, y)
    expected = [f"{label:g}" for label in model.labels(plain_decisions(model, x))]
    for data in (made_dataset(x, y), libsvm_file(x, y)):
        text = io.StringIO()
        assert predict(data, model, text) == {"n_rows": y.size, "n_ignored": 0, "n_unseen": 0}
        assert text.getvalue().splitlines() == expected


def test_probabilities_are_logistic(small_problem, made_dataset, tmp_path):
    x, y = small_problem("multiclass")
    model = a_model(x, y, "log_loss")
    predict(made_dataset(x, y), model, tmp_path / "p.parquet", proba=True)
    table = pq.read_table(tmp_path / "p.parquet")
    sigmoid = 1 / (1 + np.exp(-plain_decisions(model, x)))
    expected = sigmoid / sigmoid.sum(axis=1, keepdims=True)
    found = np.stack([table[f"probability_{label}"].to_numpy() for label in model.label_texts()], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_probabilities_are_refused_before_any_work(small_problem, made_dataset, tmp_path):
    x, y = small_problem("random")
    with pytest.raises(ModelError, match="log_loss"):
        predict(made_dataset(x, y), a_model(x, y), tmp_path / "p.parquet", proba=True)
    with pytest.raises(ModelError, match="log_loss"):
        predict(made_dataset(x, y, name="b"), a_model(x, y), io.StringIO(), proba=True)


@pytest.mark.parametrize("problem", ["random", "multiclass"])
def test_csv_has_the_columns_of_parquet(small_problem, made_dataset, tmp_path, problem):
    x, y = small_problem(problem)
    data, model = made_dataset(x, y), a_model(x, y, "log_loss")
    for name, options in {"p.parquet": {}, "p.csv": {"decision": True}}.items():
        assert predict(data, model, tmp_path / name, proba=True, **options)["n_rows"] == y.size
    expected = pq.read_table(tmp_path / "p.parquet").to_pydict()
    assert csv.read_csv(tmp_path / "p.csv").to_pydict() == expected
    predict(data, model, tmp_path / "plain.csv")
    assert csv.read_csv(tmp_path / "plain.csv").column_names == ["source", "prediction"]


def test_text_with_probabilities_is_that_of_liblinear(small_problem, libsvm_file, tmp_path):
    """``predict -b 1`` of LIBLINEAR: a line with the labels in the order of the columns, then label and probabilities."""
    x, y = small_problem("multiclass")
    model = a_model(x, y, "log_loss")
    text = libsvm_file(x, y)
    predict(text, model, tmp_path / "p.parquet", proba=True)
    expected = pq.read_table(tmp_path / "p.parquet")
    predict(text, model, tmp_path / "p.txt", proba=True)
    first, *lines = (tmp_path / "p.txt").read_text().splitlines()
    assert first.split() == ["labels", *model.label_texts()]
    assert [int(line.split()[0]) for line in lines] == expected["prediction"].to_pylist()
    found = np.array([line.split()[1:] for line in lines], dtype=float)
    wanted = np.stack([expected[f"probability_{label}"].to_numpy() for label in model.label_texts()], axis=1)
    np.testing.assert_array_equal(found, wanted)
    predict(text, model, tmp_path / "d.txt", decision=True)
    found = np.loadtxt(tmp_path / "d.txt")
    wanted = np.stack([expected[f"decision_{label}"].to_numpy() for label in model.label_texts()], axis=1)
    np.testing.assert_array_equal(found[:, 1:], wanted)


def test_only_files_of_predictions_of_the_same_format_are_replaced(small_problem, libsvm_file, tmp_path):
    x, y = small_problem("random")
    text, model = libsvm_file(x, y), a_model(x, y, "log_loss")
    for name in ("p.csv", "p.txt", "p.parquet"):
        predict(text, model, tmp_path / name)
        with pytest.raises(UsageError, match="--force"):
            predict(text, model, tmp_path / name)
        predict(text, model, tmp_path / name, force=True, proba=True)
        predict(text, model, tmp_path / name, force=True)
    (tmp_path / "notes.txt").write_text("do not lose these\n")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for name in ("notes.txt", "other.csv"):
        with pytest.raises(UsageError, match="is not a"):
            predict(text, model, tmp_path / name, force=True)
    with pytest.raises(UsageError, match=r"\.parquet, \.csv or \.txt"):
        predict(text, model, tmp_path / "p.json")


def test_a_failed_prediction_leaves_no_file(small_problem, tmp_path):
    x, y = small_problem("random")
    (tmp_path / "bad.libsvm").write_text("1 1:1\n1 2:x\n")
    with pytest.raises(DataError, match=r"bad\.libsvm:2"):
        predict(tmp_path / "bad.libsvm", a_model(x, y), tmp_path / "p.parquet")
    assert os.listdir(tmp_path) == ["bad.libsvm"]


@pytest.mark.parametrize("memory_bytes", [1, 100_000, 10**9])
@pytest.mark.parametrize("n_rows", [0, 1, 5000, 20_000])
def test_source_order_is_restored_whatever_the_memory(tmp_path, n_rows, memory_bytes):
    order = SourceOrder(n_rows, 2, memory_bytes, tmp_path)
    places = np.random.default_rng(0).permutation(n_rows)
    for block in np.array_split(places, 7):
        order.add(block, np.stack([block * 1.0, block * -2.0], axis=1))
    blocks = list(order.blocks(777))
    assert all(block.shape[0] <= 777 for block in blocks)
    if n_rows:
        found = np.concatenate(blocks)
        np.testing.assert_array_equal(found, np.stack([np.arange(n_rows), -2.0 * np.arange(n_rows)], axis=1))


def test_predictions_do_not_depend_on_the_memory(small_problem, made_dataset, tmp_path, monkeypatch):
    x, y = small_problem("multiclass")
    model = a_model(x, y)
    data = made_dataset(x, y)
    predict(data, model, tmp_path / "large.parquet")
    # the least number of rows to a bucket is for speed; here all have to be dealt out to buckets
    monkeypatch.setattr("streamcd.prediction.source_order.LEAST_ROWS", 4)
    predict(data, model, tmp_path / "small.parquet", memory=RESERVED_BYTES + 130_000)
    assert pq.read_table(tmp_path / "large.parquet") == pq.read_table(tmp_path / "small.parquet")


def many_classes(n_classes: int = 300) -> Model:
    rng = np.random.default_rng(0)
    return Model(
        weights=rng.standard_normal((3, n_classes)), intercept=np.zeros(n_classes), classes=np.arange(float(n_classes)),
        code=2 * np.eye(n_classes) - 1, loss="log_loss", C=1.0, bias=1.0,
    )  # fmt: skip


def test_the_footer_of_many_columns_is_part_of_the_budget(tmp_path):
    """900 bytes for each column of each row group: with 500 classes and groups of some hundred rows 1.4 GB of 390 MB."""
    text = tmp_path / "data"
    text.write_text("1 1:1\n" * 15_000)
    budget = RESERVED_BYTES + 60_000_000
    predict(text, many_classes(), tmp_path / "out.parquet", proba=True, memory=budget)
    found = pq.ParquetFile(tmp_path / "out.parquet").metadata
    assert found.num_rows == 15_000
    row_bytes = 8 * 9 * 300
    n_groups = found.num_row_groups
    assert n_groups * 900 * found.num_columns + 15_000 // n_groups * row_bytes < 60_000_000
    assert {found.row_group(group).num_rows for group in range(n_groups - 1)} == {found.row_group(0).num_rows}


def test_rows_of_a_pipe_are_refused_where_their_footer_is_full(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: fill(tmp_path / "pipe", "1 1:1\n" * 100_000))
    writer.start()
    with pytest.raises(UsageError, match=r"footer of the predictions hold .* rows of 602 columns"):
        predict(
            tmp_path / "pipe",
            many_classes(),
            tmp_path / "out.parquet",
            proba=True,
            memory=RESERVED_BYTES + 25_000_000,
        )
    writer.join()
    assert not (tmp_path / "out.parquet").exists()


def fill(path, text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        path.write_text(text)


def test_text_is_decompressed_within_the_budget_of_predictions(small_problem, libsvm_file, tmp_path):
    """The limit was 70 MiB, whatever --memory was."""
    x, y = small_problem("random")
    text = libsvm_file(x, y)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 48 << 20}]
    (tmp_path / "data.xz").write_bytes(lzma.compress(text.read_bytes(), filters=filters))
    with pytest.raises(DataError, match="larger dictionary"):
        predict(tmp_path / "data.xz", a_model(x, y), io.StringIO(), memory=RESERVED_BYTES + 40_000_000)
    predict(tmp_path / "data.xz", a_model(x, y), io.StringIO(), memory=RESERVED_BYTES + 300_000_000)


def test_too_small_a_budget_is_refused_with_the_arithmetic(small_problem, made_dataset, tmp_path):
    x, y = small_problem("random")
    with pytest.raises(UsageError, match=r"the model \+ .* needed"):
        predict(made_dataset(x, y), a_model(x, y), tmp_path / "p.parquet", memory="100MB")


# ---------------------------------------------------------------------------------------------------------------------
# Widths and bases


def test_features_beyond_the_width_are_ignored_counted_and_said(small_problem, made_dataset, libsvm_file):
    x, y = small_problem("random")
    model = a_model(x, y, weights=np.ones((6, 1)))
    narrow = plain_decisions(model, x[:, :6])
    beyond = int((x.indices >= 6).sum())
    assert beyond
    for data in (made_dataset(x, y), libsvm_file(x, y)):
        heard, text = Heard(), io.StringIO()
        assert predict(data, model, text, listener=heard)["n_ignored"] == beyond
        assert [f"{beyond:,} entries ignored" in warning for warning in heard.warnings] == [True]
        assert text.getvalue().splitlines() == [f"{label:g}" for label in model.labels(narrow)]


def test_text_takes_its_base_from_the_model(small_problem, libsvm_file):
    x, y = small_problem("random")
    model = a_model(x, y, index_base=0)
    expected = evaluate(libsvm_file(x, y), a_model(x, y))
    assert evaluate(libsvm_file(x, y, name="zero", index_base=0), model) == expected
    with pytest.raises(DataError, match="zero:"):
        evaluate(libsvm_file(x, y, name="zero", index_base=0), a_model(x, y))


def test_a_dataset_with_another_base_is_matched_by_index_or_refused(small_problem, made_dataset):
    x, y = small_problem("random")
    wide = np.concatenate([np.zeros((1, 1)), a_model(x, y).weights])
    from_zero = a_model(x, y, weights=wide, index_base=0)
    expected = evaluate(made_dataset(x, y, name="a"), a_model(x, y))
    found = evaluate(made_dataset(x, y, name="b"), from_zero)
    assert found["accuracy"] == expected["accuracy"]
    assert found["primal_objective"] == pytest.approx(expected["primal_objective"], rel=1e-14)
    with pytest.raises(ModelError, match="--index-base"):
        evaluate(made_dataset(x, y, name="c", index_base=0), a_model(x, y))


# ---------------------------------------------------------------------------------------------------------------------
# Evaluation


PROBLEMS = [(name, loss, "none") for name in NAMES for loss in LOSSES] + [
    (name, loss, weights)
    for name, loss in (("random", "log_loss"), ("random", "hinge"), ("multiclass", "log_loss"))
    for weights in ("integers", "decimals")
]


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize(("name", "loss", "weights"), PROBLEMS)
def test_figures_are_those_of_plain_numpy_and_of_scikit_learn_with_sample_weight(
    small_problem, made_dataset, libsvm_file, name, loss, weights
):
    x, y = small_problem(name)
    rng = np.random.default_rng(0)
    weight = {
        "none": None,
        "integers": rng.integers(0, 4, y.size).astype(float),
        "decimals": rng.gamma(0.5, 1.0, y.size) + 1e-3,
    }[weights]
    model = a_model(x, y, loss, class_weight={float(y[0]): 2.5})
    data = made_dataset(x, y, weight=weight)
    plain = evaluate(libsvm_file(x, y), model)
    assert evaluate(data, model, unweighted=True) == plain
    assert "weighted" not in plain
    found = evaluate(data, model)
    if weight is None:
        assert found == plain
    else:
        assert found["weighted"] is True
        assert found["sum_of_weights"] == pytest.approx(weight.sum(), rel=1e-12)
    assert found["n_rows"] == y.size
    assert found["primal_objective"] == pytest.approx(plain_objective(model, x, y, weight), rel=1e-12)
    assert found["labels"] == np.unique(y).astype(int).tolist()
    h, given = plain_decisions(model, x), {"sample_weight": weight}
    assert_classes_are_told_apart(found, y, model.labels(h), given)
    assert ("auc" in found) == (model.n_classes == 2)
    if model.n_classes == 2:
        positive, score = y == model.classes[1], h[:, 0] if h.shape[1] == 1 else h[:, 1] - h[:, 0]
        assert found["auc"] == pytest.approx(
            sklearn.metrics.roc_auc_score(positive, score, **given), abs=1e-12
        )
        assert found["auc_error"] == 0.0
    assert ("log_loss" in found) == (loss == "log_loss")
    if loss == "log_loss" and model.n_classes > 1 and name != "unscaled":  # where scikit-learn clips
        p = np.exp(model.log_probabilities(h))
        expected = sklearn.metrics.log_loss(y, p, labels=model.classes, **given)
        assert found["log_loss"] == pytest.approx(expected, rel=1e-10)


def assert_classes_are_told_apart(
    found: dict[str, Any], y: np.ndarray, predicted: np.ndarray, given: dict[str, Any]
) -> None:
    """Compare accuracy, confusion and the figures of each class with scikit-learn's."""
    accuracy = sklearn.metrics.accuracy_score(y, predicted, **given)
    assert found["accuracy"] == pytest.approx(accuracy, rel=1e-12)
    confusion = sklearn.metrics.confusion_matrix(y, predicted, labels=np.unique(y), **given)
    np.testing.assert_allclose(found["confusion"], confusion, rtol=1e-12)
    by_class = sklearn.metrics.precision_recall_fscore_support(y, predicted, zero_division=np.nan, **given)
    for key, theirs in zip(("precision", "recall", "f1"), by_class, strict=False):
        ours = [np.nan if row[key] is None else row[key] for row in found["per_class"]]
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert [row["n_rows"] for row in found["per_class"]] == np.unique(y, return_counts=True)[1].tolist()


def test_rows_that_all_weigh_0_are_not_evaluated(small_problem, made_dataset):
    x, y = small_problem("random")
    with pytest.raises(DataError, match="expected a row whose weight is above 0"):
        evaluate(made_dataset(x, y, weight=np.zeros(y.size)), a_model(x, y))


def test_the_command_says_that_rows_are_weighted(small_problem, made_dataset, tmp_path):
    x, y = small_problem("random")
    data = made_dataset(x, y, weight=np.full(y.size, 2.5))
    a_model(x, y).save(tmp_path / "model")
    said = "in sum, by which rows count in all figures below; --unweighted counts them alike"
    lines = command_line.run("evaluate", data.path, tmp_path / "model").stdout
    assert f"{2.5 * y.size:g} {said}" in lines
    plain = command_line.run("evaluate", data.path, tmp_path / "model", "--unweighted").stdout
    assert said not in plain
    # tables too say what they count
    for name in ("by class, weighted", "confusion, in sums of weights", "their weight"):
        assert name in lines
        assert name not in plain
    found = evaluate(data, tmp_path / "model")
    for of, row in zip(found["per_class"], found["confusion"], strict=True):
        assert of["sum_of_weights"] == 2.5 * of["n_rows"] == sum(row)
        shown = f"{of['label']}  {of['n_rows']:,}  {of['sum_of_weights']:,g}  ".split()
        assert shown in [line.split()[:3] for line in lines.splitlines()]


def test_a_code_matrix_with_zeros_leaves_rows_out_of_vectors(small_problem, made_dataset):
    x, y = small_problem("multiclass")
    k = np.unique(y).size
    code = np.array([[1, 1, 0], [-1, 0, 1], [0, -1, -1], [0, 0, 1]])[:k]
    model = a_model(x, y, "hinge", weights=np.ones((x.shape[1], 3)), intercept=np.zeros(3), code=code)
    h = plain_decisions(model, x)
    sign = code[np.searchsorted(model.classes, y)]
    losses = np.where(sign != 0, np.maximum(0, 1 - sign * h), 0).sum()
    expected = 0.5 * (model.weights**2).sum() + model.C * losses
    assert evaluate(made_dataset(x, y), model)["primal_objective"] == pytest.approx(expected, rel=1e-12)


def test_labels_that_the_model_does_not_know_count_as_errors_and_are_said_once(small_problem, libsvm_file):
    x, y = small_problem("random")
    model = a_model(x, y)
    strange = y.copy()
    strange[:5] = [9, 9, 0, 9, -4]
    heard = Heard()
    found = evaluate(libsvm_file(x, strange), model, listener=heard)
    predicted = model.labels(plain_decisions(model, x))
    assert found["accuracy"] == np.mean(predicted == strange)
    assert found["labels"] == [-4, -1, 0, 1, 9]
    assert (
        found["confusion"]
        == sklearn.metrics.confusion_matrix(strange, predicted, labels=[-4, -1, 0, 1, 9]).tolist()
    )
    assert found["primal_objective"] is None
    assert len(heard.warnings) == 1
    assert "5 rows have labels" in heard.warnings[0]


def test_labels_without_end_drop_the_confusion_and_keep_the_accuracy(libsvm_file, small_problem):
    x, y = small_problem("random")
    found = evaluate(libsvm_file(x[np.arange(4000) % 80], np.arange(4000.0)), a_model(x, y))
    assert "confusion" not in found
    assert found["accuracy"] <= 1 / 4000


def test_an_imported_model_has_no_objective(small_problem, made_dataset):
    x, y = small_problem("random")
    assert evaluate(made_dataset(x, y), a_model(x, y, C=None))["primal_objective"] is None


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
def test_rows_none_of_whose_labels_two_classes_know_are_errors_without_a_curve(small_problem, tmp_path, loss):
    x, y = small_problem("random")
    text, heard = tmp_path / "unknown.txt", Heard()
    text.write_text("5 1:1 3:2\n6 2:1\n")
    found = evaluate(text, a_model(x, y, loss), listener=heard)
    assert (found["n_rows"], found["accuracy"], sum(map(sum, found["confusion"]))) == (2, 0.0, 2)
    assert "auc" not in found
    assert "2 rows have labels that the model does not know" in " ".join(heard.warnings)


@pytest.mark.parametrize("n_distinct", [1, 2, 300, 10**9])
@pytest.mark.parametrize("memory_bytes", [1, 10**6, 10**9])
@pytest.mark.parametrize("weighted", [False, True])
def test_areas_under_curves_are_exact_or_within_the_error_told(n_distinct, memory_bytes, weighted):
    rng = np.random.default_rng(n_distinct)
    assert RocArea(memory_bytes).area() is None  # of no rows, and of one class
    alone = RocArea(memory_bytes)
    alone.add(np.arange(3.0), np.ones(3, dtype=bool))
    assert alone.area() is None
    score = rng.integers(0, n_distinct, 20_000) / n_distinct - 0.5
    positive = rng.random(20_000) < 0.4 + 0.3 * score
    weight = rng.gamma(0.5, 1.0, 20_000) + 1e-3 if weighted else None
    found = []
    for n_blocks in (11, 3):
        area = RocArea(memory_bytes)
        for block in np.array_split(np.arange(20_000), n_blocks):
            area.add(score[block], positive[block], None if weight is None else weight[block])
        found.append(area.area())
    assert found[0] is not None
    assert found[0] == pytest.approx(found[1], rel=1e-12)  # whatever the blocks
    roc, roc_error = found[0]
    told_apart = {1: 2, 10**6: 300, 10**9: 10**9}[memory_bytes]
    assert (roc_error > 0) == (n_distinct > told_apart)
    assert roc_error < 1e-3
    theirs = {"sample_weight": weight}
    assert abs(roc - sklearn.metrics.roc_auc_score(positive, score, **theirs)) <= roc_error + 1e-12


def test_the_error_of_areas_by_bins_is_printed(small_problem, made_dataset, tmp_path, monkeypatch):
    x, y = small_problem("random")
    a_model(x, y).save(tmp_path / "model")
    data = made_dataset(x, y).path
    exact = evaluate(data, tmp_path / "model")
    assert exact["auc_error"] == 0.0
    monkeypatch.setattr("streamcd.prediction.evaluate.RocArea", lambda memory: _small(RocArea(1)))
    found = evaluate(data, tmp_path / "model")
    assert 0 < abs(found["auc"] - exact["auc"]) <= found["auc_error"]
    shown = command_line.run("evaluate", data, tmp_path / "model").stdout
    assert f"± {found['auc_error']:.1g}" in shown


def _small(area: RocArea) -> RocArea:
    area._capacity = 7
    return area
