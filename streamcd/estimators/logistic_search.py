"""Logistic regression whose C and share of L1 cross-validation chooses: `LogisticRegressionCV`."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from .linear import PENALTIES, LogisticRegression  # isort: skip  # which says what to do without scikit-learn

from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv

from ..core.errors import UsageError
from ..core.randomness import assign_folds, rows_in_folds
from ..core.setting import cost_name
from ..core.threads import Threads
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.in_memory import InMemoryDataset
from ..models.model import Model

_FOLDS = 5

_CRITERIA = {
    "accuracy": ("accuracy", 1),
    "balanced_accuracy": ("balanced_accuracy", 1),
    "neg_log_loss": ("log_loss", -1),
    "roc_auc": ("auc", 1),
}
"""Criteria of `streamcd.tune` by scikit-learn's names, with their signs."""


class _Held(NamedTuple):
    """Rows that a fold's models have not seen."""

    X: Any
    y: Any
    weight: np.ndarray | None


@dataclass(eq=False, repr=False)
class LogisticRegressionCV(LogisticRegression):
    """Logistic regression with C, and the share of L1, chosen by cross-validation; then trained on all rows with them.

    All folds and all values of C are trained together, in the same reads, as by `streamcd.tune`; shares of L1 one after
    another. The objective is that of `LogisticRegression`.

    Parameters
    ----------
    Cs : int or sequence of float
        Values of C; a number of them from 1e-4 to 1e4.
    l1_ratios : sequence of float, optional
        Shares of L1 to try, as `l1_ratio` of `LogisticRegression`; by default 0, or 1 with ``penalty="l1"``.
    cv : int, splitter of scikit-learn's or iterable, optional
        Folds, by default 5, of which every row is held out by one. A number is that of stratified folds of arrays. Of a
        dataset rows are assigned to this number of folds by a hash of `random_state` and row.
    penalty : {"l2", "l1", "elasticnet"}
        Spelling of scikit-learn before 1.8, where `l1_ratios` are for ``"elasticnet"`` alone.
    scoring : str or callable, optional
        scikit-learn's, by default accuracy. A whole dataset is scored in one read, by accuracy, balanced_accuracy,
        neg_log_loss or roc_auc; ``dataset[:]`` by any other, in a read for every model.
    refit : {True}
    use_legacy_attributes : bool
        Give ``C_``, ``l1_ratio_`` and ``scores_`` the shapes that they have in scikit-learn before 1.8.
    dual, fit_intercept, intercept_scaling, solver, multi_class, n_jobs
        As in `LogisticRegression`.
    method, tol, class_weight, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`; balanced class weights are those of all rows.

    Attributes
    ----------
    C_, l1_ratio_ : float
        Those of the best mean score; the first of equal ones.
    Cs_, l1_ratios_ : ndarray of float64
        What was tried.
    scores_ : ndarray of float64, shape (folds, n_l1_ratios, n_Cs)
    coef_, intercept_, classes_, n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `LogisticRegression`, of the training on all rows.

    Examples
    --------
    >>> import numpy as np
    >>> from streamcd import LogisticRegressionCV
    >>> X = np.random.default_rng(0).normal(size=(100, 3))
    >>> search = LogisticRegressionCV(Cs=[0.01, 1.0, 100.0], cv=3).fit(X, X[:, 0] > 0)
    >>> search.scores_.shape, search.C_
    ((3, 1, 3), 1.0)
    """

    _: KW_ONLY
    Cs: Any = 10
    l1_ratios: Any = None
    cv: Any = None
    scoring: Any = None
    refit: bool = True
    use_legacy_attributes: bool = False
    C: ClassVar[float] = 1.0  # type: ignore[misc]  # chosen, not given
    l1_ratio: ClassVar[float] = 0.0  # type: ignore[misc]

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Choose C and the share of L1, and fit the model to all rows; parameters and errors as of `LogisticRegression`."""
        self._refuse_all_but(
            refit=((True,), "the mean of folds' weights is the optimum of no problem"),
            penalty=(PENALTIES, "None is no penalty, which a search over C does not have"),
        )
        ratios, costs = self._given_ratios(), self._given_costs()
        for cost in costs:
            for ratio in ratios:
                self._single(cost, ratio)._check()
        dataset = self._dataset_of(X, y, sample_weight)
        search = self._tune if dataset is not None and dataset is dataset.whole else self._search
        rows = (X, y, sample_weight) if dataset is None else (dataset, None, None)
        found = [search(costs, ratio, *rows) for ratio in ratios]
        scores = np.stack([scores for scores, _ in found], axis=1)
        means = scores.mean(axis=0).T  # by C, then share, of which the first is taken
        cost, share = divmod(int(means.argmax()), len(ratios))
        best = found[share][1] or self._single(costs[cost], ratios[share]).fit(*rows)
        for name in self._fitted(best):
            setattr(self, name, getattr(best, name))
        self.Cs_, self.l1_ratios_, self.scores_ = np.array(costs), np.array(ratios), scores
        self.C_, self.l1_ratio_ = float(costs[cost]), float(ratios[share])
        if self.use_legacy_attributes:
            self._make_legacy()
        return self

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the score by `scoring`; a dataset has its own labels and weights."""
        if not _is_given(self.scoring):
            return super().score(X, y, sample_weight)
        weight = {} if sample_weight is None else {"sample_weight": sample_weight}
        if isinstance(X, str | os.PathLike):
            X = open_dataset(X)
        y = X.labels() if isinstance(X, Dataset) and y is None else y
        return float(check_scoring(self, scoring=self.scoring)(self, X, y, **weight))

    def _given_costs(self) -> list[float]:
        if isinstance(self.Cs, Integral) and int(self.Cs) >= 1:
            return np.logspace(-4, 4, int(self.Cs)).tolist()
        return self._listed("Cs")

    def _given_ratios(self) -> list[float]:
        named = {"l1": [1.0], "l2": [0.0]}.get(str(self.penalty))
        if named or not _is_given(self.l1_ratios):
            return named or [0.0]
        return self._listed("l1_ratios")

    def _listed(self, name: str) -> list[float]:
        """Return a parameter that is one or more numbers."""
        value = getattr(self, name)
        numbers = np.asarray(value) if isinstance(value, Sequence | np.ndarray) else np.zeros(0)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iuf" or not numbers.size:
            raise UsageError(f"LogisticRegressionCV: expected numbers as {name}, found {value!r}")
        return numbers.astype(np.float64).tolist()

    def _single(self, C: float, l1_ratio: float) -> LogisticRegression:
        """Make the estimator of one C and share of L1."""
        own = {name: value for name, value in self.get_params().items() if name in _OF_SINGLE}
        return LogisticRegression(**own, C=C, l1_ratio=l1_ratio)

    @staticmethod
    def _fitted(estimator: LogisticRegression) -> list[str]:
        """List the attributes that a fit has set."""
        return [name for name in vars(estimator) if name.endswith("_") and not name.startswith("_")]

    def _tune(
        self, costs: list[float], ratio: float, dataset: Dataset, *_: None
    ) -> tuple[np.ndarray, LogisticRegression | None]:
        """Search on a whole dataset, in a run directory; returns the scores, (folds, costs), and the estimator fitted."""
        criterion, sign = _CRITERIA.get(self.scoring if isinstance(self.scoring, str) else "", ("", 0))
        if _is_given(self.scoring) and not criterion:
            raise UsageError(
                f"LogisticRegressionCV: expected {' or '.join(map(repr, _CRITERIA))} as scoring of a whole dataset, found "
                f"{self.scoring!r}; give dataset[:], which is read once for every model and fold"
            )
        from ..training.result import TuneResult

        single = self._single(costs[0], ratio)
        asked = single._check() | single._of_dataset(dataset) | {"C": costs, "cv": self._fold_count()}
        asked |= {"scoring": criterion} if criterion else {}
        result, model = single._train_in_directory(dataset, asked)
        single._adopt_of_dataset(dataset, result, model)
        assert isinstance(result, TuneResult)
        scores = np.array([result.scores[cost_name(C)]["folds"] for C in costs]).T
        return (sign or 1) * scores, single

    def _search(
        self, costs: list[float], ratio: float, X: Any, y: Any, sample_weight: Any
    ) -> tuple[np.ndarray, None]:
        """Search on rows in memory, or chosen from a dataset; returns the scores, (folds, costs)."""
        single = self._single(costs[0], ratio)
        asked, held = single._check(), list[_Held]()
        if isinstance(X, Dataset):
            dataset, labels = X, X.labels()
            fold = assign_folds(np.arange(dataset.n_rows), asked["seed"], self._fold_count())
            single.classes_ = np.unique(labels)
            held = [_Held(dataset[rows], labels[rows], None) for rows in _rows_of_folds(fold)]
            asked |= single._of_dataset(dataset)
        else:
            dataset, of_arrays = single._in_memory(X, y, sample_weight)
            assert isinstance(dataset, InMemoryDataset)
            matrix, code = dataset.to_scipy()
            fold, weight = self._split(np.asarray(y)), None
            if sample_weight is not None:
                weight = np.asarray(sample_weight, np.float64)
                fold, weight = fold[weight > 0], weight[weight > 0]
            labels = single.classes_[code]
            held = [
                _Held(matrix[rows], labels[rows], None if weight is None else weight[rows])
                for rows in _rows_of_folds(fold)
            ]
            dataset.renumber(rows_in_folds(fold, asked["seed"], len(held)))
            asked |= single._of_dataset(dataset) | of_arrays
        asked |= {"C": costs, "folds": len(held), "search": True}
        threads = Threads(self._n_threads() or 1)
        models = single._train_in_memory(dataset, asked, threads).models
        scorer, judge = (
            check_scoring(single, scoring=self.scoring if _is_given(self.scoring) else None),
            copy.copy(single),
        )
        if hasattr(judge, "feature_names_in_"):  # which the rows do not have
            del judge.feature_names_in_

        def score(model: Model, rows: _Held) -> float:
            judge.model_ = model
            weight = {} if rows.weight is None else {"sample_weight": rows.weight}
            return float(scorer(judge, rows.X, rows.y, **weight))

        found = [score(model, held[number % len(held)]) for number, model in enumerate(models)]
        return np.array(found).reshape(len(costs), len(held)).T, None

    @property
    def partial_fit(self) -> Any:
        """Nothing: a search has no rows to go on with."""
        raise AttributeError("LogisticRegressionCV has no partial_fit; LogisticRegression has, for a C found")

    def _fold_count(self) -> int:
        """Return the number of folds of a dataset."""
        count = _FOLDS if self.cv is None else self.cv
        if not isinstance(count, Integral):
            raise UsageError(
                f"LogisticRegressionCV: expected a number of folds as cv of a dataset, found {count!r}"
            )
        return int(count)

    def _split(self, y: np.ndarray) -> np.ndarray:
        """Assign rows of arrays to folds."""
        fold, times = np.zeros(y.size, np.uint8), np.zeros(y.size, np.int64)
        splits = list(check_cv(self.cv, y, classifier=True).split(np.zeros(y.size), y))
        for number, (train, test) in enumerate(splits):
            fold[test] = number % 256
            times[test] += 1
            times[train] += np.isin(train, test)
        if not ((times == 1).all() and all(len(train) + len(test) == y.size for train, test in splits)):
            raise UsageError(
                "LogisticRegressionCV: expected folds of which every row is held out by one, as by StratifiedKFold, found "
                f"others by cv={self.cv!r}; GridSearchCV takes any"
            )
        return fold

    def _make_legacy(self) -> None:
        """Give attributes the shapes of scikit-learn before 1.8: by class, and without a single share of L1."""
        classes = self.classes_[1:] if self.classes_.size == 2 else self.classes_
        scores = self.scores_.transpose(0, 2, 1)
        scores = scores if _is_given(self.l1_ratios) else scores[:, :, 0]
        legacy: dict[str, Any] = {"scores_": dict.fromkeys(classes.tolist(), scores)}
        legacy |= {name: np.full(classes.size, getattr(self, name)) for name in ("C_", "l1_ratio_")}
        for name, value in legacy.items():
            setattr(self, name, value)


_OF_SINGLE = frozenset(LogisticRegression().get_params()) - {"C", "l1_ratio"}


def _is_given(value: Any) -> bool:
    """Tell whether a parameter is other than scikit-learn's defaults: None, and ``"warn"`` where they will change."""
    return value is not None and not (isinstance(value, str) and value == "warn")


def _rows_of_folds(fold: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(fold == number) for number in range(int(fold.max()) + 1)]
