"""Self-contained HTML page: headings, texts, tables, embedded pictures."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence

from ..core.errors import escaped
from .tables import Table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; max-width: 1080px; margin: 2em auto; padding: 0 1.5em }
h1 { font-size: 1.6em } h2 { font-size: 1.15em; margin-top: 2em } h3 { font-size: 1em; margin-bottom: 0 }
img { max-width: 100% }
table { border-collapse: collapse; margin: .8em 0; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .2em 1.4em .2em 0; vertical-align: top; border-bottom: 1px solid #eceff3 }
.wide { overflow-x: auto }
"""


def render_page(title: str, lead: str, sections: Mapping[str, Sequence[str | Table | bytes]]) -> str:
    """Make the page of sections by their headings: texts, tables, and PNG pictures, which are embedded."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{_escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{_escape(title)}</h1><p>{_escape(lead)}</p>",
    ]
    for heading, contents in sections.items():
        parts += [f"<section><h2>{_escape(heading)}</h2>", *map(_shown, contents), "</section>"]
    return "\n".join([*parts, "</body></html>", ""])


def _escape(text: str) -> str:
    return html.escape(escaped(text))


def _shown(content: str | Table | bytes) -> str:
    if isinstance(content, str):
        return f"<p>{_escape(content)}</p>"
    if isinstance(content, bytes):
        return f'<img alt="" src="data:image/png;base64,{base64.b64encode(content).decode()}">'
    lines = [_cells("th", content.header)] if content.header is not None else []
    lines += [_cells("td", row) for row in content.rows]
    title = f"<h3>{_escape(content.title)}</h3>" if content.title else ""
    return f'{title}<div class="wide"><table>' + "\n".join(lines) + "</table></div>"


def _cells(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{_escape(cell)}</{tag}>" for cell in cells) + "</tr>"
