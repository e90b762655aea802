"""Sections of a Markdown page that a tool writes, between a comment with its command and another."""

from __future__ import annotations

from pathlib import Path

import click


def replace_section(page: Path, command: str, text: str) -> None:
    """Replace what stands between ``<!-- begin: command -->`` and the next ``<!-- end -->``."""
    before, _, after = _divided(page, command)
    page.write_text(f"{before}\n\n{text.strip()}\n\n{after}")


def read_section(page: Path, command: str) -> str:
    """Return what stands between the two."""
    return _divided(page, command)[1].strip()


def _divided(page: Path, command: str) -> tuple[str, str, str]:
    """Return what comes before a section, the comment that begins it too, what is in it, and the rest."""
    begin, end = f"<!-- begin: {command} -->", "<!-- end -->"
    before, found, rest = page.read_text().partition(begin)
    text, ended, after = rest.partition(end)
    if not found or not ended:
        raise click.ClickException(f"{page}: expected a section between {begin} and {end}")
    return before + begin, text, end + after
