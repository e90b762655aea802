"""The compile cache: what compiles a kernel once more, and what does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from numba.core.errors import NumbaError

from streamcd.kernels.compile import kernel

PACKAGE = Path(__file__).resolve().parent.parent / "streamcd"

# The matrix of one row, x = (1, 2), of cost 3; `gram_visit` asks `primitives.row_cost` for it.
GRAM = """
import numpy as np
from streamcd.kernels.compiler import told
from streamcd.kernels.loss_table import TWIN_HINGE, Loss
from streamcd.kernels.primitives import Costs, Rows
from streamcd.kernels.twin import gram_visit

zero = np.zeros(1, dtype=np.int64)
rows = Rows(np.array([0, 2]), np.array([0, 1]), np.array([1.0, 2.0]), zero, np.ones(1), zero, np.zeros(0))
gram = np.zeros((1, 3, 3))
none = zero - 1, np.zeros((1, 256), np.bool_)
costs = Costs(Loss(TWIN_HINGE), 0.0, -np.ones((1, 1)), np.full((1, 1), 3.0), *none)
compiled = []
told.append(lambda: compiled.append(1))
gram_visit(zero, rows, costs, zero, (0, 1), gram)
print(gram[0, 0, 0], len(compiled))
"""


def copy_of(package: Path, folder: Path, *without: str) -> Path:
    return Path(shutil.copytree(package, folder / "streamcd", ignore=shutil.ignore_patterns(*without)))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, with a compile cache of its own."""
    return copy_of(PACKAGE, tmp_path, "__pycache__")


def start(program: str, package: Path, cache: Path | None = None) -> subprocess.Popen[str]:
    environment = {name: text for name, text in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=package.parent,
        env={**environment, "PYTHONPATH": str(package.parent)},
    )


def gram_and_compiled(package: Path, cache: Path | None = None) -> tuple[float, int]:
    gram, compiled = start(GRAM, package, cache).communicate()[0].split()
    return float(gram), int(compiled)


def test_processes_that_start_together_compile_a_kernel_once(package: Path) -> None:
    """They both lack it, and would write the same files of the cache."""
    together = GRAM.replace("zero = ", "print('loaded', flush=True)\ninput()\nzero = ", 1)
    processes = [start(together, package) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = [process.communicate()[0].split() for process in processes]
    assert found == [["3.0", "1"], ["3.0", "1"]]
    assert len(list(package.rglob("twin.gram_visit-*.nbc"))) == 1


@pytest.mark.parametrize("given", [False, True], ids=["__pycache__", "NUMBA_CACHE_DIR"])
def test_contents_decide_not_times_and_places(package: Path, tmp_path: Path, given: bool) -> None:
    """Neither a touched file, nor one that has no kernels, nor a copied tree is a reason to compile; an edited callee is.

    numba alone looks at the caller's file, and went on with the callee as it had been.
    """
    cache = tmp_path / "cache" if given else None
    assert gram_and_compiled(package, cache) == (3.0, 1)
    for path in package.rglob("*.py"):
        os.utime(path, ns=(1, 10**18))
    with open(package / "core" / "errors.py", "a") as file:
        file.write("\nADDED = 1\n")
    copied = copy_of(package, tmp_path / "elsewhere", *(["__pycache__"] if given else []))
    shutil.rmtree(package)
    assert gram_and_compiled(copied, cache) == (3.0, 0)
    if not given:  # where the cache lies does not matter to this
        shared = copied / "kernels" / "primitives.py"
        text = shared.read_text()
        line = "return costs.cost[rows.code[i], lane] * rows.weight[i]"
        assert line in text
        shared.write_text(text.replace(line, "return 2.0 * costs.cost[rows.code[i], lane]"))
        assert gram_and_compiled(copied) == (6.0, 1)


def test_the_compiler_is_never_part_of_the_process_that_trains(package: Path, tmp_path: Path) -> None:
    """Kernels are compiled by another process, also while a thread waits for one; where that is not to be had, here."""
    loaded = GRAM + "import sys\nprint('numba.np.arraymath' in sys.modules)\n"  # which a compilation needs
    assert start(loaded, package, tmp_path / "cache").communicate()[0].split() == ["3.0", "1", "False"]
    assert start(loaded, package, tmp_path / "cache").communicate()[0].split() == ["3.0", "0", "False"]
    alone = "import sys\nsys.executable = '/none'\n" + loaded
    assert start(alone, package, tmp_path / "other").communicate()[0].split() == ["3.0", "1", "True"]


def test_a_kernel_allocates_nothing() -> None:
    """References are not counted in kernels, so what they allocated would never be given back; numba refuses it."""

    def allocating(n):  # type: ignore[no-untyped-def]
        return np.zeros(n).sum()

    assert njit(allocating)(3) == 0.0
    with pytest.raises(NumbaError):
        kernel(allocating)(3)


def test_a_copy_of_a_process_leaves_the_compiler_to_it() -> None:
    """Pipes to the compiler that a copy kept open, and closed when it compiled, had become those of other files."""
    code = (
        "import os\n"
        "from streamcd.kernels.compiler import _compiler\n"
        "pipe = _compiler._running(fresh=True).fileno()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(os.path.exists(f'/proc/self/fd/{pipe}'))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "0\n"
