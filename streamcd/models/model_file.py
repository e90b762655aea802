"""Files of a model on disk: the record that is ``model.json``, and arrays with checksums."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..core.errors import ModelError
from ..core.files import Count, Kind, Structure, metadata_text, replacing
from ..core.setting import default_code
from ..dataset.arrow_columns import file_checksum
from ..dataset.schema import ScalingRecord, check_class_names
from ..kernels.loss_table import LOSSES
from .encoding import CATEGORIES_FILE, Encoding


class ModelScaling(ScalingRecord):
    """Transformation of the values that the model was trained on; `checksum` is that of ``scaling.npy``."""

    checksum: str = ""


class ModelFile(Structure, kw_only=True):
    """Content of ``model.json``: all of a model but its large arrays; see `Model`.

    `scaling`, `encoding`, `is_sparse` and the checksums are those of the files beside it, set when these are written.
    """

    loss: str
    C: float | None
    n_features: Count
    intercept: list[float]
    classes: list[float]
    code: list[list[int]] | None = None  # None: that of `default_code`
    tie_order: list[Count] | None = None  # None: ascending
    method: str = "dual"
    bias: float = -1.0
    free_bias: bool = False
    l1: float = 0.0
    l2: float = 1.0
    index_base: Literal[0, 1] = 1
    label_kind: str = "integer"
    class_names: list[str] | None = None
    class_weight: dict[float, float] = {}  # noqa: RUF012
    ridge: float = 1.0
    slack: str = "hinge"
    parameter: float | None = None
    fingerprint: str = ""
    versions: dict[str, str] = {}  # noqa: RUF012
    certificate: dict[str, Any] = {}  # noqa: RUF012
    scaling: ModelScaling | None = None
    encoding: Encoding | None = None
    is_sparse: bool = False
    weights_checksum: str = ""
    categories_checksum: str = ""
    indices_checksum: str = ""  # empty where features are numbered from `index_base` on
    deviations_checksum: str = ""  # empty where deviations are not known

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

    @property
    def weights_file(self) -> str:
        """Name of the file of the weights."""
        return SPARSE_FILE if self.is_sparse else "weights.npy"


def stored_code(loss: str, code: np.ndarray) -> list[list[int]] | None:
    """Return a code for a model's file, None for that of `default_code`: with many classes it would fill the file."""
    if len(code) > 2:
        default = default_code(LOSSES[loss].form, len(code))
        # row by row: with many classes these may be views whose full arrays would not fit in memory
        if code.shape == default.shape and all(map(np.array_equal, code, default)):
            return None
    return code.astype(np.int8, copy=False).tolist()


def number_text(label: float, label_kind: str) -> str:
    """Format a label that is a number as in the source: integers without a decimal point."""
    return str(int(label)) if label_kind == "integer" else repr(float(label))


SPARSE_FILE = "weights.npz"
"""File of weights few of which are not 0: SciPy's of a matrix in CSC."""

MODEL_FILES = {
    "weights.npy",
    SPARSE_FILE,
    "scaling.npy",
    "indices.npy",
    "deviations.npy",
    CATEGORIES_FILE,
}
"""Files of a model beside ``model.json``, of which any may be absent but for one of the first two."""

MODEL = Kind(
    "streamcd-model",
    4,
    ModelFile,
    ModelError,
    "restore it from a copy, or train again",
)


def write_model(
    directory: Path, record: ModelFile, arrays: Mapping[str, Any], encoding: Encoding | None
) -> None:
    """Write a model's files: arrays, sparse weights, or (shape, blocks of rows); categories; and ``model.json`` last."""
    names = [*arrays]
    if encoding is not None and encoding.has_categories:
        names.append(CATEGORIES_FILE)
    with replacing(*(directory / name for name in [*names, "model.json"])) as (*partials, description):
        files = dict(zip(names, partials, strict=True))
        for name, array in arrays.items():
            with open(files[name], "wb") as file:
                if name == SPARSE_FILE:
                    import scipy.sparse as sp

                    sp.save_npz(file, array.tocsc(), compressed=False)
                    continue
                shape, blocks = array if isinstance(array, tuple) else (array.shape, [array])
                dtype = "<i8" if name == "indices.npy" else "<f8"
                header = {"descr": dtype, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for block in blocks:
                    np.ascontiguousarray(block, dtype=dtype).tofile(file)
        if encoding is not None and CATEGORIES_FILE in files:
            encoding.save(files[CATEGORIES_FILE])
        sums = {name: file_checksum(path) for name, path in files.items()}
        record = record.but(
            is_sparse=SPARSE_FILE in files,
            weights_checksum=sums.get(SPARSE_FILE) or sums["weights.npy"],
            indices_checksum=sums.get("indices.npy", ""),
            deviations_checksum=sums.get("deviations.npy", ""),
            categories_checksum=sums.get(CATEGORIES_FILE, ""),
            scaling=record.scaling and record.scaling.but(checksum=sums.get("scaling.npy", "")),
        )
        description.write_bytes(metadata_text(MODEL, record.record(), allow_nan=False))
    # files of the model that was here before
    for name in MODEL_FILES.difference(names):
        (directory / name).unlink(missing_ok=True)


def check_file(path: Path, checksum: str) -> None:
    """Refuse a file that is missing, or whose checksum is another."""
    if not path.is_file():
        raise ModelError(f"{path}: the file is missing")
    if file_checksum(path) != checksum:  # safety: model::flipped_bit_in_the_weights
        raise ModelError(f"{path}: checksum differs from model.json's, the file was changed or damaged")


def read_array(path: Path, checksum: str, n_rows: int, n_dimensions: int = 1) -> np.ndarray:
    """Read an array of the model with its checksum and shape checked."""
    check_file(path, checksum)
    array: np.ndarray = np.load(path, allow_pickle=False)
    if array.ndim != n_dimensions or array.shape[0] != n_rows:
        raise ModelError(
            f"{path}: expected {n_rows} rows in {n_dimensions} dimensions, found shape {array.shape}"
        )
    return array


def read_weights(directory: Path, record: ModelFile) -> Any:
    """Read the weights of a model with checksums and shapes checked: an array, or SciPy's CSR."""
    path = directory / record.weights_file
    if not record.is_sparse:
        return read_array(path, record.weights_checksum, record.n_features, 2)
    import scipy.sparse as sp

    check_file(path, record.weights_checksum)
    try:
        matrix = sp.load_npz(path)
        matrix.check_format(full_check=True)
    except (AttributeError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path}: damaged ({error})") from None
    if matrix.shape[0] != record.n_features:
        raise ModelError(f"{path}: expected {record.n_features} rows, found shape {matrix.shape}")
    return sp.csr_array(matrix)


# ---------------------------------------------------------------------------------------------------------------------
# Weights few of which are not 0


def is_worth(n_nonzero: int, shape: tuple[int, int]) -> bool:
    """Tell whether weights take less than a quarter, and in memory three quarters, by those that are not 0."""
    n_bytes = 8 * shape[0] * shape[1]
    return n_bytes >= 1 << 16 and 12 * n_nonzero <= n_bytes // 4


def sparse_weights(blocks: Callable[[], Iterable[np.ndarray]], shape: tuple[int, int]) -> Any:
    """Make SciPy's CSR of weights from blocks of their rows, read twice; None where it is not worth it."""
    if not is_worth(0, shape):
        return None
    n_nonzero = 0
    for block in blocks():
        n_nonzero += int(np.count_nonzero(block))
        if not is_worth(n_nonzero, shape):
            return None
    import scipy.sparse as sp  # where there are such weights: a training has no memory for it before its end

    parts = [sp.csr_array((0, shape[1]))]
    parts += map(sp.csr_array, blocks())
    return sp.vstack(parts, format="csr")
