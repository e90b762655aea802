"""The compile cache and kernels that need what is in other files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "streamcd"

# The matrix of one row, x = (1, 2), of cost 3; `gram_visit` asks `kernels.row_cost` for it.
GRAM = """
import numpy as np
from streamcd.twin_kernels import gram_visit

zero = np.zeros(1, dtype=np.int64)
gram = np.zeros((1, 3, 3))
gram_visit(
    zero, np.array([0, 2]), np.array([0, 1]), np.array([1.0, 2.0]), zero, np.ones(1), zero, 0.0, -np.ones((1, 1)),
    np.full((1, 1), 3.0), zero - 1, zero, 0, 1, gram,
)
print(gram[0, 0, 0], sum(gram_visit.stats.cache_hits.values()))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, with a compile cache of its own."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "streamcd", ignore=shutil.ignore_patterns("__pycache__")))


def gram_and_hits(package: Path) -> tuple[float, int]:
    environment = {name: text for name, text in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", GRAM],
        capture_output=True,
        text=True,
        check=True,
        cwd=package.parent,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(package.parent), os.environ["PYTHONPATH"]])},
    )
    gram, hits = done.stdout.split()
    return float(gram), int(hits)


def test_an_edit_of_a_callee_in_another_file_is_noticed(package: Path) -> None:
    """numba alone looks at the caller's file, and went on with the callee as it had been."""
    assert gram_and_hits(package) == (3.0, 0)
    assert gram_and_hits(package) == (3.0, 1)
    shared = package / "kernels.py"
    edited = shared.read_text().replace(
        "return cost[code[i], lane] * weight[i]", "return 2.0 * cost[code[i], lane]"
    )
    shared.write_text(edited)
    assert gram_and_hits(package) == (6.0, 0)
    assert gram_and_hits(package) == (6.0, 1)
