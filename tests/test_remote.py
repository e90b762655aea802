"""Files and datasets at URLs: an S3 server and a web server on loopback, started once for the module."""

from __future__ import annotations

import contextlib
import functools
import gzip
import http.server
import logging
import os
import shlex
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import command_line
import numpy as np
import pytest
from conftest import LentWorkers
from heard import Heard
from small_datasets import random_rows, windows_of, write_dataset

import streamcd
from streamcd import Dataset
from streamcd import open as open_dataset
from streamcd.core.errors import DataError, DatasetError, UsageError
from streamcd.core.storage import Url, location, open_bytes

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
    reset = urllib.request.Request(f"{settings['AWS_ENDPOINT_URL']}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()  # a server that runs here next has the same buckets
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
def quiet_server(server: Server) -> None:
    server.answer.clear()
    server.requests.clear()


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


def test_a_folder_is_read_as_on_the_disk(server: Server, tmp_path: Path) -> None:
    """Files below its top were left out, and keys of folders were no columns."""
    for number, name in enumerate(
        ("t.csv", "k=1/t.csv", "k=2/more/t.csv", "k=2/_temporary/t.csv", "k=2/.t.crc", "e.csv")
    ):
        (tmp_path / "top" / name).parent.mkdir(parents=True, exist_ok=True)
        rows = "" if name == "e.csv" else f"a,y\n{number},0\n{number},1\n"
        (tmp_path / "top" / name).write_text(rows)
    url = server.upload(tmp_path / "top", "top")
    expected = converted(tmp_path / "top", tmp_path / "disk", label="y")
    assert Dataset.open(tmp_path / "disk").n_rows == 6
    for source in (url, f"{url}/", f"{url}/*"):
        heard = Heard()
        assert converted(source, tmp_path / "bucket", label="y", listener=heard, force=True) == expected
        assert heard.messages[0] == "reading 3 files of 3 folders"
        for name in ("e.csv (empty)", "k=2/_temporary (hidden)", "k=2/.t.crc (hidden)"):
            assert f"{url}/{name}" in heard.messages[1]


def test_a_source_that_changes_while_it_is_read_is_noticed(
    server: Server, text: bytes, tmp_path: Path
) -> None:
    text = text * 3  # of some reads' length
    url = server.put("changing.txt", text)
    changed = text.replace(b"-1 ", b"+1 ", 1)

    def change_once(method: str, path: str) -> None:
        n_reads = sum(method == "GET" and bool(part) for method, _, part in server.requests)
        if n_reads == 2:
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
    with pytest.raises(UsageError, match="expected files, found none"):
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


def test_what_is_no_dataset_is_said(server: Server) -> None:
    shown = command_line.run("info", f"{BUCKET}/none")
    assert shown.returncode == 2
    assert "does not exist" in shown.stderr


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
    assert list((tmp_path / "cache").glob("*/entries/part-*"))
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


# ---------------------------------------------------------------------------------------------------------------------
# Cache


def asks_for_parts(server: Server) -> bool:
    return any("/part-" in path for _, path, _ in server.requests)


@pytest.mark.usefixtures("lend")
def test_what_a_cache_holds_is_not_asked_for_again(
    server: Server, local: Dataset, remote: str, tmp_path: Path
) -> None:
    """By a resumption, which finds the cache by the run's record; and no bit depends on it."""
    options: dict[str, Any] = {"plan": windows_of(local, 3), "tol": 1e-9}
    streamcd.train(local, tmp_path / "near", max_passes=2, **options)
    streamcd.resume(tmp_path / "near", max_passes=6)
    streamcd.train(remote, tmp_path / "far", max_passes=2, cache=tmp_path / "cache", **options)
    server.requests.clear()
    streamcd.resume(tmp_path / "far", max_passes=6)
    assert np.array_equal(weights(tmp_path / "near"), weights(tmp_path / "far"))
    assert not asks_for_parts(server)
    with pytest.raises(UsageError, match="for a dataset at a URL"):
        streamcd.train(local, tmp_path / "third", cache=tmp_path / "cache")


def test_a_copy_cut_short_is_made_again_and_a_damaged_one_is_named_and_removed(
    server: Server, local: Dataset, remote: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache", "max_passes": 3}
    streamcd.train(remote, tmp_path / "first", **options)
    rows, entries = (
        sorted((tmp_path / "cache").glob(f"*/{name}/*.parquet"))[1] for name in ("rows", "entries")
    )
    rows.write_bytes(rows.read_bytes()[:-1])
    content = bytearray(entries.read_bytes())
    content[len(content) // 4] ^= 1
    entries.write_bytes(content)
    with pytest.raises(DatasetError, match=str(entries)):
        streamcd.train(remote, tmp_path / "second", **options)
    streamcd.train(remote, tmp_path / "third", **options)
    assert np.array_equal(weights(tmp_path / "first"), weights(tmp_path / "third"))


def test_another_dataset_in_its_place_has_copies_of_its_own(server: Server, tmp_path: Path) -> None:
    found = []
    for labels in ([0, 1, 1], [1, 0, 0]):
        data = streamcd.convert((np.eye(3), labels), tmp_path / str(labels))
        url = server.upload(data.path, "replaced")
        found.append(streamcd.open(url, cache=tmp_path / "cache").labels().tolist())
    assert found == [[0, 1, 1], [1, 0, 0]]


@pytest.mark.usefixtures("lend")
def test_the_examples_of_the_documentation_run(
    server: Server, local: Dataset, remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_docs import AT_URLS, examples

    rng = np.random.default_rng(3)
    lines = [
        f"{label} 3:{value:.3f}\n".encode()
        for label, value in zip([1, -1] * 50, rng.standard_normal(100), strict=True)
    ]
    server.put("days/1.txt.gz", gzip.compress(b"".join(lines)))
    server.put("days/2.txt", b"".join(lines))
    (tmp_path / "lines").write_bytes(b"".join(lines))
    server.upload(streamcd.convert(tmp_path / "lines", tmp_path / "made").path, "data")
    monkeypatch.chdir(tmp_path)
    for _, content in examples("tables.md", AT_URLS):
        for line in content.splitlines():
            shown = command_line.run(*shlex.split(line)[1:])
            assert shown.returncode == 0, (line, shown.stderr)
