"""Linear classifiers with scikit-learn's names: `LinearSVC`, `LogisticRegression` and `TwinSVC`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .base import POSITIVE, SHARE, Allowed, LinearClassifier, StrOptions, penalised

if TYPE_CHECKING:
    from ..dataset.dataset import Dataset
    from ..training.result import Result

_CHOSEN = ("auto", "deprecated")


@dataclass(eq=False, repr=False)
class LinearSVC(LinearClassifier):
    """Linear support vector classifier: ``½‖w‖² + C Σ loss``, with the intercept penalised as in scikit-learn's.

    Parameters
    ----------
    penalty : {"l2", "l1"}
        L1 with the loss ``"squared_hinge"`` alone.
    loss : {"squared_hinge", "hinge"}
    dual : {"auto", "warn", True, False}
        Accepted without effect: `method` chooses the algorithm, the optimum is the same.
    tol : float
        Relative duality gap at which to stop, ``(primal - dual) / primal``.
    C : float
        Factor of the sum of losses.
    multi_class : {"ovr", "crammer_singer"}
    fit_intercept : bool
    intercept_scaling : float
        Value of the constant feature whose weight is the intercept divided by it.
    class_weight : dict or "balanced", optional
        Factor of C for the rows of a label, in the problem of every class.
    verbose : int
        Log messages, by the logger ``streamcd``.
    random_state : int, RandomState or None
        Seed of the order of visits; None is 0.
    max_iter : int
        Passes over the data, at most; None and -1, defaults of some of scikit-learn's estimators, are 1000.
    method : {"auto", "dual", "primal", "online", "newton", "working-set"}
        As in `streamcd.train`.
    memory : int or str
        Bound on the memory of the process while it trains; see docs/estimators.md.
    workdir : path, optional
        Directory for the runs of fits to a dataset: the same fit continues its run there. By default a temporary one.
        Arrays need none.

    Attributes
    ----------
    coef_ : ndarray of float64, shape (1 or n_classes, n_features)
    intercept_ : ndarray of float64, shape (1 or n_classes,)
    classes_ : ndarray, shape (n_classes,)
    n_iter_ : int
        Passes of the slowest class.
    dual_gap_ : float
        Largest relative duality gap of a class, certified.
    n_features_in_ : int
    feature_names_in_ : ndarray of str, shape (n_features,)
        Where it was fitted to a frame with names.
    model_ : streamcd.Model

    Examples
    --------
    >>> from streamcd import LinearSVC
    >>> svc = LinearSVC(C=1.0).fit([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [2.0, 0.0]], ["no", "yes", "no", "yes"])
    >>> svc.predict([[3.0, 0.0]]).tolist()
    ['yes']
    """

    penalty: str = "l2"
    loss: str = "squared_hinge"
    _: KW_ONLY
    dual: str | bool = "auto"
    multi_class: str = "ovr"
    intercept_scaling: float = 1

    _allowed: ClassVar[Allowed] = {
        "penalty": [StrOptions({"l2", "l1"})],
        "loss": [StrOptions({"squared_hinge", "hinge"})],
        "dual": ["boolean", StrOptions({"auto", "warn"})],
        "multi_class": [StrOptions({"ovr", "crammer_singer"})],
    }

    def _options(self, dataset: Dataset) -> dict[str, Any]:
        loss = self.loss if self.multi_class == "ovr" else "crammer_singer"
        by_l1 = float(self.penalty == "l1")
        strengths = penalised(by_l1, 1.0 - by_l1, self.C)
        return {"loss": loss, "bias": self._bias(), **strengths, **super()._options(dataset)}

    def _per_class(self, vectors: np.ndarray) -> np.ndarray:
        # where two classes have a vector each, scikit-learn has the difference
        return vectors[1:] - vectors[:1] if self.model_.n_vectors == self.model_.n_classes == 2 else vectors


@dataclass(eq=False, repr=False)
class LogisticRegression(LinearClassifier):
    """Logistic regression: ``½‖w‖² + C Σ log(1 + exp(-y (w·x + b)))``, the intercept b not penalised.

    With three classes and more it is multinomial, ``½ Σ_m ‖w_m‖² + C Σ (log Σ_m exp(w_m·x + b_m) - w_y·x - b_y)``, or one
    problem for each class against the rest.

    Parameters
    ----------
    penalty : {"l2", "l1", "elasticnet"}
        Spelling of scikit-learn before 1.8. None, for no penalty, is refused: a large `C` comes near it.
    C : float
        Factor of the sum of losses.
    l1_ratio : float or None
        Share of L1 in the penalty; None is 0.
    dual : bool
        Accepted without effect: `method` chooses the algorithm, the optimum is the same.
    intercept_scaling : float
        With ``"liblinear"`` the value of the constant feature whose weight is the intercept divided by it.
    solver : {"lbfgs", "newton-cg", "newton-cholesky", "sag", "saga", "liblinear"}
        Accepted without effect: `method` chooses the algorithm, the optimum is the same; but ``"liblinear"`` penalises the
        intercept, and trains one class against the rest.
    multi_class : {"auto", "deprecated", "multinomial", "ovr"}
        ``"auto"``, and ``"deprecated"``, scikit-learn's default for a time, is multinomial by the dual method without L1,
        and one-vs-rest by others and with L1.
    n_jobs : int or None
        Threads that share reading and certificates, on which no bit of the result depends; -1 for all processors. None is
        one for what is in memory, and all for a dataset.
    method : {"auto", "dual", "primal", "online", "newton", "working-set"}
        As in `streamcd.train`. The column layout, which primal, online and working-set read, is made where a dataset has
        none.

    Other parameters, and attributes, are those of `LinearSVC`; `n_iter_` has the passes of the multinomial problem, or of
    every class.

    Examples
    --------
    >>> from streamcd import LogisticRegression
    >>> regression = LogisticRegression().fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])
    >>> regression.predict_proba([[1.5]]).round(2).tolist()
    [[0.5, 0.5]]
    """

    penalty: str | None = "deprecated"
    _: KW_ONLY
    l1_ratio: float | None = 0.0
    dual: bool = False
    intercept_scaling: float = 1
    solver: str = "lbfgs"
    warm_start: bool = False
    multi_class: str = "auto"
    n_jobs: int | None = None

    _allowed: ClassVar[Allowed] = {
        "penalty": [StrOptions({"l2", "l1", "elasticnet", "deprecated"})],
        "l1_ratio": [*SHARE, None],
        "dual": ["boolean"],
        "solver": [StrOptions({"lbfgs", "newton-cg", "newton-cholesky", "sag", "saga", "liblinear"})],
        "multi_class": [StrOptions({*_CHOSEN, "multinomial", "ovr"})],
    }

    def _options(self, dataset: Dataset) -> dict[str, Any]:
        # the share of L1, by the parameters of whichever version of scikit-learn
        share = {"l1": 1.0, "l2": 0.0}.get(str(self.penalty), float(self.l1_ratio or 0.0))
        by_liblinear = self.solver == "liblinear"
        several = dataset.classes is not None and dataset.classes.size > 2
        at_once = (
            self.multi_class in _CHOSEN and self.method in ("auto", "dual") and not by_liblinear and not share
        )
        return {
            "loss": "multinomial"
            if several and (at_once or self.multi_class == "multinomial")
            else "log_loss",
            "bias": self._bias(),
            "unpenalized_bias": bool(self.fit_intercept) and not by_liblinear,
            **penalised(share, 1.0 - share, self.C),
            **super()._options(dataset),
        }

    def _count_passes(self, result: Result) -> Any:
        return np.array([lane["passes"] for lane in result.lanes])

    def _per_class(self, vectors: np.ndarray) -> np.ndarray:
        """Return weights, or intercepts, that sum to 0 where they have no penalty: the softmax is of their differences."""
        if self.model_.loss != "multinomial":
            return vectors
        is_free = vectors.ndim == 1
        return vectors - vectors.mean(axis=0) if is_free else vectors

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Compute the logarithms of the classes' probabilities; `X` as in `decision_function`, shape (rows, classes)."""
        decisions = self._decisions(X)
        return self.model_.log_probabilities(decisions)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Compute the classes' probabilities: the softmax; of one-vs-rest each class's ``σ(h)``, divided by their sum."""
        return np.exp(self.predict_log_proba(X))


@dataclass(eq=False, repr=False)
class TwinSVC(LinearClassifier):
    """Twin support vector classifier: a plane for each class, close to its own rows and away from the others'.

    ``r/2 ‖w‖² + ½ Σ_own (w·x)² + C Σ_others slack(w·x)`` for each class; a row is assigned to the nearest plane's class.

    Parameters
    ----------
    C : float
        Factor of the losses of the other classes' rows.
    ridge : float
        The factor r; below 1 method dual is slow.
    slack : {"hinge", "squared_hinge"}
    method : {"auto", "dual", "sor"}
        As in `streamcd.train`; ``"auto"`` is dual.

    Other parameters, and attributes, are those of `LinearSVC`; `coef_` has a plane for each class, also with two classes,
    whose constant feature is 1, its weight penalised.

    Examples
    --------
    >>> from streamcd import TwinSVC
    >>> twin = TwinSVC().fit([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [2.0, 0.0]], [0, 1, 0, 1])
    >>> twin.predict([[3.0, 0.0]]).tolist()
    [1]
    """

    C: float = 1.0
    _: KW_ONLY
    ridge: float = 1.0
    slack: str = "hinge"

    _allowed: ClassVar[Allowed] = {
        "ridge": POSITIVE,
        "slack": [StrOptions({"hinge", "squared_hinge"})],
    }

    def _options(self, dataset: Dataset) -> dict[str, Any]:
        planes = {"loss": "twin", "ridge": self.ridge, "slack": self.slack}
        return {**planes, "bias": self._bias(), "C": self.C, **super()._options(dataset)}
