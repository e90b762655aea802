"""Base of the estimators: fitting to arrays or a dataset, training, and prediction.

Training on arrays is in memory and never touches the disk; training on a dataset has a run directory. Both are by
`runs.train`; kernels are loaded at the first fit.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from ..core.errors import ConvergenceWarning, UsageError
from ..core.progress import COMPILING, Listener, Progress, compiling_for, warn_once
from ..core.threads import Threads, make_threads
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.exchange import in_source_order, source_labels
from ..dataset.in_memory import InMemoryDataset, refuse_mask, sound_matrix, sparse_rows
from ..models.model import Model

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, is_regressor
    from sklearn.base import RegressorMixin as RegressorMixin
    from sklearn.exceptions import ConvergenceWarning as TheirConvergenceWarning
    from sklearn.metrics import r2_score
    from sklearn.utils import check_random_state, compute_class_weight
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


_PASSES = 1000

_UNBOUNDED = 1 << 62  # bytes: all decisions are returned as one array, beside which blocks of rows are small


class NotConverged(ConvergenceWarning, TheirConvergenceWarning):
    """Warning of a training that ended before its stopping rule was met; both streamcd's and scikit-learn's."""


class _Silent(Listener):
    """Listener that drops everything but the compilation of kernels, which makes the first fit take seconds."""

    def progress(self, progress: Progress) -> None:
        """Pass on compilation: a line in the log."""
        if progress.phase == COMPILING:
            warn_once(compiling_for("fit"))

    def message(self, text: str) -> None:
        """Drop it."""

    def warning(self, text: str) -> None:
        """Drop it: the estimators issue warnings of their own."""


class Strengths(NamedTuple):
    """Factors of ``l1 ‖w‖₁ + l2/2 ‖w‖² + C Σ loss``."""

    l1: float
    l2: float
    C: float

    def options(self) -> dict[str, Any]:
        """Return penalty and C; without ``‖w‖₁`` all is divided by l2, since every method trains ``½‖w‖² + C Σ loss``."""
        if not self.l1:
            return {"C": self.C / self.l2}
        penalty: dict[str, Any] = (
            {"penalty": "l1"} if not self.l2 else {"penalty": "elasticnet", "l2": self.l2}
        )
        return {**penalty, "l1": self.l1, "C": self.C}


_SINGLE_VALUES = {
    "warm_start": (False, "streamcd.train(start_from=) begins from another run"),
    "positive": (False, "weights have no bounds here; streamcd.solve_box_qp has bounds"),
}
"""Parameters of scikit-learn's of which one value is offered, by name, with advice."""


@dataclass(eq=False, repr=False, kw_only=True)
class LinearModel(BaseEstimator):
    """Base of all estimators: fitting, training, weights and decisions, with the parameters of all.

    A subclass translates its own into options of `runs.train`.
    """

    tol: float = 1e-4
    random_state: Any = None
    max_iter: int | None = _PASSES
    verbose: int = 0
    method: str = "auto"
    memory: int | str = "1GB"
    workdir: Any = None

    def _problem(self) -> dict[str, Any]:
        """Return loss, bias, and other options that differ from their defaults; refuse unsupported parameters."""
        raise NotImplementedError

    def _strengths(self, weight: float) -> Strengths:
        """Return the factors of penalty and losses for rows of this weight in sum."""
        return Strengths(0.0, 1.0, 1.0)

    def _in_memory(self, X: Any, y: Any, sample_weight: Any) -> tuple[Dataset, dict[str, Any]]:
        """Make a dataset of arrays; with options that depend on them."""
        raise NotImplementedError

    def _refuse_all_but(self, **supported: tuple[tuple[Any, ...], str]) -> None:
        """Refuse a parameter that has none of the values supported; with advice."""
        for name, (values, advice) in supported.items():
            value = getattr(self, name)
            if not any(
                value is one or ((np.isscalar(value) or value == {}) and value == one) for one in values
            ):
                offered = " or ".join(map(repr, values))
                raise UsageError(
                    f"{type(self).__name__}: expected {name}={offered}, found {value!r}; {advice}"
                )

    def _number(
        self,
        name: str,
        *,
        above: float = -math.inf,
        least: float = -math.inf,
        most: float = math.inf,
        hint: str = "",
    ) -> float:
        """Return a parameter that is a finite number in a range; refused by its name if it is not."""
        value = getattr(self, name)
        is_number = isinstance(value, Real) and not isinstance(value, bool | np.bool)
        if is_number and above < value < math.inf and least <= value <= most:
            return float(value)
        ends = {f"> {above:g}": above, f">= {least:g}": least}
        bounds = [text for text, end in ends.items() if end > -math.inf]
        bounds += [f"<= {most:g}"] if most < math.inf else []
        expected = " ".join(["a number", " and ".join(bounds)]).strip()
        raise UsageError(f"{type(self).__name__}: expected {expected} as {name}, found {value!r}{hint}")

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
            If scikit-learn's validation rejects X or y, or there is a single class.
        DataError
            If an array is masked, or the indices of a sparse matrix are damaged.
        UsageError
            If a parameter's value is not supported, or `memory` is too small.
        """
        asked = self._check()  # before anything is read
        dataset = self._dataset_of(X, y, sample_weight)
        if dataset is not None:
            return self._fit_dataset(dataset, asked)
        dataset, of_arrays = self._in_memory(X, y, sample_weight)
        asked = asked | self._of_dataset(dataset) | of_arrays
        training = self._train_in_memory(dataset, asked, Threads(self._n_threads() or 1))
        return self._adopt(training.result, *training.models)

    def _check(self) -> dict[str, Any]:
        """Refuse parameters that will not do; returns the options that do not depend on a dataset."""
        return self._problem() | self._shared()

    def _dataset_of(self, X: Any, y: Any, sample_weight: Any) -> Dataset | None:
        """Return the dataset to fit to, None for arrays; refused with labels or weights that are not its own."""
        if not isinstance(X, str | os.PathLike | Dataset):
            return None
        dataset = X if isinstance(X, Dataset) else open_dataset(X)
        if sample_weight is not None or (y is not None and not np.array_equal(y, dataset.labels())):
            raise UsageError(
                "a dataset brings its labels and weights: expected y=None or its own labels(), and no sample_weight; "
                "convert the data again with others"
            )
        return dataset

    def _checked_arrays(
        self, X: Any, y: Any, sample_weight: Any, **checks: Any
    ) -> tuple[Any, Any, np.ndarray | None]:
        """Check arrays as scikit-learn does, its `validate_data` by `checks`; `y` may be None where none is needed."""
        refuse_mask(y, "y")
        refuse_mask(sample_weight, "sample_weight")
        numbers, X = (np.float64, np.float32), sound_matrix(X)
        checked = validate_data(self, X, y, accept_sparse="csr", dtype=numbers, **checks)
        X, y = checked if isinstance(checked, tuple) else (checked, None)
        if sample_weight is None:
            return X, y, None
        return X, y, check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)

    def _fit_dataset(self, dataset: Dataset, asked: dict[str, Any]) -> Self:
        asked = asked | self._of_dataset(dataset)
        self._make_columns(dataset, asked)
        result, model = self._train_in_directory(dataset, asked)
        self.n_features_in_ = dataset.n_features
        self._name_features(model)
        self._name_labels(model)
        return self._adopt(result, model)

    def _of_dataset(self, dataset: Dataset) -> dict[str, Any]:
        """Return the options that depend on a dataset: the penalty and C, for the sum of its rows' weights."""
        return self._strengths(_sum_of_weights(dataset)).options()

    def _name_labels(self, model: Model) -> None:
        """Take over the classes of a dataset, if it has classes."""

    def _name_features(self, model: Model) -> None:
        """Take over the names of the features of a table; those that hashes and indices number have none."""
        self.__dict__.pop("feature_names_in_", None)  # from an earlier fit
        encoding = model.encoding
        if encoding is not None and encoding.sparse is None and not encoding.bits:
            self.feature_names_in_ = np.array(
                list(encoding.feature_names(np.arange(model.n_features))), object
            )

    def _make_columns(self, dataset: Dataset, asked: dict[str, Any]) -> None:
        """Make the column layout of a dataset on disk that has none, where the method reads it."""
        from ..conversion.transpose import make_columns
        from ..dataset.column_layout import has_columns
        from ..runs.choices import takes_columns
        from ..runs.options import TrainOptions

        if takes_columns(TrainOptions(**asked, memory=self.memory), dataset) and not has_columns(dataset):
            make_columns(dataset, memory=self.memory, listener=self._listener())

    def _train_in_memory(
        self,
        dataset: Dataset,
        asked: dict[str, Any],
        threads: Threads,
    ) -> Any:
        """Return a `runs.carry_out.MemoryTraining`."""
        from ..runs.carry_out import train_in_memory
        from ..runs.choices import settle
        from ..runs.options import TrainOptions
        from ..training.loop import Session

        listener = self._listener()
        asked = asked | {"tol": self.tol, "max_passes": self._most_passes(), "memory": self.memory}
        options = TrainOptions(**asked, checkpoint_every=float("inf"), in_memory=True)
        with closing(listener), self._own_words():
            options = settle(options, dataset, listener)
            return train_in_memory(dataset, options, Session(listener, None, threads=threads))

    def _train_in_directory(self, dataset: Dataset, asked: dict[str, Any]) -> tuple[Result, Model]:
        """Train in a directory named by a digest of data and options; resume or reuse the run of an earlier fit there."""
        from ..runs.train import resume, train

        rule: dict[str, Any] = {
            "tol": self.tol,
            "max_passes": self._most_passes(),
            "listener": self._listener(),
        }
        temporary = tempfile.TemporaryDirectory(prefix="streamcd-")
        with (
            temporary if self.workdir is None else nullcontext(self.workdir) as folder,
            warnings.catch_warnings(),
            self._own_words(),
        ):
            warnings.simplefilter("ignore", ConvergenceWarning)  # `_adopt` warns
            run = Path(folder) / f"run-{_digest({**asked, 'fingerprint': dataset.fingerprint})}"
            if (run / "config.json").exists():
                result = resume(run, **rule)
            else:
                Path(folder).mkdir(parents=True, exist_ok=True)
                threads = self._n_threads()
                result = train(dataset, run, memory=self.memory, threads=threads, **rule, **asked)
            return result, result.model

    @contextmanager
    def _own_words(self) -> Iterator[None]:
        """Name parameters of the estimator where a refusal names options of the command line."""
        words = {"--memory": "memory", "--method dual": 'method="dual"'}
        try:
            yield
        except UsageError as error:
            text = str(error)
            for option, parameter in words.items():
                text = text.replace(option, parameter)
            raise UsageError(text) from None

    def _shared(self) -> dict[str, Any]:
        """Return the options that are the same for all estimators, after a check of parameters that several have."""
        self._refuse_all_but(
            **{
                name: ((value,), advice)
                for name, (value, advice) in _SINGLE_VALUES.items()
                if hasattr(self, name)
            }
        )
        self._number("tol", least=0.0)
        self._strengths(1.0)
        if not isinstance(self._most_passes(), Integral) or self._most_passes() < 1:
            raise UsageError(
                f"{type(self).__name__}: expected a number of passes from 1 on as max_iter, found {self.max_iter!r}"
            )
        if not isinstance(n_jobs := getattr(self, "n_jobs", None), Integral | None):
            raise UsageError(
                f"{type(self).__name__}: expected a number of threads as n_jobs, found {n_jobs!r}"
            )
        seed = 0
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        return {"seed": seed, "acceleration": "auto", "method": self.method}

    def _most_passes(self) -> int:
        """Return `max_iter`; the default in place of scikit-learn's None and -1, its algorithms' own numbers."""
        return _PASSES if self.max_iter is None or self.max_iter == -1 else self.max_iter

    def _n_threads(self) -> int | None:
        """Return the number of threads asked for (-1: all processors, -2: all but one); None by default."""
        n_jobs = getattr(self, "n_jobs", None)
        return n_jobs if n_jobs is None or n_jobs >= 0 else max(make_threads(None).count + 1 + n_jobs, 1)

    def _listener(self) -> Listener:
        return Listener() if self.verbose else _Silent()

    def _adopt(self, result: Result, model: Model) -> Self:
        """Set the fitted attributes, and warn if training has not converged."""
        self.model_, self.dual_gap_ = model, result.gap
        self.n_iter_ = self._count_passes(result)
        if not result.converged:
            cost = "a smaller C or " if "C" in self.get_params() else ""
            warnings.warn(
                f"not converged after max_iter={self._most_passes()}: the relative duality gap is {result.gap:.2g}, "
                f"tol={self.tol:g}; scale the features (sklearn.preprocessing.MaxAbsScaler, say), or take {cost}a "
                "larger max_iter",
                NotConverged,
                stacklevel=4,
            )
        return self

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
        if isinstance(X, str | os.PathLike):
            X = open_dataset(X)
        if isinstance(X, Dataset):
            label, weight = in_source_order(X, "label", "weight")
            y = source_labels(X, label) if y is None else y
            sample_weight = weight if sample_weight is None else sample_weight
        if is_regressor(self):
            return float(r2_score(y, self.predict(X), sample_weight=sample_weight))
        return float(np.average(np.ravel(y) == self.predict(X), weights=sample_weight))

    def _decisions(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        if isinstance(X, str | os.PathLike):
            X = open_dataset(X)
        if isinstance(X, Dataset):
            return self._dataset_decisions(X)
        by_columns = self.model_.encoding is not None and hasattr(X, "__arrow_c_stream__")
        if not by_columns:
            numbers = (np.float64, np.float32)
            X = validate_data(self, sound_matrix(X), accept_sparse="csr", dtype=numbers, reset=False)
        return self.model_.matrix_decisions(X)

    def _dataset_decisions(self, dataset: Dataset) -> np.ndarray:
        """Compute the decisions on a dataset's rows, in the order of the source."""
        from ..prediction.reading_plan import Means
        from ..prediction.scored_rows import Scoring

        threads = make_threads(self._n_threads()).count
        scoring = Scoring(dataset, self.model_, Means(_UNBOUNDED, self._listener(), threads=threads))
        decisions = np.empty((dataset.n_rows, self.model_.n_vectors))
        for rows in scoring.blocks("predict"):
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
    fit_intercept: bool = True
    class_weight: Any = None

    score = LinearModel.score

    def _strengths(self, weight: float) -> Strengths:
        return Strengths(0.0, 1.0, self._number("C", above=0.0))

    def _of_dataset(self, dataset: Dataset) -> dict[str, Any]:
        factors = self.class_weight
        if (
            isinstance(factors, str)
            and factors == "balanced"
            and dataset.weighted
            and dataset.classes is not None
        ):
            labels = dataset.info()["classes"]
            totals = np.zeros(len(labels))
            for label, weight in _rows_of(dataset, "label", "weight"):
                totals += np.bincount(np.searchsorted(dataset.classes, label), weight, totals.size)
            factors = dict(zip(labels, (totals.sum() / (totals.size * totals)).tolist(), strict=True))
        return super()._of_dataset(dataset) | {
            "class_weight": dict(factors) if isinstance(factors, Mapping) else factors
        }

    def _name_labels(self, model: Model) -> None:
        self.classes_ = np.array(model.label_numbers())

    def _in_memory(self, X: Any, y: Any, sample_weight: Any) -> tuple[Dataset, dict[str, Any]]:
        X, y, weight = self._checked_arrays(X, y, sample_weight)
        check_classification_targets(y)
        self.classes_, code = np.unique(y, return_inverse=True)
        if self.classes_.size < 2:
            raise ValueError(
                f"expected at least two classes, found one class only: {self.classes_[:1].tolist()[0]!r}"
            )
        return dataset_of(X, code, self.classes_.size, weight), self._class_factors(y)

    def _class_factors(self, y: Any) -> dict[str, Any]:
        """Return the factors of classes as an option, but for balanced ones."""
        if self.class_weight is None or self.class_weight == "balanced":
            return {}
        factors = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        return {"class_weight": dict(enumerate(factors))}

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
        scores = self.model_.scores(decisions)
        return scores[:, 1] - scores[:, 0] if self.classes_.size == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Predict the labels of rows; `X` as in `decision_function`."""
        decisions = self._decisions(X)
        return self.classes_[self.model_.places(decisions)]


def dataset_of(
    X: Any, label: np.ndarray, n_classes: int | None, weight: np.ndarray | None
) -> InMemoryDataset:
    """Make a dataset of checked arrays; rows of weight 0 are left out."""
    if weight is not None and not (kept := weight > 0).all():
        X, label, weight = X[kept], label[kept], weight[kept]
    return InMemoryDataset(sparse_rows(X), X.shape[1], label, n_classes, weight)


def _rows_of(dataset: Dataset, *columns: str) -> Iterator[list[np.ndarray]]:
    """Read columns of the rows, chunk by chunk."""
    return (dataset.read_rows(chunk, columns) for chunk in range(dataset.n_chunks))


def _sum_of_weights(dataset: Dataset) -> float:
    if not dataset.weighted:
        return float(dataset.n_rows)
    return float(sum(weight.sum() for (weight,) in _rows_of(dataset, "weight")))


def _digest(options: Mapping[str, Any]) -> str:
    text = json.dumps(options, sort_keys=True, default=lambda other: repr(other))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
