"""A model as a fitted pipeline of scikit-learn's own classes: a table's encoding, scaling, and the linear estimator."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import ModelError, UsageError
from ..kernels.loss_table import CLASSES, INLIERS, MARGINS, PLANES, form_of, gives_probabilities
from .encoding import Column, Encoding
from .text_encoder import Tokens, tokens_of

_TIE = 5e-324
"""The smallest number above 0: as an intercept where there is none it decides ties, and changes no other decision."""


def sklearn_pipeline(model: Any) -> Any:
    """Make the pipeline of a `Model`; see its method `to_sklearn`."""
    try:
        from sklearn.pipeline import Pipeline
    except ImportError:
        raise UsageError(
            "to_sklearn needs scikit-learn 1.6 or later; install it by: pip install 'streamcd[sklearn]'"
        ) from None

    _check(model)
    steps, feature = [], np.arange(model.n_features)
    if model.encoding is not None:
        transformer, feature = _encoder(model.encoding)
        steps.append(("encode", transformer))
    steps += _scalers(model.scaling, feature)
    return Pipeline([*steps, ("model", _estimator(model, feature))])


def _check(model: Any) -> None:
    """Refuse a model that no classes of scikit-learn predict like."""
    if form_of(model.loss) == PLANES:
        raise ModelError(
            "to_sklearn: scikit-learn has no twin models, which predict the nearest plane's class"
        )
    if model.multilabel:
        raise ModelError(
            "to_sklearn: the model predicts any number of labels; expected one of a label a row, found a multilabel one; "
            "Model.predict gives the matrix of 0 and 1 that scikit-learn's metrics take"
        )
    if model.sigmoids is not None and not (model.is_binary and (model.sigmoids[0] < 0).all()):
        raise ModelError(
            "to_sklearn: the model predicts the class of the largest decision, scikit-learn's calibrated classifiers that "
            "of the largest probability; dataclasses.replace(model, sigmoids=None).to_sklearn() leaves the probabilities out"
        )
    for column in () if model.encoding is None else model.encoding.columns:
        if column.kind == "text" and column.bits:
            raise ModelError(
                f"to_sklearn: expected text with a vocabulary, found {column.name!r} (hashed); convert without --hash"
            )
        if column.kind not in ("number", "category", "text") or column.form not in ("", "boolean", "numbers"):
            found = f"{column.name!r} ({column.form or column.kind})"
            raise ModelError(
                f"to_sklearn: expected columns of numbers, categories, text and booleans, found {found}, for which no "
                "class of scikit-learn makes the same features"
            )


# ---------------------------------------------------------------------------------------------------------------------
# Encoding and scaling


def _encoder(encoding: Encoding) -> tuple[Any, np.ndarray]:
    """Make a fitted transformer of frames, and tell the model's feature of each column that it makes.

    scikit-learn has a category each for None and NaN: both are the feature of missing values.
    """
    try:
        import pandas as pd
    except ImportError:
        raise UsageError(
            "to_sklearn: a pipeline of named columns needs pandas; install it by: pip install pandas"
        ) from None
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import MissingIndicator

    starts = encoding.first_features().tolist()
    parts: list[tuple[str, Any, str | list[str]]] = []
    features, before = [np.empty(0, np.int64)], 0
    weights: dict[str, np.ndarray] = {}  # of columns of text
    example = pd.DataFrame(index=[0])
    of_numbers = {column.name for column in encoding.columns if column.kind == "number"}
    for number, (column, start) in enumerate(zip(encoding.columns, starts, strict=True)):
        own, name = (
            np.arange(start, start + column.n_features),
            column.name + f" from {start}" * (column.added > 0),
        )
        if column.kind == "number":
            parts.append((column.name, _of_numbers(encoding.missing, column.indicated), [column.name]))
            example[column.name] = [0.0]
        elif column.kind == "text":
            if column.added or not (tokens := tokens_of(encoding, number)).texts:
                before += column.n_categories
                continue
            parts.append((column.name, _of_text(column, tokens), column.name))
            example[column.name], own = [""], tokens.features
            if tokens.weights is not None:
                weights[column.name] = tokens.weights
        elif column.added and column.name in of_numbers:
            parts.append((name, _as_floats(MissingIndicator(features="all")), [column.name]))
        elif own.size:
            categories = _categories(encoding, column, before)
            parts.append((name, _of_categories(categories, column), [column.name]))
            example[column.name] = categories[:1] or [None]
            own = np.append(own, own[-1:]) if column.indicated and column.form != "numbers" else own
        features.append(own)
        before += column.n_categories
    made = ColumnTransformer(parts, sparse_threshold=1.0)
    made.fit(example)
    for name, of_column in weights.items():
        made.named_transformers_[name].idf_ = of_column
    return made, np.concatenate(features)


def _of_text(column: Column, tokens: Tokens) -> Any:
    """Make a vectorizer of a column's tokens; its documents must be strings."""
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    places = {text: place for place, text in enumerate(tokens.texts)}
    kind = TfidfVectorizer if column.tf_idf else CountVectorizer
    return kind(vocabulary=places, ngram_range=column.ngrams, dtype=np.float64)


def _categories(encoding: Encoding, column: Column, before: int) -> list[Any]:
    """Return the values for which a column has a feature of 1: its strings, or its numbers."""
    assert encoding.categories is not None
    texts = [encoding.categories.text(before + k) for k in range(column.n_categories)]
    return [float(text) for text in texts] if column.form == "numbers" else texts


def _as_floats(*following: Any) -> Any:
    """Make a pipeline that hands on a frame's numbers and booleans of any type as float64, missing ones as NaN."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.utils import check_array

    how = {"dtype": np.float64, "ensure_all_finite": False}
    return make_pipeline(
        FunctionTransformer(check_array, kw_args=how, feature_names_out="one-to-one"), *following
    )


def _of_numbers(missing: str, indicated: bool) -> Any:
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import FeatureUnion

    if missing == "error":
        return _as_floats()
    zero = SimpleImputer(strategy="constant", fill_value=0, keep_empty_features=True)
    if not indicated:
        return _as_floats(zero)
    return _as_floats(FeatureUnion([("value", zero), ("missing", MissingIndicator(features="all"))]))


def _of_categories(categories: list[Any], column: Column) -> Any:
    from sklearn.preprocessing import OneHotEncoder

    of_numbers = column.form == "numbers"
    missing = [np.nan] if of_numbers else [None, np.nan]
    known = np.array(categories + missing * column.indicated, float if of_numbers else object)
    encoder = OneHotEncoder(categories=[known], handle_unknown="ignore", dtype=np.float64)
    return _as_floats(encoder) if of_numbers else encoder


def _scalers(scaling: Any, feature: np.ndarray) -> list[tuple[str, Any]]:
    from sklearn.preprocessing import MaxAbsScaler, Normalizer, StandardScaler

    steps: list[tuple[str, Any]] = []
    if scaling.scales is not None:
        scales = scaling.scales[feature]
        row = scales[np.newaxis]
        scaler = MaxAbsScaler().fit(row)
        if scaling.scale == "standard":
            scaler = StandardScaler(with_mean=False).fit(row)
            scaler.scale_, scaler.var_ = scales, scales**2
        steps.append(("scale", scaler))
    if scaling.normalize != "none":
        steps.append(("normalize", Normalizer(norm=scaling.normalize).fit(np.ones((1, feature.size)))))
    return steps


# ---------------------------------------------------------------------------------------------------------------------
# Estimators


def _estimator(model: Any, feature: np.ndarray) -> Any:
    """Make the fitted estimator, which takes the given features of the model."""
    weights, intercept = model.weights[feature], model.intercept
    if model.has_targets:
        return _fitted(_regressor(model), coef_=weights[:, 0], intercept_=float(intercept[0]))
    if form_of(model.loss) == INLIERS:
        return _one_class(model, weights)
    if not (model.is_binary or model.choice.one_vector_per_class):
        columns = model.choice.score_code()
        weights, intercept = weights @ columns, intercept @ columns
    elif model.n_classes == 2 and not model.is_binary:
        weights, intercept = (part[..., 1:] - part[..., :1] for part in (weights, intercept))
    if model.sigmoids is not None:
        return _calibrated(model, weights, intercept)
    intercept = intercept + _ties(model, intercept)
    if gives_probabilities(model.loss) and model.has_probabilities:
        return _logistic(model, weights, intercept)
    return _classifier(_svm(model), model, weights, intercept)


def _fitted(estimator: Any, **attributes: Any) -> Any:
    """Give an estimator the attributes of a fit."""
    coef = attributes["coef_"]
    for name, value in {"n_features_in_": coef.shape[-1], "n_iter_": 0, **attributes}.items():
        setattr(estimator, name, value)
    return estimator


def _classes(model: Any) -> np.ndarray:
    return np.array(model.label_numbers())


def _classifier(estimator: Any, model: Any, weights: np.ndarray, intercept: np.ndarray) -> Any:
    coef = np.ascontiguousarray(weights.T)
    return _fitted(estimator, coef_=coef, intercept_=intercept, classes_=_classes(model))


def _ties(model: Any, intercept: np.ndarray) -> np.ndarray:
    """Return what is added to intercepts of 0, so that a row without entries is predicted as by the model.

    scikit-learn takes the smaller of two classes, and the first of several with equal decisions.
    """
    order, added = model.tie_order, np.zeros(intercept.size)
    if not intercept.any() and not np.array_equal(order, np.arange(order.size)):
        if intercept.size == 1:
            added[:] = _TIE
        else:
            added[order] = _TIE * np.arange(order.size - 1, -1, -1)
    return added


def _logistic(model: Any, weights: np.ndarray, intercept: np.ndarray) -> Any:
    """Make the logistic regression of two classes or of all at once, or one for each class against the rest."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import LabelBinarizer

    def make() -> Any:
        return LogisticRegression(**_strengths(model))

    if intercept.size == 1 or form_of(model.loss) != MARGINS:
        return _classifier(make(), model, weights, intercept)
    made = OneVsRestClassifier(make())
    two = np.array([0, 1])
    made.estimators_ = [
        _fitted(make(), coef_=weights.T[k : k + 1], intercept_=intercept[k : k + 1], classes_=two)
        for k in range(intercept.size)
    ]
    made.label_binarizer_ = LabelBinarizer(sparse_output=True).fit(_classes(model))
    made.classes_, made.n_features_in_ = _classes(model), weights.shape[0]
    return made


def _calibrated(model: Any, weights: np.ndarray, intercept: np.ndarray) -> Any:
    """Fold Platt's ``1/(1 + exp(a h + b))`` into a logistic regression; labels are still by the sign of ``h``."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import FixedThresholdClassifier

    a, b = model.sigmoids[:, 0].tolist()
    inner = _classifier(LogisticRegression(**_strengths(model)), model, -a * weights, -a * intercept - b)
    zero = -b if model.tie_order[0] == 1 else float(np.nextafter(-b, np.inf))
    positive = _classes(model)[1].item()
    made = FixedThresholdClassifier(
        inner, threshold=zero, pos_label=positive, response_method="decision_function"
    )
    made.estimator_ = inner
    return made


def _svm(model: Any) -> Any:
    from sklearn.svm import LinearSVC

    C = {} if model.C is None else {"C": model.C}
    if form_of(model.loss) == CLASSES:
        return LinearSVC(multi_class="crammer_singer", **C)
    return LinearSVC(loss=model.loss if model.loss in ("hinge", "squared_hinge") else "squared_hinge", **C)


def _one_class(model: Any, weights: np.ndarray) -> Any:
    from sklearn.linear_model import SGDOneClassSVM

    nu = {} if model.parameter is None else {"nu": model.parameter}
    # theirs counts a row on the plane as inside
    outside = 0.0 if model.tie_order[0] == 1 or model.intercept[0] else _TIE
    return _fitted(
        SGDOneClassSVM(**nu), coef_=weights[:, 0], offset_=np.array([outside - model.intercept[0]])
    )


def _strengths(model: Any) -> dict[str, Any]:
    """Return the parameters of the penalty, ``½‖w‖² + C Σ loss``."""
    total = model.l1 + model.l2
    return {} if model.C is None or not total else {"C": model.C / total, "l1_ratio": model.l1 / total}


def _regressor(model: Any) -> Any:
    from sklearn import linear_model, svm

    C = 1.0 if model.C is None else model.C
    parameter = {} if model.parameter is None else {"epsilon": model.parameter}
    if model.loss == "squared_error":
        if model.l1:
            return linear_model.ElasticNet(l1_ratio=model.l1 / (model.l1 + model.l2))
        return linear_model.Ridge(alpha=0.5 * model.l2 / C)
    if model.loss == "huber":
        return linear_model.HuberRegressor(alpha=model.l2 / C, **parameter)
    if model.loss == "quantile":
        return linear_model.QuantileRegressor(quantile=model.row_loss.parameter)
    return svm.LinearSVR(C=C, loss=model.loss, **parameter)
