"""Labels of a dataset as a problem takes them: refused where they are not what the loss is for, weighted by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import UsageError, refuse
from ..kernels.loss_table import LOSSES

if TYPE_CHECKING:
    from ..dataset.dataset import Dataset


def check_labels(loss: str, dataset: Dataset) -> None:
    """Refuse a dataset whose labels are not what the loss is for: targets, or two classes at least."""
    # with arrays, which declarations do without
    from ..dataset.diagnostics import TARGET_ADVICE, labels_of_a_target
    from ..dataset.schema import MAX_CLASSES

    where, classes, names = dataset.path, dataset.classes, dataset.class_names
    if LOSSES[loss].has_targets:
        wrong = (
            f"{where}: expected numbers to predict for the loss {loss}, found classes; convert with --target"
        )
        refuse(UsageError, (not dataset.has_targets, wrong))
        return
    for_numbers = " or ".join(name for name, entry in LOSSES.items() if entry.has_targets)
    expected = f"{where}: expected classes for the loss {loss}, found"
    numbers = labels_of_a_target(dataset)
    refuse(
        UsageError,
        (
            dataset.has_targets,
            f"{expected} numbers to predict; take --loss {for_numbers}, or convert without --target",
        ),
        (
            classes is None,
            f"{expected} more than {MAX_CLASSES:,}; take another --label, or convert with --target",
        ),
        (numbers, f"{expected} {numbers}; {TARGET_ADVICE}"),
        (names and classes is not None and classes.size == 1, f"{expected} {(names or [''])[0]!r} alone"),
    )


def weights_by_number(weights: tuple[tuple[float | str, float], ...], dataset: Dataset) -> dict[float, float]:
    """Return the factors of classes by number; raises `UsageError` for a label that the data does not have."""
    names = dataset.class_names
    texts = {} if names is None else {name: float(number) for number, name in enumerate(names)}
    numbers = {}
    for label, factor in weights:
        if names is None and not isinstance(label, str):
            numbers[label] = factor
            continue
        text = label if isinstance(label, str) else f"{label:g}"
        if text not in texts:
            has = "numbers as labels" if names is None else "the labels " + ", ".join(names[:10])
            raise UsageError(f"class weight for label {text}: no such label; the data has {has}")
        numbers[texts[text]] = factor
    return numbers
