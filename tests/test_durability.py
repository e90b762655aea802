"""What is complete is on the disk: files before their names, names before what describes them, all of it at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command_line
import numpy as np
import pytest
from durability import needless, problems, recorded
from small_datasets import multiclass, random_rows, windows_of, write_dataset

import streamcd
from streamcd.conversion import transpose
from streamcd.core.errors import CheckpointError
from streamcd.core.files import kept_by_copies, release_lock, take_lock
from streamcd.stream.slot_store import Identity, SlotStore
from streamcd.training.checkpoint import Run
from tools.faults.disk import Disk
from tools.faults.recording import tree_of
from tools.simulated_cluster import Simulation

pytestmark = pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")


def libsvm(path: Path, n_rows: int = 60) -> Path:
    rng = np.random.default_rng(5)
    lines = [
        f"{rng.choice((-1, 1))} " + " ".join(f"{k}:{rng.normal():.4g}" for k in range(1, 9))
        for _ in range(n_rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def table(path: Path) -> Path:
    rng = np.random.default_rng(6)
    towns = ("Oslo", "Rome", "Turin")
    lines = [f"{rng.normal():.4g},{rng.choice(towns)},{rng.choice(('dear', 'cheap'))}" for _ in range(40)]
    path.write_text("price,town,kind\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, a table, data with columns and without, and runs on them."""
    place = tmp_path_factory.mktemp("made")
    libsvm(place / "text")
    table(place / "table.csv")
    streamcd.convert(place / "table.csv", place / "tabled", label="kind")
    rows = write_dataset(place / "data", random_rows(90, 8, seed=3), n_chunks=6, n_shards=3)
    shutil.copytree(rows.path, place / "bare")
    transpose.make_columns(rows, chunk_size=200, shard_size=1500)
    write_dataset(place / "classes", multiclass(), n_chunks=4)
    streamcd.train(rows, place / "done", tol=1e-2)
    streamcd.train(place / "tabled", place / "tabled.done", tol=1e-2)
    streamcd.train(rows, place / "short", tol=1e-12, max_passes=2, plan=windows_of(rows, 2))
    command("export", place / "done", place / "model.txt")
    return place


def command(*line: object) -> None:
    done = command_line.run(*line)
    assert done.returncode == 0, done.stderr


def train(place: Path, data: str = "data", run: str = "out", **options: Any) -> None:
    streamcd.train(
        place / data, place / run, **{"tol": 1e-12, "max_passes": 3, "checkpoint_every": 1e-9} | options
    )


WRITERS: dict[str, Callable[[Path], object]] = {
    "convert": lambda place: streamcd.convert(
        place / "text", place / "out", shard_size="1kB", chunk_size="400B"
    ),
    "convert over another": lambda place: streamcd.convert(place / "text", place / "data", force=True),
    "convert scaled": lambda place: streamcd.convert(place / "text", place / "out", scale="standard"),
    "convert a table": lambda place: streamcd.convert(place / "table.csv", place / "out", label="kind"),
    "merge": lambda place: streamcd.merge([place / "tabled", place / "tabled"], place / "out"),
    "columns": lambda place: streamcd.make_columns(place / "bare", chunk_size=200, shard_size=1500),
    "train": train,
    "train over another": lambda place: train(place, run="done", force=True),
    "train streamed": lambda place: train(place, plan=windows_of(streamcd.open(place / "data"), 2)),
    "train by columns": lambda place: train(place, method="primal", plan=transposed_plan()),
    "train a path": lambda place: train(place, C=[0.1, 1.0], loss="log_loss"),
    "train in rounds": lambda place: train(place, client=Simulation(2), memory="1GB"),
    "train in rounds from another": lambda place: train(
        place, client=Simulation(2), memory="1GB", start_from=place / "short", C=2.0
    ),
    "train from another": lambda place: train(place, start_from=place / "short", C=2.0),
    "resume": lambda place: streamcd.resume(place / "short", max_passes=5, checkpoint_every=1e-9),
    "tune": lambda place: streamcd.tune(place / "data", place / "out", C=[0.1, 1.0], cv=2, max_passes=3),
    "predict": lambda place: streamcd.predict(place / "text", place / "done", place / "out.csv"),
    "predict to parquet": lambda place: streamcd.predict(
        place / "text", place / "done", place / "out.parquet"
    ),
    "export a model": lambda place: command("export", place / "done", place / "out"),
    "export a dataset": lambda place: command("export", place / "data", place / "out"),
    "import": lambda place: command("import", place / "model.txt", place / "out"),
    "a model over another": lambda place: streamcd.load_model(place / "done").save(
        place / "tabled.done" / "model"
    ),
    "a model with categories": lambda place: streamcd.load_model(place / "tabled.done").save(place / "out"),
}


def transposed_plan() -> Any:
    from streamcd.stream.memory_plan import Plan

    return Plan(400, 6, resident=False)


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(made, tmp_path / "place")
    return tmp_path / "place"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_power_cut_takes_nothing_that_has_its_name(
    place: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    monkeypatch.setattr(transpose, "_make_plan", lambda *_: transpose.Plan(1_000, 2_000, 200, 1500, "auto"))
    disk = Disk(tree_of(place))
    events = recorded(place, lambda: WRITERS[writer](place))
    assert any(event.kind in ("rename", "exchange") for event in events)
    assert problems(disk, events) == []


@pytest.mark.parametrize(
    "writer", [name for name in WRITERS if name != "convert a table" and name != "a model with categories"]
)
def test_nothing_is_synced_again_that_has_not_changed(place: Path, writer: str) -> None:
    """On 1.5 million features a quarter of a short training was its end."""
    assert needless(recorded(place, lambda: WRITERS[writer](place))) == []


# ---------------------------------------------------------------------------------------------------------------------
# Slots and locks


def two_chunks(folder: Path) -> SlotStore:
    """Slots of two chunks of four rows, 8 bytes each, in one file."""
    chunks = SimpleNamespace(
        n_chunks=2, n_shards=1, chunk_part=np.zeros(2, np.int32), row_start=np.arange(0, 12, 4)
    )
    return SlotStore(folder, chunks, 8)


def test_the_slot_of_the_last_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    """Whatever is saved after a checkpoint, and after a restart from one, its slots hold what they held."""
    saved = iter(np.random.default_rng(0).random((20, 4)))
    store = two_chunks(tmp_path / "dual")
    for _ in range(4):
        last = [next(saved), next(saved)]
        for chunk in (0, 1):
            store.save(chunk, [last[chunk]])
        checkpoint = store.current.copy()
        store.mark_durable()
        for values in (next(saved), next(saved)):
            store.save(0, [values])
        store = two_chunks(tmp_path / "dual")
        store.restore(checkpoint)
        for chunk in (0, 1):
            found = np.zeros(4)
            assert store.load(chunk, [found])
            assert found.tolist() == last[chunk].tolist()
        store.save(1, [next(saved)])
        store.restore(checkpoint)
        assert store.load(1, [found])
        assert found.tolist() == last[1].tolist()


def test_a_flipped_bit_in_a_slot_is_noticed(tmp_path: Path) -> None:
    """In its header or its body; the slot of the same chunk that is not in use may hold anything."""
    store = two_chunks(tmp_path)
    for values in (np.arange(4.0), -np.arange(4.0)):
        store.save(0, [values])
        store.mark_durable()
    (path,), size = tmp_path.iterdir(), 16 + 4 * 8
    whole = path.read_bytes()
    assert (store.current[0], len(whole)) == (1, 2 * size)
    for place in range(2 * size):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with contextlib.nullcontext() if place < size else pytest.raises(CheckpointError, match="damaged"):
            store.load(0, [np.zeros(4)])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("lock", lambda folder: Run(folder, Identity("ab" * 16))),
        ("part-00000.bin", lambda folder: two_chunks(folder).save(0, [np.zeros(4)])),
    ],
)
def test_files_that_are_opened_to_be_written_are_no_links(
    tmp_path: Path, name: str, write: Callable[[Path], object]
) -> None:
    """Also where the link was made after the directory had been searched for links."""
    (tmp_path / name).symlink_to(tmp_path / "of others")
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path)
    assert not (tmp_path / "of others").exists()


def test_a_forked_child_holds_no_lock_of_its_parent(tmp_path: Path) -> None:
    """It would keep the directory from the next call for as long as it lives."""
    lock = take_lock(tmp_path)
    assert lock is not None
    ready_out, ready_in = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready_in, b"x")
        signal.pause()
        os._exit(0)
    try:
        os.read(ready_out, 1)
        release_lock(lock)
        again = take_lock(tmp_path)
        assert again is not None
        release_lock(again)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("lives", [True, False])
def test_a_lock_that_workers_of_a_killed_process_hold_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    """A command that followed at once said that another one worked there; it does so still while the process lives."""
    (ready_out, ready_in), (end_out, end_in) = os.pipe(), os.pipe()
    taker = os.fork()
    if taker == 0:
        take_lock(tmp_path)
        with kept_by_copies():
            worker = os.fork()
        if worker == 0:
            os.close(end_in)
            os.write(ready_in, b"x")
            os.read(end_out, 1)
        elif lives:
            signal.pause()
        os._exit(0)
    os.read(ready_out, 1)
    if not lives:
        os.waitpid(taker, 0)
    waits = []
    monkeypatch.setattr(time, "sleep", lambda _: waits.append(end_in) or os.write(end_in, b"x"))
    found = take_lock(tmp_path)
    assert (found is None, bool(waits)) == (lives, not lives)
    if found is None:
        os.kill(taker, signal.SIGKILL)
        os.waitpid(taker, 0)
    else:
        release_lock(found)
    for descriptor in (ready_out, ready_in, end_out, end_in):
        os.close(descriptor)
