"""Rows with any number of labels: conversion, training of each label, predictions, comparisons."""

import io

import command_line
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.metrics import accuracy_score, f1_score, hamming_loss
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

import streamcd
from streamcd import StreamcdError
from streamcd.core.errors import ModelError, UsageError

N_LABELS = 3


def made(n_rows=200, seed=0):
    """Rows, and their labels as a matrix of 0 and 1; some rows have none, some all."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 6)).astype(np.float32)
    Y = X @ rng.normal(size=(6, N_LABELS)) + 0.7 * rng.normal(size=(n_rows, N_LABELS)) > 0.5
    return X, Y.astype(int)


def texts(Y, separator=","):
    return [separator.join(str(label + 1) for label in np.flatnonzero(row)) for row in Y]


def write_libsvm(path, X, Y, labels=None):
    lines = [
        f"{text} " + " ".join(f"{j + 1}:{value:.9g}" for j, value in enumerate(row)) + "\n"
        for text, row in zip(labels or texts(Y), X, strict=True)
    ]
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with text, a dataset of it, and a run; the rows, and their labels."""
    place = tmp_path_factory.mktemp("multilabel")
    X, Y = made()
    write_libsvm(place / "train.txt", X, Y)
    data = streamcd.convert(place / "train.txt", place / "data", multilabel=True)
    streamcd.train(data, place / "run", C=0.5, bias=1, tol=1e-8)
    return place, X, Y


def test_every_label_is_trained_as_scikit_learns_one_vs_rest_does(trained):
    place, X, Y = trained
    model = streamcd.load_model(place / "run")
    assert model.label_texts() == ["1", "2", "3"]
    theirs = OneVsRestClassifier(LinearSVC(C=0.5, tol=1e-10, max_iter=10**6)).fit(X, Y)
    np.testing.assert_allclose(model.decision_function(X), theirs.decision_function(X), atol=1e-3)
    assert np.array_equal(model.predict(X), theirs.predict(X))


def test_measures_are_scikit_learns(trained):
    place, X, Y = trained
    P = streamcd.load_model(place / "run").predict(X)
    found = streamcd.evaluate(place / "data", place / "run")
    for average in ("micro", "macro"):
        assert found[f"f1_{average}"] == pytest.approx(f1_score(Y, P, average=average), abs=1e-12)
    assert found["subset_accuracy"] == pytest.approx(accuracy_score(Y, P))
    assert found["hamming_loss"] == pytest.approx(hamming_loss(Y, P))
    each = f1_score(Y, P, average=None)
    assert [of["f1"] for of in found["per_class"]] == pytest.approx(each)


def test_the_objective_of_the_training_data_is_the_trainings(trained):
    place, *_ = trained
    certificate = streamcd.load_model(place / "run").certificate
    assert streamcd.evaluate(place / "data", place / "run")["primal_objective"] == pytest.approx(
        certificate["primal_objective"], rel=1e-12
    )


def test_text_is_compared_as_its_dataset_also_by_two_processes(trained):
    place, *_ = trained
    found = streamcd.evaluate(place / "data", place / "run")
    for workers in (1, 2):
        of_text = streamcd.evaluate(place / "train.txt", place / "run", workers=workers)
        assert of_text["per_class"] == found["per_class"]
        assert of_text["subset_accuracy"] == found["subset_accuracy"]


def test_weighted_measures_are_scikit_learns(tmp_path):
    X, Y = made()
    weight = np.random.default_rng(1).integers(1, 5, len(X)).astype(float)
    data = streamcd.convert((X, Y, weight), tmp_path / "data", multilabel=True)
    streamcd.train(data, tmp_path / "run")
    P = streamcd.load_model(tmp_path / "run").predict(X)
    found = streamcd.evaluate(data, tmp_path / "run")
    assert found["f1_macro"] == pytest.approx(f1_score(Y, P, average="macro", sample_weight=weight))
    assert found["subset_accuracy"] == pytest.approx(accuracy_score(Y, P, sample_weight=weight))
    assert found["hamming_loss"] == pytest.approx(hamming_loss(Y, P, sample_weight=weight))


@pytest.mark.parametrize(
    "kind", ["libsvm", "csv", "lists", "text column", "array", "sparse y", "frame and y"]
)
def test_all_forms_of_labels_give_the_same_sets(tmp_path, kind):
    X, Y = made(40)
    names = [f"x{j}" for j in range(X.shape[1])]
    table = pa.table(dict(zip(names, X.T, strict=True)))
    options, sources = {"multilabel": True, "shuffle": False}, None
    if kind == "libsvm":
        sources = write_libsvm(tmp_path / "data.txt", X, Y)
    elif kind == "csv":
        rows = [",".join([*names, "y"]), *(",".join(map(repr, row)) for row in X.tolist())]
        lines = [rows[0], *(f"{row},{text}" for row, text in zip(rows[1:], texts(Y, ";"), strict=True))]
        (tmp_path / "data.csv").write_text("\n".join(lines) + "\n")
        sources, options = tmp_path / "data.csv", options | {"label": "y", "multilabel": ";"}
    elif kind in ("lists", "text column"):
        given = [(np.flatnonzero(row) + 1).tolist() for row in Y] if kind == "lists" else texts(Y)
        pq.write_table(table.append_column("y", pa.array(given)), tmp_path / "data.parquet")
        sources, options = tmp_path / "data.parquet", options | {"label": "y"}
    else:
        marks = np.hstack([np.zeros((len(Y), 1), int), Y])[:, 1:] if kind == "array" else Y
        sources = (X, sparse.csr_matrix(marks) if kind == "sparse y" else marks)
        if kind == "frame and y":
            sources = (table, pa.array(texts(Y)))
    data = streamcd.convert(sources, tmp_path / "data", **options)
    first = 0 if kind in ("array", "sparse y") else 1
    separator = options["multilabel"] if kind == "csv" else ","
    assert data.info()["classes"] == [str(label + first) for label in range(N_LABELS)]
    assert data.info()["class_counts"] == Y.sum(axis=0).tolist()
    expected = [separator.join(str(label + first) for label in np.flatnonzero(row)) for row in Y]
    assert data.labels().tolist() == expected


def test_a_set_is_one_however_it_is_written_and_may_be_empty(tmp_path):
    text = "3,1 1:1\n1,3 2:1\n 1:1 2:1\n1,1,3 2:2\n2 # none\n"
    (tmp_path / "data.txt").write_text(text)
    data = streamcd.convert(tmp_path / "data.txt", tmp_path / "data", multilabel=True)
    assert data.labels().tolist() == ["1,3", "1,3", "", "1,3", "2"]
    assert data.class_counts.tolist() == [1, 3, 1]
    assert data.verify() == []


def test_predictions_are_sets_in_text_and_lists_in_parquet(trained, tmp_path):
    place, X, _ = trained
    P = streamcd.load_model(place / "run").predict(X)
    lines = io.StringIO()
    streamcd.predict(place / "train.txt", place / "run", lines)
    assert lines.getvalue().splitlines() == texts(P)
    streamcd.predict(place / "data", place / "run", tmp_path / "p.parquet")
    table = pq.read_table(tmp_path / "p.parquet").to_pydict()
    assert [",".join(row) for row in table["prediction"]] == texts(P)
    decisions = np.array([table[f"decision_{label}"] for label in (1, 2, 3)]).T
    assert np.array_equal(decisions > 0, P > 0)
    streamcd.predict(place / "data", place / "run", tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().splitlines()[1:5] == [
        f'{row},"{text}"' if "," in text else f"{row},{text}" for row, text in enumerate(texts(P)[:4])
    ]


@pytest.mark.parametrize("method", ["dual", "newton", "primal"])
def test_methods_agree_on_the_objective(trained, tmp_path, method):
    place, *_ = trained
    if method == "primal":
        streamcd.make_columns(place / "data", force=True)
    result = streamcd.train(place / "data", tmp_path / "run", method=method, C=0.5, bias=1, tol=1e-6)
    expected = streamcd.load_model(place / "run").certificate["primal_objective"]
    assert result.primal_objective == pytest.approx(expected, rel=1e-5)
    assert [lane["label"] for lane in result.lanes] == ["1", "2", "3"]


def test_class_weights_are_those_of_a_labels_own_rows(trained, tmp_path):
    place, X, Y = trained
    options = {"C": 0.5, "bias": 1, "tol": 1e-8}
    streamcd.train(place / "data", tmp_path / "balanced", class_weight="balanced", **options)
    theirs = OneVsRestClassifier(LinearSVC(C=0.5, tol=1e-10, max_iter=10**6, class_weight="balanced"))
    decisions = streamcd.load_model(tmp_path / "balanced").decision_function(X)
    np.testing.assert_allclose(decisions, theirs.fit(X, Y).decision_function(X), atol=2e-3)
    streamcd.train(place / "data", tmp_path / "second", class_weight={2: 5}, **options)
    plain, second = (
        streamcd.load_model(run).decision_function(X) for run in (place / "run", tmp_path / "second")
    )
    np.testing.assert_allclose(second[:, [0, 2]], plain[:, [0, 2]], atol=1e-3)
    assert (second[:, 1] > 0).sum() > (plain[:, 1] > 0).sum()


def test_unknown_labels_are_counted_as_not_found(trained, tmp_path):
    place, X, Y = trained
    lines = [f"{text},9" if text and row % 2 else text for row, text in enumerate(texts(Y))]
    found = streamcd.evaluate(write_libsvm(tmp_path / "new.txt", X, Y, lines), place / "run")
    known = streamcd.evaluate(place / "train.txt", place / "run")
    assert found["f1_macro"] == known["f1_macro"]
    assert found["f1_micro"] < known["f1_micro"]
    assert found["subset_accuracy"] < known["subset_accuracy"]
    assert found["primal_objective"] is None


def test_test_data_converted_like_the_training_data_may_have_other_sets(trained, tmp_path):
    place, X, Y = trained
    write_libsvm(tmp_path / "new.txt", X, Y, [f"{text},9".lstrip(",") for text in texts(Y)])
    data = streamcd.convert(tmp_path / "new.txt", tmp_path / "data", like=place / "run")
    found = streamcd.evaluate(data, place / "run")
    assert found["per_class"] == streamcd.evaluate(tmp_path / "new.txt", place / "run")["per_class"]


@pytest.mark.parametrize("loss", ["crammer_singer", "multinomial", "twin"])
def test_losses_that_tell_classes_apart_are_refused(trained, tmp_path, loss):
    place, *_ = trained
    with pytest.raises(
        UsageError, match=f"the loss {loss} tells classes apart, found rows with any number of labels"
    ):
        streamcd.train(place / "data", tmp_path / "run", loss=loss)


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        (
            "1,x 1:1\n",
            {"multilabel": True},
            "data.txt:1: expected numbers joined by commas as labels, found '1,x'",
        ),
        (
            "1 1:1\n1,2 1:1\n",
            {},
            "data.txt:2: expected a number as label, found '1,2'; --multilabel takes several",
        ),
        ("1 1:1\n", {"multilabel": "ab"}, "expected the character between labels"),
        ("1 1:1\n", {"multilabel": True, "target": True}, "--target and --multilabel exclude each other"),
    ],
)
def test_bad_labels_and_options_are_told_in_a_line(tmp_path, text, options, complaint):
    (tmp_path / "data.txt").write_text(text)
    with pytest.raises(StreamcdError) as refused:
        streamcd.convert(tmp_path / "data.txt", tmp_path / "data", **options)
    assert complaint in str(refused.value)
    assert not (tmp_path / "data").exists()


def test_bad_label_columns_are_told_in_a_line(tmp_path):
    X, Y = made(20)
    with pytest.raises(UsageError, match="found none in column 3"):
        streamcd.convert((X, np.hstack([Y, np.zeros((20, 1))])), tmp_path / "data", multilabel=True)
    with pytest.raises(StreamcdError, match="expected 0 or 1 in every column of y, found 2"):
        streamcd.convert((X, Y + Y), tmp_path / "data", multilabel=True)
    table = pa.table({"x": [1.0, 2.0], "y": [["a,b"], ["c"]]})
    with pytest.raises(StreamcdError, match="row 1: column 'y': expected labels without ','"):
        streamcd.convert(table, tmp_path / "data", label="y", multilabel=True)
    data = streamcd.convert(table, tmp_path / "data", label="y", multilabel=";")
    assert data.info()["classes"] == ["a,b", "c"]


def test_estimators_and_other_datasets_say_what_they_take(trained, tmp_path):
    place, X, Y = trained
    with pytest.raises(UsageError, match="expected one label a row"):
        streamcd.LinearSVC().fit(place / "data")
    streamcd.convert((X, Y[:, 0]), tmp_path / "plain")
    with pytest.raises(ModelError, match="expected rows with any number of labels, as in training"):
        streamcd.evaluate(tmp_path / "plain", place / "run")


def test_a_dataset_leaves_as_libsvm_text_and_comes_back(trained, tmp_path):
    place, _, Y = trained
    command_line.run_json("export", place / "data", tmp_path / "back.txt")
    assert [line.split(" ")[0] for line in (tmp_path / "back.txt").read_text().splitlines()] == texts(Y)
    data = streamcd.convert(tmp_path / "back.txt", tmp_path / "back", multilabel=True)
    assert data.info()["data_digest"] == streamcd.open(place / "data").info()["data_digest"]
    named = streamcd.convert(
        pa.table({"x": [1.0, 2.0], "y": ["a,b", "c"]}), tmp_path / "n", label="y", multilabel=True
    )
    refused = command_line.run("export", named.path, tmp_path / "named.txt")
    assert "numbers as labels, found 'a'" in refused.stderr


def test_one_label_and_two_labels_are_no_two_classes(tmp_path):
    X, Y = made(60)
    for n_labels in (1, 2):
        place = tmp_path / str(n_labels)
        place.mkdir()
        data = streamcd.convert((X, Y[:, :n_labels]), place / "data", multilabel=True)
        streamcd.train(data, place / "run")
        model = streamcd.load_model(place / "run")
        assert model.decision_function(X).shape == (60, n_labels)
        found = streamcd.evaluate(data, place / "run")
        P = model.predict(X)
        assert found["subset_accuracy"] == pytest.approx((Y[:, :n_labels] == P).all(axis=1).mean())
        lines = io.StringIO()
        streamcd.predict(data, place / "run", lines)
        assert lines.getvalue().splitlines() == [",".join(map(str, np.flatnonzero(row))) for row in P]
