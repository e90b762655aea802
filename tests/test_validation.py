"""A validation set while training: looks at it, their figures, and a training that they stop."""

from __future__ import annotations

import json
from pathlib import Path

import command_line
import numpy as np
import pytest
import scipy.sparse as sp
from interrupted import ended, train_by_turns
from small_datasets import Rows, multiclass, random_rows, write_dataset

import streamcd
from streamcd import evaluate, load_model, resume, train
from streamcd.core.errors import CheckpointError, UsageError
from streamcd.runs import lane_groups
from streamcd.training.validation import PATIENCE, look_is_due


def _looks(run: Path) -> list[tuple[int, list[dict[str, float]]]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [(line["passes"], line["validation"]) for line in lines if "validation" in line]


def _sets(tmp_path: Path, rows: Rows, n_held: int):
    """Two datasets: all rows but the last `n_held`, and these."""
    x, y = rows
    parts = {"data": slice(None, -n_held), "held": slice(-n_held, None)}
    return [write_dataset(tmp_path / name, (sp.csr_array(x[part]), y[part])) for name, part in parts.items()]


def test_accuracy_while_training_is_weighted_as_in_evaluate(tmp_path):
    x, y = multiclass()
    weight = 1.0 + np.arange(y.size) % 7 * (y == y[0])
    data = write_dataset(tmp_path / "data", (x, y), weight=weight)
    result = train(data, tmp_path / "run", validation=data)
    said = evaluate(data, result.model)
    assert said["accuracy"] != evaluate(data, result.model, unweighted=True)["accuracy"]
    assert result.validation[0]["accuracy"] == said["accuracy"]


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "hinge"},
        {"loss": "log_loss", "C": [0.1, 1.0], "class_weight": {2: 3.0}, "bias": 1.0},
        {"loss": "crammer_singer", "C": [0.1, 1.0]},
        {"loss": "squared_hinge", "C": [0.1, 1.0]},
        {"loss": "twin", "C": [0.1, 1.0]},
    ],
    ids=lambda options: options["loss"],
)
def test_the_last_look_is_what_evaluate_says_of_the_model(tmp_path, options):
    data, held = _sets(tmp_path, multiclass(), 50)
    result = train(data, tmp_path / "run", validation=held, max_passes=300, **options)
    assert [found["C"] for found in result.validation] == list(np.atleast_1d(options.get("C", 1.0)))
    assert _looks(tmp_path / "run")[-1][0] == result.passes
    for found in result.validation:
        model = load_model(tmp_path / "run", found["C"])
        said = evaluate(held, model)
        assert found["accuracy"] == said["accuracy"]
        losses = said["primal_objective"] - 0.5 * float(model.squared_norm().sum())
        C = 1.0 if options["loss"] == "twin" else found["C"]
        assert found["loss"] == pytest.approx(losses / C / said["n_rows"], rel=1e-6)


def test_a_file_gives_the_figures_of_its_dataset(tmp_path):
    text = "".join(f"{i % 2} 1:{i % 7} 2:{i % 3} {3 + i % 5}:1\n" for i in range(90))
    (tmp_path / "held.txt").write_text(text)
    data = streamcd.convert(tmp_path / "held.txt", tmp_path / "data", normalize="l2")
    found = [
        train(data, tmp_path / name, validation=held).validation
        for name, held in (("of-data", data), ("of-text", tmp_path / "held.txt"))
    ]
    assert found[0][0]["accuracy"] == found[1][0]["accuracy"]
    assert found[0][0]["loss"] == pytest.approx(found[1][0]["loss"], rel=1e-6)


def test_looks_change_no_bit_of_the_weights(tmp_path):
    data, held = _sets(tmp_path, random_rows(), 60)
    train(data, tmp_path / "plain", tol=1e-6)
    train(data, tmp_path / "watched", tol=1e-6, validation=held)
    assert ended(tmp_path / "plain")[0] == ended(tmp_path / "watched")[0]
    passes = [passes for passes, _ in _looks(tmp_path / "watched")]
    assert passes[:8] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_looks_grow_apart_and_the_last_is_at_the_end():
    lanes = {name: np.zeros(1, dtype=np.int64) for name in ("passes", "look_passes")} | {"phase": np.ones(1)}
    seen = []
    for passes in range(1, 31):
        lanes["passes"][:] = passes
        if look_is_due(lanes):
            seen.append(passes)
            lanes["look_passes"][:] = passes
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27]
    lanes["phase"][:] = 3
    assert look_is_due(lanes)


def _overfitting(tmp_path: Path):
    """A problem of more features than noisy rows, whose loss on other rows rises as it is solved."""
    return _sets(tmp_path, random_rows(160, 60), 100)


def test_early_stop_ends_a_training_with_a_certificate_and_says_so(tmp_path, recwarn):
    data, held = _overfitting(tmp_path)
    options = {"C": 100.0, "tol": 1e-9, "validation": held, "acceleration": "none"}
    result = train(data, tmp_path / "run", early_stop=True, **options)
    assert (result.stop_reason, result.converged) == ("validation", False)
    assert not recwarn.list
    assert 0 < result.gap < np.inf
    losses = [look[0]["loss"] for _, look in _looks(tmp_path / "run")]
    assert len(losses) == int(np.argmin(losses)) + 1 + PATIENCE
    assert result.validation[0]["best_loss"] == min(losses)
    assert evaluate(held, tmp_path / "run")["accuracy"] == result.validation[0]["accuracy"]
    again = resume(tmp_path / "run")  # it has ended
    assert (again.passes, again.stop_reason) == (result.passes, "validation")
    further = resume(tmp_path / "run", early_stop=False)
    assert (further.stop_reason, further.converged) == ("gap", True)


def test_without_early_stop_a_rising_loss_stops_nothing(tmp_path):
    data, held = _overfitting(tmp_path)
    result = train(data, tmp_path / "run", C=100.0, validation=held, acceleration="none")
    assert result.converged
    assert result.validation[0]["loss"] > result.validation[0]["best_loss"]


@pytest.mark.parametrize("early_stop", [False, True])
def test_a_killed_training_goes_on_to_the_same_looks_and_weights(tmp_path, early_stop):
    data, held = _overfitting(tmp_path)
    options = {"C": [1.0, 100.0], "tol": 1e-7, "validation": held, "early_stop": early_stop}
    train(data, tmp_path / "whole", **options)
    train_by_turns(train, data, tmp_path / "run", 3, (3,), **options)
    assert ended(tmp_path / "run") == ended(tmp_path / "whole")


def test_a_run_goes_on_with_its_own_validation_set_alone(tmp_path):
    """Wherever it is: a copy is the same, one that changed is refused by its name."""
    data, _ = _sets(tmp_path, random_rows(60, 5), 20)
    text = "".join(f"{1 if i % 2 else -1} 1:{i % 7} 2:{i % 3}\n" for i in range(40))
    for name, content in (
        ("held.txt", text),
        ("copy.txt", text),
        ("other.txt", text.replace("2:1", "2:2", 1)),
    ):
        (tmp_path / name).write_text(content)
    train(data, tmp_path / "run", validation=tmp_path / "held.txt", max_passes=1, tol=1e-9)
    resume(tmp_path / "run", validation=tmp_path / "copy.txt", max_passes=2)
    with pytest.raises(CheckpointError, match=r"other\.txt: not the validation set"):
        resume(tmp_path / "run", validation=tmp_path / "other.txt", max_passes=3)
    (tmp_path / "copy.txt").write_text(text + "1 1:1\n")
    with pytest.raises(CheckpointError, match=r"copy\.txt: not the validation set"):
        resume(tmp_path / "run", max_passes=3)


def test_groups_hold_all_lanes_of_a_C_and_give_its_figures(tmp_path, monkeypatch):
    data, held = _sets(tmp_path, multiclass(), 50)
    options = {"C": [0.1, 1.0], "validation": held, "tol": 1e-7, "max_passes": 3000}
    together = train(data, tmp_path / "together", **options).validation
    group = lane_groups.group_lanes
    monkeypatch.setattr(lane_groups, "group_lanes", lambda *asked: (2, *group(*asked)[1:]))
    apart = train(data, tmp_path / "apart", **options).validation
    assert [found["C"] for found in _looks(tmp_path / "apart" / "group-01")[0][1]] == [1.0]
    for one, other in zip(apart, together, strict=True):
        assert (one["C"], one["accuracy"]) == (other["C"], other["accuracy"])
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


def test_a_group_has_room_for_a_whole_C_and_the_validation_set(tmp_path):
    x, y = multiclass(n_classes=6)
    wide = sp.csr_array((x.data, x.indices, x.indptr), shape=(x.shape[0], 1_000_000))
    data, held = _sets(tmp_path, (wide, y), 50)
    with pytest.raises(UsageError, match=r"validation set .* needed"):  # without one they go in two groups
        train(data, tmp_path / "run", validation=held, memory="210MB", acceleration="none")


def test_what_cannot_be_validated_is_refused_by_name(tmp_path):
    data, held = _sets(tmp_path, random_rows(60, 5), 20)
    for options, name in (
        ({"early_stop": True}, "early_stop"),
        ({"validation": held, "workers": 2}, "validation"),
        ({"validation": tmp_path / "missing.txt"}, "missing.txt"),
    ):
        with pytest.raises(streamcd.StreamcdError, match=name):
            train(data, tmp_path / "run", **options)
        assert not (tmp_path / "run").exists()
    train(data, tmp_path / "run")
    with pytest.raises(UsageError, match="no validation set"):
        resume(tmp_path / "run", early_stop=True)


def test_values_never_seen_are_told_by_the_first_look_alone(tmp_path):
    """Every look warned of them again, once a pass."""
    rng = np.random.default_rng(0)
    for name, cities in (("train", "Oslo Rome"), ("held", "Oslo Lima")):
        z, city = rng.normal(size=200), rng.choice(cities.split(), 200)
        label = np.where(z + rng.normal(size=200) > 0, "yes", "no")
        rows = [f"{a:.3f},{b},{c}" for a, b, c in zip(z, city, label, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["z,city,y", *rows, ""]))
    command_line.run("convert", tmp_path / "train.csv", tmp_path / "data", "--label", "y")
    options = "--validation", tmp_path / "held.csv", "--tol", "1e-8"
    told = command_line.run("train", tmp_path / "data", tmp_path / "run", *options).stderr
    assert told.count("validation loss") > 2
    assert told.count("of categories that the model has not seen") == 1
