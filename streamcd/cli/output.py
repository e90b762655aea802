"""Results as tables."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from ..core.memory_budget import format_size
from ..core.progress import counted
from . import console
from .course import format_seconds

if TYPE_CHECKING:
    from ..dataset.dataset import Dataset


_MOST_CLASSES_SHOWN = 30


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Gather the description of a dataset that `info` and `convert` print."""
    from ..conversion.publication import unfinished
    from ..dataset.column_layout import has_columns
    from ..dataset.diagnostics import advice, feature_rms
    from ..models.encoding import first_feature_names
    from ..runs.bias_choice import bias_by_source
    from ..runs.method_choice import choose_method

    bias, bias_because = bias_by_source(dataset)
    method, reason = choose_method(unpenalized_bias=False)
    return {
        **dataset.info(),
        "feature_names": first_feature_names(dataset, 10),
        "feature_rms": feature_rms(dataset),
        "advice": [*_about_classes(dataset), *advice(dataset), *unfinished(dataset.path)],
        "columns": has_columns(dataset),
        "method": method,
        "method_because": reason,
        "bias": bias,
        "bias_because": bias_because,
    }


def _about_classes(dataset: Dataset) -> list[str]:
    if dataset.classes is None or dataset.classes.size != 1:
        return []
    return [
        "one class alone: there is nothing to separate, and no training; check the column or file of labels"
    ]


def print_dataset(path: str, info: dict[str, Any]) -> None:
    console.print_table(f"dataset {path}", _dataset_rows(info))


def _dataset_rows(info: dict[str, Any]) -> list[tuple[str, str]]:
    from ..dataset.schema import MAX_CLASSES  # loads pyarrow, which no help needs
    from ..runs.bias_choice import describe_bias

    classes = f"more than {MAX_CLASSES:,}, too many to train on: is it the right column of labels?"
    if info["classes"] is not None:
        pairs = [
            f"{label} ({count:,})" for label, count in zip(info["classes"], info["class_counts"], strict=True)
        ]
        classes = ", ".join(pairs[:10]) + (f", … {len(pairs)} in all" if len(pairs) > 10 else "")
    labels = ("classes", classes)
    if info["targets"] is not None:
        labels = ("targets", f"{info['targets']['min']:.6g} to {info['targets']['max']:.6g}")
    return [
        ("rows", f"{info['n_rows']:,}"),
        ("features", f"{info['n_features']:,} {_where_from(info)}"),
        ("entries", f"{info['n_entries']:,} (density {info['density']:.3g})"),
        labels,
        ("on disk", _size_on_disk(info)),
        ("decoded", f"{format_size(info['bytes_decoded'])} ({info['index_dtype']}, {info['value_dtype']})"),
        *_scaling_rows(info),
        ("fingerprint", info["fingerprint"]),
        *([("data digest", info["data_digest"])] if info["data_digest"] else []),
        ("column layout", "yes" if info["columns"] else "no"),
        ("method", f"{info['method']}: {info['method_because']}"),
        ("bias", describe_bias(info["bias"], info["bias_because"])),
    ]


def _where_from(info: dict[str, Any]) -> str:
    """Describe the numbering of features, or name the first ones."""
    if info["feature_names"]:
        return f"({', '.join(info['feature_names'])}{', …' if info['n_features'] > len(info['feature_names']) else ''})"
    return f"(indices from {info['index_base']} on)"


def _scaling_rows(info: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    given = [f"--{name} {info[name]}" for name in ("scale", "normalize") if info[name] != "none"]
    if given:
        rows.append(("scaling", ", ".join(given)))
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
    return f"{format_size(info['bytes'])} in {counted(info['n_shards'], 'shard')}, {counted(info['n_chunks'], 'chunk')}"


def print_columns(path: str, info: dict[str, Any]) -> None:
    rows = [
        ("features", f"{info['n_features']:,} that occur"),
        ("entries", f"{info['n_entries']:,}"),
        ("on disk", _size_on_disk(info)),
        ("fingerprint", info["fingerprint"]),
    ]
    console.print_table(f"column layout of {path}", rows)


def warn_unconverged(listener: console.Console, result: Any) -> None:
    """Warn of a training that ended before its rule was met."""
    if result.fell_short and result.stop_reason != "time":  # which the training has reported
        listener.warning(
            f"{result.describe_shortfall()}; 'streamcd resume {result.run} --max-passes N' goes on"
        )


def _validation_rows(result: Any) -> list[tuple[str, str]]:
    several = len(result.validation) > 1
    return [
        (
            "validation" + (f", C = {found['C']:g}" if several else ""),
            f"loss {found['loss']:.4g}, accuracy {found['accuracy']:.4f}; least loss {found['best_loss']:.4g} "
            f"after {found['best_passes']} passes",
        )
        for found in result.validation
    ]


def print_result(result: Any) -> None:
    """Print the result of a training or of a search over C."""
    several = result.n_lanes > 1
    of_all, largest = (f", sum of {result.n_lanes} lanes", ", largest") if several else ("", "")
    rows = [
        ("converged", "yes" if result.converged else "no"),
        ("stopped by", result.stop_reason.replace("_", " ")),
        ("passes", f"{result.passes:,}"),
        (f"primal objective{of_all}", _certified(result.primal_objective, ".10g")),
        (f"dual objective{of_all}", _certified(result.dual_objective, ".10g")),
        (f"relative gap{largest}", _certified(result.gap, ".3g")),
        (f"violation{largest}", f"{result.violation:.3g}"),
        *_validation_rows(result),
        ("time", format_seconds(result.seconds)),
        ("read", format_size(result.bytes_read)),
        ("peak memory", format_size(result.peak_memory_bytes)),
        *([] if result.stop_reason == "time" else [("model", os.path.join(result.run, "model"))]),
    ]
    console.print_table(f"run {result.run}: {result.n_rows:,} rows, {result.n_features:,} features", rows)
    if getattr(result, "scores", None):
        _print_scores(result)
    elif len({lane["C"] for lane in result.lanes}) > 1:
        _print_costs(result)


def _certified(figure: float, form: str) -> str:
    return "not certified yet" if math.isnan(figure) else format(figure, form)


def _print_scores(result: Any) -> None:
    rows = []
    for C, score in result.scores.items():
        folds = score["folds"]
        rows.append([C, f"{score['mean']:.4f}", f"{min(folds):.4f}", f"{max(folds):.4f}"])
    trained = result.folds
    title = (
        f"accuracy on {len(folds)} folds, best C = {result.best_C:g}; {trained['n_lanes']} lanes of folds in "
        f"{trained['passes']:,} passes, {format_seconds(trained['seconds'])}"
    )
    console.print_table(title, rows, ["C", "mean", "worst", "best"])


def _print_costs(result: Any) -> None:
    """Print a line for each C, of the sums over its lanes."""
    by_cost: dict[float, list[dict[str, Any]]] = {}
    for lane in result.lanes:
        by_cost.setdefault(lane["C"], []).append(lane)
    n_lanes = len(result.lanes) // len(by_cost)
    of_lanes = f", sum of {n_lanes} lanes" if n_lanes > 1 else ""
    header = [
        "C",
        f"primal objective{of_lanes}",
        "largest relative gap" if of_lanes else "relative gap",
        "passes",
    ]
    rows = [
        [
            f"{C:g}",
            f"{sum(lane['primal_objective'] for lane in lanes):.10g}",
            f"{max(lane['gap'] for lane in lanes):.2g}",
            f"{max(lane['passes'] for lane in lanes):,}",
        ]
        for C, lanes in by_cost.items()
    ]
    console.print_table("models", rows, header)


def _share(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.4f}"


def print_evaluation(title: str, result: dict[str, Any]) -> None:
    """Print the quality of a model's predictions."""
    rows = [("rows", f"{result['n_rows']:,}")]
    if result.get("weighted"):
        total = f"{result['sum_of_weights']:,.10g}"
        rows += [("weights", f"{total} in sum, by which rows count below; --unweighted counts them alike")]
    rows += [("accuracy", f"{100 * result['accuracy']:.4f} %")]
    names = {
        "primal_objective": "primal objective",
        "auc": "area under ROC curve",
        "average_precision": "average precision",
        "brier_score": "Brier score",
        "log_loss": "mean log loss",
    }
    for key, name in names.items():
        if result.get(key) is not None:
            error = f" ± {result[f'{key}_error']:.1g}" if f"{key}_error" in result else ""
            rows.append((name, f"{result[key]:.10g}{error}"))
    console.print_table(title, rows)
    if 1 < len(result.get("labels", [])) <= _MOST_CLASSES_SHOWN:
        header = ["label", "rows", "precision", "recall", "F1"]
        cells = [
            [
                str(found["label"]),
                f"{found['n_rows']:,}",
                *(_share(found[key]) for key in ("precision", "recall", "f1")),
            ]
            for found in result["per_class"]
        ]
        console.print_table("by class", cells, header)
    if 1 < len(result.get("labels", [])) <= 10:
        header = ["true \\ predicted", *map(str, result["labels"])]
        counts = [
            [str(label), *(f"{count:.6g}" if isinstance(count, float) else str(count) for count in row)]
            for label, row in zip(result["labels"], result["confusion"], strict=True)
        ]
        console.print_table("confusion", counts, header)


def print_description(path: str, found: dict[str, Any]) -> None:
    is_model = found["kind"] == "model"
    model = found if is_model else found["model"]
    rows = _model_rows(found) if is_model else _run_rows(found)
    if model and not is_model:
        rows += [("classes", _listed(model["labels"]))]
    console.print_table(f"{found['kind']} {path}", [*rows, ("next", found["next"])])
    if model and model["largest_weights"]:
        from ..dataset.scaling import Scaling

        several = model["n_vectors"] > 1
        header = ["feature", *(["for"] if several else []), "weight"]
        lines = [
            [
                str(weight["name"] or weight["index"]),
                *([str(weight["vector"])] if several else []),
                f"{weight['weight']:.6g}",
            ]
            for weight in model["largest_weights"]
        ]
        of = Scaling(model["scale"], model["normalize"]).describe_weights(
            scaled=model["weights_of"] != "source"
        )
        console.print_table(f"largest weights{of and ', ' + of}", lines, header)


def _run_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    options = {name: _listed(value) for name, value in found["options"].items()}
    options["bias"] = _bias(found["options"]["bias"], found["bias_because"])
    shown = [
        (f"{kind} gap", found[key]) for kind, key in (("certified", "gap"), ("estimated", "gap_estimate"))
    ]
    state = found["state"]
    if state == "not converged":
        state += f", ended by {found['stop_reason'].replace('_', ' ')}"
    lanes = f"{found['lanes']:,}" + (f", {found['open_lanes']:,} still open" if found["open_lanes"] else "")
    return [
        ("state", state),
        ("passes", f"{found['passes']:,}"),
        *((name, f"{gap:.3g}") for name, gap in shown if gap is not None),
        ("lanes", lanes),
        ("time", format_seconds(found["seconds"])),
        ("read", format_size(found["bytes_read"])),
        ("dataset", found["dataset"]),
        *options.items(),
        *(
            (name.replace("_", " "), "yes" if value is True else f"{value:g}")
            for name, value in found["stopping"].items()
            if value is not False
        ),
        ("memory", format_size(found["memory"]) + (", each worker" if found["workers"] else "")),
        *([("models for C", _listed(found["models"]))] if found["models"] else []),
    ]


def _model_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    gap = found["gap"]
    return [
        ("loss", found["loss"]),
        ("method", found["method"]),
        ("C", "not known" if found["C"] is None else f"{found['C']:g}"),
        ("classes", _listed(found["labels"])),
        ("features", f"{found['n_features']:,}"),
        ("vectors", f"{found['n_vectors']:,}"),
        ("bias", _bias(found["bias"])),
        *([(name, found[name]) for name in ("scale", "normalize") if found[name] != "none"]),
        *(
            [("class weights", _listed([f"{k}={v:g}" for k, v in found["class_weight"].items()]))]
            if found["class_weight"]
            else []
        ),
        *([("certified gap", f"{gap:.3g}")] if isinstance(gap, float) else []),
    ]


def _bias(bias: float, because: str = "") -> str:
    from ..runs.bias_choice import bias_text

    return f"{bias_text(bias)}: {because}" if because else bias_text(bias)


def _listed(value: Any) -> str:
    if isinstance(value, list | tuple):
        texts = [_listed(item) for item in value[:10]]
        return ", ".join(texts) + (f", … {len(value)} in all" if len(value) > 10 else "")
    return f"{value:g}" if isinstance(value, float) else str(value)
