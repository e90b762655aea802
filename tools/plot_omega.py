"""Passes to a fixed relative gap against omega, on datasets of your own.

    python tools/plot_omega.py a9a mushrooms --tol 1e-3 -o omega.png

Each point is the median over seeds of trainings without acceleration; the dotted line is ``omega="auto"``, its trial passes
counted, and the dashed one acceleration with omega = 1. Needs the extra ``plot``.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from streamcd.core.errors import StreamcdError
from streamcd.runs.train import train

_ACCELERATED = "accelerated"  # in place of an omega
_DEFAULT_OMEGAS = "0.6,0.8,1.0,1.2,1.3,1.4,1.5,1.6,1.7,1.8,1.9"


@click.command()
@click.argument("datasets", nargs=-1, required=True)
@click.option(
    "--losses", default="hinge,squared_hinge", show_default=True, help="Among hinge, squared_hinge, twin."
)
@click.option("--omegas", default=_DEFAULT_OMEGAS, show_default=True)
@click.option("-C", "cost", type=float, default=1.0, show_default=True)
@click.option("--tol", type=float, default=1e-3, show_default=True, help="The relative gap.")
@click.option("--max-passes", type=int, default=2000, show_default=True)
@click.option("--seeds", type=int, default=3, show_default=True)
@click.option("--memory", default="1GB", show_default=True)
@click.option(
    "-o", "out", default="omega.png", show_default=True, help="A picture; the numbers go to standard output."
)
def main(
    datasets: tuple[str, ...],
    losses: str,
    omegas: str,
    cost: float,
    tol: float,
    max_passes: int,
    seeds: int,
    memory: str,
    out: str,
) -> None:
    """Train on DATASETS with one omega after another, and plot the passes."""
    asked: list[float | str] = [*map(float, omegas.split(",")), "auto", _ACCELERATED]
    options: dict[str, Any] = {"C": cost, "tol": tol, "max_passes": max_passes, "memory": memory}
    curves: dict[str, dict[str, dict[str, float]]] = {}
    try:
        for dataset in datasets:
            curves[Path(dataset).name] = {
                loss: {str(omega): _passes(dataset, loss, omega, seeds, options) for omega in asked}
                for loss in losses.split(",")
            }
    except StreamcdError as error:
        sys.exit(f"plot_omega: {error}")
    click.echo(json.dumps(curves, indent=1))
    plot(curves, tol, cost, out)


def _passes(dataset: str, loss: str, omega: float | str, seeds: int, options: dict[str, Any]) -> float:
    """Median over seeds; a run that did not converge counts as having made all the passes allowed."""
    how: dict[str, Any] = {"omega": omega, "acceleration": "none"}
    if omega == _ACCELERATED:
        how = {"acceleration": "auto"}
    with tempfile.TemporaryDirectory() as folder:
        results = [
            train(dataset, Path(folder) / str(seed), loss=loss, seed=seed, **how, **options)
            for seed in range(seeds)
        ]
    return statistics.median(result.passes for result in results)


def plot(curves: dict[str, dict[str, dict[str, float]]], tol: float, cost: float, out: str) -> None:
    """One panel for each dataset, one curve for each loss."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.4), squeeze=False)
    for axis, (name, losses) in zip(axes[0], curves.items(), strict=True):
        for number, (loss, passes) in enumerate(losses.items()):
            named = ("auto", _ACCELERATED)
            numbers = sorted((float(omega), count) for omega, count in passes.items() if omega not in named)
            colour = f"C{number}"
            axis.plot(*zip(*numbers, strict=True), marker="o", markersize=3, color=colour, label=loss)
            axis.axhline(passes["auto"], color=colour, linestyle=":", linewidth=1, label=f"{loss}, auto")
            axis.axhline(passes[_ACCELERATED], color=colour, linestyle="--", linewidth=1)
        axis.set(title=name, xlabel="omega", ylim=(0, None))
        axis.axvline(1.0, color="0.8", zorder=0)
    axes[0][0].set_ylabel(f"passes to a relative gap of {tol:g}")
    axes[0][-1].legend(fontsize=7, frameon=False)
    figure.suptitle(f"C = {cost:g}", fontsize=9)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
