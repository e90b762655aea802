"""The shape of the code: imports point downwards, each dependency has its door, training stays light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_datasets import random_rows, write_dataset

PACKAGE = Path(__file__).resolve().parent.parent / "streamcd"

# A module may import from those above it in this list, never from one below or beside it.
LAYERS = [
    "errors",
    "progress",
    "memory",
    "kernels ordering ranking options parquet parallel sums",
    "scaling",
    "dataset sources shuffle",
    "console problems svmlight runs",
    "features checkpoint stream synthetic conditioning",
    "model",
    "solvers export",
    "convert predict stopping warmstart",
    "parallel_convert",
    "result",
    "loop",
    "train",
    "tune",
    "resume",
    "demo",
    "cli",
    "__init__ __main__",
]

# The package's own name and version come from the top.
VERSION = {"__version__"}

DOORS = {
    "numba": {"kernels", "svmlight", "features"},
    "llvmlite": {"kernels", "svmlight"},
    "pyarrow": {"parquet", "dataset", "convert", "sources", "svmlight"},
    "rich": {"console"},
    "click": {"cli", "options"},
    "scipy": set(),
    "sklearn": set(),
    "dask": {"parallel"},
    "pandas": set(),
}
# The versions that a run records are asked of the libraries themselves.
ASKS_VERSIONS = {"train"}


def modules() -> list[str]:
    return sorted(path.stem for path in PACKAGE.glob("*.py"))


def imports(module: str) -> Iterator[tuple[str, bool]]:
    """Names that a module imports, in functions too; with True where they are of this package."""
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).split(".")[0], False
        elif isinstance(node, ast.ImportFrom):
            yield from (
                (name, True) for name in ([node.module] if node.module else [a.name for a in node.names])
            )


def test_every_module_has_a_layer() -> None:
    assert sorted(" ".join(LAYERS).split()) == modules()


@pytest.mark.parametrize("module", modules())
def test_imports_point_downwards(module: str) -> None:
    layer = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
    own = {name for name, ours in imports(module) if ours} - VERSION
    upward = {name for name in own if layer[name] >= layer[module]}
    assert not upward, f"{module} imports {sorted(upward)}, which are not below it"


@pytest.mark.parametrize("dependency", DOORS)
def test_one_dependency_one_door(dependency: str) -> None:
    used = {module for module in modules() if (dependency, False) in set(imports(module))}
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
    path = os.pathsep.join([str(tmp_path / "decoys"), str(PACKAGE.parent)])
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
