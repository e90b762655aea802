"""The table of losses, methods and penalties in docs/methods.md, made of what the registry of solvers accepts.

python -m tools.methods_table
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from streamcd.core.errors import UsageError
from streamcd.kernels.loss_table import LOSSES, SOLVERS, SolverEntry
from streamcd.solvers.problem import make_problem
from streamcd.solvers.protocol import solver_class
from tools.marked_section import replace_section

PAGE = Path(__file__).resolve().parent.parent / "docs" / "methods.md"
COMMAND = "python -m tools.methods_table"
PENALTIES = {"l2": (0.0, 2.0), "l1": (1.0, 0.0), "elasticnet": (1.0, 1.0)}
"""Names, each with strengths of L1 and L2 that are not those of LIBLINEAR's ``½‖w‖²``."""


def trains(entry: SolverEntry, *, l1: float = 0.0, l2: float = 1.0, free_bias: bool = False) -> bool:
    """Tell whether a solver trains with a penalty and a bias."""
    asked: dict[str, Any] = {"l1": (l1,), "l2": l2, "bias": 1.0, "free_bias": free_bias}
    two: dict[str, Any] = {
        "classes": np.array([0.0, 1.0]),
        "n_features": 1,
    }
    try:
        solver_class(make_problem(loss=entry.loss, **two, **asked), entry.method)
    except UsageError:
        return False
    return True


def table() -> str:
    """Make the table: a line for losses that go with the same methods and penalties, in the order of the registry."""
    lines: dict[str, list[str]] = {}
    for loss in LOSSES:
        entries = [entry for entry in SOLVERS.values() if entry.loss == loss]
        ways = []
        for entry in entries:
            taken = [name for name, (l1, l2) in PENALTIES.items() if l1 and trains(entry, l1=l1, l2=l2)]
            ways.append(f"`{entry.method}`" + (f" ({', '.join(taken)})" if taken else ""))
        numbers = ", ".join(str(n) for n in sorted(e.liblinear for e in entries if e.liblinear is not None))
        lines.setdefault(", ".join(ways), []).append(f"`{loss}`" + (f" ({numbers})" if numbers else ""))
    heads = ["| `--loss` (LIBLINEAR's `-s`) | `--method` (penalties beside l2) |", "| --- | --- |"]
    return "\n".join([*heads, *(f"| {', '.join(losses)} | {ways} |" for ways, losses in lines.items())])


if __name__ == "__main__":
    replace_section(PAGE, COMMAND, table())
