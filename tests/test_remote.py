"""Files and datasets at URLs: an S3 server and a web server on loopback, started once for the module."""

from __future__ import annotations

import contextlib
import errno
import functools
import gzip
import http.server
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import command_line
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import LentWorkers
from forking import Forked
from small_datasets import random_rows, windows_of, write_dataset
from test_cluster import Commands, own_disks, shards_of

import streamcd
from streamcd import Dataset
from streamcd import open as open_dataset
from streamcd.cluster.dask_engine import open_client
from streamcd.cluster.distribute import distribute
from streamcd.conversion.byte_sources import share_out
from streamcd.core import storage
from streamcd.core.errors import CheckpointError, DataError, DatasetError, LockError, UsageError
from streamcd.core.memory_budget import RESERVED_BYTES, RUNNING_BYTES
from streamcd.core.storage import Url, location, open_bytes
from streamcd.dataset.range_cache import Cache, CachedFile, CachedRanges
from streamcd.stream import memory_plan
from streamcd.stream.arenas import RowLayout
from streamcd.stream.memory_plan import make_plan, plan_shards
from tools.simulated_cluster import Simulation

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")
s3fs = pytest.importorskip("s3fs")

BUCKET = "s3://bucket"

pytestmark = pytest.mark.filterwarnings("ignore:not converged")


class Server(NamedTuple):
    """An S3 server; `answer` may look at a request, wait, or refuse it with a status."""

    client: Any
    requests: list[tuple[str, str, str]]  # method, path, range
    answer: list[Callable[[str, str], int | None]]

    def upload(self, folder: Path, name: str) -> str:
        """Put all files of a folder into the bucket; returns its URL."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.client.upload_file(str(path), "bucket", f"{name}/{path.relative_to(folder)}")
        return f"{BUCKET}/{name}"

    def put(self, name: str, content: bytes) -> str:
        self.client.put_object(Bucket="bucket", Key=name, Body=content)
        return f"{BUCKET}/{name}"


def forget_connections() -> None:
    """Have the environment looked at again."""
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    requests: list[tuple[str, str, str]] = []
    answer: list[Callable[[str, str], int | None]] = []
    backend = DomainDispatcherApplication(create_backend_app)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        requests.append((method, path, environ.get("HTTP_RANGE", "")))
        status = answer[0](method, path) if answer else None
        if status is not None:
            start_response(f"{status} refused", [("Content-Length", "0")])
            return [b""]
        return backend(environ, start_response)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    before = dict(os.environ)
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{running.server_port}",
        "AWS_ACCESS_KEY_ID": "name",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    os.environ.update(settings)
    forget_connections()  # of a server that ran here before
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    yield Server(client, requests, answer)
    running.shutdown()
    for name in settings:
        os.environ.pop(name)
    os.environ.update(before)


@pytest.fixture(scope="module")
def lent_workers(server: Server) -> Iterator[LentWorkers]:
    """Processes that know of this server by their environment."""
    workers = LentWorkers()
    yield workers
    workers.end()


@pytest.fixture(autouse=True)
def quiet_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answer.clear()
    server.requests.clear()
    monkeypatch.setattr(storage, "_FIRST_PAUSE", 0.001)


@pytest.fixture(scope="module")
def text() -> bytes:
    """libsvm text of some ranges' length."""
    rng = np.random.default_rng(0)
    lines = [
        f"{1 if rng.random() < 0.5 else -1} "
        + " ".join(f"{k}:{value:.6f}" for k, value in enumerate(rng.standard_normal(40), start=1))
        for _ in range(2000)
    ]
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Rows in several parts of several chunks."""
    return write_dataset(
        tmp_path_factory.mktemp("local") / "data", random_rows(1000, 30), n_chunks=10, n_shards=4
    )


@pytest.fixture(scope="module")
def remote(server: Server, local: Dataset) -> str:
    return server.upload(local.path, "remote")


def weights(run: Path) -> np.ndarray:
    return np.asarray(streamcd.load_model(run).weights)


# ---------------------------------------------------------------------------------------------------------------------
# Names


def test_file_urls_are_paths() -> None:
    assert location("file:///some/a%20b") == Path("/some/a b")
    assert location("s3://bucket/a") == Url("s3://bucket/a")


@pytest.mark.parametrize("name", ["ftp://host/a", "http://example.com/a"])
def test_other_schemes_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"expected (s3|https)://"):
        location(name)


def test_what_is_missing_is_named(server: Server) -> None:
    for name, reason in (("bucket/none", "no such object"), ("other/none", "no such bucket")):
        for ask in (Url(f"s3://{name}").status, Url(f"s3://{name}").read_bytes):
            with pytest.raises(FileNotFoundError) as found:
                ask()
            assert found.value.strerror == reason
            assert found.value.filename == f"s3://{name}"


def test_a_refusal_is_told_at_once(server: Server) -> None:
    server.answer.append(lambda method, path: 403)
    with pytest.raises(PermissionError, match="no permission"):
        Url(f"{BUCKET}/a").read(0, 10)
    assert len(server.requests) == 1


def test_without_credentials_the_line_says_which(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    forget_connections()
    with pytest.raises(PermissionError, match="AWS_ACCESS_KEY_ID"):
        Url(f"{BUCKET}/a").status()
    forget_connections()


def test_attempts_are_repeated_and_counted(server: Server) -> None:
    server.put("some", b"0123456789")
    server.requests.clear()
    failures = [503, 500, None]
    server.answer.append(lambda method, path: failures.pop(0))
    assert Url(f"{BUCKET}/some").read(2, 5) == b"23456"
    assert len(server.requests) == 3
    server.requests.clear()
    server.answer[0] = lambda method, path: 503
    with pytest.raises(OSError, match="after 5 attempts") as found:
        Url(f"{BUCKET}/some").read(2, 5)
    assert found.value.errno == errno.EIO
    assert len(server.requests) == 5


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError, match=r"pip install 'streamcd\[remote\]'"):
        Url(f"{BUCKET}/a").status()


def test_reads_at_any_place_are_those_of_a_file(server: Server, tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(3 * (1 << 20) + 17)
    (tmp_path / "file").write_bytes(content)
    url = server.put("bytes", content)
    with open_bytes(url) as far, open_bytes(tmp_path / "file") as near:
        for offset, n_bytes in (
            (0, 5),
            (1 << 20, 3 << 20),
            (len(content) - 3, 10),
            (len(content), 4),
            (7, 1),
        ):
            found = []
            for file in (far, near):
                file.seek(offset)
                parts = bytearray()
                while len(parts) < n_bytes and (part := file.read(n_bytes - len(parts))):
                    parts += part
                found.append(bytes(parts))
            assert found[0] == found[1] == content[offset : offset + n_bytes]


# ---------------------------------------------------------------------------------------------------------------------
# Sources


def converted(sources: Any, path: Path, **options: Any) -> str:
    return streamcd.convert(sources, path, **{"memory": "2GB", **options}).fingerprint


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("workers", [1, 2])
def test_text_in_a_bucket_gives_the_dataset_of_the_file(
    server: Server, text: bytes, tmp_path: Path, workers: int
) -> None:
    (tmp_path / "text").write_bytes(text)
    url = server.put("text/a.txt", text)
    far = converted(url, tmp_path / "far", workers=workers)
    assert far == converted(tmp_path / "text", tmp_path / "near")
    assert len(share_out([url], 8)) > 1


def test_compressed_text_folders_and_patterns_are_read(server: Server, text: bytes, tmp_path: Path) -> None:
    lines = text.splitlines(keepends=True)
    (tmp_path / "text").write_bytes(text)
    server.put("days/1.txt.gz", gzip.compress(b"".join(lines[:800])))
    server.put("days/2.txt", b"".join(lines[800:]))
    near = converted(tmp_path / "text", tmp_path / "near")
    assert converted(f"{BUCKET}/days/", tmp_path / "folder") == near
    assert converted(f"{BUCKET}/days/?.txt*", tmp_path / "pattern") == near
    assert converted((tmp_path / "text").as_uri(), tmp_path / "file") == near
    with pytest.raises(UsageError, match="no such file, folder or pattern"):
        converted(f"{BUCKET}/nights/*.txt", tmp_path / "none")


@pytest.mark.usefixtures("lend")
def test_tables_in_a_bucket_give_the_datasets_of_the_files(server: Server, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    table = pa.table(
        {
            "age": rng.integers(18, 90, 4000).astype(float),
            "city": rng.choice(["Bonn", "Rome", "Oslo"], 4000),
            "y": rng.choice(["no", "yes"], 4000),
        }
    )
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=500)
    table.to_pandas().to_csv(tmp_path / "table.csv", index=False)
    for name, workers in (("table.parquet", 1), ("table.parquet", 2), ("table.csv", 1)):
        url = server.put(name, (tmp_path / name).read_bytes())
        near = converted(tmp_path / name, tmp_path / f"near-{name}-{workers}", label="y")
        assert converted(url, tmp_path / f"far-{name}-{workers}", label="y", workers=workers) == near


def test_a_source_that_changes_while_it_is_read_is_noticed(
    server: Server, text: bytes, tmp_path: Path
) -> None:
    text = text * 3  # of some reads' length
    url = server.put("changing.txt", text)
    changed = text.replace(b"-1 ", b"+1 ", 1)

    def change_once(method: str, path: str) -> None:
        n_reads = sum(method == "GET" and bool(part) for method, _, part in server.requests)
        if n_reads == 4:
            server.answer.clear()
            server.put("changing.txt", changed)

    server.answer.append(change_once)
    with pytest.raises(DataError, match="changed"):
        converted(url, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_matrices_at_a_url_are_refused(server: Server, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    url = server.put("x.npy", (tmp_path / "x.npy").read_bytes())
    with pytest.raises(UsageError, match="download it first"):
        converted(url, tmp_path / "data")


class _Ranges(http.server.SimpleHTTPRequestHandler):
    """Python's own server gives no ranges; this one does, of one part."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file():
            return super().do_GET()
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        content = path.read_bytes()
        part = content[int(first) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)
        return None


class _NoRanges(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Callable[[type[http.server.SimpleHTTPRequestHandler]], str]]:
    """Serve ``tmp_path / "web"``."""
    (tmp_path / "web").mkdir()
    running: list[http.server.ThreadingHTTPServer] = []

    def start(handler: type[http.server.SimpleHTTPRequestHandler]) -> str:
        made = functools.partial(handler, directory=str(tmp_path / "web"))
        running.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), made))
        threading.Thread(target=running[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{running[-1].server_port}"

    yield start
    for one in running:
        one.shutdown()
        one.server_close()


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("handler", [_Ranges, _NoRanges])
def test_a_web_server_is_read_with_ranges_or_without(
    web: Any, handler: Any, text: bytes, tmp_path: Path
) -> None:
    (tmp_path / "web" / "a.txt").write_bytes(text)
    (tmp_path / "web" / "a.txt.gz").write_bytes(gzip.compress(text))
    address = web(handler)
    near = converted(tmp_path / "web" / "a.txt", tmp_path / "near")
    assert converted(f"{address}/a.txt", tmp_path / "far", workers=2) == near
    assert converted(f"{address}/a.txt.gz", tmp_path / "unpacked") == near
    with pytest.raises(UsageError, match="no such file"):
        converted(f"{address}/b.txt", tmp_path / "none")


def test_a_dataset_on_a_web_server_needs_ranges(web: Any, local: Dataset, tmp_path: Path) -> None:
    for path in local.path.rglob("*"):
        if path.is_file():
            copy = tmp_path / "web" / path.relative_to(local.path)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    assert open_dataset(web(_Ranges)).verify() == []
    with pytest.raises(UsageError, match="gives ranges"):
        open_dataset(web(_NoRanges))


# ---------------------------------------------------------------------------------------------------------------------
# Datasets


def test_a_dataset_in_a_bucket_is_that_on_disk(server: Server, local: Dataset, remote: str) -> None:
    found = open_dataset(remote)
    assert found.fingerprint == local.fingerprint
    assert found.info() == local.info()
    assert found.verify() == []
    shown = command_line.run("info", remote, "--json")
    assert shown.returncode == 0
    assert local.fingerprint in shown.stdout


def test_rows_are_appended_in_a_bucket_as_on_disk(
    server: Server, local: Dataset, text: bytes, tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(text)
    converted(tmp_path / "text", tmp_path / "data")
    url = f"{BUCKET}/grown"
    before = streamcd.convert(tmp_path / "text", url)
    for place in (tmp_path / "data", url):
        streamcd.convert(tmp_path / "text", place, append=True)
    found = open_dataset(url)
    assert found.fingerprint == open_dataset(tmp_path / "data").fingerprint
    assert found.verify() == []
    assert Dataset.open(url, fingerprint=before.fingerprint).info()["fingerprint"] == before.fingerprint
    listed = {name for name, *_ in found.listed_files(found.manifest)}
    assert set(Url(url).find()) == {*listed, "manifest.json"}


def test_a_damaged_part_in_a_bucket_is_found(server: Server, local: Dataset, tmp_path: Path) -> None:
    url = server.upload(local.path, "damaged")
    part = local.manifest["parts"][1]["entries"]
    content = bytearray((local.path / part).read_bytes())
    content[len(content) // 2] ^= 1
    server.put(f"damaged/{part}", bytes(content))
    assert any(part in problem for problem in open_dataset(url, check_files=False).verify())
    with pytest.raises(DatasetError, match=part):
        streamcd.train(url, tmp_path / "run", max_passes=2)
    server.put(f"damaged/{part}", bytes(content)[:-5])
    with pytest.raises(DatasetError, match="truncated"):
        open_dataset(url)
    server.client.delete_object(Bucket="bucket", Key=f"damaged/{part}")
    with pytest.raises(DatasetError, match="missing"):
        open_dataset(url)


def test_what_is_no_dataset_is_said(server: Server) -> None:
    shown = command_line.run("info", f"{BUCKET}/none")
    assert shown.returncode == 2
    assert "does not exist" in shown.stderr


def test_training_from_a_bucket_gives_the_bits_of_the_disk(
    server: Server, local: Dataset, remote: str, tmp_path: Path
) -> None:
    for name, data in (("near", local.path), ("far", remote)):
        streamcd.train(data, tmp_path / name, max_passes=5, tol=1e-9)
        streamcd.tune(data, tmp_path / f"{name} search", C=[0.1, 1], cv=2, max_passes=2)
    for kind in ("", " search"):
        assert np.array_equal(weights(tmp_path / f"near{kind}"), weights(tmp_path / f"far{kind}"))


KILLED = """
import sys, streamcd
streamcd.train(sys.argv[1], sys.argv[2], tol=1e-12, max_passes=100_000, checkpoint_every=0.01, C=10.0)
"""


def test_a_killed_training_from_a_bucket_resumes_to_the_bits_of_a_local_run(
    server: Server, local: Dataset, remote: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"tol": 1e-12, "C": 10.0}
    process = Forked(["-c", KILLED, remote, tmp_path / "far"])
    state = tmp_path / "far" / "state.npz"
    while process.poll() is None and not state.exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    passes = streamcd.resume(tmp_path / "far", max_passes=0).passes
    streamcd.resume(tmp_path / "far", max_passes=passes + 5)
    streamcd.train(local, tmp_path / "near", max_passes=passes + 5, **options)
    assert np.array_equal(weights(tmp_path / "near"), weights(tmp_path / "far"))


@pytest.mark.usefixtures("lend")
def test_predictions_and_evaluations_of_a_bucket_are_those_of_the_disk(
    server: Server, local: Dataset, remote: str, text: bytes, tmp_path: Path
) -> None:
    streamcd.train(local, tmp_path / "run", max_passes=5)
    (tmp_path / "text").write_bytes(text)
    url = server.put("rows.txt", text)
    for near, far in ((local.path, remote), (tmp_path / "text", url)):
        assert streamcd.evaluate(near, tmp_path / "run") == streamcd.evaluate(far, tmp_path / "run")
        streamcd.predict(near, tmp_path / "run", tmp_path / "near.parquet", force=True)
        streamcd.predict(far, tmp_path / "run", tmp_path / "far.parquet", force=True, workers=2, memory="2GB")
        assert pq.read_table(tmp_path / "near.parquet").equals(pq.read_table(tmp_path / "far.parquet"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "DATA", "https://127.0.0.1/run"], "in a bucket (s3://, gs://), found https"),
        (["train", "DATA", "OTHER"], "exists and is neither a run nor a model (chunks.parquet)"),
        (["train", "DATA", "run", "--start-from", f"{BUCKET}/run"], "found a URL"),
        (["resume", f"{BUCKET}/none"], f"{BUCKET}/none is not a run"),
        (["evaluate", "DATA", f"{BUCKET}/none"], f"{BUCKET}/none: expected a run or a model, found none"),
        (["export", f"{BUCKET}/none", "out.txt"], f"{BUCKET}/none: expected a run or a model, found none"),
        (["predict", "DATA", "run", "-o", f"{BUCKET}/out.parquet"], "found a URL"),
    ],
)
def test_what_may_not_be_a_url_and_what_is_not_there_is_one_line(
    server: Server, local: Dataset, remote: str, arguments: list[str], said: str, tmp_path: Path
) -> None:
    names = {"DATA": str(local.path), "OTHER": remote}
    with contextlib.chdir(tmp_path):
        shown = command_line.run(*[names.get(a, a) for a in arguments])
        assert shown.returncode == 2
        assert said in shown.stderr
        assert shown.stderr.count("\n") == 1
        assert os.listdir() == []


def test_windows_from_a_bucket_are_those_of_the_disk_with_the_memory_of_reading_urls_added(
    local: Dataset, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows decide about the bits of a result; the plans of a process and of a worker's shards alike."""
    monkeypatch.setattr(memory_plan, "RESERVED_BYTES", 0)  # of a process, which hides plans of small data
    far, seen = open_dataset(remote), set()

    def plans(dataset: Dataset, budget: int) -> list[Any]:
        found: list[Any] = [plan_shards(dataset, budget, RowLayout(2, 1), {}, 2)]
        with contextlib.suppress(UsageError):
            found.append(make_plan(dataset, budget, RowLayout(2, 1), {}))
        return found

    room = np.arange(0, 4_000_000, 20_000)  # of a process, and of a worker
    for budget in np.concatenate([RUNNING_BYTES + room, RESERVED_BYTES + room]).tolist():
        near = plans(local, budget)
        assert plans(far, budget + storage.DATASET_BYTES) == near
        seen |= {type(near[0]), *(plan.resident for plan in near[1:])}
    assert len(seen) == 4  # shards kept and not, all data kept and not


@pytest.mark.slow
@pytest.mark.parametrize("started", ["by us", "by a scheduler"])
def test_workers_train_from_a_bucket_to_the_bits_of_the_disk_and_the_optimum(
    server: Server, local: Dataset, remote: str, tmp_path: Path, started: str
) -> None:
    """They share a cache, and take the credentials from the environment: no file of a run holds them."""
    alone = streamcd.train(local, tmp_path / "alone", tol=1e-5)
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"workers": 2}
        memory = "2GB"
        if started == "by a scheduler":
            distributed = pytest.importorskip("distributed")
            processes = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
            cluster = stack.enter_context(distributed.LocalCluster(memory_limit=0, **processes))
            options, memory = {"scheduler": cluster.scheduler_address}, "1GB"
        for name, data, cache in (("near", local.path, None), ("far", remote, tmp_path / "cache")):
            streamcd.train(
                data, tmp_path / name, memory=memory, max_passes=12, tol=1e-5, cache=cache, **options
            )
            found = streamcd.resume(tmp_path / name, max_passes=1000, **options)
    assert np.array_equal(weights(tmp_path / "near"), weights(tmp_path / "far"))
    assert found.converged
    assert found.primal_objective == pytest.approx(alone.primal_objective, rel=2e-5)
    assert list((tmp_path / "cache").glob("*/entries-part-*"))
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


# ---------------------------------------------------------------------------------------------------------------------
# Cache


def ranges_of_parts(server: Server) -> int:
    return sum("/part-" in path and bool(part) for _, path, part in server.requests)


def test_what_a_cache_holds_is_not_asked_for_again(
    server: Server, local: Dataset, remote: str, tmp_path: Path
) -> None:
    """Nor after a resumption, which finds the cache by the run's record; and no bit depends on it."""
    options: dict[str, Any] = {"plan": windows_of(local, 3), "tol": 1e-9}
    streamcd.train(local, tmp_path / "near", max_passes=2, **options)
    streamcd.resume(tmp_path / "near", max_passes=6)
    streamcd.train(remote, tmp_path / "far", max_passes=2, cache=tmp_path / "cache", **options)
    n_chunks_and_footers = 2 * local.n_chunks + 2 * local.n_shards
    assert ranges_of_parts(server) <= 2 * n_chunks_and_footers
    server.requests.clear()
    streamcd.resume(tmp_path / "far", max_passes=6)
    assert ranges_of_parts(server) == 0
    assert np.array_equal(weights(tmp_path / "near"), weights(tmp_path / "far"))


@pytest.mark.usefixtures("lend")
def test_what_a_training_has_cached_is_not_asked_for_by_predictions(
    server: Server, local: Dataset, remote: str, tmp_path: Path
) -> None:
    """By one process or several; they read more of a row than its label, entries apart."""
    streamcd.train(remote, tmp_path / "run", max_passes=2, cache=tmp_path / "cache")
    run, cached = str(tmp_path / "run"), ["--cache", str(tmp_path / "cache"), "--memory", "2GB"]
    for arguments in (["evaluate"], ["predict", "-o", str(tmp_path / "out.csv"), "--workers", "2"]):
        server.requests.clear()
        shown = command_line.run(*arguments, remote, run, *cached)
        assert shown.returncode == 0, shown.stderr
        assert not any("/entries/part-" in path and part for _, path, part in server.requests)
    shown = command_line.run("evaluate", local.path, run, *cached)
    assert shown.returncode == 2
    assert "for a dataset at a URL" in shown.stderr


FILES = [CachedFile("data/part-0", 10_000, 10), CachedFile("data/part-1", 10_000, 10)]


def opened(cache: Cache, dataset: str = "1" * 32) -> CachedRanges:
    return cache.open(dataset, "s3://bucket/data", dataset, FILES)


def test_a_cache_keeps_the_first_shards_that_fit_in_every_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that gave up what was read longest ago would hold none of what comes next."""
    asked: list[str] = []
    monkeypatch.setattr(Url, "read", lambda url, offset, n: asked.append(f"{url.name}@{offset}") or bytes(n))
    cache = Cache(str(tmp_path / "cache"), 13_040 + 40)
    for number in range(3):
        ranges = opened(cache)
        asked.clear()
        for part in (1, 0):
            for start in range(0, 10_000, 1000):
                assert ranges.read(Url(f"s3://bucket/data/part-{part}"), start, 1000) == bytes(1000)
        if number:
            assert asked == [f"part-1@{start}" for start in range(3000, 10_000, 1000)]
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("*/*")) <= cache.n_bytes


def test_a_damaged_range_of_a_cache_is_asked_for_again(
    server: Server, local: Dataset, remote: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "max_passes": 3}
    streamcd.train(remote, tmp_path / "first", **options)
    files = sorted((tmp_path / "cache").glob("*/*.parquet-*"))
    for number, file in enumerate(files):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content[:-1] if number % 2 else content)
    streamcd.train(remote, tmp_path / "second", **options)
    assert np.array_equal(weights(tmp_path / "first"), weights(tmp_path / "second"))
    with pytest.raises(UsageError, match="an empty directory of yours, or a cache"):
        streamcd.train(remote, tmp_path / "third", cache=tmp_path / "first")
    with pytest.raises(UsageError, match="for a dataset at a URL"):
        streamcd.train(local, tmp_path / "third", cache=tmp_path / "cache")


def test_what_a_cache_cannot_read_is_read_from_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Url, "read", lambda _, offset, n_bytes: bytes(n_bytes))
    ranges, url = opened(Cache(str(tmp_path / "cache"), 1000)), Url("s3://bucket/data/part-0")
    (tmp_path / "cache" / ("1" * 32) / "data-part-0-0-80").mkdir()  # in place of a disk that fails
    assert ranges.read(url, 0, 80) == bytes(80)


def test_a_cache_is_one_datasets_and_another_is_refused_by_name(
    server: Server, remote: str, tmp_path: Path
) -> None:
    streamcd.open(remote, cache=tmp_path / "cache")
    other = server.upload(streamcd.convert((np.eye(3), [0, 1, 1]), tmp_path / "data").path, "others")
    with pytest.raises(
        UsageError, match=rf"expected a cache of {other} .*, found one of {remote} .*name another"
    ):
        streamcd.open(other, cache=tmp_path / "cache")
    streamcd.open(remote, cache=tmp_path / "cache")


def test_what_killed_processes_were_writing_is_removed_from_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Url, "read", lambda _, offset, n_bytes: bytes(n_bytes))
    cache = Cache(str(tmp_path / "cache"), 100_000)
    first = opened(cache)
    (tmp_path / "cache" / ("1" * 32) / "data-part-0-0-9.7-7.partial").write_bytes(b"killed")
    opened(cache)
    assert not list((tmp_path / "cache").glob("*/*.partial"))
    assert first.read(Url("s3://bucket/data/part-0"), 0, 9) == bytes(9)
    assert len(list((tmp_path / "cache").glob("*/data-*"))) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Conversion to a bucket


def names(server: Server, folder: str) -> set[str]:
    found = server.client.list_objects_v2(Bucket="bucket", Prefix=f"{folder}/").get("Contents", [])
    return {entry["Key"].removeprefix(f"{folder}/") for entry in found}


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize(
    ("workers", "options"), [(1, {}), (2, {"memory": "3GB"}), (1, {"scale": "standard", "columns": True})]
)
def test_a_conversion_to_a_bucket_gives_the_dataset_of_the_disk(
    server: Server, text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, options: Any
) -> None:
    (tmp_path / "text").write_bytes(b"".join(text.splitlines(keepends=True)[:600]))
    with_columns = options.pop("columns", False)
    options = {"shard_size": "200kB", "chunk_size": "40kB", "workers": workers, "memory": "2GB", **options}
    monkeypatch.setattr(storage, "_UPLOAD_BYTES", 1 << 16)  # so that files come in several blocks
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    made = {}
    for name in ("near", f"{BUCKET}/made-{workers}-{len(options)}"):
        dest = name if "://" in name else tmp_path / name
        dataset = streamcd.convert(tmp_path / "text", dest, **options)
        if with_columns:
            streamcd.make_columns(dataset, chunk_size="50kB")
        made[name] = dataset
    near, far = made.values()
    assert far.fingerprint == near.fingerprint
    assert far.verify() == []
    assert far.info() == near.info()
    assert {name.split(".")[0] for name in names(server, far.path.name)} == {
        str(path.relative_to(near.path)).split(".")[0] for path in near.path.rglob("*") if path.is_file()
    }
    if with_columns:
        assert far.open_columns().fingerprint == near.open_columns().fingerprint


def test_a_downloaded_dataset_of_a_bucket_is_a_dataset(server: Server, text: bytes, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(text)
    far = streamcd.convert(tmp_path / "text", f"{BUCKET}/download", memory="2GB")
    for name in names(server, "download"):
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        server.client.download_file("bucket", f"download/{name}", str(tmp_path / "copy" / name))
    copy = open_dataset(tmp_path / "copy")
    assert copy.fingerprint == far.fingerprint
    assert copy.verify() == []


def test_of_two_conversions_to_one_place_the_later_loses_and_leaves_nothing(
    server: Server, text: bytes, tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(text)
    url = f"{BUCKET}/contended"
    winner = []

    def overtake(method: str, path: str) -> None:
        if method == "PUT":  # the first one's first file
            server.answer.clear()
            winner.append(streamcd.convert(tmp_path / "text", url, memory="2GB", seed=7))

    server.answer.append(overtake)
    with pytest.raises(UsageError, match="completed there meanwhile"):
        converted(tmp_path / "text", url)
    assert open_dataset(url).fingerprint == winner[0].fingerprint
    assert open_dataset(url).verify() == []
    listed = {name for name, *_ in winner[0].listed_files(winner[0].manifest)}
    assert names(server, "contended") == {"manifest.json", *listed}


def test_a_manifest_is_written_only_where_there_is_none(server: Server) -> None:
    """The server's condition alone tells, where the other comes after the question."""
    url = Url(f"{BUCKET}/conditional/manifest.json")

    def overtake(method: str, path: str) -> None:
        if method == "PUT":
            server.answer.clear()
            server.put("conditional/manifest.json", b"another's")

    server.answer.append(overtake)
    with pytest.raises(FileExistsError):
        url.put(b"mine", None)
    version = url.version()
    server.put("conditional/manifest.json", b"a third's")
    with pytest.raises(FileExistsError):
        url.put(b"mine", version)
    assert url.read_bytes() == b"a third's"
    url.put(b"mine", url.version())
    assert url.read_bytes() == b"mine"


KILLED_CONVERSION = """
import os, sys, signal, streamcd
from streamcd.conversion import publication
real = publication.Publication.upload
def upload(self, work, name):
    real(self, work, name)
    os.kill(os.getpid(), signal.SIGKILL)
publication.Publication.upload = upload
streamcd.convert(sys.argv[1], sys.argv[2], memory="2GB")
"""


def test_what_a_killed_conversion_left_is_named_and_removed_with_force(
    server: Server, text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_bytes(text)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # it is looked for once
    url = f"{BUCKET}/killed"
    done = subprocess.run([sys.executable, "-c", KILLED_CONVERSION, str(tmp_path / "text"), url], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(names(server, "killed")) == 1
    shown = command_line.run("info", url)
    assert shown.returncode == 2
    assert shown.stderr.count("which no manifest lists") == 1
    arguments = ["convert", str(tmp_path / "text"), url, "--memory", "2GB", "--quiet", "--json"]
    shown = command_line.run(*arguments)
    assert shown.returncode == 0, shown.stderr
    assert "which no manifest lists" in shown.stdout
    shown = command_line.run(*arguments)
    assert shown.returncode == 2
    assert "--force" in shown.stderr
    shown = command_line.run(*arguments, "--force")
    assert shown.returncode == 0, shown.stderr
    assert "which no manifest lists" not in shown.stdout
    made = open_dataset(url)
    assert names(server, "killed") == {
        "manifest.json",
        *(name for name, *_ in made.listed_files(made.manifest)),
    }
    assert not list(tmp_path.glob(".streamcd-upload-*"))


def test_a_conversion_that_fails_leaves_nothing_in_the_bucket(
    server: Server, text: bytes, tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(text)
    server.answer.append(lambda method, path: 503 if method == "PUT" and "features" in path else None)
    with pytest.raises(OSError, match="after 5 attempts"):
        converted(tmp_path / "text", f"{BUCKET}/failed")
    assert names(server, "failed") == set()
    server.answer.clear()
    server.put("failed/notes.txt", b"mine")
    with pytest.raises(UsageError, match="is not a dataset"):
        converted(tmp_path / "text", f"{BUCKET}/failed")
    with pytest.raises(UsageError, match="read only"):
        converted(tmp_path / "text", "https://example.com/data")


# ---------------------------------------------------------------------------------------------------------------------
# Runs in a bucket


def test_a_run_in_a_bucket_is_used_as_one_on_disk(
    server: Server, local: Dataset, text: bytes, tmp_path: Path
) -> None:
    """And ends with its bits; a copy of its files is a run on disk."""
    run, name = tmp_path / "run", f"{BUCKET}/whole/run"
    options: dict[str, Any] = {"tol": 1e-3, "loss": "log_loss"}
    streamcd.train(local, run, **options)
    trained = streamcd.train(local, name, **options)
    assert trained.run == name
    assert (trained.model.weights == weights(run)).all()
    assert trained.history.num_rows > 0
    results = [streamcd.resume(where, tol=1e-6) for where in (run, name)]
    assert results[0].passes == results[1].passes > trained.passes
    assert (streamcd.load_checkpoint(name).weights == weights(run)).all()
    (tmp_path / "test.txt").write_bytes(text)
    given = {"FILE": str(tmp_path / "test.txt"), "OUT": str(tmp_path / "out")}
    for command in (
        "info RUN",
        "verify RUN",
        "weights RUN",
        "evaluate FILE RUN",
        "predict FILE RUN -o OUT.csv --force",
        "export RUN OUT.txt --format liblinear --force",
    ):
        said, files = [], []
        for where in (str(run), name):
            words = [where if word == "RUN" else word for word in command.split()]
            for short, long in given.items():
                words = [word.replace(short, long) for word in words]
            shown = command_line.run(*words, "--json")
            assert shown.returncode == 0, shown.stderr
            said.append(shown.stdout.replace(where, "RUN"))
            files.append([path.read_bytes() for path in sorted(tmp_path.glob("out.*"))])
        assert files[0] == files[1]
        if "info" not in command:  # seconds
            assert said[0] == said[1]
    for key in names(server, "whole/run"):
        path = tmp_path / "copy" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        server.client.download_file("bucket", f"whole/run/{key}", str(path))
    assert streamcd.resume(tmp_path / "copy", tol=1e-9).converged


def test_a_search_in_a_bucket_is_resumed(server: Server, local: Dataset, tmp_path: Path) -> None:
    options: dict[str, Any] = {"C": [0.01, 0.1], "cv": 2, "tol": 1e-3}
    results = []
    for where in (tmp_path / "search", f"{BUCKET}/search"):
        streamcd.tune(local, where, **options)
        results.append(streamcd.resume(where, tol=1e-6))
    assert results[0].scores == results[1].scores
    assert (results[0].model.weights == results[1].model.weights).all()


class Killed(BaseException):
    """The end of a process, which no code of its own outlives."""


@pytest.mark.parametrize(
    ("workers", "every"),
    [
        (0, 17),
        (2, 17),
        pytest.param(0, 1, marks=pytest.mark.slow),
        pytest.param(2, 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_in_a_bucket_killed_at_any_request_resumes_to_the_same_bits(
    server: Server, local: Dataset, tmp_path: Path, workers: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before an upload, a removal or a look at who has the run, of the first training and then of the second."""
    client = Simulation(workers) if workers else None
    options: dict[str, Any] = {"tol": 1e-9, "max_passes": 4, "client": client}
    streamcd.train(local, tmp_path / "calm", checkpoint_every=0.001, **options)
    left = [0]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return call(*arguments)

        return do

    monkeypatch.setattr("streamcd.training.loop._UPLOAD_PAUSE", 0)
    for method in ("upload", "remove", "put"):
        monkeypatch.setattr(Url, method, counted(getattr(Url, method)))
    moments, run = 1 - every, f"{BUCKET}/killed-{workers}"
    while left[0] <= 0:
        moments += every
        left[0] = moments
        with contextlib.suppress(Killed):
            streamcd.train(local, run, checkpoint_every=0.001, force=True, **options)
        if left[0] > 0:
            break  # it came to its end
        left[0] = moments
        with contextlib.suppress(Killed, CheckpointError):  # there is no run yet
            streamcd.resume(run, client=client)
        left[0] = -1
        if "config.json" in names(server, f"killed-{workers}"):
            resumed = streamcd.resume(run, client=client)
            assert (resumed.model.weights == weights(tmp_path / "calm")).all(), moments
    assert moments > 30


_GUARD = """
import os, sys
from pathlib import Path

ALL, OWN = {all!r}, {own!r}

def refuse(event, arguments):
    if event in ("open", "os.mkdir") and isinstance(arguments[0], str | os.PathLike):
        path = os.fspath(arguments[0])
        if path.startswith(ALL) and not path.startswith(OWN):
            raise FileNotFoundError(2, "on another machine", path)
        if event == "open" and path.endswith(".bin") and not os.path.exists(OWN + "/kept"):
            Path(OWN, "kept").write_text(path)

sys.addaudithook(refuse)
"""
"""What keeps a worker to the directory of its machine, and notes that it has dual variables there."""


class Machines(Commands):
    """A scheduler, and workers each of which sees its own directory alone."""

    def start_machine(self, number: int) -> subprocess.Popen[bytes]:
        own = self.folder / f"machine-{number}"
        own.mkdir()
        guard = own / f"guard{number}.py"
        guard.write_text(_GUARD.format(all=str(self.folder), own=str(own)))
        options = "--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"
        return self.start("worker", self.address, *options, "--local-directory", own, "--preload", guard)


@pytest.fixture
def machines(server: Server, tmp_path: Path) -> Iterator[Machines]:
    with Machines(tmp_path) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(("place", "loss"), [("bucket", "hinge"), ("bucket", "log_loss"), ("disk", "hinge")])
def test_three_workers_without_a_shared_disk_of_which_one_is_killed_end_with_the_bits_of_three(
    server: Server,
    machines: Machines,
    place: str,
    loss: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Data in a bucket, the run there too or on the disk of the process that trains; nobody sees another's directory."""
    data = write_dataset(tmp_path / "data", random_rows(2000, 30, seed=5), n_chunks=36, n_shards=12)
    remote = server.upload(data.path, f"three-{place}-{loss}")
    run = f"{BUCKET}/run-{loss}" if place == "bucket" else str(tmp_path / "run")
    options: dict[str, Any] = {"loss": loss, "tol": 1e-15, "acceleration": "none", "memory": "600MB"}
    streamcd.train(remote, tmp_path / "calm", client=Simulation(3), max_passes=30, **options)
    processes = [machines.start_machine(number) for number in range(3)]
    rounds = 0

    def kill_one() -> None:
        nonlocal rounds
        rounds = max(
            rounds,
            *(len(log.read_text().splitlines()) for log in (tmp_path / "scratch").rglob("log.jsonl")),
            0,
        )
        if rounds >= 4:
            processes[1].kill()

    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    if place == "disk":
        run = str(tmp_path / "scratch" / "run")
    with open_client(machines.address, 0) as client:
        client.wait_for_workers(3)
        streamcd.train(remote, run, client=client, max_passes=18, stop_requested=kill_one, **options)
        assert rounds >= 4
        assert processes[1].wait(10)
        machines.start_machine(3)
        client.wait_for_workers(3)
        trained = streamcd.resume(run, client=client, max_passes=30)
    assert (trained.model.weights == weights(tmp_path / "calm")).all()
    used = trained.history["workers"].to_pylist()
    assert {2, 3} == set(used)
    assert set(trained.history["parts"].to_pylist()) == {3}
    assert max(trained.history["attempts"].to_pylist()) > 1
    assert len(list(tmp_path.glob("machine-*/kept"))) == 4


def test_shards_dealt_to_folders_of_a_bucket_go_on_and_train_to_the_bits_of_disks(
    server: Server, local: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dealing that the server ends leaves no dataset; again, it copies the rest. Workers read nothing but their folder."""
    distributed = pytest.importorskip("distributed")
    places, puts = [f"{BUCKET}/dealt/{name}" for name in "ab"], 0

    def refuse(method: str, path: str) -> int | None:
        nonlocal puts
        puts += method == "PUT"
        return 403 if puts == 5 else None

    server.answer[:] = [refuse]
    with pytest.raises(PermissionError, match=r"no permission .*dealt/a/"):
        distribute(local.path, places)
    server.answer.clear()
    listed = location(places[0])
    assert isinstance(listed, Url)
    assert 0 < len(listed.find()) <= 4
    assert "manifest.json" not in listed.find()
    made = distribute(local.path, places)
    assert 0 < sum(one["copied"] for one in made) < sum(one["bytes"] for one in made)
    assert [one["copied"] for one in distribute(local.path, places)] == [0, 0]
    with pytest.raises(UsageError, match="found shards of another one"):
        distribute(local.path, places[::-1])
    server.put("dealt/other/file", b"")
    with pytest.raises(UsageError, match="other: expected an empty directory, found other files"):
        distribute(local.path, [f"{BUCKET}/dealt/other", places[1]])

    disks = [tmp_path / "a", tmp_path / "b"]
    distribute(local.path, disks)
    held = [{Path(name).name for name in location(place).find() if "entries/" in name} for place in places]
    assert held == [shards_of(disk) for disk in disks]
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    for run, own in (("buckets", places), ("disks", list(map(str, disks)))):
        with (
            monkeypatch.context() as patched,
            distributed.LocalCluster(**settings) as cluster,
            distributed.Client(cluster, set_as_default=False) as client,
        ):
            own_disks(own, patched)
            server.requests.clear()
            trained = streamcd.train(
                local, tmp_path / run, client=client, loss="hinge", tol=1e-6, max_passes=500
            )
            assert trained.converged
            read = {path.split("/")[3] for _, path, _ in server.requests if path.startswith("/bucket/dealt/")}
            assert read == ({"a", "b"} if run == "buckets" else set())
    assert (weights(tmp_path / "buckets") == weights(tmp_path / "disks")).all()


def test_a_run_in_a_bucket_is_whoevers_opened_it_last(server: Server, local: Dataset) -> None:
    """The one that had it before ends at its next checkpoint, and damages nothing."""
    run, taken = f"{BUCKET}/two", []

    def take_over() -> None:
        if not taken and "state.npz" in names(server, "two"):
            taken.append(streamcd.resume(run, max_passes=3, tol=1e-3))

    endless: dict[str, Any] = {"tol": 1e-15, "max_passes": 100_000, "loss": "hinge", "C": 100.0}
    with pytest.raises(LockError, match=f"{run}: another process has opened this run") as caught:
        streamcd.train(local, run, checkpoint_every=0.001, stop_requested=take_over, **endless)
    assert caught.value.exit_status == 1
    assert (streamcd.load_model(run).weights == taken[0].model.weights).all()


@pytest.mark.usefixtures("lend")
def test_the_examples_of_the_documentation_run(
    server: Server, local: Dataset, remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_docs import examples

    rng = np.random.default_rng(3)
    lines = [
        f"{label} 3:{value:.3f}\n".encode()
        for label, value in zip([1, -1] * 50, rng.standard_normal(100), strict=True)
    ]
    server.put("days/1.txt.gz", gzip.compress(b"".join(lines)))
    server.put("days/2.txt", b"".join(lines))
    monkeypatch.chdir(tmp_path)
    for language, content in examples("remote.md"):
        if language == "python":
            exec(content, {})
            continue
        for line in content.splitlines():
            shown = command_line.run(*shlex.split(line)[1:])
            assert shown.returncode == 0, (line, shown.stderr)
