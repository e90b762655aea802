"""Peak memory against ``--memory``, read from outside: VmHWM summed over a command and its children."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .trials import Finding

POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Shape:
    """Data of a shape, the budget in MB, and commands on it."""

    name: str
    n_rows: int
    n_features: int
    n_classes: int
    memory: int
    commands: tuple[str, ...]


CONVERT, TRAIN, PREDICT = "convert data.txt out", "train out run --max-passes 2", "predict out run -o p.csv"
TABLE, PREDICT_TABLE = "convert data.csv out --label label", "predict data.csv run -o p.csv"
SETS = "train out sets --max-passes 2 --method working-set --penalty elasticnet --l1 0.1"

SHAPES = (
    Shape("wide", 2000, 5_000_000, 2, 330, (f"{CONVERT} --scale standard", TRAIN)),
    Shape(
        "very wide",
        20_000,
        10_000_000,
        2,
        610,
        (
            f"{CONVERT} --scale standard",
            "convert data.txt two --scale maxabs --normalize l2",
        ),
    ),
    Shape(
        "very wide, two workers", 20_000, 10_000_000, 2, 1200, (f"{CONVERT} --scale standard --workers 2",)
    ),
    Shape("tall", 200_000, 30, 2, 300, (CONVERT, TRAIN, PREDICT)),
    Shape("many classes", 3000, 500, 1000, 310, (CONVERT, TRAIN)),
    Shape("a class a row", 6000, 300, 6000, 310, (CONVERT, TRAIN)),
    Shape(
        "probabilities",
        5000,
        200,
        300,
        310,
        (CONVERT, f"{TRAIN} --loss log_loss --method dual", f"{PREDICT} --proba"),
    ),
    Shape("many lanes", 5000, 2000, 30, 310, (CONVERT, "tune out run -C 0.1,0.3,1,3 --cv 3 --max-passes 2")),
    Shape(
        "column layout", 20_000, 200_000, 2, 300, (CONVERT, "columns out", f"{TRAIN} --method primal", SETS)
    ),
    Shape("narrow", 200_000, 100, 2, 300, (CONVERT, f"{TRAIN} --method newton --penalty l1 --l1 1,0.1")),
    Shape("numbers", 200_000, 30, 1000, 300, (f"{CONVERT} --target", f"{TRAIN} --loss huber -C 0.1,1,10")),
    Shape(
        "softmax", 20_000, 300, 30, 300, (CONVERT, f"{TRAIN} --loss multinomial --bias 1 --unpenalized-bias")
    ),
    Shape("three classes", 20_000, 300, 3, 300, (CONVERT, f"{TRAIN} --loss crammer_singer")),
    Shape("two workers", 50_000, 1000, 2, 690, (f"{CONVERT} --workers 2", TRAIN, f"{PREDICT} --workers 2")),
    Shape("table", 150_000, 20_000, 2, 310, (TABLE, TRAIN, PREDICT_TABLE)),
    Shape("hashed table", 150_000, 150_000, 3, 310, (f"{TABLE} --hash 16", TRAIN, PREDICT_TABLE)),
)

TOO_LITTLE = 211
"""MB too few for any command: the refusal names the least."""


class Budgets:
    """Trial k measures shape k modulo their number: at its budget, and in the next round at the least memory of each
    command.

    Run by a single job, because trials share the machine's memory.
    """

    default_count = 2 * len(SHAPES)

    def prepare(self, place: Path) -> None:
        pass

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        shape = SHAPES[number % len(SHAPES)]
        if shape.commands[0].startswith(TABLE):
            make_table(place / "data.csv", shape, rng)
        else:
            make_data(place / "data.txt", shape, rng)
        findings = []
        for command in shape.commands:
            memory = TOO_LITTLE if number // len(SHAPES) % 2 else shape.memory
            status, peak, said = measure([*command.split(), "--memory", f"{memory}MB"], place)
            while (named := least_memory(said)) > memory and shape.memory != memory:
                memory = named
                status, peak, said = measure([*command.split(), "--memory", f"{memory}MB"], place)
            words = [*command.split(), "--memory", f"{memory}MB"]
            what = f"{shape.name}: {' '.join(words)}: exit {status}, {peak / 1e6:.0f} MB of {memory}; {said}"
            if peak > memory * 1e6:
                findings.append(Finding("beyond", what))
            if status not in (0, 1, 2) or "Traceback" in said:
                findings.append(Finding("ugly", what))
            if status != 0:
                findings.append(Finding("wrong", f"{what}: refused"))
                break
        return findings


def least_memory(refusal: str) -> int:
    """The least memory in MB that a refusal names, rounded up beyond its digits; 0 where it names none."""
    named = re.search(r"(?:= ([0-9.]+) (MB|GB) needed)|(?:give about ([0-9.]+) (MB|GB))", refusal)
    if named is None:
        return 0
    number, unit = (group for group in named.groups() if group)
    return math.ceil(float(number) * {"MB": 1, "GB": 1000}[unit] * 1.005)


def make_data(path: Path, shape: Shape, rng: random.Random) -> None:
    """Write ten entries a row, in features drawn from all."""
    with open(path, "w", encoding="ascii") as file:
        for row in range(shape.n_rows):
            features = sorted({rng.randrange(shape.n_features) + 1 for _ in range(10)})
            entries = " ".join(f"{feature}:{rng.random():.4f}" for feature in features)
            file.write(f"{row % shape.n_classes} {entries}\n")


def make_table(path: Path, shape: Shape, rng: random.Random) -> None:
    """Write four numbers and two categories a row, these drawn from as many values as the shape has features."""
    with open(path, "w", encoding="ascii") as file:
        file.write("label,a,b,c,d,town,street\n")
        for row in range(shape.n_rows):
            numbers = ",".join(f"{rng.random():.4f}" for _ in range(4))
            town, street = rng.randrange(shape.n_features), rng.randrange(shape.n_features)
            file.write(f"class {row % shape.n_classes},{numbers},town number {town},street number {street}")
            file.write("\n")


def measure(words: list[str], place: Path) -> tuple[int, int, str]:
    """Run a command; returns exit status, peak bytes of its processes, and the last line of its output.

    Kernels that no earlier command in `place` has compiled are compiled, by a process that no budget counts: it ends before
    the memory of the budget is taken.
    """
    root = Path(__file__).resolve().parent.parent.parent
    launch = f"import sys; sys.path.insert(0, {str(root)!r}); from streamcd.cli.commands import main; main()"
    with open(place / "said", "w") as said:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(place / "kernels")}
        process = subprocess.Popen(
            [sys.executable, "-c", launch, *words], cwd=place, stdout=said, stderr=said, env=environment
        )
        peaks: dict[int, int] = {}
        while process.poll() is None:
            for pid in _tree(process.pid):
                peaks[pid] = 0 if _compiles(pid) else max(peaks.get(pid, 0), _peak(pid))
            time.sleep(POLL_SECONDS)
    lines = (place / "said").read_text(errors="replace").strip().splitlines() or [""]
    traceback = "Traceback: " if any(line.startswith("Traceback") for line in lines) else ""
    return process.returncode, sum(peaks.values()), traceback + lines[-1][:600]


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(found for child in children for found in _tree(int(child)))]


def _compiles(pid: int) -> bool:
    try:
        return b"kernels.compiler" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
