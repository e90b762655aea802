"""Time streamcd against its peers to levels of the best objective known, each in a process of its own, in turn.

    python -m tools.peers DATASET --test TEST-DATASET --loss squared_hinge --rounds 5 --records races.jsonl
    python -m tools.peers --records races.jsonl --docs docs/benchmark.md --plot docs/img/benchmark.png

streamcd trains from DATASET itself, its peers from arrays beside it, their fastest loader.
The first training of every process is not counted. The extra `bench` has the peers; one that is not installed is left out.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from tools.marked_section import replace_section

from .arrays import write_arrays
from .contestants import CONTESTANTS, Task
from .race import race
from .tables import append, plot, race_of, read, table

_MODULES = {"liblinear": "liblinear", "sklearn": "sklearn"}


def installed() -> list[str]:
    """List the contestants that can be imported."""
    names = {name: name.partition("-")[0] for name in CONTESTANTS}
    return [name for name, module in names.items() if importlib.util.find_spec(_MODULES.get(module, module))]


@click.command(help=__doc__.split("\n")[0])
@click.argument("dataset", required=False, type=click.Path(path_type=Path, exists=True))
@click.option("--test", type=click.Path(path_type=Path, exists=True), help="A dataset, for the accuracy.")
@click.option("--loss", "losses", multiple=True, type=click.Choice(["squared_hinge", "hinge", "log_loss"]))
@click.option("-C", "cost", type=float, default=1.0, show_default=True)
@click.option("--only", default="", help="Some of: " + ", ".join(CONTESTANTS))
@click.option(
    "--rounds", default=5, show_default=True, help="The first finds the settings and is not counted."
)
@click.option("--threads", default=1, show_default=True, help="Of streamcd, and of peers that have threads.")
@click.option("--memory", default=Task.memory, show_default=True, help="Budget of streamcd.")
@click.option(
    "--cold", is_flag=True, help="Drop the files from the page cache before every load and training."
)
@click.option(
    "--max-seconds", default=120.0, show_default=True, help="Processor time of a contestant's first round."
)
@click.option("--records", default="races.jsonl", show_default=True, type=click.Path(path_type=Path))
@click.option(
    "--docs", type=click.Path(path_type=Path), help="A Markdown page with a marked section to replace."
)
@click.option("--plot", "picture", type=click.Path(path_type=Path))
def main(
    dataset: Path | None,
    test: Path | None,
    losses: tuple[str, ...],
    cost: float,
    only: str,
    rounds: int,
    threads: int,
    memory: str,
    cold: bool,
    max_seconds: float,
    records: Path,
    docs: Path | None,
    picture: Path | None,
) -> None:
    names = [name for name in installed() if not only or name in only.split(",")]
    test_arrays = None if test is None else _arrays_beside(test)
    if test is not None and test_arrays is not None:
        write_arrays(test, test_arrays)
    for loss in losses or ("squared_hinge",) if dataset is not None else ():
        assert dataset is not None
        dataset = dataset.resolve()
        task = Task(dataset, _arrays_beside(dataset), loss, cost, memory, threads)
        for training in race(
            names, task, test=test_arrays, rounds=rounds, max_seconds=max_seconds, cold=cold
        ):
            append(records, race_of(task, cold), training)
            click.echo(
                f"round {training.round}, {training.contestant} at {training.setting:g}: "
                f"{training.figures['seconds']:.3f} s, {training.relative:.1e} above the best",
                err=True,
            )
    races = read(records)
    text = table(races)
    click.echo(text)
    if docs is not None:
        replace_section(docs, "python -m tools.peers", text)
    if picture is not None:
        plot(races, picture)


def _arrays_beside(dataset: Path) -> Path:
    return dataset.resolve().with_name(f"{dataset.name}.arrays")


if __name__ == "__main__":
    main()
