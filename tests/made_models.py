"""Models made of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamcd import Model
from streamcd.models.model import ModelFile, stored_code

PARTS = ("scaling", "encoding", "indices", "deviations")
"""Keywords of `Model`; others are fields of its record."""


def model_of(
    weights: Any, intercept: Any, classes: Any, code: Any, loss: str, C: float | None = 1.0, **fields: Any
) -> Model:
    parts = {name: fields.pop(name) for name in PARTS if name in fields}
    record = ModelFile(
        loss=loss,
        C=C,
        n_features=weights.shape[0],
        intercept=np.asarray(intercept).tolist(),
        classes=np.asarray(classes).tolist(),
        code=stored_code(loss, np.asarray(code, np.int8)),
        **fields,
    )
    return Model(record, weights, **parts)
