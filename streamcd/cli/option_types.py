"""Types of the values of options, parsed from text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class Parsed(click.ParamType):
    """Type of a value parsed from text by a function that raises ValueError where the text is not what is `expected`."""

    def __init__(self, name: str, expected: str, parse: Callable[[str], Any]) -> None:
        self.name, self._expected, self._parse = name, expected, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text; a default that is not text is returned unchanged."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"expected {self._expected}, found {value!r}.", param, ctx)
        except FileNotFoundError:
            self.fail(f"no such file: {value}.", param, ctx)


BIT = Parsed("bit", "0 or 1", lambda text: bool(["0", "1"].index(text)))
