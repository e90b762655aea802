"""Facts as tables, which the command line prints and a page shows: made from the objects that ``--json`` prints."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.memory_budget import format_size
from ..core.progress import counted, format_seconds
from ..core.setting import Setting
from .scores import CRITERIA, score_text, scores_of

_MOST_LISTED = 10
_MOST_COLUMNS = 50  # of a table

Facts = Mapping[str, Any]


class Table(NamedTuple):
    """Rows of a name and a text, or of cells below a header."""

    title: str
    rows: Sequence[Sequence[str]]
    header: Sequence[str] | None = None
    n_texts: int = 0  # first columns below a header that are text, rather than numbers


def listed(value: Any) -> str:
    """Format a number, a word, or the first of several."""
    if isinstance(value, list | tuple):
        texts = [listed(item) for item in value[:_MOST_LISTED]]
        return ", ".join(texts) + (f", … {len(value)} in all" if len(value) > _MOST_LISTED else "")
    return f"{value:g}" if isinstance(value, float) else "yes" if value is True else str(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _rows(facts: Facts, **forms: str | Callable[[Any], str]) -> list[tuple[str, str]]:
    """Format some facts, by key; what is not known, or not so, is left out."""
    kept = {key: facts.get(key) for key in forms}
    return [
        (_words(key), form(kept[key]) if callable(form := forms[key]) else format(kept[key], form))
        for key, value in kept.items()
        if value is not None and value is not False and value != {} and value != []
    ]


def _no_nan(form: str) -> Callable[[float], str]:
    """Make the formatting of a certified figure."""
    return lambda figure: "not certified yet" if math.isnan(figure) else format(figure, form)


# ---------------------------------------------------------------------------------------------------------------------
# Datasets


def dataset_tables(path: str, info: Facts) -> list[Table]:
    """Describe a dataset."""
    rows = [
        *_content_rows(info),
        ("entries", f"{info['n_entries']:,} (density {info['density']:.3g})"),
        ("on disk", _size_on_disk(info)),
        ("decoded", f"{format_size(info['bytes_decoded'])} ({info['index_dtype']}, {info['value_dtype']})"),
        *_rows(info, compression=""),
        *_scaling_rows(info),
        *_note_rows(info),
        *_rows(info, id="", kept=listed),
        *_rows(info, fingerprint="", data_digest=lambda digest: digest or ""),
        ("column layout", "yes" if info["columns"] else "no"),
        ("method", f"{info['method']}: {info['method_because']}"),
        ("bias", describe_bias(info["bias"], info["bias_because"])),
    ]
    tables = [Table(f"dataset {path}", [row for row in rows if row[1]])]
    return [*_source_columns(info), *tables]


def conversion_tables(path: str, info: Facts, then: str) -> list[Table]:
    """Describe a dataset just made: its columns, how large it is, what asks for action; and the command `then` on it."""
    rows = [
        *_content_rows(info),
        ("on disk", _size_on_disk(info)),
        *_note_rows(info),
        ("next", f"streamcd {then} {path} RUN; 'streamcd info {path}' tells more"),
    ]
    return [*_source_columns(info), Table(f"dataset {path}", rows)]


def _content_rows(info: Facts) -> list[tuple[str, str]]:
    """Count rows and features, and tell the classes, labels or targets."""
    classes = "too many to train on: is it the right column of labels? --target takes numbers to predict"
    if info["classes"] is not None:
        pairs = zip(info["classes"], info["class_counts"], strict=True)
        classes = listed([f"{label} ({count:,})" for label, count in pairs])
    labels = ("classes", classes)
    if info["targets"] is not None:
        labels = ("targets", f"{info['targets']['min']:.6g} to {info['targets']['max']:.6g}")
    numbered = f"indices from {info['index_base']} on"
    if info["feature_names"]:
        more = ", …" if info["n_features"] > len(info["feature_names"]) else ""
        numbered = ", ".join(info["feature_names"]) + more
    return [
        ("rows", f"{info['n_rows']:,}"),
        ("features", f"{info['n_features']:,} ({numbered})"),
        labels,
    ]


def _note_rows(info: Facts) -> list[tuple[str, str]]:
    return [("note", line) for line in info["advice"]]


def _source_columns(info: Facts) -> list[Table]:
    """Show how each column of a table was used, one of features before the others; none of what was no table."""
    facts = info.get("table") or []
    shown = facts[:_MOST_COLUMNS]
    rows = []
    for fact in shown:
        use = f"{fact['use']} ({fact['note']})" if fact["note"] else fact["use"]
        rows.append([fact["column"], use, fact["example"], *_counted_cells(fact)])
    more = len(facts) - len(shown)
    title = "columns of the table" + (f", the first {len(shown)} of {len(facts):,}" if more else "")
    return [Table(title, rows, ["column", "use", "example", "features", "missing"], 3)] if rows else []


def _counted_cells(fact: Facts) -> list[str]:
    numbers = [fact[name] if fact["features"] else "" for name in ("features", "missing")]
    return ["not known" if number is None else f"{number:,}" if number != "" else "" for number in numbers]


def _scaling_rows(info: Facts) -> list[tuple[str, str]]:
    given = [f"--{name} {info[name]}" for name in ("scale", "normalize") if info[name] != "none"]
    rows = [("scaling", ", ".join(given))]
    rms, norms = info["feature_rms"], info["row_norms"]
    if rms is not None:
        ends = [f"{rms[end]:.3g} ({rms[f'of_{end}']})" for end in ("min", "max")]
        rows.append(("feature values", f"root mean squares from {' to '.join(ends)}"))
    if norms is not None and norms["min"] is not None:
        mean_square = norms["mean_square"]
        middle = "" if mean_square is None else f", root mean square {mean_square**0.5:.3g}"
        text = f"from {norms['min']:.3g} to {norms['max']:.3g}{middle}; {norms['n_empty']:,} empty rows"
        rows.append(("row norms", text))
    return rows


def _size_on_disk(info: Facts) -> str:
    return f"{format_size(info['bytes'])} in {counted(info['n_shards'], 'shard')}, {counted(info['n_chunks'], 'chunk')}"


def column_tables(path: str, info: Facts) -> list[Table]:
    """Describe the column layout of a dataset."""
    rows = [
        ("features", f"{info['n_features']:,} that occur"),
        ("entries", f"{info['n_entries']:,}"),
        ("on disk", _size_on_disk(info)),
        ("fingerprint", info["fingerprint"]),
    ]
    return [Table(f"column layout of {path}", rows)]


def describe_bias(bias: float, because: str) -> str:
    """Say which bias a training has, why, and how to have another, if it may."""
    another = "--bias 1 adds an intercept" if bias < 0 else "--bias none leaves the intercept out"
    return f"{bias_text(bias)}: {because}" + ("" if because == "as asked" else f"; {another}")


def bias_text(bias: float | str) -> str:
    """Format a bias, or what stands for one that is not chosen yet, for people."""
    if isinstance(bias, str):
        return bias
    return "none" if bias < 0 else f"{bias:g}"


# ---------------------------------------------------------------------------------------------------------------------
# Trainings


_REASONS = {"zero": "an objective as good as 0, beside which no gap is small"}


def result_tables(result: Facts) -> list[Table]:
    """Show the result of a training or of a search over C."""
    several = result["n_lanes"] > 1
    sums, largest = (f", sum of {result['n_lanes']} problems", ", largest") if several else ("", "")
    rows = [
        ("converged", "yes" if result["converged"] else "no"),
        ("stopped by", _REASONS.get(result["stop_reason"]) or _words(result["stop_reason"])),
        ("passes over all rows" if result.get("scores") else "passes", f"{result['passes']:,}"),
        *((f"{name}{sums}", text) for name, text in _objectives(result)),
        (f"relative gap{largest}", _no_nan(".3g")(result["gap"])),
        (f"violation{largest}", f"{result['violation']:.3g}"),
        ("time", format_seconds(result["seconds"] - result["kernel_seconds"])),
        ("read", format_size(result["bytes_read"])),
        *_left_rows(result, sums),
        ("peak memory", format_size(result["peak_memory_bytes"])),
        *([] if result["stop_reason"] == "time" else [("model", os.path.join(result["run"], "model"))]),
    ]
    title = f"run {result['run']}: {result['n_rows']:,} rows, {result['n_features']:,} features"
    tables = [Table(title, rows)]
    if result.get("scores"):
        trained = result["folds"]
        tables.append(score_table(result, _MOST_FOLDS))
        passes, seconds = f"{trained['passes']:,} passes", format_seconds(trained["seconds"])
        tables[-1] = tables[-1]._replace(title=f"{tables[-1].title}; the folds took {passes}, {seconds}")
    elif len({(lane["C"], lane["l1"]) for lane in result["lanes"]}) > 1:
        tables.append(_path_table(result["lanes"]))
    return tables


def _left_rows(result: Facts, sums: str) -> list[tuple[str, str]]:
    """Tell how many weights an L1 penalty has left; of a path, the table of its models does."""
    lanes = result["lanes"]
    if not any(lane["l1"] for lane in lanes) or len({(lane["C"], lane["l1"]) for lane in lanes}) > 1:
        return []
    left, all_weights = (sum(lane[name] for lane in lanes) for name in ("n_nonzero", "n_weights"))
    return [(f"weights not 0{sums}", f"{left:,} of {all_weights:,}")]


def _objectives(facts: Facts) -> list[tuple[str, str]]:
    return _rows(facts, primal_objective=_no_nan(".10g"), dual_objective=_no_nan(".10g"))


_MOST_FOLDS = 10  # side by side in a terminal


def score_table(search: Facts, most_folds: int | None = None) -> Table:
    """Show the scores of a search: for each C and λ the mean and the score of every fold.

    Folds are left out if there are more than `most_folds`.
    """
    scores, form = scores_of(search), CRITERIA[search["scored_by"]].form
    best = Setting(search["best_C"], search["best_l1"])
    settings = [of.setting._asdict() for of in scores]
    folds = [f"fold {number + 1}" for number in range(len(scores[0].folds))]
    drawn = slice(0 if most_folds is not None and len(folds) > most_folds else len(folds))
    rows = [
        [
            *_setting_cells(setting, settings),
            *(format(score, form) for score in (of.mean, *of.folds[drawn])),
        ]
        for of, setting in zip(scores, settings, strict=True)
    ]
    title = f"{score_text(search)} on {len(folds)} folds, best {best}"
    header = [*_setting_header(settings), "mean", *folds[drawn]]
    return Table(title, rows, header)


def _setting_header(each: Sequence[Facts]) -> list[str]:
    return ["C", "l1"] if any(of["l1"] for of in each) else ["C"]


def _setting_cells(of: Facts, each: Sequence[Facts]) -> list[str]:
    """Return C, and λ where one of `each` has one."""
    return [f"{of[name]:g}" for name in _setting_header(each)]


def _path_table(lanes: Sequence[Facts]) -> Table:
    """Show the model of each C and λ, of several classes by sums and the largest."""
    by_setting: dict[tuple[float, float], list[Facts]] = {}
    for lane in lanes:
        by_setting.setdefault((lane["C"], lane["l1"]), []).append(lane)
    several, sparse = len(lanes) > len(by_setting), any(lane["l1"] for lane in lanes)
    rows = [
        [
            *_setting_cells(mine[0], lanes),
            *([f"{sum(lane['n_nonzero'] for lane in mine):,}"] if sparse else []),
            f"{sum(lane['primal_objective'] for lane in mine):.10g}",
            f"{max(lane['gap'] for lane in mine):.2g}",
            f"{max(lane['passes'] for lane in mine):,}",
        ]
        for mine in by_setting.values()
    ]
    over = ", sum over classes" if several else ""
    gap = "largest relative gap" if several else "relative gap"
    support = [f"weights not 0{over}"] if sparse else []
    return Table(
        "models", rows, [*_setting_header(lanes), *support, f"primal objective{over}", gap, "passes"]
    )


def run_table(title: str, run: Facts) -> Table:
    """Describe a run: how far it is, and its options."""
    options = {_words(name): listed(value) for name, value in run["options"].items() if value is not False}
    options["bias"] = f"{bias_text(run['options']['bias'])}: {run['bias_because']}"
    state = run["state"]
    if state == "not converged":
        state += f", ended by {_words(run['stop_reason'])}"
    lanes = counted(run["lanes"], "problem")
    if run["lanes"] > 1:
        lanes += " (of classes, values of C or λ, or folds)"
    lanes += f", {run['open_lanes']:,} not finished" if run["open_lanes"] else ""
    rows = [
        ("state", state),
        *_rows(run, best_C="g", best_l1=lambda l1: f"{l1:g}" if l1 else ""),
        ("passes", f"{run['passes']:,}"),
        *gap_rows(run),
        ("trains", lanes),
        *_spent_rows(run),
        ("dataset", run["dataset"]),
        *options.items(),
        *_rows(run, centred=""),
        *_rows(run["search"], **dict.fromkeys(run["search"], listed)),
        *_rows(run["stopping"], **dict.fromkeys(run["stopping"], listed)),
        ("memory", format_size(run["memory"]) + (", each worker" if run["workers"] else "")),
    ]
    return Table(title, [row for row in rows if row[1]])


def gap_rows(run: Facts) -> list[tuple[str, str]]:
    """Tell the certified gap; before there is one, the estimate."""
    if run["gap"] is not None:
        return [("certified gap", f"{run['gap']:.3g}")]
    estimate = run["gap_estimate"]
    return [] if estimate is None else [("estimated gap", f"{estimate:.3g}, not certified yet")]


def _spent_rows(run: Facts) -> list[tuple[str, str]]:
    """Tell time and bytes; of a search by its parts."""
    parts = run["parts"] or {"": run}
    return [
        row
        for part, spent in parts.items()
        for row in (
            (f"time of {part}" if part else "time", format_seconds(spent["seconds"])),
            (f"read by {part}" if part else "read", format_size(spent["bytes_read"])),
        )
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Models


def description_tables(path: str, facts: Facts) -> list[Table]:
    """Describe a run, a model or those of a path, with the next command."""
    if facts["kind"] == "models":
        first = Table(f"models {path}", [("models", f"{len(facts['models']):,}"), ("next", facts["next"])])
        return [first, _models_table("models", facts["models"])]
    model = facts if facts["kind"] == "model" else facts["model"]
    title = f"{facts['kind']} {path}"
    table = model_table(title, facts) if model is facts else run_table(title, facts)
    rows = [*table.rows]
    if model and model is not facts:
        rows += [_labels_row(model), *support_rows(model), *_intercept_rows(model)]
    tables = [table._replace(rows=[*rows, ("next", facts["next"])])]
    if facts.get("scores"):
        tables.append(score_table(facts, _MOST_FOLDS))
    if facts.get("models"):
        tables.append(_models_table("models", facts["models"]))
    return tables


def _models_table(title: str, models: Sequence[Facts]) -> Table:
    """List the models of a path, with the weights that an L1 penalty has left."""
    sparse = ["weights not 0"] if "n_nonzero" in models[0] else []
    rows = [[*_setting_cells(of, models), *([f"{of['n_nonzero']:,}"] if sparse else [])] for of in models]
    return Table(title, rows, [*_setting_header(models), *sparse])


def _labels_row(model: Facts) -> tuple[str, str]:
    return ("classes", listed(model["labels"])) if model["labels"] else ("predicts", "numbers")


def model_table(title: str, model: Facts) -> Table:
    """Describe a model."""
    rows = [
        *_rows(model, loss="", method=""),
        *((name, _if_known(value)) for name, value in model.get("parameter", {}).items()),
        ("C", _if_known(model["C"])),
        _labels_row(model),
        ("features", f"{model['n_features']:,}"),
        ("vectors", f"{model['n_vectors']:,}"),
        *((name, f"{model[name]:g}") for name in ("l1", "l2") if model.get(name)),
        *support_rows(model),
        ("bias", bias_text(model["bias"])),
        *_intercept_rows(model),
        *((name, model[name]) for name in ("scale", "normalize") if model[name] != "none"),
        *_rows(model, class_weight=lambda factors: listed([f"{k}={v:g}" for k, v in factors.items()])),
        *certificate_rows(model["certificate"]),
    ]
    return Table(title, rows)


def _if_known(number: float | None) -> str:
    return "not known" if number is None else f"{number:g}"


def support_rows(model: Facts) -> list[tuple[str, str]]:
    """Tell how many weights an L1 penalty has left, by vector where there are several."""
    support = model.get("support", [])
    texts = [f"{of['n_nonzero']:,} ({of['share']:.3g} of the features)" for of in support]
    if len(texts) > 1:
        texts = [f"{of['vector']}: {text}" for of, text in zip(support, texts, strict=True)]
    return [("weights not 0", listed(texts))] if support else []


def _intercept_rows(model: Facts) -> list[tuple[str, str]]:
    """Tell the intercepts, by vector where there are several."""
    if model["bias"] < 0:
        return []
    texts = [f"{intercept['weight']:.6g}" for intercept in model["intercept"]]
    if len(texts) > 1:
        texts = [f"{of['vector']}: {text}" for of, text in zip(model["intercept"], texts, strict=True)]
    return [("intercept", listed(texts))]


def certificate_rows(certificate: Facts) -> list[tuple[str, str]]:
    """Tell the objectives and the gap with which a training ended."""
    rows = _objectives(certificate)
    if isinstance(certificate.get("gap"), float):
        rows.append(("relative gap", f"{certificate['gap']:.3g}"))
    if certificate:
        rows.append(("converged", "yes" if certificate.get("converged") else "no"))
    return rows + _rows(certificate, passes=listed)


def class_weights_tables(name: str, found: Facts) -> list[Table]:
    """Show the largest weights of each class, as `weights` lists them."""
    tables = []
    for of in found["classes"]:
        least = f"the largest {len(of['weights']):,} of {of['n_nonzero']:,} weights that are not 0"
        title = f"{name}{'' if of['label'] is None else ', for ' + str(of['label'])}: {least}"
        rows = [["(intercept)", f"{of['intercept']:.6g}"]] if of["intercept"] else []
        scaled = any("scaled_weight" in weight for weight in of["weights"])
        columns = ["weight", "scaled_weight"] if scaled else ["weight"]
        rows = [[*row, ""] for row in rows] if scaled else rows
        rows += [[weight["name"], *(f"{weight[name]:.6g}" for name in columns)] for weight in of["weights"]]
        header = ["feature", "weight", *["of the scaled feature"] * scaled]
        order = found["weights_for"] or "ordered by size in the source's units"
        tables.append(Table(f"{title}, {order}", rows, header))
    return tables


# ---------------------------------------------------------------------------------------------------------------------
# Evaluations


_MOST_CLASSES_SHOWN, _MOST_CLASSES_CROSSED = 30, 10

_QUALITY = {
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
    **dict.fromkeys(("loss", "log_loss"), ".4g"),
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
