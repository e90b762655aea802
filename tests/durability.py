"""What a power cut would leave: contents and names that are synced when others promise them, and when a command ends."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from tools.faults.disk import Disk
from tools.faults.recording import Event, Recorder

SCRATCH = re.compile(r"(^|/)(lock|\.streamcd-[^/]*|[^/]*\.partial)$")
"""Names that the next command clears."""

DESCRIBED: dict[str, Callable[[Path], Path]] = {
    "manifest.json": lambda path: path.parent,
    "state.npz": lambda path: path.parent,
    "model.json": lambda path: path.parent,
}
"""Files that promise others, by name, and where these are: as soon as one has its name, they have to be durable."""


def recorded(place: Path, call: Callable[[], object]) -> list[Event]:
    """What a call in a process of its own does to the files of a directory."""
    recorder = Recorder(place, place.with_name("changes"))
    child = os.fork()
    if child == 0:
        try:
            recorder.install()
            call()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    return recorder.events()


def problems(disk: Disk, events: Iterable[Event]) -> list[str]:
    """Make recorded changes; list what was not durable when something that promises it got its name, or in the end."""
    found = []
    for event in events:
        if event.kind in ("rename", "exchange"):
            found += _unkept(disk, Path(event.path), Path(event.other))
        disk.apply(event)
    return found + _unsynced(disk, Path(), names=True)


def needless(events: Iterable[Event]) -> list[str]:
    """List what was synced again though neither its content nor, of a directory, a name in it had changed."""
    clean, found = set[str](), []
    for event in events:
        if event.kind == "sync":
            found += [event.path] * (event.path in clean)
            clean.add(event.path)
        else:
            names = {event.path, event.other} - {""}
            clean -= names | {str(Path(name).parent) for name in names}
    return found


def _unkept(disk: Disk, source: Path, target: Path) -> list[str]:
    """Look at what is about to get a name, and at what it promises."""
    found = [f"{target} had its name before it was complete"] if source == target else []
    places = [of(target) for pattern, of in DESCRIBED.items() if target.match(pattern)]
    if not any(SCRATCH.search(part) for part in target.parts):
        places.append(source)
        if target.name != "model.json" and disk.has(f"{target.parent}/model.json"):
            found.append(f"{target} was replaced while model.json described the one before")
    mark = source.parent / "lock"  # by which what a cut leaves of the work is known as ours
    if disk.is_directory(str(source)) and disk.has(str(mark)) and disk.unsynced(str(mark)):
        found.append(f"{mark}, when work was done beside it")
    whole = disk.is_directory(str(source)) or target.name in DESCRIBED
    return found + [
        f"{lost}, when {target} got its name"
        for place in places
        for lost in _unsynced(disk, place, names=whole)
    ]


def _unsynced(disk: Disk, place: Path, *, names: bool) -> list[str]:
    """List the contents at and below a path, and the names in it, that a power cut could take; but for scratch."""
    below = [place]
    if disk.is_directory(str(place)):
        below = [place / name for name in disk.names(str(place)) if not SCRATCH.search(f"{place}/{name}")]
    else:
        names = False
    lost = []
    for path in below:
        lost += [problem for problem in disk.unsynced(str(path)) if names or problem.startswith("content")]
        if path != place and disk.is_directory(str(path)):
            lost += _unsynced(disk, path, names=names)
    return lost
