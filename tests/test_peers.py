"""A short race against the peers, and that its table says what was measured."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tools.make_data import Shape, write_dataset
from tools.peers.__main__ import main
from tools.peers.arrays import load_arrays, write_arrays
from tools.peers.contestants import CONTESTANTS, Task
from tools.peers.race import LEVELS, Training, loosest
from tools.peers.tables import Race, append, read, standings, table

RACE = Race("data", "hinge", 1.0, 1, "1GB", False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    shape = Shape("clicks", rows=500, fields=4, values=50)
    write_dataset(shape, tmp_path / "data")
    write_dataset(shape, tmp_path / "test", first_row=4096)
    return tmp_path / "data"


def trainings(name: str, *figures: tuple[int, float, float, float]) -> list[Training]:
    return [
        Training(name, number, setting, relative, None, 0.0, timed(seconds))
        for number, setting, relative, seconds in figures
    ]


def timed(seconds: float) -> dict[str, float]:
    return {"seconds": seconds, "processor_seconds": seconds, "peak_memory_bytes": 1}


def test_a_race_brings_streamcd_and_liblinear_to_the_same_optimum(data: Path, tmp_path: Path) -> None:
    """Each in a process of its own, judged by the same objective; the table has both."""
    records = tmp_path / "records.jsonl"
    options = [str(data), "--test", str(tmp_path / "test"), "--only", "streamcd,liblinear", "--rounds", "1"]
    done = CliRunner().invoke(main, [*options, "--memory", "1GB", "--records", str(records), "--cold"])
    assert done.exit_code == 0, done.output
    [(race, found)] = read(records).items()
    assert race == Race("data", "squared_hinge", 1.0, 1, "1GB", True)
    by_name = {standing.name: standing for standing in standings(found)}
    assert set(by_name) == {"streamcd", "liblinear"}
    for standing in by_name.values():
        assert set(standing.seconds) == set(LEVELS)
        assert standing.accuracy == pytest.approx(by_name["liblinear"].accuracy, abs=0.01)
        assert standing.peak_memory_bytes > 50e6
    assert set(by_name["streamcd"].figures["stages"]) == {"read", "train", "wait", "state", "kernels"}
    assert by_name["streamcd"].figures["bytes_read"] > 0


@pytest.fixture(scope="module")
def apart() -> Iterator[ProcessPoolExecutor]:
    """Another process: libraries built with -ffast-math turn off subnormal numbers in all of it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        yield process


@pytest.mark.parametrize("name", sorted(set(CONTESTANTS) - {"streamcd", "streamcd-plain", "sklearn-sgd"}))
def test_every_peer_minimises_our_objective(name: str, data: Path, apart: ProcessPoolExecutor) -> None:
    """What a peer calls its regularisation is translated rightly: its optimum is that of streamcd."""
    module = {"liblinear": "liblinear", "sklearn": "sklearn"}.get(name.partition("-")[0], name)
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    write_arrays(data, data.with_name("arrays"))
    assert apart.submit(_distance_from_optimum, name, data).result() < 2e-3


def _distance_from_optimum(name: str, data: Path) -> float:
    from tools.peers.race import Judge

    kind = CONTESTANTS[name]
    task = Task(data, data.with_name("arrays"), kind.losses[0], 0.5, "1GB")
    contestant = kind(task)
    contestant.load()
    contestant.fit(kind.settings[-3])
    return float(Judge(task, None).relative(contestant.weights()))


def test_arrays_are_the_rows_of_the_dataset(data: Path, tmp_path: Path) -> None:
    write_arrays(data, tmp_path / "arrays")
    rows, label = load_arrays(tmp_path / "arrays")
    assert rows.shape == (500, len(set(rows.indices)) + np.sum(rows.getnnz(axis=0) == 0))
    assert np.all(rows.getnnz(axis=1) == 4)
    assert set(label) == {-1.0, 1.0}


def test_the_first_training_of_a_process_is_not_counted() -> None:
    """Later rounds count, but for their first training; each level takes the setting with the smallest median."""
    found = trainings(
        "one",
        (0, 0.1, 1e-3, 9.0),
        (0, 0.01, 1e-5, 8.0),
        (1, 0.1, 1e-3, 5.0),
        (1, 0.1, 1e-3, 1.0),
        (1, 0.01, 1e-5, 2.0),
        (2, 0.1, 1e-3, 7.0),
        (2, 0.1, 1e-3, 3.0),
        (2, 0.01, 1e-5, 6.0),
    )
    [standing] = standings(found)
    assert standing.seconds == {1e-2: 2.0, 1e-3: 2.0, 1e-4: 4.0}
    assert [each.setting for each in loosest(found, 1e-4)] == [0.01]
    assert [each.setting for each in loosest(found, 1e-2)] == [0.1], (
        "one that was quicker at a tighter setting was chosen"
    )
    assert json.loads(json.dumps(found[0].to_json()))["contestant"] == "one"


def test_a_race_that_was_ended_early_counts_the_first_round_of_those_that_have_no_other() -> None:
    """The table ended with an error."""
    ended = [*trainings("one", (0, 0.1, 1e-5, 9.0), (1, 0.1, 1e-5, 5.0), (1, 0.1, 1e-5, 1.0))]
    ended += trainings("two", (0, 0.1, 1e-5, 4.0))
    assert [standing.seconds[1e-4] for standing in standings(ended)] == [1.0, 4.0]


def test_the_last_lines_sum_up_how_many_times_as_fast_as_the_best_peer_we_are() -> None:
    """The median of races in memory, by each measure with its own best peer; a cold race is listed, and not counted."""
    races = {}
    for number, (ours, cold) in enumerate([(2.0, False), (8.0, False), (0.5, False), (0.1, True)]):
        contestants = (("streamcd", ours), ("slow", 9.0), ("quick", 4.0))
        races[Race(f"data {number}", "hinge", 1.0, 1, "400MB" if cold else "8GB", cold)] = [
            each for name, seconds in contestants for each in trainings(name, (0, 0.1, 1e-5, seconds))
        ]
    text = table(races)
    times = "quick 0.00 + 4.00, 4.00, 4.00"
    assert f"| data 2, hinge | 0.50, 0.50, 0.50 | {times} | 8.00 |" in text
    assert f"| data 3, hinge, within 400MB, cold | 0.10, 0.10, 0.10 | {times} | 40.00 |" in text
    assert "| **least of 3 in memory** | | | 0.50 |" in text
    assert "| **median of 3 in memory** | | | 2.00 |" in text


def test_the_page_and_the_plot_are_written_from_records_alone(tmp_path: Path) -> None:
    for name, seconds in (("streamcd", 1.0), ("liblinear", 2.0)):
        for training in trainings(name, (0, 0.1, 1e-2, seconds), (0, 0.01, 1e-5, 2 * seconds)):
            append(tmp_path / "records", RACE, training)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin: python -m tools.peers -->\nold\n<!-- end -->\nafter\n")
    asked = ["--records", tmp_path / "records", "--docs", page, "--plot", tmp_path / "plot.png"]
    done = CliRunner().invoke(main, [str(word) for word in asked])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "liblinear 0.00 + 2.00, 4.00, 4.00 | 2.00 |" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert (tmp_path / "plot.png").stat().st_size > 1000
