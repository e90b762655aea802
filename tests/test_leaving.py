"""Models in other programs: ONNX, scikit-learn's own classes, JSON and tables of weights predict what the model predicts."""

from __future__ import annotations

import csv
import io
import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import command_line
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from test_tables import make_table

import streamcd
from streamcd import Model, StreamcdError
from streamcd.core.classes import default_code
from streamcd.dataset.scaling import Scaling
from streamcd.kernels.loss_table import LOSSES, form_of

N_FEATURES = 7


def made(loss: str, n_classes: int = 2, *, bias: float = 1.0, **fields: Any) -> Model:
    """A model with random weights."""
    rng, entry = np.random.default_rng(n_classes), LOSSES[loss]
    code = np.zeros((0, 1)) if entry.of_targets else default_code(form_of(loss), n_classes)
    if entry.form == "inliers":
        code = np.array([[-1], [1]])
    code = fields.pop("code", code)
    n_vectors = np.shape(code)[1]
    parameter = None if entry.parameter is None else entry.parameter.default
    classes = np.empty(0) if entry.of_targets else np.array([-1.0, 1.0, 5.0, 7.0][:n_classes])
    common: dict[str, Any] = {
        "weights": rng.normal(size=(N_FEATURES, n_vectors)),
        "intercept": rng.normal(size=n_vectors) * (bias > 0),
        "classes": classes,
        "code": code,
        "loss": loss,
        "C": 2.0,
        "bias": bias,
        "parameter": parameter,
    }
    return Model(**common | fields)


SCALES = np.array([0.5, 3.0, 1.0, 7.0, 0.1, 2.0, 1.5])

MODELS: dict[str, Callable[[], Model]] = {
    **{
        f"{loss}, {n} classes": lambda loss=loss, n=n: made(loss, n)
        for loss, entry in LOSSES.items()
        if not entry.of_targets and entry.form != "inliers"
        for n in (2, 3)
    },
    **{loss: lambda loss=loss: made(loss) for loss, entry in LOSSES.items() if entry.of_targets},
    "one class": lambda: made("one_class", intercept=np.array([-0.3])),
    "another code": lambda: made("hinge", 3, code=np.array([[1, 1], [-1, 1], [0, -1]])),
    "names": lambda: made(
        "log_loss", 3, classes=np.arange(3.0), class_names=["a", "b, c", "ü"], tie_order=[2, 0, 1]
    ),
    "decimal labels": lambda: made("hinge", 2, classes=np.array([0.5, 1.5]), label_kind="decimal"),
    "scaled": lambda: made("log_loss", 3, scaling=Scaling("standard", "none", SCALES)),
    "of unit norm": lambda: made("squared_hinge", 2, scaling=Scaling("none", "l2")),
    "scaled, of unit norm": lambda: made("multinomial", 3, scaling=Scaling("maxabs", "l2", SCALES)),
    "no bias, larger preferred": lambda: made("hinge", 2, bias=-1.0, tie_order=[1, 0]),
    "no bias, smaller preferred": lambda: made("hinge", 2, bias=-1.0),
    "no bias, third preferred": lambda: made("hinge", 4, bias=-1.0, tie_order=[2, 3, 0, 1]),
    "calibrated": lambda: made("hinge", 2, sigmoids=[[-1.7], [0.4]]),
    "calibrated, larger preferred": lambda: made(
        "hinge", 2, bias=-1.0, sigmoids=[[-0.7], [0.4]], tie_order=[1, 0]
    ),
    "calibrated, 3 classes": lambda: made("hinge", 3, sigmoids=[[-1.7, -2.0, -0.5], [0.4, 0.0, -1.0]]),
    "plane without weights": lambda: made(
        "twin", 2, weights=np.array([[1.0, 0.0]] * N_FEATURES), tie_order=[1, 0]
    ),
    "indices from 0": lambda: made("hinge", 2, index_base=0),
}
"""Models by what is special about them."""

NOT_IN_SKLEARN = ("twin", "plane without weights", "calibrated, 3 classes")


def rows() -> np.ndarray:
    """Rows of float32 numbers, one without entries, and some far out."""
    x = np.random.default_rng(5).normal(size=(40, N_FEATURES)).astype(np.float32)
    x[3], x[4:7] = 0.0, x[4:7] * 1000.0
    return x


# ---------------------------------------------------------------------------------------------------------------------
# ONNX


def onnx_outputs(content: bytes, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime, of the extra 'test', is not installed")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_predicts_the_same_from_a_matrix(name, tmp_path) -> None:
    pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
    model, x = MODELS[name](), rows()
    assert streamcd.export(model, tmp_path / "m.onnx") == "onnx"
    found = onnx_outputs((tmp_path / "m.onnx").read_bytes(), {"X": x})
    if model.has_targets:
        np.testing.assert_allclose(found["prediction"], model.predict(x), rtol=1e-9, atol=1e-9)
        return
    assert next(iter(found)) == "label"
    assert found["label"].tolist() == model.predict(x).tolist()
    np.testing.assert_allclose(found["decision"], model.decision_function(x), rtol=1e-9, atol=1e-9)
    assert ("probabilities" in found) == model.has_probabilities
    if model.has_probabilities:
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(x), rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# scikit-learn


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith(NOT_IN_SKLEARN)])
def test_the_pipeline_of_scikit_learns_classes_predicts_the_same(name) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    model, dense = MODELS[name](), rows().astype(np.float64)
    pipeline = pickle.loads(pickle.dumps(model.to_sklearn()))
    assert all(type(step).__module__.startswith("sklearn.") for _, step in pipeline.steps)
    for x in (dense, sparse.csr_array(dense)):
        if model.has_targets:
            np.testing.assert_allclose(pipeline.predict(x), model.predict(x), rtol=1e-12, atol=1e-12)
            continue
        assert pipeline.predict(x).tolist() == model.predict(x).tolist()
        decisions = model.decision_function(x)
        if model.sigmoids is not None:
            decisions = -model.sigmoids[0, 0] * decisions - model.sigmoids[1, 0]
        elif model.n_classes == 2 and decisions.ndim == 2:
            decisions = decisions[:, 1] - decisions[:, 0]
        np.testing.assert_allclose(pipeline.decision_function(x), decisions, rtol=1e-12, atol=1e-12)
        if model.has_probabilities:
            np.testing.assert_allclose(
                pipeline.predict_proba(x), model.predict_proba(x), rtol=1e-9, atol=1e-12
            )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("twin, 3 classes", "scikit-learn has no twin models"),
        ("calibrated, 3 classes", "scikit-learn's calibrated classifiers that of the largest probability"),
    ],
)
def test_models_that_scikit_learn_cannot_be_are_refused_in_a_line(name, said) -> None:
    model = MODELS[name]()
    with pytest.raises(StreamcdError, match=said):
        model.to_sklearn()


# ---------------------------------------------------------------------------------------------------------------------
# Tables


@pytest.fixture(scope="module", params=["error", "zero", "indicator", "indicator, of unit norm"])
def of_table(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, pa.Table]:
    """A model of a table of numbers and categories, and new rows, which may lack values and have unknown categories."""
    path, table = tmp_path_factory.mktemp("table"), make_table()
    table = table.select(["age", "city", "visits", "bought"]).append_column(
        "label", pa.array(np.random.default_rng(0).choice(["x", "y", ""], table.num_rows))
    )
    missing, _, normalized = request.param.partition(",")
    rng = np.random.default_rng(1)
    table = table.append_column("member", pa.array((rng.random(table.num_rows) < 0.5).tolist()))
    table = table.append_column("rooms", pa.array(rng.integers(1, 6, table.num_rows), pa.int32()))
    cents = pa.array(rng.integers(0, 9999, table.num_rows)).cast(pa.decimal128(20, 0))
    table = table.append_column("price", pc.divide(cents, pa.scalar(100, pa.decimal128(4, 1))))
    if missing == "indicator":  # of columns that lack values: not of all
        lacking = pa.array(rng.random(table.num_rows) < 0.2)
        for name in ("age", "city", "member", "price"):
            values = pc.if_else(lacking, None, table[name])
            table = table.set_column(table.schema.get_field_index(name), name, values)
    options = {"normalize": "l2"} if normalized else {}
    streamcd.convert(
        table, path / "data", label="bought", missing=missing, scale="standard", dtype="float64", **options
    )
    streamcd.train(path / "data", path / "run", loss="log_loss", tol=1e-2)
    table = table.drop_columns("bought")
    new = table.slice(0, 50).to_pylist()
    new[0]["city"] = "Atlantis"
    if missing != "error":
        new[1] |= {"age": None, "member": None, "price": None}
        new[2] |= {"city": None, "visits": None}
    return streamcd.load_model(path / "run"), pa.Table.from_pylist(new, table.schema)


@pytest.fixture(autouse=True)
def unseen() -> Iterator[None]:
    """Categories never seen are told where a frame is predicted; here it is known."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "1 value ignored|1 missing value taken for zero")
        yield


def test_onnx_runtime_predicts_a_tables_rows_from_named_columns(of_table, tmp_path) -> None:
    pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
    model, new = of_table
    streamcd.export(model, tmp_path / "m.onnx")
    numbers = ("age", "visits", "member", "rooms", "price")
    inputs = {
        **{name: np.array(new[name].to_pylist(), np.float64)[:, None] for name in numbers},
        # "" is a category of this column; of `city` it is none, so it is missing
        "label": np.array(new["label"].to_pylist(), object)[:, None],
        "city": np.array([city or "" for city in new["city"].to_pylist()], object)[:, None],
    }
    found = onnx_outputs((tmp_path / "m.onnx").read_bytes(), inputs)
    assert list(found) == ["label_", "probabilities", "decision"]  # an input has the name "label"
    assert found["label_"].tolist() == model.predict(new).tolist()
    np.testing.assert_allclose(found["decision"], model.decision_function(new), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(new), rtol=1e-6)


@pytest.mark.parametrize(
    "library", ["pandas", "pandas with objects", "pandas with its own missing", "polars"]
)
def test_the_pipeline_predicts_a_tables_rows_from_a_frame(of_table, library) -> None:
    model, new = of_table
    frame: Any = pl.from_arrow(new) if library == "polars" else new.to_pandas()
    if library == "pandas with objects":
        frame = frame.astype({"city": object})
        frame.loc[frame["city"].isna(), "city"] = None
    if library == "pandas with its own missing":
        frame = frame.astype({"visits": "Int64", "rooms": "Int8", "member": "boolean", "age": "Float64"})
    found = model.to_sklearn().predict_proba(frame)
    np.testing.assert_allclose(found, model.predict_proba(new), rtol=1e-12)
    assert model.to_sklearn().predict(frame).tolist() == model.predict(new).tolist()


NUMBERS_AS_CATEGORIES = {
    "decimals": np.random.default_rng(0).choice([0.1, 0.5, 2.0, np.nan], 90),
    "whole numbers": np.random.default_rng(0).choice([-3, 0, 7, 2**53], 90),
    "whole numbers, some missing": pd.array(np.random.default_rng(0).choice([1, 2, None], 90), "Int16"),
}


@pytest.mark.parametrize("kind", NUMBERS_AS_CATEGORIES)
@pytest.mark.parametrize("normalize", ["none", "l2"])
def test_numbers_as_categories_leave_as_a_pipeline_and_as_onnx(kind, normalize, tmp_path) -> None:
    frame = pd.DataFrame({"code": NUMBERS_AS_CATEGORIES[kind], "x": np.linspace(0, 1, 90)})
    frame["y"] = (np.arange(90) % 7 < 3) * 1
    missing = "indicator" if frame["code"].isna().any() else "error"
    streamcd.convert(
        frame,
        tmp_path / "data",
        label="y",
        category="code",
        missing=missing,
        normalize=normalize,
        dtype="float64",
    )
    model = streamcd.load_model(streamcd.train(tmp_path / "data", tmp_path / "run").run)
    frame.loc[0, "code"] = 1000  # unknown
    expected = model.decision_function(frame)
    found = model.to_sklearn().decision_function(frame[["code", "x"]])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
    streamcd.export(model, tmp_path / "m.onnx")
    inputs = {name: frame[[name]].to_numpy(np.float64, na_value=np.nan) for name in ("code", "x")}
    outputs = onnx_outputs((tmp_path / "m.onnx").read_bytes(), inputs)
    np.testing.assert_allclose(outputs["decision"], expected, rtol=1e-12, atol=1e-12)


def test_times_leave_neither_as_a_pipeline_nor_as_onnx(tmp_path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"code": rng.integers(0, 90, 90), "y": rng.integers(0, 2, 90)})
    frame["code"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(frame["code"], "s")
    streamcd.convert(frame, tmp_path / "data", label="y")
    model = streamcd.load_model(streamcd.train(tmp_path / "data", tmp_path / "run").run)
    with pytest.raises(StreamcdError, match=r"found 'code' \(seconds\)"):
        model.to_sklearn()
    pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
    with pytest.raises(StreamcdError, match=r"found 'code' \(seconds\)"):
        streamcd.export(model, tmp_path / "m.onnx")


def test_hashed_columns_leave_neither_as_a_pipeline_nor_as_onnx(tmp_path) -> None:
    streamcd.convert(make_table(), tmp_path / "data", label="bought", drop="id", hash=4)
    streamcd.train(tmp_path / "data", tmp_path / "run", tol=1e-1)
    model = streamcd.load_model(tmp_path / "run")
    with pytest.raises(StreamcdError, match=r"found 'city' \(hashed\)"):
        model.to_sklearn()
    pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
    with pytest.raises(StreamcdError, match=r"found 'city' \(hashed\)"):
        streamcd.export(model, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


# ---------------------------------------------------------------------------------------------------------------------
# Files of weights and of everything


def decided_by_json(of: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Decisions of rows by the page on models alone: numbers of the JSON, and numpy."""
    scaled = x / np.array(of["scales"]) if of["scales"] else x
    norms = np.linalg.norm(scaled, axis=1, keepdims=True) if of["normalize"] == "l2" else np.ones((len(x), 1))
    return x @ np.array(of["weights"]) / np.where(norms > 0, norms, 1.0) + np.array(of["intercept"])


@pytest.mark.parametrize("name", MODELS)
def test_json_has_all_that_a_prediction_needs(name, tmp_path) -> None:
    model, x = MODELS[name](), rows().astype(np.float64)
    streamcd.export(model, tmp_path / "m.json")
    of = json.loads((tmp_path / "m.json").read_text())
    h = decided_by_json(of, x)
    np.testing.assert_allclose(h, model.matrix_decisions(x), rtol=1e-12, atol=1e-12)
    if of["classes"] is None:
        return
    order, norms = of["tie_order"], of["plane_norms"]
    if norms is not None:
        scores = -np.abs(h) / np.where(np.array(norms) > 0, norms, np.nan)
        scores = np.where(np.isnan(scores), -np.inf, scores)
    elif h.shape[1] == 1:
        scores = np.hstack([-h, h])
    else:
        scores = h @ np.array(of["code"], float).T
    labels = [of["classes"][order[k]] for k in scores[:, order].argmax(axis=1)]
    assert labels == model.predict(x).tolist()
    p = None
    if of["probabilities"] == "softmax":
        p = np.exp(h - h.max(axis=1, keepdims=True))
    elif of["probabilities"] == "sigmoid":
        a, b = of["calibration"] or (-1.0, 0.0)
        with np.errstate(over="ignore"):
            p = 1 / (1 + np.exp(np.array(a) * h + np.array(b)))
            p = np.hstack([1 - p, p]) if p.shape[1] == 1 else p
    assert (p is not None) == model.has_probabilities
    if p is not None:
        usual = np.abs(h).max(axis=1) < 30
        p = p[usual] / p[usual].sum(axis=1, keepdims=True)
        np.testing.assert_allclose(p, model.predict_proba(x[usual]), rtol=1e-9, atol=1e-12)


def test_json_has_the_categories_of_a_table(of_table, tmp_path) -> None:
    model, _ = of_table
    streamcd.export(model, tmp_path / "m.json")
    of = json.loads((tmp_path / "m.json").read_text())
    assert [column["n_categories"] for column in of["encoding"]["columns"]] == [0, 4, 0, 3, 0, 0, 0]
    assert of["categories"] == ["Oslo", "Paris, France", "Rome", 'the "Hague"', "", "x", "y"]


@pytest.mark.parametrize("name", ["scaled", "hinge, 2 classes", "names", "another code", "huber"])
def test_csv_parquet_and_the_frame_have_all_weights_in_the_sources_units(name, tmp_path) -> None:
    model, x = MODELS[name](), rows().astype(np.float64)
    for ending in ("csv", "parquet"):
        streamcd.export(model, tmp_path / f"w.{ending}")
    read = pa.parquet.read_table(tmp_path / "w.parquet").to_pydict()
    lines = list(csv.DictReader(io.StringIO((tmp_path / "w.csv").read_text())))
    frame = model.to_frame()
    expected = model.decision_function(x)
    columns = [column for column in read if column.startswith("weight")]
    assert (
        columns == [column for column in lines[0] if column.startswith("weight")] == list(frame.columns)[2:]
    )
    assert len(columns) == (1 if expected.ndim == 1 else expected.shape[1])
    assert read["index"] == [None, *range(1, N_FEATURES + 1)]
    assert read["name"] == ["(intercept)", *(f"feature {k}" for k in range(1, N_FEATURES + 1))]
    assert [line["index"] for line in lines] == ["", *map(str, read["index"][1:])]
    assert frame["index"].dropna().tolist() == read["index"][1:]
    assert frame["name"].tolist() == [line["name"] for line in lines] == read["name"]
    for number, column in enumerate(columns):
        table = np.array(read[column])
        assert [float(line[column]) for line in lines] == read[column] == frame[column].tolist()
        own = expected if expected.ndim == 1 else expected[:, number]
        np.testing.assert_allclose(x @ table[1:] + table[0], own, rtol=1e-9, atol=1e-9)


def test_the_export_does_not_depend_on_blocks(monkeypatch, tmp_path) -> None:
    model = MODELS["scaled"]()
    for form in ("csv", "json"):
        streamcd.export(model, tmp_path / f"whole.{form}")
    monkeypatch.setattr("streamcd.models.named_weights._NAMED_WEIGHTS", 5)
    streamcd.export(model, tmp_path / "blocks.csv")
    assert (tmp_path / "blocks.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    frame = model.to_frame()
    pd.testing.assert_frame_equal(
        frame, pd.read_csv(tmp_path / "whole.csv", dtype={"index": "Int64", "name": frame["name"].dtype})
    )


# ---------------------------------------------------------------------------------------------------------------------
# The command


@pytest.mark.parametrize("form", ["onnx", "csv", "parquet", "json"])
def test_the_ending_tells_the_format_and_only_files_of_it_are_replaced(form, tmp_path) -> None:
    if form == "onnx":
        pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
    MODELS["scaled"]().save(tmp_path / "model")
    place = tmp_path / f"out.{form}"
    found = command_line.run_json("export", tmp_path / "model", place)
    assert (found["format"], found["bytes"]) == (form, place.stat().st_size)
    assert (
        "exists; name another place, or give --force"
        in command_line.run("export", tmp_path / "model", place).stderr
    )
    before = place.read_bytes()
    assert command_line.run("export", tmp_path / "model", place, "--force").returncode == 0
    assert place.read_bytes() == before
    place.write_text("something else")
    done = command_line.run("export", tmp_path / "model", place, "--force")
    assert (done.returncode, place.read_text()) == (2, "something else")
    done = command_line.run("export", tmp_path / "model", tmp_path / "m.txt", "--format", form)
    assert done.stderr.strip() == (
        f"streamcd: error: {tmp_path / 'm.txt'}: expected a name that ends in .{form} for the format {form}"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", place.name]


def test_a_missing_library_is_named_with_its_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(StreamcdError, match=r"pip install 'streamcd\[onnx\]'"):
        streamcd.export(MODELS["scaled"](), tmp_path / "m.onnx")
    assert not any(tmp_path.iterdir())
