"""Targets of the suite, and its tables, from records."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .cells import COARSE, COSTS, SOURCES, Cell, all_cells
from .runs import Record

_PLAIN_PASSES = 40  # gains are averaged over cells where plain descent takes as many, or more
_SHARE, _MORE = 1.15, 3  # no cell may take more than `_SHARE` of the plain passes plus `_MORE`

Done = dict[tuple[Cell, str], Record]


@dataclass(frozen=True)
class Pair:
    """Passes of a cell to a gap, plain and accelerated; where it was not reached, those that were made."""

    cell: Cell
    tol: float
    plain: int
    accelerated: int
    plain_arrived: bool = True
    accelerated_arrived: bool = True
    timed_out: bool = False  # the passes of one that did not arrive say nothing

    @property
    def gain(self) -> float:
        """Ratio of plain to accelerated passes; a lower bound where plain descent did not arrive."""
        return self.plain / self.accelerated

    @property
    def excess(self) -> float:
        """Passes above the target's limit; none where that is not known."""
        return 0.0 if self.timed_out else self.accelerated - (_SHARE * self.plain + _MORE)

    def __str__(self) -> str:
        shown = [
            str(passes) if arrived else f"> {passes}"
            for passes, arrived in (
                (self.plain, self.plain_arrived),
                (self.accelerated, self.accelerated_arrived),
            )
        ]
        return " → ".join(shown)


def pairs(done: Done) -> list[Pair]:
    """Cells of which both runs are known and at least one arrived."""
    found = [
        _pair(cell, tol, done)
        for cell, acceleration in done
        if acceleration == "auto"
        for tol in cell.tolerances
    ]
    return [pair for pair in found if pair is not None and (pair.plain_arrived or pair.accelerated_arrived)]


def _pair(cell: Cell, tol: float, done: Done) -> Pair | None:
    accelerated, plain = done[cell, "auto"], done.get((cell, "none"))
    if plain is None or not accelerated.accelerated:
        return None
    gap = f"{tol:g}"
    return Pair(
        cell,
        tol,
        plain.passes.get(gap, plain.made),
        accelerated.passes.get(gap, accelerated.made),
        gap in plain.passes,
        gap in accelerated.passes,
        any(gap not in record.passes and record.stopped == "time" for record in (plain, accelerated)),
    )


def open_cells(done: Done) -> dict[str, list[str]]:
    """Cells and gaps that neither run has reached, by what stopped them."""
    found: dict[str, list[str]] = {"time": [], "passes": []}
    for cell, acceleration in done:
        if acceleration == "auto" and (cell, "none") in done:
            both = [done[cell, asked] for asked in ("auto", "none")]
            gaps = [tol for tol in cell.tolerances if not any(f"{tol:g}" in record.passes for record in both)]
            why = "time" if any(record.stopped == "time" for record in both) else "passes"
            found[why] += [f"{_name(cell)} ({cell.method}) to {power(tol)}" for tol in gaps]
    return found


def power(tol: float) -> str:
    """A power of ten, as in 1e-3."""
    return f"1e{round(math.log10(tol))}"


@dataclass(frozen=True)
class Bar:
    """A target, and the figure found; `holds` is None where none of its cells was run."""

    what: str
    asked: str
    found: str
    holds: bool | None

    def row(self) -> str:
        """One line of a Markdown table."""
        verdict = {None: "not run", True: "holds", False: "**missed**"}[self.holds]
        return f"| {self.what} | {self.asked} | {self.found} | {verdict} |"


def _dual(losses: Sequence[str], fine: bool) -> Callable[[Pair], bool]:
    def belongs(pair: Pair) -> bool:
        cell = pair.cell
        return (
            cell.method == "dual" and not cell.workers and cell.loss in losses and (pair.tol < COARSE) == fine
        )

    return belongs


def _primal(pair: Pair) -> bool:
    return pair.cell.method in ("primal", "online")


_MEANS: list[tuple[str, Callable[[Pair], bool], float]] = [
    ("squared hinge and logistic, to 1e-3", _dual(("squared_hinge", "log_loss"), False), 7.0),
    ("hinge, to 1e-3", _dual(("hinge",), False), 4.0),
    ("Crammer–Singer and twin, to 1e-3", _dual(("crammer_singer", "twin", "twin_squared"), False), 3.0),
    ("squared hinge, to 1e-6", _dual(("squared_hinge",), True), 5.0),
    ("logistic, to 1e-6", _dual(("log_loss",), True), 4.0),
    ("primal and online, to 1e-3", _primal, 2.5),
]

_CELLS: list[tuple[Cell, float, int]] = [
    (Cell("a9a", "squared_hinge", 1.0), 1e-3, 10),
    (Cell("a9a", "squared_hinge", 10.0), 1e-3, 12),
    (Cell("a9a", "squared_hinge", 100.0), 1e-3, 20),
    (Cell("a9a", "hinge", 1.0), 1e-3, 14),
    (Cell("a9a", "hinge", 10.0), 1e-3, 26),
    (Cell("a9a", "hinge", 100.0), 1e-3, 42),
    (Cell("kdd99_10pct", "squared_hinge", 1.0), 1e-3, 14),
    (Cell("kdd99_10pct", "squared_hinge", 1.0), 1e-6, 28),
    (Cell("dna.scale", "hinge", 1.0), 1e-3, 150),
    (Cell("heart_scale", "hinge", 10.0), 1e-3, 60),
]

_GAINS: list[tuple[Cell, float]] = [
    (Cell("clicks", "squared_hinge", 1.0), 2.2),
    (Cell("clicks", "log_loss", 1.0), 1.6),
]

_ROUNDS: list[tuple[Cell, int]] = [
    (Cell("a9a", "squared_hinge", 1.0, workers=2), 20),
    (Cell("a9a", "squared_hinge", 1.0, workers=4), 32),
    (Cell("a9a", "hinge", 1.0, workers=2), 30),
    (Cell("a9a", "hinge", 1.0, workers=4), 55),
]


def bars(done: Done) -> list[Bar]:
    """List the targets of the suite."""
    known = pairs(done)
    rows = [_worst_bar(known)]
    rows += [
        _mean_bar(what, [pair for pair in known if belongs(pair)], asked) for what, belongs, asked in _MEANS
    ]
    rows += [_cell_bar(done, *bar) for bar in _CELLS]
    rows += [_gain_bar(known, *bar) for bar in _GAINS]
    return [*rows, _certificates_bar(done), *(_rounds_bar(done, *bar) for bar in _ROUNDS)]


def _worst_bar(known: list[Pair]) -> Bar:
    counted = [pair for pair in known if not pair.timed_out]
    worse = [pair for pair in counted if pair.excess > 0]
    found = f"{len(worse)} of {len(counted)} are worse"
    return Bar("any cell and gap", "1.15 × plain + 3 passes", found, not worse if counted else None)


def geometric_mean(numbers: Iterable[float]) -> float:
    """The exponential of the mean logarithm."""
    return math.exp(statistics.fmean(map(math.log, numbers)))


def _mean_bar(what: str, known: list[Pair], asked: float) -> Bar:
    slow = [pair for pair in known if pair.plain >= _PLAIN_PASSES and not pair.timed_out]
    what = f"mean gain, plain {_PLAIN_PASSES} passes or more: {what}"
    if not slow:
        return Bar(what, f"{asked:g} ×", "", None)
    mean = geometric_mean(pair.gain for pair in slow)
    return Bar(what, f"{asked:g} ×", f"{mean:.1f} × over {len(slow)} cells", mean >= asked)


def _name(cell: Cell) -> str:
    return f"{cell.data} {cell.loss} C = {cell.C:g}"


def _cell_bar(done: Done, cell: Cell, tol: float, asked: int) -> Bar:
    record = done.get((cell, "auto"))
    passes = None if record is None else record.passes.get(f"{tol:g}")
    what = f"{_name(cell)}, to {power(tol)}"
    found = "" if record is None else f"> {record.made} passes" if passes is None else f"{passes} passes"
    holds = None if record is None else passes is not None and passes <= asked
    return Bar(what, f"{asked} passes", found, holds)


def _gain_bar(known: list[Pair], cell: Cell, asked: float) -> Bar:
    pair = next((pair for pair in known if pair.cell == cell and pair.tol == COARSE), None)
    what = f"{_name(cell)}, to {power(COARSE)}"
    if pair is None:
        return Bar(what, f"{asked:g} × fewer", "", None)
    return Bar(what, f"{asked:g} × fewer", f"{pair}: {pair.gain:.1f} ×", pair.gain >= asked)


def _certificates_bar(done: Done) -> Bar:
    reads = [
        record.certificates
        for record in done.values()
        if record.accelerated and f"{COARSE:g}" in record.passes
    ]
    what, asked = "certifying reads of a run, median and largest", "2 and 4"
    if not reads:
        return Bar(what, asked, "", None)
    median, largest = statistics.median(reads), max(reads)
    return Bar(what, asked, f"{median:g} and {largest} over {len(reads)} runs", median <= 2 and largest <= 4)


def _rounds_bar(done: Done, cell: Cell, asked: int) -> Bar:
    record = done.get((cell, "auto"))
    what = f"rounds to {power(COARSE)}, {_name(cell)}, {cell.workers} workers"
    if record is None:
        return Bar(what, f"{asked}", "", None)
    kind = "" if record.accelerated else ", plain"
    arrived = f"{COARSE:g}" in record.passes
    found = f"{record.rounds}{kind}" if arrived else f"not within {record.made} passes{kind}"
    return Bar(what, f"{asked}", found, arrived and record.rounds <= asked)


# ---------------------------------------------------------------------------------------------------------------------
# Markdown


def report(done: Done) -> str:
    """Format the targets, the cells that miss the first, those that do not arrive, and the passes of all, as Markdown."""
    known = pairs(done)
    parts = [
        "| what | at least | found | |",
        "| --- | --- | --- | --- |",
        *(bar.row() for bar in bars(done)),
        "",
    ]
    worse = sorted((pair for pair in known if pair.excess > 0), key=lambda pair: pair.excess, reverse=True)
    if worse:
        parts += ["Worse than 1.15 × plain + 3 passes:", ""]
        parts += [
            f"* {_name(pair.cell)} ({pair.cell.method}), to {power(pair.tol)}: {pair}" for pair in worse
        ] + [""]
    for title, cells in _groups(known):
        parts += [f"### {title}", "", *_passes_table(cells), ""]
    never = open_cells(done)
    if never["passes"]:
        parts += ["Neither arrived within the passes: " + "; ".join(never["passes"]) + ".", ""]
    if never["time"]:
        parts += [
            "Neither arrived within the time that they were given: " + "; ".join(never["time"]) + ".",
            "",
        ]
    known_cells = {cell for cell, _ in done}
    left = sum(cell not in known_cells for cell in all_cells())
    if left:
        parts += [f"Not trained yet: {left} of {sum(1 for _ in all_cells())} cells.", ""]
    return "\n".join(parts)


_TITLES = {
    "squared_hinge": "Squared hinge",
    "log_loss": "Logistic",
    "hinge": "Hinge",
    "twin_squared": "Twin, slack squared hinge",
    "twin": "Twin, slack hinge",
    "crammer_singer": "Crammer–Singer",
}


def _groups(known: list[Pair]) -> Iterable[tuple[str, list[Pair]]]:
    for method in ("dual", "primal", "online"):
        for loss, title in _TITLES.items():
            of_one = [pair for pair in known if (pair.cell.loss, pair.cell.method) == (loss, method)]
            of_one = [pair for pair in of_one if not pair.cell.workers]
            if of_one:
                yield (title if method == "dual" else f"{title}, {method}"), of_one


def _passes_table(of_one: list[Pair]) -> list[str]:
    tolerances = sorted({pair.tol for pair in of_one}, reverse=True)
    costs = [cost for cost in COSTS if any(cost == pair.cell.C for pair in of_one)]
    columns = [(tol, cost) for tol in tolerances for cost in costs]
    by_place = {(pair.cell.data, pair.tol, pair.cell.C): str(pair) for pair in of_one}
    lines = ["| | " + " | ".join(f"C = {cost:g}, {power(tol)}" for tol, cost in columns) + " |"]
    lines += ["| --- |" + " --- |" * len(columns)]
    for name in SOURCES:
        row = [by_place.get((name, *column), "") for column in columns]
        if any(row):
            lines.append(f"| {name} | " + " | ".join(row) + " |")
    return lines
