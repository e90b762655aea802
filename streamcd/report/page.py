"""Self-contained HTML page: headings, tables, embedded pictures."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import escaped
from .tables import Table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; background: #fff;
       max-width: 1080px; margin: 2em auto; padding: 0 1.5em }
h1 { font-size: 1.6em; margin-bottom: 0 } h2 { font-size: 1.15em; margin-top: 2em;
     border-bottom: 1px solid #d8dde5; padding-bottom: .2em } h3 { font-size: 1em; margin-bottom: 0 }
.lead { color: #556070; margin-top: .2em }
figure { margin: 1em 0 } img { max-width: 100%; height: auto }
figcaption { color: #556070; font-size: .9em }
table { border-collapse: collapse; margin: .8em 0; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .2em 1.4em .2em 0; vertical-align: top; border-bottom: 1px solid #eceff3 }
th { font-weight: 600; color: #3b4656 } td:first-child { white-space: nowrap }
.wide { overflow-x: auto }
code { background: #f3f5f8; padding: .1em .3em; border-radius: 3px }
"""


@dataclass(frozen=True)
class Picture:
    """An image in PNG format with a caption, which is also its alternative text."""

    name: str
    png: bytes
    caption: str


@dataclass
class Section:
    """A part of the page: tables, then pictures, or a text where there are none."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


def _escape(text: str) -> str:
    return html.escape(escaped(text))


def render_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Make the page; all text is escaped, all pictures are embedded."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{_escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>{_escape(title)}</h1><p class="lead">{_escape(lead)}</p>',
    ]
    for section in sections:
        parts.append(f"<section><h2>{_escape(section.title)}</h2>")
        if section.text:
            parts.append(f"<p>{_escape(section.text)}</p>")
        parts += [_table(table) for table in section.tables]
        parts += [_figure(picture) for picture in section.pictures]
        parts.append("</section>")
    return "\n".join([*parts, "</body></html>", ""])


def _table(table: Table) -> str:
    lines = [_cells("td", row) for row in table.rows]
    if table.header is not None:
        lines.insert(0, _cells("th", table.header))
    title = f"<h3>{_escape(table.title)}</h3>" if table.title else ""
    return f'{title}<div class="wide"><table>' + "\n".join(lines) + "</table></div>"


def _cells(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{_escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    caption = _escape(picture.caption)
    return f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
