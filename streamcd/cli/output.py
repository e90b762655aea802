"""Results as the command line prints them: one JSON object, or tables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..core.memory_budget import format_size
from . import console

if TYPE_CHECKING:
    from ..dataset.dataset import Dataset


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Gather what `info` and `convert` tell of a dataset."""
    from ..conversion.staging import leftovers
    from ..dataset.column_layout import has_columns
    from ..dataset.diagnostics import advice, feature_rms
    from ..models.encoding import first_feature_names
    from ..runs.method_choice import choose_method

    method, reason = choose_method(unpenalized_bias=False)
    return {
        **dataset.info(),
        "feature_names": first_feature_names(dataset, 10),
        "feature_rms": feature_rms(dataset),
        "advice": [*advice(dataset), *leftovers(dataset.path)],
        "columns": has_columns(dataset),
        "method": method,
        "method_because": reason,
    }


def print_dataset(path: str, info: dict[str, Any], as_json: bool) -> None:
    """Print what `describe_dataset` gathered."""
    console.show(info, as_json, lambda: console.print_table(f"dataset {path}", _dataset_rows(info)))


def _dataset_rows(info: dict[str, Any]) -> list[tuple[str, str]]:
    classes = "more than can be listed"
    if info["classes"] is not None:
        pairs = [
            f"{label} ({count:,})" for label, count in zip(info["classes"], info["class_counts"], strict=True)
        ]
        classes = ", ".join(pairs[:10]) + (f", … {len(pairs)} in all" if len(pairs) > 10 else "")
    return [
        ("rows", f"{info['n_rows']:,}"),
        ("features", f"{info['n_features']:,} {_where_from(info)}"),
        ("entries", f"{info['n_entries']:,} (density {info['density']:.3g})"),
        ("classes", classes),
        ("on disk", _size_on_disk(info)),
        ("decoded", f"{format_size(info['bytes_decoded'])} ({info['index_dtype']}, {info['value_dtype']})"),
        *_scaling_rows(info),
        ("fingerprint", info["fingerprint"]),
        *([("data digest", info["data_digest"])] if info["data_digest"] else []),
        ("column layout", "yes" if info["columns"] else "no"),
        ("method", f"{info['method']}: {info['method_because']}"),
    ]


def _where_from(info: dict[str, Any]) -> str:
    """Say how features are numbered, or the names of the first."""
    if info["feature_names"]:
        return f"({', '.join(info['feature_names'])}{', …' if info['n_features'] > len(info['feature_names']) else ''})"
    return f"(indices from {info['index_base']} on)"


def _scaling_rows(info: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    given = [f"{name} {info[name]}" for name in ("scale", "normalize") if info[name] != "none"]
    if given:
        rows.append(("scaled by", ", ".join(given)))
    rms, norms = info["feature_rms"], info["row_norms"]
    if rms is not None:
        rows.append(("feature values", f"root mean squares from {rms['min']:.3g} to {rms['max']:.3g}"))
    if norms is not None and norms["min"] is not None:
        mean_square = norms["mean_square"]
        middle = "" if mean_square is None else f", root mean square {mean_square**0.5:.3g}"
        text = f"from {norms['min']:.3g} to {norms['max']:.3g}{middle}; {norms['n_empty']:,} empty rows"
        rows.append(("row norms", text))
    return rows + [("note", line) for line in info["advice"]]


def _size_on_disk(info: dict[str, Any]) -> str:
    return f"{format_size(info['bytes'])} in {info['n_shards']:,} shards, {info['n_chunks']:,} chunks"


def print_columns(path: str, info: dict[str, Any], as_json: bool) -> None:
    """Print what a column layout holds."""
    rows = [
        ("features", f"{info['n_features']:,} that occur"),
        ("entries", f"{info['n_entries']:,}"),
        ("on disk", _size_on_disk(info)),
        ("fingerprint", info["fingerprint"]),
    ]
    console.show(info, as_json, lambda: console.print_table(f"column layout of {path}", rows))


def warn_unconverged(listener: console.Console, result: Any) -> None:
    """Warn of a training that ended before its rule was met."""
    if not result.converged:
        listener.warning(
            f"{result.describe_shortfall()}; 'streamcd resume {result.run} --max-passes N' goes on"
        )


def print_result(result: Any, as_json: bool) -> None:
    """Print how a training, or a search over C, ended."""
    console.show(result.to_json(), as_json, lambda: _print_tables(result))


def _print_tables(result: Any) -> None:
    rows = [
        ("converged", "yes" if result.converged else "no"),
        ("stopped by", result.stop_reason.replace("_", " ")),
        ("passes", f"{result.passes:,}"),
        ("primal objective", f"{result.primal_objective:.10g}"),
        ("dual objective", f"{result.dual_objective:.10g}"),
        ("relative gap", f"{result.gap:.3g}"),
        ("violation", f"{result.violation:.3g}"),
        ("time", console.format_seconds(result.seconds)),
        ("read", format_size(result.bytes_read)),
        ("peak memory", format_size(result.peak_memory_bytes)),
        ("model", os.path.join(result.run, "model")),
    ]
    console.print_table(f"run {result.run}: {result.n_rows:,} rows, {result.n_features:,} features", rows)
    if hasattr(result, "scores"):
        _print_scores(result)
    elif len({lane["C"] for lane in result.lanes}) > 1:
        header = ["C", "label", "primal objective", "relative gap", "passes"]
        console.print_table("models", [_lane_cells(lane) for lane in result.lanes], header)


def _print_scores(result: Any) -> None:
    rows = []
    for C, score in result.scores.items():
        folds = score["folds"]
        rows.append([C, f"{score['mean']:.4f}", f"{min(folds):.4f}", f"{max(folds):.4f}"])
    title = f"accuracy on {len(folds)} folds, best C = {result.best_C:g}"
    console.print_table(title, rows, ["C", "mean", "worst", "best"])


def _lane_cells(lane: dict[str, Any]) -> list[str]:
    label = lane["label"]
    label = "" if label is None else label if isinstance(label, str) else f"{label:.17g}"
    return [
        f"{lane['C']:g}",
        label,
        f"{lane['primal_objective']:.8g}",
        f"{lane['gap']:.2g}",
        f"{lane['passes']:,}",
    ]


def print_evaluation(title: str, result: dict[str, Any], as_json: bool) -> None:
    """Print how good a model's predictions are."""
    console.show(result, as_json, lambda: _print_figures(title, result))


def _print_figures(title: str, result: dict[str, Any]) -> None:
    rows = [("rows", f"{result['n_rows']:,}"), ("accuracy", f"{100 * result['accuracy']:.4f} %")]
    names = {
        "primal_objective": "primal objective",
        "auc": "area under ROC curve",
        "log_loss": "mean log loss",
    }
    rows += [(name, f"{result[key]:.10g}") for key, name in names.items() if result.get(key) is not None]
    console.print_table(title, rows)
    if 1 < len(result.get("labels", [])) <= 10:
        header = ["true \\ predicted", *map(str, result["labels"])]
        counts = [
            [str(label), *map(str, row)]
            for label, row in zip(result["labels"], result["confusion"], strict=True)
        ]
        console.print_table("confusion", counts, header)
