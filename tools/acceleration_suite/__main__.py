"""Passes of plain and of accelerated training over the suite, against stated targets.

    python -m tools.acceleration_suite FOLDER --jobs 2
    python -m tools.acceleration_suite FOLDER --set a9a --loss hinge -C 1,10
    python -m tools.acceleration_suite FOLDER --report-only --docs docs/acceleration.md --plot docs/img/acceleration.png

FOLDER gets the datasets; real sets are found by STREAMCD_DATA. A cell is a set, a loss, a C, and a method or a number of
workers (in one process, by `simulated_cluster.Simulation`). It is trained to a relative gap of 1e-3, and goes on to 1e-6
(hinge, crammer_singer, twin with the slack hinge: 1e-4), plain and accelerated. Records are kept, and runs on record are not
repeated: the whole takes hours. ``--fresh`` measures accelerated runs again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

if __package__ in (None, ""):  # run as a directory: python tools/acceleration_suite
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from tools.acceleration_suite.cells import SOURCES, all_cells, chosen
from tools.acceleration_suite.plot import PANELS, plot_curves
from tools.acceleration_suite.runs import Limits, Records, run_all
from tools.acceleration_suite.tables import report
from tools.marked_section import replace_section

_COMMAND = "python -m tools.acceleration_suite"
_RECORDS = Path(__file__).with_name("records.jsonl")


def _commas(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


@click.command(help=__doc__.split("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--set", "names", default="", help="Some of: " + ", ".join(SOURCES))
@click.option(
    "--loss", "losses", default="", help="Some of the losses; twin_squared is twin with that slack."
)
@click.option("-C", "costs", default="", help="Some of 0.1, 1, 10, 100.")
@click.option("--method", "methods", default="", help="Some of dual, primal, online, 2 workers, 4 workers.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Cells trained side by side.")
@click.option("--max-passes", default=1000, show_default=True)
@click.option("--max-seconds", default=float("inf"), help="Processor time of a run; none by default.")
@click.option("--records", default=_RECORDS, type=click.Path(path_type=Path), show_default=True)
@click.option("--fresh", is_flag=True, help="Measure accelerated runs anew; plain ones are kept.")
@click.option("--report-only", is_flag=True, help="Train no cell (a plot still trains its own).")
@click.option(
    "--docs", type=click.Path(path_type=Path), help="A Markdown file with a marked section to replace."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Gap against passes, four sets.")
def main(
    folder: Path,
    names: str,
    losses: str,
    costs: str,
    methods: str,
    jobs: int,
    max_passes: int,
    max_seconds: float,
    records: Path,
    fresh: bool,
    report_only: bool,
    docs: Path | None,
    plot: Path | None,
) -> None:
    asked = [float(cost) for cost in _commas(costs)]
    cells = chosen(all_cells(), _commas(names), _commas(losses), asked, _commas(methods))
    kept, limits = Records(records), Limits(max_passes, max_seconds)
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        kept.forget_accelerated(cells)
    if not report_only:
        run_all(kept, cells, folder, limits, jobs)
    text = report(kept.done)
    print(text)
    if docs is not None:
        replace_section(docs, _COMMAND, text)
    if plot is not None:
        plot_curves(PANELS, folder, limits, plot)


if __name__ == "__main__":
    main()
