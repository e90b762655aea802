"""Python processes that are copies of one that has everything loaded: for a command, 0.02 s of a processor instead of 0.7.

``python forking.py DESCRIPTOR`` is that one: it takes orders from a socket, has a single thread, and copies itself for
each. The copy becomes what a new interpreter would be, but for the modules: directory, environment, arguments, standard
streams, signals, `__main__`, and an end of its own. What is said of starting, loading or memory needs a new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import multiprocessing.connection
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL


class Forked:
    """A process, used like `subprocess.Popen` in text mode; its arguments are those of ``python``: ``-m`` or ``-c``."""

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        input: str | bytes = b"",
        stdout: int | TextIO | None = None,
        stderr: int | TextIO | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.args, self.returncode = [str(argument) for argument in arguments], None
        theirs: list[int] = []
        stdin_out, stdin_in = os.pipe()
        theirs.append(stdin_out)
        self.stdout, self.stderr = (self._stream(theirs, given) for given in (stdout, stderr))
        status_out, status_in = os.pipe()
        order = {
            "arguments": self.args,
            "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
        }
        _send(_server(), order, [*theirs, status_in])
        for descriptor in (*theirs, status_in):
            os.close(descriptor)
        threading.Thread(target=_feed, args=(stdin_in, input), daemon=True).start()
        self._status = open(status_out)  # noqa: SIM115 - closed by `wait`
        self.pid = int(self._status.readline())

    @staticmethod
    def _stream(theirs: list[int], given: int | TextIO | None) -> TextIO | None:
        """Append the descriptor that the process gets; return the reader's end of a pipe."""
        if given == PIPE:
            out, into = os.pipe()
            theirs.append(into)
            return open(out)
        if given == DEVNULL:
            theirs.append(os.open(os.devnull, os.O_WRONLY))
        else:
            theirs.append(os.dup(2 if given is None else given if isinstance(given, int) else given.fileno()))
        return None

    def poll(self) -> int | None:
        return self.wait(0) if self._has_ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def _has_ended(self, timeout: float | None) -> bool:
        return self.returncode is not None or bool(multiprocessing.connection.wait([self._status], timeout))

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both streams to their ends, and wait."""
        said = ["", ""]

        def read(number: int, stream: TextIO) -> None:
            with stream:
                said[number] = stream.read()

        streams = [(number, stream) for number, stream in enumerate((self.stdout, self.stderr)) if stream]
        readers = [threading.Thread(target=read, args=each, daemon=True) for each in streams]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return said[0], said[1]


def run(arguments: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Start a process and wait for it, with what it has said."""
    process = Forked(arguments, **{"stdout": PIPE, "stderr": PIPE, **options})
    said = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.wait(), *said)


@functools.cache
def _server() -> socket.socket:
    """The one to copy, which ends when this process does."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=DEVNULL)
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _send(to: socket.socket, order: dict[str, Any], descriptors: list[int]) -> None:
    content = json.dumps(order).encode()
    socket.send_fds(to, [len(content).to_bytes(4, "little")], descriptors)
    to.sendall(content)


def _feed(descriptor: int, content: str | bytes) -> None:
    with open(descriptor, "wb") as stream, contextlib.suppress(BrokenPipeError):
        stream.write(content.encode() if isinstance(content, str) else content)
        stream.flush()


# ---------------------------------------------------------------------------------------------------------------------
# In the process that is copied


def _load() -> None:
    """Import all that commands do, and load the kernels of the commonest."""
    import streamcd
    from streamcd.cli.commands import cli

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text, data, run = (os.path.join(folder, name) for name in ("text", "data", "run"))
        Path(text).write_text("1 1:1 2:3\n-1 2:1\n" * 20)
        streamcd.convert(text, data)
        streamcd.train(data, run, max_passes=2)
        streamcd.predict(data, run, os.path.join(folder, "out.txt"))
    assert cli.commands
    assert threading.active_count() == 1
    gc.freeze()  # a copy that searched all this for garbage, as it does at its end, would copy all its memory: 0.3 s


def _await_order(orders: socket.socket) -> dict[str, Any]:
    """Return, in a copy of this process, with an order to carry out."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(orders, 4, 4)
        _reap(os.WNOHANG if head else 0)
        if not head:
            os._exit(0)
        order = json.loads(orders.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL))
        *streams, status = descriptors
        waiting = os.fork()
        if waiting:
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        child = os.fork()
        if child:
            for descriptor in streams:
                os.close(descriptor)
            os.write(status, f"{child}\n".encode())
            _, ended = os.waitpid(child, 0)
            os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
            os._exit(0)
        if order["session"]:
            os.setsid()
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.closerange(3, 256)
        return order


def _reap(options: int) -> None:
    """Wait for the copies that wait for copies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _carry_out(order: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    tempfile.tempdir = None  # looked up in the environment again
    option, what, *arguments = order["arguments"]
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(main))


if __name__ == "__main__":
    _load()
    _carry_out(_await_order(socket.socket(fileno=int(sys.argv[1]))))


def start_endless_training(data: Path, run: Path, **options: Any) -> Forked:
    """Start a training without an end, and return once its log has begun; it has a checkpoint every tenth of a second."""
    endless = ["--tol", "0", "--max-passes", "100000000", "--checkpoint-every", "0.1s"]
    process = Forked(["-m", "streamcd", "train", data, run, *endless], stderr=PIPE, **options)
    wait_for(run / "log.jsonl", process)
    return process


def wait_for(path: Path, process: Forked) -> None:
    """Wait until a process has made a file."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.stderr
        assert time.monotonic() < deadline
        time.sleep(0.02)
