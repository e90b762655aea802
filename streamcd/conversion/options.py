"""Options of a conversion and of a column layout, declared and checked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import UsageError
from ..core.memory_budget import parse_size
from ..core.options import Checked, Place, Section, SharedWork, Size, declared, option, replaces

MAX_FEATURES = 1 << 62

_NAMES = "str or sequence of str"


@dataclass(frozen=True, kw_only=True)
class TableOptions(Checked):
    """Options for tables, brought to one form: names are text, and lists of them tuples, empty if not given."""

    label: Any = option(
        None, "Column of labels, which tables need. They are numbers or strings.", kind="str", metavar="COL"
    )
    target: Any = option(
        None,
        "Column of numbers to predict, in place of classes. Of a source that needs no name, such as libsvm text or (X, y), "
        "it stands alone (in Python True), as the last option.",
        kind="str or bool",
        metavar="[COL]",
        bare="",
    )
    weight_column: Any = option(
        None, "Column of row weights.", kind="str", metavar="COL", section=Section.BESIDE
    )
    features: Any = option(
        None,
        "Columns that become features. They are separated by commas (in Python also a sequence); by default all others. "
        "INDICES:VALUES are two columns of lists: sparse rows.",
        kind=_NAMES,
        metavar="COL,…",
    )
    drop: Any = option(
        None,
        "Columns to leave out.",
        kind=_NAMES,
        metavar="COL,…",
        section=Section.COLUMNS,
        is_common=True,
    )
    id: Any = option(
        None,
        "Column that identifies a row. A name or a number, say, it is kept as it is, no feature; predictions have it.",
        kind="str",
        metavar="COL",
        section=Section.BESIDE,
        is_common=True,
    )
    fold: Any = option(
        None,
        "Column that tells the rows' folds, such as groups or months: kept as it is, no feature; tune splits by it.",
        kind="str",
        metavar="COL",
        section=Section.BESIDE,
    )
    hash: int | None = option(
        None,
        "Hash strings into 2^BITS features (MurmurHash3, signed, as scikit-learn's FeatureHasher) in place of a "
        "feature for each category.",
        metavar="BITS",
        section=Section.COLUMNS,
    )
    missing: str = option(
        "indicator",
        "Missing values: 1 in an indicator feature of their own, where a column has any, or zero, or an error.",
        choices=("indicator", "zero", "error"),
    )
    category: Any = option(
        None,
        "Columns that become categories: of numbers, each distinct one; of strings, in spite of `hash`, or of many ones.",
        kind=_NAMES,
        metavar="COL,…",
        section=Section.COLUMNS,
    )

    def __post_init__(self) -> None:
        target = "" if self.target in (None, True, False) else str(self.target)
        if target and self.label and target != str(self.label):
            raise UsageError(
                f"--label {self.label} and --target {target} exclude each other: name one of them"
            )
        # names of columns may be numbers in a frame of pandas', which are text in Arrow's
        given = {name: getattr(self, name) for name in ("label", "weight_column", "id", "fold")}
        one = {name: "" if column is None else str(column) for name, column in given.items()}
        several = {name: _names(getattr(self, name)) for name in ("features", "drop", "category")}
        self._set(**one | several)
        self._set(label=target or self.label, target=self.target not in (None, False))
        Checked.__post_init__(self)
        if self.hash is not None and not 1 <= self.hash <= 30:
            raise UsageError(f"expected --hash from 1 to 30 bits, found {self.hash}")

    @property
    def given(self) -> list[str]:
        """Names on the command line of the options for tables that differ from their defaults."""
        usual = replace(TableOptions(), target=self.target)  # which is for other sources, too
        of_tables = declared(TableOptions)
        given = [name for name in of_tables if getattr(self, name) != getattr(usual, name)]
        return [self.label_flag if name == "label" else of_tables[name].names[0] for name in given]

    @property
    def label_flag(self) -> str:
        """The option that names the column `label`."""
        return "--target" if self.target else "--label"


def _names(columns: Any) -> tuple[str, ...]:
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    return tuple(str(name) for name in columns or () if name != "")


@dataclass(frozen=True, kw_only=True)
class ColumnsOptions(SharedWork):
    """Options of `transpose.make_columns`."""

    shard_size: Size = option(
        "256MB",
        "Decoded size of a shard: a Parquet file, the unit of distribution.",
        metavar="SIZE",
        section=Section.DATASET,
    )
    chunk_size: Size = option(
        "1MB",
        "Decoded size of a chunk: a row group, the unit of reading.",
        metavar="SIZE",
        section=Section.DATASET,
    )
    compression: str = option(
        "auto",
        "Compression of the Parquet files. auto: none, or LZ4 for a column that it shrinks by a fifth, by a sample.",
        choices=("auto", "none", "lz4", "zstd"),
        section=Section.DATASET,
    )
    force: bool = replaces("column layout, once the new one is complete")

    def __post_init__(self) -> None:
        self._set(
            memory=parse_size(self.memory),
            shard_size=parse_size(self.shard_size),
            chunk_size=parse_size(self.chunk_size),
        )
        Checked.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(ColumnsOptions, TableOptions):
    """Options of `convert.convert`."""

    format: str = option(
        "auto",
        "Format of the source; auto recognises it by content. csv: text with a line of names and any delimiter.",
        choices=("auto", "libsvm", "csv", "parquet", "arrow", "npz", "npy"),
        section=Section.SOURCE,
    )
    index_base: str | int = option(
        "auto",
        "First feature index. auto: 0 if an index 0 occurs anywhere in the source, else 1.",
        kind='{"auto", 0, 1}',
        choices=("auto", "0", "1"),
        section=Section.SOURCE,
    )
    n_features: int | None = option(
        None,
        "Number of features.",
        metavar="D",
        default_is="given by the largest index",
        section=Section.SOURCE,
    )
    weights: Place = option(
        None,
        "Weights of the rows, one number per line in the order of the source. A row of weight 2 counts twice.",
        kind="path",
        metavar="FILE",
        section=Section.SOURCE,
    )
    like: Place = option(
        None,
        "Take index base, number of features, labels, columns and scaling from this dataset, run or model; use it for "
        "test data. Features beyond that number are ignored and counted.",
        kind="path",
        metavar="DATASET|MODEL",
    )
    scale: str = option(
        "none",
        "Divide each feature by its largest absolute value (maxabs), or by its standard deviation (standard). That is "
        "over all rows, unweighted, absent entries as zeros; the mean is not subtracted, which would make the data dense. "
        "Models keep the divisors and apply them to unscaled data.",
        choices=("none", "maxabs", "standard"),
    )
    normalize: str = option(
        "none",
        "Divide each row by its Euclidean norm. That is after `scale`, and for counts and other rows of very different "
        "lengths.",
        choices=("none", "l2"),
        section=Section.VALUES,
        is_common=True,
    )
    dtype: Any = option(
        "float32",
        "Type of the values on disk and in training; weights are float64 in any case.",
        choices=("float32", "float64"),
        section=Section.VALUES,
    )
    compact: bool = option(
        False,
        "Number only the features that occur, for indices such as 2^50; models speak the indices of the source.",
        section=Section.SOURCE,
    )
    seed: int = option(0, "Seed of the random order of rows.", section=Section.DATASET)
    force: bool = replaces("dataset, once the new one is complete")

    def __post_init__(self) -> None:
        import numpy as np  # not for help

        with suppress(TypeError):  # what is no type stays as it is
            self._set(dtype=str(np.dtype(self.dtype)))
        self._set(index_base=str(self.index_base), seed=int(self.seed))
        TableOptions.__post_init__(self)
        ColumnsOptions.__post_init__(self)
        if self.n_features is not None and not 1 <= self.n_features <= MAX_FEATURES:
            raise UsageError(f"expected --n-features from 1 to 2^62, found {self.n_features}")
