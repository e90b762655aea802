"""Datasets back to libsvm text: every digit, the order of the source, whatever the memory."""

from __future__ import annotations

import command_line
import numpy as np
import pytest
from conftest import libsvm_text

from streamcd import convert
from streamcd.core.files import scratch_directory


@pytest.mark.parametrize("name", ["random", "empty_row", "duplicate_rows", "unscaled", "multiclass"])
@pytest.mark.parametrize("index_base", [0, 1])
def test_text_comes_back_as_it_was(small_problem, tmp_path, name, index_base):
    text = libsvm_text(*small_problem(name), index_base=index_base)
    (tmp_path / "in").write_text(text)
    data = convert(
        tmp_path / "in", tmp_path / "data", dtype="float64", index_base=index_base, chunk_size=300, seed=3
    )
    written = command_line.run_json("export", data.path, tmp_path / "out")
    assert written["bytes"] == (tmp_path / "out").stat().st_size
    assert parsed((tmp_path / "out").read_text()) == parsed(text)


def parsed(text: str) -> list[list[float]]:
    """Every line's numbers, exactly."""
    return [[float(number) for number in line.replace(":", " ").split()] for line in text.splitlines()]


def test_float32_values_have_the_digits_they_need(tmp_path):
    (tmp_path / "in").write_text("1 1:0.1 2:3\n-1 1:1e-30 7:16777216\n")
    command_line.run_json("export", convert(tmp_path / "in", tmp_path / "data").path, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "1 1:0.1 2:3\n-1 1:1e-30 7:16777216\n"


def test_a_compacted_dataset_gives_its_original_indices(tmp_path):
    text = f"1 5:1 {2**50}:2\n-1 5:3 70000:4\n"
    (tmp_path / "in").write_text(text)
    convert(tmp_path / "in", tmp_path / "data", compact=True)
    command_line.run_json("export", tmp_path / "data", tmp_path / "out")
    assert (tmp_path / "out").read_text() == text


def test_weights_that_are_left_out_are_said(small_problem, made_dataset, tmp_path):
    x, y = small_problem("random")
    data = made_dataset(x, y, weight=np.full(y.size, 2.0))
    assert "weights are left out" in command_line.run("export", data.path, tmp_path / "out").stderr


def test_what_a_killed_call_left_is_removed_by_the_next_but_not_what_another_works_in(tmp_path):
    killed = tmp_path / ".streamcd-export-killed"
    killed.mkdir()
    (killed / "run.partial").write_bytes(b"lines")
    (tmp_path / ".streamcd-export-link").symlink_to(tmp_path)
    with scratch_directory(tmp_path, "export") as first, scratch_directory(tmp_path, "export") as second:
        assert first.is_dir()
        assert second.is_dir()
        assert not killed.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".streamcd-export-link"]
