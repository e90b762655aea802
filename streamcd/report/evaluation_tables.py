"""Tables of the quality of a model's predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .tables import Facts, Table

_MOST_CLASSES_SHOWN, _MOST_CLASSES_CROSSED = 30, 10

_QUALITY = {
    "f1_micro": "micro F1",
    "f1_macro": "macro F1",
    "hamming_loss": "Hamming loss",
    "mae": "mean absolute error",
    "mse": "mean squared error",
    "r2": "R²",
    "loss": "mean loss",
    "primal_objective": "primal objective",
    "auc": "area under ROC curve",
    "log_loss": "mean log loss",
}


_FORMS = {
    **dict.fromkeys(("mae", "mse"), ".6g"),
    **dict.fromkeys(("loss", "log_loss", "hamming_loss"), ".4g"),
    "primal_objective": ".10g",
}
"""Formats of figures that are no shares, of which four decimals stand; ``--json`` has all digits."""


def evaluation_tables(title: str, result: Facts) -> list[Table]:
    """Show the quality of a model's predictions."""
    rows, n_labels = [("rows", f"{result['n_rows']:,}")], len(result.get("labels", []))
    weighted = result.get("weighted", False)
    if weighted:
        total = f"{result['sum_of_weights']:,.10g}"
        rows += [
            (
                "weights",
                f"{total} in sum, by which rows count in all figures below; --unweighted counts them alike",
            )
        ]
    if "accuracy" in result:
        rows += [("accuracy", f"{100 * result['accuracy']:.2f} %")]
    if "subset_accuracy" in result:
        rows += [("all labels right", f"{100 * result['subset_accuracy']:.2f} % of the rows")]
    for key, name in _QUALITY.items():
        if result.get(key) is not None:
            error = f" ± {result[f'{key}_error']:.1g}" if result.get(f"{key}_error") else ""
            rows.append((name, f"{result[key]:{_FORMS.get(key, '.4f')}}{error}"))
    tables = [Table(title, rows)]
    if 1 < n_labels <= _MOST_CLASSES_SHOWN:
        tables.append(_class_table(result["per_class"], weighted=weighted))
    if 1 < n_labels <= _MOST_CLASSES_CROSSED and "confusion" in result:
        tables.append(_confusion_table(result["labels"], result["confusion"], weighted=weighted))
    return tables


def _class_table(classes: Sequence[Facts], *, weighted: bool) -> Table:
    rows = [
        [
            str(of["label"]),
            f"{of['n_rows']:,}",
            *([f"{of['sum_of_weights']:,.6g}"] if weighted else []),
            *map(_share, (of["precision"], of["recall"], of["f1"])),
        ]
        for of in classes
    ]
    header = ["label", "rows", *["their weight"] * weighted, "precision", "recall", "F1"]
    return Table(f"by class{', weighted' * weighted}", rows, header)


def _share(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.4f}"


def _confusion_table(labels: Sequence[Any], confusion: Sequence[Sequence[float]], *, weighted: bool) -> Table:
    rows = [
        [str(label), *(f"{count:,.6g}" if weighted else f"{count:,}" for count in row)]
        for label, row in zip(labels, confusion, strict=True)
    ]
    return Table(
        f"confusion{', in sums of weights' * weighted}", rows, ["true \\ predicted", *map(str, labels)]
    )
