"""Progress as text, and the time that a training still takes."""

from __future__ import annotations

import math

from ..core.errors import format_seconds
from ..core.memory_budget import format_size
from ..core.options import Progress, TrainingStatus


class Course:
    """Course of one training: times of its passes, and the fall of the gap (or violation), by which its end is forecast.

    A line is fitted to the logarithm of the gap over the last half of the passes: in the first ones it falls faster.
    """

    def __init__(self, status: TrainingStatus, now: float) -> None:
        self._task, self._first, self._last = status.task, status.passes, status.passes
        self._paced_from = (float(status.passes), now)  # passes and time from which the pace is taken
        self._points: list[tuple[int, float]] = []  # passes, logarithm of the measure over its target

    def continues(self, status: TrainingStatus) -> bool:
        """Return whether this is the same training."""
        return status.task == self._task and status.passes >= self._last

    def learn(self, status: TrainingStatus, now: float) -> None:
        """Record the status after a read."""
        if (
            self._last == self._first < status.passes
        ):  # the first pass loads kernels, and files that are not cached
            self._paced_from = (float(status.passes), now)
        self._last = status.passes
        if status.now > 0 and status.wanted > 0 and math.isfinite(status.now):
            if self._points and self._points[-1][0] >= status.passes:
                self._points.pop()
            self._points.append((status.passes, math.log(status.now / status.wanted)))

    def passes_left(self, status: TrainingStatus, passes: float) -> float | None:
        """Return the passes left after `passes`, with one for the certificate; None while no line can be fitted."""
        if len(self._points) < 2:
            return None
        slope, at_end = _line(self._points[-max(3, math.ceil(len(self._points) / 2)) :])
        if slope >= 0 and at_end > 0:
            return None
        end = self._points[-1][0] - (at_end / slope if at_end > 0 else 0.0)
        return 1.0 + max(min(end, status.max_passes) - passes, 0.0)

    def time_left(self, progress: Progress, now: float) -> list[str]:
        """Describe the time left, by the passes so far; an empty list where it is not known."""
        status = progress.training
        assert status is not None
        passes = status.passes + status.passes_ahead * progress.done / max(progress.total or 1, 1)
        left, (start, begun) = self.passes_left(status, passes), self._paced_from
        if left is None or passes <= start:
            return []
        return [f"about {format_seconds(left * (now - begun) / (passes - start))} left"]


def _line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Return the slope of the least-squares line, and its value at the last point, or the last value itself if smaller."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return slope, min(mean_y + slope * (points[-1][0] - mean_x), points[-1][1])


def describe_progress(progress: Progress, seconds: float) -> str:
    """Describe share done, rate and time left of a phase that has taken `seconds`."""
    parts = []
    if progress.total:
        share = 100 * progress.done / progress.total
        parts.append(f"{share:.0f} % of {_amount(progress.total, progress.unit)}")
    elif progress.done or not progress.note:
        parts.append(_amount(progress.done, progress.unit))
    if seconds > 0.2 and progress.done:
        rate = progress.done / seconds
        parts.append(f"{_amount(rate, progress.unit)}/s")
        if progress.total:
            parts.append(f"{format_seconds((progress.total - progress.done) / rate)} left")
    if progress.note:
        parts.append(progress.note)
    return ", ".join(parts)


def _amount(number: float, unit: str) -> str:
    if unit == "B":
        return format_size(number)
    for scale, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= scale:
            return f"{number / scale:.3g}{letter} {unit}"
    return f"{number:.3g} {unit}"
