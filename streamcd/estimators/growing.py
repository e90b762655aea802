"""`partial_fit` of the estimators: rows that come later join those before, and every call ends at the optimum for all."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from .base import LinearClassifier, LinearModel  # isort: skip  # which says what to do without scikit-learn

from sklearn.utils.multiclass import check_classification_targets

from ..core.threads import Threads
from ..dataset.in_memory import InMemoryDataset, joined_rows, sparse_rows


class _Grown(NamedTuple):
    """Rows so far, and the training on them."""

    rows: tuple[np.ndarray, np.ndarray, np.ndarray]  # as of `InMemoryDataset`
    label: np.ndarray
    weight: np.ndarray
    training: Any  # `runs.carry_out.MemoryTraining`


class GrowingModel(LinearModel):
    """Base of the estimators to which rows can be added."""

    _grown: _Grown

    def _partial_arrays(self, X: Any, y: Any, sample_weight: Any, **checks: Any) -> tuple[Any, Any, Any]:
        """Check arrays as scikit-learn does; those of the first call say which features there are."""
        return self._checked_arrays(X, y, sample_weight, reset=not hasattr(self, "_grown"), **checks)

    def _go_on(
        self, X: Any, label: np.ndarray, weight: np.ndarray | None, n_classes: int | None, **of_arrays: Any
    ) -> Self:
        """Train on all rows so far, from the solution for those before."""
        asked, before = self._check(), getattr(self, "_grown", None)
        weight = np.ones(label.size) if weight is None else weight
        kept = weight > 0.0
        rows, label, weight = sparse_rows(X if kept.all() else X[kept]), label[kept], weight[kept]
        if before is not None:
            rows = joined_rows(before.rows, rows)
            label, weight = np.append(before.label, label), np.append(before.weight, weight)
        own = None if (weight == 1.0).all() else weight
        dataset = InMemoryDataset(rows, X.shape[1], label, n_classes, own)
        asked |= self._of_dataset(dataset) | of_arrays
        self._refuse_empty_classes(dataset, asked)
        training = self._train_in_memory(
            dataset, asked, Threads(self._n_threads() or 1), before and before.training
        )
        self._grown = _Grown(rows, label, weight, training)
        return self._adopt(training.result, *training.models)

    def _refuse_empty_classes(self, dataset: InMemoryDataset, asked: dict[str, Any]) -> None:
        """Refuse classes without rows where there is no optimum without them; there is always one without classes."""


class GrowingClassifier(LinearClassifier, GrowingModel):
    """Base of the classifiers to which rows can be added."""

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to those of the calls before, and go on to the optimum for all of them.

        Unlike scikit-learn's `SGDClassifier` it keeps all rows, in memory (and in pickles), and is exact: every call ends
        within `tol` of what `fit` finds for the rows so far. It starts from the present solution, so that it takes fewer
        passes. Rows of a `fit` are not kept: `partial_fit` after it begins anew.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features), or frame
        y : array, shape (rows,)
        classes : array, shape (n_classes,)
            All labels there will ever be; has to be given in the first call, but after a `fit`, whose classes stay, and may
            be left out in later ones.
        sample_weight : array, shape (rows,), optional
            As in `fit`.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            As by `fit`; if `classes` are missing in the first call, differ in a later one, or lack a label of y; or if a
            class has no row yet and the intercept is not penalised, so that there is no optimum.
        """
        first = not hasattr(self, "_grown")
        X, y, weight = self._partial_arrays(X, y, sample_weight)
        check_classification_targets(y)
        known = self._known_classes(classes, first=first)
        code = np.minimum(np.searchsorted(known, y), known.size - 1)
        if (unknown := known[code] != y).any():
            raise ValueError(
                f"{type(self).__name__}: expected labels among classes, {_listed(known)}, found "
                f"{_listed(np.unique(y[unknown]))}"
            )
        if first:
            self.classes_ = known
        return self._go_on(X, code, weight, known.size, **self._class_factors(y))

    def _known_classes(self, classes: Any, *, first: bool) -> np.ndarray:
        """Return the classes of all calls."""
        if classes is None:
            if not hasattr(self, "classes_"):
                raise ValueError(
                    f"{type(self).__name__}: classes must be passed on the first call to partial_fit"
                )
            return self.classes_
        known = np.unique(classes)
        if first and known.size < 2:
            raise ValueError(f"expected at least two classes, found one class only: {_listed(known)}")
        if not first and not np.array_equal(known, self.classes_):
            raise ValueError(
                f"{type(self).__name__}: classes is not the same as on the first call to partial_fit: was "
                f"{_listed(self.classes_)}, found {_listed(known)}"
            )
        return known

    def _refuse_empty_classes(self, dataset: InMemoryDataset, asked: dict[str, Any]) -> None:
        assert dataset.class_counts is not None
        empty = self.classes_[dataset.class_counts == 0]
        if asked.get("unpenalized_bias") and empty.size:
            raise ValueError(
                f"{type(self).__name__}: expected a row of every class, found none of {_listed(empty)} so far; without a "
                "penalty on the intercept there is no optimum: begin with rows of all classes, or give fit_intercept=False"
            )


def _listed(labels: np.ndarray) -> str:
    return ", ".join(map(repr, labels[:10].tolist())) + (", …" if labels.size > 10 else "")
