"""Hosts on one machine, for measurements of several: each has a network address, and rates of its own.

A host is a network namespace, with a link to a switch that is a namespace too, and a control group: what its processes read
and write passes at the rate of its disk, its link and its processors, though all of them are the machine's. Only root can
make hosts, on Linux. They are gone with their processes when the context is left.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamcd.core.errors import EnvironmentFailure, UsageError
from tools.control_groups import ControlGroup, Limits, disk_of, lacking

_PROGRAMS = ("ip", "tc", "nsenter", "unshare", "mount")
_BURST = 128_000
"""Bytes that may pass a link at once; a segment of TCP is up to 64 kB."""
_LATENCY = "20ms"  # of what waits for a link: as much as it carries in this time


@dataclass
class Host:
    """Host whose processes are started by `start`."""

    address: str
    group: ControlGroup
    namespace: str
    _processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, command: Sequence[str], hidden: Path | None = None, **options: Any) -> Any:
        """Start a process, which does not see what is in the folder `hidden`; `options` are those of `Popen`.

        It is in a session of its own: Ctrl-C ends it by way of this process, which cleans up.
        """
        join = "; ".join(f"echo $$ > {shlex.quote(str(each))} || exit 1" for each in self.group.entrances)
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount"]
        if hidden is not None:
            enter += ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hidden)]
        whole = ["sh", "-c", f'{join}; exec "$@"', "sh", *enter, *command]
        self._processes.append(subprocess.Popen(whole, text=True, start_new_session=True, **options))
        return self._processes[-1]

    def limit(self, limits: Limits) -> None:
        """Bound what the host's processes take from now on."""
        self.group.limit(limits)

    def end(self) -> None:
        """Kill the host's processes."""
        self.group.remove()
        for process in self._processes:
            process.wait()


def check() -> None:
    """Refuse a machine that can have no hosts; the error says what is missing."""
    missing = [] if hasattr(os, "geteuid") and os.geteuid() == 0 else ["the rights of root"]
    missing += [f"the program {name}" for name in _PROGRAMS if shutil.which(name) is None]
    if missing := missing + lacking():
        raise UsageError(
            f"hosts are namespaces and control groups of Linux; missing here: {', '.join(missing)}"
        )


@contextmanager
def made_hosts(count: int, link: float, path: Path) -> Iterator[list[Host]]:
    """Make hosts with links of so many bytes a second; `path` is on the disk of which each has a share."""
    check()
    mark, device = f"streamcd-{os.getpid()}", disk_of(path)
    with ExitStack() as stack:
        switch = _make_namespace(stack, f"{mark}-switch")
        _call("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        _call("ip", "-n", switch, "link", "set", "switch", "up")
        hosts = []
        for number in range(count):
            name = _make_namespace(stack, f"{mark}-{number}")
            address = f"10.0.0.{number + 1}"
            _connect(name, switch, f"port{number}", address, link)
            host = Host(address, ControlGroup(name, device), name)
            stack.callback(host.end)  # before it is made: an interruption may come at any time
            host.group.make()
            hosts.append(host)
        yield hosts


def _make_namespace(stack: ExitStack, name: str) -> str:
    stack.callback(subprocess.run, ["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
    _call("ip", "netns", "add", name)
    return name


def _connect(name: str, switch: str, port: str, address: str, link: float) -> None:
    """Connect a host to the switch, by a link whose rate is bounded in either direction."""
    _call("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
    _call("ip", "-n", switch, "link", "set", port, "master", "switch")
    _call("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
    rate = f"rate {8 * link:.0f}bit burst {_BURST} latency {_LATENCY}".split()
    for where, device in ((name, "eth0"), (switch, port)):
        _call("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", *rate)
        _call("ip", "-n", where, "link", "set", device, "up")
    _call("ip", "-n", name, "link", "set", "lo", "up")


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise EnvironmentFailure(
            f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}"
        )
