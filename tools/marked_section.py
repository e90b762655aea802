"""Sections of a Markdown page that a tool writes, between a comment with its command and another."""

from __future__ import annotations

from pathlib import Path

import click


def replace_section(page: Path, command: str, text: str) -> None:
    """Replace what stands between ``<!-- begin: command -->`` and the next ``<!-- end -->``."""
    begin, end = f"<!-- begin: {command} -->", "<!-- end -->"
    before, found, rest = page.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise click.ClickException(f"{page}: expected a section between {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")
