"""The user's memory budget: parsing of sizes, the arithmetic shown in a refusal, and figures from the operating system."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import BudgetError, UsageError
from .options import Listener

RESERVED_BYTES = 210_000_000
"""Bytes reserved in every budget for the interpreter, numpy, numba without its compiler, and pyarrow.

A constant, not measured at run time, so that windows (and with them the bits of a result) follow from the options alone.
Commands of every kind on a few rows take 160 to 207 MB (Linux x86-64, numba 0.68, pyarrow 26); another process compiles.
"""

RUNNING_BYTES = 105_000_000
"""Bytes that a plan reserves in their place: while windows are read, after `make_room`, a training takes 85 to 104 MB."""

BLOCK_WEIGHTS = 1 << 16
"""Numbers in a temporary array of what is computed, read or written block by block: 0.5 MB."""

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[_letter] = 1000**_power
    _UNITS[f"{_letter}IB"] = 1024**_power


def parse_size(size: int | str) -> int:
    """Convert a size such as ``"400MB"`` (10⁶), ``"512MiB"`` (2²⁰) or a plain number, all positive, to bytes."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*", str(size))
    unit = _UNITS.get(match.group(2).upper()) if match else None
    n_bytes = int(float(match.group(1)) * unit) if match and unit else 0
    if n_bytes <= 0:
        raise UsageError(f"expected a size such as 400MB, 2GiB or a number of bytes, found {str(size)!r}")
    return n_bytes


def format_size(n_bytes: float) -> str:
    """Format a number of bytes for display: ``"1.5 GB"``, with three significant digits and decimal units."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def require(
    budget: int,
    needs: Mapping[str, int],
    advice: str = "give a larger --memory",
    refusal: str | None = None,
    reserved: int = RESERVED_BYTES,
) -> int:
    """Return what the needs leave of the budget, in bytes; if they exceed it, raise `BudgetError` with the arithmetic.

    `needs` are bytes by name; those `reserved` for interpreter and libraries are added here. `refusal` begins the message if
    `budget` is not the number that the user gave.
    """
    parts = {"interpreter and libraries": reserved, **needs}
    total = sum(parts.values())
    if total > budget:  # safety: memory::what_is_left_of stream::budget_that_cannot
        arithmetic = " + ".join(
            f"{format_size(n_bytes)} {what}" for what, n_bytes in parts.items() if n_bytes
        )
        if budget < 10**6:
            advice = f"did you mean {budget}MB?"
        refusal = refusal or f"--memory {format_size(budget)} is too small:"
        raise BudgetError(  # safety: convert::no_sense_are_refused
            f"{refusal} {arithmetic} = {format_size(total)} needed; {advice}"
        )
    return budget - total


def _read_figure(path: str, field: str) -> int:
    """Read a line such as ``VmHWM:  1234 kB``, in bytes; 0 if the system does not report it."""
    line = re.search(rf"^{field}:\s+(\d+) kB", Path(path).read_text(encoding="ascii"), re.MULTILINE)
    return int(line[1]) * 1024 if line else 0


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process so far (VmHWM), in bytes."""
    return _read_figure("/proc/self/status", "VmHWM")


def return_heap() -> None:
    """Return freed memory of the heap to the system: 40 to 50 MB where kernels were loaded.

    The C library keeps what was freed in pieces of up to 32 MB, beside which the arrays of the next stage may not fit.
    """
    ctypes.CDLL(None).malloc_trim(0)


def forget(array: Any) -> None:
    """Let go of the memory that the pages of an array in a mapped file take; an array of its own stays as it is."""
    while getattr(array, "base", None) is not None:
        array = array.base
    if isinstance(array, mmap.mmap):
        array.madvise(mmap.MADV_DONTNEED)


_CLEAN = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) r-.p \S+ \S+ [1-9]\d* +/.*\n(?:[A-Z]\w*:.*\n)*?Anonymous: +0 kB$", re.MULTILINE
)
"""A mapping of a file that cannot be written to, in /proc/self/smaps, and has no page that was: not even by the linker."""


def make_room(budget: int, planned: int) -> None:
    """Unmap the code and constants of libraries, if a process that has started would exceed the budget with `planned` bytes
    more.

    Most were needed to start and to load kernels: of 172 MB that a training takes before its windows they are 99, of which
    15 come back. They stay in the page cache, from which the system maps them at a touch.
    """
    if max(_read_figure("/proc/self/status", "VmRSS"), RESERVED_BYTES) + planned <= budget:
        return
    advise = ctypes.CDLL(None).madvise
    for start, stop in _CLEAN.findall(Path("/proc/self/smaps").read_text(encoding="utf-8")):
        begin = int(start, 16)
        advise(ctypes.c_void_p(begin), ctypes.c_size_t(int(stop, 16) - begin), mmap.MADV_DONTNEED)


def warn_of_memory(budget: int, planned: int, listener: Listener) -> None:
    """Warn if the budget exceeds the machine's memory, or if this process would exceed it with `planned` bytes more."""
    machine = available_memory(field="MemTotal")
    if budget > machine:
        listener.warning(
            f"memory {format_size(budget)} is more than this machine, or this control group, has ({format_size(machine)}): "
            "the system may kill the process; give less"
        )
    held = _read_figure("/proc/self/status", "VmRSS")
    if held > RESERVED_BYTES and max(held, held - RESERVED_BYTES + RUNNING_BYTES + planned) > budget:
        listener.warning(
            f"this process already holds {format_size(held)}, of which {format_size(RESERVED_BYTES)} are counted in memory "
            f"{format_size(budget)}; free arrays that are not needed, or use a process of its own"
        )


def available_memory(held: int = 0, field: str = "MemAvailable") -> float:
    """Return the bytes that can be allocated, beside `held` ones in this process's control group.

    `field` is a figure of the machine's memory. The control group may have no limit.
    """
    limits = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            name = f"/sys/fs/cgroup{path}/memory.max"
            if controllers:
                name = f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"
            # there may be no such file, and "max" is not a number
            with suppress(OSError, ValueError):
                limits.append(int(Path(name).read_text(encoding="ascii")))
    return min([_read_figure("/proc/meminfo", field), *(limit - held for limit in limits)])
