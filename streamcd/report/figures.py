"""Figures of a run's page, as PNG: the gap of a training, and the scores of a search."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import UsageError
from .scores import best_of, scores_of

COLORS = "#2563a8", "#d1742c", "#3d8f5b", "#a3417e", "#7a6a3a", "#4f5d75", "#b03a3a", "#2f8f9d"

_STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "font.size": 9,
    "text.usetex": False,
}


def require_matplotlib() -> Any:
    """Return matplotlib, or raise a `UsageError` that names the extra: called before long work that ends in a picture."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError(
            "plots need matplotlib; install it by: pip install 'streamcd[plot]', or pip install '.[plot]' in the directory "
            "of the sources"
        ) from None
    return matplotlib


def _new_figure(columns: int = 1) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    return figure, figure.subplots(1, columns)


def _image(figure: Any) -> bytes:
    """Render a figure; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def gap_figure(histories: Mapping[str, Sequence[Mapping[str, Any]]], tol: float | None) -> bytes:
    """Draw the largest relative gap against passes and seconds: estimates as lines, certificates as dots.

    `histories` are those of `training.result.read_history`.
    """
    with require_matplotlib().rc_context(_STYLE):
        figure, panels = _new_figure(columns=2)
        for axes, across, unit in zip(panels, ("passes", "elapsed"), ("passes", "seconds"), strict=True):
            for number, (name, records) in enumerate(histories.items()):
                color = COLORS[number % len(COLORS)]
                label = f"{name}: " if name else ""
                estimates = [
                    (record[across], record["relative_gap_estimate"])
                    for record in records
                    if record["kind"] == "train" and record["relative_gap_estimate"]
                ]
                # where every read has a certificate, those of early weights tell little
                certified = [
                    (record[across], record["relative_gap"])
                    for record in records
                    if (record["kind"] == "certify" or not record["open_lanes"]) and record["relative_gap"]
                ]
                axes.plot(*_points(estimates), color=color, label=f"{label}estimate")
                axes.plot(
                    *_points(certified), "o", color=color, markersize=5, label=f"{label}certificate (proven)"
                )
            if tol is not None:
                axes.axhline(tol, color="#888888", linestyle="--", linewidth=1, label=f"tolerance {tol:g}")
            axes.set_yscale("log", nonpositive="mask")
            axes.set_xlim(left=0)
            axes.set_xlabel(unit)
        panels[0].set_ylabel("relative duality gap")
        panels[0].legend()
        return _image(figure)


def search_figure(search: Mapping[str, Any]) -> bytes:
    """Draw the score on every fold, and its mean: against C, or against λ, a line for each C, where there are several λ."""
    scores = scores_of(search)
    best = best_of(search)
    with require_matplotlib().rc_context(_STYLE):
        figure, axes = _new_figure()
        along, apart = (1, 0) if len({setting.l1 for setting in scores}) > 1 else (0, 1)
        for number, value in enumerate(sorted({setting[apart] for setting in scores})):
            of_value = [(setting[along], of) for setting, of in scores.items() if setting[apart] == value]
            color = COLORS[number % len(COLORS)]
            points = [(x, score) for x, of in of_value for score in of["folds"]]
            axes.plot(*_points(points), ".", color=color, alpha=0.5)
            means = [(x, of["mean"]) for x, of in of_value]
            axes.plot(*_points(means), color=color, label=f"mean, C = {value:g}" if along else "mean")
        axes.plot(best[along], scores[best]["mean"], "o", color=COLORS[1], label=f"best, {best}")
        axes.set_xscale("log")
        axes.set_xlabel("l1" if along else "C")
        axes.set_ylabel(search["scored_by"])
        axes.legend()
        return _image(figure)


def _points(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]
