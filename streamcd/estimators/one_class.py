"""Outlier detection with scikit-learn's names: `OneClassSVM`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..dataset.dataset import Dataset
from ..models.model import Model
from .base import OutlierMixin, dataset_of
from .growing import GrowingModel

if TYPE_CHECKING:
    from ..training.result import Result


@dataclass(eq=False, repr=False, kw_only=True)
class OneClassSVM(OutlierMixin, GrowingModel):
    """Linear one-class support vector machine: rows with ``w·x <= rho`` are outliers; labels are ignored.

    ``½‖w‖² - rho nu Σ s + Σ s max(0, rho - w·x)``, s being the rows' weights: LIBLINEAR's, and scikit-learn's with
    ``kernel="linear"``.

    Parameters
    ----------
    kernel : {"linear"}
    nu : float
        Above 0 and at most 1: the share of the rows, by weight, that may be outside.
    degree, gamma, coef0, shrinking, cache_size
        scikit-learn's, of other kernels and of its algorithm; accepted without effect.
    method : {"auto", "dual"}
        As in `streamcd.train`.
    tol, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    coef_ : ndarray of float64, shape (1, n_features)
    intercept_ : ndarray of float64, shape (1,)
        ``-rho``.
    offset_ : ndarray of float64, shape (1,)
        rho: `decision_function` is `score_samples` less it.
    n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `LinearSVC`.

    Examples
    --------
    >>> from streamcd import OneClassSVM
    >>> svm = OneClassSVM(nu=0.2).fit([[1.0, 2.0], [2.0, 1.0], [1.5, 1.5], [2.0, 2.0], [0.1, 0.1]])
    >>> svm.predict([[3.0, 3.0], [0.0, 0.1]]).tolist()
    [1, -1]
    """

    kernel: str = "linear"
    degree: int = 3
    gamma: Any = "scale"
    coef0: float = 0.0
    nu: float = 0.5
    shrinking: bool = True
    cache_size: float = 200

    def _problem(self) -> dict[str, Any]:
        self._refuse_all_but(kernel=(("linear",), "sklearn.kernel_approximation makes features of others"))
        return {"loss": "one_class", "nu": self._number("nu", above=0.0, most=1.0)}

    def _of_dataset(self, dataset: Dataset) -> dict[str, Any]:
        return {}  # it has no C

    def _adopt(self, result: Result, model: Model) -> Self:
        if result.stop_reason == "zero":
            from ..runs.early_warnings import CENTRED  # rarely

            warnings.warn(f"all weights are 0: {CENTRED}", stacklevel=5)
        super()._adopt(result, model)
        return self

    def _in_memory(self, X: Any, y: Any, sample_weight: Any) -> tuple[Dataset, dict[str, Any]]:
        X, _, weight = self._checked_arrays(X, None, sample_weight)
        return dataset_of(X, np.zeros(X.shape[0]), None, weight), {}

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to those of the calls before, and go on to the optimum for all of them.

        Unlike that of scikit-learn's SGD estimator it keeps all rows, in memory (and in pickles), and is exact: every call
        ends within `tol` of what `fit` finds for the rows so far. Rows of a `fit` are not kept: `partial_fit` after it
        begins anew.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features), or frame
        y
            Ignored.
        sample_weight : array, shape (rows,), optional
            As in `fit`.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            As by `fit`.
        """
        X, _, weight = self._partial_arrays(X, None, sample_weight)
        return self._go_on(X, np.zeros(X.shape[0]), weight, None)

    @property
    def offset_(self) -> np.ndarray:
        """The threshold rho, shape (1,)."""
        return -self.intercept_

    def decision_function(self, X: Any) -> np.ndarray:
        """Compute ``w·x - rho``, negative for outliers; `X` as in `fit`, shape (rows,)."""
        return self._decisions(X)[:, 0]

    def score_samples(self, X: Any) -> np.ndarray:
        """Compute ``w·x``; `X` as in `fit`, shape (rows,)."""
        return self.decision_function(X) + self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Predict 1 for inliers and -1 for outliers; `X` as in `fit`, shape (rows,)."""
        decisions = self._decisions(X)
        return self.model_.labels(decisions).astype(np.int64)
