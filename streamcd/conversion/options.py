"""Options of a conversion and of a column layout, declared and checked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import UsageError
from ..core.label_sets import SEPARATOR
from ..core.memory_budget import parse_size
from ..core.options import Checked, Place, Section, SharedWork, Size, declared, option, replaces

MAX_FEATURES = 1 << 62
_MOST_WORDS = 9  # of a feature

_NAMES = "str or sequence of str"


@dataclass(frozen=True, kw_only=True)
class TableOptions(Checked):
    """Options for tables, brought to one form: names are text, and lists of them tuples, empty if not given."""

    label: Any = option(
        None, "Column of labels, numbers or strings; tables need it.", kind="str", metavar="COL"
    )
    target: Any = option(
        None,
        "Numbers to predict, in place of classes: the column of a table; of a source that needs no name, such as libsvm "
        "text or (X, y), alone (in Python True), then as the last option.",
        kind="str or bool",
        metavar="[COL]",
        bare="",
    )
    multilabel: Any = option(
        None,
        "Rows have any number of labels, each a problem: text such as 1,3, joined by SEP (a comma), or lists. Alone, "
        "as the last option. In Python True or SEP; y of (X, y) may have a column of 0 and 1 for each label.",
        kind="str or bool",
        section=Section.BESIDE,
        metavar="[SEP]",
        bare=SEPARATOR,
    )
    weight_column: Any = option(
        None, "Column of row weights.", kind="str", metavar="COL", section=Section.BESIDE
    )
    features: Any = option(
        None,
        "Columns that become features, separated by commas (in Python also a sequence); all others by default. "
        "INDICES:VALUES are two columns of lists: sparse rows.",
        kind=_NAMES,
        metavar="COL,…",
    )
    drop: Any = option(None, "Columns to leave out.", kind=_NAMES, metavar="COL,…", section=Section.COLUMNS)
    id: Any = option(
        None,
        "Column that identifies a row, such as a name or a number: kept as it is, no feature; predictions have it.",
        kind="str",
        metavar="COL",
        section=Section.BESIDE,
    )
    keep: Any = option(
        None,
        "Columns to keep beside the rows as they are, no features, such as groups or folds.",
        kind=_NAMES,
        metavar="COL,…",
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
    number: Any = option(
        None,
        "Columns whose strings are numbers, such as 1 000, 1,000 and 12% (0.12), rather than categories; other "
        "strings in them are refused.",
        kind=_NAMES,
        metavar="COL,…",
        section=Section.COLUMNS,
    )
    category: Any = option(
        None,
        "Columns that become categories: of numbers, each distinct one; of strings, in spite of `hash`. COL:text takes text "
        "as it stands, such as codes, some of which are numbers.",
        kind=_NAMES,
        metavar="COL[:text],…",
        section=Section.COLUMNS,
    )
    date: Any = option(
        None,
        "Columns of times, also as text (ISO 8601, or day, month and a year of four digits), and how each becomes features: "
        "COL:parts, as year, month, weekday and hour, categories in UTC; COL:seconds, the default, as seconds since the "
        "first row's. COL:dmy is text with the day first, COL:mdy with the month; needed where no day is above 12.",
        kind=_NAMES,
        metavar="COL[:parts][:dmy],…",
        section=Section.COLUMNS,
    )
    text: Any = option(
        None,
        "Columns of text: a feature for each word that occurs, its count as the value. Words are of two characters and more "
        "(letters, digits and _ of any language), in lower case, as scikit-learn's CountVectorizer takes them; with `hash`, "
        "each column has 2^BITS features.",
        kind=_NAMES,
        metavar="COL,…",
        section=Section.TEXT,
    )
    ngrams: Any = option(
        "1-1",
        "Neighbouring words that make a feature, from the least to the most: 1-2 are words and pairs of words.",
        kind="str or (int, int)",
        metavar="N-M",
        section=Section.TEXT,
    )
    tf_idf: bool = option(
        False,
        "Multiply counts by ln((1 + n)/(1 + d)) + 1 for d of n documents that have the word, then divide each column's part "
        "of a row by its Euclidean norm, as scikit-learn's TfidfVectorizer does.",
        section=Section.TEXT,
    )
    min_count: int = option(
        1,
        "Leave out words that occur in fewer documents; with `hash`, buckets, so that words that share one count together.",
        metavar="N",
        section=Section.TEXT,
    )
    decimal: str = option(
        ".",
        "Decimal mark of numbers in delimited text, and in the columns of `number`.",
        choices=(".", ","),
        section=Section.COLUMNS,
    )

    columns_from: Place = option(
        None,
        "Use the columns as that dataset does, or as a file says that 'streamcd info DATASET --columns' wrote and you have "
        "edited, in place of the other options for columns.",
        kind="path",
        metavar="DATASET|FILE",
        section=Section.SOURCE,
    )
    codes: tuple[str, ...] = ()  # of `category`, columns of text to take as it stands
    columns_file: str = ""  # what `columns_from` named, once it is read

    def __post_init__(self) -> None:
        self._bring_to_one_form()
        if self.columns_from is not None:
            from .column_summary import read_columns

            others = [flag for flag in self.given if flag != "--columns-from"]
            if others:
                raise UsageError(
                    f"--columns-from and {', '.join(others)} exclude each other; edit its file instead"
                )
            self._set(**read_columns(self.columns_from))
            self._set(columns_file=str(self.columns_from), columns_from=None)
            self._bring_to_one_form()
        self._check_choices()
        if self.hash is not None and not 1 <= self.hash <= 30:
            raise UsageError(f"expected --hash from 1 to 30 bits, found {self.hash}")
        if self.min_count < 1:
            raise UsageError(f"expected --min-count from 1 document on, found {self.min_count}")

    def _bring_to_one_form(self) -> None:
        target = "" if self.target in (None, True, False) else str(self.target)
        if target and self.label and target != str(self.label):
            raise UsageError(
                f"--label {self.label} and --target {target} exclude each other: name one of them"
            )
        if self.target not in (None, False) and _separator(self.multilabel):
            raise UsageError(
                "--target and --multilabel exclude each other: rows have numbers, or sets of labels"
            )
        self._set(
            # names of columns may be numbers in a frame of pandas', which are text in Arrow's
            label=target or ("" if self.label is None else str(self.label)),
            target=self.target not in (None, False),
            multilabel=_separator(self.multilabel),
            weight_column="" if self.weight_column is None else str(self.weight_column),
            features=_names(self.features),
            drop=_names(self.drop),
            id="" if self.id is None else str(self.id),
            keep=_names(self.keep),
            number=_names(self.number),
            category=tuple(_without_ending(name, ("text",))[0] for name in _names(self.category)),
            codes=tuple(self.codes)
            + tuple(
                name for name, end in (_without_ending(of, ("text",)) for of in _names(self.category)) if end
            ),
            date=_dates(self.date),
            ngrams=_ngrams(self.ngrams),
        )
        named = (
            self.text if isinstance(self.text, Mapping) else dict.fromkeys(_names(self.text), self.of_text)
        )
        self._set(text=dict(named))

    @property
    def of_text(self) -> dict[str, Any]:
        """Fields of an encoding's columns of text, but for their names."""
        return {"ngrams": self.ngrams, "tf_idf": self.tf_idf, "min_count": self.min_count}

    @property
    def given(self) -> list[str]:
        """Names on the command line of the options for tables that differ from their defaults."""
        # these are for other sources, too
        usual = replace(TableOptions(), target=self.target, multilabel=self.multilabel)
        of_tables = declared(TableOptions)
        given = [name for name in of_tables if getattr(self, name) != getattr(usual, name)]
        return [self.label_flag if name == "label" else of_tables[name].flags[0] for name in given]

    @property
    def label_flag(self) -> str:
        """The option that names the column `label`."""
        return "--target" if self.target else "--label"


def _separator(multilabel: Any) -> str:
    """Return what separates the labels of a row; empty where it has one."""
    if multilabel in (None, False, ""):
        return ""
    separator = SEPARATOR if multilabel is True else str(multilabel)
    if len(separator) != 1 or separator.isalnum() or separator in '\r\n"+-._':
        raise UsageError(
            f"--multilabel: expected the character between labels, such as , or ;, found {separator!r}; alone it is a comma"
        )
    return separator


def _names(columns: Any) -> tuple[str, ...]:
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    return tuple(str(name) for name in columns or () if name != "")


def _ngrams(given: Any) -> tuple[int, int]:
    """Return the least and the most words of a feature."""
    parts = str(given).split("-") if isinstance(given, str | int) else [str(part) for part in given]
    numbers = [int(part) for part in parts if part.strip().isdecimal()]
    if len(numbers) != len(parts) or len(parts) > 2 or not 1 <= numbers[0] <= numbers[-1] <= _MOST_WORDS:
        raise UsageError(
            f"--ngrams: expected numbers of words such as 1-2, {_MOST_WORDS} at most, found {given!r}"
        )
    return numbers[0], numbers[-1]


def _dates(columns: Any) -> dict[str, Any]:
    """Return the columns of times, as what they become features, and the order of day and month; "" if that is not said.

    The former is "parts" or some of them, or "seconds" or an origin.
    """
    if isinstance(columns, Mapping):
        return dict(columns)
    found: dict[str, Any] = {}
    for column in _names(columns):
        rest, order = _without_ending(column, ("dmy", "mdy"))
        name, form = _without_ending(rest, ("parts", "seconds"))
        if name == column and ":" in name:
            name, _, found_form = name.rpartition(":")
            raise UsageError(
                f"--date {column}: expected {name}:parts or {name}:seconds, then :dmy or :mdy where the order of day and "
                f"month is to be said, found {found_form!r}"
            )
        found[name] = form or "seconds", order
    return found


def _without_ending(column: str, endings: tuple[str, ...]) -> tuple[str, str]:
    name, _, ending = column.rpartition(":")
    return (name, ending) if name and ending in endings else (column, "")


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
        "Compression of the Parquet files. auto: none, or LZ4 for a column that it shrinks by a fifth, by a sample. split: "
        "LZ4 of the numbers' bytes place by place (BYTE_STREAM_SPLIT), for data that a slow disk or a network bounds; text "
        "takes a quarter fewer bytes. Spark reads it only with spark.sql.parquet.enableVectorizedReader=false.",
        choices=("auto", "lz4", "split", "zstd", "none"),
        section=Section.DATASET,
    )
    force: bool = replaces("column layout, once the new one is complete")

    def __post_init__(self) -> None:
        self._set(
            memory=parse_size(self.memory),
            shard_size=parse_size(self.shard_size),
            chunk_size=parse_size(self.chunk_size),
        )
        self._check_choices()


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(ColumnsOptions, TableOptions):
    """Options of `convert.convert`."""

    format: str = option(
        "auto",
        "Format of the source; auto recognises it by content. csv: text with a line of names and any delimiter. documents: "
        "lines of a label, a tab and a text. folder: a folder of texts for each class.",
        choices=("auto", "libsvm", "csv", "parquet", "arrow", "npz", "npy", "documents", "folder"),
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
        "Divide each feature by its largest absolute value (maxabs), or by its standard deviation (standard: over all "
        "rows, unweighted, absent entries as zeros; the mean is not subtracted, which would make the data dense). "
        "Models keep the divisors and apply them to unscaled data.",
        choices=("none", "maxabs", "standard"),
    )
    normalize: str = option(
        "none",
        "Divide each row by its Euclidean norm, after `scale`; for counts and other rows of very different lengths.",
        choices=("none", "l2"),
        section=Section.VALUES,
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
    shuffle: bool = option(
        True,
        "Put rows in random order, rather than keep that of the source, which should then be random: data sorted by "
        "label trains badly.",
        flags="--shuffle/--no-shuffle",
        section=Section.DATASET,
    )
    append: bool = option(
        False,
        "Append the rows to the dataset, encoded as its own: index base, width, columns, categories, scaling, type. Runs "
        "on the rows before go on with these.",
        section=Section.LATER,
    )
    force: bool = replaces("dataset, once the new one is complete")

    def __post_init__(self) -> None:
        self._set(dtype=_type_name(self.dtype), index_base=str(self.index_base), seed=int(self.seed))
        TableOptions.__post_init__(self)
        ColumnsOptions.__post_init__(self)
        if self.n_features is not None and not 1 <= self.n_features <= MAX_FEATURES:
            raise UsageError(f"expected --n-features from 1 to 2^62, found {self.n_features}")


def _type_name(dtype: Any) -> Any:
    """Name a type of numpy's; what is none stays as it is."""
    import numpy as np

    with suppress(TypeError):
        return str(np.dtype(dtype))
    return dtype
