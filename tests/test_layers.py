"""Rooms that import downwards, and a door for each dependency."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from small_datasets import random_rows, write_dataset

PACKAGE = Path(__file__).resolve().parent.parent / "streamcd"

BELOW = {
    "kernels": "",
    "core": "kernels",
    "report": "core",
    "dataset": "kernels core",
    "models": "kernels core dataset",
    "stream": "kernels core dataset",
    "solvers": "kernels core dataset stream",
    "box_qp": "kernels core solvers",
    "conversion": "kernels core dataset models solvers",
    "training": "kernels core report dataset models stream solvers",
    "prediction": "kernels core dataset models solvers conversion",
    "cluster": "kernels core dataset stream solvers training",
    "runs": "kernels core report dataset models stream solvers conversion training prediction cluster",
    "estimators": "core dataset models conversion training prediction runs",
    "cli": "kernels core report dataset models solvers box_qp conversion prediction cluster runs",
}
"""The rooms, from the lowest up, each with those that its modules may import from."""

TOP = {"__init__", "__main__", "errors"}
"""The modules that may import from every room."""

BELOW_ALL = {"_version"}
"""The modules that every room may import."""

DOORS = {
    "numba": "kernels/",
    "llvmlite": "kernels/compile kernels/primitives",
    "pyarrow": "dataset/ conversion/ prediction/predict",
    "scipy": "dataset/ models/model models/stored models/table_encoder",
    "msgspec": "core/files runs/config",
    "isal": "conversion/byte_sources dataset/ stream/slot_store",
    "dask": "cluster/dask_engine",
    "distributed": "cluster/dask_engine cluster/dask_worker",
    "sklearn": "estimators/ models/sklearn_model",
    "matplotlib": "report/",
    "fsspec": "core/storage",
    "click": "cli/",
    "rich": "cli/",
}
"""The modules, or rooms, that may import a dependency; all may import numpy."""

ASK_VERSIONS = {"runs/config"}
"""The modules that may import any dependency, for the versions that a run records."""


class Import(NamedTuple):
    """One imported module: "room/module" where it is the package's own, else the name of a dependency."""

    line: int
    target: str
    own: bool


def name_of(path: Path) -> str:
    """The name of a module: "room/module", or "module" at the top; a room's `__init__` counts as a module of it."""
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


MODULES = sorted(name_of(path) for path in PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    return module.rpartition("/")[0]


@functools.cache
def source(module: str) -> str:
    return (PACKAGE / f"{module}.py").read_text()


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(source(module))


@functools.cache
def imports(module: str) -> tuple[Import, ...]:
    """All imports of a module, those inside functions too."""
    return tuple(
        Import(node.lineno, target, own)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target, own in _targets(module, node)
    )


def _targets(module: str, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif node.level:
        package = ["streamcd", *module.split("/")[:-1]]
        start = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
        names = [".".join([*start, alias.name]) for alias in node.names]
    else:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    for name in dict.fromkeys(names):
        first, *parts = name.split(".")
        if first != "streamcd":
            yield first, False
            continue
        while parts and "/".join(parts) not in MODULES and "/".join([*parts, "__init__"]) not in MODULES:
            parts.pop()  # a name of that module
        found = "/".join(parts)
        yield found if found in MODULES else f"{found}/__init__".lstrip("/"), True


def may_pass(module: str, doors: str) -> bool:
    return any(module == door or (door.endswith("/") and module.startswith(door)) for door in doors.split())


# ---------------------------------------------------------------------------------------------------------------------
# Rooms and doors


def test_every_module_is_in_a_room() -> None:
    homeless = [
        module for module in MODULES if room_of(module) not in BELOW and module not in TOP | BELOW_ALL
    ]
    assert not homeless, f"modules in no room of BELOW: {homeless}"
    assert {room_of(module) for module in MODULES} >= set(BELOW), "BELOW has rooms that are empty"


def test_rooms_stand_on_floors() -> None:
    """Each room may use only those listed before it: no two use each other."""
    rooms = list(BELOW)
    for number, below in enumerate(BELOW.values()):
        assert set(below.split()) <= set(rooms[:number])


def test_imports_point_downwards() -> None:
    wrong = []
    for module in set(MODULES) - TOP:
        allowed = {room_of(module), *BELOW.get(room_of(module), "").split()}
        wrong += [
            f"{module}.py:{line} imports {target}; {room_of(module) or module} may import from {sorted(allowed)}"
            for line, target, own in imports(module)
            if own and target not in BELOW_ALL and room_of(target) not in allowed
        ]
    assert not wrong, "\n".join(wrong)


def test_one_dependency_one_door() -> None:
    wrong = [
        f"{module}.py:{line} imports {target}; its doors: {DOORS.get(target, 'none')}"
        for module in MODULES
        for line, target, own in imports(module)
        if not own and target not in sys.stdlib_module_names | {"numpy"}
        if not may_pass(module, DOORS.get(target, "")) and module not in ASK_VERSIONS
    ]
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------------------------------------------------------------
# The way of an import


def test_no_module_comes_back_to_itself() -> None:
    """By imports inside functions neither."""
    graph = {
        module: {target: line for line, target, own in imports(module) if own and target != module}
        for module in MODULES
    }
    settled: set[str] = set()

    def visit(module: str, way: list[str]) -> None:
        if module in way:
            circle = [*way[way.index(module) :], module]
            steps = [f"{a}.py:{graph[a][b]} imports {b}" for a, b in itertools.pairwise(circle)]
            pytest.fail("a circle of imports:\n" + "\n".join(steps))
        if module not in settled:
            for target in graph[module]:
                visit(target, [*way, module])
            settled.add(module)

    for module in MODULES:
        visit(module, [])


# ---------------------------------------------------------------------------------------------------------------------
# What comes with training


def test_only_the_command_line_prints() -> None:
    printing = [
        f"{module}.py:{node.lineno} prints"
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        if room_of(module) != "cli"
    ]
    assert not printing, "\n".join(printing)


def test_conversion_and_training_load_none_of_the_heavy_libraries(tmp_path: Path) -> None:
    """Each takes tens of megabytes of the user's budget; pyarrow's `to_numpy` loads pandas where it is installed."""
    heavy = ["sklearn", "dask", "distributed", "pandas", "matplotlib", "rich", "click"]
    for name in heavy:  # stands before what may be installed; is seen by whoever tries it
        (tmp_path / "decoys" / name).mkdir(parents=True)
        (tmp_path / "decoys" / name / "__init__.py").write_text(
            f"print('loaded {name}')\nraise ImportError('a decoy')\n"
        )
    dataset = write_dataset(tmp_path / "data", random_rows())
    (tmp_path / "text").write_text("1 1:1\n0 2:1\n")
    (tmp_path / "table.csv").write_text("y,day,b,name\n1,2020-01-01,true,x\n0,,,z\n" * 9)
    code = (
        "import sys, streamcd\n"
        f"streamcd.convert({str(tmp_path / 'text')!r}, {str(tmp_path / 'converted')!r})\n"
        f"streamcd.convert({str(tmp_path / 'table.csv')!r}, {str(tmp_path / 'table')!r}, label='y')\n"
        "assert 'scipy.linalg' not in sys.modules\n"  # numba loads it for some of numpy's functions in a kernel: 0.3 s
        f"streamcd.train({str(dataset.path)!r}, {str(tmp_path / 'run')!r}, max_passes=2)\n"
        "assert not any(name.startswith('streamcd.cluster') for name in sys.modules)\n"  # one process has no workers
        "print('done', *sorted(name for name in sys.modules if name.startswith('scipy.')))\n"
    )
    path = os.pathsep.join([str(tmp_path / "decoys"), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    *loaded, last = done.stdout.splitlines()
    assert not loaded
    # numba itself loads scipy.linalg, for functions that no kernel calls; nothing else may come with it
    assert not {"scipy.sparse", "scipy.optimize", "scipy.special", "scipy.stats"} & set(last.split())
    assert last.startswith("done")
