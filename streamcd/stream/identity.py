"""The identity of a run: a random name in all of its files, which distinguishes them from those of another run."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..core.errors import CheckpointError


@dataclass(frozen=True)
class Identity:
    """Name of a run, or of a part of it."""

    name: str  # 32 hexadecimal digits

    @classmethod
    def new(cls) -> Identity:
        """Draw a name at random."""
        return cls(os.urandom(16).hex())

    @cached_property
    def tag(self) -> bytes:
        """First eight bytes of the name, for headers."""
        return bytes.fromhex(self.name)[:8]

    def part(self, name: str) -> Identity:
        """Derive the identity of a part of the run; this one if `name` is empty."""
        if not name:
            return self
        return Identity(hashlib.sha256(f"{self.name}/{name}".encode()).hexdigest()[:32])

    def check(self, found: str | bytes | None, path: Path) -> None:
        """Refuse a file with the name or tag of another run, or without one."""
        if found not in (self.name, self.tag):
            raise CheckpointError(
                f"{path}: of another run than config.json beside it; restore the run directory from a copy, or train again "
                "with --force"
            )
