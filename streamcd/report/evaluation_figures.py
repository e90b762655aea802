"""Figures of a model's quality: confusion, ROC, calibration, decisions by class, residuals; and its largest weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .drawing import COLORS, name_text, new_figure, note, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TICK_ROOM = 36  # characters of all labels side by side
_MANY = 10  # classes; with more, curves get no colours of their own, and cells no numbers


class Curve(NamedTuple):
    """ROC curve of a class against the others."""

    label: str
    false_positive: np.ndarray  # rates, ascending
    true_positive: np.ndarray

    @property
    def area(self) -> float:
        return float(np.trapezoid(self.true_positive, self.false_positive))


class Reliability(NamedTuple):
    """Mean predicted probability and share of hits in bins of predictions; empty bins are left out."""

    predicted: np.ndarray
    observed: np.ndarray
    n_rows: np.ndarray


class Decisions(NamedTuple):
    """Shares of the rows of each of two classes between edges of decision values."""

    label: str
    other_label: str
    edges: np.ndarray
    others: np.ndarray
    own: np.ndarray


@styled
def evaluation_figure(
    labels: Sequence[object],
    confusion: np.ndarray | None,
    curves: Sequence[Curve],
    reliability: Reliability | None,
    decisions: Decisions | None,
    counted: str = "rows",
) -> Figure:
    """Draw confusion and ROC, and calibration if there are probabilities, otherwise decisions by class.

    `counted` tells if these are of rows or of their "weight".
    """
    third = reliability is not None or decisions is not None
    figure, panels = new_figure(columns=3 if third else 2, height=3.6)
    _draw_confusion(panels[0], labels, confusion, counted)
    _draw_roc(panels[1], curves)
    if reliability is not None:
        _draw_reliability(panels[2], reliability, counted)
    elif decisions is not None:
        _draw_decisions(panels[2], decisions, counted)
    return figure


def _draw_confusion(axes: Axes, labels: Sequence[object], confusion: np.ndarray | None, counted: str) -> None:
    axes.set_title("Confusion (share of each true label)")
    if confusion is None:
        note(axes, "too many labels for a table")
        return
    rows = confusion.sum(axis=1, keepdims=True)
    share = confusion / np.where(rows > 0, rows, 1)
    form = ",.6g" if confusion.dtype.kind == "f" else ","  # sums of weights
    axes.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0, aspect="equal", interpolation="nearest")
    axes.grid(visible=False)
    unit = "" if counted == "rows" else f", by {counted}"
    axes.set_xlabel(f"predicted{unit}")
    axes.set_ylabel("true")
    if len(labels) > _MANY:
        axes.set_xlabel(f"predicted{unit} ({len(labels)} labels, ascending)")
        return
    ticks = [name_text(label) for label in labels]
    slanted: Any = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    is_long = len(ticks) * max(map(len, ticks)) > _TICK_ROOM
    axes.set_xticks(range(len(labels)), ticks, **(slanted if is_long else {}))
    axes.set_yticks(range(len(labels)), ticks)
    for (row, column), count in np.ndenumerate(confusion):
        color = "white" if share[row, column] > 0.5 else "black"
        text = f"{count:{form}}\n{100 * share[row, column]:.1f} %" if len(labels) <= 4 else f"{count:{form}}"
        axes.text(
            column, row, text, ha="center", va="center", color=color, fontsize=9 if len(labels) <= 4 else 6
        )


def _draw_roc(axes: Axes, curves: Sequence[Curve]) -> None:
    axes.set_title("ROC")
    if not curves:
        note(axes, "too many classes for curves")
        return
    axes.plot([0, 1], [0, 1], color="#aaaaaa", linewidth=1, linestyle="--")
    if len(curves) <= _MANY:
        for color, curve in zip(COLORS, curves, strict=False):
            axes.plot(*curve[1:], color=color, label=f"{name_text(curve.label)}: area {curve.area:.4f}")
    else:
        worst = sorted(curves, key=lambda curve: curve.area)[:3]
        for curve in curves:
            axes.plot(*curve[1:], color="#bbccdd", linewidth=0.6)
        for color, curve in zip(COLORS[1:], worst, strict=False):
            axes.plot(*curve[1:], color=color, label=f"{name_text(curve.label)}: area {curve.area:.4f}")
        mean = np.mean([curve.area for curve in curves])
        axes.plot([], [], color="#bbccdd", label=f"all {len(curves)} classes: mean area {mean:.4f}")
    axes.set_aspect("equal")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    axes.legend(loc="lower right")


def _draw_reliability(axes: Axes, reliability: Reliability, counted: str) -> None:
    axes.set_title("Calibration")
    axes.plot([0, 1], [0, 1], color="#aaaaaa", linewidth=1, linestyle="--")
    largest = max(float(reliability.n_rows.max(initial=1)), 1.0)
    sizes = 8 + 120 * reliability.n_rows / largest
    axes.plot(reliability.predicted, reliability.observed, color=COLORS[0], linewidth=1)
    axes.scatter(reliability.predicted, reliability.observed, s=sizes, color=COLORS[0], alpha=0.8, zorder=3)
    axes.set_xlim(-0.05, 1.05)  # room for whole dots at 0 and 1
    axes.set_ylim(-0.05, 1.05)
    axes.set_aspect("equal")
    axes.set_xlabel(f"predicted probability (area of a dot: its {counted})")
    axes.set_ylabel("share of hits")


def _draw_decisions(axes: Axes, decisions: Decisions, counted: str) -> None:
    axes.set_title("Decision values by class")
    for color, values, label in (
        (COLORS[1], decisions.others, decisions.other_label),
        (COLORS[0], decisions.own, decisions.label),
    ):
        axes.stairs(values, decisions.edges, color=color, fill=True, alpha=0.5, label=name_text(label))
    axes.axvline(0.0, color="#888888", linewidth=1)
    axes.set_xlabel("decision value")
    axes.set_ylabel(f"share of the {counted} of a class")
    axes.legend()


@styled
def residuals_figure(predicted: np.ndarray, errors: np.ndarray) -> Figure:
    """Draw the errors of predicted numbers against these, and how they are distributed."""
    figure, (against, histogram) = new_figure(columns=2, height=3.6)
    against.plot(predicted, errors, ".", color=COLORS[0], markersize=2, alpha=0.5)
    against.axhline(0.0, color="#888888", linewidth=1)
    against.set_title("Residuals")
    against.set_xlabel("predicted")
    against.set_ylabel("target - predicted")
    histogram.hist(errors, bins=50, color=COLORS[0], alpha=0.7)
    histogram.axvline(0.0, color="#888888", linewidth=1)
    histogram.set_title("Distribution of residuals")
    histogram.set_xlabel("target - predicted")
    histogram.set_ylabel("rows")
    return figure


@styled
def weights_figure(names: Sequence[str], weights: Sequence[float]) -> Figure:
    """Draw the largest weights, the largest at the top."""
    figure, axes = new_figure(height=max(1.5, 0.22 * len(names) + 0.7), width=6.5)
    colors = [COLORS[0] if weight > 0 else COLORS[1] for weight in weights]
    axes.barh(range(len(names)), list(weights), color=colors)
    axes.set_yticks(range(len(names)), [name_text(name) for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.axvline(0.0, color="#444444", linewidth=0.8)
    axes.set_title("Largest weights")
    return figure
