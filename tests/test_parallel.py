"""Several processes: the same results as one, bit for bit; within the memory; one-line errors; nothing left behind."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import forking
import pyarrow.parquet as pq
import pytest
from conftest import LentWorkers, eventually
from forking import DEVNULL, PIPE, Forked
from heard import Heard

from streamcd import Listener, convert, evaluate, load_model, make_columns, predict, train
from streamcd import open as open_dataset
from streamcd.cli.synthetic import write_text_like
from streamcd.conversion import byte_sources
from streamcd.conversion.formats import expand
from streamcd.conversion.libsvm import LibsvmReader
from streamcd.conversion.sources import Piece, Reading
from streamcd.core import files
from streamcd.core.errors import DataError, EnvironmentFailure, UsageError
from streamcd.core.memory_budget import RESERVED_BYTES
from streamcd.core.options import Progress
from streamcd.core.parallel import COORDINATOR_BYTES, Pool, ahead, memory_per_worker

ROOT = Path(__file__).resolve().parent.parent
MEMORY = "2GB"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 3,000 rows of made text, sorted by class, with comments, blank lines and an explicit zero."""
    path = tmp_path_factory.mktemp("text") / "text.libsvm"
    write_text_like(path, n_rows=3000, n_features=2000, entries_per_row=20, seed=1)
    lines = sorted(path.read_bytes().splitlines(keepends=True), key=lambda line: line.split()[0])
    lines[100:100] = [b"# a comment\n", b"\n", b"  \t \r\n", b"1 3:0 9:2 # zero\n"]
    path.write_bytes(b"".join(lines))
    return path


@pytest.fixture(scope="module")
def several_files(text_file: Path) -> list[str]:
    """The same rows in three files, of which two are compressed, and one without a row."""
    lines = text_file.read_bytes().splitlines(keepends=True)
    folder = text_file.parent / "parts"
    folder.mkdir()
    (folder / "a").write_bytes(b"".join(lines[:1500]))
    (folder / "b.gz").write_bytes(gzip.compress(b"".join(lines[1500:2000])))
    (folder / "c").write_bytes(b"")
    (folder / "d.bz2").write_bytes(bz2.compress(b"".join(lines[2000:])))
    return [str(folder)]


CUT = {"chunk_size": "20kB", "shard_size": "100kB"}


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize(
    "options",
    [
        CUT,
        {**CUT, "compact": True, "dtype": "float64"},
        {**CUT, "scale": "standard", "normalize": "l2"},
        {**CUT, "scale": "maxabs", "compact": True},
        {"seed": 5, "index_base": 0, "compression": "zstd"},
    ],
    ids=lambda options: (
        " ".join(f"{name}={value}" for name, value in options.items() if name not in CUT) or "plain"
    ),
)
def test_the_dataset_does_not_depend_on_the_number_of_workers(
    options: dict[str, Any], text_file: Path, tmp_path: Path
) -> None:
    datasets = [convert(text_file, tmp_path / str(n), workers=n, memory=MEMORY, **options) for n in (1, 3)]
    assert len({dataset.fingerprint for dataset in datasets}) == 1
    assert datasets[1].verify() == []
    assert datasets[0].n_rows == 3001
    if options.get("shard_size"):
        assert datasets[0].n_shards > 3


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("scale", ["none", "standard"])
def test_statistics_of_features_are_the_same_beside_the_rows_and_after_them(
    scale: str, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of every shard where those of all features fit in memory, else another read of the shards for them."""
    made = sys.modules["streamcd.conversion.convert"]
    plan = made.make_plan
    for room in (True, False):
        if not room:
            monkeypatch.setattr(
                made, "make_plan", lambda *given: plan(*given)._replace(statistics_bytes=9000)
            )
        convert(text_file, tmp_path / str(room), workers=2, memory=MEMORY, scale=scale, **CUT)
    one = convert(text_file, tmp_path / "one", scale=scale, **CUT)
    assert one.n_shards > 3
    assert open_dataset(tmp_path / "True").fingerprint == one.fingerprint
    assert open_dataset(tmp_path / "False").fingerprint == one.fingerprint


@pytest.mark.usefixtures("lend")
def test_compressed_and_several_files_give_the_same(
    text_file: Path, several_files: list[str], tmp_path: Path
) -> None:
    one = convert(text_file, tmp_path / "one", **CUT)
    compressed = tmp_path / "text.gz"
    compressed.write_bytes(gzip.compress(text_file.read_bytes()))
    for n in (1, 2, 3):
        several = convert(several_files, tmp_path / f"several {n}", workers=n, memory=MEMORY, **CUT)
        assert several.fingerprint == one.fingerprint
    single = convert(compressed, tmp_path / "compressed", workers=2, memory=MEMORY, **CUT)
    assert single.fingerprint == one.fingerprint


@pytest.mark.usefixtures("lend")
def test_weights_and_the_training_side_are_taken_by_several(text_file: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_text("".join(f"{1 + i % 7}\n" for i in range(3001)))
    like = convert(text_file, tmp_path / "like", scale="standard", n_features=2500)
    for options in ({"weights": weights}, {"like": like.path, "weights": weights}):
        found = {
            convert(
                text_file, tmp_path / "data", workers=n, memory=MEMORY, force=True, **CUT, **options
            ).fingerprint
            for n in (1, 2)
        }
        assert len(found) == 1
    weights.write_text("1\n" * 3000)
    with pytest.raises(DataError, match="expected a weight for every row, found 3,000"):
        convert(text_file, tmp_path / "few", workers=2, memory=MEMORY, weights=weights)


def test_what_can_be_read_but_once_is_read_by_one(text_file: Path, tmp_path: Path) -> None:
    heard = Heard()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(f"cat {text_file} > {pipe}", shell=True):
        piped = convert(pipe, tmp_path / "piped", workers=2, listener=heard, **CUT)
    assert heard.warnings == [
        "standard input, pipes and servers without ranges are read by one process: converting with workers 1"
    ]
    assert piped.fingerprint == convert(text_file, tmp_path / "file", **CUT).fingerprint


def test_no_thread_waits_for_a_pipe_after_a_refusal(tmp_path: Path) -> None:
    """It was left where it was, and could be anywhere, also in Arrow's code, when the process ended."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(pipe, "r+b", buffering=0) as writer:  # it never ends
        writer.write(b"1 1:1\n" * 2000 + b"no\n" + b"1 1:1\n" * 7000)
        pieces = LibsvmReader([str(pipe)], Reading(block_bytes=1 << 14)).batches([Piece(str(pipe))])
        with closing(ahead(pieces)) as batches, pytest.raises(DataError, match=":2001: "):
            for _ in batches:
                pass
    assert not [thread for thread in threading.enumerate() if "ahead" in thread.name]


# ---------------------------------------------------------------------------------------------------------------------
# Errors


@pytest.mark.usefixtures("lend")
def test_the_first_error_of_the_source_is_told_whoever_meets_it(text_file: Path, tmp_path: Path) -> None:
    lines = text_file.read_bytes().splitlines(keepends=True)
    lines[2000] = b"1 7:x\n"
    for place in range(2005, 2900, 7):
        lines[place] = b"later\n"
    (tmp_path / "bad").write_bytes(b"".join(lines))
    for n in (1, 2, 3):
        with pytest.raises(DataError, match=r"bad:2001: expected a number after the index, found '7:x'"):
            convert([text_file, tmp_path / "bad"], tmp_path / "data", workers=n, memory=MEMORY)
    (tmp_path / "empty").write_text("# nothing\n\n")
    with pytest.raises(DataError, match="expected rows, found none"):
        convert(tmp_path / "empty", tmp_path / "data", workers=2, memory=MEMORY)
    with pytest.raises(UsageError, match="workers: expected 1 or more, found 0"):
        convert(text_file, tmp_path / "data", workers=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "empty"]


def test_errors_of_the_system_come_back_as_they_are(lent_workers: LentWorkers) -> None:
    workers = lent_workers(2, Listener()).__enter__()
    assert workers.run(len, [("ab",), ("c",)]) == [2, 1]
    with pytest.raises(FileNotFoundError) as caught:
        workers.run(os.stat, [("/",), ("/nowhere",), ("/nowhere else",)])
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "/nowhere")


def test_memory_is_shared_out_and_refused_with_the_arithmetic(text_file: Path, tmp_path: Path) -> None:
    least = COORDINATOR_BYTES + 3 * (RESERVED_BYTES + 1000)
    assert memory_per_worker(least, 3, {"a thing": 1000}) == 0
    assert memory_per_worker(least + 300, 3, {"a thing": 1000}) == 100
    with pytest.raises(
        UsageError,
        match=r"too small: 630 MB interpreter and libraries \(3 times\) .* \+ 200 MB to hand out the work = .* needed",
    ):
        memory_per_worker(least - 1, 3, {"a thing": 1000})
    with pytest.raises(UsageError, match=r"memory 500 MB is too small: .* fewer workers"):
        convert(text_file, tmp_path / "data", workers=2, memory="500MB")
    assert list(tmp_path.iterdir()) == []


def command(*arguments: object) -> list[str]:
    return ["-m", "streamcd", *map(str, arguments)]


def descendants(pid: int) -> list[int]:
    """Workers of a process: those that it has started, but for the one that looks after semaphores."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == pid and b"resource_tracker" not in line and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("how", ["killed", "ended", "interrupted", "left alone"])
def test_a_worker_that_is_killed_ctrl_c_and_the_death_of_all_leave_nothing(
    how: str, text_file: Path, tmp_path: Path
) -> None:
    with open(tmp_path / "large", "wb") as large:  # long enough to be met at work
        for _ in range(200):
            large.write(text_file.read_bytes())
    process = Forked(
        command("convert", tmp_path / "large", tmp_path / "data", "--workers", 2, "--memory", MEMORY),
        stdout=DEVNULL, stderr=PIPE,
    )  # fmt: skip
    workers = eventually(lambda: len(found := descendants(process.pid)) == 2 and found)
    if how == "killed":
        os.kill(workers[1], signal.SIGKILL)
    elif how == "ended":
        eventually((tmp_path / ".data.partial" / "runs").exists)
        os.kill(workers[1], signal.SIGTERM)
    else:
        eventually((tmp_path / ".data.partial").exists)
        process.send_signal(signal.SIGINT if how == "interrupted" else signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    if how == "left alone":
        return
    last = said.strip().splitlines()[-1]
    if how == "interrupted":
        assert (process.returncode, last) == (130, "streamcd: error: interrupted")
    else:
        assert process.returncode == 1, said
        what = "was killed by SIGKILL" if how == "killed" else ""
        assert last.startswith(f"streamcd: error: one of 2 worker processes {what}")
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["large"]


def test_ctrl_c_while_workers_are_started_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They ended with the interpreter, whose threads met a closed pipe now and then: a traceback after "interrupted"."""
    start, pools = Pool._start, []

    def interrupted(pool: Pool, module: str) -> None:
        start(pool, module)
        pools.append(pool)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Pool, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Pool(2, Listener())
    assert [process.exitcode for process in pools[0]._workers.values()] == [-signal.SIGKILL] * 2


SLOW_TO_END = """
import os, sys, threading, time
import streamcd.core.parallel as parallel
from streamcd import convert, make_columns
from streamcd.core.options import Listener

def end_late():
    parallel.multiprocessing.parent_process().join()
    deadline = time.monotonic() + 100
    while not os.path.exists("end") and time.monotonic() < deadline:
        time.sleep(0.02)
    os._exit(1)

parallel._end_with_parent = end_late

class Killed(Listener):
    def progress(self, progress):
        if progress.phase == sys.argv[1]:
            os.kill(os.getpid(), 9)

if __name__ == "__main__":
    options = {"workers": 2, "memory": "2GB", "chunk_size": "20kB", "shard_size": "100kB", "listener": Killed()}
    if sys.argv[1] == "write":
        convert(*sys.argv[2:], **options)
    else:  # a process with threads is not copied
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        make_columns(*sys.argv[2:], **options)
"""


@pytest.mark.parametrize("workers", ["copied", "spawned"])
def test_nobody_begins_where_workers_of_a_killed_process_still_write(
    workers: str, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies let go of the lock: a new command began beside them, and put a part in place that they had cut short."""
    script, data = tmp_path / "script.py", tmp_path / "data"
    expected = convert(text_file, tmp_path / "expected", **CUT).fingerprint
    again: Callable[[], object] = partial(convert, text_file, data, **CUT)
    if workers == "copied":
        started = forking.run(
            ["-c", SLOW_TO_END, "write", text_file, data], stdout=DEVNULL, stderr=DEVNULL, cwd=tmp_path
        )
    else:
        again()
        again = partial(make_columns, data, **CUT)
        script.write_text(SLOW_TO_END)
        asked = [sys.executable, str(script), "sort", str(data)]
        started = subprocess.run(asked, text=True, stderr=DEVNULL, cwd=tmp_path, env=ENVIRONMENT)
    assert started.returncode == -signal.SIGKILL
    monkeypatch.setattr(files, "_DYING_SECONDS", 0.1)
    with pytest.raises(EnvironmentFailure, match="another process writes there"):
        again()
    assert not (data if workers == "copied" else data / "columns").exists()
    (tmp_path / "end").touch()
    monkeypatch.setattr(files, "_DYING_SECONDS", 60.0)
    again()
    assert open_dataset(data).fingerprint == expected
    assert open_dataset(data).verify() == []


def test_a_process_with_threads_is_not_copied() -> None:
    """Its workers are started from nothing, and give the same answers."""
    told = threading.Event()
    thread = threading.Thread(target=told.wait)
    before = descendants(os.getpid())
    thread.start()
    try:
        with Pool(2, Listener()) as workers:
            spawned = workers.run(os.getppid, [()])
            started = set(descendants(os.getpid())).difference(before)
            lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in started]
    finally:
        told.set()
        thread.join()
    assert spawned == [os.getpid()]
    assert len(lines) == 2
    assert all(b"spawn_main" in line for line in lines)


# ---------------------------------------------------------------------------------------------------------------------
# Verification, prediction, evaluation


@pytest.fixture(scope="module")
def trained(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("trained")
    dataset = convert(text_file, folder / "data", **CUT)
    train(dataset, folder / "run", loss="log_loss", max_passes=5)
    return dataset.path, folder / "run"


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("source", ["dataset", "text"])
def test_predictions_and_scores_do_not_depend_on_the_number_of_workers(
    source: str, text_file: Path, trained: tuple[Path, Path], tmp_path: Path
) -> None:
    data, run = (trained[0] if source == "dataset" else text_file), trained[1]
    scores, tables, labels = [], [], []
    for n in (1, 3):
        scores.append(evaluate(data, run, workers=n, memory=MEMORY))
        predict(data, run, tmp_path / "out.parquet", proba=True, workers=n, memory=MEMORY, force=True)
        tables.append(pq.read_table(tmp_path / "out.parquet"))
        stream = io.StringIO()
        predict(data, load_model(run), stream, workers=n, memory=MEMORY)
        labels.append(stream.getvalue())
    assert scores[0].keys() == scores[1].keys()
    for name, figure in scores[0].items():
        found = scores[1][name]
        assert found == (pytest.approx(figure, rel=1e-12) if isinstance(figure, float) else figure), name
    assert tables[0] == tables[1]
    assert labels[0] == labels[1]
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


@pytest.mark.usefixtures("lend")
def test_verify_finds_the_same_with_several_workers(text_file: Path, tmp_path: Path) -> None:
    heard = Heard()
    dataset = convert(text_file, tmp_path / "data", **CUT)
    columns = make_columns(dataset, chunk_size=10_000, shard_size=100_000)
    assert dataset.verify(heard, workers=2) == []
    last = {progress.phase: progress for progress in heard.seen}
    assert list(last) == ["verify", "verify columns"]
    assert all(progress.done == progress.total for progress in last.values())
    parts = sorted((dataset.path / "entries").iterdir())
    for path in (parts[1], parts[3], columns.path / columns.manifest["parts"][1]["index"]):
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
    found = [dataset.verify(workers=n) for n in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 3


# ---------------------------------------------------------------------------------------------------------------------
# The parts


def test_ranges_are_the_whole_in_order(
    text_file: Path, several_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_file.read_bytes()
    for size in (1, 50, 1000, 1 << 14, 1 << 30):
        for bound in ("LEAST_RANGE_BYTES", "MOST_RANGE_BYTES"):
            monkeypatch.setattr(byte_sources, bound, size)
        ranges = LibsvmReader([str(text_file)], Reading()).pieces(2)
        stops = [len(text) if part.stop is None else part.stop for part in ranges]
        assert [part.start for part in ranges] == [0, *stops[:-1]]
        assert stops[-1] == len(text)
        assert all(text[stop - 1 : stop] == b"\n" for stop in stops)
    paths = expand(several_files).paths
    assert [part.path for part in LibsvmReader(paths, Reading()).pieces(2)] == paths


def test_one_worker_loads_no_dask(text_file: Path, tmp_path: Path) -> None:
    code = (
        "import sys, streamcd\n"
        f"d = streamcd.convert({str(text_file)!r}, {str(tmp_path / 'data')!r})\n"
        "d.verify()\n"
        f"r = streamcd.train(d, {str(tmp_path / 'run')!r}, max_passes=1)\n"
        f"streamcd.evaluate(d, {str(tmp_path / 'run')!r})\n"
        "assert not {'dask', 'distributed'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.slow
def test_memory_of_all_processes_stays_under_the_budget(tmp_path: Path) -> None:
    write_text_like(tmp_path / "large", n_rows=500_000, n_features=1_000_000, entries_per_row=90, seed=0)
    fingerprints = set()
    for n in (1, 2):
        asked = command("convert", tmp_path / "large", tmp_path / str(n), "--workers", n, "--memory", "1GB")
        process = subprocess.Popen([sys.executable, *asked], stderr=DEVNULL, stdout=DEVNULL, cwd=ROOT)
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(map(resident_bytes, [process.pid, *descendants(process.pid)])))
            time.sleep(0.05)
        assert process.returncode == 0
        assert peak < 1e9
        fingerprints.add(open_dataset(tmp_path / str(n)).fingerprint)
    assert len(fingerprints) == 1


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def test_a_worker_that_dies_before_it_has_work_is_told_of_with_the_work() -> None:
    with Pool(2, Listener()) as workers:
        for process in workers._workers.values():
            process.kill()
        with pytest.raises(EnvironmentFailure, match="one of 2 worker processes was killed by SIGKILL"):
            workers.run(os.getppid, [()])


@pytest.mark.parametrize(
    ("function", "value", "said"),
    [
        (signal.raise_signal, signal.SIGUSR1, "was killed by SIGUSR1"),
        (signal.raise_signal, signal.SIGTERM, "was killed by SIGTERM"),
        (os._exit, 1, "ended before its work was done; .*__main__"),
    ],
)
def test_how_workers_ended_is_told(function: Callable[[int], None], value: int, said: str) -> None:
    with Pool(2, Listener()) as workers:  # noqa: SIM117
        with pytest.raises(EnvironmentFailure, match=f"one of 2 worker processes {said}"):
            workers.run(function, [(value,)])


def test_workers_are_refused_where_they_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    with pytest.raises(UsageError, match="expected 1 in a process of a multiprocessing pool"):
        Pool(2, Listener())


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("n_workers", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_source_that_grows_while_it_is_read_is_refused(
    n_workers: int, weighted: bool, tmp_path: Path
) -> None:
    text, options = tmp_path / "text", {}
    text.write_text("1 1:1\n-1 2:1\n" * 1000)
    if weighted:
        (tmp_path / "weights").write_text("2\n" * 2000)
        options["weights"] = tmp_path / "weights"

    class Appending(Listener):
        def progress(self, progress: Progress) -> None:
            if progress.phase in ("count", "parse") and progress.done == progress.total:
                with open(text, "a") as file:
                    file.write("1 3:1\n")

    with pytest.raises(DataError, match="changed while it was read"):
        convert(text, tmp_path / "data", workers=n_workers, memory=MEMORY, listener=Appending(), **options)
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_source_that_is_written_anew_while_it_is_read_is_refused(n_workers: int, tmp_path: Path) -> None:
    """With as many bytes as before."""
    text = tmp_path / "text"
    text.write_text("1 1:1\n-1 2:1\n" * 1000)

    class Replacing(Listener):
        def progress(self, progress: Progress) -> None:
            if progress.phase == "parse" and progress.done == progress.total:
                text.write_text("1 1:2\n-1 2:2\n" * 1000)

    with pytest.raises(DataError, match="changed while it was read"):
        convert(text, tmp_path / "data", workers=n_workers, memory=MEMORY, listener=Replacing())


@pytest.mark.parametrize("n_workers", [1, 2])
def test_a_file_that_may_not_grow_is_named(n_workers: int, text_file: Path, tmp_path: Path) -> None:
    asked = command("convert", text_file, tmp_path / "data", "--workers", n_workers, "--memory", MEMORY)
    limit = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (60 << 10, 60 << 10))\n"
    limited = forking.run(["-c", limit + "runpy.run_module('streamcd', run_name='__main__')", *asked[2:]])
    assert limited.returncode == 1
    last = limited.stderr.strip().splitlines()[-1]
    assert re.fullmatch(
        rf"streamcd: error: {tmp_path}/\S+: File too large; free some space there, or name another disk", last
    ), limited.stderr
    assert "Traceback" not in limited.stderr
    assert not list(tmp_path.iterdir())
