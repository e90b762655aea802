"""Forecast of a training's end, fitted to the fall of the gap (or the violation) over the passes so far."""

from __future__ import annotations

import math

from ..core.progress import TrainingStatus

_FITTED_SHARE = 0.5  # only the last half of the passes is fitted: in the first ones the gap falls faster
_FITTED_LEAST = 3
_CERTIFICATE = 1.0  # the certifying read at the end, in passes


class Forecast:
    """Forecast from the status after each pass, by a line fitted to the logarithm of the gap (or violation)."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []  # passes, logarithm of the measure over its target
        self._share = 0.0

    def learn(self, status: TrainingStatus) -> None:
        """Record the status after a pass."""
        if status.now > 0 and status.wanted > 0 and math.isfinite(status.now):
            if self._points and self._points[-1][0] >= status.passes:
                self._points.pop()
            self._points.append((status.passes, math.log(status.now / status.wanted)))

    def passes_left(self, status: TrainingStatus, passes: float) -> float | None:
        """Return the passes left after `passes`, the certificate included; None while no line can be fitted."""
        allowed = max(status.max_passes - passes, 0.0) + _CERTIFICATE
        if len(self._points) < 2:
            return None
        n_fitted = max(_FITTED_LEAST, math.ceil(_FITTED_SHARE * len(self._points)))
        slope, at_end = _line(self._points[-n_fitted:])
        last = self._points[-1][0]
        if at_end <= 0:
            return min(max(last - passes, 0.0) + _CERTIFICATE, allowed)
        if slope >= 0:
            return None
        return min(max(last - at_end / slope - passes, 0.0) + _CERTIFICATE, allowed)

    def share(self, status: TrainingStatus, passes: float) -> float:
        """Return the share of the passes that is done, which never decreases."""
        left = self.passes_left(status, passes)
        if left is not None:
            self._share = max(self._share, passes / max(passes + left, 1e-9))
        return min(self._share, 1.0)


def _line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Return the slope of the least-squares line, and its value at the last point, or the last value itself if smaller."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return slope, min(mean_y + slope * (points[-1][0] - mean_x), points[-1][1])
