"""Runs of cells, in processes side by side, and the records that are kept of them."""

from __future__ import annotations

import json
import multiprocessing
import signal
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from streamcd import ConvergenceWarning, resume, train
from streamcd.core.errors import Interrupted

from ..simulated_cluster import Simulation
from .cells import COARSE, Cell, prepare

ACCELERATIONS = ("auto", "none")


@dataclass(frozen=True)
class Limits:
    """Limits at which a run ends without reaching its gap."""

    max_passes: int = 1000
    seconds: float = float("inf")  # of processor time


@dataclass
class Record:
    """A run of a cell: the passes at which each gap was certified."""

    cell: Cell
    acceleration: str
    passes: dict[str, int] = field(
        default_factory=dict
    )  # by gap, as in "0.001"; missing where it was not reached
    certificates: int = 0  # certifying reads of the run to the coarse gap
    made: int = 0  # training passes
    rounds: int = 0  # training reads to the coarse gap, each of several passes where workers share the rows
    accelerated: bool = False  # False where acceleration was asked for and does not apply
    stopped: str = ""  # gap, max_passes or time
    seconds: float = 0.0  # of processors

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Record:
        """Read the object of a line."""
        return cls(**{**fields, "cell": Cell(**fields["cell"])})


class Records:
    """Records of the runs made, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[tuple[Cell, str], Record] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            self._keep(Record.from_json(json.loads(line)))

    def _keep(self, record: Record) -> None:
        self.done[record.cell, record.acceleration] = record

    def add(self, record: Record) -> None:
        """Keep a record, on disk too."""
        self._keep(record)
        with open(self.path, "a") as stream:
            stream.write(record.to_json() + "\n")

    def missing(self, cells: Iterable[Cell], limits: Limits) -> list[tuple[Cell, str]]:
        """List the runs of these cells that are not on record, or ended at a lower limit."""
        asked = [(cell, acceleration) for cell in cells for acceleration in ACCELERATIONS]
        return [run for run in asked if run not in self.done or _would_go_on(self.done[run], limits)]

    def forget_accelerated(self, cells: Iterable[Cell]) -> None:
        """Remove the accelerated runs of these cells; plain ones do not change with the rule."""
        gone = {(cell, "auto") for cell in cells}
        self.done = {key: record for key, record in self.done.items() if key not in gone}
        self.path.write_text("".join(record.to_json() + "\n" for record in self.done.values()))


def _would_go_on(record: Record, limits: Limits) -> bool:
    if record.stopped == "time":
        return limits.seconds > 1.5 * record.seconds
    return record.stopped == "max_passes" and record.made < limits.max_passes


def run_all(records: Records, cells: list[Cell], folder: Path, limits: Limits, jobs: int) -> None:
    """Make the runs that are missing, `jobs` at a time, and record each when it ends."""
    missing = records.missing(cells, limits)
    for name in dict.fromkeys(cell.data for cell, _ in missing):
        prepare(name, folder)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        runs = [pool.submit(run_cell, *run, folder, limits) for run in missing]
        try:
            for number, future in enumerate(as_completed(runs), 1):
                record = future.result()
                records.add(record)
                print(f"{number} of {len(runs)}: {describe(record)}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C waits for the runs in progress only


def describe(record: Record) -> str:
    """One line for people."""
    cell = record.cell
    who = f"{cell.workers} workers" if cell.workers else cell.method
    found = (
        ", ".join(f"{passes} passes to {gap}" for gap, passes in record.passes.items()) or "no gap reached"
    )
    return (
        f"{cell.data} {cell.loss} C={cell.C:g} {who}, acceleration {record.acceleration}: {found}; "
        f"{record.stopped} after {record.made} passes, {record.seconds:.1f} s"
    )


def run_cell(cell: Cell, acceleration: str, folder: Path, limits: Limits) -> Record:
    """Train one cell to its gaps, one after another, in this process."""
    record, began = Record(cell, acceleration), time.process_time()

    def stop_requested() -> int | None:
        return signal.SIGTERM if time.process_time() - began > limits.seconds else None

    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        run = Path(scratch) / "run"
        for tol in cell.tolerances:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    result = _advance(
                        cell, acceleration, prepare(cell.data, folder), run, tol, limits, stop_requested
                    )
            except Interrupted:
                record.stopped = "time"
                break
            record.accelerated = not result.lanes[0].keys().isdisjoint(("kappa", "extrapolation"))
            record.stopped = result.stop_reason
            if not result.converged:
                break
            record.passes[f"{tol:g}"] = result.passes
            if tol == COARSE:
                _count_reads(record, run)
        record.made = _log(run)[-1]["passes"]
    record.seconds = round(time.process_time() - began, 2)
    return record


def _advance(
    cell: Cell, acceleration: str, data: Path, run: Path, tol: float, limits: Limits, stop_requested: Any
) -> Any:
    if run.exists():
        return resume(run, tol=tol, stop_requested=stop_requested)
    twin = cell.loss.startswith("twin")
    return train(
        data,
        run,
        loss="twin" if twin else cell.loss,
        slack=("squared_hinge" if cell.loss == "twin_squared" else "hinge") if twin else None,
        method=cell.method,
        C=cell.C,
        tol=tol,
        acceleration=acceleration,
        memory="1GB",
        seed=0,
        max_passes=limits.max_passes,
        client=Simulation(cell.workers) if cell.workers else None,
        stop_requested=stop_requested,
    )


def _count_reads(record: Record, run: Path) -> None:
    kinds = [line["kind"] for line in _log(run)]
    record.certificates, record.rounds = kinds.count("certify"), kinds.count("train")


def _log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def gap_curve(cell: Cell, acceleration: str, folder: Path, limits: Limits) -> Iterator[tuple[int, float]]:
    """Certified relative gaps of a cell against passes, which grow by about a fifth from one point to the next."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        passes, gap, run, began = 1, float("inf"), Path(scratch) / "run", time.process_time()
        least = cell.tolerances[-1]
        while gap > least and passes <= limits.max_passes and time.process_time() - began < limits.seconds:
            if run.exists():
                result = resume(run, max_passes=passes)
            else:
                now = Limits(passes)
                result = _advance(
                    cell, acceleration, prepare(cell.data, folder), run, least, now, lambda: None
                )
            gap = result.gap
            yield result.passes, gap
            passes = max(passes + 1, round(1.2 * passes))
