"""Metadata files: what is in them is as declared or refused in one line, and they appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from made_models import model_of
from small_datasets import random_rows, write_dataset

import streamcd
from streamcd import StreamcdError, load_model, make_columns
from streamcd import open as open_dataset
from streamcd.core.errors import CheckpointError, DatasetError, ModelError, in_words_of_caller
from streamcd.core.files import (
    SEAL,
    Kind,
    content_digest,
    exchange,
    put_directory,
    replacing,
)
from streamcd.dataset.schema import COLUMN_LAYOUT, ROW_LAYOUT
from streamcd.models.model import MODEL, stored_certificate
from streamcd.training import checkpoint


@dataclass
class Case:
    """A metadata file, what reads it, and the error that it raises."""

    path: Path
    kind: Kind[Any]
    read: Callable[[], object]
    error: type[StreamcdError]

    def write(self, without: str = "", **changes: Any) -> None:
        """Change keys, and leave one out, with a seal that is right."""
        content = json.loads(self.path.read_text()) | changes
        content.pop(without, None)
        content[SEAL] = content_digest(content)
        self.path.write_text(json.dumps(content))


@pytest.fixture(params=["dataset", "columns", "model", "run"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    if request.param == "model":
        model_of(np.ones((3, 1)), np.zeros(1), np.array([-1, 1]), np.array([[-1], [1]]), "hinge", 1.0).save(
            tmp_path
        )
        return Case(tmp_path / "model.json", MODEL, lambda: load_model(tmp_path), ModelError)
    if request.param == "run":
        with contextlib.closing(checkpoint.create_run(tmp_path / "run", force=False)) as run:
            run.write_config({"seed": 0})
        return Case(
            run.config_path, checkpoint.RUN, lambda: checkpoint.read_config(run.path), CheckpointError
        )
    dataset = write_dataset(tmp_path / "data", random_rows(60, 5), n_chunks=3)
    if request.param == "dataset":
        path = dataset.path / "manifest.json"
        return Case(path, ROW_LAYOUT, lambda: open_dataset(dataset.path), DatasetError)
    columns = make_columns(dataset)
    return Case(columns.path / "manifest.json", COLUMN_LAYOUT, dataset.open_columns, DatasetError)


def table(path: Path) -> Path:
    path.write_text("x,y\n1,no\n2,yes\n3,no\n")
    return path


def refusal(case: Case) -> str:
    with pytest.raises(case.error) as refused:
        case.read()
    message = str(refused.value)
    assert message.startswith(str(case.path))
    assert "\n" not in message
    return message


def test_keys_beyond_the_declared_ones_are_allowed(case: Case) -> None:
    case.write(of_a_later_version=[{"a": 1}])
    case.read()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"3", b"\xff\xfe", b'"text"', b"[" * 100_000, b'{"a":' * 100_000, b"[" * 99 + b"]" * 99],
)  # fmt: skip
def test_what_is_none_is_refused(case: Case, content: bytes) -> None:
    case.path.write_bytes(content)
    refusal(case)


@pytest.mark.parametrize("depth", [40, 500, 900])
def test_deep_nesting_is_read_or_refused_never_stumbled_over(case: Case, depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = [deep]
    case.write(deep=deep)
    with contextlib.suppress(case.error):
        case.read()


@pytest.mark.parametrize("value", [None, True, "x", -1, 1.5, [], {}, [[]], 2**70, float("nan")])
def test_a_key_of_another_type_is_read_or_refused_never_stumbled_over(case: Case, value: Any) -> None:
    original = case.path.read_bytes()
    if case.kind is checkpoint.RUN:
        return  # a mapping of anything
    for key in json.loads(original):
        case.path.write_bytes(original)
        case.write(**{key: value})
        with contextlib.suppress(case.error):
            case.read()


@pytest.mark.parametrize("value", ["\ud800", float("inf"), [float("nan"), float("inf")]])
def test_numbers_and_texts_that_are_none_are_refused_where_they_matter(case: Case, value: Any) -> None:
    """Half a surrogate pair in place of a number, a class that is not finite: both used to end in tracebacks."""
    if case.kind in (MODEL, ROW_LAYOUT):
        case.write(classes=value)
        assert "damaged" in refusal(case)


def test_a_model_with_a_class_twice_is_refused(case: Case) -> None:
    """`info` and `report` of one ended in tracebacks."""
    if case.kind is MODEL:
        case.write(classes=[0] * 100_000)
        assert "damaged (classes that do not ascend)" in refusal(case)


@pytest.mark.parametrize("change", [{"n_empty": None}, {"max": "x"}])
def test_row_norms_that_cannot_be_shown_are_refused(case: Case, change: dict[str, Any]) -> None:
    """`info` ended in a traceback."""
    if case.kind is ROW_LAYOUT:
        case.write(row_norms={"min": 1.0, "max": 2.0, "mean_square": 2.5, "n_empty": 0} | change)
        assert "damaged" in refusal(case)


def test_a_key_that_is_missing_is_named(case: Case) -> None:
    content = json.loads(case.path.read_text())
    for key in {"n_features", "fingerprint"} & content.keys():
        case.path.write_text(json.dumps(content))
        case.write(without=key)
        assert f"object missing required field `{key}`" in refusal(case)


def test_another_version_is_named(case: Case) -> None:
    assert json.loads(case.path.read_text())["streamcd"] == streamcd.__version__
    case.write(format_version=[7, "\n"], streamcd="0.0.1")
    told = refusal(case)
    assert f"expected format version {case.kind.version}" in told
    assert f"written by streamcd '0.0.1'; {in_words_of_caller(case.kind.remedy)}" in told


def test_a_damaged_model_has_no_certificate(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_bytes(b"[" * 100_000)
    assert stored_certificate(tmp_path) is None


# ---------------------------------------------------------------------------------------------------------------------
# Files that appear whole or not at all


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write(fail: bool) -> None:
        with replacing(path) as (partial,):
            partial.write_text("new")
            if fail:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        write(fail=True)
    assert path.read_text() == "old"
    write(fail=False)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_two_directories_change_places_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between two renames, there was no directory of that name."""
    path, new = tmp_path / "data", tmp_path / "new"
    for folder in (path, new):
        folder.mkdir()
        (folder / folder.name).touch()
    monkeypatch.delattr(os, "rename")
    with pytest.raises(AttributeError, match="rename"):
        put_directory(new, path, force=False)
    put_directory(new, path, force=True)
    assert (os.listdir(path), os.listdir(new), sorted(os.listdir(tmp_path))) == (
        ["new"],
        ["data"],
        ["data", "new"],
    )
    with pytest.raises(FileNotFoundError, match="nothing"):
        exchange(tmp_path / "nothing", path)


def test_a_column_layout_of_another_number_of_features_is_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows(60, 5), n_chunks=3)
    columns = make_columns(dataset)
    case = Case(columns.path / "manifest.json", COLUMN_LAYOUT, dataset.open_columns, DatasetError)
    for n_features in (columns.n_items - 1, columns.n_items + 1):
        case.write(n_features=n_features)
        assert f"n_features is {n_features}, the chunk table has {columns.n_items}" in refusal(case)


@pytest.mark.parametrize("classes", [[0, 2**63], [0, 2], [-1, 1], [0, 0.5]])
def test_classes_that_are_not_numbers_of_their_names_are_refused(
    tmp_path: Path, classes: list[float]
) -> None:
    dataset = streamcd.convert(table(tmp_path / "a.csv"), tmp_path / "data", label="y")
    case = Case(dataset.path / "manifest.json", ROW_LAYOUT, lambda: open_dataset(dataset.path), DatasetError)
    case.write(classes=classes)
    assert "are not numbers of the 2 `class_names`" in refusal(case)


@pytest.mark.parametrize("index_base", [-(2**70), -1, 2, 2**63])
def test_an_index_base_of_neither_0_nor_1_is_refused(case: Case, index_base: int) -> None:
    if case.kind in (ROW_LAYOUT, MODEL):
        case.write(index_base=index_base)
        assert "index_base" in refusal(case)


@pytest.mark.parametrize("key", ["n_rows", "n_entries"])
@pytest.mark.parametrize("number", [0, 1, 61, 2**62])
def test_other_numbers_of_rows_and_entries_than_the_chunks_have_are_refused(
    tmp_path: Path, key: str, number: int
) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows(60, 5), n_chunks=3)
    path = dataset.path / "manifest.json"
    case = Case(path, ROW_LAYOUT, lambda: open_dataset(dataset.path), DatasetError)
    case.write(**{key: number})
    assert f"{key} is {number}, the chunk table has {dataset.info()[key]}" in refusal(case)


def test_the_range_of_the_targets_may_be_written_as_integers(tmp_path: Path) -> None:
    """A large one ended the training in a traceback."""
    x = np.linspace(-1.0, 1.0, 9).reshape(-1, 1)
    dataset = streamcd.convert((x, x[:, 0]), tmp_path / "data", target=True)
    path = dataset.path / "manifest.json"
    Case(path, ROW_LAYOUT, lambda: None, DatasetError).write(targets={"min": -1, "max": 2**70})
    assert open_dataset(dataset.path).targets == {"min": -1.0, "max": 2.0**70}


@pytest.mark.parametrize("case", ["columns", "model"], indirect=True)
def test_info_refuses_metadata_that_is_damaged_and_sealed_again(case: Case) -> None:
    of_columns = case.error is DatasetError
    place = case.path.parent.parent if of_columns else case.path.parent
    command_line.run_json("info", place)
    wrong = {"parts": [{"entries": "../outside.parquet"}]} if of_columns else {"intercept": [0.0, 0.0]}
    case.write(**wrong)
    refused = command_line.run("info", place)
    assert (refused.returncode, str(case.path) in refused.stderr) == (2, True)
