"""Diagnosis of badly scaled features and rows, which slow down coordinate descent.

A coordinate step of the dual divides by a row's squared norm, and moves by at most C, so the number of passes grows with C
times the mean square of the row norms. `docs/measurements.md` has the passes of eight datasets, from which come the bounds.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from .dataset import Dataset
from .feature_figures import read_name

BAD_MEAN_SQUARE = 30.0
"""Bound on C times the mean square of the row norms: it separates the datasets measured that converge within 1000 passes
for every loss from those that do not."""

ACCELERATED_FACTOR = 100.0
"""Multiple of that bound up to which accelerated training still takes tens of passes (`docs/acceleration.md`)."""

BAD_FEATURE_RATIO = 100.0
"""Bound on the ratio of the root mean squares of two features' entries. Raw counts of words come closest among
what was measured, with 22; features in different units, such as dollars and shares, differ by thousands."""

MAXABS = "'streamcd convert --scale maxabs'"
"""Command that brings features to one scale."""

LEAST_TARGET = 1e-8
"""Size of targets below which the steps that a kernel leaves out (`primitives.NO_STEP`) are no small part of them."""

MANY_FRACTIONS = 20
"""Number of labels above which numbers with fractions are a target: ratings by halves have fewer, versions and codes are
names."""

COMMON_SHARE = 0.01
"""Share of the rows in which a feature must occur to be compared: in rows of unit norm rare words differ by a factor of 600,
which is harmless."""


class FeatureRms(TypedDict):
    """Smallest and largest root mean square of a common feature's nonzero entries, with the features' names."""

    min: float
    max: float
    of_min: str
    of_max: str


def feature_rms(dataset: Dataset, *, centred: bool = False) -> FeatureRms | None:
    """Find the smallest and largest root mean square of a common feature's nonzero entries; None if there is none."""
    least, greatest, centre = (np.inf, 0), (0.0, 0), dataset.centre if centred else None
    for piece in dataset.read_features(("feature", "n_entries", "mean_square")):
        common = piece["n_entries"] >= COMMON_SHARE * dataset.n_rows
        mean_square = piece["mean_square"] if centre is None else centre.mean_squares(piece)
        squares = mean_square[common] * (dataset.n_rows / piece["n_entries"][common])
        used = (squares > 0) & np.isfinite(squares)
        rms, feature = np.sqrt(squares[used]), piece["feature"][common][used]
        if rms.size:
            least = min(least, (float(rms.min()), int(feature[rms.argmin()])))
            greatest = max(greatest, (float(rms.max()), int(feature[rms.argmax()])))
    if not greatest[0]:
        return None
    names = [read_name(dataset.file("features.parquet"), feature) for _, feature in (least, greatest)]
    return {"min": least[0], "max": greatest[0], "of_min": names[0], "of_max": names[1]}


def labels_of_a_target(dataset: Dataset, most: int = MANY_FRACTIONS) -> str | None:
    """Describe labels that are numbers to predict, taken as classes: with fractions, more than `most`; None for others."""
    labels = None if dataset.class_names is not None else dataset.classes
    if labels is None or labels.size <= most:
        return None
    fractions = labels[labels != np.floor(labels)]
    return f"{labels.size:,} different numbers such as {fractions[0]:.6g}" if fractions.size else None


TARGET_ADVICE = (
    "convert with --target to predict numbers; if they are classes, write them as whole numbers or names"
)
"""What to do about such labels."""


MOST_DIGITS = 1e13
"""Largest root mean square of a feature, times the square root of the number of rows, where a gap of 1e-3 can be proven."""


def advice(
    dataset: Dataset,
    C: float = 1.0,
    *,
    accelerated: bool = False,
    method: str = "dual",
    centred: bool = False,
) -> list[str]:
    """Describe what is badly scaled for a training with `C`: a line each, with figures and the option that helps.

    Features matter to all methods but newton, rows to dual ones only, and the size of targets to those by coordinates. It is
    that of `centred` rows where training centres them. Rows are not told of where features are, and the same option helps.
    """
    by_rows, by_coordinates = method in ("auto", "dual"), method in ("auto", "dual", "primal")
    lines = [] if method == "newton" else _about_features(dataset, centred=centred)
    alike = bool(lines) and _remedy_of_rows(dataset) == MAXABS
    if by_rows and not alike and rows_are_long(dataset, C, accelerated=accelerated, centred=centred):
        lines += _about_rows(dataset, C, centred=centred)
    return lines + _about_targets(dataset) if by_coordinates else lines


def passes_help(dataset: Dataset, C: float, *, method: str, centred: bool) -> bool:
    """Tell whether a training that has not converged gains by more passes; if not, the data has to be scaled first."""
    if method == "newton":
        return True
    long = method in ("auto", "dual") and rows_are_long(dataset, C, accelerated=True, centred=centred)
    return not (long or _about_features(dataset, centred=centred))


def rows_are_long(dataset: Dataset, C: float, *, accelerated: bool, centred: bool) -> bool:
    """Tell whether rows are so long, beside 1/C, that the dual method takes many passes."""
    mean_square = _mean_square(dataset, centred=centred)
    bound = ACCELERATED_FACTOR * BAD_MEAN_SQUARE if accelerated else BAD_MEAN_SQUARE
    return bool(mean_square is not None and C * mean_square >= bound)


def _mean_square(dataset: Dataset, *, centred: bool) -> float | None:
    return ((centred and dataset.centre) or dataset).mean_square


def loses_digits(dataset: Dataset) -> bool:
    """Check if a feature is so large that rounding of sums over the rows hides whether an optimum is reached.

    A relative gap has the square of their rounding, 2.2e-16 times what is compared here.
    """
    rms = feature_rms(dataset)
    return rms is not None and rms["max"] * dataset.n_rows**0.5 > MOST_DIGITS


def _about_features(dataset: Dataset, *, centred: bool) -> list[str]:
    rms = None if dataset.scaling.scale == "maxabs" else feature_rms(dataset, centred=centred)
    if rms is None or rms["max"] < BAD_FEATURE_RATIO * rms["min"]:
        return []
    return [
        f"features are badly scaled (root mean squares from {rms['min']:.3g} of {rms['of_min']} to {rms['max']:.3g} of "
        f"{rms['of_max']}), which takes many passes by all methods but newton; try {MAXABS}"
    ]


def _about_targets(dataset: Dataset) -> list[str]:
    largest = 0.0 if dataset.targets is None else max(abs(dataset.targets[end]) for end in ("min", "max"))
    if not 0.0 < largest < LEAST_TARGET:
        return []
    return [
        f"targets are {largest:.2g} in size at most: dual and primal methods leave errors of 1e-12 alone; multiply targets "
        "(with epsilon or delta) by a power of ten, or take --method newton where the loss has it"
    ]


def _about_rows(dataset: Dataset, C: float, *, centred: bool) -> list[str]:
    mean_square = _mean_square(dataset, centred=centred) or 0.0
    product = f"C times their mean square norm is {C * mean_square:.3g}, above {BAD_MEAN_SQUARE:g}"
    if dataset.scaling.normalize != "none":
        return [f"C is large for these rows ({product}), which takes many passes by dual; try a smaller C"]
    what = "C is large for these rows" if mean_square < BAD_MEAN_SQUARE else "rows are badly scaled"
    return [
        f"{what} ({product}), which takes many passes by dual; try {_remedy_of_rows(dataset)}, or a smaller C"
    ]


def _remedy_of_rows(dataset: Dataset) -> str:
    of_columns = dataset.manifest.get("encoding") and dataset.scaling.scale == "none"
    return MAXABS if of_columns else "'streamcd convert --normalize l2'"
