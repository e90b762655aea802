"""Facts as tables, which the command line prints and a page shows: made from the objects that ``--json`` prints."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.errors import counted, first_of, format_seconds
from ..core.memory_budget import format_size
from .scores import CRITERIA, best_text, scores_of

_MOST_LISTED = 10  # numbers or words in a cell, folds side by side, classes in a confusion

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
        return first_of([listed(item) for item in value])
    return f"{value:g}" if isinstance(value, float) else "yes" if value is True else str(value)


def _words(name: str) -> str:
    return name.removeprefix("n_").replace("_", " ")


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


def dataset_tables(path: str, info: Facts, then: str = "") -> list[Table]:
    """Describe a dataset; one just made, by the columns, the size, what asks for action, and the command `then` on it."""
    classes = "too many to train on: is it the right column of labels? --target takes numbers to predict"
    if info["classes"] is not None:
        pairs = zip(info["classes"], info["class_counts"], strict=True)
        classes = listed([f"{label} ({count:,})" for label, count in pairs])
    labels = ("classes", classes)
    targets = info["targets"]
    if targets is not None:
        labels = ("targets", f"{targets['min']:.6g} to {targets['max']:.6g}")
    numbered = f"indices from {info['index_base']} on"
    if info["feature_names"]:
        more = ", …" if info["n_features"] > len(info["feature_names"]) else ""
        numbered = ", ".join(map(repr, info["feature_names"])) + more
    rows = [("rows", f"{info['n_rows']:,}"), ("features", f"{info['n_features']:,} ({numbered})"), labels]
    notes = [("note", line) for line in info["advice"]]
    if then:
        next_command = f"streamcd {then} {path} RUN; 'streamcd info {path}' tells more"
        next_row = [] if then == "train" and info["method"] == "none" else [("next", next_command)]
        rows += [("on disk", _size_on_disk(info)), *notes, *next_row]
    else:
        rows += [
            ("entries", f"{info['n_entries']:,} (density {info['density']:.3g})"),
            ("on disk", _size_on_disk(info)),
            (
                "decoded",
                f"{format_size(info['bytes_decoded'])} ({info['index_dtype']}, {info['value_dtype']})",
            ),
            *_rows(info, compression=""),
            *_scaling_rows(info),
            *notes,
            *_rows(info, id="", kept=listed),
            *_rows(info, fingerprint="", data_digest=lambda digest: digest or ""),
            ("column layout", "yes" if info["columns"] else "no"),
            ("method", f"{info['method']}: {info['method_because']}"),
            ("bias", _bias_text(info["bias"], info["bias_because"])),
        ]
    return [*_source_columns(info), Table(f"dataset {path}", [row for row in rows if row[1]])]


def _source_columns(info: Facts) -> list[Table]:
    """Show how each column of a table was used, one of features before the others; none of what was no table."""
    facts = info.get("table") or []
    rows = []
    for fact in facts[:50]:
        use = f"{fact['use']} ({fact['note']})" if fact["note"] else fact["use"]
        numbers = [fact[name] for name in ("features", "missing")] if fact["features"] else []
        cells = ["not known" if number is None else f"{number:,}" for number in numbers] or ["", ""]
        rows.append([fact["column"], use, *cells])
    more = f", the first {len(rows)} of {len(facts):,}" if len(facts) > len(rows) else ""
    header = ["column", "use", "features", "missing"]
    return [Table(f"columns of the table{more}", rows, header, 2)] if rows else []


def _scaling_rows(info: Facts) -> list[tuple[str, str]]:
    given = [f"--{name} {info[name]}" for name in ("scale", "normalize") if info[name] != "none"]
    rows = [("scaling", ", ".join(given))]
    rms = info["feature_rms"]
    norms = info["row_norms"]
    if rms is not None:
        name = repr if info["feature_names"] else str
        ends = [f"{rms[end]:.3g} ({name(rms[f'of_{end}'])})" for end in ("min", "max")]
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


def _bias_text(bias: float, because: str = "") -> str:
    text = "none" if bias < 0 else f"{bias:g}"
    return f"{text}: {because}" if because else text


# ---------------------------------------------------------------------------------------------------------------------
# Trainings


def result_tables(result: Facts) -> list[Table]:
    """Show the result of a training or of a search over C."""
    lanes = result["lanes"]
    several = result["n_lanes"] > 1
    reason = result["stop_reason"]
    measure, wanted = ("gap", result["tol"]) if result["eps"] is None else ("violation", result["eps"])
    ending = f"largest {measure} of {result['n_lanes']} problems" if several else measure
    ending = f"{'yes' if result['converged'] else 'no'}: {ending} {_no_nan('.2g')(result[measure])}, wanted {wanted:g}"
    ending += "" if reason == measure else f"; stopped by {_words(reason)}"
    settings = dict.fromkeys((lane["C"], lane["l1"]) for lane in lanes)
    sums = f", sum of {result['n_lanes']} problems" if several else ""
    support = []
    if len(settings) == 1 and any(lane["l1"] for lane in lanes):
        left, all_weights = (sum(lane[name] for lane in lanes) for name in ("n_nonzero", "n_weights"))
        support = [("weights not 0", f"{left:,} of {all_weights:,}{sums}")]
    rows = [
        ("converged", ending),
        ("passes over all rows" if result.get("scores") else "passes", f"{result['passes']:,}"),
        ("objective", _no_nan(".10g")(result["primal_objective"]) + sums),
        *support,
        ("time", format_seconds(result["seconds"] - result["kernel_seconds"])),
        ("memory", f"{format_size(result['peak_memory_bytes'])} at its peak"),
        *([] if reason == "time" else [("model", os.path.join(result["run"], "model"))]),
    ]
    title = f"run {result['run']}: {result['n_rows']:,} rows, {result['n_features']:,} features"
    tables = [Table(title, rows)]
    if result.get("scores"):
        table = score_table(result)
        folds = result["folds"]
        took = f"{folds['passes']:,} passes, {format_seconds(folds['seconds'])}"
        tables.append(table._replace(title=f"{table.title}; the folds: {took}"))
    elif len(settings) > 1:
        models = []
        for C, l1 in settings:
            of_model = [lane for lane in lanes if (lane["C"], lane["l1"]) == (C, l1)]
            of_all = {
                name: sum(lane[name] for lane in of_model) for name in ("n_nonzero", "primal_objective")
            }
            worst = {name: max(lane[name] for lane in of_model) for name in ("gap", "passes")}
            models.append({"C": C, "l1": l1, **of_all, **worst})
        tables.append(_models_table(models))
    return tables


_OF_MODELS = {
    "C": ("C", "g"),
    "l1": ("l1", "g"),
    "n_nonzero": ("weights not 0", ","),
    "primal_objective": ("primal objective", ".10g"),
    "gap": ("relative gap", ".2g"),
    "passes": ("passes", ","),
}


def _models_table(models: Sequence[Facts]) -> Table:
    """List the models of a path by C and λ; sums over classes, and the largest gap and passes."""
    sparse = any(of["l1"] for of in models)
    shown = {
        name: column
        for name, column in _OF_MODELS.items()
        if name in models[0] and (sparse or name not in ("l1", "n_nonzero"))
    }
    rows = [[format(of[name], form) for name, (_, form) in shown.items()] for of in models]
    return Table("models", rows, [title for title, _ in shown.values()])


def score_table(search: Facts) -> Table:
    """Show the scores of a search: for each C and λ the means, and the score of every fold unless they are many."""
    scores = scores_of(search)
    scored_by = search["scored_by"]
    first = next(iter(scores.values()))
    n_folds = len(first["folds"])
    drawn = range(n_folds if n_folds <= _MOST_LISTED else 0)
    beside = [name for name in CRITERIA if name in first]
    chosen = ["C", "l1"] if any(setting.l1 for setting in scores) else ["C"]
    rows = []
    for setting, of in scores.items():
        cells = [f"{value:g}" for value in setting[: len(chosen)]]
        for name in (scored_by, *beside):
            error = name == "auc" and of.get("auc_error")
            text = format(of.get(name, of["mean"]), CRITERIA[name].form)
            cells.append(f"{text} ± {error:.1g}" if error else text)
        rows.append([*cells, *(format(of["folds"][fold], CRITERIA[scored_by].form) for fold in drawn)])
    header = [*chosen, *(f"mean {name}" for name in (scored_by, *beside))]
    header += [f"fold {number + 1}" for number in drawn]
    return Table(f"{scored_by} on {n_folds} folds, best {best_text(search)}", rows, header)


def run_table(title: str, run: Facts) -> Table:
    """Describe a run: how far it is, time and bytes (of a search by its parts), and its options."""
    options = {_words(name): listed(value) for name, value in run["options"].items() if value is not False}
    options["bias"] = _bias_text(run["options"]["bias"], run["bias_because"])
    state = run["state"]
    if state == "not converged":
        state += f", ended by {_words(run['stop_reason'])}"
    lanes = counted(run["lanes"], "problem")
    if run["lanes"] > 1:
        lanes += " (of classes, values of C or λ, or folds)"
    lanes += f", {run['open_lanes']:,} not finished" if run["open_lanes"] else ""
    parts = run["parts"] or {"": run}
    spent = list[tuple[str, str]]()
    for part, of in parts.items():
        names = (f"time of {part}", f"read by {part}") if part else ("time", "read")
        spent += zip(names, (format_seconds(of["seconds"]), format_size(of["bytes_read"])), strict=True)
    rows = [
        ("state", state),
        *_rows(run, best_C="g", best_l1=lambda l1: f"{l1:g}" if l1 else ""),
        ("passes", f"{run['passes']:,}"),
        *gap_rows(run),
        *_rows(run, violation=".3g"),
        ("trains", lanes),
        *spent,
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
    return _rows(run, gap_estimate=lambda estimate: f"{estimate:.3g}, not certified yet")


# ---------------------------------------------------------------------------------------------------------------------
# Models


def description_tables(path: str, facts: Facts) -> list[Table]:
    """Describe a run, a model or those of a path, with the next command."""
    title = f"{facts['kind']} {path}"
    if facts["kind"] == "models":
        rows: list[Sequence[str]] = [("models", f"{len(facts['models']):,}")]
    elif facts["kind"] == "model":
        rows = [*model_table(title, facts).rows]
    else:
        rows = [*run_table(title, facts).rows]
        model = facts["model"]
        if model:
            rows += _weight_rows(model)
    tables = [Table(title, [*rows, ("next", facts["next"])])]
    if facts.get("scores"):
        tables.append(score_table(facts))
    if facts.get("models"):
        tables.append(_models_table(facts["models"]))
    return tables


def _weight_rows(model: Facts) -> list[tuple[str, str]]:
    """Tell what a model predicts, how many weights an L1 penalty has left, intercepts, and objectives."""
    intercepts = [] if model["bias"] < 0 else model["intercept"]
    return [
        ("classes", listed(model["labels"])) if model["labels"] else ("predicts", "numbers"),
        *support_rows(model),
        *_by_vector("intercept", intercepts, lambda of: f"{of['weight']:.6g}"),
        *_rows(model["certificate"], primal_objective=_no_nan(".10g"), dual_objective=_no_nan(".10g")),
    ]


def model_table(title: str, model: Facts) -> Table:
    """Describe a model."""
    certificate = model["certificate"]
    numbers = {**model.get("parameter", {}), "C": model["C"]}
    rows = [
        *_rows(model, loss="", method=""),
        *((name, "not known" if value is None else f"{value:g}") for name, value in numbers.items()),
        *((name, f"{model[name]:g}") for name in ("l1", "l2") if model.get(name)),
        *_rows(model, n_features=",", n_vectors=","),
        ("bias", _bias_text(model["bias"])),
        *((name, model[name]) for name in ("scale", "normalize") if model[name] != "none"),
        *_rows(model, class_weight=lambda factors: listed([f"{k}={v:g}" for k, v in factors.items()])),
        *_weight_rows(model),
    ]
    if isinstance(certificate.get("gap"), float):
        rows.append(("relative gap", f"{certificate['gap']:.3g}"))
    if certificate:
        rows.append(("converged", "yes" if certificate.get("converged") else "no"))
    return Table(title, [*rows, *_rows(certificate, passes=listed)])


def support_rows(model: Facts) -> list[tuple[str, str]]:
    """Tell how many weights an L1 penalty has left."""
    return _by_vector(
        "weights not 0",
        model.get("support", []),
        lambda of: f"{of['n_nonzero']:,} ({of['share']:.3g} of the features)",
    )


def _by_vector(name: str, each: Sequence[Facts], form: Callable[[Facts], str]) -> list[tuple[str, str]]:
    """Make a row of facts by vector, which are named where there are several."""
    texts = [f"{of['vector']}: {form(of)}" if len(each) > 1 else form(of) for of in each]
    return [(name, listed(texts))] if texts else []


def class_weights_tables(name: str, listed_weights: Facts) -> list[Table]:
    """Show the largest weights of each class, as `weights` lists them."""
    tables = [Table(name, [("ordered by", listed_weights["ordered_by"])])]
    columns = {"weight": "weight", "standardized_weight": "weight × deviation"}
    for of in listed_weights["classes"]:
        label = "" if of["label"] is None else f"for {of['label']}: "
        intercept = f"; intercept {of['intercept']:.6g}" if of["intercept"] else ""
        title = f"{label}the largest {len(of['weights']):,} of {of['n_nonzero']:,} that are not 0{intercept}"
        lines = [["feature", *columns.values()]]
        for weight in of["weights"]:
            name = weight["name"]
            name = name if name == f"feature {weight['index']}" else repr(name)  # by its index without one
            lines.append([name, *(f"{weight[key]:.6g}" for key in columns if key in weight)])
        header, *cells = (line[: len(lines[-1])] for line in lines)
        tables.append(Table(title, cells, header))
    return tables


# ---------------------------------------------------------------------------------------------------------------------
# Evaluations

_QUALITY = {
    "mae": ("mean absolute error", ".6g"),
    "mse": ("mean squared error", ".6g"),
    "r2": ("R²", ".4f"),
    "loss": ("mean loss", ".4g"),
    "primal_objective": ("primal objective", ".10g"),
    "auc": ("area under ROC curve", ".4f"),
    "log_loss": ("mean log loss", ".4g"),
}
"""Names and formats of figures; ``--json`` has all digits."""


def evaluation_tables(title: str, result: Facts) -> list[Table]:
    """Show the quality of a model's predictions."""
    rows = [("rows", f"{result['n_rows']:,}")]
    labels = result.get("labels", [])
    weighted = "weighted" in result
    if weighted:
        total = f"{result['sum_of_weights']:,.10g}"
        text = f"{total} in sum, by which rows count in all figures below; --unweighted counts them alike"
        rows.append(("weights", text))
    if "accuracy" in result:
        rows += [("accuracy", f"{100 * result['accuracy']:.2f} %")]
    for key, (name, form) in _QUALITY.items():
        if result.get(key) is not None:
            error = f" ± {result[f'{key}_error']:.1g}" if result.get(f"{key}_error") else ""
            rows.append((name, f"{result[key]:{form}}{error}"))
    tables = [Table(title, rows)]
    if 1 < len(labels) <= 30:
        shares = ("precision", "recall", "f1")
        cells = []
        for of in result["per_class"]:
            cells.append(
                [str(of["label"]), f"{of['n_rows']:,}", *[f"{of.get('sum_of_weights', 0):,.6g}"] * weighted]
            )
            cells[-1] += ["" if of[share] is None else f"{of[share]:.4f}" for share in shares]
        header = ["label", "rows", *["their weight"] * weighted, "precision", "recall", "F1"]
        tables.append(Table(f"by class{', weighted' * weighted}", cells, header))
    if 1 < len(labels) <= _MOST_LISTED and "confusion" in result:
        cells = [
            [str(label), *(f"{count:,.6g}" if weighted else f"{count:,}" for count in row)]
            for label, row in zip(labels, result["confusion"], strict=True)
        ]
        header = ["true \\ predicted", *map(str, labels)]
        tables.append(Table(f"confusion{', in sums of weights' * weighted}", cells, header))
    return tables
