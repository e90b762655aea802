"""Plot of the gap against passes."""

from __future__ import annotations

from pathlib import Path

from .cells import Cell
from .runs import ACCELERATIONS, Limits, gap_curve

PANELS = (
    Cell("a9a", "hinge", 1.0),
    Cell("kdd99_10pct", "squared_hinge", 1.0),
    Cell("dna.scale", "squared_hinge", 1.0),
    Cell("clicks", "squared_hinge", 1.0),
)


def plot_curves(cells: tuple[Cell, ...], folder: Path, limits: Limits, out: Path) -> None:
    """Train each cell plain and accelerated, and draw the certified gaps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(cells), figsize=(3.2 * len(cells), 3.0), squeeze=False, sharey=True)
    for axis, cell in zip(axes[0], cells, strict=True):
        for acceleration, label in zip(ACCELERATIONS, ("accelerated", "plain"), strict=True):
            points = list(gap_curve(cell, acceleration, folder, limits))
            axis.loglog(*zip(*points, strict=True), marker="o", markersize=2.5, label=label)
        axis.set(title=f"{cell.data}, {cell.loss}", xlabel="passes")
        axis.title.set_fontsize(8)
    axes[0][0].set_ylabel("certified relative gap")
    axes[0][0].legend(fontsize=7, frameon=False)
    figure.suptitle(f"C = {cells[0].C:g}", fontsize=9)
    figure.tight_layout()
    figure.savefig(out, dpi=90)
