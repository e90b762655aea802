"""Diagnosis of badly scaled features and rows, which slow down coordinate descent.

A coordinate step of the dual divides by a row's squared norm, and moves by at most C, so the number of passes grows with C
times the mean square of the row norms. `docs/measurements.md` has the passes of eight datasets, from which come the bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import DatasetError
from .arrow_columns import column_values, read_tables
from .dataset import Dataset

BAD_MEAN_SQUARE = 30.0
"""Bound on C times the mean square of the row norms: it separates the datasets measured that converge within 1000 passes
for every loss from those that do not."""

ACCELERATED_FACTOR = 100.0
"""Multiple of that bound up to which accelerated training still takes tens of passes (`docs/measurements.md`)."""

BAD_FEATURE_RATIO = 100.0
"""Bound on the ratio of the root mean squares of two features' entries. Raw counts of words come closest among
what was measured, with 22; features in different units, such as dollars and shares, differ by thousands."""

COMMON_SHARE = 0.01
"""Share of the rows in which a feature must occur to be compared: in rows of unit norm rare words differ by a factor of 600,
which is harmless."""


def feature_rms(dataset: Dataset, *, centred: bool = False) -> dict[str, Any] | None:
    """Find the smallest and largest root mean square of a common feature's nonzero entries, ``min`` and ``max``.

    ``of_min`` and ``of_max`` are the features' names. None if there is none.
    """
    least = (np.inf, 0)
    greatest = (0.0, 0)
    centre = dataset.centre if centred else None
    for piece in dataset.read_features(("feature", "n_entries", "mean_square")):
        common = piece["n_entries"] >= COMMON_SHARE * dataset.n_rows
        mean_square = piece["mean_square"] if centre is None else centre.mean_squares(piece)
        squares = mean_square[common] * (dataset.n_rows / piece["n_entries"][common])
        used = (squares > 0) & np.isfinite(squares)
        rms = np.sqrt(squares[used])
        feature = piece["feature"][common][used]
        if rms.size:
            least = min(least, (float(rms.min()), int(feature[rms.argmin()])))
            greatest = max(greatest, (float(rms.max()), int(feature[rms.argmax()])))
    if not greatest[0]:
        return None
    names = [_read_name(dataset, feature) for _, feature in (least, greatest)]
    return {"min": least[0], "max": greatest[0], "of_min": names[0], "of_max": names[1]}


def _read_name(dataset: Dataset, feature: int) -> str:
    """Read the name of a feature that occurs; without names its index in the source."""
    path = dataset.file("features.parquet")
    for table in read_tables(path, ("feature", "index", "name"), first=("feature", feature)):
        for row in np.flatnonzero(column_values(table["feature"]) == feature).tolist():
            name: str | None = table["name"][row].as_py()
            return f"feature {table['index'][row]}" if name is None else name
        break
    raise DatasetError(f"{path}: expected feature {feature}, found none")


def row_mean_square(dataset: Dataset, *, centred: bool) -> float | None:
    """Return the mean square of the rows' norms, once `centred` where training does that; None where it is not known."""
    return ((centred and dataset.centre) or dataset).mean_square


def advice(
    dataset: Dataset,
    C: float = 1.0,
    *,
    accelerated: bool = False,
    method: str = "dual",
    centred: bool = False,
) -> list[str]:
    """Describe what is badly scaled for a training with `C`: a line each, with figures and the option that helps.

    Features matter to all methods but newton, rows to dual ones only; what matters is how they are once `centred`, where
    training does that. Rows are not told of where features are, and the same option helps.
    """
    lines = []
    scaling = dataset.scaling
    maxabs = "converting with --scale maxabs"
    remedy = (
        maxabs
        if dataset.manifest.get("encoding") and scaling.scale == "none"
        else "converting with --normalize l2"
    )
    rms = None if method == "newton" or scaling.scale == "maxabs" else feature_rms(dataset, centred=centred)
    if rms is not None and rms["max"] >= BAD_FEATURE_RATIO * rms["min"]:
        name = repr if dataset.manifest.get("encoding") else str
        least, greatest = (f"{rms[end]:.3g} of {name(rms[f'of_{end}'])}" for end in ("min", "max"))
        lines.append(
            f"features are badly scaled (root mean squares from {least} to {greatest}), which takes many passes by all "
            f"methods but newton; try {maxabs}"
        )
    mean_square = row_mean_square(dataset, centred=centred) or 0.0
    bound = ACCELERATED_FACTOR * BAD_MEAN_SQUARE if accelerated else BAD_MEAN_SQUARE
    long = method in ("auto", "dual") and C * mean_square >= bound
    if long and not (lines and remedy == maxabs):
        is_C = scaling.normalize != "none" or mean_square < BAD_MEAN_SQUARE
        ways = "" if scaling.normalize != "none" else f"{remedy}, or "
        lines.append(
            f"{'C is large for these rows' if is_C else 'rows are badly scaled'} (C times their mean square norm is "
            f"{C * mean_square:.3g}, above {BAD_MEAN_SQUARE:g}), which takes many passes by dual; try {ways}a smaller C"
        )
    return lines
