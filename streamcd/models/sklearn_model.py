"""Models as fitted linear estimators of scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import ModelError, UsageError
from ..kernels.loss_table import LOSSES, PLANES


def sklearn_estimator(model: Any) -> Any:
    """Make a fitted estimator that predicts as a model does, for rows in the source's units; see `Model.to_sklearn`."""
    expected = "to_sklearn: expected the decisions of a linear estimator, found"
    if LOSSES[model.loss].form == PLANES:
        raise ModelError(f"{expected} twin planes")
    if model.scaling.normalize != "none":
        raise ModelError(f"{expected} those of rows of unit norm (convert --normalize)")
    if not (model.has_targets or model.is_binary or model.decoder.one_vector_per_class):
        raise ModelError(f"{expected} vectors of another code matrix than one-vs-rest")
    weights = np.ascontiguousarray(model.source_weights.T)
    intercept = np.array(model.intercept)
    made = _unfitted(model)
    if model.has_targets:
        return _fitted(made, weights[0], intercept if "epsilon" in model.loss else intercept[0])
    classes = np.array(model.record.labels)
    if classes.size == 2 and not model.is_binary:  # a vector for each: their difference decides
        weights = weights[1:] - weights[:1]
        intercept = intercept[1:] - intercept[:1]
    if model.loss != "log_loss" or classes.size == 2:
        return _fitted(made, weights, intercept, classes)
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import LabelBinarizer

    several = OneVsRestClassifier(made)
    several.estimators_ = [
        _fitted(_unfitted(model), weights[k : k + 1], intercept[k : k + 1], np.array([0, 1]))
        for k in range(classes.size)
    ]
    several.label_binarizer_ = LabelBinarizer(sparse_output=True).fit(classes)
    several.classes_ = classes
    several.n_features_in_ = weights.shape[1]
    return several


def _unfitted(model: Any) -> Any:
    """Return scikit-learn's estimator of a model's problem."""
    try:
        from sklearn import linear_model, svm
    except ImportError:
        raise UsageError(
            "to_sklearn needs scikit-learn; install it by: pip install 'streamcd[sklearn]'"
        ) from None
    C = model.C or 1.0
    parameter: float = model.parameter or 0.0
    made: Any
    if model.loss in ("hinge", "squared_hinge"):
        made = svm.LinearSVC(loss=model.loss, penalty="l1" if model.l1 and not model.l2 else "l2", C=C)
    elif model.loss == "crammer_singer":
        made = svm.LinearSVC(multi_class="crammer_singer", C=C)
    elif model.loss in ("log_loss", "multinomial"):
        made = linear_model.LogisticRegression(C=C)
    elif model.loss == "squared_error" and model.l1:
        alpha = model.l1 + model.l2
        made = linear_model.ElasticNet(alpha=alpha, l1_ratio=model.l1 / alpha)
    elif model.loss == "squared_error":
        made = linear_model.Ridge(alpha=model.l2 / (2.0 * C))
    elif model.loss == "huber":
        made = linear_model.HuberRegressor(epsilon=max(parameter, 1.0))
    elif model.loss == "quantile":
        made = linear_model.QuantileRegressor(quantile=parameter)
    else:
        made = svm.LinearSVR(loss=model.loss, epsilon=parameter, C=C)
    return made.set_params(fit_intercept=model.bias > 0)


def _fitted(made: Any, coef: np.ndarray, intercept: Any, classes: np.ndarray | None = None) -> Any:
    made.coef_ = coef
    made.intercept_ = intercept
    made.n_iter_ = 1
    made.n_features_in_ = coef.shape[-1]
    if classes is not None:
        made.classes_ = classes
    if made.__class__.__name__ == "HuberRegressor":
        made.scale_ = 1.0
    return made
