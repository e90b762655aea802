"""Remedies in messages: they name commands and options that exist, for the command that was given, and are accepted."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import command_line
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_datasets import random_rows, write_dataset

import streamcd
from streamcd.cli.commands import cli
from streamcd.core.errors import in_command, in_words_of_caller

PACKAGE = Path(streamcd.__file__).parent
PLACEHOLDERS = {"N": "2", "ADDRESS": "tcp://host:8786", "V": "x", "C": "1"}


def flags_of(*commands: str) -> set[str]:
    return {flag for name in commands for one in cli.commands[name].params for flag in one.opts}


def texts(path: Path) -> Iterator[str]:
    """All strings of a module but docstrings and what ``--help`` shows; each value in an f-string is V."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("option", "replaces"):
            skipped.update(ast.walk(node))
        if isinstance(node, ast.JoinedStr):
            skipped.update(ast.walk(node))
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "V" for part in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.value


MESSAGES = [
    (path.relative_to(PACKAGE).as_posix(), text)
    for path in sorted(PACKAGE.rglob("*.py"))
    for text in texts(path)
    if re.search(r"'streamcd [a-z]|(?<![\w-])--[a-z]", text)
]


def test_messages_with_remedies_were_found():
    assert len(MESSAGES) > 60


def test_commands_in_messages_exist_and_take_what_they_are_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x", "FILE"):
        Path(name).touch()
    for module, text in MESSAGES:
        for name, rest in re.findall(r"'streamcd ([a-z]+)((?: [^']*)?)'", text):
            words = [PLACEHOLDERS.get(word, word) for word in rest.replace("VV", "V").split()]
            try:
                cli.commands[name].make_context(name, words)
            except (KeyError, click.UsageError) as error:
                pytest.fail(f"{module}: {text!r}: {error!r}")


def test_options_in_messages_exist_in_commands_and_as_keywords():
    functions = [value for name in streamcd.__all__ if inspect.isfunction(value := getattr(streamcd, name))]
    keywords = {name for function in functions for name in inspect.signature(function).parameters}
    flags = flags_of(*cli.commands) | {"--help", "--help-all"}
    for module, text in MESSAGES:
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", re.sub(r"'dask [^']*'", "", text)):
            assert flag in flags, (module, text)
            shown = in_words_of_caller(flag).removesuffix("=True")
            assert shown in keywords or module.startswith("cli/"), (module, text)


def check_advice(command: str, said: str) -> None:
    """Check that an error names no option but those of the command, or of the one that its clause names."""
    for clause in re.split(r"[;,:(]", said):
        others = [name for name in cli.commands if re.search(rf"\b{name}(ing|ed)?\b", clause)]
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", clause):
            assert flag in flags_of(command, *others), said


def refused(*arguments: object, status: int = 2) -> str:
    done = command_line.run(*arguments)
    assert done.returncode == status, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    check_advice(str(arguments[0]), last)
    return last


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("remedies")
    write_dataset(folder / "data", random_rows())
    streamcd.train(folder / "data", folder / "run")
    streamcd.train(folder / "data", folder / "path", C=[0.1, 1])
    return folder


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_file_to_score_is_not_told_of_options_of_convert(folder, tmp_path, command):
    out = ("-o", "-") if command == "predict" else ()
    (tmp_path / "zero.txt").write_text("1 0:1 1:1\n")
    said = refused(command, tmp_path / "zero.txt", folder / "run", *out)
    assert "zero.txt:1: expected indices from 1 on" in said
    table = pa.table(
        {"a": [1.0, 2.0, 3.0, 4.0], "b": [[1], [2], [3], [1]], "v": [[1.0]] * 4, "y": [0, 1, 0, 1]}
    )
    streamcd.convert(table, tmp_path / "d", label="y", missing="error", features="a,b:v")
    streamcd.train(tmp_path / "d", tmp_path / "r")
    for name, column in (("a", pa.array([1.0, None, 3.0, 4.0])), ("b", pa.array([1, 2, 3, 4]))):
        wrong = table.set_column(table.schema.get_field_index(name), name, column)
        pq.write_table(wrong, tmp_path / "wrong.parquet")
        said = refused(command, tmp_path / "wrong.parquet", tmp_path / "r", *out)
        assert "expected a value" in said or "expected lists" in said


@pytest.mark.parametrize(
    "line",
    [
        "convert TEXT NEW",
        "columns DATA",
        "verify DATA",
        "train DATA NEW",
        "evaluate DATA RUN",
        "predict DATA RUN -o -",
    ],
)
def test_a_size_without_its_unit_is_asked_about(folder, tmp_path, line):
    (tmp_path / "text").write_text("1 1:1\n0 2:1\n")
    places = {
        "TEXT": tmp_path / "text",
        "NEW": tmp_path / "new",
        "DATA": folder / "data",
        "RUN": folder / "run",
    }
    words = [places.get(word, word) for word in line.split()]
    assert "did you mean 400MB?" in refused(*words, "--memory", "400")


def test_a_run_on_workers_names_the_options_by_which_it_goes_on(folder, tmp_path):
    with pytest.warns(
        streamcd.ConvergenceWarning, match=r"streamcd\.resume\('.*', max_passes=N, workers=2\)"
    ):
        streamcd.train(folder / "data", tmp_path / "run", workers=2, max_passes=1, tol=1e-12)
    assert "--workers N" in refused("resume", tmp_path / "run")
    again = ("--workers", 2, "--tol", "1e-12", "--max-passes", 1)
    said = refused("train", folder / "data", tmp_path / "run", *again)
    assert "'streamcd resume" in said
    assert "--workers N' goes on" in said


def test_a_run_of_several_models_serves_as_the_one_to_encode_like(folder, tmp_path):
    (tmp_path / "text").write_text("1 1:1\n-1 2:1\n")
    for like in ("run", "path"):
        made = command_line.run_json("convert", tmp_path / "text", tmp_path / like, "--like", folder / like)
        assert made["n_features"] == streamcd.open(folder / "data").n_features


def test_python_is_told_of_keywords_and_functions_and_commands_of_options():
    text = "'streamcd columns /a b --force' or -C and --n-features, or --penalty l1; not '--x' nor a--memory"
    expected = "streamcd.make_columns('/a', 'b', force=True) or C and n_features, or penalty=\"l1\"; not '--x' nor a--memory"
    assert in_words_of_caller(text) == expected
    in_command.set()
    try:
        assert in_words_of_caller(text) == text
    finally:
        in_command.clear()
