"""The table of losses, methods and penalties in docs/methods.md, made of the table of solvers.

python -m tools.methods_table
"""

from __future__ import annotations

from pathlib import Path

from streamcd.kernels.loss_table import LOSSES, SOLVERS
from tools.marked_section import replace_section

PAGE = Path(__file__).resolve().parent.parent / "docs" / "methods.md"
COMMAND = "python -m tools.methods_table"


def table() -> str:
    """Make the table: a line for losses that go with the same methods and penalties, in the order of the registry."""
    lines: dict[str, list[str]] = {}
    for loss in LOSSES:
        entries = [entry for entry in SOLVERS.values() if entry.loss == loss]
        ways = []
        for entry in entries:
            ways.append(f"`{entry.method}`" + (" (l1, elasticnet)" if entry.takes_l1 else ""))
        numbers = ", ".join(str(n) for n in sorted(e.liblinear for e in entries if e.liblinear is not None))
        lines.setdefault(", ".join(ways), []).append(f"`{loss}`" + (f" ({numbers})" if numbers else ""))
    heads = ["| `--loss` (LIBLINEAR's `-s`) | `--method` (penalties beside l2) |", "| --- | --- |"]
    return "\n".join([*heads, *(f"| {', '.join(losses)} | {ways} |" for ways, losses in lines.items())])


if __name__ == "__main__":
    replace_section(PAGE, COMMAND, table())
