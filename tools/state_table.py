"""The table of a run's state in docs/internals.md, made of the declarations of its arrays.

python -m tools.state_table
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np

from streamcd.cluster import rounds
from streamcd.solvers import (
    acceleration,
    classes,
    dual,
    free_bias,
    newton,
    over_relaxation,
    primal,
    protocol,
    row_solver,
    twin_sor,
    working_set,
)
from streamcd.solvers.protocol import Array
from streamcd.training import loop
from tools.marked_section import replace_section

PAGE = Path(__file__).resolve().parent.parent / "docs" / "internals.md"
COMMAND = "python -m tools.state_table"

OWNERS = {
    "every run (`solvers/protocol`, `training/loop`, `training/stopping`)": (*protocol.ARRAYS, *loop.ARRAYS),
    "on workers (`cluster/rounds`)": rounds.ARRAYS[len(loop.ARRAYS) :],
    "dual and sor (`solvers/row_solver`)": row_solver.ARRAYS,
    "acceleration, and a bias that is not penalised (`solvers/acceleration`)": acceleration.ARRAYS,
    "dual, but for losses of all classes (`solvers/dual`)": dual.ARRAYS,
    "dual, but for losses of all classes, and sor (`solvers/over_relaxation`)": over_relaxation.ARRAYS,
    "dual, with a bias that is not penalised (`solvers/free_bias`)": free_bias.FreeBiasSolver.sums,
    "dual for losses of all classes (`solvers/classes`)": classes.ARRAYS,
    "likewise, with a bias that is not penalised": (
        *classes.FreeBiasClassSolver.sums,
        *classes.FREE_BIAS_ARRAYS,
    ),
    "sor (`solvers/twin_sor`)": twin_sor.ARRAYS,
    "newton (`solvers/newton`)": newton.ARRAYS,
    "primal and online (`solvers/primal`)": primal.ARRAYS,
    "primal and online, with acceleration": primal.EXTRAPOLATION_ARRAYS,
    "working-set (`solvers/working_set`)": working_set.ARRAYS,
}


def _form(array: Array) -> str:
    """Describe shape and type of an array."""
    shape = " × ".join(str(axis) for axis in array.axes) or "scalar"
    dtype = np.dtype(array.dtype).name
    form = shape if dtype == "float64" else f"{shape}, {dtype}"
    return f"{form}; in a read alone" if array.temporary else form


def table() -> str:
    """Make the table: a line for each array, or for some of one meaning, by what declares it."""
    lines = ["| array | shape (float64) | |", "| --- | --- | --- |"]
    for owner, arrays in OWNERS.items():
        lines.append(f"| **{owner}** | | |")
        for (form, meaning), some in groupby(arrays, lambda array: (_form(array), array.meaning)):
            names = ", ".join(f"`{array.name}`" for array in some)
            lines.append(f"| {names} | {form} | {meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    replace_section(PAGE, COMMAND, table())
