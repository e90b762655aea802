"""The compile cache: what compiles a kernel once more, and what does not."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
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
from streamcd.kernels.compile import used
from streamcd.kernels.loss_table import TWIN_HINGE, Loss
from streamcd.kernels.primitives import Costs, Rows
from streamcd.kernels.twin import gram_visit

zero = np.zeros(1, dtype=np.int64)
rows = Rows(np.array([0, 2]), np.array([0, 1]), np.array([1.0, 2.0]), zero, np.ones(1), zero, np.zeros(0))
gram = np.zeros((1, 3, 3))
none = zero - 1, np.zeros((1, 256), np.bool_)
costs = Costs(Loss(TWIN_HINGE), 0.0, -np.ones((1, 1)), np.full((1, 1), 3.0), *none)
gram_visit(zero, rows, costs, zero, (0, 1), gram)
print(gram[0, 0, 0], sum(used.values()))
"""


def copy_of(package: Path, folder: Path, *without: str) -> Path:
    return Path(shutil.copytree(package, folder / "streamcd", ignore=shutil.ignore_patterns(*without)))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, with a compile cache of its own."""
    return copy_of(PACKAGE, tmp_path, "__pycache__")


def start(program: str, package: Path, cache: Path | None = None) -> subprocess.Popen[str]:
    environment = {name: text for name, text in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment["XDG_CACHE_HOME"] = str(package.parent / "user")
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
    assert len(list(package.parent.rglob("twin.gram_visit-*.nbc"))) == 1


@pytest.mark.parametrize("given", [False, True], ids=["the user's", "NUMBA_CACHE_DIR"])
def test_contents_decide_not_times_and_places(package: Path, tmp_path: Path, given: bool) -> None:
    """Neither touched files nor those without kernels nor a new installation are reasons to compile; an edited callee is.

    numba alone looks at the caller's file, and went on with the callee as it had been; a new installation had no kernels.
    """
    cache = tmp_path / "cache" if given else None
    assert gram_and_compiled(package, cache) == (3.0, 1)
    for path in package.rglob("*.py"):
        os.utime(path, ns=(1, 10**18))
    with open(package / "core" / "errors.py", "a") as file:
        file.write("\nADDED = 1\n")
    copied = copy_of(package, tmp_path / "elsewhere", "__pycache__")
    if not given:
        shutil.move(tmp_path / "user", copied.parent)
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


def test_a_folder_that_cannot_be_written_to_is_read(package: Path, tmp_path: Path) -> None:
    """Kernels of an image, which another user runs; what it lacks is in the user's, or beside the source, or nowhere."""
    image = tmp_path / "image"
    assert gram_and_compiled(package, image) == (3.0, 1)
    closed = "import os\nis_open, os.access = os.access, lambda path, mode: {} not in path and is_open(path, mode)\n"
    folders = "\nfrom streamcd.kernels.compile import folders\nprint(*folders()[0], folders()[1])"

    def run(place: str) -> list[str]:
        return start(closed.format(repr(place)) + GRAM + folders, package, image).communicate()[0].split()

    gram, compiled, *read, written = run("image")
    assert (gram, compiled) == ("3.0", "0")
    assert [Path(folder).parent for folder in (*read, written)] == [
        image / "streamcd",
        *[tmp_path / "user" / "streamcd"] * 2,
    ]
    shutil.rmtree(image / "streamcd")
    (tmp_path / "user").rename(tmp_path / "before")
    (tmp_path / "user").write_text("a file, so that there is no folder")
    *found, written = run("image")
    assert found[:2] == ["3.0", "1"]
    assert "__pycache__" in written
    assert run("")[:2] == ["3.0", "0"]  # read there, though none can be written to
    shutil.rmtree(package / "kernels" / "__pycache__")
    assert run("")[-1] == "None"


def test_folders_that_nobody_has_used_for_a_month_are_removed(package: Path, tmp_path: Path) -> None:
    """In the user's cache, of names like ours, unless a process is using them."""
    month_ago = time.time() - 31 * 86400
    roots = [tmp_path / name / "streamcd" for name in ("user", "given")]
    for root in roots:
        for name in ("0" * 16, "1" * 16, "other"):
            (root / name).mkdir(parents=True)
            os.utime(root / name, (month_ago, month_ago))
    descriptor = os.open(roots[0] / ("1" * 16), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    assert gram_and_compiled(package) == (3.0, 1)
    left = {path.name for path in roots[0].iterdir()}
    assert left > {"1" * 16, "other"}
    assert "0" * 16 not in left
    os.close(descriptor)
    (used,) = left - {"1" * 16, "other"}
    os.utime(roots[0] / used, (month_ago, month_ago))
    assert gram_and_compiled(package) == (3.0, 0)
    assert time.time() - (roots[0] / used).stat().st_mtime < 86400
    assert {path.name for path in roots[0].iterdir()} == {used, "other"}
    assert gram_and_compiled(package, roots[1].parent) == (3.0, 1)
    assert len(list(roots[1].iterdir())) == 4


def test_a_damaged_cache_is_written_anew(package: Path, tmp_path: Path) -> None:
    for n_bytes in (0, 10, 1000):
        assert gram_and_compiled(package)[0] == 3.0
        for path in (tmp_path / "user").rglob("*.nbc"):
            os.truncate(path, n_bytes)
        assert gram_and_compiled(package) == (3.0, 1)
        assert gram_and_compiled(package) == (3.0, 0)


# The README's commands, as calls; what they load, and what of it was not asked for together.
EXAMPLE = """
import sys
import streamcd
from streamcd.cli.demo import write_example
from streamcd.core.options import Listener
from streamcd.kernels import compile as kernels

alone = []
read = kernels._Cache.read

def recorded(cache, *arguments):
    if kernels._missing.get() is None and (cache.function.__qualname__, arguments[0]) not in kernels.used:
        alone.append(cache.function.__name__)
    return read(cache, *arguments)

kernels._Cache.read = recorded
write_example("reviews", Listener())
streamcd.convert("reviews/train.txt", "data")
streamcd.train("data", "run", memory="400MB")
streamcd.evaluate("reviews/test.txt", "run")
streamcd.predict("reviews/test.txt", "run", "predictions.parquet")
streamcd.tune("data", "tuned", C=[0.01, 0.1, 1.0, 10.0], memory="400MB")
print(*sorted(alone))
"""

COMPILED = """
from streamcd.cli.rehearsal import compile_all
from streamcd.core.options import Listener
from streamcd.kernels import compile as kernels

compile_all(Listener())
"""

LOADED = "for name, types in sorted(kernels.used, key=str): print(name, types)"

KERNELS = """active_rows add_alpha_rows add_changes add_entries add_entry_hashes add_losses add_penalty_terms add_row_norms
begin_pass dual_certify dual_visit dual_visit_lanes end_pass parse_lines place_rows scores shuffle take_items"""


def test_the_example_has_one_specialisation_of_each_kernel_and_asks_for_them_together(tmp_path: Path) -> None:
    """It compiled 29, of which six were second ones, one after the other; `streamcd compile` compiles all of them."""
    found = []
    for program in (EXAMPLE, COMPILED):
        process = subprocess.run(
            [sys.executable, "-c", program + LOADED],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        )
        found.append(process.stdout.splitlines())
    (alone, *loaded), compiled = found
    assert [line.split()[0] for line in loaded] == sorted(KERNELS.split())
    assert set(loaded) <= set(compiled)
    assert alone.split() == []


def test_a_kernel_allocates_nothing() -> None:
    """References are not counted in kernels, so what they allocated would never be given back; numba refuses it."""

    def allocating(n):  # type: ignore[no-untyped-def]
        return np.zeros(n).sum()

    assert njit(allocating)(3) == 0.0
    with pytest.raises(NumbaError):
        kernel(allocating)(3)
