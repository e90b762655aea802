"""Course of a training as the console follows it, and progress as text."""

from __future__ import annotations

import math

from ..core.memory_budget import format_size
from ..core.progress import Progress, TrainingStatus, format_seconds

_FITTED_SHARE = 0.5  # only the last half of the passes is fitted: in the first ones the gap falls faster
_FITTED_LEAST = 3
_CERTIFICATE = 1.0  # the certifying read at the end, in passes


class Course:
    """Course of one training as the console follows it: times of its passes, and the forecast of its end."""

    def __init__(self, status: TrainingStatus, now: float) -> None:
        self._first, self._begun = status, now
        self._last = status.passes
        self._paced_from = (float(status.passes), now)  # passes and time from which the pace is taken
        self._forecast = Forecast()

    def continues(self, status: TrainingStatus) -> bool:
        """Return whether this is the same training."""
        return status.task == self._first.task and status.passes >= self._last

    def learn(self, status: TrainingStatus, now: float) -> bool:
        """Record the status; returns True when a pass has ended."""
        self._forecast.learn(status)
        ended = status.passes > self._last
        if (
            ended and self._last == self._first.passes
        ):  # the first pass loads kernels, and files that are not cached
            self._paced_from = (float(status.passes), now)
        if ended:
            self._last = status.passes
        return ended

    def reach(self, progress: Progress, now: float) -> tuple[float, str]:
        """Return the share of the training that is done, and a description."""
        status = progress.training
        assert status is not None
        parts = [f"pass {status.passes}", *_measured(status), f"{format_seconds(now - self._begun)} elapsed"]
        share = self._forecast.share(status, self._passes(progress))
        return share, ", ".join(parts + self.time_left(progress, now))

    def time_left(self, progress: Progress, now: float) -> list[str]:
        """Describe the time left, by the passes so far; an empty list where it is not known."""
        status = progress.training
        assert status is not None
        passes = self._passes(progress)
        left = self._forecast.passes_left(status, passes)
        return [] if left is None else [f"about {format_seconds(left * self._pace(passes, now))} left"]

    def _pace(self, passes: float, now: float) -> float:
        """Return the seconds a pass takes."""
        start, begun = self._paced_from
        if passes <= start:
            start, begun = float(self._first.passes), self._begun
        return (now - begun) / max(passes - start, 1e-9)

    def line(self, status: TrainingStatus, now: float) -> str:
        """Describe the state after a pass in a line."""
        parts = [*_measured(status), format_seconds(now - self._begun)]
        left = self._forecast.passes_left(status, status.passes)
        if left is not None and status.passes < status.max_passes:
            unit = "pass" if round(left) == 1 else "passes"
            parts.append(
                f"about {left:.0f} more {unit}, {format_seconds(left * self._pace(status.passes, now))}"
            )
        return f"{status.task}pass {status.passes}: {', '.join(parts)}"

    def _passes(self, progress: Progress) -> float:
        """Return the passes done, including the fraction of the current one."""
        status = progress.training
        assert status is not None
        return status.passes + status.passes_ahead * progress.done / max(progress.total or 1, 1)


def _measured(status: TrainingStatus) -> list[str]:
    return (
        [] if math.isnan(status.now) else [f"{status.measure} {status.now:.1e}, wanted {status.wanted:.1e}"]
    )


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


# ---------------------------------------------------------------------------------------------------------------------
# The end of a training, fitted to the fall of the gap (or the violation) over the passes so far


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
