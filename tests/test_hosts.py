"""Hosts on one machine: what their limits are written as, and, for root, what they bound and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import streamcd
from streamcd import StreamcdError
from tools import hosts as hosts_module
from tools.control_groups import Limits, bytes_read, settings
from tools.hosts import check, made_hosts
from tools.make_data import SHAPES, write_dataset
from tools.simulated_cluster import Simulation
from tools.worker_times import course_of, memory_for, reads_of


def possible() -> bool:
    try:
        check()
    except StreamcdError:
        return False
    return True


needs_hosts = pytest.mark.skipif(not possible(), reason="needs root, iproute2 and control groups")
SMALL = replace(SHAPES["text"], rows=8_000, features=8_000)
RATES = Limits(disk=50_000_000, processors=0.2, memory=200_000_000)


def test_limits_of_version_1_are_lifted_again() -> None:
    assert settings(RATES, "8:0", 1) == {
        "blkio.throttle.read_bps_device": "8:0 50000000",
        "blkio.throttle.write_bps_device": "8:0 50000000",
        "cpu.shares": "20480",
        "cpu.cfs_period_us": "10000",
        "cpu.cfs_quota_us": "2000",
        "memory.limit_in_bytes": "200000000",
    }
    lifted = settings(Limits(), "8:0", 1)
    assert lifted["blkio.throttle.read_bps_device"] == "8:0 0"
    assert lifted["cpu.cfs_quota_us"] == lifted["memory.limit_in_bytes"] == "-1"


def test_limits_of_version_2_are_lifted_again() -> None:
    assert settings(RATES, "8:0", 2) == {
        "io.max": "8:0 rbps=50000000 wbps=50000000",
        "cpu.weight": "2000",
        "cpu.max": "2000 10000",
        "memory.max": "200000000",
    }
    assert settings(Limits(), "8:0", 2) == {
        "io.max": "8:0 rbps=max wbps=max",
        "cpu.weight": "2000",
        "cpu.max": "max 10000",
        "memory.max": "max",
    }


@pytest.mark.parametrize(
    "counters",
    [
        "8:0 Read 4096\n8:0 Write 1\n254:0 Read 8192\n254:0 Write 2\nTotal 12291\n",
        "8:0 rbytes=4096 wbytes=1 rios=1\n254:0 rbytes=8192 wbytes=2 rios=2\n",
    ],
)
def test_bytes_read_are_those_of_the_disk(counters: str) -> None:
    assert bytes_read(counters, "254:0") == 8192
    assert bytes_read(counters, "7:0") == 0


def test_what_a_machine_lacks_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(hosts_module, "_PROGRAMS", ("no-such-program",))
    with pytest.raises(StreamcdError, match="the rights of root, the program no-such-program") as caught:
        check()
    assert caught.value.exit_status == 2


def left(mark: str) -> list[str]:
    """What is left of the hosts of a process."""
    places = [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/blkio",
        "/sys/fs/cgroup/cpu",
        "/sys/fs/cgroup/memory",
        "/run/netns",
    ]
    return [
        f"{place}/{name}"
        for place in places
        if os.path.isdir(place)
        for name in os.listdir(place)
        if mark in name
    ]


@needs_hosts
@pytest.mark.slow
def test_a_disk_has_its_rate_and_is_counted() -> None:
    """Not in the folder of tests, which may be in memory."""
    path = Path(__file__).parent / f"hosts-{os.getpid()}.bin"
    try:
        path.write_bytes(os.urandom(10_000_000))
        with made_hosts(1, 1e8, path.parent) as (host,):
            host.limit(Limits(disk=5_000_000))
            started = time.monotonic()
            read = ["dd", f"if={path}", "of=/dev/null", "bs=1M", "iflag=direct"]
            assert host.start(read, stderr=subprocess.DEVNULL).wait() == 0
            assert time.monotonic() - started > 1.5
            assert host.group.bytes_read() >= 10_000_000
    finally:
        path.unlink(missing_ok=True)


RECEIVE = (
    "import socket; s = socket.create_server(('10.0.0.1', 9999)); c, _ = s.accept(); print(len(c.recv(9)))"
)
SEND = """import socket, time
for _ in range(100):
    try: socket.create_connection(('10.0.0.1', 9999)).sendall(b'x' * 5)
    except OSError: time.sleep(0.1)
    else: break
"""


@needs_hosts
@pytest.mark.slow
def test_hosts_reach_each_other_and_do_not_see_what_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("")
    with made_hosts(2, 1e8, Path(__file__)) as (one, other):
        listening = one.start([sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
        other.start([sys.executable, "-c", SEND])
        assert listening.communicate(timeout=30)[0] == "5\n"
        seen = other.start(["ls", str(tmp_path)], hidden=tmp_path, stdout=subprocess.PIPE)
        assert seen.communicate(timeout=30)[0] == ""
    assert (tmp_path / "own").exists()


HANGING = """
import sys
from pathlib import Path
from tools.hosts import made_hosts
with made_hosts(2, 1e8, Path(sys.argv[1])) as hosts:
    hosts[1].start(["sleep", "1000"])
    print("made", flush=True)
    hosts[1].start(["sleep", "1000"]).wait()
"""


@needs_hosts
@pytest.mark.slow
def test_nothing_is_left_after_an_interruption() -> None:
    command = [sys.executable, "-c", HANGING, __file__]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    mark = f"streamcd-{process.pid}"
    assert len(left(mark)) > 3
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    assert left(mark) == []


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder on a disk: that of other tests may be in memory."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        yield Path(folder)


@needs_hosts
@pytest.mark.slow
def test_workers_in_hosts_make_the_rounds_of_a_simulation(on_disk: Path, tmp_path: Path) -> None:
    write_dataset(SMALL, on_disk / "data", shard_size="250kB", chunk_size="20kB")
    data = streamcd.open(on_disk / "data")
    course = course_of(data, on_disk, 2, "squared_hinge", 1e-3)
    memory, _ = memory_for(data, 0, loss="squared_hinge")
    options = {"loss": "squared_hinge", "method": "dual", "memory": memory}
    streamcd.train(data, tmp_path / "run", client=Simulation(2), **options)
    real, simulated = (
        [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        for run in (on_disk / "runs" / "run", tmp_path / "run")
    )
    assert [each["dual"] for each in real] == [each["dual"] for each in simulated]
    assert course.reads >= 0.9 * real[-1]["read"]


def test_reads_from_the_page_cache_are_refused(tmp_path: Path) -> None:
    write_dataset(replace(SMALL, rows=500), tmp_path / "data")
    data = streamcd.open(tmp_path / "data")
    n_bytes = sum(map(data.chunk_bytes, range(data.n_chunks)))
    log = [{"bytes_read": n_bytes}, {"bytes_read": n_bytes // 9}, {"bytes_read": n_bytes}]
    assert reads_of(data, log, 2 * n_bytes) == 2
    with pytest.raises(StreamcdError, match="expected 2 reads of"):
        reads_of(data, log, n_bytes)
    with pytest.raises(StreamcdError, match="expected 3 reads of"):
        reads_of(data, [{"round": 1, "read": 3}], 2 * n_bytes)
