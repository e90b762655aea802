"""The user's memory budget: parsing of sizes, the arithmetic that a refusal shows, and the kernel's figures."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .errors import UsageError

RESERVED_BYTES = 300_000_000
"""Bytes that the interpreter, numpy, numba with its compiler, and pyarrow take of any budget.

A constant, not a measurement, so that windows (and with them the bits of a result) follow from the options alone.
Measured on Linux x86-64 with numba 0.68 and pyarrow 26: 220 to 226 MB with the kernels loaded from the compile cache, 255 to
281 MB where they are compiled, which happens once per machine and version; of seven trainings from the command line that
compiled, the largest took 286 MB beside its windows.
"""

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}B"] = 1000**_power
    _UNITS[_letter] = 1000**_power
    _UNITS[f"{_letter}IB"] = 1024**_power


def parse_size(size: int | str) -> int:
    """Read a size such as ``"400MB"`` (10⁶), ``"512MiB"`` (2²⁰) or a plain number of bytes.

    Parameters
    ----------
    size : int or str

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    UsageError
        Where it is not a positive size.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*", str(size))
    unit = _UNITS.get(match.group(2).upper()) if match else None
    n_bytes = int(float(match.group(1)) * unit) if match and unit else 0
    if n_bytes <= 0:
        raise UsageError(f"expected a size such as 400MB, 2GiB or a number of bytes, found {str(size)!r}")
    return n_bytes


def format_size(n_bytes: float) -> str:
    """Format bytes for reading: ``"1.5 GB"``, with three significant digits and decimal units."""
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
) -> int:
    """Check that what is needed fits in the budget.

    Parameters
    ----------
    budget : int
        The user's bound in bytes.
    needs : mapping of str to int
        Bytes needed, by name; the reserve for the interpreter is added here.
    advice : str
        Advice to the user.
    refusal : str, optional
        Begins the message, before the arithmetic, where `budget` is not the number that the user gave.

    Returns
    -------
    int
        The bytes left over.

    Raises
    ------
    UsageError
        With the arithmetic in one line, where the sum exceeds the budget.
    """
    parts = {"interpreter and libraries": RESERVED_BYTES, **needs}
    total = sum(parts.values())
    if total > budget:
        arithmetic = " + ".join(
            f"{format_size(n_bytes)} {what}" for what, n_bytes in parts.items() if n_bytes
        )
        refusal = refusal or f"--memory {format_size(budget)} is too small:"
        raise UsageError(f"{refusal} {arithmetic} = {format_size(total)} needed; {advice}")
    return budget - total


def _status_bytes(field: str) -> int:
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource  # where there is no /proc (macOS), in bytes there

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process so far (VmHWM), in bytes."""
    return _status_bytes("VmHWM")


def current_memory_bytes() -> int:
    """Return the resident memory of this process now (VmRSS), in bytes."""
    return _status_bytes("VmRSS")


def page_cache_room() -> float:
    """Return the bytes of files that the page cache can hold beside this process; infinite where the kernel does not say."""
    room = float("inf")
    try:
        with open("/proc/meminfo", encoding="ascii") as meminfo:
            for line in meminfo:
                if line.startswith("MemAvailable:"):
                    room = int(line.split()[1]) * 1024
    except OSError:
        pass
    return min(room, _cgroup_limit() - RESERVED_BYTES)


def _cgroup_limit() -> float:
    """Return the memory limit of this process's control group; infinite where there is none."""
    limit = float("inf")
    try:
        with open("/proc/self/cgroup", encoding="ascii") as groups:
            lines = [line.strip().split(":", 2) for line in groups]
    except OSError:
        return limit
    for _, controllers, path in lines:
        if controllers == "":
            name = f"/sys/fs/cgroup{path}/memory.max"
        elif "memory" in controllers.split(","):
            name = f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"
        else:
            continue
        try:
            with open(name, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            limit = min(limit, int(text))
    return limit
