"""Base of the estimators: fitting to arrays or a dataset, training, and prediction.

Training on arrays is in memory and never touches the disk; training on a dataset has a run directory. Both are by
`runs.train`; kernels are loaded at the first fit.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..core.errors import ConvergenceWarning, UsageError
from ..core.progress import COMPILING, COMPILING_ONCE, Listener, Progress, default_listener, warn_once
from ..core.threads import Threads, make_threads
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.exchange import in_source_order, source_labels
from ..dataset.in_memory import InMemoryDataset, refuse_mask, sound_matrix, sparse_rows
from ..models.model import Model

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.base import RegressorMixin as RegressorMixin
    from sklearn.exceptions import ConvergenceWarning as TheirConvergenceWarning
    from sklearn.utils import check_random_state, compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight as check_sample_weight
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as missing:
    raise ImportError(
        "streamcd.LinearSVC, LogisticRegression and TwinSVC need scikit-learn 1.6 or later "
        f"(pip install 'streamcd[sklearn]'): {missing}"
    ) from None

if TYPE_CHECKING:
    from ..training.result import Result


_UNBOUNDED = 1 << 62  # bytes: all decisions are returned as one array, beside which blocks of rows are small


class NotConverged(ConvergenceWarning, TheirConvergenceWarning):
    """Warning of a training that ended before its stopping rule was met; both streamcd's and scikit-learn's."""


class _Silent(Listener):
    """Listener that drops everything but the compilation of kernels, which makes the first fit take seconds."""

    def __init__(self) -> None:
        self._bar = default_listener()

    def progress(self, progress: Progress) -> None:
        """Pass on compilation: a line in the log, and a bar in a notebook."""
        if progress.phase == COMPILING:
            warn_once(COMPILING_ONCE)
            self._bar.progress(progress)

    def message(self, text: str) -> None:
        """Drop it."""

    def warning(self, text: str) -> None:
        """Drop it: the estimators issue warnings of their own."""

    def close(self) -> None:
        """End the bar."""
        self._bar.close()


class LinearModel(BaseEstimator):
    """Base of all estimators: fitting, training, weights and decisions; the parameters are fields of subclasses."""

    tol: float
    fit_intercept: bool
    random_state: Any
    max_iter: int
    verbose: int
    method: str
    memory: int | str
    workdir: Any

    def _problem(self) -> dict[str, Any]:
        """Return loss, method, bias, and other options that differ from their defaults; refuse unsupported parameters."""
        raise NotImplementedError

    def _fit_arrays(self, X: Any, y: Any, sample_weight: Any, asked: dict[str, Any]) -> Self:
        """Fit the model to rows in memory."""
        raise NotImplementedError

    def _refuse_all_but(self, **supported: tuple[tuple[Any, ...], str]) -> None:
        """Refuse a parameter that has none of the values supported; with advice."""
        for name, (values, advice) in supported.items():
            value = getattr(self, name)
            if not any(value is one or value == one for one in values):
                offered = " or ".join(map(repr, values))
                raise UsageError(
                    f"{type(self).__name__}: expected {name}={offered}, found {value!r}; {advice}"
                )

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model to rows in memory, or to a dataset.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features), frame, Dataset or path
            float32 is kept, other numbers become float64. A dataset, rows chosen from one, or the path of one, brings its
            labels and weights.
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
        asked = self._problem() | self._shared()  # refuses before anything is read
        if isinstance(X, str | os.PathLike | Dataset):
            dataset = X if isinstance(X, Dataset) else open_dataset(X)
            if sample_weight is not None or (y is not None and not np.array_equal(y, dataset.labels())):
                raise UsageError(
                    "a dataset brings its labels and weights: expected y=None or its own labels(), and no sample_weight; "
                    "convert the data again with others"
                )
            return self._fit_dataset(dataset, asked)
        return self._fit_arrays(X, y, sample_weight, asked)

    def _fit_dataset(self, dataset: Dataset, asked: dict[str, Any]) -> Self:
        asked = asked | self._of_dataset(dataset)
        self.n_features_in_ = dataset.n_features
        if asked["method"] in ("primal", "online"):
            self._make_columns(dataset.whole)
        if dataset is not dataset.whole:
            # a run on disk could not be resumed without these rows
            result, model = self._train_in_memory(dataset, asked, make_threads(self._n_threads()))
        else:
            temporary = tempfile.TemporaryDirectory(prefix="streamcd-")
            with temporary if self.workdir is None else nullcontext(self.workdir) as folder:
                result, model = self._train_in_directory(dataset, Path(folder), asked)
        self._name_features(model)
        self._name_labels(model)
        return self._adopt(result, model)

    def _of_dataset(self, dataset: Dataset) -> dict[str, Any]:
        """Return the options that depend on a dataset."""
        return {}

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

    def _make_columns(self, dataset: Dataset) -> None:
        """Make the column layout of a dataset on disk that has none."""
        from ..conversion.transpose import make_columns
        from ..dataset.column_layout import has_columns

        if not has_columns(dataset):
            make_columns(dataset, memory=self.memory, listener=self._listener())

    def _train_in_memory(
        self, dataset: Dataset, asked: dict[str, Any], threads: Threads
    ) -> tuple[Result, Model]:
        from ..runs.carry_out import train_in_memory
        from ..runs.choices import choose_acceleration
        from ..runs.options import TrainOptions
        from ..training.loop import Session

        listener = self._listener()
        asked = asked | {"tol": self.tol, "max_passes": self.max_iter, "memory": self.memory}
        options = TrainOptions(**asked, checkpoint_every=float("inf"), in_memory=True)
        options = choose_acceleration(options, listener)
        with closing(listener):
            result, (model,) = train_in_memory(dataset, options, Session(listener, None, threads=threads))
        return result, model

    def _train_in_directory(
        self, dataset: Dataset, workdir: Path, asked: dict[str, Any]
    ) -> tuple[Result, Model]:
        """Train in a directory named by a digest of data and options; resume or reuse the run of an earlier fit there."""
        from ..runs.train import resume, train

        run = workdir / f"run-{_digest({**asked, 'fingerprint': dataset.fingerprint})}"
        rule: dict[str, Any] = {"tol": self.tol, "max_passes": self.max_iter}
        rule |= {"threads": self._n_threads(), "listener": self._listener()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # `_adopt` warns
            if (run / "config.json").exists():
                result = resume(run, **rule)
            else:
                workdir.mkdir(parents=True, exist_ok=True)
                result = train(dataset, run, memory=self.memory, **rule, **asked)
        return result, result.model

    def _shared(self) -> dict[str, Any]:
        """Return the options that are the same for all estimators."""
        seed = 0
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        return {"seed": seed, "acceleration": "auto"}

    def _n_threads(self) -> int | None:
        """Return the number of threads asked for (-1: all processors, -2: all but one); None by default."""
        n_jobs = getattr(self, "n_jobs", None)
        return n_jobs if n_jobs is None or n_jobs >= 0 else max(make_threads(None).count + 1 + n_jobs, 1)

    def _listener(self) -> Listener:
        return default_listener() if self.verbose else _Silent()

    def _adopt(self, result: Result, model: Model) -> Self:
        """Set the fitted attributes, and warn if training has not converged."""
        self.model_, self.dual_gap_ = model, result.gap
        self.n_iter_ = self._count_passes(result)
        if not result.converged:
            warnings.warn(
                f"not converged after max_iter={self.max_iter} passes: the relative duality gap is {result.gap:.2g}, "
                f"tol={self.tol:g}; scale the features (sklearn.preprocessing.MaxAbsScaler, say), or take a smaller C or a "
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
    """Base of the classifiers, with the parameters of all; a subclass translates its own into options of `runs.train`."""

    C: float = 1.0
    tol: float = 1e-4
    fit_intercept: bool = True
    class_weight: Any = None
    random_state: Any = None
    max_iter: int = 1000
    verbose: int = 0
    method: str = "auto"
    memory: int | str = "1GB"
    workdir: Any = None

    def _shared(self) -> dict[str, Any]:
        return super()._shared() | {"C": float(self.C)}

    def _of_dataset(self, dataset: Dataset) -> dict[str, Any]:
        factors = self.class_weight
        return {"class_weight": dict(factors) if isinstance(factors, Mapping) else factors}

    def _name_labels(self, model: Model) -> None:
        self.classes_ = np.array(model.label_numbers())

    def _fit_arrays(self, X: Any, y: Any, sample_weight: Any, asked: dict[str, Any]) -> Self:
        if isinstance(X, list) and X and isinstance(X[0], str) and y is None:
            raise UsageError(
                "expected a matrix or a dataset, found single letters: scikit-learn cuts the text of a path into folds; "
                "give streamcd.open(path), and its labels() as y"
            )
        refuse_mask(y, "y")
        refuse_mask(sample_weight, "sample_weight")
        numbers, X = (np.float64, np.float32), sound_matrix(X)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=numbers)
        check_classification_targets(y)
        self.classes_, code = np.unique(y, return_inverse=True)
        if self.classes_.size < 2:
            raise ValueError(
                f"expected at least two classes, found one class only: {self.classes_[:1].tolist()[0]!r}"
            )
        factors = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        weight = None
        if sample_weight is not None:
            weight = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            kept = weight > 0
            if not kept.all():
                X, code, weight = X[kept], code[kept], weight[kept]
        dataset = InMemoryDataset(sparse_rows(X), X.shape[1], code, self.classes_.size, weight)
        class_weight = dict(enumerate(factors)) if self.class_weight is not None else None
        threads = Threads(self._n_threads() or 1)
        asked = asked | self._of_dataset(dataset) | {"class_weight": class_weight}
        return self._adopt(*self._train_in_memory(dataset, asked, threads))

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

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy; a dataset has its own labels and weights."""
        refuse_mask(y, "y")
        refuse_mask(sample_weight, "sample_weight")
        if not isinstance(X, str | os.PathLike | Dataset):
            return float(super().score(X, y, sample_weight))
        dataset = X if isinstance(X, Dataset) else open_dataset(X)
        label, weight = in_source_order(dataset, "label", "weight")
        hits = self.predict(dataset) == (source_labels(dataset, label) if y is None else np.asarray(y))
        return float(np.average(hits, weights=weight if sample_weight is None else sample_weight))


def _digest(options: Mapping[str, Any]) -> str:
    text = json.dumps(options, sort_keys=True, default=lambda other: repr(other))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
