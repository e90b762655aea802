"""What is public: every name has an example that runs, and its docstring names public things only."""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import inspect
import io
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamcd
from streamcd.cli.demo import write_example

NAMES = [name for name in streamcd.__all__ if name != "__version__"]
NEED_MORE = {"resume"}  # examples that change what the others use, so that they get a copy


@pytest.fixture(scope="module")
def example_folder(tmp_path_factory) -> Path:
    """The files that examples begin with: ``reviews/``, the dataset ``data`` and the run ``run``."""
    folder: Path = tmp_path_factory.mktemp("examples")
    write_example(str(folder / "reviews"), streamcd.Listener())
    streamcd.convert(folder / "reviews" / "train.txt", folder / "data")
    with contextlib.chdir(folder):
        streamcd.train("data", "run", loss="log_loss")
    return folder


def examples_of(name: str) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(inspect.getdoc(getattr(streamcd, name)) or "")


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example_that_runs(name, example_folder, tmp_path, monkeypatch):
    examples = examples_of(name)
    assert examples, f"streamcd.{name} has no example in its docstring"
    if name == "write_report":
        pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    folder = tmp_path / "copy"
    shutil.copytree(example_folder, folder, copy_function=shutil.copy if name in NEED_MORE else os.link)
    monkeypatch.chdir(folder)
    test = doctest.DocTest(examples, {"streamcd": streamcd, "np": np}, name, None, None, None)
    told = io.StringIO()
    failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.write).failed
    assert not failed, told.getvalue()


def words_of(thing: Any) -> set[str]:
    """Names that a docstring may use beside the public ones: parameters, fields, attributes."""
    words = set(dir(thing)) | set(streamcd.__all__)
    if dataclasses.is_dataclass(thing):
        words |= {field.name for field in dataclasses.fields(thing)}
    with contextlib.suppress(ValueError):  # of Python's own exceptions
        words |= set(inspect.signature(thing).parameters)
    return words


def documented_things() -> dict[str, Any]:
    """All public names, and the public methods of public classes."""
    found = {name: getattr(streamcd, name) for name in NAMES}
    for name, thing in list(found.items()):
        if inspect.isclass(thing):
            for method, function in vars(thing).items():
                if not method.startswith("_") and callable(function):
                    found[f"{name}.{method}"] = function
    return found


THINGS = documented_things()
FIELDS = {
    f"{name}.{field.name}"
    for name, thing in THINGS.items()
    if dataclasses.is_dataclass(thing)
    for field in dataclasses.fields(thing)
}
OUTSIDE = ("pyarrow.", "matplotlib.", "distributed.", "numpy.", "scipy.", "pandas.", "np.")


@pytest.mark.parametrize("name", THINGS)
def test_docstrings_point_to_public_things_only(name):
    thing = THINGS[name]
    owner = THINGS[name.split(".")[0]]
    allowed = words_of(thing) | words_of(owner) | {other.split(".")[-1] for other in THINGS}
    text = re.sub(r"``.*?``", "", inspect.getdoc(thing) or "", flags=re.DOTALL)
    for word in re.findall(r"`([A-Za-z_][\w.]*)`", text):
        known = (
            word in allowed | FIELDS or word.removeprefix("streamcd.") in THINGS or word.startswith(OUTSIDE)
        )
        assert known, f"streamcd.{name} points to {word}"


def test_the_package_says_that_it_is_typed():
    assert (Path(streamcd.__file__).parent / "py.typed").exists()
