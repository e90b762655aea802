"""Types of the values of options, parsed from text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..core.atomic_files import describe_set_aside
from ..core.errors import UsageError
from ..core.storage import is_url


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


class PathOrUrl(click.Path):
    """A path that is checked, or a URL that is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check what is no URL."""
        if is_url(value):
            return value
        if aside := describe_set_aside(Path(value)):
            self.fail(f"{value} does not exist{aside}.", param, ctx)
        return super().convert(value, param, ctx)


def _seconds(text: str) -> float:
    """Parse a length of time: ``90``, ``90s``, ``1.5m``, ``2h``."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)(ms|s|m|min|h|)", text.strip())
    if not match:
        raise ValueError(text)
    return float(match.group(1)) * {"ms": 1e-3, "s": 1, "": 1, "m": 60, "min": 60, "h": 3600}[match.group(2)]


def _class_weight(text: str) -> str | dict[float | str, float]:
    """Parse ``balanced``, or ``LABEL=WEIGHT,…``."""
    if text == "balanced":
        return text
    pairs = [pair.rsplit("=", 1) for pair in text.split(",")]
    weights = {_label(label): float(weight) for label, weight in pairs}
    if len(weights) != len(pairs):
        raise click.BadParameter(f"expected each label once, found {text!r}.")
    return weights


def _label(text: str) -> float | str:
    """Parse a label: a number where it is one, else a name."""
    try:
        return float(text)
    except ValueError:
        return text


def read_code(path: str) -> list[list[int]]:
    """Read a code matrix: a line per class (ascending labels) of -1, 0 and +1, separated by spaces or commas."""
    rows: list[list[int]] = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            tokens = line.replace(",", " ").split()
            if not tokens:
                continue
            width = len(rows[0]) if rows else len(tokens)
            if len(tokens) != width or not set(tokens) <= {"-1", "0", "1", "+1"}:
                raise UsageError(
                    f"{path}, line {number}: expected {width} entries of -1, 0, +1 (a line per class), "
                    f"found {line.strip()[:60]!r}"
                )
            rows.append([int(token) for token in tokens])
    if not rows:
        raise UsageError(f"{path}: expected a line of -1, 0, +1 per class, found none")
    return rows


def _costs(text: str) -> list[float]:
    """Parse values of C; LIBLINEAR's ``-C``, which takes none, is answered with the command that chooses."""
    try:
        return [float(cost) for cost in text.split(",")]
    except ValueError:
        if not text.startswith("-"):
            raise
        raise UsageError(
            f"-C: expected a number, or several separated by commas, found {text!r}; 'streamcd tune DATASET RUN -C "
            "0.01,0.1,1,10 --cv 5' chooses C, as LIBLINEAR's -C without a number does"
        ) from None


SECONDS = Parsed("time", "a time such as 60s, 5m or 1h", _seconds)
BIT = Parsed("bit", "0 or 1", lambda text: bool(["0", "1"].index(text)))
COSTS = Parsed("C", "a number, or several separated by commas", _costs)
CLASS_WEIGHT = Parsed("weights", "'balanced' or LABEL=WEIGHT,LABEL=WEIGHT", _class_weight)
OMEGA = Parsed(
    "omega", "a number above 0 and below 2, or auto", lambda text: text if text == "auto" else float(text)
)
ACCELERATION = Parsed(
    "acceleration", "auto, none, or a number", lambda text: text if text in ("auto", "none") else float(text)
)
BIAS = Parsed(
    "bias", "auto, none, or a number", lambda text: text if text in ("auto", "none") else float(text)
)
CODE = Parsed("file", "a file", read_code)
