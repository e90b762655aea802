"""History of a run: its log as records."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_datasets import random_rows, write_dataset

from streamcd import train, tune
from streamcd.core.errors import CheckpointError
from streamcd.training.history import read_history


@pytest.fixture
def run(tmp_path: Path) -> Path:
    train(write_dataset(tmp_path / "data", random_rows(60, 8, seed=1)), tmp_path / "run", max_passes=30)
    return tmp_path / "run"


def test_records_tell_of_every_read_and_of_the_time_until_it_ended(run: Path) -> None:
    records = read_history(run)[""]
    assert [record["read"] for record in records] == list(range(len(records)))
    assert records[-1]["kind"] == "certify"
    assert records[-1]["elapsed"] == pytest.approx(sum(record["seconds"]["total"] for record in records))


def test_a_search_tells_of_its_folds_before_the_best(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(60, 8, seed=1))
    tune(data, tmp_path / "run", C=[0.1, 1.0], cv=2, max_passes=30)
    assert list(read_history(tmp_path / "run")) == ["folds", "best"]


def test_a_half_written_line_is_left_out_and_a_damaged_one_named(run: Path) -> None:
    whole = (run / "log.jsonl").read_bytes()
    n_records = len(read_history(run)[""])
    (run / "log.jsonl").write_bytes(whole[:-5])
    assert len(read_history(run)[""]) == n_records - 1
    (run / "log.jsonl").write_bytes(b"{]\n" + whole)
    with pytest.raises(CheckpointError, match=r"log\.jsonl: line 1 is damaged"):
        read_history(run)
