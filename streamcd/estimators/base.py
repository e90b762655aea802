"""Base of the estimators: fitting to arrays or a dataset, training, and prediction.

Training on arrays is in memory and never touches the disk; training on a dataset has a run directory. Both are by
`runs.run`; kernels are loaded at the first fit. scikit-learn checks parameters and arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..core.errors import ConvergenceWarning, UsageError, counted
from ..core.options import COMPILING, Listener, Progress, SharedWork, listening, warn_once
from ..core.parallel import Threads, available_cores
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.in_memory import InMemoryDataset
from ..models.matrix_encoder import matrix_rows, refuse_mask, sound_matrix
from ..models.model import Model

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, is_regressor
    from sklearn.base import RegressorMixin as RegressorMixin
    from sklearn.exceptions import ConvergenceWarning as TheirConvergenceWarning
    from sklearn.metrics import r2_score
    from sklearn.utils import check_random_state, compute_class_weight
    from sklearn.utils._param_validation import Interval as Interval
    from sklearn.utils._param_validation import Options as Options
    from sklearn.utils._param_validation import StrOptions as StrOptions
    from sklearn.utils._param_validation import validate_parameter_constraints
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight as check_sample_weight
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as missing:
    raise ImportError(
        "streamcd.LinearSVC and the other estimators need scikit-learn 1.6 or later "
        f"(pip install 'streamcd[sklearn]'): {missing}"
    ) from None

if TYPE_CHECKING:
    from ..training.result import Result


Allowed = dict[str, list[Any]]
"""Values of parameters, by name, as scikit-learn's validation takes them."""

POSITIVE = [Interval(Real, 0, None, closed="neither")]
SHARE = [Interval(Real, 0, 1, closed="both")]


class NotConverged(ConvergenceWarning, TheirConvergenceWarning):
    """Warning of a training that ended before its stopping rule was met; both streamcd's and scikit-learn's."""


class _Silent(Listener):
    """Listener that drops everything but the compilation of kernels, which makes the first fit take seconds."""

    def progress(self, progress: Progress) -> None:
        """Pass on compilation: a line in the log."""
        if progress.phase == COMPILING:
            warn_once(COMPILING)

    def message(self, text: str) -> None:
        """Drop it."""

    def warning(self, text: str) -> None:
        """Drop it: the estimators issue warnings of their own."""


def penalised(l1: float, l2: float, C: float) -> dict[str, Any]:
    """Return the options of ``l1 ‖w‖₁ + l2/2 ‖w‖² + C Σ loss``; without ``‖w‖₁`` all is divided by l2, to have ``½‖w‖²``."""
    if not l1:
        return {"C": C / l2}
    return (
        {"penalty": "elasticnet", "l2": l2, "l1": l1, "C": C} if l2 else {"penalty": "l1", "l1": l1, "C": C}
    )


@dataclass(eq=False, repr=False, kw_only=True)
class LinearModel(BaseEstimator):
    """Base of all estimators: fitting, training, weights and decisions, with the parameters of all.

    A subclass translates its own into options of `runs.run.train`.
    """

    tol: float = 1e-4
    fit_intercept: bool = True
    random_state: Any = None
    max_iter: int | None = 1000
    verbose: int = 0
    method: str = "auto"
    memory: int | str = "1GB"
    workdir: Any = None

    _allowed: ClassVar[Allowed] = {
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left"), Options(Integral, {-1}), None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "n_jobs": [Integral, None],
        "fit_intercept": ["boolean"],
        "intercept_scaling": POSITIVE,
        "C": POSITIVE,
        "positive": [Options(bool, {False})],
        "warm_start": [Options(bool, {False})],
    }

    @abstractmethod
    def _options(self, dataset: Dataset) -> dict[str, Any]:
        """Return loss, bias, penalty, C, and other options that differ from their defaults."""

    @abstractmethod
    def _in_memory(self, X: Any, y: Any, sample_weight: Any) -> Dataset:
        """Make a dataset of arrays."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model to rows in memory, or to a dataset.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features), frame, Dataset or path
            float32 is kept, other numbers become float64. A dataset, or the path of one, brings its labels and weights.
        y : array, shape (rows,)
            Labels; with a dataset None, or its own `Dataset.labels`.
        sample_weight : array, shape (rows,), optional
            Factors of the rows' losses, at least 0; rows of weight 0 are left out.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If scikit-learn's validation rejects a parameter, X or y, or there is a single class.
        DataError
            If an array is masked, or the indices of a sparse matrix are damaged.
        UsageError
            If training cannot be as the parameters say, or `memory` is too small.
        """
        kind = type(self)
        allowed = {
            name: of for one in reversed(kind.__mro__) for name, of in vars(one).get("_allowed", {}).items()
        }
        validate_parameter_constraints(allowed, self.get_params(deep=False), kind.__name__)
        listener = self._listener()
        if isinstance(X, str | os.PathLike | Dataset):
            dataset = _opened(X)
            if sample_weight is not None or (y is not None and not np.array_equal(y, dataset.labels())):
                raise UsageError(
                    "a dataset brings its labels and weights: expected y=None or its own labels(), and no sample_weight"
                )
            result, self.model_ = self._train_in_directory(dataset, listener)
            self._name(dataset, self.model_)
        else:
            dataset = self._in_memory(X, y, sample_weight)
            result, self.model_ = self._train_in_memory(dataset, listener)
        self.n_iter_ = self._count_passes(result)
        self.dual_gap_ = result.gap
        if not result.converged:
            cost = "a smaller C or " if "C" in self.get_params() else ""
            ended = f"not converged after max_iter={self._most_passes()}"
            larger = "max_iter"
            if result.stop_reason == "rounding":
                ended = f"not converged, and rounding keeps it from that, after {counted(result.passes, 'pass', 'passes')}"
                larger = "tol"
            text = (
                f"{ended}: the relative duality gap is {result.gap:.2g}, tol={self.tol:g}; scale the features "
                f"(sklearn.preprocessing.MaxAbsScaler, say), or take {cost}a larger {larger}"
            )
            warnings.warn(text, NotConverged, stacklevel=2)
        return self

    def _checked_arrays(
        self, X: Any, y: Any, sample_weight: Any, **checks: Any
    ) -> tuple[Any, Any, np.ndarray | None]:
        """Check arrays as scikit-learn does, its `validate_data` by `checks`."""
        refuse_mask(y, "y")
        refuse_mask(sample_weight, "sample_weight")
        numbers = (np.float64, np.float32)
        X, y = validate_data(self, sound_matrix(X), y, accept_sparse="csr", dtype=numbers, **checks)
        if sample_weight is None:
            return X, y, None
        return X, y, check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)

    def _name(self, dataset: Dataset, model: Model) -> None:
        """Take over the number of features, and their names in a table; those that hashes and indices number have none."""
        self.n_features_in_ = dataset.n_features
        self.__dict__.pop("feature_names_in_", None)  # from an earlier fit
        encoding = model.encoding
        if encoding is not None and encoding.sparse is None and not encoding.bits:
            names = encoding.feature_names(np.arange(model.n_features))
            self.feature_names_in_ = np.array(names, object)

    def _options_of_run(self, dataset: Dataset) -> dict[str, Any]:
        """Return the options of a training on a dataset, but for when it stops."""
        seed = 0
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        return {"seed": seed, **self._problem_options(dataset)}

    def _problem_options(self, dataset: Dataset) -> dict[str, Any]:
        return {"method": self.method, **self._options(dataset)}

    def _train_in_memory(self, dataset: Dataset, listener: Listener) -> tuple[Result, Model]:
        from ..runs.options import TrainOptions
        from ..runs.run import train_in_memory
        from ..training.loop import Session

        rule: dict[str, Any] = {"tol": self.tol, "max_passes": self._most_passes(), "memory": self.memory}
        options = TrainOptions(**self._options_of_run(dataset), **rule)
        with listening(listener) as heard:
            session = Session(heard, None, self._n_threads() or 1)
            result, models = train_in_memory(dataset, options, session)
        return result, models[0]

    def _train_in_directory(self, dataset: Dataset, listener: Listener) -> tuple[Result, Model]:
        """Train in a directory named by a digest of data and options; resume or reuse the run of an earlier fit there.

        The column layout is made of a dataset that has none, where the method reads it.
        """
        from ..conversion.transpose import make_columns
        from ..dataset.column_layout import has_columns
        from ..runs.options import TrainOptions
        from ..runs.resolve import reads_columns
        from ..runs.run import resume, train

        options = self._options_of_run(dataset)
        choice = TrainOptions(memory=self.memory, **self._problem_options(dataset))
        if not has_columns(dataset) and reads_columns(choice, dataset):
            make_columns(dataset, memory=self.memory, listener=listener)
        rule: dict[str, Any] = {"tol": self.tol, "max_passes": self._most_passes(), "listener": listener}
        temporary = tempfile.TemporaryDirectory(prefix="streamcd-")
        with (
            temporary if self.workdir is None else nullcontext(self.workdir) as folder,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", ConvergenceWarning)  # `fit` warns
            run = Path(folder) / f"run-{_digest({**options, 'fingerprint': dataset.fingerprint})}"
            if (run / "config.json").exists():
                result = resume(run, **rule)
            else:
                Path(folder).mkdir(parents=True, exist_ok=True)
                threads = self._n_threads()
                result = train(dataset, run, memory=self.memory, threads=threads, **rule, **options)
            return result, result.model

    def _bias(self) -> float:
        return float(getattr(self, "intercept_scaling", 1.0)) if self.fit_intercept else -1.0

    def _most_passes(self) -> int:
        """Return `max_iter`; the default in place of scikit-learn's None and -1, its algorithms' own numbers."""
        return 1000 if self.max_iter in (None, -1) else self.max_iter

    def _n_threads(self) -> int | None:
        """Return the number of threads asked for (-1: all processors, -2: all but one); None by default."""
        n_jobs = getattr(self, "n_jobs", None)
        return n_jobs if n_jobs is None or n_jobs >= 0 else max(available_cores() + 1 + n_jobs, 1)

    def _listener(self) -> Listener:
        return Listener() if self.verbose else _Silent()

    def _count_passes(self, result: Result) -> Any:
        return result.passes

    # -- what was fitted --------------------------------------------------------------------------------------------------

    @property
    def coef_(self) -> np.ndarray:
        """Weights, shape (1, n_features) for two classes, else (n_classes, n_features)."""
        return self._per_class(self.model_.source_weights.T)

    @property
    def intercept_(self) -> Any:
        """Intercepts, shape (1,) for two classes, else (n_classes,)."""
        return self._per_class(self.model_.intercept)

    def _per_class(self, vectors: np.ndarray) -> np.ndarray:
        return vectors

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy, of regressors R²; a dataset has its own labels, or targets, and weights."""
        refuse_mask(y, "y")
        refuse_mask(sample_weight, "sample_weight")
        if isinstance(X, str | os.PathLike | Dataset):
            X = _opened(X)
            label, weight = X.read_in_source_order("label", "weight")
            y = X.source_labels(label) if y is None else y
            sample_weight = weight if sample_weight is None else sample_weight
        if is_regressor(self):
            return float(r2_score(y, self.predict(X), sample_weight=sample_weight))
        return float(np.average(np.ravel(y) == self.predict(X), weights=sample_weight))

    def _decisions(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        if isinstance(X, str | os.PathLike | Dataset):
            return self._dataset_decisions(_opened(X))
        by_columns = self.model_.encoding is not None and hasattr(X, "__arrow_c_stream__")
        if not by_columns:
            numbers = (np.float64, np.float32)
            X = validate_data(self, sound_matrix(X), accept_sparse="csr", dtype=numbers, reset=False)
        return self.model_.matrix_decisions(X)

    def _dataset_decisions(self, dataset: Dataset) -> np.ndarray:
        """Compute the decisions on a dataset's rows, in the order of the source."""
        from ..prediction.scorer import Scorer

        threads = Threads(self._n_threads()).count
        # without a budget: all decisions are returned as one array, beside which blocks of rows are small
        options = SharedWork(memory=1 << 62, listener=self._listener())
        scorer = Scorer(dataset, self.model_, options, threads=threads)
        decisions = np.empty((dataset.n_rows, self.model_.n_vectors))
        for rows in scorer.blocks("predict"):
            decisions[rows.source] = rows.decisions
        return decisions

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class LinearClassifier(ClassifierMixin, LinearModel):
    """Base of the classifiers."""

    C: float = 1.0
    class_weight: Any = None

    score = LinearModel.score

    def _options(self, dataset: Dataset) -> dict[str, Any]:
        """Return the factors of classes; balanced ones are by the rows' weights."""
        factors = self.class_weight
        if isinstance(dataset, InMemoryDataset) and factors is not None and not isinstance(factors, str):
            given = compute_class_weight(dict(factors), classes=self.classes_, y=self.classes_)
            return {"class_weight": dict(enumerate(given))}
        if factors == "balanced" and dataset.weighted and dataset.classes is not None:
            labels = dataset.class_labels() or []
            totals = np.zeros(len(labels))
            for label, weight in _rows_of(dataset, "label", "weight"):
                totals += np.bincount(np.searchsorted(dataset.classes, label), weight, totals.size)
            factors = dict(zip(labels, (totals.sum() / (totals.size * totals)).tolist(), strict=True))
        return {"class_weight": dict(factors) if isinstance(factors, Mapping) else factors}

    def _name(self, dataset: Dataset, model: Model) -> None:
        super()._name(dataset, model)
        self.classes_ = np.array(model.record.labels)

    def _in_memory(self, X: Any, y: Any, sample_weight: Any) -> Dataset:
        X, y, weight = self._checked_arrays(X, y, sample_weight)
        check_classification_targets(y)
        self.classes_, code = np.unique(y, return_inverse=True)
        if self.classes_.size < 2:
            raise ValueError(
                f"expected at least two classes, found one class only: {self.classes_[:1].tolist()[0]!r}"
            )
        return dataset_of(X, code, self.classes_.size, weight)

    def decision_function(self, X: Any) -> np.ndarray:
        """Compute the decision values of rows.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features), frame, Dataset or path
            After a fit to a dataset made from a table, a frame has the table's columns.

        Returns
        -------
        ndarray of float64, shape (rows,) for two classes, else (rows, classes)
            Positive, or largest, for the predicted class. For a dataset, in the order of its source.
        """
        decisions = self._decisions(X)
        if self.model_.is_binary:
            return decisions[:, 0]
        scores = self.model_.decoder.scores(decisions)
        return scores[:, 1] - scores[:, 0] if self.classes_.size == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Predict the labels of rows; `X` as in `decision_function`."""
        decisions = self._decisions(X)
        return self.classes_[self.model_.decoder.predicted_classes(decisions)]


def dataset_of(
    X: Any, label: np.ndarray, n_classes: int | None, weight: np.ndarray | None
) -> InMemoryDataset:
    """Make a dataset of checked arrays; rows of weight 0 are left out."""
    if weight is not None and not (positive := weight > 0).all():
        X = X[positive]
        label = label[positive]
        weight = weight[positive]
    return InMemoryDataset(matrix_rows(X), X.shape[1], label, n_classes, weight)


def _rows_of(dataset: Dataset, *columns: str) -> Iterator[list[np.ndarray]]:
    """Read columns of the rows, chunk by chunk."""
    return (dataset.read_rows(chunk, columns) for chunk in range(dataset.n_chunks))


def _opened(data: Dataset | str | os.PathLike[str]) -> Dataset:
    return data if isinstance(data, Dataset) else open_dataset(data)


def sum_of_weights(dataset: Dataset) -> float:
    if not dataset.weighted:
        return float(dataset.n_rows)
    return float(sum(weight.sum() for (weight,) in _rows_of(dataset, "weight")))


def _digest(options: Mapping[str, Any]) -> str:
    text = json.dumps(options, sort_keys=True, default=lambda other: repr(other))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
