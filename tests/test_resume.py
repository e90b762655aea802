"""A run survives kills, power cuts, full disks, signals and damage: it ends as if nothing had been, or names the damage."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
from crashing import killed
from durability import recorded
from interrupted import ended, resume_by_turns, stopping_after
from reference import augmented, exact_optimum, primal_objectives, run_weights
from small_datasets import (
    Rows,
    columns_of,
    label_sorted,
    multiclass,
    random_rows,
    unequal_columns,
    windows_of,
    write_dataset,
)

import streamcd
from streamcd import Dataset, load_model, resume, train
from streamcd.core.errors import CheckpointError, DatasetError, Interrupted, LockError, UsageError
from streamcd.stream.memory_plan import Plan
from streamcd.training import checkpoint
from streamcd.training.checkpoint import read_array_rows, read_arrays
from streamcd.training.checkpoint import read_config as read_raw_config
from tools.faults.disk import Disk
from tools.faults.recording import Event, make_tree


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Two classes, ten chunks, three shards."""
    return write_dataset(tmp_path / "data", random_rows(300, 12, seed=21), n_chunks=10, n_shards=3)


def options(loss: str = "squared_hinge", **changed: Any) -> dict[str, Any]:
    return {"loss": loss, "C": 0.5, "tol": 0.0, "max_passes": 12, "seed": 3} | changed


# ---------------------------------------------------------------------------------------------------------------------
# Kinds of trainings


def rows_apart() -> Rows:
    """Two classes of which few rows are near the plane, so that most shrink."""
    x, _ = random_rows(1000, 30, seed=3, density=0.6)
    return x, np.where(x @ np.linspace(-1, 1, 30) > 0, 1.0, -1.0)


LONG_COLUMN = Plan(60, 90, resident=False)
"""Of `unequal_columns`: the feature of all rows does not fit in a window."""


KINDS: dict[str, tuple[Callable[[], Rows], dict[str, Any]]] = {
    "squared hinge": (random_rows, {"loss": "squared_hinge"}),
    "squared hinge, plain": (random_rows, {"loss": "squared_hinge", "acceleration": "none"}),
    "hinge": (label_sorted, {"loss": "hinge"}),
    "hinge, plain": (label_sorted, {"loss": "hinge", "acceleration": "none"}),
    "hinge, rows shrink": (rows_apart, {"loss": "hinge", "C": 1.0, "max_passes": 20}),
    "hinge, free bias": (random_rows, {"loss": "hinge", "bias": 1.0, "unpenalized_bias": True}),
    "logistic, free bias": (multiclass, {"loss": "log_loss", "bias": 1.0, "unpenalized_bias": True}),
    "multinomial, free bias": (multiclass, {"loss": "multinomial", "bias": 1.0, "unpenalized_bias": True}),
    "logistic": (multiclass, {"loss": "log_loss"}),
    "logistic, plain": (multiclass, {"loss": "log_loss", "acceleration": "none"}),
    "Crammer-Singer": (multiclass, {"loss": "crammer_singer"}),
    "multinomial": (multiclass, {"loss": "multinomial"}),
    "twin": (multiclass, {"loss": "twin"}),
    "twin, sor": (multiclass, {"loss": "twin", "method": "sor", "bias": 1.0}),
    "twin, sor, from another": (multiclass, {"loss": "twin", "method": "sor", "start_from": "first"}),
    "omega by trial": (multiclass, {"omega": "auto", "acceleration": "none", "max_passes": 24}),
    "newton": (multiclass, {"method": "newton", "loss": "log_loss"}),
    "primal": (multiclass, {"method": "primal", "bias": 1.0}),
    "online": (multiclass, {"method": "online", "bias": 1.0, "loss": "log_loss"}),
    "primal, a long column": (unequal_columns, {"method": "primal", "bias": 1.0, "max_passes": 6}),
    "online, a long column": (unequal_columns, {"method": "online", "bias": 1.0, "max_passes": 6}),
    "online, a long column, from another": (
        unequal_columns,
        {"method": "online", "start_from": "first", "C": 2.0},
    ),
}


RESIDENT = (
    "squared hinge",
    "logistic, free bias",
    "Crammer-Singer",
    "twin, sor",
    "newton",
    "primal",
)
"""Kinds that are stopped with all rows in memory too, one of each way to visit them."""

COURSES = (
    "squared hinge",
    "hinge, rows shrink",
    "logistic, free bias",
    "Crammer-Singer",
    "twin, sor, from another",
    "omega by trial",
    "newton",
    "primal",
    "online, a long column, from another",
)
"""Kinds that go on from an end."""


def training(kind: str, folder: Path, *, resident: bool = False, **changed: Any) -> dict[str, Any]:
    """Arguments of a training of a kind, but for the run; small windows."""
    make, asked = KINDS[kind]
    by_columns = asked.get("method") in ("primal", "online")
    if by_columns:
        weight = np.linspace(0.1, 3.0, 120) if make is unequal_columns else None
        dataset = columns_of(folder / "data", make(), weight=weight)
        plan = LONG_COLUMN
        if make is not unequal_columns:
            plan = Plan(dataset.n_entries // 4, dataset.n_features, resident=resident)
    else:
        dataset = write_dataset(folder / "data", make(), n_chunks=12, n_shards=3)
        plan = windows_of(dataset, 3, resident=resident)
    asked = options(**{"max_passes": 9, **asked, **changed})
    if "start_from" in asked:
        asked["start_from"] = folder / "first"
        others = {name: asked[name] for name in ("loss", "method")}
        train(dataset, folder / "first", **others, max_passes=3, tol=0.0, plan=plan)
    return {"dataset": dataset, "plan": plan, **asked}


@pytest.mark.parametrize(
    ("kind", "resident"),
    [*((kind, False) for kind in KINDS), *((kind, True) for kind in RESIDENT)],
)
def test_stopped_anywhere_and_resumed_a_run_ends_with_the_same_bits(
    tmp_path: Path, kind: str, resident: bool
) -> None:
    """In the middle of reads, of certificates and of trials, and at their ends; no checkpoint but those at the stops."""
    tol = 0.1 if "primal" in kind or "online" in kind else 1e-4
    asked = training(kind, tmp_path, resident=resident, tol=tol)
    train(run=tmp_path / "whole", **asked)
    run = tmp_path / "run"
    with pytest.raises(Interrupted, match="resume") as stopped:
        train(run=run, stop_requested=stopping_after(2), **asked)
    assert stopped.value.exit_status == 143
    resume_by_turns(run, (0, 3, 1, 6, 13))
    assert ended(run) == ended(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")
@pytest.mark.parametrize("kind", COURSES)
def test_a_run_that_ended_at_its_passes_goes_on_to_the_optimum(tmp_path: Path, kind: str) -> None:
    """Its model is certified at every end."""
    asked = training(kind, tmp_path, tol=1e-3)
    asked.pop("max_passes")
    whole = train(run=tmp_path / "whole", max_passes=3000, **asked)
    run = tmp_path / "run"
    result = train(run=run, max_passes=1, **asked)
    for passes in (2, 3, 3000):
        before = ended(run)[0]
        assert resume(run).passes == result.passes
        assert ended(run)[0] == before
        result = resume(run, max_passes=passes)
    assert result.converged
    assert result.primal_objective == pytest.approx(whole.primal_objective, rel=1e-3)


ENDS = [
    ("squared hinge", False, 2, 12, "power"),
    ("omega by trial", False, 13, 4, "power"),
    ("primal, a long column", False, 3, 4, "power"),
    ("squared hinge", True, 2, 10, "half"),
    ("twin, sor", False, 13, 4, "half"),
    ("online, a long column", False, 3, 4, "half"),
]


@pytest.mark.parametrize(("kind", "resident", "n_passes", "n_ends", "how"), ENDS)
def test_death_at_any_operation_on_files_leaves_the_bits_alone(
    tmp_path: Path, kind: str, resident: bool, n_passes: int, n_ends: int, how: str
) -> None:
    """Killed half-way through writes, or without power: what was not synced is lost. It saves after every window."""
    asked = training(kind, tmp_path, resident=resident, max_passes=n_passes)
    train(run=tmp_path / "whole", **asked)
    expected, place = ended(tmp_path / "whole"), tmp_path / "place"
    place.mkdir()
    run, often = place / "run", {"checkpoint_every": 1e-9}
    events: list[Event] = []
    if how == "power":
        events = recorded(place, lambda: train(run=run, **often, **asked))
    n_operations = len(events) or killed(train, run=run, **often, **asked)
    assert n_operations is not None
    assert ended(run) == expected  # checkpoints do not change the bits either
    chosen = np.linspace(1, n_operations, n_ends).astype(int).tolist()
    model = range(n_operations - 8, n_operations + 1) if n_ends > 4 else ()
    for at in sorted({*chosen, *model}):
        shutil.rmtree(place)
        place.mkdir()
        if how == "power":
            disk = Disk({})
            for event in events[:at]:
                disk.apply(event)
            make_tree(place, disk.cut(random.Random(at), "lost", "lost"))
        else:
            assert killed(train, run=run, at=at, half=True, **often, **asked) is None
        if at > n_operations / 2:  # the work of the first half is safe
            assert (run / "state.npz").exists()
        if (run / "config.json").exists():
            resume(run)
        else:  # nothing was begun that could be resumed, and a new training may begin
            with pytest.raises(
                CheckpointError, match=r"no config\.json|before its configuration|does not exist"
            ):
                resume(run)
            train(run=run, force=True, **asked)
        assert ended(run) == expected, f"died at operation {at} of {n_operations}"


def test_a_kill_before_the_new_model_is_written_does_not_leave_the_old_one(
    dataset: Dataset, tmp_path: Path
) -> None:
    """A run ends at max_passes, goes on with more, and dies between its last checkpoint and its model."""
    plan, first, whole = windows_of(dataset, 3), tmp_path / "first", tmp_path / "whole"
    train(dataset, first, plan=plan, **options(max_passes=3))
    shutil.copytree(first, whole)
    n_operations = killed(resume, run=whole, max_passes=6)
    assert n_operations is not None
    for at in range(n_operations - 8, n_operations + 1):
        run = tmp_path / f"run{at}"
        shutil.copytree(first, run)
        assert killed(resume, run=run, at=at, max_passes=6) is None
        resume(run)
        assert ended(run) == ended(whole), f"died at operation {at} of {n_operations}"
        assert load_model(run).certificate == load_model(whole).certificate


# ---------------------------------------------------------------------------------------------------------------------
# Runs that have ended


def tree(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize("loss", ["squared_hinge", "crammer_singer"])
def test_a_finished_run_is_left_alone(dataset: Dataset, tmp_path: Path, loss: str) -> None:
    run = tmp_path / "run"
    result = train(dataset, run, plan=windows_of(dataset, 3), **options(loss, tol=1e-2, max_passes=500))
    assert result.converged
    before = tree(run)
    again = resume(run)
    assert tree(run) == before
    for key, value in result.to_json().items():
        if key not in (
            "seconds",
            "kernel_seconds",
            "bytes_read",
            "peak_memory_bytes",
        ):  # the reader may be ahead when a run ends
            assert again.to_json()[key] == value, key


def test_a_run_that_ended_goes_on_where_its_new_rule_asks_for_it(dataset: Dataset, tmp_path: Path) -> None:
    """A larger tolerance that the certificate meets was "not converged", one without passes left for it "converged"."""

    def end(result: streamcd.Result) -> tuple[bool, str, int]:
        return result.converged, result.stop_reason, result.passes

    run = tmp_path / "run"
    first = train(dataset, run, plan=windows_of(dataset, 3), **options(tol=1e-6, max_passes=3))
    assert end(first) == end(resume(run)) == (False, "max_passes", 3)
    for _ in range(2):
        assert end(resume(run, tol=2 * first.gap)) == (True, "gap", 3)
        assert end(resume(run, tol=1e-9)) == (False, "max_passes", 3)
    last = resume(run, tol=1e-6, max_passes=2000)
    assert end(last)[:2] == (True, "gap")
    assert last.gap <= 1e-6 < first.gap
    x, y = random_rows(300, 12, seed=21)
    best = exact_optimum("squared_hinge", augmented(x, -1), y, 0.5)[1]
    found = primal_objectives("squared_hinge", augmented(x, -1), y, run_weights(run), 0.5)
    np.testing.assert_allclose(found, best, rtol=2e-6)


def test_a_run_without_a_model_is_refused_with_the_command_that_writes_one(tmp_path: Path) -> None:
    """The pass begun is finished, and its gap certified, for every C."""
    data, run = write_dataset(tmp_path / "data", multiclass()), tmp_path / "run"
    with pytest.raises(Interrupted):
        train(data, run, C=[0.1, 1.0], tol=1e-12, bias=1.0, method="dual", stop_requested=stopping_after(12))
    passes = read_arrays(run / "state.npz", ("passes",))["passes"]
    for command in (
        ["evaluate", data.path, run],
        ["predict", data.path, run, "-o", tmp_path / "p.csv"],
        ["weights", run],
        ["export", run, tmp_path / "m.txt"],
    ):
        refused = command_line.run(*command, "-C", 1)
        assert refused.returncode == 2
        assert f"'streamcd resume {run} --max-passes 1' ends it with the pass begun" in refused.stderr
    ended = command_line.run_json("resume", run, "--max-passes", 1)
    assert not ended["converged"]
    assert np.isfinite(ended["gap"])
    assert passes.max() <= ended["passes"] <= passes.max() + 1
    assert command_line.run_json("evaluate", data.path, run, "-C", 1)["n_rows"] == data.n_rows


def test_a_run_on_workers_without_a_model_names_workers_too(dataset: Dataset, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(dataset, run, workers=2, memory="1GB", max_passes=2, tol=0.0)
    shutil.rmtree(run / "model")
    refused = command_line.run("evaluate", dataset.path, run)
    assert f"'streamcd resume {run} --workers N --max-passes 1' ends it" in refused.stderr
    command_line.run_json("resume", run, "--workers", 2, "--max-passes", 1)
    command_line.run_json("evaluate", dataset.path, run)


def test_training_into_an_unfinished_run_points_to_resume(dataset: Dataset, tmp_path: Path) -> None:
    run, plan = tmp_path / "run", windows_of(dataset, 3)
    with pytest.raises(Interrupted):
        train(dataset, run, plan=plan, stop_requested=stopping_after(1), **options())
    before = tree(run)
    with pytest.raises(CheckpointError, match=r"streamcd\.resume\("):
        train(dataset, run, plan=plan, **options())
    with pytest.raises(CheckpointError, match="force=True"):
        train(dataset, run, plan=plan, **options(C=2.0))
    assert tree(run) == before
    train(dataset, run, plan=plan, force=True, **options(C=2.0))
    train(dataset, tmp_path / "fresh", plan=plan, **options(C=2.0))
    assert ended(run) == ended(tmp_path / "fresh")


def test_a_directory_with_something_else_in_it_is_never_emptied(dataset: Dataset, tmp_path: Path) -> None:
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter1.txt").write_text("all my work")
    for force in (False, True):
        with pytest.raises((CheckpointError, UsageError), match="not empty"):
            train(dataset, precious, force=force, **options())
    assert (precious / "chapter1.txt").read_text() == "all my work"


# ---------------------------------------------------------------------------------------------------------------------
# Locks and changed data


def test_a_run_in_use_by_another_process_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(dataset, run, plan=windows_of(dataset, 3), **options())
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:  # holds the lock until it is killed
        lock = os.open(run / "lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(tell, b"x")
        signal.pause()
        os._exit(0)
    try:
        os.read(told, 1)
        before = tree(run)
        for attempt in (lambda: resume(run), lambda: train(dataset, run, force=True, **options())):
            with pytest.raises(LockError, match="another process"):
                attempt()
        assert tree(run) == before
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    resume(run)


def test_a_changed_dataset_is_refused_by_name(dataset: Dataset, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(dataset, run, plan=windows_of(dataset, 3), stop_requested=stopping_after(1), **options())
    shutil.rmtree(dataset.path)
    with pytest.raises(DatasetError, match=str(dataset.path)):
        resume(run)
    write_dataset(dataset.path, random_rows(300, 12, seed=99), n_chunks=10, n_shards=3)
    with pytest.raises(DatasetError, match=f"{dataset.path}.*fingerprint"):
        resume(run)


# ---------------------------------------------------------------------------------------------------------------------
# Damage


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run that was stopped in the middle of its fourth pass, after two checkpoints, and a whole one."""
    folder = tmp_path_factory.mktemp("stopped")
    dataset = write_dataset(folder / "data", random_rows(300, 12, seed=21), n_chunks=10, n_shards=3)
    plan, original = windows_of(dataset, 3), folder / "original"
    with pytest.raises(Interrupted):
        train(dataset, original, plan=plan, stop_requested=stopping_after(4), **options())
    with pytest.raises(Interrupted):
        resume(original, stop_requested=stopping_after(8))
    train(dataset, folder / "whole", plan=plan, **options())
    return folder


@pytest.fixture
def interrupted(stopped: Path, tmp_path: Path) -> Callable[[str], Path]:
    """``interrupted("copy")`` is a copy of the run that was stopped; the whole one is in `tmp_path`."""
    shutil.copytree(stopped / "whole", tmp_path / "whole")

    def copy(name: str) -> Path:
        shutil.copytree(stopped / "original", tmp_path / name)
        return tmp_path / name

    return copy


def flip(path: Path, place: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def refused_or_harmless(run: Path, damaged: Path, whole: Path) -> bool:
    """Whether resuming was refused, naming the file; where it was not, the bits must be those of the undamaged run."""
    refusal = ""
    try:
        resume(run)
    except CheckpointError as error:
        refusal = str(error)
    if refusal:
        assert str(damaged) in refusal
        assert "\n" not in refusal
        return True
    assert ended(run) == ended(whole), f"{damaged}: damage went unnoticed and changed the result"
    return False


@pytest.mark.parametrize("part", range(8))
def test_a_flipped_byte_in_the_state_is_refused_or_harmless(
    interrupted: Callable[[str], Path], tmp_path: Path, part: int
) -> None:
    """Everywhere in ``state.npz``, the headers of its arrays included."""
    run = interrupted("copy")
    state = run / "state.npz"
    size = state.stat().st_size
    place = int(np.random.default_rng(part).integers(part * size // 8, (part + 1) * size // 8))
    flip(state, place, bit=part % 8)
    refused_or_harmless(run, state, tmp_path / "whole")


def header_digits(state: Path) -> list[int]:
    """Places of the shapes' digits in the headers of the arrays of an ``.npz`` file."""
    data, places, start = state.read_bytes(), [], 0
    while (start := data.find(b"'shape': (", start)) >= 0:
        start += len(b"'shape': (")
        stop = data.index(b")", start)
        places += [place for place in range(start, stop) if data[place : place + 1].isdigit()]
    return places


def test_a_changed_shape_in_the_state_is_refused_or_harmless(
    interrupted: Callable[[str], Path], tmp_path: Path
) -> None:
    """A shorter array is read without the checksum that ends it: its length has to be checked."""
    for number, place in enumerate(header_digits(interrupted("first") / "state.npz")):
        run = interrupted(f"copy{place}")
        flip(run / "state.npz", place, number % 2)
        refused_or_harmless(run, run / "state.npz", tmp_path / "whole")


def test_a_flipped_byte_in_a_slot_in_use_is_refused_by_name(
    interrupted: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of both slots of a chunk one is in use: damage there is found, and damage to the other changes nothing."""
    whole, found = tmp_path / "whole", []
    for number, file in enumerate(sorted((interrupted("first") / "dual").iterdir())):
        size = file.stat().st_size
        for share in (0.01, 0.3, 0.7, 0.99):
            run = interrupted(f"copy{number}-{share}")
            damaged = run / "dual" / file.name
            flip(damaged, int(share * size))
            found.append(refused_or_harmless(run, damaged, whole))
    assert any(found)
    assert not all(found)


@pytest.mark.parametrize("name", ["state.npz", "dual/part-00000.bin"])
@pytest.mark.parametrize("damage", [lambda file: os.truncate(file, 100), os.unlink], ids=["cut", "gone"])
def test_truncated_or_missing_files_are_refused_by_name(
    interrupted: Callable[[str], Path], name: str, damage: Callable[[Path], None]
) -> None:
    run = interrupted("copy")
    damage(run / name)
    with pytest.raises(CheckpointError, match=str(run / name)):
        resume(run)


def test_a_changed_configuration_is_refused_by_name(interrupted: Callable[[str], Path]) -> None:
    """Another seed or C would go on without a word, to another result."""
    for number, (old, new) in enumerate(
        [('"seed": 3', '"seed": 2'), ("0.5", "0.7"), ('"squared_hinge"', '"hinge"'), ("{", "[")]
    ):
        run = interrupted(f"copy{number}")
        text = (run / "config.json").read_text()
        assert old in text
        (run / "config.json").write_text(text.replace(old, new, 1))
        with pytest.raises(CheckpointError, match=r"config\.json"):
            resume(run)


def rewrite_config(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a run's configuration, and its checksum with it."""
    directory, config = checkpoint.open_run(run), read_raw_config(run)
    change(config)
    directory.write_config(config)
    directory.close()


def test_a_configuration_with_a_wrong_type_is_refused_by_name(interrupted: Callable[[str], Path]) -> None:
    run = interrupted("copy")
    rewrite_config(run, lambda config: config["plan"].update(window_entries="many"))
    with pytest.raises(CheckpointError, match=r"config\.json: damaged .*plan\.window_entries"):
        resume(run)


WRONG_VALUES = [
    (("folds",), -1),
    (("folds",), 1),
    (("folds",), 10**9),
    (("options", "loss"), "absolute"),
    (("options", "method"), "bisection"),
    (("options", "C"), []),
    (("options", "C"), [float("nan")]),
    (("options", "bias"), float("nan")),
    (("options", "code"), [[1, -1], [1]]),
    (("options", "code"), [[10**30], [-1]]),
    (("options", "class_weight"), [[7.0, 1.0]]),
    (("options", "omega"), 2.0),
    (("options", "acceleration"), "much"),
    (("options", "unpenalized_bias"), True),
    (("rule", "tol"), float("nan")),
    (("rule", "tol"), None),
    (("rule", "max_passes"), 0),
    (("memory",), -1),
    (("n_groups",), 0),
    (("n_groups",), 10**9),
    (("plan", "window_entries"), 0),
    (("plan", "window_rows"), -1),
    (("plan", "window_entries"), 10**30),
    (("checkpoint_every",), float("nan")),
    (("rounds",), {"worker_timeout": 1.0, "shared_memory": 0}),
    (("dataset",), "a\0b"),
    (("start_from",), "a\0b"),
]


@pytest.mark.parametrize(("keys", "value"), WRONG_VALUES, ids=lambda given: str(given)[:40])
def test_a_configuration_that_makes_no_sense_is_refused_by_file_and_key(
    interrupted: Callable[[str], Path], keys: tuple[str, ...], value: object
) -> None:
    run = interrupted("copy")

    def change(config: dict[str, Any]) -> None:
        for key in keys[:-1]:
            config = config[key]
        config[keys[-1]] = value

    rewrite_config(run, change)
    word = {"rounds": "shared_memory"}.get(keys[-1], keys[-1].split("_")[-1])
    with pytest.raises(CheckpointError, match=rf"config\.json: damaged \(.*({word})") as found:
        resume(run)
    assert "\n" not in str(found.value)
    assert any(str(run / "config.json") in problem for problem in command_line.problems(run))


def test_slots_of_a_run_that_has_none_are_refused(interrupted: Callable[[str], Path]) -> None:
    run = interrupted("copy")
    rewrite_config(run, lambda config: config["options"].update(method="newton", acceleration="none"))
    with pytest.raises(CheckpointError, match=r"dual: the checkpoint has \d+ parts.*configuration has 0"):
        resume(run)


@pytest.mark.parametrize("resident", [True, False])
def test_a_plan_larger_than_the_data_takes_no_more_memory_than_they_do(
    interrupted: Callable[[str], Path], resident: bool
) -> None:
    run = interrupted("copy")
    large = {"window_entries": 2**62, "window_rows": 2**62, "resident": resident}
    rewrite_config(run, lambda config: config.update(plan=large))
    assert max(lane["passes"] for lane in resume(run).lanes) == options()["max_passes"]


def test_the_log_is_cut_back_to_the_checkpoint(interrupted: Callable[[str], Path], tmp_path: Path) -> None:
    """Lines that a killed process had written after its last checkpoint are not there twice."""
    run = interrupted("copy")
    with open(run / "log.jsonl", "a") as log:
        log.write('{"read": 4, "kind": "train"}\n{"read": 5, "ki')
    resume(run)
    assert ended(run) == ended(tmp_path / "whole")


# ---------------------------------------------------------------------------------------------------------------------
# A full disk


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("allowed", [0, 1, 12])
def test_a_disk_that_fills_up_leaves_the_last_checkpoint_usable(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int, resident: bool
) -> None:
    """Writes to slots fail half-way, after so many; once there is room again, resume goes on to the same bits."""
    plan, run = windows_of(dataset, 3, resident=resident), tmp_path / "run"
    train(dataset, tmp_path / "whole", plan=plan, **options())
    with pytest.raises(Interrupted):
        train(dataset, run, plan=plan, stop_requested=stopping_after(5), **options())
    left, real = allowed, os.pwritev

    def pwritev(descriptor: int, pieces: Any, offset: int) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            return real(descriptor, pieces, offset)
        data = b"".join(pieces)
        os.pwrite(descriptor, data[: len(data) // 3], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", pwritev)
        with pytest.raises(OSError, match="No space left"):
            resume(run, checkpoint_every=1e-9)
    resume(run)
    assert ended(run) == ended(tmp_path / "whole")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small file system")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_too_small_for_the_run_is_found_before_any_work(tmp_path: Path, small_disk: Path) -> None:
    """The dual variables' space is claimed at the start."""
    dataset = write_dataset(tmp_path / "data", random_rows(80_000, 3, seed=1), n_chunks=4)
    visited = []
    with pytest.raises(OSError, match="No space left"):
        train(dataset, small_disk / "run", stop_requested=lambda: visited.append(1), **options())
    assert not visited


def test_a_flipped_bit_anywhere_in_the_state_is_damage_or_nothing(dataset: Dataset, tmp_path: Path) -> None:
    """Readers of archives have many errors of their own: a bit said that the file was encrypted, which was a traceback."""
    train(dataset, tmp_path / "run", max_passes=2)
    whole = (tmp_path / "run" / "state.npz").read_bytes()
    arrays = read_arrays(tmp_path / "run" / "state.npz")
    assert arrays is not None
    path, n_damaged, places = tmp_path / "flipped.npz", 0, range(0, len(whole), 151)
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            found = read_arrays(path)
            rows = np.concatenate(list(read_array_rows(path, "w", 5)))
        except CheckpointError as error:
            assert str(error).startswith(f"{path}: damaged")  # noqa: PT017
            n_damaged += 1
            continue
        assert found is not None
        if set(found) != set(arrays):  # the table at the end lists fewer: see below
            continue
        assert all(np.array_equal(found[name], array, equal_nan=True) for name, array in arrays.items())
        assert np.array_equal(rows, arrays["w"])
    assert n_damaged > len(places) / 2


@pytest.mark.parametrize("name", ["estimate", "slots", "log_bytes", "seconds", "w", "position"])
def test_a_state_without_one_of_its_arrays_is_refused(name: str, dataset: Dataset, tmp_path: Path) -> None:
    train(dataset, tmp_path / "run", max_passes=2)
    arrays = read_arrays(tmp_path / "run" / "state.npz")
    assert arrays is not None
    del arrays[name]
    np.savez(tmp_path / "run" / "state.npz", **arrays)
    with pytest.raises(CheckpointError, match=rf"state\.npz: .*{name}"):
        resume(tmp_path / "run", max_passes=4)


def test_a_damaged_run_to_start_from_is_named(dataset: Dataset, tmp_path: Path) -> None:
    train(dataset, tmp_path / "run", max_passes=2)
    state = tmp_path / "run" / "state.npz"
    content = bytearray(state.read_bytes())
    content[170] ^= 1  # in w
    state.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        train(dataset, tmp_path / "next", C=2.0, start_from=tmp_path / "run")


def test_a_kill_between_the_first_state_and_the_name_of_its_log_loses_no_line(tmp_path: Path) -> None:
    """The log gets its name after the first state: without a state there must be none."""
    dataset = write_dataset(tmp_path / "data", random_rows())
    log = tmp_path / "run" / "log.jsonl"
    train(dataset, tmp_path / "run", max_passes=2, tol=1e-9)
    lines = log.read_text().splitlines()
    log.rename(log.with_name("log.jsonl.partial"))
    resume(tmp_path / "run", max_passes=4)
    assert len(lines) >= 2
    assert log.read_text().splitlines()[: len(lines)] == lines


def test_a_run_that_ends_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows())
    left = iter(range(3))

    def fail() -> None:
        if next(left, None) is None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(dataset, tmp_path / "run", stop_requested=fail)
    assert not (tmp_path / "run" / "state.npz").exists()
    resume(tmp_path / "run")
    train(dataset, tmp_path / "whole")
    assert ended(tmp_path / "run") == ended(tmp_path / "whole")
