"""A run trusts no files but its own: its identity in all of them, links, archives that inflate, first moments, verify."""

from __future__ import annotations

import io
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from small_datasets import random_rows, windows_of, write_dataset

import streamcd
from streamcd import Dataset
from streamcd.core.errors import CheckpointError
from streamcd.core.memory_budget import RESERVED_BYTES
from tools.simulated_cluster import Simulation


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path / "data", random_rows(200, 12, seed=21), n_chunks=6, n_shards=2)


def train(dataset: Dataset, run: Path, **options: Any) -> Path:
    streamcd.train(dataset, run, **{"tol": 1e-12, "max_passes": 3} | options)
    return run


KINDS: dict[str, Callable[[Dataset], dict[str, Any]]] = {
    "resident": lambda dataset: {},
    "streamed": lambda dataset: {"plan": windows_of(dataset, 2)},
    "rounds": lambda dataset: {"client": Simulation(2), "memory": "1GB"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["state.npz", "config.json", "log.jsonl", "dual"])
def test_files_of_another_run_of_the_same_shape_are_refused_by_name(
    dataset: Dataset, tmp_path: Path, name: str, kind: str
) -> None:
    """They were used in silence."""
    options = KINDS[kind](dataset)
    client = {"client": options["client"]} if "client" in options else {}
    mine, other = (train(dataset, tmp_path / run, **options) for run in ("mine", "other"))
    if name == "dual":
        inside = sorted((mine / "dual").rglob("part-*"))
        for path, source in zip(inside, sorted((other / "dual").rglob("part-*")), strict=True):
            shutil.copy(source, path)
    else:
        shutil.copy(other / name, mine / name)
    with pytest.raises(CheckpointError, match="state.npz: of another" if name == "config.json" else name):
        streamcd.resume(mine, max_passes=6, **client)
    if name != "log.jsonl" or kind == "resident":
        problems = command_line.problems(mine)
        assert problems
        assert all(("state.npz" if name == "config.json" else name) in problem for problem in problems)
    assert not command_line.problems(other)


@pytest.mark.parametrize("often", ["neither", "mine", "other", "both"])
def test_slots_of_another_run_are_refused_by_name(dataset: Dataset, tmp_path: Path, often: str) -> None:
    """They were called damaged where one of the runs, on a busy machine, had made a checkpoint more than the other."""
    mine, other = (
        train(
            dataset,
            tmp_path / run,
            plan=windows_of(dataset, 2),
            checkpoint_every=1e-9 if often in (run, "both") else 60.0,
        )
        for run in ("mine", "other")
    )
    assert not command_line.problems(mine)
    shutil.rmtree(mine / "dual")
    shutil.copytree(other / "dual", mine / "dual")
    assert all("of another run" in problem for problem in command_line.problems(mine))
    assert command_line.problems(mine)
    with pytest.raises(CheckpointError, match=r"dual.*of another run"):
        streamcd.resume(mine, max_passes=6)


def test_a_warm_start_refuses_slots_of_another_run(dataset: Dataset, tmp_path: Path) -> None:
    mine, other = (train(dataset, tmp_path / run) for run in ("mine", "other"))
    shutil.rmtree(mine / "dual")
    shutil.copytree(other / "dual", mine / "dual")
    with pytest.raises(CheckpointError, match=r"dual.*of another run"):
        streamcd.train(dataset, tmp_path / "next", C=2.0, start_from=mine)


@pytest.mark.parametrize("name", ["dual", "model", "log.jsonl", "state.npz", "dual/part-00000.bin"])
@pytest.mark.parametrize("force", [False, True])
def test_nothing_is_written_through_a_symbolic_link_in_a_run(
    dataset: Dataset, tmp_path: Path, name: str, force: bool
) -> None:
    """The directory or file that it points to was written, or emptied."""
    run = train(dataset, tmp_path / "run")
    outside = tmp_path / "outside"
    shutil.move(run / name, outside)
    (run / name).symlink_to(outside)
    before = {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
    if force:
        streamcd.train(dataset, run, max_passes=2, force=True)
    else:
        with pytest.raises(CheckpointError, match=rf"{name} is a symbolic link"):
            streamcd.resume(run, max_passes=9)
    assert {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()} == before


def inflating(arrays: dict[str, np.ndarray], path: Path) -> None:
    """4.1 GB of zeros in 4 MB were inflated into memory."""
    np.savez_compressed(path, **{**arrays, "w": np.zeros((10_000_000, 1))})


def too_large(arrays: dict[str, np.ndarray], path: Path) -> None:
    np.savez(path, **{**arrays, "row_more": np.zeros(1_000_000)})


def claiming_more(arrays: dict[str, np.ndarray], path: Path) -> None:
    """A header says more than the file holds."""
    header = io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (2**50, 1)}
    np.lib.format.write_array_header_1_0(header, shape)
    np.savez(path, **{name: array for name, array in arrays.items() if name != "w"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("w.npy", header.getvalue())


@pytest.mark.parametrize(
    ("craft", "message"),
    [(inflating, r"\(compressed"), (too_large, ".* at most"), (claiming_more, "")],
    ids=["inflates", "too large", "claims more"],
)
def test_a_state_of_another_size_than_the_runs_is_refused_unread(
    dataset: Dataset, tmp_path: Path, craft: Callable[..., None], message: str
) -> None:
    run = train(dataset, tmp_path / "run")
    with np.load(run / "state.npz") as state:
        arrays = dict(state)
    craft(arrays, run / "state.npz")
    with pytest.raises(CheckpointError, match=rf"state\.npz: damaged {message}"):
        streamcd.resume(run, max_passes=9)


@pytest.mark.parametrize("leftover", [(), ("config.json.partial",)])
def test_a_run_whose_first_configuration_was_never_written_is_begun_anew(
    dataset: Dataset, tmp_path: Path, leftover: tuple[str, ...]
) -> None:
    """`resume` called it no run, `train` not empty, and `train --force` no run."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("lock", *leftover):
        (run / name).touch()
    with pytest.raises(CheckpointError, match=r"ended before its configuration.*streamcd\.train\("):
        streamcd.resume(run)
    train(dataset, run)
    assert not list(run.glob("*.partial"))


def test_a_run_is_replaced_whose_first_log_had_no_name_yet(dataset: Dataset, tmp_path: Path) -> None:
    """The log got its name while the run was emptied, and stayed: a state was missed that it tells of."""
    run = tmp_path / "run"
    for _ in range(2):
        train(dataset, run, max_passes=1, force=True)
        (run / "log.jsonl").rename(run / "log.jsonl.partial")
    assert not (run / "log.jsonl").exists()


def test_a_partial_state_of_a_killed_process_does_not_stay(dataset: Dataset, tmp_path: Path) -> None:
    run = train(dataset, tmp_path / "run", max_passes=100, tol=1e-1)
    (run / "state.npz.partial").write_bytes(b"half")
    streamcd.resume(run)
    assert not list(run.glob("*.partial"))


def test_verify_names_what_is_damaged_in_a_run(dataset: Dataset, tmp_path: Path) -> None:
    run = train(dataset, tmp_path / "run")
    assert command_line.problems(run) == []
    for name in ("state.npz", "config.json", "log.jsonl", "model/weights.npy"):
        path = run / name
        whole = path.read_bytes()
        at = 170 if name == "state.npz" else len(whole) // 2  # in w; elsewhere are bytes that nobody reads
        if name == "log.jsonl":  # a digit of a sound line
            at = re.search(rb"[.](\d)", whole).start(1)  # type: ignore[union-attr]
        changed = b"12"[whole[at] == ord("1") :][:1] if name == "log.jsonl" else b"\x00\x01"
        path.write_bytes(whole[:at] + changed + whole[at + len(changed) :])
        problems = command_line.problems(run)
        assert len(problems) == 1, name
        assert str(path) in problems[0]
        path.write_bytes(whole)
    state = (run / "state.npz").rename(tmp_path / "state.npz")
    assert [str(run / "state.npz") in problem for problem in command_line.problems(run)] == [True]
    state.rename(run / "state.npz")
    content = {path: path.read_bytes() for path in (run / "dual").iterdir()}
    for path, whole in content.items():
        path.write_bytes(bytes(len(whole)))
        assert all(str(path) in problem for problem in command_line.problems(run))
        assert command_line.problems(run)
        path.unlink()
        assert all(str(path) in problem for problem in command_line.problems(run))
        assert not path.exists()
        path.write_bytes(whole)
    assert command_line.problems(run) == []


def test_verify_takes_searches_and_groups(dataset: Dataset, tmp_path: Path) -> None:
    streamcd.tune(dataset, tmp_path / "run", C=[0.1, 1.0], cv=2)
    assert command_line.problems(tmp_path / "run") == []
    shutil.copy(tmp_path / "run" / "best" / "state.npz", tmp_path / "run" / "folds" / "state.npz")
    assert any(
        "folds/state.npz: of another run" in problem for problem in command_line.problems(tmp_path / "run")
    )


def test_verify_of_what_is_no_run_is_refused(tmp_path: Path) -> None:
    refused = command_line.run("verify", tmp_path)
    assert (refused.returncode, str(tmp_path) in refused.stderr) == (2, True)


def test_verify_of_a_run_keeps_to_the_memory_and_advises_by_kind(dataset: Dataset, tmp_path: Path) -> None:
    run, data = tmp_path / "run", Path(dataset.path)
    streamcd.train(dataset, run, max_passes=2)
    least = command_line.run("verify", run, "--memory", RESERVED_BYTES).stderr
    assert re.search(r"the largest part of the dual variables = .* needed", least)
    assert command_line.run("verify", run, "--memory", "400MB").returncode == 0
    refused = command_line.run("verify", run, "--memory", "210MB")
    assert (refused.returncode, "--memory 210 MB is too small" in refused.stderr) == (2, True)
    assert command_line.run("verify", run, "--workers", "0").returncode == 2
    for file, place, advice, other in [
        (run / "log.jsonl", run, "train again", "column"),
        (run / "model" / "weights.npy", run / "model", "import", "column"),
        (next(data.glob("rows/*.parquet")), data, "convert the data again", "train"),
    ]:
        file.write_bytes(b"x" * file.stat().st_size)
        found = command_line.run("verify", place)
        assert found.returncode == 2
        closing = found.stderr.splitlines()[-1]
        assert "restore the files named above from a copy" in closing
        assert advice in closing
        assert other not in closing
