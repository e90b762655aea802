"""Small datasets, runs, models and files that the attacks begin with, made by the commands themselves."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .commands import run_command


@dataclass(frozen=True)
class Workspace:
    """A directory with data of two seeds: ``a.txt``, datasets ``a`` and ``b`` with columns, ``bare`` without, and runs, some
    with L1, all classes at once and numbers among them; ``a.numbers``, whose labels are numbers to predict; ``a.csv``, its
    dataset ``a.table``, and a run of it."""

    path: Path

    def copy(self, place: Path, *names: str) -> None:
        """Copy what a trial changes; the rest is not there."""
        for name in names:
            source = self.path / name
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, place / name)


def make_text(path: Path, seed: int, n_rows: int = 60, n_features: int = 8) -> None:
    """Write rows of two noisy classes as libsvm text."""
    rng = random.Random(seed)
    with open(path, "w", encoding="ascii") as file:
        for _ in range(n_rows):
            values = [(k, rng.gauss(0, 1)) for k in sorted(rng.sample(range(1, n_features + 1), 4))]
            label = 1 if sum(value for _, value in values) + rng.gauss(0, 0.5) > 0 else -1
            file.write(f"{label} " + " ".join(f"{k}:{value:.4g}" for k, value in values) + "\n")


def make_table(path: Path, seed: int, n_rows: int = 40) -> None:
    """Write rows of two noisy classes as CSV: numbers, a column of strings, missing values."""
    rng = random.Random(seed)
    with open(path, "w", encoding="ascii") as file:
        file.write("price,town,size,kind\n")
        for _ in range(n_rows):
            price, town = rng.gauss(0, 1), rng.choice(("Oslo", "Rome", "Turin", ""))
            kind = "dear" if price + (town == "Oslo") + rng.gauss(0, 0.5) > 0.5 else "cheap"
            file.write(f"{price:.4g},{town},{rng.choice(('', rng.randint(1, 9)))},{kind}\n")


def make_workspace(parent: Path) -> Workspace:
    """Make everything in ``parent / "made"``, with kernels compiled and loaded by this process for all that it forks."""
    load_kernels()
    place = parent / "made"
    place.mkdir()
    for seed, name in enumerate("ab"):
        make_text(place / f"{name}.txt", seed)
        make_table(place / f"{name}.csv", seed)
        for command in (
            f"convert {name}.txt {name} --chunk-size 400B --shard-size 2kB",
            f"columns {name}",
            f"train {name} {name}.run --method dual --max-passes 3 --tol 1e-12",
            f"train {name} {name}.primal --method primal --max-passes 2 --tol 1e-12",
            f"train {name} {name}.done --method dual --tol 1e-3",
            f"export {name}.done {name}.model",
            f"train {name} {name}.l1 --method newton --penalty l1 --tol 1e-3",
            f"train {name} {name}.sets --method working-set --penalty l1 --max-passes 2 --tol 1e-12",
            f"train {name} {name}.softmax --loss multinomial --max-passes 3 --tol 1e-12",
            f"convert {name}.txt {name}.numbers --chunk-size 400B --shard-size 2kB --target",
            f"train {name}.numbers {name}.newton --loss huber --method newton --max-passes 1 --tol 1e-12",
            f"convert {name}.csv {name}.table --label kind --missing zero --chunk-size 400B",
            f"train {name}.table {name}.table.done --loss log_loss --method dual --tol 1e-3",
        ):
            must_run(place, command)
    must_run(place, "convert a.txt bare --chunk-size 400B --shard-size 2kB")
    return Workspace(place)


def load_kernels() -> None:
    """Load in this process what the forked commands need, so that each does not do it anew."""
    from streamcd.conversion.convert import convert
    from streamcd.conversion.transpose import make_columns
    from streamcd.prediction.predict import predict
    from streamcd.runs.run import train

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make_text(place / "text", 0)
        dataset = convert(place / "text", place / "data")
        make_columns(dataset)
        for method in ("dual", "primal", "newton", "working-set"):
            train(dataset, place / method, method=method, max_passes=1)
        predict(dataset, place / "dual", place / "out.txt")


def must_run(place: Path, command: str) -> None:
    """Run a command that has to succeed."""
    ended = run_command(place, *command.split())
    if ended.status != 0:
        raise RuntimeError(f"{command}: {ended}\n{ended.stderr}")
