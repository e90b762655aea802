"""Training on dask's workers, which come, go, hang and are killed; and as a user starts them."""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import command_line
import distributed
import numpy as np
import psutil
import pytest
from conftest import ROOT, eventually
from forking import PIPE, Forked
from heard import Heard
from interrupted import log, weights
from small_datasets import random_rows, write_dataset

import streamcd
from streamcd import Dataset
from streamcd.cluster.dask_engine import DaskEngine, open_client
from streamcd.cluster.dask_worker import Seat
from streamcd.cluster.partition import Partition
from streamcd.cluster.rounds import WorkersLost
from streamcd.core.errors import EnvironmentFailure, Interrupted, UsageError
from streamcd.stream.memory_plan import Plan
from tools.simulated_cluster import Simulation

pytestmark = pytest.mark.filterwarnings("ignore::streamcd.ConvergenceWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two noisy classes in eight shards."""
    path = tmp_path_factory.mktemp("cluster") / "data"
    return write_dataset(path, random_rows(400, 12, seed=3), n_chunks=16, n_shards=8)


# ---------------------------------------------------------------------------------------------------------------------
# Workers in threads of this process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, **options) as made:
        yield made


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster, set_as_default=False) as made:
        yield made


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_dask_does_what_the_simulation_does(loss: str, client: Any, data: Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"loss": loss, "max_passes": 12, "tol": 1e-9}
    streamcd.train(data, tmp_path / "dask", client=client, **options)
    streamcd.train(data, tmp_path / "made", client=Simulation(2), **options)
    assert (weights(tmp_path / "dask") == weights(tmp_path / "made")).all()
    record = log(tmp_path / "dask")[-2]
    assert (record["workers"], len(record["seconds"]["workers"])) == (2, 2)
    assert record["bytes_sent"] > 0
    assert record["eta"]


def test_newton_on_dask_needs_the_reads_of_one_process(client: Any, data: Dataset, tmp_path: Path) -> None:
    """Each worker makes its part of a read; a round sends the weights and a few sums."""
    options: dict[str, Any] = {"loss": "log_loss", "method": "newton", "tol": 1e-10, "C": [1.0, 50.0]}
    one = streamcd.train(data, tmp_path / "one", **options)
    two = streamcd.train(data, tmp_path / "dask", client=client, **options)
    assert two.passes == one.passes
    assert two.primal_objective == pytest.approx(one.primal_objective, rel=1e-10)
    assert two.bytes_read == one.bytes_read
    records = log(tmp_path / "dask")
    assert all(len(record["seconds"]["workers"]) == 2 for record in records)
    sums = 2 * (data.n_features + 1) * (data.n_features + 30) * 8  # of two lanes
    assert all(record["bytes_sent"] < 4 * sums for record in records)


@pytest.mark.parametrize(("n_shards", "warned"), [(3, True), (4, False)])
def test_too_few_shards_to_be_dealt_anew_are_warned_of(
    n_shards: int, warned: bool, client: Any, tmp_path: Path
) -> None:
    data = write_dataset(tmp_path / "data", random_rows(60, 5, seed=3), n_chunks=16, n_shards=n_shards)
    heard = Heard()
    streamcd.train(data, tmp_path / "run", client=client, max_passes=2, listener=heard)
    assert any("with fewer than two for each" in text for text in heard.warnings) == warned


def test_a_worker_that_comes_late_is_used_and_one_that_leaves_is_not_missed(
    cluster: Any, client: Any, data: Dataset, tmp_path: Path
) -> None:
    run, scaled = tmp_path / "run", []

    def rescale() -> int | None:
        rounds = len(log(run)) if (run / "log.jsonl").exists() else 0
        if rounds >= 3 and not scaled:
            scaled.append(cluster.scale(3))
        if rounds >= 12 and len(scaled) == 1:
            scaled.append(cluster.scale(1))
        return signal.SIGTERM if len(scaled) == 2 and log(run)[-1]["workers"] == 1 else None

    try:
        with pytest.raises(Interrupted):
            streamcd.train(data, run, client=client, tol=1e-12, max_passes=10_000, stop_requested=rescale)
    finally:
        cluster.scale(2)
        client.wait_for_workers(2)
    assert {record["workers"] for record in log(run)} == {1, 2, 3}
    assert streamcd.resume(run, client=client, tol=1e-3).converged


def test_errors_of_workers_are_told_in_one_line(client: Any, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows(), n_chunks=6, n_shards=3)
    entries = dataset.path / dataset.manifest["parts"][1]["entries"]
    entries.write_bytes(entries.read_bytes()[:-20] + bytes(20))  # the end of the footer
    with pytest.raises(streamcd.StreamcdError) as caught:
        streamcd.train(dataset, tmp_path / "run", client=client)
    assert str(entries) in str(caught.value)


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_silent_worker_is_given_up_and_the_optimum_stays(
    loss: str,
    streamed: bool,
    client: Any,
    data: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One worker hangs in its first round, as on a dead disk: the other gets all shards."""
    options: dict[str, Any] = {"loss": loss, "tol": 1e-3, "max_passes": 3000}
    if streamed:
        monkeypatch.setattr("streamcd.cluster.partition.make_plan", lambda *_: Plan(300, 60, resident=False))
        monkeypatch.setattr("streamcd.cluster.partition.plan_shards", lambda *_: None)
    # compiling may take longer than the timeout
    undisturbed = streamcd.train(data, tmp_path / "undisturbed", client=client, **options)
    released, left, run_partition = threading.Event(), iter(["hangs"]), Partition.run

    def hang_once(self: Partition, *arguments: Any) -> Any:
        if next(left, None):
            released.wait(60)
        return run_partition(self, *arguments)

    monkeypatch.setattr(Partition, "run", hang_once)
    monkeypatch.setattr("streamcd.cluster.dask_engine._LOOK_SECONDS", 0.1)
    try:
        run = streamcd.train(data, tmp_path / "run", client=client, worker_timeout=2.0, **options)
    finally:
        released.set()
    records = log(tmp_path / "run")
    assert (records[0]["attempts"], records[-1]["workers"]) == (2, 1)
    assert run.converged
    assert run.primal_objective == pytest.approx(undisturbed.primal_objective, rel=2e-3)


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_dual_variables_come_home_after_every_round_however_small_the_pieces(
    loss: str, client: Any, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And workers keep nothing."""
    monkeypatch.setattr("streamcd.cluster.rounds._BATCH_BYTES", 1000)
    options: dict[str, Any] = {"loss": loss, "tol": 1e-9}
    for name, workers in (("made", Simulation(2)), ("run", client)):
        streamcd.train(data, tmp_path / name, client=workers, max_passes=6, **options)
        assert command_line.problems(tmp_path / name) == []
        streamcd.resume(tmp_path / name, client=workers, max_passes=9)
    assert (weights(tmp_path / "run") == weights(tmp_path / "made")).all()
    folders = client.run(lambda dask_worker: dask_worker.local_directory).values()

    def nothing_is_left() -> bool:
        gc.collect()  # of errors in other tests, which hold a worker's seat
        return not [one for folder in folders for one in Path(folder).glob("streamcd-*")]

    eventually(nothing_is_left)


def test_an_abandoned_round_ends_at_the_next_window(
    client: Any, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker loses its part while another is at work, which would go on to the end of its passes."""
    begun, ended, left = threading.Event(), threading.Event(), iter(["at work", "lost"])
    run_partition = Partition.run

    def run(self: Partition, shards: Any, request: Any, w: np.ndarray, report: Any, worker: str) -> Any:
        part = next(left, "")
        if part == "lost":
            begun.wait(60)
            raise WorkersLost("pulled the plug")
        deadline = time.monotonic() + 60
        try:
            while part == "at work" and time.monotonic() < deadline:
                begun.set()
                report(0)
        except WorkersLost:
            ended.set()
            raise
        return run_partition(self, shards, request, w, report, worker)

    monkeypatch.setattr(Partition, "run", run)
    streamcd.train(data, tmp_path / "run", client=client, max_passes=3)
    assert ended.is_set()
    assert log(tmp_path / "run")[0]["attempts"] == 2


def test_two_trainings_on_the_same_workers_do_not_disturb_each_other(
    client: Any, data: Dataset, tmp_path: Path
) -> None:
    """Workers used to keep one partition and one w: each made the other's rounds fail until both gave up."""
    options: dict[str, Any] = {"max_passes": 12, "tol": 1e-9}

    def train(loss: str) -> None:
        streamcd.train(data, tmp_path / loss, loss=loss, client=client, **options)

    losses = ("hinge", "log_loss")
    threads = [threading.Thread(target=train, args=(loss,)) for loss in losses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    for loss in losses:
        streamcd.train(data, tmp_path / f"{loss} alone", loss=loss, client=Simulation(2), **options)
        assert (weights(tmp_path / loss) == weights(tmp_path / f"{loss} alone")).all()
        assert {record["attempts"] for record in log(tmp_path / loss)} == {1}


def seats(client: Any, change: Callable[[Any], Any] = lambda seat: seat) -> int:
    """Count what workers keep for trainings, and put something in its place."""

    def look(dask_worker: Any) -> int:
        held = {key: seat for key, seat in dask_worker.data.items() if isinstance(seat, Seat)}
        for key, seat in held.items():
            dask_worker.data[key] = change(seat)
        return len(held)

    return sum(client.run(look).values())


def test_a_client_that_is_gone_leaves_no_partition_behind(
    cluster: Any, client: Any, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run, begun anew with another loss, must not be given the partitions of the first."""
    run, made = tmp_path / "run", tmp_path / "made"
    monkeypatch.setattr(DaskEngine, "close", lambda self: None)  # as a client that is killed
    with distributed.Client(cluster, set_as_default=False) as killed:
        streamcd.train(data, run, loss="hinge", client=killed, max_passes=3)
    eventually(lambda: seats(client) == 0)
    streamcd.train(data, run, loss="log_loss", client=client, max_passes=3, force=True)
    streamcd.train(data, made, loss="log_loss", client=Simulation(2), max_passes=3)
    assert (weights(run) == weights(made)).all()


def test_workers_that_lost_their_partition_make_it_again(client: Any, tmp_path: Path) -> None:
    """Dask may write what a worker keeps to disk, which empties it."""
    data = write_dataset(tmp_path / "wide", random_rows(300, 12, seed=3), n_chunks=8, n_shards=4)
    run, struck = tmp_path / "run", []

    def forget() -> None:
        if not struck and (run / "log.jsonl").exists() and len(log(run)) == 3:
            struck.append(seats(client, lambda seat: pickle.loads(pickle.dumps(seat))))

    streamcd.train(data, run, client=client, max_passes=8, tol=1e-9, stop_requested=forget)
    streamcd.train(data, tmp_path / "made", client=Simulation(2), max_passes=8, tol=1e-9)
    assert struck == [2]
    assert max(record["attempts"] for record in log(run)) == 2
    assert (weights(run) == weights(tmp_path / "made")).all()


def test_a_worker_that_dask_would_end_for_its_memory_is_refused(data: Dataset, tmp_path: Path) -> None:
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(memory_limit="4GB", **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        with pytest.raises(EnvironmentFailure, match=r"no worker can take part.* 4 GB .*--memory-limit 0"):
            streamcd.train(data, tmp_path / "run", client=client, memory="3900MB")
        assert streamcd.train(data, tmp_path / "run", client=client, memory="500MB", force=True).converged


def test_memory_of_local_workers_is_shared_out_anew(client: Any, data: Dataset, tmp_path: Path) -> None:
    """What --memory bounds is the sum of this machine's processes, however many workers a run goes on with."""
    run = tmp_path / "run"
    options: dict[str, Any] = {"memory": "1GB", "max_passes": 2, "acceleration": "none"}
    streamcd.train(data, run, client=client, workers=2, **options)
    memory = {2: json.loads((run / "config.json").read_text())["memory"]}
    for n in (1, 0):
        streamcd.resume(run, client=client, workers=n or None, max_passes=3 + n)
        memory[n] = json.loads((run / "config.json").read_text())["memory"]
    # beside the weights, of which this process holds as many as a worker
    assert [n * memory[n] for n in (2, 1)] == pytest.approx([800_000_000] * 2, rel=1e-4)
    assert memory[0] == 1_000_000_000  # each worker of a cluster has all of it
    with pytest.raises(
        UsageError,
        match=r"is too small: .*\(3 times\) .* 200 MB to hand out the work .*give fewer workers",
    ):
        streamcd.resume(run, client=client, workers=3)


# ---------------------------------------------------------------------------------------------------------------------
# Processes of this machine


def command(*arguments: Any, **options: Any) -> Forked:
    return Forked(["-m", "streamcd", *arguments], stdout=PIPE, stderr=PIPE, **options)


def wait_for_rounds(run: Path, n: int, process: Forked) -> None:
    def made() -> bool:
        assert process.poll() is None, process.communicate(timeout=10)
        return (run / "log.jsonl").exists() and len((run / "log.jsonl").read_text().splitlines()) >= n

    eventually(made)


def test_local_workers_are_reached_from_this_machine_only_and_answer_no_browser() -> None:
    """Dask's web server was open on all interfaces, and told a scheduler's state to whoever asked."""
    import urllib.error
    import urllib.request

    def listening() -> set[Any]:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        found = [each for process in processes for each in process.net_connections("inet")]
        return {each.laddr for each in found if each.status == "LISTEN"}

    before = listening()  # of other tests
    with open_client(None, 2) as client:
        found = listening() - before
        info = client.scheduler_info()
        nannies = [worker["nanny"] for worker in info["workers"].values()]
        spoken = [info["address"], *info["workers"], *nannies]
        assert len(found) >= len(spoken) == 5
        assert {address.ip for address in found} == {"127.0.0.1"}
        for port in {address.port for address in found} - {int(name.rpartition(":")[2]) for name in spoken}:
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/json/identity.json", timeout=5)


@pytest.mark.parametrize("begun", [False, True])
def test_ctrl_c_during_training_on_local_workers_is_one_line(
    data: Dataset, tmp_path: Path, begun: bool
) -> None:
    """The terminal sends it to workers too: the start failed with status 1, and later they printed tracebacks."""
    endless = "--workers 2 --tol 1e-15 --max-passes 1000000 --loss hinge -C 100 --checkpoint-every 0.1s"
    process = command("train", data.path, tmp_path / "run", *endless.split(), start_new_session=True)
    if begun:
        wait_for_rounds(tmp_path / "run", 1, process)
    else:  # a worker is there, and nothing else yet
        eventually(lambda: psutil.Process(process.pid).children())
        time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "streamcd resume" in errors.strip().splitlines()[-1]


@pytest.mark.parametrize("killed", ["forkserver", "worker"])
def test_a_process_of_dask_killed_at_the_start_is_one_line(
    data: Dataset, tmp_path: Path, killed: str
) -> None:
    """It was 134 lines of traceback."""
    process = command("train", data.path, tmp_path / "run", "--workers", "2", start_new_session=True)
    children: list[psutil.Process] = []

    def found() -> list[psutil.Process]:
        children[:] = psutil.Process(process.pid).children(recursive=True)
        server = [child for child in children if "forkserver" in " ".join(child.cmdline())]
        return [child for child in server if (child.ppid() == process.pid) == (killed == "forkserver")]

    eventually(found)[0].kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert "2 worker processes of this machine could not be started" in errors.strip().splitlines()[-1]
    assert "Traceback" not in errors
    assert not psutil.wait_procs(children, timeout=20)[1]


@pytest.mark.slow
def test_five_kills_in_one_run_change_nothing(tmp_path: Path) -> None:
    """One of three processes is killed at a random moment, five times; dask starts others."""
    data = write_dataset(tmp_path / "data", random_rows(3000, 40, seed=5), n_chunks=48, n_shards=12)
    # without acceleration, where a dual that falls would show a round that was applied wrongly
    options: dict[str, Any] = {"loss": "hinge", "tol": 1e-3, "max_passes": 30_000, "acceleration": "none"}
    calm = streamcd.train(data, tmp_path / "calm", client=Simulation(3), **options)
    rng, begun, killed = np.random.default_rng(7), time.monotonic(), []
    moments = begun + 5 + np.cumsum(2 + 3 * rng.random(5))
    run = tmp_path / "run"
    with open_client(None, 3) as client:

        def kill() -> int | None:
            if len(killed) < 5 and time.monotonic() > moments[len(killed)]:
                live = list(client.run(os.getpid).values())
                if live:
                    killed.append(live[rng.integers(len(live))])
                    os.kill(killed[-1], signal.SIGKILL)
            assert time.monotonic() - begun < 300, "it hangs"
            # it would converge before the last kill
            return signal.SIGTERM if len(killed) == 5 else None

        options |= {"client": client, "worker_timeout": 60, "tol": 1e-9}
        with pytest.raises(Interrupted):
            streamcd.train(data, run, stop_requested=kill, **options)
        result = streamcd.resume(run, client=client, tol=1e-3)
    assert result.converged
    assert result.primal_objective == pytest.approx(calm.primal_objective, rel=2e-3)
    kept = [r["objective_estimate"] - r["gap_estimate"] for r in log(run) if r["kind"] == "train"]
    assert all(later >= earlier - 1e-9 * abs(earlier) for earlier, later in itertools.pairwise(kept))


# ---------------------------------------------------------------------------------------------------------------------
# A scheduler and workers as a user starts them


class Commands:
    """``dask scheduler`` and ``dask worker``, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, []
        self.scheduler, self.address = self.start_scheduler()

    def start_scheduler(self) -> tuple[subprocess.Popen[bytes], str]:
        file = self.folder / f"scheduler-{len(self.processes)}.json"
        options = "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file, "--no-dashboard"
        process = self.start("scheduler", *options)
        eventually(lambda: file.exists() and file.read_text().endswith("}"))
        return process, json.loads(file.read_text())["address"]

    def start_worker(self, address: str, package: Path = ROOT, **env: str) -> subprocess.Popen[bytes]:
        options = "--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "60"
        return self.start("worker", address, *options, package=package, **env)

    def start(self, *arguments: Any, package: Path = ROOT, **env: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            env={**os.environ, **env, "PYTHONPATH": f"{package}{os.pathsep}{os.environ['PYTHONPATH']}"},
        )
        self.processes.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with Commands(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_workers_without_streamcd_or_with_another_are_told_and_not_used(
    commands: Commands, data: Dataset, tmp_path: Path
) -> None:
    """One without it used to end as soon as it was asked, and the training waited for workers for minutes."""
    none, other = tmp_path / "none" / "streamcd", tmp_path / "other" / "streamcd"
    none.mkdir(parents=True)
    (none / "__init__.py").write_text("raise ImportError('no streamcd here')\n")
    shutil.copytree(Path(streamcd.__file__).parent, other, ignore=shutil.ignore_patterns("__pycache__"))
    (other / "_version.py").write_text('__version__ = "0"\n')
    for folder in (none, other):
        commands.start_worker(commands.address, folder.parent)
    with open_client(commands.address, 0) as client:
        client.wait_for_workers(2)
        with pytest.raises(EnvironmentFailure, match=r"no worker can take part"):
            streamcd.train(data, tmp_path / "run", client=client)
        commands.start_worker(commands.address)
        client.wait_for_workers(3)
        heard = Heard()
        assert streamcd.train(data, tmp_path / "run", client=client, listener=heard, force=True).converged
    assert any("no streamcd here" in text for text in heard.warnings)
    assert any("it has streamcd 0, the coordinating process" in text for text in heard.warnings)


@pytest.mark.slow
def test_the_examples_of_the_documentation_run_on_three_workers(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/shared` is a folder here, and what is trained there is what the first example has made."""
    from test_docs import examples

    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared").mkdir()
    used: list[int] = []
    for _, text in examples("cluster.md"):
        for address in ("tcp://127.0.0.1:8786", "tcp://HOST:8786"):
            text = text.replace(address, commands.address)
        for line in text.replace("/shared", "shared").splitlines():
            program, *arguments = shlex.split(line, comments=True)
            if arguments[0] == "worker" and not used:
                for _ in range(3):
                    commands.start(*arguments, "--no-nanny", "--no-dashboard")
                with open_client(commands.address, 0) as client:
                    client.wait_for_workers(3)
            elif program == "streamcd":
                process = command(*arguments)
                _, errors = process.communicate(timeout=120)
                assert process.returncode == 0, (line, errors)
                for run in (Path("run"), Path("shared/run")):
                    used += [record["workers"] for record in (log(run) if run.exists() else ())]
        if not (tmp_path / "shared" / "data").exists():
            shutil.copytree("data", "shared/data")
    assert set(used) == {3}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["LocalCluster", "dask worker"])
@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
def test_a_worker_stays_within_its_memory_on_data_that_it_has_to_stream(
    loss: str, how: str, commands: Commands, tmp_path: Path
) -> None:
    """Four times as many entries for each as its windows hold."""
    from streamcd.cli.synthetic import write_text_like
    from streamcd.core.memory_budget import peak_memory_bytes

    write_text_like(tmp_path / "text", n_rows=250_000, n_features=50_000, entries_per_row=90, seed=0)
    data = streamcd.convert(tmp_path / "text", tmp_path / "data", shard_size="20MB")
    memory = 330_000_000
    if how == "dask worker":
        for _ in range(2):
            commands.start_worker(commands.address)
    with open_client(commands.address if how == "dask worker" else None, 2) as client:
        client.wait_for_workers(2)
        streamcd.train(data, tmp_path / "run", loss=loss, client=client, memory=memory, max_passes=4)
        peaks = client.run(peak_memory_bytes)
    read = sum(record["bytes_read"] for record in log(tmp_path / "run"))
    assert read > 4 * 8 * data.n_entries / 2, "it was kept in memory: the test shows nothing"
    assert len(peaks) == 2
    assert max(peaks.values()) < memory


@pytest.mark.slow
def test_real_scheduler_and_workers_survive_kills_and_a_lost_scheduler_is_an_error_that_resume_heals(
    commands: Commands, real_data: Any, tmp_path: Path
) -> None:
    text = str(real_data("imdb.bigram.tfidf"))
    data = streamcd.convert(text, tmp_path / "imdb", shard_size="4.5MB", chunk_size="250KB")
    calm = streamcd.train(data, tmp_path / "calm", loss="hinge", tol=1e-3)  # slow enough to be killed
    run, hinge = tmp_path / "run", ("--loss", "hinge", "--tol", "1e-9")
    workers = [commands.start_worker(commands.address) for _ in range(3)]
    process = command("train", data.path, run, *hinge, "--scheduler", commands.address)
    wait_for_rounds(run, 3, process)
    workers[0].kill()
    wait_for_rounds(run, 8, process)
    commands.start_worker(commands.address)  # one that comes late
    wait_for_rounds(run, 20, process)
    commands.scheduler.kill()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.strip().splitlines()[-1].startswith("streamcd: error: the dask scheduler is gone")
    assert "Traceback" not in errors
    committed = len(log(run))

    _, address = commands.start_scheduler()
    for _ in range(2):
        commands.start_worker(address)
    process = command("resume", run, "--tol", "1e-3", "--scheduler", address, "--json")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    result = json.loads(output)
    assert result["converged"]
    assert result["primal_objective"] == pytest.approx(calm.primal_objective, rel=2e-3)
    used = [record["workers"] for record in log(run)]
    assert used[committed:] == [2] * (len(used) - committed)
    assert {2, 3} <= set(used[:committed])
