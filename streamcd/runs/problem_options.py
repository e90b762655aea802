"""Options that decide the problem: declared, checked, and brought to one form."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Any

from ..core.errors import UsageError, first_of
from ..core.files import Positive
from ..core.options import Checked, Section, as_number, number_or_word, option
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
from ..solvers.registry import (
    find_solver,
    make_solver,
    solver_memory,
)

if TYPE_CHECKING:
    import numpy as np

    from ..dataset.dataset import Dataset
    from ..solvers.problem import Problem
    from ..solvers.protocol import Solver
    from ..stream.memory_plan import Plan, SolverMemory

MAX_FOLDS = 100
NO_BIAS = -1.0
DEFAULT_LOSS = "squared_hinge"

_MOST = 1e60  # of a bias, a cost or a strength: the squares stay finite
_LOSSES_TO_BIAS = 100.0  # least square of a free bias's feature, times C and the rows

ClassWeight = str | tuple[tuple[float | str, float], ...] | None
"""``"balanced"``, or pairs of a label, a number or a name, and the factor of its rows."""

# ---------------------------------------------------------------------------------------------------------------------
# Values in one form, of those that Python has or of text


def seconds(name: str, given: Any) -> float:
    """Return a length of time in seconds: a number, or text such as ``90``, ``90s``, ``1.5m``, ``2h``."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)(ms|s|m|min|h|)\s*", given) if isinstance(given, str) else None
    units = {"ms": 1e-3, "s": 1, "": 1, "m": 60, "min": 60, "h": 3600}
    found = float(match.group(1)) * units[match.group(2)] if match else as_number(given)
    if math.isnan(found):
        raise UsageError(f"{name}: expected a time such as 60s, 5m or 1h, found {given!r}")
    return found


def _numbers(given: Any) -> tuple[float, ...]:
    """Return the values of an option that takes one or several, separated by commas in text, as a tuple."""
    if isinstance(given, str):
        given = given.split(",")
    several = isinstance(given, Iterable) and getattr(given, "ndim", 1) > 0
    return tuple(map(as_number, given if several else (given,)))


def costs(given: Any) -> tuple[float, ...]:
    """Return values of C; LIBLINEAR's ``-C``, which takes none, is answered with the command that chooses."""
    found = _numbers(given)
    if isinstance(given, str) and any(map(math.isnan, found)):
        raise UsageError(
            f"-C: expected a number, or several separated by commas, found {given!r}; 'streamcd tune DATASET RUN -C "
            "0.01,0.1,1,10 --cv 5' chooses C, as LIBLINEAR's -C without a number does"
        )
    return found


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
    found: Any = None
    with suppress(TypeError, ValueError):  # other things than pairs
        found = tuple(
            (label if isinstance(label, str) else float(label), as_number(factor)) for label, factor in pairs
        )
    if found is None or len(dict(found)) < len(found) or any(math.isnan(factor) for _, factor in found):
        raise UsageError(
            f"class_weight: expected 'balanced' or LABEL=WEIGHT,…, with each label once, found {weights!r:.60}"
        )
    return found


def _rows(code: Any) -> list[list[int]]:
    """Return a code matrix as a list of rows: of arrays, or of a file with a line for each class (ascending labels)."""
    if isinstance(code, str | os.PathLike):
        if not os.path.isfile(code):
            raise UsageError(f"code: no such file: {code}")
        with open(code, encoding="utf-8", errors="replace") as file:
            lines = [line.replace(",", " ").split() for line in file]
        code = [tokens for tokens in lines if tokens]
    try:
        rows = [
            [str(sign) if math.isnan(number := as_number(sign)) else number for sign in row] for row in code
        ]
    except TypeError:
        raise UsageError(f"code: expected rows of -1, 0, +1, or a file, found {code!r:.60}") from None
    for number, row in enumerate(rows or [[]], start=1):
        if not row or len(row) != len(rows[0]) or not {-1, 0, 1}.issuperset(row):
            raise UsageError(
                f"code, row {number}: expected {len(rows[0]) if rows else 1} entries of -1, 0, +1 (a row per class), found "
                f"{' '.join(map(str, row))[:60]!r}"
            )
    return [[int(sign) for sign in row] for row in rows]


# ---------------------------------------------------------------------------------------------------------------------
# What is trained


def _losses_with(parameter: LossParameter) -> list[str]:
    return [loss for loss, entry in LOSSES.items() if entry.parameter is parameter]


def _declared_parameter(parameter: LossParameter) -> tuple[str, Any, Any]:
    """Declare the parameter of losses as an option."""
    flags, told = f"{parameter.flags} --{parameter.name}", f"{parameter.default:g}"
    text = f"{parameter.help} For {', '.join(_losses_with(parameter))}."
    declared = option(None, text, flags=flags, default_is=told, section=Section.LOSS)
    return parameter.name, float | None, declared


_LossParameters: Any = make_dataclass(
    "_LossParameters", map(_declared_parameter, PARAMETERS.values()), frozen=True, kw_only=True
)


def _losses(form: str, *, targets: bool) -> str:
    """List the losses of classes, or of targets, in a form."""
    chosen = {loss: entry for loss, entry in LOSSES.items() if entry.has_targets == targets}
    return ", ".join(form.format(loss, entry.formula) for loss, entry in chosen.items())


def _losses_by(method: str) -> list[str]:
    return [entry.loss for entry in SOLVERS if entry.method == method]


@dataclass(frozen=True, kw_only=True)
class ProblemOptions(_LossParameters, Checked):
    """Options that decide the problem and the order of visits: the ``options`` of ``config.json``.

    They are brought to one form: `C` is a tuple, `class_weight` a word or pairs, `code` a list of rows.
    """

    loss: str = option(
        None,
        f"Of classes: {_losses('{}', targets=False)}; of numbers to predict: {_losses('{}', targets=True)}. "
        "Of a row with margin t = y w·x, or of all classes at once, it is: "
        f"{_losses('{} {}', targets=False)}; the nearest plane's class is predicted. logistic and log are log_loss. Of a "
        f"row with a number y to predict (convert --target), z = w·x: {_losses('{} {}', targets=True)}.",
        choices=(*LOSSES, *LOSS_ALIASES),
        metavar="LOSS",
        default_is=f"{DEFAULT_LOSS} or squared_error",
    )
    method: str = option(
        "auto",
        "auto chooses, and says why. dual: coordinate descent on the dual variables, row by row. primal: on the weights, "
        "feature by feature, in a new random order each pass; online: likewise, with features drawn at random with "
        f"replacement. Both are for losses with a curvature ({', '.join(_losses_by('online'))}; primal also for "
        f"{', '.join(loss for loss in _losses_by('primal') if LOSSES[loss].has_targets)}), and read the column layout "
        "(streamcd columns). sor: for the loss twin, with the inverse of a matrix of features x features for each plane. "
        "newton: for the losses of primal on data with few features, with such a matrix for each model: some five reads. "
        "working-set: for the losses of primal and the column layout; l1 and elasticnet on data with many features.",
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
        default_is="1",
        section=Section.LOSS,
    )
    slack: str | None = option(
        None,
        "Loss of the other classes' rows for a twin plane, max(0, 1 - w·x) or its square.",
        choices=SLACKS,
        default_is="hinge",
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
        default_is="1",
        section=Section.PENALTY,
        is_common=True,
    )
    l2: float | None = option(
        None, "r of the penalties l2 and elasticnet.", default_is="1", section=Section.PENALTY
    )
    seed: int = option(0, "Seed of the random order of visits.", section=Section.METHOD)
    folds: int = 0  # of a cross-validation; 0 for none

    def __post_init__(self) -> None:
        from ..solvers.acceleration import MOST_KAPPA  # with kernels, which declarations do without

        words = "auto", "none"
        bias = number_or_word(
            "bias", self.bias, words, lambda bias: bias <= _MOST, f"a number up to {_MOST:g}"
        )
        self._set(
            loss=LOSS_ALIASES.get(self.loss, self.loss) or DEFAULT_LOSS,
            C=costs(self.C),
            l1=None if self.l1 is None else tuple(sorted(set(_numbers(self.l1)), reverse=True)),
            bias=NO_BIAS if bias == "none" else bias,
            unpenalized_bias=bool(self.unpenalized_bias),
            seed=int(self.seed),
            class_weight=_pairs(self.class_weight),
            code=None if self.code is None else _rows(self.code),
            acceleration=number_or_word(
                "acceleration",
                self.acceleration,
                words,
                lambda kappa: 0.0 <= kappa <= MOST_KAPPA,
                f"a strength from 0 to {MOST_KAPPA:g}",
            ),
            omega=number_or_word(
                "omega",
                self.omega,
                words[:1],
                lambda omega: 0.0 < omega < 2.0,
                "a number above 0 and below 2",
            ),
        )
        super().__post_init__()
        self._set(**self._parameters())
        check_positive(_MOST, C=self.C, l1=self.l1, l2=self.l2, ridge=self.ridge)
        if LOSSES[self.loss].form != PLANES and (self.ridge is not None or self.slack is not None):
            raise UsageError(f"ridge and slack are options of the loss twin, not of {self.loss}")
        for name, other in (("l1", "l2"), ("l2", "l1")):
            if getattr(self, name) is not None and self.penalty == other:
                raise UsageError(
                    f"{name} is of --penalty {name} or elasticnet, found --penalty {self.penalty}"
                )
        if self.omega != 1.0 and self.method != "auto" and not find_solver(self.loss, self.method).relaxes:
            raise UsageError(
                f"omega is for losses whose steps have a closed form, by dual or sor; {self.loss} by method {self.method} "
                "has none, leave omega at 1"
            )

    @property
    def strengths(self) -> tuple[tuple[float, ...], float]:
        """All λ, and r, of the penalty; 0 where it has none."""
        l1, l2 = self.l1 or (1.0,), 1.0 if self.l2 is None else float(self.l2)
        return (
            l1 if self.penalty in ("l1", "elasticnet") else (0.0,),
            l2 if self.penalty in ("l2", "elasticnet") else 0.0,
        )

    @property
    def has_l1(self) -> bool:
        """Check if the penalty has an L1 part."""
        return self.penalty != "l2"

    def _parameters(self) -> dict[str, float | None]:
        """Return the parameters of all losses, the own one's with its default; others', and wrong values, are refused."""
        own, found = LOSSES[self.loss].parameter, {}
        for name, parameter in PARAMETERS.items():
            value = getattr(self, name)
            if value is not None and parameter is not own:
                raise UsageError(
                    f"{name} is for {', '.join(_losses_with(parameter))}, not for {self.loss}; leave it out"
                )
            if parameter is own:
                value = parameter.default if value is None else as_number(value)
                if not parameter.allows(value):
                    raise UsageError(f"{name}: expected {parameter.expected}, found {getattr(self, name)}")
            found[name] = value
        return found

    @property
    def parameter(self) -> float | None:
        """The parameter of the loss, if it has one."""
        own = LOSSES[self.loss].parameter
        return None if own is None else getattr(self, own.name)

    @property
    def problem(self) -> ProblemOptions:
        """The options that decide the problem, without those of a run."""
        return ProblemOptions(**{one.name: getattr(self, one.name) for one in fields(ProblemOptions)})

    def make_problem(self, dataset: Dataset, memory: int | None = None) -> Problem:
        """Lay out all lanes that the options ask for; refused if they do not fit in the budget `memory`."""
        import numpy as np

        from ..solvers.problem import make_problem  # with kernels, which declarations do without

        check_labels(self.loss, dataset)
        return make_problem(
            loss=self.loss,
            classes=dataset.classes,
            n_features=dataset.n_features,
            C=self.C,
            bias=self._bias_feature(dataset),
            factors=class_factors(self.class_weight, dataset),
            code=None if self.code is None else np.array(self.code, dtype=np.int8),
            n_folds=self.folds,
            free_bias=self.unpenalized_bias,
            l1=self.strengths[0],
            l2=self.strengths[1],
            ridge=1.0 if self.ridge is None else self.ridge,
            slack=self.slack or "hinge",
            parameter=self.parameter,
            memory=memory,
        )

    def _bias_feature(self, dataset: Dataset) -> float:
        """Return the value of the constant feature, NO_BIAS for none.

        The optimum does not depend on it where its weight is free: then it is half of the rows' root mean square norm, with
        which the dual method takes the fewest passes, 10 times fewer than with 1 on rows of norm 10 that lean to one side;
        but larger where C and the rows are so few, beside l2, that the losses would hardly move the bias in a pass.
        """
        bias = NO_BIAS if isinstance(self.bias, str) else float(self.bias)
        if not (self.unpenalized_bias and bias > 0.0 and self.method == "dual"):
            return bias
        mean_square = (dataset.centre or dataset).mean_square or 0.0
        if 0.0 < mean_square < math.inf:
            least = _LOSSES_TO_BIAS / (min(self.C) * max(dataset.n_rows, 1))
            return math.sqrt(max(0.25 * mean_square, least))
        return bias

    def solver_memory(self, lanes: Problem, dataset: Dataset) -> SolverMemory:
        memory = solver_memory(lanes, self.method, dataset, acceleration=self.acceleration)
        if not memory.layout.centred or dataset.centre is None:
            return memory
        return replace(memory, weights=memory.weights + dataset.centre.table.nbytes)

    def make_solver(self, lanes: Problem, dataset: Dataset, plan: Plan) -> Solver:
        numbers = {"omega": self.omega, "acceleration": self.acceleration}
        return make_solver(lanes, self.method, dataset, seed=self.seed, plan=plan, **numbers)


def check_positive(most: float = math.inf, /, **numbers: Any) -> None:
    """Refuse a number that is not above 0 and up to `most`, alone or among several, by its name; None is none."""
    for name, number in numbers.items():
        values = number if isinstance(number, tuple) else () if number is None else (as_number(number),)
        if number == () or not all(0.0 < value <= most for value in values):
            shown = ", ".join(f"{value:g}" for value in values) or "none"
            end = "" if most == math.inf else f" and up to {most:g}"
            raise UsageError(f"{name}: expected a number > 0{end}, found {shown}")


@dataclass(frozen=True)
class SharedRounds:
    """Options of a training in rounds on workers, the ``rounds`` of ``config.json``."""

    worker_timeout: float  # seconds without a response of a worker, after which its shards go to others
    # bytes that workers of this machine share with this process, and that each of a cluster has, where they are not `memory`
    shared_memory: Positive | None = None

    def __post_init__(self) -> None:
        check_positive(worker_timeout=self.worker_timeout)


# ---------------------------------------------------------------------------------------------------------------------
# Labels


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
    has_targets = LOSSES[loss].has_targets
    if has_targets and not dataset.has_targets:
        raise UsageError(
            f"{where}: expected numbers to predict for the loss {loss}, found classes; convert with --target"
        )
    if has_targets:
        return
    expected = f"{where}: expected classes for the loss {loss}, found"
    if dataset.has_targets:
        for_numbers = " or ".join(name for name, entry in LOSSES.items() if entry.has_targets)
        raise UsageError(
            f"{expected} numbers to predict; take --loss {for_numbers}, or convert without --target"
        )
    labels = dataset.class_labels()
    if labels is None:
        raise UsageError(
            f"{expected} more than {MAX_CLASSES:,}; take another --label, or convert with --target"
        )
    if numbers := labels_of_a_target(dataset):
        raise UsageError(f"{expected} {numbers}")
    if len(labels) == 1:
        raise UsageError(f"{where}: expected at least two classes, found {str(labels)[1:-1]} alone")


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
