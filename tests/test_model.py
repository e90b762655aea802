"""Models on disk, their labels, and LIBLINEAR's text format in both directions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import command_line
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from heard import Heard
from liblinear.liblinearutil import load_model as liblinear_load
from liblinear.liblinearutil import predict as liblinear_predict
from liblinear.liblinearutil import save_model as liblinear_save
from liblinear.liblinearutil import train as liblinear_train
from made_models import model_of

from streamcd import Model, export, load_model
from streamcd.core.errors import ModelError
from streamcd.core.files import SEAL, content_digest
from streamcd.core.setting import default_code
from streamcd.dataset.source_features import Scaling


def a_model(n_features: int = 5, n_classes: int = 2, **changes) -> Model:
    rng = np.random.default_rng(n_features * 100 + n_classes)
    n_vectors = 1 if n_classes == 2 else n_classes
    fields = {
        "weights": rng.standard_normal((n_features, n_vectors)),
        "intercept": rng.standard_normal(n_vectors),
        "classes": np.arange(n_classes) * 2.0 - 1.0,
        "code": [[-1], [1]] if n_classes == 2 else 2 * np.eye(n_classes) - 1,
        "loss": "squared_hinge",
        "C": 0.5,
        "bias": 2.0,
        "class_weight": {1.0: 3.0},
        "fingerprint": "abc",
        "versions": {"numpy": np.__version__},
        "certificate": {"gap": 1e-5},
    }
    return model_of(**(fields | changes))


def predicted(model: Model, x: sp.csr_array) -> np.ndarray:
    return model.predicted(model.decisions(x.indptr.astype(np.int64), x.indices, x.data)[0])


# ---------------------------------------------------------------------------------------------------------------------
# On disk


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_saved_model_comes_back_as_it_was(tmp_path, n_classes):
    model = a_model(n_classes=n_classes)
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    for name in ("weights", "intercept", "classes", "code", "tie_order", "scaling", "encoding", "indices"):
        np.testing.assert_equal(getattr(again, name), getattr(model, name), err_msg=name)
    assert again.record == model.record.but(checksums=again.checksums)


def test_a_run_is_read_by_its_model(tmp_path):
    a_model().save(tmp_path / "run" / "model")
    assert load_model(tmp_path / "run").loss == "squared_hinge"


def test_saving_again_replaces_the_model_and_leaves_no_other_files(tmp_path):
    a_model(7).save(tmp_path)
    a_model(4).save(tmp_path)
    assert load_model(tmp_path).n_features == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "weights.npy"]


def test_a_flipped_bit_in_the_weights_is_refused_by_name(tmp_path):
    a_model().save(tmp_path)
    data = bytearray((tmp_path / "weights.npy").read_bytes())
    data[-3] ^= 1
    (tmp_path / "weights.npy").write_bytes(data)
    with pytest.raises(ModelError, match=r"weights\.npy: checksum differs"):
        load_model(tmp_path)


def _change(path: Path, **fields) -> None:
    """Change fields, with a digest that is right."""
    content = json.loads((path / "model.json").read_text()) | fields
    content[SEAL] = content_digest(content)
    (path / "model.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "model.json").unlink(), "no model.json in it"),
        (lambda path: (path / "model.json").write_text("{"), "damaged"),
        (lambda path: (path / "model.json").write_text("{}"), "expected a streamcd-model"),
        (lambda path: (path / "weights.npy").unlink(), "weights.npy: the file is missing"),
        (lambda path: _change(path, format_version=99), "found 99"),
        (lambda path: _change(path, n_features=6), "expected 6 rows"),
        (lambda path: _change(path, classes="x"), "damaged"),
        (lambda path: _change(path, classes=[1.0, 0.0]), "classes that do not ascend"),
        (lambda path: _change(path, checksums={"weights.npy": "sha256:0"}), "checksum differs"),
        (
            lambda path: _change(path, checksums=None),
            r"expected `object`, got `null` - at `\$\.checksums`",
        ),
        (lambda path: _change(path, class_weight={"one": 1}), "damaged"),
        (lambda path: _change(path, code=[[300], [1]]), "damaged"),
    ],
)
def test_a_damaged_model_is_refused_in_one_line(tmp_path, damage, message):
    a_model().save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ModelError, match=message) as refused:
        load_model(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("field", ["intercept", "classes", "bias", "C", "loss"])
def test_a_model_changed_by_hand_is_refused(tmp_path, field):
    """An intercept of another sign used to predict with it, and exit 0."""
    a_model().save(tmp_path)
    content = json.loads((tmp_path / "model.json").read_text())
    old = content[field]
    changed = (
        [value - 1 for value in old]
        if isinstance(old, list)
        else f"not {old}"
        if isinstance(old, str)
        else old + 1
    )
    content[field] = changed
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="changed since it was written"):
        load_model(tmp_path)


def test_what_is_no_model_is_refused_with_advice(tmp_path):
    with pytest.raises(ModelError, match="found nothing there"):
        load_model(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="streamcd import"):
        load_model(tmp_path / "file")
    (tmp_path / "config.json").touch()
    with pytest.raises(ModelError, match=r"streamcd\.resume\("):
        load_model(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# Labels


@pytest.mark.parametrize("loss", ["hinge", "crammer_singer", "twin"])
def test_a_default_code_is_not_stored_and_a_stored_one_is_read(tmp_path, loss):
    """Of 6,000 classes the matrix was most of the model: minutes of JSON, after the training was done."""
    identity = np.eye(4, dtype=np.int8)
    model = a_model(n_classes=4, loss=loss, code=2 * identity - 1 if loss == "hinge" else identity)
    model.save(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "model.json").read_text()).get("code") is None
    np.testing.assert_array_equal(load_model(tmp_path / "model").code, model.code)
    _change(tmp_path / "model", code=model.code.tolist())
    np.testing.assert_array_equal(load_model(tmp_path / "model").code, model.code)


def test_of_two_classes_the_larger_is_positive_and_zero_is_not():
    model = a_model(classes=[1.0, 2.0])
    assert model.predicted(np.array([[0.1], [0.0], [-0.1]])).tolist() == [2.0, 1.0, 1.0]


def test_one_vs_rest_takes_the_largest_decision_to_the_last_bit():
    decisions = np.array([[1.0, np.nextafter(1.0, 2), -3.0], [1e16, 1e16 + 2, -1e16], [0.0, 0.0, 0.0]])
    assert a_model(n_classes=3).decoder.predicted_classes(decisions).tolist() == [1, 1, 0]


def test_a_code_matrix_decides_by_correlation():
    one_vs_one = np.array([[1, 1, 0], [-1, 0, 1], [0, -1, -1]])
    decisions = np.random.default_rng(0).standard_normal((50, 3))
    expected = (decisions @ one_vs_one.T).argmax(axis=1)
    model = a_model(n_classes=3, code=one_vs_one)
    np.testing.assert_array_equal(model.decoder.predicted_classes(decisions), expected)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_sum_to_one_and_are_finite_at_the_extremes(n_classes):
    model = a_model(n_classes=n_classes, loss="log_loss")
    decisions = np.array([[-800.0, 0.0, 800.0], [800.0, 800.0, 800.0], [-800.0, -800.0, -800.0]])[
        :, : model.n_vectors
    ]
    log_probabilities = model.log_probabilities(decisions)
    assert np.isfinite(log_probabilities).all()
    np.testing.assert_allclose(np.exp(log_probabilities).sum(axis=1), 1.0)


def test_probabilities_of_an_svm_are_refused():
    with pytest.raises(ModelError, match="log_loss"):
        a_model().log_probabilities(np.zeros((1, 1)))


def test_features_beyond_the_width_are_ignored_and_counted():
    model = a_model(3)
    inside = model.decisions(np.array([0, 1]), np.array([2]), np.array([1.5]))
    beyond = model.decisions(np.array([0, 3]), np.array([2, 3, 700]), np.array([1.5, 1.0, 1.0]))
    assert (inside[0] == beyond[0]).all()
    assert (inside[1], beyond[1]) == (0, 2)


# ---------------------------------------------------------------------------------------------------------------------
# LIBLINEAR


def _liblinear_rows(x: sp.csr_array) -> list[dict[int, float]]:
    return [
        {int(x.indices[k]) + 1: float(x.data[k]) for k in range(x.indptr[row], x.indptr[row + 1])}
        for row in range(x.shape[0])
    ]


def _some_rows(n_features: int, n_rows: int = 60) -> sp.csr_array:
    rng = np.random.default_rng(11)
    x = sp.csr_array(
        sp.random(n_rows, n_features, density=0.3, random_state=rng, data_rvs=rng.standard_normal)
    )
    x.data[x.indptr[5] : x.indptr[6]] = 0  # a row that decides nothing: ties are broken alike
    return x


@pytest.mark.parametrize(("labels", "bias"), [([-1, 1], -1.0), ([7, -3], 2.0), ([4, 0, 9], 0.0), ([5], 2.0)])
@pytest.mark.parametrize("solver", [0, 3, 4])
def test_a_model_of_liblinear_predicts_the_same_here_and_comes_back_unchanged(tmp_path, solver, labels, bias):
    x = _some_rows(9)
    y = [labels[(3 * i + i // 7) % len(labels)] for i in range(60)]
    rows = _liblinear_rows(x)
    theirs = liblinear_train(y, rows, f"-s {solver} -B {bias} -q")
    path = tmp_path / "theirs.txt"
    liblinear_save(str(path), theirs)

    ours = command_line.imported(path)
    expected = liblinear_predict([], rows, theirs, "-q")[0]
    np.testing.assert_array_equal(predicted(ours, x), expected)

    export(ours, tmp_path / "again.txt")
    same_numbers = (tmp_path / "again.txt").read_text().replace("-0 ", "0 ")
    assert same_numbers == path.read_text().replace("-0 ", "0 ")


def test_the_positive_class_comes_first_on_the_label_line(tmp_path):
    export(a_model(classes=[-1.0, 1.0]), tmp_path / "ours.txt")
    assert "\nlabel 1 -1\n" in (tmp_path / "ours.txt").read_text()


def test_another_code_is_exported_as_one_vector_per_class(tmp_path):
    one_vs_one = np.array([[1, 1, 0], [-1, 0, 1], [0, -1, -1]])
    model = a_model(9, 3, code=one_vs_one)
    export(model, tmp_path / "ours.txt")
    x = _some_rows(9)
    expected = liblinear_predict([], _liblinear_rows(x), liblinear_load(str(tmp_path / "ours.txt")), "-q")[0]
    np.testing.assert_array_equal(predicted(model, x), expected)


def test_export_writes_block_by_block(tmp_path):
    model = a_model(200_003)
    export(model, tmp_path / "ours.txt")
    again = command_line.imported(tmp_path / "ours.txt")
    np.testing.assert_array_equal(again.weights, model.weights)
    assert not list(tmp_path.glob("*.partial"))


def test_labels_that_are_no_integers_are_not_exported(tmp_path):
    with pytest.raises(ModelError, match="integers"):
        export(a_model(classes=[0.5, 1.5], label_kind="decimal"), tmp_path / "ours.txt")
    assert not list(tmp_path.iterdir())


def test_export_says_that_indices_from_zero_are_shifted_and_names_numbered(tmp_path):
    heard = Heard()
    export(a_model(index_base=0), tmp_path / "ours.txt", listener=heard)
    named = a_model(class_names=["ham", "spam"], classes=[0.0, 1.0])
    export(named, tmp_path / "names.txt", listener=heard)
    assert "add 1 to each index" in heard.warnings[0]
    assert "0 = ham, 1 = spam" in heard.warnings[1]


GOOD = "solver_type L2R_LR\nnr_class 2\nlabel 1 -1\nnr_feature 3\nbias -1\nw\n1 \n2 \n3 \n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("L2R_LR", "L3R_LR"), "L3R_LR is no problem"),
        (GOOD.replace("L2R_LR", "ONECLASS_SVM"), "solver_type ONECLASS_SVM"),
        (GOOD.replace("label 1 -1\n", ""), "'label' is missing"),
        (GOOD.replace("label 1 -1", "label 1 1"), "malformed"),
        (GOOD.replace("label 1 -1", "label 1 2 3"), "malformed"),
        (GOOD.replace("nr_feature 3", "nr_feature 4"), "expected 4 rows"),
        (GOOD.replace("nr_feature 3", "nr_feature 2"), "found more"),
        (
            GOOD.replace("nr_feature 3", "nr_feature 99999999999"),
            "99,999,999,999 rows of 1 weight, .* correct nr_fe",
        ),
        (GOOD.replace("nr_feature 3", "nr_feature x"), "malformed"),
        (GOOD.replace("nr_feature 3", "nr_feature -1"), "malformed"),
        (GOOD.replace("2 \n3", "nan \n3"), "not finite"),
        (GOOD.replace("2 \n3", "two \n3"), "two"),
        (GOOD.replace("w\n", ""), "no line 'w'"),
        ("1 1:0.5 2:3\n" * 200, "no line 'w'"),
        ("", "no line 'w'"),
        (GOOD + "ü", "found 0xc3"),
    ],
)
def test_malformed_model_text_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "model.txt"
    path.write_text(text, encoding="utf-8")
    done = command_line.run("import", path, tmp_path / "model")
    (refused,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert re.search(message, refused)
    assert str(path) in refused


def test_the_text_that_the_malformed_ones_are_made_of_is_good(tmp_path):
    (tmp_path / "model.txt").write_text(GOOD)
    assert command_line.imported(tmp_path / "model.txt").weights.tolist() == [[1.0], [2.0], [3.0]]


# ---------------------------------------------------------------------------------------------------------------------
# Verification


def test_verify_takes_models(tmp_path):
    """Of a run, or of a path over C; one without a digest is given it."""
    a_model().save(tmp_path / "run" / "model")
    for C in (0.25, 0.5):
        a_model(C=C).save(tmp_path / "path" / f"C={C}")
    for name in ("run/model", "path"):
        assert command_line.problems(tmp_path / name) == []
    assert command_line.run_json("verify", tmp_path / "run" / "model") == {"ok": True, "problems": []}
    path = tmp_path / "path" / "C=0.5" / "model.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"intercept": [0.0]}))
    found = command_line.run("verify", tmp_path / "path", "--json")
    assert found.returncode == 2
    assert "C=0.5/model.json: changed" in json.loads(found.stdout)["problems"][0]
    path.write_text(json.dumps(content))
    _change(path.parent, checksums={"weights.npy": "sha256:0"})
    assert "weights.npy" in command_line.problems(tmp_path / "path")[0]


# ---------------------------------------------------------------------------------------------------------------------
# Matrices and frames


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_matrices_and_frames_are_decided_about_as_rows_are(n_classes: int, scaled: bool) -> None:
    rng = np.random.default_rng(n_classes)
    n_vectors = 1 if n_classes == 2 else n_classes
    scales = rng.random(6) + 0.5
    model = model_of(
        weights=rng.standard_normal((6, n_vectors)),
        intercept=rng.standard_normal(n_vectors),
        classes=np.arange(n_classes) * 2.0 - 1.0,
        code=default_code("margins", n_classes),
        loss="log_loss",
        C=1.0,
        scaling=Scaling("maxabs", "l2", scales) if scaled else Scaling(),
    )
    x = rng.standard_normal((30, 6)) * (rng.random((30, 6)) < 0.7)
    values = x
    if scaled:
        values = x / scales
        values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-300)
    decisions = values @ model.weights + model.intercept
    forms = [
        x,
        np.asfortranarray(x),
        x.tolist(),
        sp.csr_array(x),
        sp.coo_matrix(x),
        pd.DataFrame(x),
        pa.table(pd.DataFrame(x)),
    ]
    for form in forms:
        assert np.allclose(model.decision_function(form), decisions[:, 0] if n_vectors == 1 else decisions)
        assert np.array_equal(model.predict(form), model.predicted(decisions))
        assert model.predict(form).dtype == np.int64
        assert np.allclose(model.predict_proba(form), np.exp(model.log_probabilities(decisions)))
        assert np.allclose(model.predict_proba(form).sum(axis=1), 1.0)


def test_a_matrix_that_does_not_fit_is_refused() -> None:
    model = model_of(np.ones((3, 1)), np.zeros(1), np.array([0.0, 1.0]), np.array([[-1], [1]]), "hinge", 1.0)
    with pytest.raises(ModelError, match="model's 3 features, found 2 columns"):
        model.predict(np.ones((4, 2)))
    with pytest.raises(ModelError, match="matrix of numbers"):
        model.predict(pd.DataFrame({"a": ["x"], "b": ["y"], "c": ["z"]}))
    with pytest.raises(ModelError, match="1 dimensions"):
        model.predict(np.ones(3))
    for form in (np.array, sp.csr_array):  # rows with NaN were scored, silently
        with pytest.raises(ModelError, match="expected finite values, found others"):
            model.predict(form([[1.0, np.nan, 0.0]]))
    with pytest.raises(ModelError, match="log_loss"):
        model.predict_proba(np.ones((1, 3)))
