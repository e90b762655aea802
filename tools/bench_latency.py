"""Time of a training from a bucket with a delay before every answer of the server, relative to the time without.

python tools/bench_latency.py [--delay 50] [--megabytes 100] [--windows 8] [--passes 4] [--repeats 3] [--cache]

An S3 server (moto's, of the extra 'test') runs in a process of its own on this machine. All trainings end at the same bits,
or the tool fails.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

URL = "s3://bucket/data"


def serve() -> None:
    """Answer requests; ``/-/delay/50`` sets the delay, in ms, of those to come, and ``/-/count`` tells their number."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    backend = DomainDispatcherApplication(create_backend_app)
    state = {"delay": 0.0, "count": 0}

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        _, *words = environ["PATH_INFO"].split("/")
        if words[0] == "-":
            state["delay"] = float(words[2]) / 1000 if words[1] == "delay" else state["delay"]
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [str(state["count"]).encode()]
        state["count"] += 1
        time.sleep(state["delay"])
        return backend(environ, start_response)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=MotoRequestHandler)
    print(running.server_port, flush=True)
    running.serve_forever()


def ask(address: str, words: str) -> int:
    """Send the server a request of `serve`; returns the number of requests so far."""
    with urllib.request.urlopen(f"{address}/-/{words}") as answer:
        return int(answer.read())


def make_data(n_bytes: int) -> None:
    """Convert random rows of 100 entries to the bucket."""
    import boto3
    import numpy as np
    import scipy.sparse

    import streamcd

    boto3.client("s3").create_bucket(Bucket="bucket")
    rng, n_rows = np.random.default_rng(0), n_bytes // 800
    index = (np.arange(100) * 1000 + rng.integers(0, 1000, (n_rows, 100))).ravel().astype(np.int32)
    value = rng.standard_normal(index.size, dtype=np.float32)
    X = scipy.sparse.csr_array((value, index, np.arange(n_rows + 1) * 100), shape=(n_rows, 100_000))
    y = np.where(X @ rng.standard_normal(100_000) > 0, 1, -1)
    streamcd.convert((X, y), URL, memory="2GB", shard_size="16MB")


def timed(
    address: str, delay: float, n_windows: int, n_passes: int, cache: str | None
) -> tuple[float, int, bytes]:
    """Train; returns seconds, requests and weights."""
    import warnings

    import streamcd
    from streamcd.stream.memory_plan import Plan

    ask(address, f"delay/{delay:g}")
    before, started = ask(address, "count"), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = streamcd.open(URL, cache=cache)
        plan = Plan(dataset.n_entries // n_windows, dataset.n_rows, resident=False, readers=2)
        streamcd.train(dataset, Path(folder) / "run", tol=1e-12, max_passes=n_passes, plan=plan)
        seconds = time.monotonic() - started
        weights = (Path(folder) / "run" / "model" / "weights.npy").read_bytes()
    ask(address, "delay/0")
    return seconds, ask(address, "count") - before, weights


def main() -> None:
    """Print the seconds and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--delay", type=float, default=50, help="ms before every answer")
    parser.add_argument("--megabytes", type=int, default=100, help="of decoded entries")
    parser.add_argument("--windows", type=int, default=8, help="windows of a pass")
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--cache", action="store_true", help="with a local cache, which the first training fills"
    )
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    os.environ |= {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "name",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    try:
        make_data(arguments.megabytes * 1_000_000)
        with tempfile.TemporaryDirectory() as folder:
            cache = folder if arguments.cache else None
            run = (arguments.windows, arguments.passes, cache)
            timed(address, 0, *run)  # compiles kernels, and fills the cache
            found: dict[float, list[tuple[float, int, bytes]]] = {0.0: [], arguments.delay: []}
            for _ in range(arguments.repeats):
                for delay, times in found.items():
                    times.append(timed(address, delay, *run))
    finally:
        server.terminate()
    assert len({weights for times in found.values() for *_, weights in times}) == 1, "not the same bits"
    without, delayed = (statistics.median(seconds for seconds, *_ in times) for times in found.values())
    print(
        f"{arguments.megabytes} MB, {arguments.passes} passes in windows of 1/{arguments.windows}, "
        f"{found[0.0][0][1]} requests: {without:.2f} s without delay, {delayed:.2f} s with {arguments.delay:g} ms each, "
        f"ratio {delayed / without:.2f}"
    )


if __name__ == "__main__":
    main()
