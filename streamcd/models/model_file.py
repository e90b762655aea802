"""Structure of ``model.json``, the description of a model on disk."""

from __future__ import annotations

import math
from typing import Any, Literal

from ..core.classes import check_class_names
from ..core.errors import ModelError
from ..core.metadata import Count, Kind, Structure, content_digest
from .encoding import EncodingRecord


class ModelScaling(Structure):
    """Transformation of the values that the model was trained on; `checksum` is that of ``scaling.npy``."""

    scale: str
    normalize: str
    digest: str
    checksum: str = ""


class ModelFile(Structure, kw_only=True):
    """Content of ``model.json``; the fields are those of `Model`."""

    loss: str
    method: str
    C: float | None
    n_features: Count
    bias: float
    free_bias: bool = False
    intercept: list[float]
    classes: list[float]
    label_kind: str
    code: list[list[int]] | None
    tie_order: list[Count]
    ridge: float = 1.0
    slack: str = "hinge"
    class_weight: dict[float, float]
    index_base: Literal[0, 1]
    fingerprint: str
    versions: dict[str, str]
    certificate: dict[str, Any]
    sigmoids: list[list[float]] | None = None
    scaling: ModelScaling | None = None
    class_names: list[str] | None = None
    encoding: EncodingRecord | None = None
    categories_checksum: str = ""
    weights_checksum: str

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.bias, self.C or 0.0, *self.intercept, *self.classes))):
            raise ValueError("a number that is not finite")
        check_class_names(self.class_names)


STORED_FIELDS = [
    name
    for name in ModelFile.__struct_fields__
    if name not in ("scaling", "weights_checksum", "code", "encoding", "categories_checksum")
]

MODEL = Kind(
    "streamcd-model",
    2,
    ModelFile,
    ModelError,
    "restore it from a copy, or train again",
    "digest",
    lambda description: content_digest(description, "digest"),
)
