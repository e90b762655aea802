"""Model of a training on many workers: rounds measured with simulated partitions, seconds from stated speeds.

    python -m tools.model_cluster DATASET --workers 1,2,4,8,16,32,64,128,256 -o rounds.json
    python -m tools.model_cluster rounds.json --plot cluster.png

The number of rounds does not depend on the hardware: K partitions are trained one after another in this process, exactly as
K workers would. DATASET needs at least twice as many shards as workers (``convert --shard-size``), because some are
reassigned in every round. The cost of a round then follows from the size of the data set and the speeds in `Hardware`. Needs
the extra ``plot`` for the picture.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from streamcd.cluster.assignment import EXCHANGED
from streamcd.dataset.dataset import open_dataset
from streamcd.runs.train import train
from tools.simulated_cluster import Simulation


@dataclass(frozen=True)
class Hardware:
    """A cluster and a data set on it.

    Attributes
    ----------
    n_entries, n_features : float
        Of the data set.
    disk : float
        Bytes a second that a worker reads, alone (not shared by all).
    entry_bytes : float
        Bytes of an entry in the files: 8 where they do not compress, 3 to 4 for categories.
    rate : float
        Entries a second that a worker trains on, once they are in memory.
    memory : float
        Bytes in which a worker keeps decoded entries; where its shards fit, a round reads them once.
    bandwidth : float
        Bytes a second between any two workers.
    overhead : float
        Seconds a round for the scheduler's tasks, syncing and committing: measured 0.1 to 0.3.
    """

    n_entries: float = 1e10
    n_features: float = 1e7
    disk: float = 5e8
    entry_bytes: float = 8.0
    rate: float = 1.5e8
    memory: float = 1.6e10
    bandwidth: float = 1.25e9
    overhead: float = 0.2


def round_seconds(hardware: Hardware, n_workers: int, passes: float, arriving: float) -> tuple[float, float]:
    """Seconds of work, and of overhead, of a round with `passes` local passes; `arriving` is the share of new shards."""
    entries = hardware.n_entries / n_workers
    train_seconds, read_seconds = entries / hardware.rate, hardware.entry_bytes * entries / hardware.disk
    reads = arriving if 8 * entries <= hardware.memory else passes
    # reading and training overlap
    work = reads * max(train_seconds, read_seconds) + (passes - reads) * train_seconds
    depth = math.ceil(math.log2(n_workers)) if n_workers > 1 else 0
    # w to the first worker and from the last, and down and up a tree in which a step moves it once
    network = 2 * (1 + depth) * 8 * hardware.n_features / hardware.bandwidth
    return work, network + hardware.overhead


def sent_bytes(hardware: Hardware, n_workers: int) -> float:
    """Bytes over the network in a round: w to every worker, and a change of w from each, dense."""
    return 2 * n_workers * 8 * hardware.n_features


def measure(
    dataset: str, loss: str, workers: list[int], local_passes: int | None, tol: float, max_passes: int
) -> list[dict[str, Any]]:
    """Measure the rounds to the gap for every number of workers."""
    found = []
    for n_workers in workers:
        with tempfile.TemporaryDirectory() as scratch:
            run = Path(scratch) / "run"
            result = train(
                dataset,
                run,
                loss=loss,
                method="dual",
                tol=tol,
                max_passes=max_passes,
                local_passes=local_passes,
                client=Simulation(n_workers),
            )
            records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        steps = [record["eta"] for record in records if record["eta"]]
        rounds = sum(record["kind"] == "train" for record in records)
        found.append(
            {
                "dataset": Path(dataset).name,
                "loss": loss,
                "workers": n_workers,
                "shards": open_dataset(dataset).n_shards,
                "local_passes": result.passes // max(rounds, 1),
                "tol": tol,
                "rounds": rounds,
                "certificates": sum(record["kind"] == "certify" for record in records),
                "smallest_step": min(low for low, _ in steps),
                "seconds": result.seconds,
                "gap": result.gap,
                "converged": result.converged,
                "primal_objective": result.primal_objective,
            }
        )
        click.echo(json.dumps(found[-1]))
    return found


def exchanged_share(n_shards: int, n_workers: int) -> float:
    """Return the share of a worker's shards that change hands before a round."""
    own = n_shards / n_workers
    return 0.0 if n_workers == 1 or own <= 1.0 else math.ceil(own / EXCHANGED) / own


def modelled(hardware: Hardware, measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to the measured rounds their cost on this hardware."""
    rows = []
    for record in measured:
        n_workers = record["workers"]
        passes, share = record["local_passes"], exchanged_share(record["shards"], n_workers)
        first, rest = round_seconds(hardware, n_workers, passes, 1.0)
        work, _ = round_seconds(hardware, n_workers, passes, share)
        read, _ = round_seconds(hardware, n_workers, 1, 0.0)
        seconds = first + (record["rounds"] - 1) * work + record["certificates"] * read
        seconds += (record["rounds"] + record["certificates"]) * rest
        sent = (record["rounds"] + record["certificates"]) * sent_bytes(hardware, n_workers)
        rows.append({**record, "seconds": seconds, "network_share": rest / (work + rest), "bytes_sent": sent})
    return rows


def table(hardware: Hardware, measured: list[dict[str, Any]]) -> str:
    """Format as Markdown, a line per number of workers."""
    lines = [
        "| data, loss | workers | rounds | passes of a worker | certificates | seconds | overhead | sent |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in modelled(hardware, measured):
        rounds = f"{row['rounds']:,}" if row["converged"] else f"> {row['rounds']:,} (gap {row['gap']:.1e})"
        lines.append(
            f"| {row['dataset']}, {row['loss']} | {row['workers']} | {rounds} | "
            f"{row['rounds'] * row['local_passes']} | {row['certificates']} | {row['seconds']:,.0f} | "
            f"{row['network_share']:.0%} | {row['bytes_sent'] / 1e9:,.0f} GB |"
        )
    return "\n".join(lines)


def draw(hardware: Hardware, measured: list[dict[str, Any]], path: str) -> None:
    """Draw rounds, and modelled seconds in memory and from disk, against the number of workers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for number, name in enumerate(dict.fromkeys((record["dataset"], record["loss"]) for record in measured)):
        mine = [
            record
            for record in measured
            if (record["dataset"], record["loss"]) == name and record["converged"]
        ]
        workers, colour = [record["workers"] for record in mine], f"C{number}"
        left.plot(workers, [record["rounds"] for record in mine], "o-", color=colour, label=", ".join(name))
        for style, memory in (("-", hardware.memory), ("--", 0.0)):
            rows = modelled(replace(hardware, memory=memory), mine)
            right.plot(workers, [row["seconds"] for row in rows], "o" + style, color=colour)
    right.plot([], [], "k-", label=f"shards kept in {hardware.memory / 1e9:.0f} GB where they fit")
    right.plot([], [], "k--", label="read from disk in every pass")
    ticks = sorted({record["workers"] for record in measured})
    for axes, what in ((left, "rounds to the gap (measured)"), (right, "seconds (modelled)")):
        axes.set(xscale="log", yscale="log", xlabel="workers", ylabel=what)
        axes.set_xticks(ticks, labels=[str(tick) for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="both", labelsize=7)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


@click.command()
@click.argument("sources", nargs=-1, required=True)
@click.option("--losses", default="log_loss,squared_hinge,hinge", show_default=True)
@click.option("--workers", default="1,2,4,8,16,32,64,128,256", show_default=True)
@click.option("--local-passes", help="One or several, separated by commas; by default as in 'train'.")
@click.option("--tol", type=float, default=1e-2, show_default=True)
@click.option("--max-passes", type=int, default=1000, show_default=True)
@click.option("--entries", default=Hardware.n_entries, show_default=True, help="Of the data set modelled.")
@click.option("--features", default=Hardware.n_features, show_default=True, help="Of the data set modelled.")
@click.option(
    "--entry-bytes", default=Hardware.entry_bytes, show_default=True, help="Of an entry in the files."
)
@click.option("--rate", default=Hardware.rate, show_default=True, help="Entries/s that a worker trains on.")
@click.option("-o", "out", help="JSON file for the measurements, which can be a source later.")
@click.option("--plot", help="File for the plot.")
def main(
    sources: tuple[str, ...],
    losses: str,
    workers: str,
    local_passes: str | None,
    tol: float,
    max_passes: int,
    entries: float,
    features: float,
    entry_bytes: float,
    rate: float,
    out: str | None,
    plot: str | None,
) -> None:
    """Measure rounds on datasets (or read them from JSON), and model what they would cost."""
    measured: list[dict[str, Any]] = []
    numbers = [int(number) for number in workers.split(",")]
    for source in sources:
        if source.endswith(".json"):
            measured += json.loads(Path(source).read_text())
            continue
        shards = open_dataset(source).n_shards
        if shards < 2 * max(numbers) > 2:
            raise click.UsageError(
                f"{source} has {shards} shards, fewer than two for each of {max(numbers)} workers"
            )
        for loss in losses.split(","):
            for passes in map(int, local_passes.split(",")) if local_passes else [None]:
                measured += measure(source, loss, numbers, passes, tol, max_passes)
    if out:
        Path(out).write_text(json.dumps(measured, indent=1) + "\n")
    hardware = Hardware(n_entries=entries, n_features=features, entry_bytes=entry_bytes, rate=rate)
    click.echo(table(hardware, measured))
    if plot:
        draw(hardware, measured, plot)


if __name__ == "__main__":
    main()
