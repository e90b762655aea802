"""The shape of the code: imports point downwards, each dependency has its door, training stays light."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_datasets import random_rows, write_dataset

PACKAGE = Path(__file__).resolve().parent.parent / "streamcd"

# The package's own name and version come from the top.
VERSION = {"__version__"}

DOORS = {
    "numba": {
        "compiling",
        "kernels",
        "dual_kernels",
        "crammer_singer_kernels",
        "primal_kernels",
        "margin_kernels",
        "scaling_kernels",
        "boxqp_kernels",
        "decimals",
        "features",
        "shuffle",
        "buckets",
        "transpose",
    },
    "llvmlite": {"kernels", "decimals"},
    "pyarrow": {"parquet", "sources", "svmlight"},
    "msgspec": {"metadata"},
    "rich": {"console"},
    "click": {"cli", "options"},
    "scipy": {"solvers"},
    "sklearn": set(),
    "dask": {"parallel"},
    "distributed": {"cluster"},
    "pandas": set(),
}
# The versions that a run records are asked of the libraries themselves.
ASKS_VERSIONS = {"configuration"}


def modules() -> list[str]:
    return sorted(path.stem for path in PACKAGE.glob("*.py"))


@functools.cache
def imports(module: str) -> frozenset[tuple[str, bool]]:
    """Names that a module imports, in functions too; with True where they are of this package."""
    return frozenset(_imports(module))


def _imports(module: str) -> Iterator[tuple[str, bool]]:
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).split(".")[0], False
        elif isinstance(node, ast.ImportFrom):
            yield from (
                (name, True) for name in ([node.module] if node.module else [a.name for a in node.names])
            )


def own_imports() -> dict[str, set[str]]:
    """Modules of this package that each module imports, in functions too."""
    return {module: {name for name, ours in imports(module) if ours} - VERSION for module in modules()}


def reached(module: str, graph: dict[str, set[str]]) -> set[str]:
    """All modules that come with one."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for name in graph[waiting.pop()] - found:
            found.add(name)
            waiting.append(name)
    return found


@pytest.mark.parametrize("module", modules())
def test_imports_point_downwards(module: str) -> None:
    """No module comes back to itself, in functions neither: there is an order in which each needs only those before."""
    assert module not in reached(module, own_imports())


@pytest.mark.parametrize(
    "module", ["errors", "progress", "randomness", "atomic_files", "compiling", "kernels"]
)
def test_the_lowest_layer_stands_by_itself(module: str) -> None:
    assert not own_imports()[module]


@pytest.mark.parametrize("module", ["solvers", "stopping", "stream", "loop", "train"])
def test_training_knows_nothing_of_text_and_terminals(module: str) -> None:
    above = {
        "__main__",
        "cli",
        "console",
        "convert",
        "demo",
        "export",
        "options",
        "predict",
        "sources",
        "svmlight",
    }
    assert not reached(module, own_imports()) & above


def test_a_solver_knows_nothing_of_the_loop() -> None:
    """It owns a visit; what stops, logs and saves is written once, above it."""
    assert not reached("solvers", own_imports()) & {"checkpoint", "loop", "rowscores", "stopping", "train"}


@pytest.mark.parametrize("dependency", DOORS)
def test_one_dependency_one_door(dependency: str) -> None:
    used = {module for module in modules() if (dependency, False) in imports(module)}
    assert used - ASKS_VERSIONS <= DOORS[dependency]


def test_only_the_console_prints() -> None:
    printing = {
        module
        for module in modules()
        for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing <= {"console", "cli", "demo"}


def test_training_loads_none_of_the_heavy_libraries(tmp_path: Path) -> None:
    """Each takes tens of megabytes of the user's budget; pyarrow's `to_numpy` loads pandas where it is installed."""
    heavy = ["sklearn", "dask", "distributed", "pandas", "matplotlib", "rich", "click"]
    for name in heavy:  # stands before what may be installed; is seen by whoever tries it
        (tmp_path / "decoys" / name).mkdir(parents=True)
        (tmp_path / "decoys" / name / "__init__.py").write_text(
            f"print('loaded {name}')\nraise ImportError('a decoy')\n"
        )
    dataset = write_dataset(tmp_path / "data", random_rows())
    code = (
        "import sys, streamcd\n"
        f"streamcd.train({str(dataset.path)!r}, {str(tmp_path / 'run')!r}, max_passes=2)\n"
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
