"""Linear classifiers with scikit-learn's names: `LinearSVC`, `LogisticRegression` and `TwinSVC`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import UsageError
from .base import LinearClassifier, Strengths

if TYPE_CHECKING:
    from ..dataset.dataset import Dataset
    from ..training.result import Result


_SOLVERS = ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga", "liblinear")
PENALTIES = ("l2", "l1", "elasticnet", "deprecated")
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

    def _problem(self) -> dict[str, Any]:
        ways = ("ovr", "crammer_singer") if self.penalty == "l2" else ("ovr",)
        losses = ("squared_hinge", "hinge") if self.penalty == "l2" else ("squared_hinge",)
        self._refuse_all_but(
            penalty=(("l2", "l1"), "LogisticRegression has elastic net"),
            dual=(("auto", "warn", True, False), "method='dual' or method='primal' chooses"),
            loss=(
                losses,
                "with the penalty l1 squared_hinge alone; TwinSVC and LogisticRegression have other losses",
            ),
            multi_class=(ways, "crammer_singer has the penalty l2"),
        )
        bias = self._number("intercept_scaling", above=0.0) if self.fit_intercept else -1.0
        return {"loss": self.loss if self.multi_class == "ovr" else "crammer_singer", "bias": bias}

    def _strengths(self, weight: float) -> Strengths:
        by_l1 = float(self.penalty == "l1")
        return Strengths(by_l1, 1.0 - by_l1, self._number("C", above=0.0))

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
    dual : {False}
        Without an intercept True as well, without effect: `method` chooses the algorithm.
    fit_intercept : bool
    intercept_scaling : float
        1; with ``"liblinear"`` the value of the constant feature whose weight is the intercept divided by it.
    solver : {"lbfgs", "newton-cg", "newton-cholesky", "sag", "saga", "liblinear"}
        Accepted without effect: `method` chooses the algorithm, the optimum is the same; but ``"liblinear"`` penalises the
        intercept, and trains one class against the rest.
    warm_start : {False}
    multi_class : {"auto", "deprecated", "multinomial", "ovr"}
        ``"auto"``, and ``"deprecated"``, scikit-learn's default for a time, is multinomial by the dual method without L1,
        and one-vs-rest by others and with L1.
    n_jobs : int or None
        Threads that share reading and certificates, on which no bit of the result depends; -1 for all processors. None is
        one for what is in memory, and all for a dataset.
    method : {"auto", "dual", "primal", "online", "newton", "working-set"}
        As in `streamcd.train`. The column layout, which primal, online and working-set read, is made where a dataset has
        none.
    tol, class_weight, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    n_iter_ : ndarray of int, shape (1 or n_classes,)
        Passes of the multinomial problem, or of every class.
    coef_, intercept_, classes_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `LinearSVC`.

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

    def _problem(self) -> dict[str, Any]:
        penalised = self.solver == "liblinear"  # the intercept
        either = (False, True) if penalised or not self.fit_intercept else (False,)
        scalings = (self.intercept_scaling,) if penalised else (1,)
        self._refuse_all_but(
            penalty=((*PENALTIES, None), "there is no other"),
            dual=(either, "method='dual' with fit_intercept=False is the dual method"),
            intercept_scaling=(scalings, "the intercept is not penalised"),
            solver=(_SOLVERS, "method= chooses the algorithm"),
            multi_class=((*_CHOSEN, "multinomial", "ovr"), "there is no other way"),
        )
        bias = self._number("intercept_scaling", above=0.0) if self.fit_intercept else -1.0
        return {
            "loss": "log_loss",
            "bias": bias,
            "unpenalized_bias": bool(self.fit_intercept) and not penalised,
        }

    def _l1_share(self) -> float:
        """Return the share of ``‖w‖₁``, by the parameters of whichever version of scikit-learn."""
        share = 0.0 if self.l1_ratio is None else self._number("l1_ratio", least=0.0, most=1.0)
        named = {"l1": 1.0, "l2": 0.0}.get(str(self.penalty), share)
        if share not in (0.0, named):
            raise UsageError(
                f"LogisticRegression: expected penalty='elasticnet' with l1_ratio={share:g}, found {self.penalty!r}"
            )
        return named

    def _strengths(self, weight: float) -> Strengths:
        if self.penalty is None:
            raise UsageError("LogisticRegression: expected a penalty, found None; take a large C")
        share = self._l1_share()
        return Strengths(share, 1.0 - share, self._number("C", above=0.0))

    def _of_dataset(self, dataset: Dataset) -> dict[str, Any]:
        asked = super()._of_dataset(dataset)
        several = dataset.classes is not None and dataset.classes.size > 2
        at_once = self.multi_class == "multinomial" or (
            self.multi_class in _CHOSEN
            and self.method in ("auto", "dual")
            and self.solver != "liblinear"
            and not self._l1_share()
        )
        if several and at_once:
            asked["loss"] = "multinomial"
        return asked

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
    fit_intercept : bool
        Append a constant feature 1; its weight is penalised.
    method : {"auto", "dual", "sor"}
        As in `streamcd.train`; ``"auto"`` is dual.
    tol, class_weight, random_state, max_iter, verbose, memory, workdir
        As in `LinearSVC`.

    Attributes
    ----------
    coef_ : ndarray of float64, shape (n_classes, n_features)
        The planes, one for each class, also with two classes.
    intercept_ : ndarray of float64, shape (n_classes,)
    classes_, n_iter_, dual_gap_, n_features_in_, feature_names_in_, model_
        As in `LinearSVC`.

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

    def _problem(self) -> dict[str, Any]:
        return {
            "loss": "twin",
            "bias": 1.0 if self.fit_intercept else -1.0,
            "ridge": self._number("ridge", above=0.0),
            "slack": self.slack,
        }
