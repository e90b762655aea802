"""Linear regression with scikit-learn's names: `Ridge`, `HuberRegressor`, `LinearSVR` and `QuantileRegressor`."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np

from ..core.errors import UsageError
from ..core.threads import Threads
from ..dataset.dataset import Dataset, open_dataset
from ..dataset.exchange import in_source_order
from ..dataset.in_memory import InMemoryDataset, refuse_mask, sound_matrix, sparse_rows
from .base import LinearModel, RegressorMixin, check_sample_weight, validate_data

_NARROW = 500
"""Features up to which Newton's method, whose matrix has a row for each, trains the smooth losses by default."""


@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegressor(RegressorMixin, LinearModel):
    """Base of the regressors, with the parameters of all; a subclass translates its own into options of `runs.train`."""

    tol: float = 1e-4
    fit_intercept: bool = True
    random_state: Any = None
    max_iter: int = 1000
    verbose: int = 0
    method: str = "auto"
    memory: int | str = "1GB"
    workdir: Any = None

    def _cost(self, weight: float) -> float:
        """Return C for rows of this weight in sum."""
        raise NotImplementedError

    def _fit_arrays(self, X: Any, y: Any, sample_weight: Any, asked: dict[str, Any]) -> Self:
        refuse_mask(y, "y")
        refuse_mask(sample_weight, "sample_weight")
        numbers, X = (np.float64, np.float32), sound_matrix(X)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=numbers, y_numeric=True)
        y, weight = y.astype(np.float64), None
        if sample_weight is not None:
            weight = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            kept = weight > 0
            if not kept.all():
                X, y, weight = X[kept], y[kept], weight[kept]
        dataset = InMemoryDataset(sparse_rows(X), X.shape[1], y, None, weight)
        asked = asked | self._of_dataset(dataset)
        return self._adopt(*self._train_in_memory(dataset, asked, Threads(1)))

    def _of_dataset(self, dataset: Dataset) -> dict[str, Any]:
        n_rows = float(dataset.n_rows)
        if dataset.weighted:
            (weight,) = in_source_order(dataset, "weight")
            n_rows = float(weight.sum())
        found: dict[str, Any] = {"C": self._cost(n_rows)}
        if self.method == "auto":
            smooth, narrow = self._problem()["loss"] in _SMOOTH, dataset.n_features <= _NARROW
            found["method"] = "newton" if smooth and narrow else "dual"
        return found

    def _bias(self) -> dict[str, Any]:
        """Return the options of an intercept that is not penalised, if there is one."""
        free = bool(self.fit_intercept)
        return {"method": self.method, "bias": 1.0 if free else -1.0, "unpenalized_bias": free}

    @property
    def coef_(self) -> np.ndarray:
        """Weights, shape (n_features,)."""
        return self.model_.source_weights[:, 0]

    @property
    def intercept_(self) -> float:
        """Intercept; 0 without one."""
        return float(self.model_.intercept[0])

    def predict(self, X: Any) -> np.ndarray:
        """Predict the targets of rows.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, features), frame, Dataset or path
            After a fit to a dataset made from a table, a frame has the table's columns.

        Returns
        -------
        ndarray of float64, shape (rows,)
            For a dataset, in the order of its source.
        """
        return self._decisions(X)[:, 0]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return R²; a dataset has its own targets and weights."""
        refuse_mask(y, "y")
        refuse_mask(sample_weight, "sample_weight")
        if not isinstance(X, str | os.PathLike | Dataset):
            return float(super().score(X, y, sample_weight))
        dataset = X if isinstance(X, Dataset) else open_dataset(X)
        target, weight = in_source_order(dataset, "label", "weight")
        from sklearn.metrics import r2_score

        own = target if y is None else y
        return float(
            r2_score(
                own, self.predict(dataset), sample_weight=weight if sample_weight is None else sample_weight
            )
        )


_SMOOTH = ("squared_error", "huber", "squared_epsilon_insensitive")


def _inverse(alpha: float, factor: float, name: str) -> float:
    """Return ``factor / alpha``."""
    if not alpha > 0:
        raise UsageError(f"{name}: expected alpha > 0, found {alpha}: without a penalty there is no C")
    return factor / alpha


@dataclass(eq=False, repr=False)
class Ridge(LinearRegressor):
    """Ridge regression: ``Σ (y - w·x - b)² + alpha ‖w‖²``, scikit-learn's objective, the intercept not penalised.

    streamcd's ``½‖w‖² + C Σ (y - w·x - b)²`` is this one times C, with ``C = 1 / (2 alpha)``.

    Parameters
    ----------
    alpha : float
        Above 0.
    method : {"auto", "dual", "primal", "newton"}
        As in `streamcd.train`; ``"auto"`` is newton for a smooth loss and at most 500 features, else dual.
    tol, fit_intercept, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    coef_ : ndarray of float64, shape (n_features,)
    intercept_ : float
    n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `LinearSVC`.

    Examples
    --------
    >>> from streamcd import Ridge
    >>> Ridge(alpha=1e-6).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).predict([[3.0]]).round(3).tolist()
    [7.0]
    """

    alpha: float = 1.0

    def _problem(self) -> dict[str, Any]:
        return {"loss": "squared_error", **self._bias()}

    def _cost(self, weight: float) -> float:
        return _inverse(self.alpha, 0.5, "Ridge")


@dataclass(eq=False, repr=False)
class HuberRegressor(LinearRegressor):
    """Huber regression with a fixed scale: ``Σ H(y - w·x - b) + alpha ‖w‖²``, the intercept not penalised.

    ``H(e) = e²`` up to ``|e| = epsilon``, then ``2 epsilon |e| - epsilon²``: scikit-learn's objective where its scale,
    which it estimates, is 1. So `epsilon` is in the targets' units here; divide them by a scale of your own. streamcd's
    ``½‖w‖² + C Σ huber`` is this one times C/2, with ``C = 1 / alpha``.

    Parameters
    ----------
    epsilon : float
        Error from which on the loss is a line.
    alpha : float
        Above 0.
    method : {"auto", "dual", "primal", "newton"}
        As in `streamcd.train`; ``"auto"`` is newton for a smooth loss and at most 500 features, else dual.
    tol, fit_intercept, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    coef_ : ndarray of float64, shape (n_features,)
    intercept_ : float
    n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `LinearSVC`.

    Examples
    --------
    >>> from streamcd import HuberRegressor
    >>> huber = HuberRegressor(alpha=1e-6).fit([[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 100.0])
    >>> bool(huber.predict([[2.0]])[0] < 10.0)
    True
    """

    epsilon: float = 1.35
    _: KW_ONLY
    alpha: float = 0.0001

    def _problem(self) -> dict[str, Any]:
        return {"loss": "huber", "delta": float(self.epsilon), **self._bias()}

    def _cost(self, weight: float) -> float:
        return _inverse(self.alpha, 1.0, "HuberRegressor")


@dataclass(eq=False, repr=False)
class LinearSVR(LinearRegressor):
    """Linear support vector regression: ``½‖w‖² + C Σ loss``, with the intercept penalised as in scikit-learn's.

    Parameters
    ----------
    epsilon : float
        Errors up to it cost nothing, in the targets' units.
    C : float
        Factor of the sum of losses.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"}
    intercept_scaling : float
        Value of the constant feature whose weight is the intercept divided by it.
    dual : {"auto", True, False}
        Accepted without effect: `method` chooses the algorithm, the optimum is the same.
    method : {"auto", "dual", "primal", "newton"}
        As in `streamcd.train`; ``"auto"`` is newton for a smooth loss and at most 500 features, else dual.
    tol, fit_intercept, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    coef_ : ndarray of float64, shape (n_features,)
    intercept_ : float
    n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `LinearSVC`.

    Examples
    --------
    >>> from streamcd import LinearSVR
    >>> LinearSVR(C=100.0).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).predict([[3.0]]).round(1).tolist()
    [7.0]
    """

    _: KW_ONLY
    epsilon: float = 0.0
    C: float = 1.0
    loss: str = "epsilon_insensitive"
    intercept_scaling: float = 1.0
    dual: Any = "auto"

    def _problem(self) -> dict[str, Any]:
        self._refuse_all_but(
            loss=(("epsilon_insensitive", "squared_epsilon_insensitive"), "these are LIBLINEAR's"),
            dual=(("auto", True, False), "method= chooses the algorithm"),
        )
        bias = float(self.intercept_scaling) if self.fit_intercept else -1.0
        return {"loss": self.loss, "epsilon": float(self.epsilon), "method": self.method, "bias": bias}

    def _cost(self, weight: float) -> float:
        return float(self.C)


@dataclass(eq=False, repr=False)
class QuantileRegressor(LinearRegressor):
    """Quantile regression with the squared norm: ``Σ loss / n + alpha/2 ‖w‖²``, the intercept not penalised.

    The loss is ``quantile (y - z)`` where ``y > z``, ``(1 - quantile)(z - y)`` where not. scikit-learn's penalty is
    ``alpha ‖w‖₁``: its weights of 0 are not found here. streamcd's ``½‖w‖² + C Σ loss`` is this one divided by alpha, with
    ``C = 1 / (n alpha)``, n the sum of the rows' weights.

    Parameters
    ----------
    quantile : float
        Between 0 and 1.
    alpha : float
        Above 0.
    method : {"auto", "dual", "primal", "newton"}
        As in `streamcd.train`; ``"auto"`` is newton for a smooth loss and at most 500 features, else dual.
    tol, fit_intercept, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    coef_ : ndarray of float64, shape (n_features,)
    intercept_ : float
    n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `LinearSVC`.

    Examples
    --------
    >>> from streamcd import QuantileRegressor
    >>> median = QuantileRegressor(alpha=1e-3).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> median.predict([[1.0]]).round(1).tolist()
    [3.0]
    """

    _: KW_ONLY
    quantile: float = 0.5
    alpha: float = 1.0

    def _problem(self) -> dict[str, Any]:
        return {"loss": "quantile", "quantile": float(self.quantile), **self._bias()}

    def _cost(self, weight: float) -> float:
        return _inverse(self.alpha, 1.0 / weight, "QuantileRegressor")
