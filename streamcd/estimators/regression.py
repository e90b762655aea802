"""Linear regression with scikit-learn's names: `Ridge`, `Lasso`, `ElasticNet`, `HuberRegressor` and others."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from ..dataset.dataset import Dataset
from .base import LinearModel, RegressorMixin, Strengths, dataset_of

_NARROW = 500
"""Features up to which Newton's method, whose matrix has a row for each, trains the smooth losses by default."""

_SMOOTH = ("squared_error", "huber", "squared_epsilon_insensitive")

_NO_PENALTY = "; take a small one, 1e-6 say"


@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegressor(RegressorMixin, LinearModel):
    """Base of the regressors."""

    fit_intercept: bool = True

    _loss: ClassVar[str]
    score = LinearModel.score

    def _problem(self) -> dict[str, Any]:
        free = bool(self.fit_intercept)
        return {"loss": self._loss, "bias": 1.0 if free else -1.0, "unpenalized_bias": free}

    def _alpha(self) -> float:
        return self._number("alpha", above=0.0, hint=_NO_PENALTY)

    def _in_memory(self, X: Any, y: Any, sample_weight: Any) -> tuple[Dataset, dict[str, Any]]:
        X, y, weight = self._checked_arrays(X, y, sample_weight, y_numeric=True)
        return dataset_of(X, y.astype(np.float64), None, weight), {}

    def _of_dataset(self, dataset: Dataset) -> dict[str, Any]:
        found = super()._of_dataset(dataset)
        if self.method == "auto" and "penalty" not in found:
            smooth, narrow = self._problem()["loss"] in _SMOOTH, dataset.n_features <= _NARROW
            found["method"] = "newton" if smooth and narrow else "dual"
        return found

    @property
    def coef_(self) -> np.ndarray:
        """Weights, shape (n_features,)."""
        return self.model_.source_weights[:, 0]

    @property
    def intercept_(self) -> Any:
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


@dataclass(eq=False, repr=False)
class Ridge(LinearRegressor):
    """Ridge regression: ``Σ (y - w·x - b)² + alpha ‖w‖²``, scikit-learn's objective, the intercept not penalised.

    streamcd's ``½‖w‖² + C Σ (y - w·x - b)²`` is this one times C, with ``C = 1 / (2 alpha)``.

    Parameters
    ----------
    alpha : float
        Above 0.
    positive : {False}
    method : {"auto", "dual", "primal", "newton", "working-set"}
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
    _: KW_ONLY
    copy_X: bool = True
    solver: str = "auto"
    positive: bool = False

    _loss = "squared_error"

    def _strengths(self, weight: float) -> Strengths:
        return Strengths(0.0, 2.0 * self._alpha(), 1.0)


@dataclass(eq=False, repr=False)
class ElasticNet(LinearRegressor):
    """Regression with L1 and L2 penalties, the intercept b not penalised; scikit-learn's objective.

    ``1/(2n) Σ (y - w·x - b)² + alpha l1_ratio ‖w‖₁ + ½ alpha (1 - l1_ratio) ‖w‖²``, n the sum of the rows' weights, is
    streamcd's ``λ ‖w‖₁ + r/2 ‖w‖² + C Σ (y - w·x - b)²`` with ``λ = alpha l1_ratio``, ``r = alpha (1 - l1_ratio)`` and
    ``C = 1 / (2 n)``. Weights that are 0 at the optimum are exactly 0.

    Parameters
    ----------
    alpha : float
        At least 0, as in `Ridge`.
    l1_ratio : float
        From 0, which is ridge regression with ``n alpha``, to 1, which is `Lasso`.
    precompute, copy_X, selection
        scikit-learn's, accepted without effect: `method` chooses the algorithm, the optimum is the same.
    positive, warm_start : {False}
    method : str
        As in `streamcd.train`.
    tol, fit_intercept, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    coef_, intercept_, n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `Ridge`.

    Examples
    --------
    >>> from streamcd import ElasticNet
    >>> net = ElasticNet(alpha=0.1).fit([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [3.0, 0.0]], [0.0, 1.0, 2.0, 3.0])
    >>> net.coef_.round(2).tolist()
    [0.92, 0.0]
    """

    alpha: float = 1.0
    _: KW_ONLY
    l1_ratio: float = 0.5
    precompute: Any = False
    copy_X: bool = True
    selection: str = "cyclic"
    positive: bool = False
    warm_start: bool = False

    _loss = "squared_error"

    def _strengths(self, weight: float) -> Strengths:
        alpha, share = self._alpha(), self._number("l1_ratio", least=0.0, most=1.0)
        return Strengths(alpha * share, alpha * (1.0 - share), 0.5 / weight)


@dataclass(eq=False, repr=False)
class Lasso(ElasticNet):
    """Regression with the L1 penalty, the intercept not penalised: ``1/(2n) Σ (y - w·x - b)² + alpha ‖w‖₁``.

    It is `ElasticNet` with ``l1_ratio=1``, and streamcd's ``λ ‖w‖₁ + C Σ (y - w·x - b)²`` with ``λ = alpha`` and
    ``C = 1 / (2 n)``, n the sum of the rows' weights.

    Parameters
    ----------
    alpha : float
        At least 0, as in `Ridge`.
    l1_ratio : {1.0}
    precompute, copy_X, selection, positive, warm_start, method
        As in `ElasticNet`.
    tol, fit_intercept, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    coef_, intercept_, n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `Ridge`.

    Examples
    --------
    >>> from streamcd import Lasso
    >>> lasso = Lasso(alpha=0.1).fit([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [3.0, 0.0]], [0.0, 1.0, 2.0, 3.0])
    >>> lasso.coef_.round(2).tolist()
    [0.92, 0.0]
    """

    _: KW_ONLY
    l1_ratio: float = 1.0

    def _problem(self) -> dict[str, Any]:
        self._refuse_all_but(l1_ratio=((1.0,), "ElasticNet has others"))
        return super()._problem()


@dataclass(eq=False, repr=False)
class HuberRegressor(LinearRegressor):
    """Huber regression with a fixed scale: ``Σ H(y - w·x - b) + alpha ‖w‖²``, the intercept not penalised.

    ``H(e) = e²`` up to ``|e| = epsilon``, then ``2 epsilon |e| - epsilon²``: scikit-learn's objective where its scale,
    which it estimates, is 1. So `epsilon` is in the targets' units here; divide them by a scale of your own. streamcd's
    ``½‖w‖² + C Σ huber`` is this one times C/2, with ``C = 1 / alpha``.

    Parameters
    ----------
    epsilon : float
        Error from which on the loss is a line; above 0.
    alpha : float
        Above 0.
    warm_start : {False}
    method : {"auto", "dual", "primal", "newton", "working-set"}
        As in `Ridge`.
    tol, fit_intercept, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    coef_, intercept_, n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `Ridge`.

    Examples
    --------
    >>> from streamcd import HuberRegressor
    >>> huber = HuberRegressor(alpha=0.01).fit([[0.0], [1.0], [2.0], [3.0]], [1.0, 3.0, 5.0, 100.0])
    >>> bool(huber.predict([[2.0]])[0] < 10.0)
    True
    """

    epsilon: float = 1.35
    _: KW_ONLY
    alpha: float = 0.0001
    warm_start: bool = False

    _loss = "huber"

    def _problem(self) -> dict[str, Any]:
        return {"delta": self._number("epsilon", above=0.0), **super()._problem()}

    def _strengths(self, weight: float) -> Strengths:
        return Strengths(0.0, self._alpha(), 1.0)


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
    dual : {"auto", "warn", True, False}
        Accepted without effect: `method` chooses the algorithm, the optimum is the same.
    method : {"auto", "dual", "primal", "newton", "working-set"}
        As in `Ridge`.
    tol, fit_intercept, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    intercept_ : ndarray of float64, shape (1,)
        Without an intercept the number 0, as scikit-learn has it.
    coef_, n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `Ridge`.

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
            dual=(("auto", "warn", True, False), "method= chooses the algorithm"),
        )
        bias = self._number("intercept_scaling", above=0.0) if self.fit_intercept else -1.0
        return {"loss": self.loss, "epsilon": self._number("epsilon", least=0.0), "bias": bias}

    def _strengths(self, weight: float) -> Strengths:
        return Strengths(0.0, 1.0, self._number("C", above=0.0))

    @property
    def intercept_(self) -> Any:
        """Intercept, shape (1,); 0 without one."""
        return self.model_.intercept[:1] if self.fit_intercept else 0.0
