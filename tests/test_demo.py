"""The demo, on little data: it kills, resumes, compares, and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import pytest
from conftest import SUBPROCESS_ENVIRONMENT
from forking import DEVNULL, PIPE, Forked

from streamcd import Listener
from streamcd.cli import demo
from streamcd.cli.demo import DemoSize, result_rows, run_demo, write_example
from streamcd.core.errors import UsageError

# so small a gap takes passes enough for a kill to find the training at work
SMALL = DemoSize(
    train_blocks=4,
    test_blocks=1,
    n_features=3000,
    entries_per_row=30,
    memory="400MB",
    tol=1e-9,
    checkpoint_every=0.02,
)


def forked(command, cwd, stdout, env, text):
    """Start a step of the demo."""
    assert command[0] == sys.executable
    return Forked(command[1:], cwd=cwd, stdout=stdout, env=env)


def test_the_killed_training_resumes_to_the_same_weights_and_nothing_is_left(
    tmp_path, monkeypatch, lent_workers
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "Pool", lent_workers)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(demo, "subprocess", SimpleNamespace(Popen=forked, PIPE=PIPE))
    result = run_demo(None, Listener(), SMALL)
    assert result["ok"] is True
    assert 0 < result["killed_in_pass"] <= result["passes"] == result["passes_after_resume"]
    assert result["accuracy"] > 0.7
    assert dict(result_rows(result))["weights of the two"] == "equal, bit for bit"
    assert os.listdir(tmp_path) == []


def test_keep_leaves_the_files_and_wants_an_empty_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="with keep"):
        run_demo(str(tmp_path), Listener(), SMALL)


def test_an_example_that_the_disk_has_no_room_for_leaves_nothing(tmp_path, monkeypatch):
    def write_half(path, **_):
        path.write_text("1 1:1\n")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("streamcd.cli.demo.write_text_like", write_half)
    with pytest.raises(OSError, match=r"train\.txt"):
        write_example(str(tmp_path / "reviews"), Listener())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_cleans_up(tmp_path, signum, status):
    environment = {**SUBPROCESS_ENVIRONMENT, "TMPDIR": str(tmp_path)}
    process = Forked(["-m", "streamcd", "demo"], env=environment, stdout=DEVNULL, stderr=PIPE)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/train/*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_demo_itself_keeps_its_budget(tmp_path):
    command = [sys.executable, "-m", "streamcd", "demo", "--keep", str(tmp_path / "kept"), "--json"]
    result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert result["ok"]
    assert result["decoded_bytes"] > 1.8 * result["budget_bytes"]
    assert (tmp_path / "kept" / "run-killed" / "model" / "model.json").exists()
