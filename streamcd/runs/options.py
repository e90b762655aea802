"""Options of a training, a search over C, a resumption and a report, declared, checked, and brought to one form."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, make_dataclass
from typing import Any

from ..core.errors import UsageError
from ..core.memory_budget import parse_size, require
from ..core.options import (
    WITHIN_2,
    Checked,
    ListenerOptions,
    ModelOptions,
    Place,
    Section,
    Size,
    again,
    as_number,
    number_or_word,
    option,
    replaces,
)
from ..core.storage import local_path
from ..kernels.loss_table import (
    LOSS_ALIASES,
    LOSSES,
    METHODS,
    PARAMETERS,
    PLANES,
    SLACKS,
    SOLVERS,
    LossParameter,
)

MAX_FOLDS = 100
NO_BIAS = -1.0
DEFAULT_LOSS = "squared_hinge"
DEFAULT_LOSS_OF_TARGETS = "squared_error"
DEFAULT_COSTS = 0.01, 0.1, 1.0, 10.0  # of a search
DEFAULT_STRENGTH = 1.0  # of a penalty: l1, l2 and ridge
DEFAULT_SLACK = "hinge"
DEFAULT_TOL = 1e-3
WORKER_TIMEOUT = 300.0  # seconds

_MOST = 1e60  # of a bias, a cost or a strength: the squares stay finite

ClassWeight = str | tuple[tuple[float | str, float], ...] | None
"""``"balanced"``, or pairs of a label, a number or a name, and the factor of its rows."""

# ---------------------------------------------------------------------------------------------------------------------
# Values in one form, of those that Python has or of text


def seconds(name: str, given: Any) -> float | None:
    """Return a time above 0 in seconds: a number, or text such as ``90``, ``90s``, ``1.5m``, ``2h``; None of None."""
    if given is None:
        return None
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)(ms|s|m|min|h|)\s*", str(given))
    units = {"ms": 1e-3, "s": 1, "": 1, "m": 60, "min": 60, "h": 3600}
    time = float(match[1]) * units[match[2]] if match else as_number(given)
    if not time > 0.0:
        raise UsageError(f"{name}: expected a time such as 60s, 5m or 1h, found {given!r}")
    return time


def _numbers(given: Any) -> tuple[float, ...]:
    """Return the values of an option that takes one or several, separated by commas in text, as a tuple."""
    if isinstance(given, str):
        given = given.split(",")
    several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0
    return tuple(map(as_number, given if several else (given,)))


def costs(given: Any) -> tuple[float, ...]:
    """Return values of C; LIBLINEAR's ``-C``, which takes none, is answered with the command that chooses."""
    numbers = _numbers(given)
    if isinstance(given, str) and any(map(math.isnan, numbers)):
        raise UsageError(
            f"-C: expected a number, or several separated by commas, found {given!r}; 'streamcd tune DATASET RUN -C "
            "0.01,0.1,1,10 --cv 5' chooses C, as LIBLINEAR's -C without a number does"
        )
    return numbers


def _pairs(weights: Any) -> ClassWeight:
    """Return the factors of classes as pairs, also those of text ``LABEL=WEIGHT,…``; a label is a number where it can be."""
    if weights is None or (isinstance(weights, str) and weights == "balanced"):
        return weights
    pairs = weights.items() if isinstance(weights, Mapping) else weights
    if isinstance(weights, str):
        pairs = [pair.rpartition("=")[::2] for pair in weights.split(",")]
        pairs = [
            (label if math.isnan(as_number(label)) else as_number(label), factor) for label, factor in pairs
        ]
    factors: Any = None
    with suppress(TypeError, ValueError):  # other things than pairs
        factors = tuple(
            (label if isinstance(label, str) else float(label), as_number(factor)) for label, factor in pairs
        )
    if factors is None or len(dict(factors)) < len(factors) or any(math.isnan(one) for _, one in factors):
        raise UsageError(
            f"class_weight: expected 'balanced' or LABEL=WEIGHT,…, with each label once, found {weights!r:.60}"
        )
    return factors


def _rows(code: Any) -> list[list[int]]:
    """Return a code matrix as a list of rows: of arrays, or of a file with a line for each class (ascending labels)."""
    if isinstance(code, str | os.PathLike):
        if not os.path.isfile(code):
            raise UsageError(f"code: no such file: {code}")
        with open(code, encoding="utf-8", errors="replace") as file:
            lines = [line.replace(",", " ").split() for line in file]
        code = [tokens for tokens in lines if tokens]
    try:
        rows = [list(row) for row in code]
    except TypeError:
        raise UsageError(f"code: expected rows of -1, 0, +1, or a file, found {code!r:.60}") from None
    for number, row in enumerate(rows or [[]], start=1):
        if not row or len(row) != len(rows[0]) or not {-1, 0, 1}.issuperset(map(as_number, row)):
            raise UsageError(
                f"code, row {number}: expected {len(rows[0]) if rows else 1} entries of -1, 0, +1 (a row per class), found "
                f"{' '.join(map(str, row))[:60]!r}"
            )
    return [[int(as_number(sign)) for sign in row] for row in rows]


# ---------------------------------------------------------------------------------------------------------------------
# What is trained


def _losses_with(parameter: LossParameter) -> list[str]:
    return [loss for loss, entry in LOSSES.items() if entry.parameter is parameter]


def _declared_parameter(parameter: LossParameter) -> tuple[str, Any, Any]:
    """Declare the parameter of losses as an option."""
    flags = f"{parameter.flags} --{parameter.name}"
    text = f"{parameter.help} For {', '.join(_losses_with(parameter))}."
    default = f"{parameter.default:g}"
    declared = option(None, text, flags=flags, default_is=default, section=Section.LOSS)
    return parameter.name, float | None, declared


_LossParameters: Any = make_dataclass(
    "_LossParameters", map(_declared_parameter, PARAMETERS.values()), frozen=True, kw_only=True
)


def _losses(form: str, *, targets: bool) -> str:
    """List the losses of classes, or of targets, in a form."""
    chosen = {loss: entry for loss, entry in LOSSES.items() if entry.has_targets == targets}
    return ", ".join(form.format(loss, entry.formula) for loss, entry in chosen.items())


@dataclass(frozen=True, kw_only=True)
class ProblemOptions(_LossParameters, Checked):
    """Options that decide the problem, and its method: the ``options`` of ``config.json``.

    They are brought to one form: `C` is a tuple, `class_weight` a word or pairs, `code` a list of rows. Those of a run are
    resolved: loss, bias and method are chosen, and acceleration and omega that are auto are found while it trains.
    """

    loss: str = option(
        None,
        f"Of classes: {_losses('{}', targets=False)}; of numbers to predict: {_losses('{}', targets=True)}. "
        "Of a row with margin t = y w·x, or of all classes at once, it is: "
        f"{_losses('{} {}', targets=False)}; the nearest plane's class is predicted. logistic and log are log_loss. Of a "
        f"row with a number y to predict (convert --target), z = w·x: {_losses('{} {}', targets=True)}.",
        choices=(*LOSSES, *LOSS_ALIASES),
        metavar="LOSS",
        default_is=f"{DEFAULT_LOSS} or {DEFAULT_LOSS_OF_TARGETS}",
    )
    method: str = option(
        "auto",
        "auto chooses, and says why. dual: coordinate descent on the dual variables, row by row. primal: on the weights, "
        "feature by feature, in a new random order each pass; online: likewise, with features drawn at random with "
        "replacement. Both are for losses with a curvature, but multinomial, and online for those of classes alone; they "
        "read the column layout (streamcd columns). sor: for the loss twin, with the inverse of a matrix of features x "
        "features for each plane. newton: for the losses of primal on data with few features, with such a matrix for each "
        "model: some five reads. working-set: for the losses of primal and the column layout; l1 and elasticnet on data "
        "with many features.",
        choices=("auto", *METHODS),
        section=Section.METHOD,
    )
    C: Any = option(
        1.0,
        "Cost: the factor of the sum of losses in ½‖w‖² + C Σ loss. Several values, separated by commas (in Python "
        "a sequence), are trained in the same passes, and each gets a model of its own.",
        kind="float or sequence of float",
        flags="-C -c --C",
        metavar="NUMBER,…",
    )
    bias: float | str = option(
        "auto",
        "Value of a constant feature, for an intercept. Its weight is penalised like the others. none, or a negative "
        "number: no intercept. auto: 1 for a dataset made from tables, frames or dense arrays, none for libsvm text and "
        "sparse matrices, as LIBLINEAR; where it starts from another run, as there.",
        kind='"auto", "none" or float',
        flags="-B --bias",
        metavar="auto|none|NUMBER",
    )
    unpenalized_bias: bool = option(
        False,
        "Leave the bias's weight out of the penalty. Not for twin planes.",
        flags="-R --unpenalized-bias",
        section=Section.PENALTY,
    )
    class_weight: Any = option(
        None,
        "Factors of C for the rows of labels, or balanced: rows / (classes · rows of the class). They count in every "
        "one-vs-rest problem (LIBLINEAR's -wi weights the positive side only, where there are more than two classes). For "
        "twin planes too they change C alone: they weight the rows that a plane keeps away from, not those it is fitted to.",
        kind='mapping of label to factor, or "balanced"',
        metavar="LABEL=W,…",
    )
    code: Any = option(
        None,
        "Code matrix for several classes, instead of one-vs-rest: a row per class, labels ascending; a column per "
        "binary problem, 1 for its positive classes, -1 for its negative ones, 0 for those it leaves out.",
        kind="array of -1, 0, +1, shape (classes, problems)",
        metavar="FILE",
        section=Section.PROBLEM,
    )
    omega: float | str = option(
        1.0,
        "Over-relaxation (SOR) of the dual steps of hinge, squared_hinge and twin: each is this number, above 0 "
        "and below 2, times coordinate descent's. auto tries two values during training, and says which it keeps.",
        metavar="NUMBER|auto",
        section=Section.METHOD,
    )
    acceleration: float | str = option(
        "auto",
        "For the method dual, an outer proximal point around the passes: badly conditioned problems (large C, long "
        "rows) take a tenth of the passes or fewer. It needs one more array of the weights' size, and is left out "
        "if that does not fit in `memory`. auto finds its strength while training. For primal and online, an "
        "extrapolation after each pass by a line search; it needs one more array of rows' scores too, and no strength "
        "can be given. Training is plain by dual with `eps` or an `omega` other than 1, by sor, newton and working-set.",
        metavar="auto|none|STRENGTH",
        section=Section.METHOD,
    )
    ridge: float | None = option(
        None,
        "r in a twin plane's r/2 ‖w‖^2; with a small r the method dual converges slowly.",
        default_is=f"{DEFAULT_STRENGTH:g}",
        section=Section.LOSS,
    )
    slack: str | None = option(
        None,
        "Loss of the other classes' rows for a twin plane, max(0, 1 - w·x) or its square.",
        choices=SLACKS,
        default_is=DEFAULT_SLACK,
        section=Section.LOSS,
    )
    penalty: str = option(
        "l2",
        "l2: r/2 ‖w‖^2; l1: λ Σ |w|, which leaves many weights 0; elasticnet: both. In place of ½‖w‖^2, as in LIBLINEAR, "
        "beside C Σ loss; l1 and elasticnet are for the methods newton and working-set.",
        choices=("l2", "l1", "elasticnet"),
        section=Section.PENALTY,
        is_common=True,
    )
    l1: Any = option(
        None,
        "λ of l1 and elasticnet. It penalises the bias like every weight, as in LIBLINEAR; see "
        "`unpenalized_bias`. Several values, separated by commas (in Python a sequence), are trained in the same "
        "passes, with each C, and each gets a model of its own.",
        kind="float or sequence of float",
        metavar="NUMBER,…",
        default_is=f"{DEFAULT_STRENGTH:g}",
        section=Section.PENALTY,
        is_common=True,
    )
    l2: float | None = option(
        None,
        "r of the penalties l2 and elasticnet.",
        default_is=f"{DEFAULT_STRENGTH:g}",
        section=Section.PENALTY,
    )

    def __post_init__(self) -> None:
        from ..solvers.acceleration import MOST_KAPPA  # with kernels, which declarations do without

        words = "auto", "none"
        numbers = f"a number up to {_MOST:g}"
        bias = number_or_word("bias", self.bias, words, (-math.inf, _MOST), numbers)
        strengths = f"a strength from 0 to {MOST_KAPPA:g}"
        kappa = number_or_word("acceleration", self.acceleration, words, (0.0, MOST_KAPPA), strengths)
        omega = number_or_word("omega", self.omega, words[:1], WITHIN_2, "a number above 0 and below 2")
        self._set(
            loss=LOSS_ALIASES.get(self.loss, self.loss),
            C=costs(self.C),
            l1=None if self.l1 is None else tuple(sorted(set(_numbers(self.l1)), reverse=True)),
            bias=NO_BIAS if bias == "none" else bias,
            unpenalized_bias=bool(self.unpenalized_bias),
            class_weight=_pairs(self.class_weight),
            code=None if self.code is None else _rows(self.code),
            acceleration="none" if kappa == 0.0 else kappa,  # plain coordinate descent by either name
            omega=omega,
        )
        super().__post_init__()
        for name in ("C", "l1", "l2", "ridge"):
            given = getattr(self, name)
            values = _numbers(given)
            if given is not None and not (values and all(0.0 < value <= _MOST for value in values)):
                shown = ", ".join(f"{value:g}" for value in values) or "none"
                raise UsageError(f"{name}: expected a number > 0 and up to {_MOST:g}, found {shown}")
        for name, other in (("l1", "l2"), ("l2", "l1")):
            if getattr(self, name) is not None and self.penalty == other:
                raise UsageError(
                    f"{name} is of --penalty {name} or elasticnet, found --penalty {self.penalty}"
                )
        if self.loss is not None:  # else `resolve` chooses it, and what follows is checked then
            self._check_loss()

    def _check_loss(self) -> None:
        """Refuse options that the loss, or the method named, does not have; give the loss's parameter its default."""
        loss = LOSSES[self.loss]
        for name, parameter in PARAMETERS.items():
            value = getattr(self, name)
            if parameter is loss.parameter:
                number = parameter.default if value is None else as_number(value)
                if not parameter.allows(number):
                    raise UsageError(f"{name}: expected {parameter.expected}, found {value}")
                self._set(**{name: number})
            elif value is not None:
                losses = ", ".join(_losses_with(parameter))
                raise UsageError(f"{name} is for {losses}, not for {self.loss}; leave it out")
        if loss.form != PLANES and (self.ridge is not None or self.slack is not None):
            raise UsageError(f"ridge and slack are options of the loss twin, not of {self.loss}")
        if loss.form == PLANES and self.l2 is not None:
            raise UsageError(
                f"--l2 is not for {self.loss}, found {self.l2:g}; --ridge is the strength of its penalty"
            )
        if loss.form == PLANES and self.unpenalized_bias:
            raise UsageError(
                f"--unpenalized-bias is not for {self.loss}; give --bias a larger value, which is penalised less"
            )
        has_l1 = self.penalty != "l2"
        entries = [entry for entry in SOLVERS.values() if entry.takes_l1 or not has_l1]
        methods = [entry.method for entry in entries if entry.loss == self.loss]
        penalty = f" with --penalty {self.penalty}" if has_l1 else ""
        if not methods:
            losses = " or ".join(dict.fromkeys(entry.loss for entry in entries))
            raise UsageError(f"no method trains {self.loss}{penalty}; expected {losses}, or --penalty l2")
        if self.method not in ("auto", *methods):
            known = " or ".join(methods)
            raise UsageError(
                f"no solver for {self.loss} by method {self.method}{penalty}; it is trained by {known}"
            )
        if self.omega != 1.0 and self.method != "auto" and not SOLVERS[self.loss, self.method].relaxes:
            raise UsageError(
                f"omega is for losses whose steps have a closed form, by dual or sor; {self.loss} by method {self.method} "
                "has none, leave omega at 1"
            )


# ---------------------------------------------------------------------------------------------------------------------
# What calls take


@dataclass(frozen=True, kw_only=True)
class SessionOptions(ListenerOptions, Checked):
    """Options of what trains, as long as the call takes; no run records them."""

    workers: int | None = option(
        None,
        "Train on this number of processes of this machine, which share `memory` (at least 385 MB each, and 200 MB for "
        "this one). By dual one process, with threads, takes less time: they are to try a cluster.",
        metavar="N",
        default_is="this process alone",
        least=1,
        section=Section.PROCESSORS,
    )
    scheduler: str | None = option(
        None,
        "Train on the workers of this dask scheduler, such as tcp://host:8786. They must see a dataset that is no URL "
        "under the same path; the memory budget is that of each. Every round is a checkpoint.",
        metavar="ADDRESS",
        section=Section.PROCESSORS,
    )
    client: Any = option(
        None,
        "A client of such a scheduler, in place of its address. With `workers` its workers, of that number, are on "
        "this machine and share its memory budget.",
        kind="distributed.Client",
        flags="",
    )
    stop_requested: Callable[[], int | None] | None = option(
        None,
        "Called without arguments after every part of the data in memory; returns the number of a signal that asks to stop, "
        "or None. By default Ctrl-C and SIGTERM ask that.",
        kind="callable",
        flags="",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheduler is not None and (self.workers is not None or self.client is not None):
            raise UsageError(
                "--workers are of this machine, --scheduler uses those of a cluster: give one of them"
            )

    @property
    def n_workers(self) -> int | None:
        """Number of workers of this machine, 0 for those of a cluster; None if this process trains alone."""
        if self.workers is None and self.scheduler is None and self.client is None:
            return None
        return self.workers or 0


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ProblemOptions, SessionOptions):
    """Options of `run.train`."""

    seed: int = option(0, "Seed of the random order of visits.", section=Section.METHOD)
    tol: float | None = option(
        None,
        "Stop at this relative duality gap, (primal - dual) / max(|primal|, 1e-9 P(0)), P(0) being the objective with all "
        "weights 0.",
        default_is=f"{DEFAULT_TOL:g}",
    )
    eps: float | None = option(
        None,
        "Stop by LIBLINEAR's rule instead: over all rows the projected gradients PG of the dual satisfy max PG - "
        "min PG, |max PG|, |min PG| <= EPS; by a primal method the gradient at w satisfies ‖grad f(w)‖ <= EPS · "
        "min(n+, n-)/n · ‖grad f(0)‖, w being the end of a pass. Turns acceleration off for dual.",
        flags="-e",
        metavar="EPS",
        section=Section.STOPPING,
    )
    max_passes: int = option(1000, "Most passes over the data.", section=Section.STOPPING, is_common=True)
    max_seconds: float | str | None = option(
        None,
        "Stop after this time with a checkpoint and no model (stop_reason time), for batch queues; a training that ends "
        "sooner has its model. Checked after each part of the data that is in memory.",
        metavar="TIME",
        section=Section.STOPPING,
    )
    start_from: Place = option(
        None,
        "Start from the dual variables of a finished run, scaled from its C to this one; takes no extra read. Shards "
        "that the run did not have begin at 0. Method sor can start from a run by dual or sor; a primal method starts "
        "from the weights of a run by any method, which takes a read.",
        metavar="RUN",
        section=Section.METHOD,
    )
    memory: Size = option(
        "1GB",
        "Bound on peak resident memory: 400MB, 2GiB. It is that of the process, interpreter and all; what does not fit "
        "together is trained in groups, one after another.",
        metavar="SIZE",
    )
    checkpoint_every: float | str = option(
        60.0,
        "Time between checkpoints, from which `resume` continues, in seconds, or such as 2m.",
        metavar="TIME",
        section=Section.RUN,
    )
    resume: bool = option(
        False,
        "Continue the run if it holds this training already, with the stopping rule given here, otherwise begin "
        "it: the same command for every job of a queue.",
        section=Section.RUN,
    )
    force: bool = option(False, "Replace an existing run.", section=Section.RUN, is_common=True)
    worker_timeout: float | str | None = option(
        None,
        "With workers: exclude one that has not responded for this time; others take over its shards.",
        metavar="TIME",
        default_is=f"{WORKER_TIMEOUT:g}s",
        section=Section.PROCESSORS,
    )
    threads: int | None = option(
        None,
        "Threads of a process. The memory budget includes what they take; processes of a machine divide its cores.",
        flags="-m --threads",
        metavar="N",
        is_common=True,
        default_is="one a core",
        least=1,
        section=Section.PROCESSORS,
    )
    cache: Place = option(
        None,
        "Copy the files of a dataset at a URL to this directory (of every worker) when they are first read, and read them "
        "there.",
        kind="path",
        metavar="DIR",
        section=Section.PROCESSORS,
    )
    plan: Any = option(
        None,
        "Entries and rows of a window, read from disk, for tests of streamcd itself.",
        flags="",
        kind="tuple of int",
        default_is="given by `memory`",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tol is not None and self.eps is not None:
            raise UsageError(
                "--tol and -e exclude each other: stop by the relative gap, or by LIBLINEAR's rule"
            )
        if self.tol is None and self.eps is None:
            self._set(tol=DEFAULT_TOL)
        if self.workers == 1:  # this process alone
            self._set(workers=None)
        self._set(memory=parse_size(self.memory))
        require(int(self.memory), {})  # for the start, which takes more than a training of few rows
        if isinstance(self.plan, tuple):
            from ..stream.memory_plan import Plan  # with kernels, which declarations do without

            n_entries, n_rows = self.plan
            self._set(plan=Plan(n_entries, n_rows, resident=False))
        times = ("checkpoint_every", "max_seconds", "worker_timeout")
        self._set(**{name: seconds(name, getattr(self, name)) for name in times})
        if self.start_from is not None:
            self._set(start_from=str(local_path(self.start_from, "a run to start from").resolve()))


@dataclass(frozen=True, kw_only=True)
class TuneOptions(TrainOptions):
    """Options of `run.tune`: those of a training in one process, and the folds."""

    C: Any = option(
        None,
        "The costs to try, separated by commas; in Python a sequence.",
        kind="sequence of float",
        flags="-C -c --C",
        default_is=f"{','.join(f'{cost:g}' for cost in DEFAULT_COSTS)}; 1 with several values of l1",
    )
    cv: int = option(
        5,
        "Folds of the cross-validation. Rows are assigned to them by a hash; of a dataset with a column of folds (convert "
        "--fold) its values are the folds, of which equal ones stay together.",
        flags="-v --cv",
        metavar="K",
    )
    scoring: str | None = option(
        None,
        "Criterion. accuracy, auc (of several classes the mean of each against the rest) and log_loss are of classes; r2, "
        "the default for squared_error, and the mean loss of numbers to predict.",
        choices=("accuracy", "auc", "log_loss", "r2", "loss"),
        default_is="accuracy; r2 or loss",
        section=Section.CHOICE,
        is_common=True,
    )
    # options of a training that a search does not have
    start_from: Place = None
    workers: int | None = None
    scheduler: str | None = None
    client: Any = None
    worker_timeout: float | str | None = None
    plan: Any = None

    def __post_init__(self) -> None:
        if self.C is None:
            several = self.l1 is not None and len(set(_numbers(self.l1))) > 1
            self._set(C=1.0 if several else DEFAULT_COSTS)
        super().__post_init__()
        if not 2 <= self.cv <= MAX_FOLDS:
            raise UsageError(f"cv: expected from 2 to {MAX_FOLDS} folds, found {self.cv}")
        self._set(C=tuple(sorted(set(self.C))))


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(SessionOptions):
    """Options of `run.resume`, in place of a run's where they are given."""

    max_passes: int | None = again(TrainOptions, "max_passes")
    tol: float | None = again(TrainOptions, "tol")
    checkpoint_every: float | str | None = again(TrainOptions, "checkpoint_every")
    dataset: Place = option(
        None,
        "The dataset's directory, if it was moved after the run began; it has to be the same dataset.",
        metavar="PATH",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(checkpoint_every=seconds("checkpoint_every", self.checkpoint_every))


@dataclass(frozen=True, kw_only=True)
class ReportOptions(ModelOptions, ListenerOptions):
    """Options of `report.write_report`."""

    data: Any = option(
        None,
        "Evaluate the model on it, as `evaluate` does.",
        kind="Dataset or path",
        metavar="DATASET|FILE",
    )
    force: bool = replaces("page")
