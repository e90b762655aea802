"""Streaming predictions and evaluation: against plain numpy and scikit-learn, in source order, in bounded memory."""

from __future__ import annotations

import contextlib
import io
import lzma
import os
import threading
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import sklearn.metrics
from heard import Heard
from made_models import model_of

from streamcd import Model, evaluate, predict
from streamcd.core.errors import DataError, ModelError, UsageError
from streamcd.core.memory_budget import RESERVED_BYTES
from streamcd.prediction import scorer
from streamcd.prediction.predict import in_source_order
from streamcd.prediction.scorer import ScoredBlock
from streamcd.prediction.sums import RocArea


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
    return model_of(**(fields | changes))


def plain_decisions(model: Model, x) -> np.ndarray:
    return x.toarray() @ model.weights + model.intercept


# ---------------------------------------------------------------------------------------------------------------------
# Predictions


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
    expected = [f"{label:g}" for label in model.predicted(plain_decisions(model, x))]
    for data in (made_dataset(x, y), libsvm_file(x, y)):
        text = io.StringIO()
        assert predict(data, model, text) == {"n_rows": y.size, "n_ignored": 0, "n_unseen": 0}
        assert text.getvalue().splitlines() == expected


def test_probabilities_are_refused_before_any_work(small_problem, made_dataset, tmp_path):
    x, y = small_problem("random")
    with pytest.raises(ModelError, match="log_loss"):
        predict(made_dataset(x, y), a_model(x, y), tmp_path / "p.parquet", proba=True)
    with pytest.raises(ModelError, match="log_loss"):
        predict(made_dataset(x, y, name="b"), a_model(x, y), io.StringIO(), proba=True)


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
        with pytest.raises(UsageError, match="force=True"):
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


def test_csv_has_a_plain_header_and_strings_in_quotes(tmp_path):
    names = ["no", 'a "big", one']
    model = a_model(np.ones((2, 2)), np.arange(2.0), weights=np.array([[1.0], [0.0]]), intercept=np.zeros(1))
    model = Model(model.record.but(class_names=names, loss="log_loss"), model.weights)
    (tmp_path / "data").write_text("1:-1\n1:2\n")
    predict(tmp_path / "data", model, tmp_path / "p.csv", decision=True, proba=True)
    header, *lines = (tmp_path / "p.csv").read_text().splitlines()
    assert header == 'source,prediction,decision,probability_no,"probability_a ""big"", one"'
    assert [line.rsplit(",", 2)[0] for line in lines] == ['0,"no",-1', '1,"a ""big"", one",2']
    (tmp_path / "p.csv").write_text('"source","prediction"\n')  # as other writers quote it
    predict(tmp_path / "data", model, tmp_path / "p.csv", force=True)


def test_predictions_are_the_same_in_any_memory(
    small_problem, libsvm_file, made_dataset, tmp_path, monkeypatch
):
    x, y = small_problem("multiclass")
    model, found = a_model(x, y, "log_loss"), set()
    for source in (libsvm_file(x, y), made_dataset(x, y)):
        for block_bytes in (1, 5000, 8 << 20):
            monkeypatch.setattr(scorer, "_BLOCK_BYTES", block_bytes)
            predict(
                source, model, tmp_path / "p.txt", proba=True, force=True, memory=RESERVED_BYTES + 30_000_000
            )
            found.add((tmp_path / "p.txt").read_text())
    assert len(found) == 1


def test_several_files_are_predicted_one_after_the_other(small_problem, libsvm_file):
    x, y = small_problem("random")
    text, model = libsvm_file(x, y), a_model(x, y)
    assert predict([text, text], model).tolist() == 2 * predict(text, model).tolist()


def test_a_row_that_does_not_fit_is_refused(small_problem, tmp_path):
    x, y = small_problem("random")
    (tmp_path / "data").write_text("1" + " 1:1.000000" * 300_000 + "\n")
    with pytest.raises(DataError, match="expected lines of at most"):
        predict(tmp_path / "data", a_model(x, y), io.StringIO(), memory=RESERVED_BYTES + 40_000_000)


def test_a_failed_prediction_leaves_no_file(small_problem, tmp_path):
    x, y = small_problem("random")
    (tmp_path / "bad.libsvm").write_text("1 1:1\n1 2:x\n")
    with pytest.raises(DataError, match=r"bad\.libsvm:2"):
        predict(tmp_path / "bad.libsvm", a_model(x, y), tmp_path / "p.parquet")
    assert os.listdir(tmp_path) == ["bad.libsvm"]


@pytest.mark.parametrize("memory_bytes", [1, 100_000, 10**9])
@pytest.mark.parametrize("n_rows", [0, 20_000])
def test_source_order_is_restored_whatever_the_memory(tmp_path, n_rows, memory_bytes):
    places = np.random.default_rng(0).permutation(n_rows)
    blocks = (
        ScoredBlock(rows, rows, rows, np.stack([rows * 1.0, rows * -2.0], axis=1), 0)
        for rows in np.array_split(places, 7)
    )
    found = np.concatenate([*in_source_order(blocks, n_rows, 2, memory_bytes, tmp_path)])
    np.testing.assert_array_equal(found, np.stack([np.arange(n_rows), -2.0 * np.arange(n_rows)], axis=1))


def many_classes(n_classes: int = 300) -> Model:
    rng = np.random.default_rng(0)
    return model_of(
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


def test_a_dataset_with_another_base_is_matched_by_index_or_refused(small_problem, made_dataset):
    x, y = small_problem("random")
    wide = np.concatenate([np.zeros((1, 1)), a_model(x, y).weights])
    from_zero = a_model(x, y, weights=wide, index_base=0)
    expected = evaluate(made_dataset(x, y, name="a"), a_model(x, y))
    found = evaluate(made_dataset(x, y, name="b"), from_zero)
    assert found["accuracy"] == expected["accuracy"]
    assert found["primal_objective"] == pytest.approx(expected["primal_objective"], rel=1e-14)
    with pytest.raises(ModelError, match="index_base"):
        evaluate(made_dataset(x, y, name="c", index_base=0), a_model(x, y))


# ---------------------------------------------------------------------------------------------------------------------
# Evaluation


def test_rows_that_all_weigh_0_are_not_evaluated(small_problem, made_dataset):
    x, y = small_problem("random")
    with pytest.raises(DataError, match="expected a row whose weight is above 0"):
        evaluate(made_dataset(x, y, weight=np.zeros(y.size)), a_model(x, y))


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


@pytest.mark.parametrize("n_distinct", [1, 300, 10**9])
@pytest.mark.parametrize("memory_bytes", [1, 10**9])
@pytest.mark.parametrize("weighted", [False, True])
def test_areas_under_curves_are_exact_or_within_the_error_told(n_distinct, memory_bytes, weighted):
    rng = np.random.default_rng(n_distinct)
    assert RocArea(memory_bytes).area() is None  # of no rows, and of one class
    alone = RocArea(memory_bytes)
    alone.add(np.arange(3.0), np.ones(3, dtype=bool), np.ones(3))
    assert alone.area() is None
    score = rng.integers(0, n_distinct, 20_000) / n_distinct - 0.5
    positive = rng.random(20_000) < 0.4 + 0.3 * score
    weight = rng.gamma(0.5, 1.0, 20_000) + 1e-3 if weighted else np.ones(20_000)
    found = []
    for n_blocks in (11, 3):
        area = RocArea(memory_bytes)
        for block in np.array_split(np.arange(20_000), n_blocks):
            area.add(score[block], positive[block], weight[block])
        found.append(area.area())
    assert found[0] is not None
    assert found[0] == pytest.approx(found[1], rel=1e-12)  # whatever the blocks
    roc, roc_error = found[0]
    told_apart = {1: 2, 10**6: 300, 10**9: 10**9}[memory_bytes]
    assert (roc_error > 0) == (n_distinct > told_apart)
    assert roc_error < 1e-3
    theirs = {"sample_weight": weight}
    assert abs(roc - sklearn.metrics.roc_auc_score(positive, score, **theirs)) <= roc_error + 1e-12
