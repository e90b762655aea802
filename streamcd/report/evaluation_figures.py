"""Figures of a model: the confusion of its predictions, and its largest weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .drawing import COLORS, name_text, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TICK_ROOM = 36  # characters of all labels side by side
_MANY = 10  # classes; with more, cells have no numbers


@styled
def confusion_figure(labels: Sequence[object], confusion: np.ndarray, counted: str = "rows") -> Figure:
    """Draw the confusion of labels; `counted` tells if it is of rows or of their "weight"."""
    figure, axes = new_figure(height=3.6, width=4.5)
    axes.set_title("Confusion (share of each true label)")
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
        return figure
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
