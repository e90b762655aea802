"""Training in processes that are killed at a chosen moment; ``python crashing.py`` takes orders on standard input.

One process loads everything once, compiled kernels too, and forks a child for every order. An order is
a line of JSON: ``{"call": "train" or "resume", "arguments": {...}, "die": {...}}``, where ``die`` is one of

* ``{"after": seconds}``: SIGKILL so long after the first window was trained,
* ``{"at": n, "half": bool}``: the child kills itself at its n-th operation on files (a write to a slot, a sync, a rename),
  with `half` after writing only half of it,
* ``{}``: not at all.

The answer is a line of JSON: ``{"ended": "killed" or "done" or "failed", "operations": n}``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tools.faults.injection import FaultyFiles


class CrashingProcess:
    """The test's end of the line; a context manager."""

    def __init__(self) -> None:
        folder = Path(__file__).resolve().parent
        self._process = subprocess.Popen(
            [sys.executable, str(folder / "crashing.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{folder.parent}{os.pathsep}{folder}"},
        )

    def __call__(self, call: str, die: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        """Train or resume in a process of its own; returns how it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"call": call, "die": die or {}, "arguments": arguments}
        self._process.stdin.write(json.dumps(order, default=str) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert answer["ended"] != "failed", answer
        return answer

    def __enter__(self) -> CrashingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def _work(order: dict[str, Any], ready: int, report: int) -> None:
    """What the child does; writes to `ready` when the first window is done, its count of operations to `report`."""
    from streamcd import resume, train
    from streamcd.stream.memory_plan import Plan

    die, arguments = order["die"], order["arguments"]
    how = "half" if die.get("half") else "before"
    files = FaultyFiles(die.get("at", 0), how, ("pwritev", "fsync", "replace"))
    files.install()

    def first_window() -> None:
        nonlocal ready
        if ready >= 0:
            os.write(ready, b"x")
            os.close(ready)
            ready = -1

    if "plan" in arguments:
        arguments["plan"] = Plan(*arguments["plan"])
    {"train": train, "resume": resume}[order["call"]](**arguments, stop_requested=first_window)
    os.write(report, str(files.count).encode())


def _carry_out(order: dict[str, Any]) -> dict[str, Any]:
    (ready_out, ready_in), (report_out, report_in) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        status = 0
        try:
            _work(order, ready_in, report_in)
        except BaseException:
            os.write(report_in, traceback.format_exc().encode()[-3000:])
            status = 1
        os._exit(status)
    os.close(ready_in)
    os.close(report_in)
    if "after" in order["die"]:
        os.read(ready_out, 1)
        time.sleep(order["die"]["after"])
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    report = os.read(report_out, 4000).decode()
    os.close(ready_out)
    os.close(report_out)
    if os.WIFSIGNALED(status):
        return {"ended": "killed", "signal": os.WTERMSIG(status)}
    if status == 0:
        return {"ended": "done", "operations": int(report)}
    return {"ended": "failed", "why": report}


def _warm_up(arguments: dict[str, Any]) -> None:
    """Train one pass here, so that the children find the kernels loaded."""
    from streamcd import train
    from streamcd.stream.memory_plan import Plan

    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(*arguments["plan"])
        method = arguments.get("method", "dual")
        train(arguments["dataset"], folder, loss=arguments["loss"], method=method, plan=plan, max_passes=1)


if __name__ == "__main__":
    warm: set[tuple[str, str]] = set()
    for line in sys.stdin:
        order = json.loads(line)
        kind = order["arguments"].get("loss", ""), order["arguments"].get("method", "")
        if order["call"] == "train" and kind not in warm:
            _warm_up(order["arguments"])
            warm.add(kind)
            gc.freeze()  # else a child that collects garbage copies all of this
        print(json.dumps(_carry_out(order)), flush=True)
