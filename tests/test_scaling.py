"""Scaling at conversion: what is stored, what the model carries, and what is said about data that is badly scaled."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
import scipy.sparse as sp
from conftest import SMALL_PROBLEMS, libsvm_text
from heard import Heard

import streamcd
from streamcd import Dataset
from streamcd import open as open_dataset
from streamcd.conversion.pipeline import Plan
from streamcd.core.errors import DatasetError, ModelError, UsageError
from streamcd.dataset.diagnostics import advice, feature_rms

convert: Callable[..., Dataset] = streamcd.convert
SCALINGS = [
    pair
    for pair in itertools.product(("none", "maxabs", "standard"), ("none", "l2"))
    if any(p != "none" for p in pair)
]


def scaled_by_scikit_learn(x: sp.csr_array, scale: str, normalize: str) -> np.ndarray:
    from sklearn.preprocessing import MaxAbsScaler, StandardScaler
    from sklearn.preprocessing import normalize as normalized

    scaler = {"maxabs": MaxAbsScaler(), "standard": StandardScaler(with_mean=False)}.get(scale)
    rows = x if scaler is None else scaler.fit_transform(x)
    return (normalized(rows) if normalize == "l2" else rows).toarray()


@pytest.fixture
def badly_scaled() -> tuple[sp.csr_array, np.ndarray]:
    """Features of very different units, an empty row, an absent feature, a constant one, and one far from zero."""
    rng = np.random.default_rng(3)
    dense = rng.standard_normal((300, 7)) * (rng.random((300, 7)) < 0.6)
    y = np.where(dense @ rng.standard_normal(7) > 0, 1.0, -1.0)
    dense *= [1e-3, 1.0, 40.0, 1e3, 0.0, 0.0, 1.0]
    dense[:, 5] = 0.1
    dense[:, 6] = 1e7 + rng.standard_normal(300)
    dense[17] = 0.0
    return sp.csr_array(dense), y


@pytest.fixture
def train_text(badly_scaled: Any, libsvm_file: Callable[..., Path]) -> Path:
    x, y = badly_scaled
    return libsvm_file(sp.csr_array(x[:, :6]), y, "train.libsvm")


@pytest.fixture
def test_text(tmp_path: Path) -> Path:
    """Other rows; the last ones have a feature that the training rows lack, and one beyond their width."""
    rng = np.random.default_rng(4)
    dense = rng.standard_normal((40, 6)) * [1e-3, 1.0, 40.0, 1e3, 0.0, 0.1]
    text = libsvm_text(sp.csr_array(dense), np.where(rng.random(40) < 0.5, 1.0, -1.0))
    path = tmp_path / "test.libsvm"
    path.write_text(text + "1 1:0.001 5:3 6:0.1\n-1 3:20 9:1000\n1\n")
    return path


def decisions(data: Any, model: Any, tmp_path: Path) -> np.ndarray:
    import pyarrow.parquet as pq

    streamcd.predict(data, model, tmp_path / "decisions.parquet", force=True)
    return pq.read_table(tmp_path / "decisions.parquet").column("decision").to_numpy()


# ---------------------------------------------------------------------------------------------------------------------
# What is stored


@pytest.mark.parametrize(("scale", "normalize"), SCALINGS)
def test_stored_values_are_those_that_scikit_learn_makes(
    scale: str, normalize: str, badly_scaled: Any, libsvm_file: Any, tmp_path: Path
) -> None:
    x, y = badly_scaled
    made = convert(libsvm_file(x, y), tmp_path / "d", dtype="float64", scale=scale, normalize=normalize)
    expected = scaled_by_scikit_learn(x, scale, normalize)
    np.testing.assert_allclose(made.to_scipy()[0].toarray(), expected, rtol=1e-8)
    assert made.verify() == []
    assert made.n_entries == x.nnz


@pytest.mark.parametrize("name", SMALL_PROBLEMS)
def test_small_problems_scaled_by_both(
    name: str, small_problem: Any, libsvm_file: Any, tmp_path: Path
) -> None:
    x, y = small_problem(name)
    made = convert(libsvm_file(x, y), tmp_path / "d", scale="standard", normalize="l2", n_features=x.shape[1])
    expected = scaled_by_scikit_learn(x, "standard", "l2")
    np.testing.assert_allclose(made.to_scipy()[0].toarray(), expected, rtol=1e-5, atol=1e-7)


def test_the_deviation_of_a_feature_far_from_zero_keeps_its_digits(tmp_path: Path) -> None:
    """From mean square less squared mean it would be 0 or noise: 1e18 has 16 digits, and the difference starts after 18."""
    value = 1e9 + np.random.default_rng(0).standard_normal(500)
    (tmp_path / "in").write_text("".join(f"1 1:{v!r}\n" for v in value.tolist()))
    made = convert(tmp_path / "in", tmp_path / "d", dtype="float64", scale="standard")
    scales = made.read_scaling().scales
    assert scales is not None
    assert scales[0] == pytest.approx(value.std(), rel=1e-6)


def test_largest_value_is_exactly_one_under_maxabs(
    badly_scaled: Any, libsvm_file: Any, tmp_path: Path
) -> None:
    made = convert(libsvm_file(*badly_scaled), tmp_path / "d", scale="maxabs")
    largest = np.abs(made.to_scipy()[0].toarray()).max(axis=0)
    assert largest.tolist() == [1, 1, 1, 1, 0, 1, 1]


def test_features_parquet_describes_what_is_stored(train_text: Path, tmp_path: Path) -> None:
    made = convert(train_text, tmp_path / "d", dtype="float64", scale="maxabs", normalize="l2")
    x = made.to_scipy()[0].toarray()
    (piece,) = made.read_features()
    np.testing.assert_allclose(piece["mean_square"], (x**2).mean(axis=0)[piece["feature"]], rtol=1e-12)
    np.testing.assert_array_equal(piece["max"], x.max(axis=0)[piece["feature"]])


def test_norms_of_rows_are_in_every_manifest(badly_scaled: Any, libsvm_file: Any, tmp_path: Path) -> None:
    x, y = badly_scaled
    found = convert(libsvm_file(x, y), tmp_path / "d", dtype="float64").manifest["row_norms"]
    norms = np.sqrt((x.toarray() ** 2).sum(axis=1))
    expected = [norms[norms > 0].min(), norms.max(), (norms**2).mean()]
    np.testing.assert_allclose([found["min"], found["max"], found["mean_square"]], expected, rtol=1e-12)
    assert found["n_empty"] == 1


def test_rows_whose_squares_leave_float64_get_unit_norm(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("1 1:3e200 2:4e200\n1 1:3e-200 2:4e-200\n-1\n")
    raw = convert(tmp_path / "in", tmp_path / "raw", dtype="float64")
    assert raw.manifest["row_norms"]["max"] == pytest.approx(5e200)
    assert raw.manifest["row_norms"]["mean_square"] is None
    made = convert(tmp_path / "in", tmp_path / "d", dtype="float64", normalize="l2")
    np.testing.assert_allclose(made.to_scipy()[0].toarray(), [[0.6, 0.8], [0.6, 0.8], [0, 0]], rtol=1e-15)


def test_compact_numbers_features_and_scales_them(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("1 7:2 1000000000000:-8\n-1 7:4\n")
    made = convert(tmp_path / "in", tmp_path / "d", compact=True, scale="maxabs")
    assert made.to_scipy()[0].toarray().tolist() == [[0.5, -1], [1, 0]]
    assert made.verify() == []


@pytest.mark.parametrize(("scale", "normalize"), SCALINGS)
def test_the_fingerprint_does_not_depend_on_memory(
    scale: str, normalize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamcd.cli.synthetic import write_text_like

    write_text_like(tmp_path / "in", n_rows=400, n_features=300, entries_per_row=20, seed=1)
    fingerprints = set()
    for sort_bytes, statistics_bytes in ((1 << 22, 1 << 20), (16_000, 1 << 20), (16_000, 4_000)):
        plan = Plan(4096, 1 << 20, sort_bytes, statistics_bytes, 1 << 20)
        monkeypatch.setattr(
            sys.modules["streamcd.conversion.convert"], "make_plan", lambda *_, plan=plan: plan
        )
        made = convert(
            tmp_path / "in", tmp_path / "d", scale=scale, normalize=normalize, chunk_size=8_000, force=True
        )
        fingerprints.add(made.fingerprint)
        assert made.n_chunks > 5
    assert len(fingerprints) == 1
    assert not list(tmp_path.glob(".d.partial"))


def test_scales_that_do_not_fit_are_refused_with_the_arithmetic(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("1 1:1 1000000000:2\n")
    with pytest.raises(UsageError, match=r"1,000,000,000 features need 8 GB.*give about 24\.\d GB"):
        convert(tmp_path / "in", tmp_path / "d", scale="maxabs", memory="400MB")
    assert convert(tmp_path / "in", tmp_path / "d", normalize="l2", memory="400MB").n_rows == 1


def test_damaged_scales_are_named(train_text: Path, tmp_path: Path) -> None:
    made = convert(train_text, tmp_path / "d", scale="maxabs")
    path = made.path / "scaling.parquet"
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    assert any("scaling.parquet" in problem for problem in made.verify())
    path.unlink()
    with pytest.raises(DatasetError, match=r"scaling\.parquet: the file is missing"):
        open_dataset(made.path)


# ---------------------------------------------------------------------------------------------------------------------
# What the model carries


@pytest.mark.parametrize(("scale", "normalize"), SCALINGS)
def test_raw_text_is_predicted_as_the_scaled_dataset(
    scale: str, normalize: str, train_text: Path, test_text: Path, tmp_path: Path
) -> None:
    """To the last bit: text through the model, an unscaled dataset, and datasets scaled like the model or its data."""
    made = convert(train_text, tmp_path / "d", dtype="float64", scale=scale, normalize=normalize)
    result = streamcd.train(made, tmp_path / "run", bias=1.0, memory="400MB")
    from_text = decisions(test_text, result.model, tmp_path)
    n_features = made.n_features
    wide = convert(test_text, tmp_path / "wide", dtype="float64", index_base=1)
    assert wide.n_features > n_features
    np.testing.assert_array_equal(decisions(wide, result.model, tmp_path), from_text)
    for number, like in enumerate((made.path, tmp_path / "run")):
        scaled = convert(test_text, tmp_path / f"like{number}", dtype="float64", like=like)
        assert scaled.scaling == made.scaling
        np.testing.assert_array_equal(decisions(scaled, result.model, tmp_path), from_text)
    again = decisions(train_text, result.model, tmp_path)
    np.testing.assert_array_equal(decisions(made, result.model, tmp_path), again)
    assert streamcd.evaluate(train_text, result.model)["primal_objective"] == pytest.approx(
        result.primal_objective, rel=1e-9
    )


def test_every_model_of_a_path_and_of_a_search_carries_the_scaling(train_text: Path, tmp_path: Path) -> None:
    made = convert(train_text, tmp_path / "d", scale="maxabs", normalize="l2")
    streamcd.train(made, tmp_path / "path", C=[0.1, 1.0], memory="400MB")
    streamcd.tune(made, tmp_path / "search", C=[0.1, 1.0], cv=2, memory="400MB")
    models = [streamcd.load_model(tmp_path / "path", C=C) for C in (0.1, 1.0)]
    for model in [*models, streamcd.load_model(tmp_path / "search")]:
        assert model.scaling == made.scaling
        assert model.scaling.scales is not None


def test_a_dataset_with_another_scaling_is_refused_with_the_reason(
    train_text: Path, test_text: Path, tmp_path: Path
) -> None:
    made = convert(train_text, tmp_path / "d", scale="maxabs")
    plain = convert(train_text, tmp_path / "plain")
    other = convert(test_text, tmp_path / "other", scale="maxabs")
    unit = convert(train_text, tmp_path / "unit", normalize="l2")
    model = streamcd.train(made, tmp_path / "run", memory="400MB").model
    unscaled_model = streamcd.train(plain, tmp_path / "plain-run", memory="400MB", max_passes=3).model
    for dataset, by, reason in (
        (other, model, "by other scales; convert it with like MODEL"),
        (unit, model, 'converted with normalize="l2", the model was trained on data with scale="maxabs"'),
        (made, unscaled_model, "the model was trained on data with no scaling"),
    ):
        with pytest.raises(ModelError, match=reason):
            streamcd.evaluate(dataset, by)


def test_options_that_make_no_sense_are_refused(train_text: Path, tmp_path: Path) -> None:
    made = convert(train_text, tmp_path / "d", normalize="l2")
    with pytest.raises(UsageError, match=r"scale and like exclude each other.*normalize=\"l2\""):
        convert(train_text, tmp_path / "e", like=made.path, scale="maxabs")
    with pytest.raises(UsageError, match="normalize: expected one of none, l2, found 'l1'"):
        convert(train_text, tmp_path / "e", normalize="l1")
    with pytest.raises(UsageError, match="scale: expected one of none, maxabs, standard, found 'minmax'"):
        convert(train_text, tmp_path / "e", scale="minmax")


def test_changed_scales_of_a_model_are_named(train_text: Path, tmp_path: Path) -> None:
    made = convert(train_text, tmp_path / "d", scale="maxabs")
    streamcd.train(made, tmp_path / "run", memory="400MB")
    path = tmp_path / "run" / "model" / "scaling.npy"
    np.save(path, 2 * np.load(path))
    with pytest.raises(ModelError, match=r"scaling\.npy: checksum differs"):
        streamcd.load_model(tmp_path / "run")
    path.unlink()
    with pytest.raises(ModelError, match=r"scaling\.npy: the file is missing"):
        streamcd.load_model(tmp_path / "run")


def test_a_model_saved_over_a_scaled_one_keeps_nothing_of_it(train_text: Path, tmp_path: Path) -> None:
    made = convert(train_text, tmp_path / "d", scale="maxabs")
    plain = convert(train_text, tmp_path / "plain")
    streamcd.train(made, tmp_path / "run", memory="400MB").model.save(tmp_path / "model")
    streamcd.train(plain, tmp_path / "other", memory="400MB", max_passes=2).model.save(tmp_path / "model")
    assert not streamcd.load_model(tmp_path / "model").scaling.changes_values
    names = ["deviations.npy", "model.json", "weights.npy"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == names


# ---------------------------------------------------------------------------------------------------------------------
# Export


@pytest.mark.parametrize("scale", ["maxabs", "standard"])
def test_liblinear_text_has_the_scales_in_its_weights(
    scale: str, train_text: Path, test_text: Path, tmp_path: Path
) -> None:
    made = convert(train_text, tmp_path / "d", scale=scale)
    model = streamcd.train(made, tmp_path / "run", bias=1.0, memory="400MB").model
    streamcd.export(model, tmp_path / "text")
    exported = command_line.imported(tmp_path / "text")
    assert not exported.scaling.changes_values
    expected = decisions(test_text, model, tmp_path)
    np.testing.assert_allclose(decisions(test_text, exported, tmp_path), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", ["hinge", "crammer_singer"])
def test_liblinear_text_of_unit_rows_predicts_the_same_labels_without_a_bias(
    loss: str, train_text: Path, test_text: Path, tmp_path: Path
) -> None:
    made = convert(train_text, tmp_path / "d", scale="maxabs", normalize="l2")
    model = streamcd.train(made, tmp_path / "run", loss=loss, memory="400MB").model
    heard = Heard()
    streamcd.export(model, tmp_path / "text", listener=heard)
    assert "predicts the same labels" in heard.warnings[0]
    labels = []
    for found in (model, command_line.imported(tmp_path / "text")):
        labels.append(io.StringIO())
        streamcd.predict(test_text, found, labels[-1])
    assert labels[0].getvalue() == labels[1].getvalue()
    biased = streamcd.train(made, tmp_path / "biased", loss=loss, bias=1.0, memory="400MB").model
    with pytest.raises(ModelError, match='of another norm than those of normalize="l2"'):
        streamcd.export(biased, tmp_path / "biased-text")
    assert not (tmp_path / "biased-text").exists()


def test_libsvm_text_of_a_scaled_dataset_says_that_it_is_scaled(train_text: Path, tmp_path: Path) -> None:
    convert(train_text, tmp_path / "d", scale="maxabs")
    told = command_line.run("export", tmp_path / "d", tmp_path / "out").stderr
    assert "warning: values are written as they are stored, after --scale maxabs" in told


# ---------------------------------------------------------------------------------------------------------------------
# Training


def test_a_training_that_does_not_converge_says_what_is_badly_scaled(
    train_text: Path, tmp_path: Path
) -> None:
    heard = Heard()
    made = convert(train_text, tmp_path / "d")
    result = streamcd.train(made, tmp_path / "run", method="dual", max_passes=3, memory="4GB", listener=heard)
    assert not result.converged
    features, rows = heard.warnings
    rms = feature_rms(made)
    assert rms is not None
    ends = " to ".join(f"{rms[end]:.3g} of {rms[f'of_{end}']}" for end in ("min", "max"))  # type: ignore[literal-required]
    assert f"(root mean squares from {ends}), which takes many passes" in features
    assert 'converting with scale="maxabs"' in features
    assert "rows are badly scaled" in rows
    assert 'normalize="l2"' in rows


def test_a_column_of_times_is_named_and_the_way_on_is_to_scale_it(tmp_path: Path) -> None:
    """Seconds since the first time count up to 1e8; after 1,000 passes the advice was to resume."""
    hours = np.datetime64("2020-01-01T00", "s") + 3600 * np.arange(400)
    lines = [f"{hour},{number % 7},{'yes' if number % 7 > 2 else 'no'}" for number, hour in enumerate(hours)]
    (tmp_path / "t.csv").write_text("\n".join(["when,age,bought", *lines, ""]))
    options = "--label", "bought"
    made = command_line.run_json("convert", tmp_path / "t.csv", tmp_path / "raw", *options)
    assert made["advice"] == []  # nothing is to be done
    chosen = command_line.run("train", tmp_path / "raw", tmp_path / "default").stderr
    assert f"method {made['method']}: {made['method_because']}" in chosen
    assert made["method"] == "newton"  # scales do not slow it down
    done = command_line.run(
        "train", tmp_path / "raw", tmp_path / "run", "--loss", "hinge", "--max-passes", "50"
    )
    said = "of 'when'), which takes many passes by all methods but newton; try converting with --scale maxabs"
    last = [line for line in done.stderr.splitlines() if "not converged after 50 passes" in line]
    assert ", which more passes change slowly; features are badly scaled" in last[0]
    assert last[0].endswith(said)
    assert "resume" not in done.stderr
    searched = "tune", tmp_path / "raw", tmp_path / "tuned", "-C", "1,10"
    tuned = command_line.run(*searched, "--loss", "hinge", "--max-passes", "50")
    (of_folds,) = [line for line in tuned.stderr.splitlines() if "models of folds are not converged" in line]
    assert of_folds.endswith(said)
    assert "larger --max-passes" not in tuned.stderr
    command_line.run("convert", tmp_path / "t.csv", tmp_path / "scaled", *options, "--scale", "maxabs")
    done = command_line.run(
        "train",
        tmp_path / "scaled",
        tmp_path / "short",
        "--loss",
        "hinge",
        "--max-passes",
        "2",
        "--tol",
        "1e-9",
    )
    assert "resume" in done.stderr
    assert command_line.run_json("info", tmp_path / "short")["next"].startswith("streamcd resume")


def test_a_search_over_unscaled_columns_takes_the_method_that_training_takes(tmp_path: Path) -> None:
    """By dual every fold of a table with times made 1,000 passes, to an area of 0.51 for 0.96."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    y = np.where(x @ [1.0, -1.0, 0.5] > 0, 1, -1)
    long = streamcd.convert((x * [1e7, 1.0, 1.0], y), tmp_path / "long")
    heard = Heard()
    found = streamcd.tune(
        long, tmp_path / "run", C=[0.1, 1.0], cv=3, scoring="auc", max_passes=50, listener=heard
    )
    assert found.converged
    assert found.folds["converged"]
    assert found.scores["1"]["mean"] > 0.99
    assert any(line.startswith("method newton: C times the rows' squared length") for line in heard.messages)
    short = streamcd.convert((x, y), tmp_path / "short")
    heard = Heard()
    assert streamcd.tune(short, tmp_path / "other", C=[0.1, 1.0], cv=3, listener=heard).converged
    assert any(line.startswith("method dual; bias 1") for line in heard.messages)


def test_newton_is_not_told_of_scales_which_do_not_slow_it_down(train_text: Path, tmp_path: Path) -> None:
    made = convert(train_text, tmp_path / "d")
    assert advice(made)
    assert advice(made, method="newton") == []


def test_a_training_that_converges_says_nothing(train_text: Path, tmp_path: Path) -> None:
    heard = Heard()
    made = convert(train_text, tmp_path / "d", scale="maxabs")
    assert streamcd.train(made, tmp_path / "run", memory="4GB", listener=heard).converged
    assert heard.warnings == []
    assert advice(made) == []


def test_newton_needs_no_step_of_a_certain_size(tmp_path: Path) -> None:
    x, y = np.ones((5, 1)), np.arange(5.0)
    made = streamcd.convert((x, 1e-30 * y), tmp_path / "tiny", target=True)
    result = streamcd.train(made, tmp_path / "run", loss="squared_error", method="newton", tol=1e-9)
    assert result.converged


def test_unit_rows_are_not_told_to_become_so(train_text: Path, tmp_path: Path) -> None:
    made = convert(train_text, tmp_path / "d", scale="maxabs", normalize="l2")
    (line,) = advice(made, C=1000.0)
    assert "--normalize" not in line
    assert "a smaller C" in line
