"""Options of public functions, each declared once: a field of a dataclass with its type, default and help; and the listener
that hears of progress and messages, which the library reports and the command line prints.

From the declaration follow the keywords of a function, with signature and docstring (`takes`), and the command line with its
``--help`` (`cli/options`). A help text names other options as `` `max_passes` ``, which the command line shows as
``--max-passes``.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from math import nan, nextafter
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from .errors import KeywordError, UsageError, escaped, in_command, in_words_of_caller

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Options = TypeVar("Options")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])


# ---------------------------------------------------------------------------------------------------------------------
# Progress and messages


_logger = logging.getLogger("streamcd")
_warned: set[str] = set()

COMPILING = "compiling kernels (once for this machine)"
"""Phase in which kernels are compiled that are not cached yet."""


@dataclass(frozen=True)
class TrainingStatus:
    """State of a training after its latest read."""

    task: str  # name if there are several, such as "folds: "
    passes: int  # done
    measure: str  # the stopping rule's: "gap" (relative) or "violation"
    now: float  # its largest estimate among open lanes; nan if there is none yet
    wanted: float


@dataclass(frozen=True)
class Progress:
    """State of a task in progress."""

    phase: str  # name, such as "parse" or "pass 12"
    done: int
    total: int | None  # None if unknown
    unit: str  # "B", "rows", "entries" or "kernels"
    note: str = ""  # further information, such as the current gap
    training: TrainingStatus | None = None  # None for other tasks


def warn_once(text: str) -> None:
    """Log a warning, once per process."""
    if text not in _warned:
        _warned.add(text)
        _logger.warning(escaped(text))


class Listener:
    """Receiver of progress and messages; this one ignores progress and logs the rest.

    A subclass overrides the methods that it needs; pass it as ``listener=`` to any long-running function.

    Examples
    --------
    >>> class Phases(streamcd.Listener):
    ...     seen = set()
    ...     def progress(self, progress):
    ...         self.seen.add(progress.phase)
    >>> listener = Phases()
    >>> result = streamcd.train("data", "watched", listener=listener)
    >>> "pass 1" in listener.seen
    True
    """

    def progress(self, progress: Progress) -> None:
        """Receive progress; called about once per block or window, so it must be cheap."""
        if progress.phase == COMPILING and not progress.done:
            _logger.info(COMPILING)

    def message(self, text: str) -> None:
        """Receive information for the user."""
        _logger.info(escaped(text))

    def warning(self, text: str) -> None:
        """Receive a warning: the user should probably change something."""
        _logger.warning(escaped(text))

    def close(self) -> None:
        """Receive the end of a function; another one may follow."""


class _InPython(Listener):
    """A listener of a call from Python, which hears of keywords where messages have options of the command line."""

    def __init__(self, listener: Listener) -> None:
        self.progress = listener.progress  # type: ignore[method-assign]
        self.close = listener.close  # type: ignore[method-assign]
        self._listener = listener

    def message(self, text: str) -> None:
        self._listener.message(in_words_of_caller(text))

    def warning(self, text: str) -> None:
        self._listener.warning(in_words_of_caller(text))


@contextmanager
def listening(listener: Listener | None) -> Iterator[Listener]:
    """Have a listener, or the one that logs, hear of compilations, of the end, and in Python of keywords in messages."""
    from ..kernels.compiler import on_compile  # here, for a shorter chain of imports

    heard = listener or Listener()
    if not in_command.is_set():
        heard = _InPython(heard)

    def tell(done: int, total: int) -> None:
        heard.progress(Progress(COMPILING, done, total, "kernels"))

    on_compile.append(tell)
    try:
        yield heard
    finally:
        on_compile.remove(tell)
        heard.close()


# ---------------------------------------------------------------------------------------------------------------------
# Declarations


class Section(StrEnum):
    """Headings of ``--help``, in its order."""

    MOST_USED = "Most used"
    SOURCE = "Source"
    COLUMNS = "Columns of tables"
    BESIDE = "Columns beside the rows"
    VALUES = "Values"
    DATASET = "Dataset"
    PROBLEM = "Problem"
    LOSS = "Parameters of the loss"
    PENALTY = "Penalty"
    METHOD = "Method"
    CHOICE = "Choice among C"
    STOPPING = "Stopping"
    RUN = "Run"
    PROCESSORS = "Processors, workers, cache"
    LIBLINEAR = "LIBLINEAR's flags"
    OUTPUT = "Output"


@dataclass(frozen=True)
class Option:
    """An option; of its field, `declared` takes name, type without None, and default.

    Parameters
    ----------
    help : str
        What it does, with its unit.
    kind : str
        Its type as a docstring names it; by default the annotation, or the choices.
    flags : str
        On the command line, separated by spaces; by default ``--name``. Empty where only Python has it.
    section : Section
        Where ``--help`` lists it.
    metavar : str
        Placeholder of the value in ``--help``.
    choices : tuple of str
        All its values, if it is one of a few words.
    least : int
        The least number that it may be.
    default_is : str
        What None, or a default that is computed, stands for. It is only shown: the code that resolves None has the value.
    bare : str, optional
        What the command line takes where the option is given without a value, if it may be.
    is_common : bool
        Whether the first screen of ``--help`` has it, by the first sentence of `help`, as it has the most used ones.
    name : str
    type : Any
    default : Any
        `MISSING` where it has to be given.
    """

    help: str
    kind: str = ""
    flags: str | None = None
    section: Section = Section.MOST_USED
    metavar: str = ""
    choices: tuple[str, ...] = ()
    least: int | None = None
    default_is: str = ""
    bare: str | None = None
    is_common: bool = False
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def names(self) -> list[str]:
        """Its names on the command line; none if only Python has it."""
        if self.flags is None:
            return ["--" + self.name.replace("_", "-")]
        return self.flags.split()

    @property
    def is_needed(self) -> bool:
        return self.default is MISSING


def option(default: Any, help: str, **about: Any) -> Any:
    """Declare a field of a dataclass to be an option: its default (`MISSING` if it has to be given) and an `Option`."""
    return field(default=default, metadata={"option": Option(help, **about)})


def replaces(what: str) -> Any:
    """Declare that an output may take the place of an existing one."""
    return option(False, f"Replace an existing {what}.", section=Section.OUTPUT)


@functools.cache
def declared(options: Any) -> dict[str, Option]:
    """Return the options that a dataclass declares, by name and in the order of ``help()``; other fields are left out."""
    assert isinstance(options, type)
    types = typing.get_type_hints(options)
    return {
        one.name: replace(one.metadata["option"], name=one.name, type=types[one.name], default=one.default)
        for one in fields(options)
        if "option" in one.metadata
    }


def again(options: type, name: str) -> Any:
    """Declare an option of another dataclass once more, with None for what a run has already."""
    about = replace(declared(options)[name], default_is="the run's own")
    return field(default=None, metadata={"option": about})


class Checked:
    """Base of frozen dataclasses of options, which are brought to one form and checked when they are made."""

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __post_init__(self) -> None:
        """Refuse a value that is not among an option's choices, or too small."""
        kind: Any = type(self)
        for name, one in declared(kind).items():
            value = getattr(self, name)
            if value is None:
                continue
            if one.choices and value not in one.choices:
                raise UsageError(f"{name}: expected one of {', '.join(one.choices)}, found {value!r}")
            if one.least is not None and value < one.least:
                raise UsageError(f"{name}: expected {one.least} or more, found {value!r}")


def as_number(value: Any) -> float:
    """Return a value as a number; nan where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return nan


def number_or_word(
    name: str, value: Any, words: Sequence[str], bounds: tuple[float, float], what: str
) -> Any:
    """Return the value of an option as a number within bounds, or one of its words; another one is refused by name."""
    if isinstance(value, str) and value in words:
        return value
    number = as_number(value)
    least, most = bounds
    if not least <= number <= most:
        raise UsageError(f"{name}: expected {', '.join(words)} or {what}, found {value!r}")
    return number


WITHIN_2 = nextafter(0.0, 1.0), nextafter(2.0, 0.0)
"""Bounds of numbers above 0 and below 2."""


# ---------------------------------------------------------------------------------------------------------------------
# Keywords of functions


class takes(Generic[P, Options]):
    """Give a public function the options of a dataclass as keywords, among them the listener.

    The function takes one to three arguments, which may be left out if they may be None, and the options, made and checked.
    Its signature lists every option, for ``help()`` and completion; its docstring explains them where it has the line
    ``{options}``. The listener hears of compilations, and of the end.
    """

    def __init__(self, options: Callable[P, Options]) -> None:
        self._options: Any = options

    @overload
    def __call__(self, function: Callable[[A, B, C, Options], R]) -> Callable[Concatenate[A, B, C, P], R]: ...
    @overload
    def __call__(self, function: Callable[[A, B, Options], R]) -> Callable[Concatenate[A, B, P], R]: ...
    @overload
    def __call__(self, function: Callable[[A, Options], R]) -> Callable[Concatenate[A, P], R]: ...
    def __call__(self, function: Any) -> Any:
        options = self._options
        declaration = inspect.signature(function)
        positional = [
            one.replace(default=None) if str(one.annotation).endswith("| None") else one
            for one in list(declaration.parameters.values())[:-1]
        ]
        keywords = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if one.is_needed else one.default,
                annotation=one.type,
            )
            for one in declared(options).values()
        ]
        signature = declaration.replace(parameters=[*positional, *keywords])

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            given = _bound(function.__name__, signature, arguments, named)
            with listening(given.get("listener")) as given["listener"]:
                first = [given.pop(one.name, None) for one in positional]
                return function(*first, options(**given))

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = with_parameters(inspect.getdoc(function) or "", options)
        return call


def with_known_keywords(function: Function) -> Function:
    """Check the arguments of a public function: what it does not take is refused, with the nearest name."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return function(**_bound(function.__name__, signature, arguments, named))

    return call  # type: ignore[return-value]


def _bound(
    name: str, signature: inspect.Signature, arguments: Sequence[Any], named: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a function's call by name, of their declared types; others are refused."""
    known = signature.parameters
    try:
        given = signature.bind(*arguments, **named).arguments
    except TypeError as error:
        near = (difflib.get_close_matches(one, known, 1) for one in named if one not in known)
        hints = "".join(f"; did you mean {one!r}?" for names in near for one in names)
        raise KeywordError(f"{name}() {error}{hints}") from None
    return {one: _of_declared_type(known[one], value) for one, value in given.items()}


_TYPES: dict[str, Any] = {"None": types.NoneType, "float": Real, "int": Integral, "str": str}


def _of_declared_type(parameter: inspect.Parameter, value: Any) -> Any:
    """Return an argument of one of the types of its annotation; types other than numbers and text check themselves."""
    kinds = getattr(parameter.annotation, "__name__", str(parameter.annotation)).split(" | ")
    allowed = tuple(_TYPES.get(kind, object) for kind in kinds)
    if "int" in kinds and isinstance(value, float) and value.is_integer():  # such as 1e9
        return int(value)
    if value is not parameter.default and not isinstance(value, allowed):
        raise UsageError(f"{parameter.name}: expected {' or '.join(kinds)}, found {value!r:.60}")
    return value


def with_parameters(doc: str, options: type) -> str:
    """Return a docstring with the line ``{options}`` replaced by an entry for each option."""
    entries = []
    for one in declared(options).values():
        text = one.help + (f" By default {one.default_is}." if one.default_is else "")
        entries.append(f"{one.name} : {kind(one)}\n{textwrap.indent(textwrap.fill(text, 110), '    ')}")
    return doc.replace("{options}", "\n".join(entries))


def kind(one: Option) -> str:
    """Name the type of an option as numpydoc does."""
    name = one.kind
    if not name and one.choices:
        name = "{" + ", ".join(f'"{choice}"' for choice in one.choices) + "}"
    name = name or getattr(one.type, "__name__", "") or str(one.type).removesuffix(" | None")
    return name + ", optional" if one.default is None else name


# ---------------------------------------------------------------------------------------------------------------------
# Options of several functions

Place = str | Path | None
"""Path of a file or directory, if one is given."""

Size = int | str


@dataclass(frozen=True, kw_only=True)
class ListenerOptions:
    """Options of what reports progress."""

    listener: Listener = option(None, "Receiver of progress and messages, such as `ProgressBar`.", flags="")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of what loads a model."""

    C: float | None = option(
        None, "The model with this C, of a run that was trained with several.", flags="-C -c --C"
    )
    l1: float | None = option(
        None, "The model with this λ of the penalty, of a run that was trained with several.", metavar="λ"
    )


@dataclass(frozen=True, kw_only=True)
class SharedWork(ListenerOptions, Checked):
    """Options of work that processes of this machine share."""

    memory: Size = option(
        "1GB",
        "Bound on peak resident memory: 400MB, 2GiB. It is that of the process, interpreter and all.",
        metavar="SIZE",
    )
    workers: int = option(
        1,
        "Processes that share the work; `memory` bounds their sum, of which each needs 330 MB and the one that hands "
        "out the work 200 MB. The result does not depend on their number.",
        metavar="N",
        least=1,
        section=Section.PROCESSORS,
    )
