"""Files of a model on disk: the structure of ``model.json``, its description, and arrays with checksums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..core.errors import ModelError
from ..core.files import Count, Kind, Structure, metadata_text, replacing
from ..core.setting import check_class_names
from ..dataset.arrow_columns import file_checksum
from ..dataset.schema import ScalingRecord
from ..kernels.loss_table import LOSSES
from .encoding import CATEGORIES_FILE, Encoding, EncodingRecord
from .sparse_weights import SparseWeights


class ModelScaling(ScalingRecord):
    """Transformation of the values that the model was trained on; `checksum` is that of ``scaling.npy``."""

    checksum: str = ""


class ModelFile(Structure, kw_only=True):
    """Content of ``model.json``; the fields are those of `Model`."""

    loss: str
    method: str
    C: float | None
    n_features: Count
    bias: float
    free_bias: bool = False
    l1: float = 0.0
    l2: float = 1.0
    intercept: list[float]
    classes: list[float]
    label_kind: str
    code: list[list[int]] | None
    tie_order: list[Count]
    ridge: float = 1.0
    slack: str = "hinge"
    parameter: float | None = None
    class_weight: dict[float, float]
    index_base: Literal[0, 1]
    fingerprint: str
    versions: dict[str, str]
    certificate: dict[str, Any]
    scaling: ModelScaling | None = None
    class_names: list[str] | None = None
    encoding: EncodingRecord | None = None
    categories_checksum: str = ""
    weights_checksum: str
    support_checksum: str = ""  # of ``support.npy``, where weights that are not 0 are stored alone
    indices_checksum: str = ""  # of ``indices.npy``, where the features have any indices in the source
    deviations_checksum: str = ""  # of ``deviations.npy``, where those of the training rows are known

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError("an unknown loss")
        if not all(map(math.isfinite, (self.bias, self.C or 0.0, *self.intercept, *self.classes))):
            raise ValueError("a number that is not finite")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("a class that is there twice")
        figures = map(self.certificate.get, ("primal_objective", "dual_objective", "gap"))
        if not all(figure is None or isinstance(figure, int | float) for figure in figures):
            raise ValueError("a certificate whose figures are no numbers")
        if self.class_names is not None:
            check_class_names(self.class_names, self.classes)


def number_text(label: float, label_kind: str) -> str:
    """Format a label that is a number as in the source: integers without a decimal point."""
    return str(int(label)) if label_kind == "integer" else repr(float(label))


MODEL_FILES = {
    "weights.npy",
    "support.npy",
    "scaling.npy",
    "indices.npy",
    "deviations.npy",
    CATEGORIES_FILE,
}
"""Files of a model beside ``model.json``, of which any but the first may be absent."""

STORED_FIELDS = [
    name
    for name in ModelFile.__struct_fields__
    if name not in ("scaling", "code", "encoding") and not name.endswith("_checksum")
]

MODEL = Kind(
    "streamcd-model",
    3,
    ModelFile,
    ModelError,
    "restore it from a copy, or train again",
)


def write_model(
    directory: Path,
    description: dict[str, Any],
    arrays: Mapping[str, tuple[tuple[int, ...], Iterable[np.ndarray]]],
    encoding: Encoding | None,
) -> None:
    """Write a model's files: each array from its shape and blocks of rows, the categories, and ``model.json`` last."""
    categories = [CATEGORIES_FILE] if encoding is not None and encoding.has_categories else []
    names = [*arrays, *categories, "model.json"]
    with replacing(*(directory / name for name in names)) as partial:
        files = dict(zip(names, partial, strict=True))
        for name, (shape, blocks) in arrays.items():
            _write_array(files[name], shape, blocks)
        if encoding is not None and categories:
            encoding.save(files[CATEGORIES_FILE])
        checksums = {name: file_checksum(files[name]) for name in names[:-1]}
        for name in ("weights", "support", "indices", "deviations"):
            description[f"{name}_checksum"] = checksums.get(f"{name}.npy", "")
        description["categories_checksum"] = checksums.get(CATEGORIES_FILE, "")
        if "scaling.npy" in arrays:
            description["scaling"]["checksum"] = checksums["scaling.npy"]
        files["model.json"].write_bytes(metadata_text(MODEL, description, allow_nan=False))
    # files of the model that was here before
    for name in MODEL_FILES.difference(names):
        (directory / name).unlink(missing_ok=True)


def _write_array(path: Path, shape: tuple[int, ...], blocks: Iterable[np.ndarray]) -> None:
    """Write a ``.npy`` file of float64, or int64 of numbers of features, from blocks of rows."""
    with open(path, "wb") as file:
        dtype = "<i8" if path.name.startswith(("support", "indices")) else "<f8"
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            np.ascontiguousarray(block, dtype=dtype).tofile(file)


def check_file(path: Path, checksum: str) -> None:
    """Refuse a file that is missing, or whose checksum is another."""
    if not path.is_file():
        raise ModelError(f"{path}: the file is missing")
    if file_checksum(path) != checksum:  # safety: model::flipped_bit_in_the_weights
        raise ModelError(f"{path}: checksum differs from model.json's, the file was changed or damaged")


def read_array(path: Path, checksum: str, n_rows: int | None, n_dimensions: int) -> np.ndarray:
    """Read an array of the model with its checksum and shape checked; any number of rows with None."""
    check_file(path, checksum)
    array: np.ndarray = np.load(path, allow_pickle=False)
    if array.ndim != n_dimensions or n_rows not in (None, array.shape[0]):
        rows = "rows" if n_rows is None else f"{n_rows} rows"
        raise ModelError(f"{path}: expected {rows} in {n_dimensions} dimensions, found shape {array.shape}")
    return array


def read_weights(directory: Path, description: ModelFile) -> np.ndarray | SparseWeights:
    """Read the weights of a model with checksums and shapes checked."""
    path, support = directory / "weights.npy", directory / "support.npy"
    if not description.support_checksum:
        return read_array(path, description.weights_checksum, description.n_features, 2)
    feature = read_array(support, description.support_checksum, None, 1)
    value = read_array(path, description.weights_checksum, feature.size, 2)
    try:
        return SparseWeights(feature, value, description.n_features)
    except ValueError as error:
        raise ModelError(f"{support}: damaged ({error})") from None
