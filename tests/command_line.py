"""The command line, run in this process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from streamcd import Model, load_model
from streamcd.cli.commands import cli


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """``run("info", dataset)`` is what the command says, and its exit status."""
    command = [str(argument) for argument in arguments]
    done = CliRunner().invoke(cli, command)
    return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)


def run_json(*arguments: object) -> dict[str, Any]:
    """The one object of a command that has to succeed."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, (done.args, done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def problems(path: Path) -> list[str]:
    """What ``streamcd verify`` finds wrong."""
    found: list[str] = json.loads(run("verify", path, "--json").stdout)["problems"]
    return found


def imported(text: Path) -> Model:
    """The model of LIBLINEAR's text, in a directory beside it."""
    model = text.with_name(f"{text.name}-imported")
    run_json("import", text, model)
    return load_model(model)
