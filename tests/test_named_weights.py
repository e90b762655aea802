"""Weights by name and class: the largest of all, in the source's units, whatever the blocks; the command that lists them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from made_models import model_of
from test_tables import make_table, write_table

import streamcd
from streamcd import load_model
from streamcd.models.named_weights import largest_weights, weight_blocks


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a table (missing values, numbers, categories, three classes), its dataset, scaled, and a run."""
    path, rng = tmp_path_factory.mktemp("trained"), np.random.default_rng(3)
    table = make_table()
    age = table["age"].to_pylist()
    age[::7] = [None] * len(age[::7])
    table = table.set_column(1, "age", pa.array(age, pa.float64()))
    score = np.nan_to_num(np.array(age, float)) + (np.array(table["city"]) == "Rome") + rng.normal(size=400)
    level = np.select([score < -0.3, score < 0.8], ["low", "middle"], "top")
    table = table.drop_columns(["id", "w", "bought"]).append_column("level", pa.array(level))
    write_table(table, path / "t.parquet")
    options: dict[str, Any] = {"missing": "indicator", "scale": "standard", "dtype": "float64"}
    streamcd.convert(path / "t.parquet", path / "data", label="level", **options)
    streamcd.train(path / "data", path / "run", loss="log_loss", tol=1e-6)
    del options["scale"]
    streamcd.convert(path / "t.parquet", path / "unscaled", label="level", **options)
    streamcd.train(path / "unscaled", path / "plain", loss="log_loss", tol=1e-6)
    return path


def decisions_by_name(table: pa.Table, classes: list[dict[str, Any]]) -> np.ndarray:
    """Decisions computed of the listed weights alone, by the names of their features."""
    out = np.zeros((table.num_rows, len(classes)))
    for column, of in enumerate(classes):
        out[:, column] = of["intercept"]
        for weight in of["weights"]:
            name = weight["name"]
            if name.endswith(" is missing"):
                values = np.array(table[name.removesuffix(" is missing")].is_null())
            elif "=" in name:
                values = np.array(table[name.split("=")[0]]) == name.split("=")[1]
            else:
                values = np.array([value or 0.0 for value in table[name].to_pylist()])
            out[:, column] += weight["weight"] * values
    return out


def test_the_listed_weights_are_for_the_tables_own_values(trained) -> None:
    found = command_line.run_json("weights", trained / "run", "--top", 100)
    assert [of["label"] for of in found["classes"]] == ["low", "middle", "top"]
    table = pa.parquet.read_table(trained / "t.parquet")
    expected = streamcd.load_model(trained / "run").decision_function(table)
    np.testing.assert_allclose(decisions_by_name(table, found["classes"]), expected, rtol=1e-12, atol=1e-12)


def columns_of(table: pa.Table, names: list[str]) -> np.ndarray:
    """The features of a table by their names."""
    return np.stack([decisions_by_name(table, [one(name)])[:, 0] for name in names], axis=1)


def one(name: str) -> dict[str, Any]:
    return {"intercept": 0.0, "weights": [{"name": name, "weight": 1.0}]}


def test_weights_are_ordered_by_their_product_with_the_deviation_of_the_feature(trained) -> None:
    """In the source's units a column that counts in small ones would lead whatever it does."""
    table = pa.parquet.read_table(trained / "t.parquet")
    runs = [command_line.run_json("weights", trained / name, "--top", 100) for name in ("run", "plain")]
    orders = []
    for found in runs:
        assert found["ordered_by"] == "|weight × standard deviation of the feature|"
        for of in found["classes"]:
            deviation = columns_of(table, [weight["name"] for weight in of["weights"]]).std(axis=0)
            sizes = [abs(weight["standardized_weight"]) for weight in of["weights"]]
            np.testing.assert_allclose(
                sizes, np.abs([weight["weight"] for weight in of["weights"]]) * deviation, rtol=1e-9
            )
            assert sizes == sorted(sizes, reverse=True)
            orders.append([abs(weight["weight"]) for weight in of["weights"]])
    assert any(order != sorted(order, reverse=True) for order in orders)
    shown = command_line.run("weights", trained / "run").stdout
    assert "ordered by  |weight × standard deviation of the feature|" in shown
    assert "weight × deviation" in shown


def test_weights_of_a_model_without_deviations_say_by_what_they_are_ordered(tmp_path) -> None:
    model = model_of(np.ones((2, 1)), np.zeros(1), np.array([2.0, 7.0]), np.array([[-1], [1]]), "hinge", 1.0)
    model.save(tmp_path / "m")
    shown = command_line.run("weights", tmp_path / "m").stdout
    assert "ordered by  |weight|: the model does not know the standard deviations" in shown
    assert "weight × deviation" not in shown
    (weight, _) = command_line.run_json("weights", tmp_path / "m")["classes"][0]["weights"]
    assert "standardized_weight" not in weight


def test_the_intercept_is_not_among_the_largest_weights(trained) -> None:
    """It stood among "the largest 22 of 22", as the 23rd."""
    lines = command_line.run("weights", trained / "run").stdout.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("for ")]
    assert len(starts) == 3
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        assert (
            f": the largest {stop - start - 2} of {stop - start - 2} that are not 0; intercept "
            in lines[start]
        )
    assert max(map(len, lines)) < 80


def test_a_constant_feature_has_no_deviation_and_comes_last(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    x[:, 1] = 1 / 3  # of which mean square - mean² is not 0
    x[:, 2] = 1e9 + (x[:, 2] > 0)  # and here is rounding alone
    streamcd.convert((x, (x[:, 0] + x[:, 2] - 1e9 > 0.5) * 1), tmp_path / "data", dtype="float64")
    streamcd.train(tmp_path / "data", tmp_path / "run")
    model = load_model(tmp_path / "run")
    assert model.deviations is not None
    assert model.deviations[1] == 0.0
    assert model.deviations[0] == pytest.approx(x[:, 0].std(), rel=1e-9)
    assert model.deviations[2] == pytest.approx(0.5, rel=0.5)
    (of,) = streamcd.weights(model)["classes"]
    assert [of["weights"][-1][name] for name in ("feature", "standardized_weight")] == [1, 0.0]


@pytest.mark.parametrize(
    "options", [{}, {"normalize": "l2"}, {"scale": "maxabs", "normalize": "l2"}, {"compact": True}]
)
def test_deviations_are_those_of_the_rows_as_they_are_stored(tmp_path, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    rows = sp.random(200, 30, 0.2, random_state=rng, format="csr")
    parts = [tmp_path / "a", tmp_path / "b"]
    streamcd.convert((rows[:120], np.arange(120) % 2), parts[0], **options)
    streamcd.convert((rows[120:], np.arange(80) % 2), parts[1], like=parts[0])
    data = streamcd.merge(parts, tmp_path / "both")
    streamcd.train(data, tmp_path / "run")
    stored = data.to_scipy()[0].toarray()
    np.testing.assert_allclose(
        load_model(tmp_path / "run").deviations, stored.std(axis=0), rtol=1e-5, atol=1e-12
    )


def test_a_sparse_model_and_each_of_a_path_keep_the_deviations_of_their_weights(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x = sp.random(300, 10_000, 0.02, random_state=rng, format="csr")
    data = streamcd.convert((x, np.asarray(x[:, :90].sum(axis=1) > 0.9).ravel() * 1), tmp_path / "data")
    streamcd.make_columns(data)
    run = tmp_path / "run"
    streamcd.train(data, run, loss="log_loss", penalty="l1", l1=[1.0, 3.0], C=0.5)
    expected = data.to_scipy()[0].toarray().std(axis=0)
    for l1 in (1.0, 3.0):
        model = load_model(run, l1=l1)
        assert model.is_sparse
        np.testing.assert_allclose(
            model.deviations, np.where(model.weights[:, 0] != 0, expected, 0.0), rtol=1e-5
        )
        (of,) = command_line.run_json("weights", run, "--l1", l1)["classes"]
        by_product = np.argsort(-np.abs(model.weights[:, 0] * expected), kind="stable")
        assert [weight["feature"] for weight in of["weights"]] == by_product[: len(of["weights"])].tolist()
        model.save(tmp_path / "again")
        assert (load_model(tmp_path / "again").deviations == model.deviations).all()
    again = model_of(
        model.weights, model.intercept, model.classes, model.code, "log_loss", 0.5, deviations=expected
    )
    again.save(tmp_path / "again")  # sparse as it is written
    of_weights = np.where(model.weights[:, 0] != 0, expected, 0.0)
    assert load_model(tmp_path / "again").deviations.tolist() == of_weights.tolist()


def test_predictions_do_not_read_the_deviations_and_what_does_names_their_damage(trained, tmp_path) -> None:
    shutil.copytree(trained / "run" / "model", tmp_path / "m")
    file = tmp_path / "m" / "deviations.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    command_line.run_json("evaluate", trained / "data", tmp_path / "m")
    command_line.run_json("predict", trained / "data", tmp_path / "m", "-o", tmp_path / "p.csv")
    for command in ("weights", "verify"):
        done = command_line.run(command, tmp_path / "m")
        assert done.returncode == 2
        assert f"{file}: checksum differs" in done.stdout + done.stderr


@pytest.mark.parametrize("most", [1, 7, 64, 1 << 20])
def test_the_largest_weights_do_not_depend_on_the_blocks(most) -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(-3, 4, (50, 3)) * 0.5  # many ties, and zeros
    factors = rng.integers(0, 3, 50) * 1.0
    largest, n_nonzero = largest_weights(weight_blocks(weights, most=most), 3, 11, factors)
    for column in range(3):
        order = np.lexsort((np.arange(50), -np.abs(weights[:, column] * factors)))
        order = order[weights[order, column] != 0][:11]
        of_column = largest[:, largest[0] == column]
        assert of_column[1].tolist() == order.tolist()
        assert of_column[2].tolist() == weights[order, column].tolist()
    assert n_nonzero.tolist() == np.count_nonzero(weights, axis=0).tolist()


def test_the_other_of_two_classes_has_the_weights_with_the_other_sign(trained, tmp_path) -> None:
    weights = np.array([[3.0], [0.0], [-4.0]])
    model = model_of(weights, np.array([0.5]), np.array([2.0, 7.0]), np.array([[-1], [1]]), "hinge", 1.0)
    model.save(tmp_path / "m")
    larger, smaller = (
        command_line.run_json("weights", tmp_path / "m", "--class", label)["classes"][0] for label in "72"
    )
    assert [weight["weight"] for weight in larger["weights"]] == [-4.0, 3.0]
    assert [weight["weight"] for weight in smaller["weights"]] == [4.0, -3.0]
    assert (larger["label"], larger["intercept"]) == (7, 0.5)
    assert (smaller["label"], smaller["intercept"]) == (2, -0.5)
    assert [weight["name"] for weight in larger["weights"]] == ["feature 3", "feature 1"]


def test_people_get_a_table_for_each_class_and_one_line_where_there_is_none(trained) -> None:
    assert "the largest 0 of" in command_line.run("weights", trained / "run", "--top", 0).stdout
    shown = command_line.run("weights", trained / "run", "--top", 2).stdout
    assert [shown.count(f"for {label}: the largest 2 of ") for label in ("low", "middle", "top")] == [1, 1, 1]
    for arguments, said in (
        (("--class", "none"), "class: expected one of low, middle, top, found 'none'"),
        (("--top", "-1"), "expected a number of weights from 0 on, found -1"),
    ):
        done = command_line.run("weights", trained / "run", *arguments)
        assert (done.returncode, done.stderr.strip()) == (2, f"streamcd: error: {said}")


def test_a_model_of_numbers_has_one_column_and_no_classes(tmp_path) -> None:
    model = model_of(
        np.array([[2.0], [0.0]]),
        np.zeros(1),
        np.empty(0),
        np.zeros((0, 1)),
        "squared_error",
        1.0,
    )
    model.save(tmp_path / "m")
    (only,) = command_line.run_json("weights", tmp_path / "m")["classes"]
    assert json.dumps(only["label"]) == "null"
    assert [weight["weight"] for weight in only["weights"]] == [2.0]
    assert (
        "expected none, of a model of numbers"
        in command_line.run("weights", tmp_path / "m", "--class", 1).stderr
    )
