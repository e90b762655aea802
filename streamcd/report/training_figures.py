"""Figures of a training: gap, objective, acceleration, active rows, bytes and seconds, from the records of its logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .drawing import COLORS, new_figure, note, styled
from .scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]
Histories = Mapping[str, Records]
"""Records of logs, oldest first, by the name of the log (see `training.history.read_history`)."""

_WIDE_RANGE = (
    30.0  # from here on an axis is logarithmic; on a narrower one powers of ten would be too few to read off
)
_NUMBERS = "{x:,.10g}"


@styled
def gap_figure(histories: Histories, tol: float | None) -> Figure:
    """Draw the relative gap against passes and against seconds: estimates as lines, certificates as dots."""
    figure, panels = new_figure(columns=2)
    for axes, across in zip(panels, ("passes", "elapsed"), strict=True):
        for color, (name, records) in zip(_colors(histories), histories.items(), strict=True):
            _draw_gaps(axes, records, across, color, name)
        if tol is not None:
            axes.axhline(tol, color="#888888", linestyle="--", linewidth=1, label=f"tolerance {tol:g}")
        if any((np.asarray(line.get_ydata()) > 0).any() for line in axes.lines):
            axes.set_yscale("log")
        axes.set_xlim(left=0)
    _label_passes(panels[0])
    panels[1].set_xlabel("seconds of the reads")
    panels[0].set_ylabel("relative duality gap")
    panels[0].legend()
    panels[0].set_title("Gap against passes")
    panels[1].set_title("Gap against time")
    return figure


def _draw_gaps(axes: Axes, records: Records, across: str, color: str, name: str) -> None:
    estimates = [
        (record[across], record["gap_estimate"] / record["objective_estimate"])
        for record in records
        if record["kind"] == "train" and record["gap_estimate"] and record["objective_estimate"]
    ]
    certified = [
        (record[across], record["gap"] / record["primal"])
        for record in records
        if record["kind"] == "certify" and record["gap"] is not None and record["primal"]
    ]
    label = f"{name}: " if name else ""
    axes.plot(*_points(estimates), color=color, label=f"{label}estimate")
    axes.plot(*_points(certified), "o", color=color, markersize=5, label=f"{label}certificate")


@styled
def objective_figure(histories: Histories) -> Figure:
    """Draw the objective against passes with its certified bounds, and the strength of acceleration where there was any."""
    figure, (left, right) = new_figure(columns=2)
    logged = {name for records in histories.values() for record in records for name in record}
    strength = "extrapolation" if "extrapolation" in logged else "kappa"
    for color, (name, records) in zip(_colors(histories), histories.items(), strict=True):
        train = [record for record in records if record["kind"] == "train"]
        bounds = [
            record for record in records if record["kind"] == "certify" and record["primal"] is not None
        ]
        passes = [record["passes"] for record in bounds]
        estimates = [
            (record["passes"], record["objective_estimate"])
            for record in train
            if record["objective_estimate"]
        ]
        left.plot(*_points(estimates), color=color, label=name or "estimate")
        left.plot(
            passes, [record["primal"] for record in bounds], "v", color=color, markersize=5, label="primal"
        )
        left.plot(passes, [record["dual"] for record in bounds], "^", color=color, markersize=5, label="dual")
        _draw_range(right, train, strength, color)
    _scale(left)
    left.set_title(f"Objective{_summed(histories)}")
    _label_passes(left)
    left.legend()
    right.set_title("Strength of acceleration")
    _label_passes(right)
    if right.lines:
        _scale(right)
    else:
        note(right, "trained without acceleration")
    return figure


def _draw_range(axes: Axes, train: Records, name: str, color: str) -> None:
    """Draw the largest number of a lane as a line, and the range over lanes as a band."""
    ranges = [(record["passes"], *record[name]) for record in train if record.get(name)]
    if ranges:
        passes, least, most = zip(*ranges, strict=True)
        axes.plot(passes, most, color=color)
        axes.fill_between(passes, least, most, color=color, alpha=0.2)


@styled
def search_figure(scores: Sequence[Scores], best: Scores, criterion: str) -> Figure:
    """Draw the score on every fold, and its mean: against C, or against λ, a line for each C, where there are several λ."""
    figure, axes = new_figure(width=6.5)
    along, apart = (1, 0) if len({of.setting.l1 for of in scores}) > 1 else (0, 1)
    values = sorted({of.setting[apart] for of in scores})
    for number, value in enumerate(values):
        mine = [of for of in scores if of.setting[apart] == value]
        color = COLORS[number % len(COLORS)]
        points = [(of.setting[along], score) for of in mine for score in of.folds]
        dots = {"color": "#a9c1dd" if len(values) == 1 else color, "alpha": 0.6}
        axes.plot(*_points(points), ".", label="" if number else "each fold", **dots)
        means = [(of.setting[along], of.mean) for of in mine]
        axes.plot(*_points(means), color=color, label="mean" if len(values) == 1 else f"mean, C = {value:g}")
    chosen = [best.setting[along]], [best.mean]
    axes.plot(*chosen, "o", color=COLORS[1], markersize=6, label=f"best, {best.setting}", zorder=3)
    axes.set_xscale("log")
    if along:
        axes.invert_xaxis()  # from few weights to many
    axes.set_title(f"{criterion[0].upper()}{criterion[1:]} on rows held out")
    axes.set_xlabel("l1" if along else "C")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _summed(histories: Histories) -> str:
    lanes = (record["open_lanes"] for records in histories.values() for record in records)
    return " (sum over problems)" if max(lanes, default=0) > 1 else ""


def _colors(histories: Histories) -> list[str]:
    return [COLORS[number % len(COLORS)] for number in range(len(histories))]


def _points(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


def _label_passes(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("passes")
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))


def _scale(axes: Axes) -> None:
    """Make the y axis logarithmic if its numbers are positive and have a wide range."""
    if 0.0 < _WIDE_RANGE * axes.dataLim.y0 < axes.dataLim.y1:
        axes.set_yscale("log")
    else:
        axes.yaxis.set_major_formatter(_NUMBERS)
