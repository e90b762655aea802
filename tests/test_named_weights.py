"""Weights by name and class: the largest of all, in the source's units, whatever the blocks; the command that lists them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pyarrow as pa
import pytest
from test_tables import make_table, write_table

import streamcd
from streamcd import Model, load_model
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


def test_weights_of_scaled_features_are_ordered_by_what_they_were_trained_as(trained) -> None:
    """In the source's units a column that counts in small ones would lead whatever it does."""
    model = load_model(trained / "run")
    found = command_line.run_json("weights", trained / "run", "--top", 100)
    orders = []
    for column, of in enumerate(found["classes"]):
        sizes = [abs(weight["scaled_weight"]) for weight in of["weights"]]
        assert sizes == sorted(sizes, reverse=True)
        for weight in of["weights"]:
            assert weight["scaled_weight"] == model.weights[weight["feature"], column]
            assert weight["weight"] == model.source_weights[weight["feature"], column]
        orders.append([abs(weight["weight"]) for weight in of["weights"]])
    assert any(order != sorted(order, reverse=True) for order in orders)
    shown = command_line.run("weights", trained / "run").stdout
    assert "in the source's units, ordered by those of the scaled features (--scale standard)" in shown
    assert "of the scaled feature" in shown


def test_weights_of_features_that_were_not_scaled_say_by_what_they_are_ordered(tmp_path) -> None:
    model = Model(np.ones((2, 1)), np.zeros(1), np.array([2.0, 7.0]), np.array([[-1], [1]]), "hinge", 1.0)
    model.save(tmp_path / "m")
    shown = command_line.run("weights", tmp_path / "m").stdout
    assert "2 weights that are not 0, ordered by size in the source's units" in shown
    assert "of the scaled feature" not in shown


@pytest.mark.parametrize("most", [1, 7, 64, 1 << 20])
def test_the_largest_weights_do_not_depend_on_the_blocks(most) -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(-3, 4, (50, 3)) * 0.5  # many ties, and zeros
    found = largest_weights(weight_blocks(weights, most=most), 3, 11)
    for column in range(3):
        order = np.lexsort((np.arange(50), -np.abs(weights[:, column])))[:11]
        order = order[weights[order, column] != 0]
        own = found.column == column
        assert found.feature[own].tolist() == order.tolist()
        assert found.weight[own].tolist() == weights[order, column].tolist()
    assert found.n_nonzero.tolist() == np.count_nonzero(weights, axis=0).tolist()


def test_the_other_of_two_classes_has_the_weights_with_the_other_sign(trained, tmp_path) -> None:
    weights = np.array([[3.0], [0.0], [-4.0]])
    model = Model(weights, np.array([0.5]), np.array([2.0, 7.0]), np.array([[-1], [1]]), "hinge", 1.0)
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
    assert "(intercept)" in command_line.run("weights", trained / "run", "--top", 0).stdout
    shown = command_line.run("weights", trained / "run", "--top", 2).stdout
    assert [shown.count(f"for {label}: the largest 2 of ") for label in ("low", "middle", "top")] == [1, 1, 1]
    for arguments, said in (
        (("--class", "none"), "class: expected one of low, middle, top, found 'none'"),
        (("--top", "-1"), "expected a number of weights from 0 on, found -1"),
    ):
        done = command_line.run("weights", trained / "run", *arguments)
        assert (done.returncode, done.stderr.strip()) == (2, f"streamcd: error: {said}")


def test_a_model_of_numbers_has_one_column_and_no_classes(tmp_path) -> None:
    model = Model(
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
