"""Control groups of Linux, of version 1 or 2: a disk's rate, processors and memory for a group of processes."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from streamcd.core.errors import EnvironmentFailure, UsageError

ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = {1: ("blkio", "cpu", "memory"), 2: ("io", "cpu", "memory")}
_PAUSE, _ATTEMPTS = 0.02, 100  # seconds between attempts to change a group that is busy
_PERIOD = 10_000
"""Microseconds after which a share of the processors is given anew: few, or messages wait for it longer than they would."""

_WEIGHT = 20  # of a group among those that want a processor: what else the machine does comes after it


@dataclass(frozen=True)
class Limits:
    """What a group may take at most; None is as much as there is."""

    disk: int | None = None  # bytes read in a second, and written
    processors: float | None = None
    memory: int | None = None  # bytes, with the pages of files that it reads


def settings(limits: Limits, device: str, version: int) -> dict[str, str]:
    """Return what is written to a group's files, by their names; `device` is the disk's ``major:minor``."""
    quota = None if limits.processors is None else round(_PERIOD * limits.processors)
    if version == 1:
        rate = f"{device} {limits.disk or 0}"
        return {
            "blkio.throttle.read_bps_device": rate,
            "blkio.throttle.write_bps_device": rate,
            "cpu.shares": str(1024 * _WEIGHT),
            "cpu.cfs_period_us": str(_PERIOD),
            "cpu.cfs_quota_us": str(quota or -1),
            "memory.limit_in_bytes": str(limits.memory or -1),
        }
    return {
        "io.max": f"{device} rbps={limits.disk or 'max'} wbps={limits.disk or 'max'}",
        "cpu.weight": str(100 * _WEIGHT),
        "cpu.max": f"{quota or 'max'} {_PERIOD}",
        "memory.max": str(limits.memory or "max"),
    }


def bytes_read(counters: str, device: str) -> int:
    """Return the bytes that a group read from a disk, by ``blkio.throttle.io_service_bytes`` or ``io.stat``."""
    for words in map(str.split, counters.splitlines()):
        if words[:2] == [device, "Read"]:
            return int(words[2])
        if words[:1] == [device] and "=" in words[1]:
            return int(dict(word.split("=") for word in words[1:])["rbytes"])
    return 0


def disk_of(path: Path) -> str:
    """Return the ``major:minor`` of the disk that a file is on: limits are a disk's, not a partition's."""
    number = os.stat(path).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    if (device / "partition").exists():
        device = device.parent
    if not (device / "dev").exists():
        raise UsageError(f"{path}: expected a folder on a disk of this machine, found another file system")
    return (device / "dev").read_text().strip()


def version() -> int:
    """Return the version of the control groups of this machine."""
    return 2 if (ROOT / "cgroup.controllers").exists() else 1


def lacking() -> list[str]:
    """Return the controllers that this machine does not have."""
    if version() == 1:
        return [f"control group {name}" for name in _CONTROLLERS[1] if not (ROOT / name / "tasks").exists()]
    found = (ROOT / "cgroup.controllers").read_text().split()
    return [f"control group {name}" for name in _CONTROLLERS[2] if name not in found]


class ControlGroup:
    """Group of processes, which ends with `remove`; `device` is the disk that its limits are about."""

    def __init__(self, name: str, device: str) -> None:
        self._version, self._device = version(), device
        folders = [ROOT / each / name for each in _CONTROLLERS[1]] if self._version == 1 else [ROOT / name]
        self._folders = folders

    def make(self) -> None:
        """Make the group."""
        if self._version == 2:
            (ROOT / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in _CONTROLLERS[2]))
        for folder in self._folders:
            folder.mkdir()

    @property
    def entrances(self) -> list[Path]:
        """Files to which a process that joins writes its number."""
        return [folder / "cgroup.procs" for folder in self._folders]

    def limit(self, limits: Limits) -> None:
        """Bound what the group takes from now on."""
        for name, text in settings(limits, self._device, self._version).items():
            self._write(name, text)

    def bytes_read(self) -> int:
        """Return the bytes that the group has read from the disk."""
        name = "blkio.throttle.io_service_bytes" if self._version == 1 else "io.stat"
        return bytes_read(self._file(name).read_text(), self._device)

    def remove(self) -> None:
        """Kill the processes of the group, and remove it."""
        for folder in self._folders:
            while folder.exists():
                for number in (folder / "cgroup.procs").read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(number), signal.SIGKILL)
                with suppress(OSError):  # busy until they have ended
                    folder.rmdir()
                    break
                time.sleep(_PAUSE)

    def _write(self, name: str, text: str) -> None:
        """Write a setting; one of memory is refused while more is in use, and pages are given back."""
        for _ in range(_ATTEMPTS):
            try:
                self._file(name).write_text(text)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                time.sleep(_PAUSE)
            else:
                return
        raise EnvironmentFailure(f"{self._file(name)}: the group needs more than {text}")

    def _file(self, name: str) -> Path:
        """Find a file of the group: of version 1, in the folder of its controller."""
        own = [folder for folder in self._folders if folder.parent.name == name.partition(".")[0]]
        return (own or self._folders)[0] / name
