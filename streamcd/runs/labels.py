"""Labels of a dataset as a problem takes them: refused where they are not what the loss is for, weighted by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.errors import UsageError, first_of, refuse
from ..kernels.loss_table import LOSSES

if TYPE_CHECKING:
    import numpy as np

    from ..dataset.dataset import Dataset


_MANY_FRACTIONS = 20
"""Number of labels above which numbers with fractions are a target: ratings by halves have fewer, versions and codes are
names."""


def labels_of_a_target(dataset: Dataset, most: int = _MANY_FRACTIONS) -> str | None:
    """Describe labels that are numbers to predict, taken as classes: with fractions, more than `most`; None for others."""
    labels = None if dataset.class_names is not None else dataset.classes
    if labels is None or labels.size <= most:
        return None
    fractions = labels[labels % 1.0 != 0.0]
    if not fractions.size:
        return None
    return (
        f"{labels.size:,} different numbers such as {fractions[0]:.6g}; convert with --target to predict numbers; if they "
        "are classes, write them as whole numbers or names"
    )


def check_labels(loss: str, dataset: Dataset) -> None:
    """Refuse a dataset whose labels are not what the loss is for: targets, or two classes at least."""
    from ..dataset.schema import MAX_CLASSES  # with arrays, which declarations do without

    where = dataset.path
    if LOSSES[loss].has_targets:
        wrong = (
            f"{where}: expected numbers to predict for the loss {loss}, found classes; convert with --target"
        )
        refuse(UsageError, (not dataset.has_targets, wrong))
        return
    for_numbers = " or ".join(name for name, entry in LOSSES.items() if entry.has_targets)
    expected = f"{where}: expected classes for the loss {loss}, found"
    numbers, labels = labels_of_a_target(dataset), dataset.class_labels()
    refuse(
        UsageError,
        (
            dataset.has_targets,
            f"{expected} numbers to predict; take --loss {for_numbers}, or convert without --target",
        ),
        (
            labels is None,
            f"{expected} more than {MAX_CLASSES:,}; take another --label, or convert with --target",
        ),
        (numbers, f"{expected} {numbers}"),
        (len(labels or ()) == 1, f"{where}: expected at least two classes, found {str(labels)[1:-1]} alone"),
    )


def class_factors(weights: Any, dataset: Dataset) -> np.ndarray | None:
    """Return the factor of C for each class: all 1, "balanced" (rows / (k · rows of the class)), or as pairs tell."""
    import numpy as np

    if weights is None:
        return None
    if dataset.classes is None or dataset.class_counts is None:
        raise UsageError("class weights are for classes, not for numbers to predict; give rows weights")
    labels, counts, names = dataset.classes.tolist(), dataset.class_counts, dataset.class_names
    if weights == "balanced":
        return np.asarray(counts.sum() / (len(labels) * np.maximum(counts, 1)))
    if names is not None:
        labels = [names[int(number)] for number in labels]
        weights = [(label if isinstance(label, str) else f"{label:g}", factor) for label, factor in weights]
    factors = np.ones(len(labels))
    for label, factor in weights:
        if label not in labels:
            asked, *has = (one if isinstance(one, str) else f"{one:g}" for one in (label, *labels))
            raise UsageError(
                f"class weight for label {asked}: no such label; the data has the labels {first_of(has)}"
            )
        factors[labels.index(label)] = factor
    return factors
