"""Crafted metadata: JSON with a valid digest, changed in type, depth, size and path; every refusal must be one line."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamcd.core.files import SEAL, content_digest

from .commands import run_command
from .trials import Finding
from .workspace import make_workspace

VALUES: tuple[Any, ...] = (
    None, True, "x", "", "a\0b", "/dev/zero", "../outside.parquet", "\ud800", -1, 0, 1, 7, 1.5, 1e308, 2**31, 2**62, 2**63,
    2**70, -(2**70), float("nan"), float("inf"), [], {}, [[]], [None], {"a": 1}, ["x"] * 3, "deep", "gone", "huge",
)  # fmt: skip

FILES = {
    "a/manifest.json": ("info a", "verify a", "train a out --max-passes 1"),
    "a/columns/manifest.json": ("info a", "verify a", "train a out --method primal --max-passes 1"),
    "a.run/config.json": ("resume a.run --max-passes 4", "info a.run"),
    "a.done/model/model.json": (
        "info a.done/model",
        "predict a a.done/model -o out.csv",
        "export a.done/model out.model",
    ),
    "a.l1/model/model.json": ("info a.l1/model", "predict a a.l1 -o out.csv", "export a.l1 out.model"),
    "a.numbers/manifest.json": (
        "info a.numbers",
        "verify a.numbers",
        "train a.numbers out --loss squared_error --max-passes 1",
    ),
    "a.table/manifest.json": ("info a.table", "verify a.table", "train a.table out --max-passes 1"),
    "a.table.done/model/model.json": (
        "info a.table.done",
        "verify a.table.done",
        "predict a.csv a.table.done --proba -o out.csv",
        "report a.table.done -o out.html",
    ),
}
"""Files, and the commands that read each."""


class Metadata:
    """Trial k changes a drawn key of file k modulo their number, and runs all commands that read the file."""

    default_count = 400

    def prepare(self, place: Path) -> None:
        self.workspace = make_workspace(place)

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        name = list(FILES)[number % len(FILES)]
        self.workspace.copy(
            place,
            "a",
            "a.run",
            "a.done",
            "a.l1",
            "a.numbers",
            "a.csv",
            "a.table",
            "a.table.done",
            "a.txt",
        )
        part = next((place / "a" / "rows").iterdir())
        (place / "outside.parquet").write_bytes(part.read_bytes())
        file = place / name
        content = json.loads(file.read_bytes())
        keys = rng.choice(list(_paths(content)))
        value = rng.choice(VALUES)
        _put(content, keys, value)
        file.write_text(_text(content, value))
        what = f"{name}, {'.'.join(map(str, keys))} = {value!r}"
        findings = []
        for command in FILES[name]:
            ended = run_command(place, *command.split())
            if ended.is_ugly:
                findings.append(Finding("ugly", f"{what}: {command.split()[0]}: {ended}"))
            elif (
                value in ("../outside.parquet", "/dev/zero")
                and ended.status == 0
                and keys[-1] in ("rows", "entries")
            ):
                findings.append(
                    Finding("wrong", f"{what}: {command.split()[0]} takes a file of another directory")
                )
            elif len(ended.stderr) > 20_000:
                findings.append(
                    Finding("ugly", f"{what}: {command.split()[0]} says {len(ended.stderr)} bytes")
                )
        return findings


def _paths(content: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if above:
        yield above
    if isinstance(content, dict):
        for key in content:
            yield from _paths(content[key], (*above, key))
    elif isinstance(content, list):
        for k in range(min(len(content), 2)):
            yield from _paths(content[k], (*above, k))


def _put(content: Any, keys: tuple[Any, ...], value: Any) -> None:
    for key in keys[:-1]:
        content = content[key]
    if value == "gone":
        del content[keys[-1]]
    elif value == "huge":
        content[keys[-1]] = [0] * 100_000
    else:
        content[keys[-1]] = value


def _text(content: dict[str, Any], value: Any) -> str:
    """Return the file's text, with a seal that is right."""
    if SEAL in content:
        content[SEAL] = content_digest(content)
    text = json.dumps(content)
    return text.replace('"deep"', "[" * 5000 + "]" * 5000) if value == "deep" else text
