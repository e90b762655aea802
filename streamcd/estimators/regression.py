"""Linear regression with scikit-learn's names: `Ridge`, `Lasso`, `ElasticNet`, `HuberRegressor` and others."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from ..dataset.dataset import Dataset
from .base import (
    POSITIVE,
    SHARE,
    Allowed,
    Interval,
    LinearModel,
    Options,
    RegressorMixin,
    StrOptions,
    dataset_of,
    penalised,
    sum_of_weights,
)


@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegressor(RegressorMixin, LinearModel):
    """Base of the regressors."""

    _allowed: ClassVar[Allowed] = {"alpha": POSITIVE, "epsilon": POSITIVE, "l1_ratio": SHARE}
    score = LinearModel.score

    @abstractmethod
    def _problem(self, weight: float) -> dict[str, Any]:
        """Return the loss, the penalty and C, for rows of this weight in sum, with what differs from the defaults."""

    def _options(self, dataset: Dataset) -> dict[str, Any]:
        free = bool(self.fit_intercept)
        options = {"bias": self._bias(), "unpenalized_bias": free, **self._problem(sum_of_weights(dataset))}
        if self.method == "auto" and "penalty" not in options:
            smooth = options["loss"] in ("squared_error", "huber", "squared_epsilon_insensitive")
            # newton's matrix has a row for each feature
            options["method"] = "newton" if smooth and dataset.n_features <= 500 else "dual"
        return options

    def _in_memory(self, X: Any, y: Any, sample_weight: Any) -> Dataset:
        X, y, weight = self._checked_arrays(X, y, sample_weight, y_numeric=True)
        return dataset_of(X, y.astype(np.float64), None, weight)

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
    method : {"auto", "dual", "primal", "newton", "working-set"}
        As in `streamcd.train`; ``"auto"`` is newton for a smooth loss and at most 500 features, else dual.

    Other parameters, and attributes, are those of `LinearSVC`; `coef_` has shape (n_features,), `intercept_` is a number.

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

    def _problem(self, weight: float) -> dict[str, Any]:
        return {"loss": "squared_error", **penalised(0.0, 2.0 * self.alpha, 1.0)}


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
    method : str
        As in `streamcd.train`.

    Other parameters, and attributes, are those of `Ridge`.

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

    def _problem(self, weight: float) -> dict[str, Any]:
        l1 = self.alpha * self.l1_ratio
        l2 = self.alpha * (1.0 - self.l1_ratio)
        return {"loss": "squared_error", **penalised(l1, l2, 0.5 / weight)}


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
    precompute, copy_X, selection, method
        As in `ElasticNet`.

    Other parameters, and attributes, are those of `Ridge`.

    Examples
    --------
    >>> from streamcd import Lasso
    >>> lasso = Lasso(alpha=0.1).fit([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [3.0, 0.0]], [0.0, 1.0, 2.0, 3.0])
    >>> lasso.coef_.round(2).tolist()
    [0.92, 0.0]
    """

    _: KW_ONLY
    l1_ratio: float = 1.0

    _allowed: ClassVar[Allowed] = {"l1_ratio": [Options(Real, {1.0})]}


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
    method : {"auto", "dual", "primal", "newton", "working-set"}
        As in `Ridge`.

    Other parameters, and attributes, are those of `Ridge`.

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

    def _problem(self, weight: float) -> dict[str, Any]:
        return {"loss": "huber", "delta": self.epsilon, **penalised(0.0, self.alpha, 1.0)}


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

    Other parameters, and attributes, are those of `Ridge`; `intercept_` has shape (1,), without an intercept it is the
    number 0, as scikit-learn has it.

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

    _allowed: ClassVar[Allowed] = {
        "epsilon": [Interval(Real, 0, None, closed="left")],
        "loss": [StrOptions({"epsilon_insensitive", "squared_epsilon_insensitive"})],
        "dual": ["boolean", StrOptions({"auto", "warn"})],
    }

    def _problem(self, weight: float) -> dict[str, Any]:
        return {"loss": self.loss, "epsilon": self.epsilon, "C": self.C, "unpenalized_bias": False}

    @property
    def intercept_(self) -> Any:
        """Intercept, shape (1,); 0 without one."""
        return self.model_.intercept[:1] if self.fit_intercept else 0.0
