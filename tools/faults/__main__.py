"""Attack streamcd, and print and write the table of the findings.

python -m tools.faults                                      all kinds, their full number of trials
python -m tools.faults --kind damage --seed 3 --count 50    one kind, 50 trials
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if __package__ in (None, ""):  # run as a directory: python tools/faults
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from tools.faults.budgets import Budgets
from tools.faults.certificates import Certificates
from tools.faults.damage import Damage
from tools.faults.file_operations import FileOperations
from tools.faults.metadata import Metadata
from tools.faults.mutants import Mutants
from tools.faults.power import Power
from tools.faults.swaps import Swaps
from tools.faults.tables import Tables
from tools.faults.trainings import Trainings
from tools.faults.trials import COLUMNS, Attack, run_attack, table

KINDS: dict[str, type[Attack]] = {
    "operations": FileOperations,
    "power": Power,
    "trainings": Trainings,
    "damage": Damage,
    "swaps": Swaps,
    "metadata": Metadata,
    "tables": Tables,
    "certificates": Certificates,
    "budgets": Budgets,
    "mutants": Mutants,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the attacks asked for; exit status 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", action="append", choices=KINDS, help="several may be given; all by default")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn, together with a trial's number")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--count", type=int, help="trials of each kind")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--output", type=Path, help="Markdown file for the table")
    asked = parser.parse_args(arguments)
    rows = []
    for kind in asked.kind or KINDS:
        attack = KINDS[kind]()
        count = attack.default_count if asked.count is None else asked.count
        jobs = 1 if kind == "budgets" else asked.jobs
        rows.append(run_attack(attack, kind, seed=asked.seed, first=asked.first, count=count, jobs=jobs))
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    for row in rows:
        for column, meaning in COLUMNS.items():
            if row.count(column):
                print(f"{row.kind}, {column} ({meaning}): {row.count(column)} of {row.tried}")
    if asked.output is not None:
        command = f"python -m tools.faults {' '.join(sys.argv[1:] if arguments is None else arguments)}"
        asked.output.write_text(f"`{command.strip()}`:\n\n{table(rows)}", encoding="utf-8")
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main())
