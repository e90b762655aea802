"""Examples in the docstrings of public names run."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import os
import shutil
from pathlib import Path

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


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_of_a_public_name_run(name, example_folder, tmp_path, monkeypatch):
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(streamcd, name)) or "")
    if name == "write_report":
        pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    folder = tmp_path / "copy"
    shutil.copytree(example_folder, folder, copy_function=shutil.copy if name in NEED_MORE else os.link)
    monkeypatch.chdir(folder)
    test = doctest.DocTest(examples, {"streamcd": streamcd, "np": np}, name, None, None, None)
    told = io.StringIO()
    failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.write).failed
    assert not failed, told.getvalue()
