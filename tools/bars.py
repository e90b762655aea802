"""Measure what every linear model is to hold on real sets, and write the table of docs/bars.md.

    STREAMCD_DATA=… python -m tools.bars --docs docs/bars.md      all but the large ones: an hour
    STREAMCD_DATA=… python -m tools.bars --only newton --only l1        a part, printed
    STREAMCD_DATA=… python -m tools.bars --large --only table           a made table of 20 million rows
    STREAMCD_DATA=… python -m tools.bars --large --only l1              with made text of 65 million entries

Passes and reads are counted by trainings to a certified gap, with the first seed. Times are ratios of medians, of trainings
that take turns, after one that loads the kernels; a peer that is not installed is said to be missing.
"""

from __future__ import annotations

import functools
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import scipy.sparse as sp
from scipy import special

import streamcd
from streamcd import ConvergenceWarning, Dataset, StreamcdError
from streamcd.cli.synthetic import iterate_rows
from tools.bar_table import Bar, bar_options, in_turns, listed, need_processors, show
from tools.make_data import SHAPES, write_dataset

COMMAND = "python -m tools.bars"
_NO_END = 2000  # passes, after which a bar is not held anyway


class Sets:
    """Datasets of the real sets, converted once each, and runs."""

    def __init__(self, work: Path, *, large: bool) -> None:
        self.work, self.large, self._runs = work, large, 0
        work.mkdir(parents=True, exist_ok=True)
        self.data = Path(os.environ.get("STREAMCD_DATA", "../shared/data"))

    @functools.cache  # noqa: B019
    def classes(self, name: str) -> Dataset:
        streamcd.make_columns(streamcd.convert(self.data / f"{name}.xz", self.work / name, force=True))
        return streamcd.open(self.work / name)

    @functools.cache  # noqa: B019
    def targets(self, name: str) -> Dataset:
        """Rows of a set with a noisy linear function of them, scaled to variance 1."""
        x, _ = self.arrays(name)
        rng = np.random.default_rng(1)
        y = x @ rng.normal(size=x.shape[1]) + 0.5 * rng.normal(size=x.shape[0])
        rows = x, (y - y.mean()) / y.std()
        return streamcd.convert(rows, self.work / f"{name}.targets", target=True, dtype="float64", force=True)

    def arrays(self, name: str) -> tuple[Any, np.ndarray]:
        from sklearn.datasets import load_svmlight_file

        with lzma.open(self.data / f"{name}.xz") as file:
            x, y = load_svmlight_file(file, zero_based=False)
        return x, y

    @functools.cache  # noqa: B019
    def clicks(self) -> Dataset:
        """Categories of 38 fields, a feature for each value: sparse, with rare features."""
        if not (self.work / "clicks").exists():
            write_dataset(replace(SHAPES["clicks-400k"], rows=100_000), self.work / "clicks")
        return streamcd.open(self.work / "clicks")

    @functools.cache  # noqa: B019
    def text(self) -> Dataset:
        """Text of 65 million entries, with a column layout."""
        if not self.large:
            raise StreamcdError("it is made with --large")
        if not (self.work / "text").exists():
            write_dataset(SHAPES["text-65m"], self.work / "text")
            streamcd.make_columns(self.work / "text")
        return streamcd.open(self.work / "text")

    @functools.cache  # noqa: B019
    def table(self) -> tuple[Dataset, np.ndarray, np.ndarray]:
        """A table of 30 columns of numbers."""
        rng, n = np.random.default_rng(0), 20_000_000 if self.large else 1_000_000
        x = rng.standard_normal((n, 30), dtype=np.float32)
        y = (x @ rng.standard_normal(30, dtype=np.float32) + 2 * rng.standard_normal(n, dtype=np.float32)) > 0
        return (
            streamcd.convert((x, y.astype(np.float64)), self.work / "table", memory="1GB", force=True),
            x,
            y,
        )

    def train(self, data: Dataset, **options: Any) -> streamcd.Result:
        """Train without a bias, with all data in memory unless said otherwise."""
        self._runs += 1
        asked: dict[str, Any] = {"bias": -1, "tol": 1e-3, "memory": "4GB", "max_passes": _NO_END} | options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return streamcd.train(data, self.work / f"run{self._runs}", force=True, **asked)

    def passes(self, data: Dataset, **options: Any) -> float:
        """Passes to the gap; infinite where it was not reached."""
        result = self.train(data, **options)
        return result.passes if result.converged else float("inf")


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def counts(
    group: str,
    what: str,
    most: tuple[int, ...],
    problems: list[tuple[str, dict[str, Any]]],
    *,
    targets: bool = False,
) -> Bar:
    """Passes, or reads, of several trainings, each with its most."""

    def measure(sets: Sets) -> tuple[str, bool]:
        chosen = sets.targets if targets else sets.classes
        found = [sets.passes(chosen(name), **options) for name, options in problems]
        return listed(found), all(n <= limit for n, limit in zip(found, most, strict=True))

    return Bar(group, what, listed(most), measure)


def newton_reads(name: str, most: tuple[int, int]) -> Bar:
    """Reads to 1e-3 / 1e-6 of squared hinge and logistic, C = 1 and 100: the same limits for each."""

    def measure(sets: Sets) -> tuple[str, bool]:
        found = []
        for loss in ("squared_hinge", "log_loss"):
            for C in (1.0, 100.0):
                asked = {"loss": loss, "C": C, "method": "newton"}
                found.append(tuple(sets.passes(sets.classes(name), tol=tol, **asked) for tol in (1e-3, 1e-6)))
        held = all(n <= limit for pair in found for n, limit in zip(pair, most, strict=True))
        return ", ".join(listed(pair, "/") for pair in found), held

    what = f"newton, {name}: reads to 1e-3/1e-6, squared hinge C = 1, 100, logistic C = 1, 100"
    return Bar("newton", what, listed(most, "/"), measure)


def multinomial(name: str, *, peer: bool) -> list[Bar]:
    def measure_passes(sets: Sets) -> tuple[str, bool]:
        data = sets.classes(name)
        ours, theirs = (sets.passes(data, loss=loss) for loss in ("multinomial", "crammer_singer"))
        return listed((ours, theirs), " against "), ours <= theirs

    def measure_shares(sets: Sets) -> tuple[str, bool]:
        from sklearn.linear_model import LogisticRegression

        x, y = sets.arrays(name)
        other = LogisticRegression(tol=1e-10, max_iter=20_000, fit_intercept=False).fit(x, y)
        model = sets.train(sets.classes(name), loss="multinomial", tol=1e-9).model
        apart = float(np.abs(model.predict_proba(x) - other.predict_proba(x)).max())
        accuracy = [float((one.predict(x) == y).mean()) for one in (model, other)]
        return f"{apart:.1e}, {accuracy[0]:.4f} against {accuracy[1]:.4f}", apart <= 1e-4

    bars = [Bar("multinomial", f"multinomial, {name}: passes to 1e-3", "Crammer–Singer's", measure_passes)]
    what = f"multinomial, {name}: probabilities beside lbfgs at 1e-10; accuracies"
    return bars + [Bar("multinomial", what, "1e-4", measure_shares)] * peer


def elastic_net(name: str) -> Bar:
    def measure(sets: Sets) -> tuple[str, bool]:
        data = sets.clicks() if name == "clicks" else sets.classes(name)
        both = {"penalty": "elasticnet", "l1": 0.5, "l2": 0.5}
        ours, plain = (sets.passes(data, method="dual", **options) for options in (both, {}))
        return listed((ours, plain), " against "), ours <= 1.5 * plain

    return Bar(
        "elasticnet", f"elastic net by rows, {name}, λ = r = ½: passes to 1e-3", "1.5 × those of L2", measure
    )


def table_reads(sets: Sets) -> tuple[str, bool]:
    data, *_ = sets.table()
    result = sets.train(data, loss="log_loss", method="newton", tol=1e-6, memory="400MB")
    rows = f"{data.n_rows / 1e6:g} M rows, peak {result.peak_memory_bytes / 1e6:.0f} MB of the whole process"
    return f"{result.passes} ({rows})", result.converged and result.passes <= 5


def table_time(*, loads: bool) -> Bar:
    """Time beside scikit-learn's in memory; with `loads`, of loading too, from the fastest files, arrays of NumPy's."""

    def measure(sets: Sets) -> tuple[str, bool]:
        from sklearn.linear_model import LogisticRegression

        data, x, y = sets.table()
        files = sets.work / "table.x.npy", sets.work / "table.y.npy"
        if loads:
            for file, array in zip(files, (x, y), strict=True):
                np.save(file, array)
        other = LogisticRegression(solver="newton-cholesky", tol=1e-6, fit_intercept=False)
        asked = {"loss": "log_loss", "method": "newton", "tol": 1e-6, "memory": "400MB"}
        ours, theirs = in_turns(
            lambda: sets.train(data, **asked),
            lambda: other.fit(*(map(np.load, files) if loads else (x, y))),
        )
        return f"{theirs / ours:.2f} × as fast ({ours:.2f} s, {theirs:.2f} s)", theirs >= least * ours

    least = 3 if loads else 1
    counted = "" if loads else "not "
    what = f"the same against scikit-learn's newton-cholesky in memory, load {counted}counted"
    return Bar("table", what, f"{least} ×", measure)


def table_threads(n: int) -> Bar:
    def measure(sets: Sets) -> tuple[str, bool]:
        need_processors(n)
        data, *_ = sets.table()
        asked = {"loss": "log_loss", "method": "newton", "tol": 1e-6}
        one, several = in_turns(
            lambda: sets.train(data, threads=1, **asked), lambda: sets.train(data, threads=n, **asked)
        )
        return f"{one / several:.2f} ×", one / several >= least

    least = {2: 1.7, 4: 3.0}[n]
    return Bar("table", f"newton, {n} threads against 1", f"{least} ×", measure)


def text_l1(memory: str, what: str, most: int) -> Bar:
    """L1 logistic on made text by a process of its own: full reads, bytes that they read and its peak."""

    def measure(sets: Sets) -> tuple[str, bool]:
        sets.text()
        data, run = sets.work / "text", sets.work / f"text.{memory}"
        asked = [*_TRAIN_L1, str(data), str(run), "--memory", memory, "--force", "--json", "--quiet"]
        process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        result = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        stored = sum(path.stat().st_size for path in (data / "columns").iterdir())
        times = sum(line["bytes_read"] for line in lines) / stored
        peak = result["peak_memory_bytes"] / 1e6  # the system's figure has that of this process in it
        found = len(lines) if what == "full reads" else times
        cpu = usage.ru_utime + usage.ru_stime
        reached = f"{len(lines)} reads, {times:.1f} × the data's bytes, peak {peak:.0f} MB, {cpu:.0f} s of processor time"
        return reached, status == 0 and found <= most and peak <= float(memory.removesuffix("MB"))

    return Bar(
        "text",
        f"L1 logistic, text of 65 M entries, within {memory}: {what}, peak",
        f"{most}; {memory}",
        measure,
    )


def text_liblinear(sets: Sets) -> tuple[str, bool]:
    """Processor time within 800 MB, with reading, against LIBLINEAR's in memory, load not counted.

    LIBLINEAR's tolerance is made smaller until its objective is within 1e-4 of the certified one, a tenth of the certified
    gap; the time to within 1e-3 of it stands beside.
    """
    from liblinear.liblinearutil import parameter, problem, train

    data, shape = sets.text(), SHAPES["text-65m"]
    result, ours = processor_seconds(lambda: sets.train(data, memory="800MB", **_L1[1][1]))
    pieces = list(iterate_rows(shape.block_maker(0), 0, shape.rows))
    blocks = [
        sp.csr_matrix((piece.value, piece.feature, piece.indptr), shape=(piece.label.size, data.n_features))
        for piece in pieces
    ]
    x, y = sp.vstack(blocks).astype(np.float64), np.concatenate([piece.label for piece in pieces])
    asked = problem(y, x)
    to_same, to_near = float("inf"), float("inf")
    for eps in (0.01, 0.003, 0.001, 0.0003, 0.0001):
        other, theirs = processor_seconds(functools.partial(train, asked, parameter(f"-s 6 -e {eps} -q")))
        w = np.array(other.get_decfun()[0])
        margin = x @ w * y
        objective = np.abs(w).sum() + min(np.logaddexp(0.0, t).sum() for t in (margin, -margin))
        above = objective / result.primal_objective - 1.0
        if above <= 1e-3:
            to_near = min(to_near, theirs)
        if above <= 1e-4:
            to_same = theirs
            break
    reached = f"{ours / to_same:.2f} × its processor time ({ours:.1f} s, {to_same:.1f} s)"
    return f"{reached}; to within 1e-3 {ours / to_near:.2f} × ({to_near:.1f} s)", 2 * ours <= to_same


def l1_peers(name: str) -> Bar:
    """Processor time in memory, decoding and certificate counted, against the faster of skglm and celer.

    Theirs count once their weights' own gap, by scaled dual variables, is as small; the second pair of figures is to an
    objective as near to the optimum, which neither of them could tell.
    """

    def measure(sets: Sets) -> tuple[str, bool]:
        x, y = sets.arrays(name)
        x, y = sp.csc_matrix(x), np.where(y == y.max(), 1.0, -1.0)
        asked = {"loss": "log_loss", "penalty": "l1", "method": "working-set", "threads": 1}
        best = sets.train(sets.classes(name), tol=1e-9, **asked).primal_objective
        theirs = [
            (seconds, *_objectives(w, x, y))
            for train in (*_skglm(x, y), *_celer(x, y))
            for w, seconds in [processor_seconds(train), processor_seconds(train)][1:]  # the first compiles
        ]
        by_gap, by_objective = [], []
        for tol in (1e-3, 1e-6):
            train = functools.partial(sets.train, sets.classes(name), tol=tol, **asked)
            _, ours = processor_seconds(train)
            certified = [seconds for seconds, primal, dual in theirs if primal - dual <= tol * primal]
            near = [seconds for seconds, primal, _ in theirs if primal <= best * (1 + tol)]
            by_gap.append(min(certified, default=float("inf")) / ours)
            by_objective.append(min(near, default=float("inf")) / ours)
        to_gap, to_objective = (
            listed(round(ratio, 2) for ratio in ratios) for ratios in (by_gap, by_objective)
        )
        return f"{to_gap} × as fast; to such an objective {to_objective} ×", min(by_gap) >= 1.0

    what = f"L1 logistic, {name}, C = 1, in memory, to a gap of 1e-3 and 1e-6, against skglm or celer"
    return Bar("l1", what, "1 ×", measure)


def _objectives(w: np.ndarray, x: Any, y: np.ndarray) -> tuple[float, float]:
    """Return the objective of weights, and the dual one of their loss's slopes, scaled until they are feasible."""
    margin = y * (x @ w)
    share = 1.0 / (1.0 + np.exp(margin))
    share /= max(1.0, np.abs(x.T @ (share * y)).max())
    dual = special.entr(share).sum() + special.entr(1.0 - share).sum()
    return np.abs(w).sum() + np.logaddexp(0.0, -margin).sum(), dual


def _skglm(x: Any, y: np.ndarray) -> list[Callable[[], np.ndarray]]:
    """Return trainings by skglm with tighter and tighter tolerances."""
    from skglm import GeneralizedLinearEstimator
    from skglm.datafits import Logistic
    from skglm.penalties import L1
    from skglm.solvers import AndersonCD, ProxNewton

    models = [
        GeneralizedLinearEstimator(Logistic(), L1(1.0 / x.shape[0]), solver(tol=tol, fit_intercept=False))
        for solver in (AndersonCD, ProxNewton)
        for tol in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
    ]
    return [functools.partial(_fitted, model, x, y) for model in models]


def _celer(x: Any, y: np.ndarray) -> list[Callable[[], np.ndarray]]:
    from celer import LogisticRegression

    models = [LogisticRegression(tol=tol, fit_intercept=False) for tol in (1e-2, 1e-4, 1e-6)]
    return [functools.partial(_fitted, model, x, y) for model in models]


def _fitted(model: Any, x: Any, y: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(model.fit(x, y).coef_).ravel()


def processor_seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """Make a call; returns its result, and the processor time that it took."""
    started = time.process_time()
    return call(), time.process_time() - started


def combinations(sets: Sets) -> tuple[str, bool]:
    asked = ["-m", "pytest", "-q", "-m", "slow", "tests/test_combinations.py", "-p", "no:cacheprovider"]
    done = subprocess.run([sys.executable, *asked], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    return done.stdout.strip().splitlines()[-1].strip("= ").partition(" in ")[0], done.returncode == 0


def faults(what: str, kind: str, count: int, *, first: int = 0) -> Bar:
    """Trials of `tools.faults` that fail, of the first `count` or of those from `first` on."""

    def measure(sets: Sets) -> tuple[str, bool]:
        asked = ["-W", "ignore", "-m", "tools.faults", "--kind", kind]
        asked += ["--first", str(first), "--count", str(count)]
        done = subprocess.run([sys.executable, *asked], check=False, stdout=subprocess.PIPE, text=True)
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"| {kind} "))
        tried, *found = line.strip("| ").split(" | ")[1:-1]
        return f"{sum(map(int, found))} of {tried}", done.returncode == 0

    return Bar("faults", f"{what} (`tools.faults --kind {kind}`): trials that fail", "0", measure)


def tenth_loss(sets: Sets) -> tuple[str, bool]:
    asked = ["git", "log", "-1", "--numstat", "--format=%h", "--grep", "^The loss quantile: its entry"]
    try:
        done = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True)
        commit, _, *files = done.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError, ValueError):
        raise StreamcdError("the history of git is not there") from None
    n_lines = sum(int(file.split()[0]) for file in files)
    return f"{n_lines} lines, {len(files)} files ({commit})", n_lines <= 60 and len(files) <= 4


_TUBE = [("a9a", 1.0), ("a9a", 10.0), ("ijcnn1", 10.0)]
_SETS = ("imdb.bigram.tfidf", "imdb.bigram.tfidf", "kdd99_10pct", "a9a", "a9a")
_OPTIONS = ("squared_hinge", 1.0), ("log_loss", 1.0), *[("squared_hinge", C) for C in (1.0, 1.0, 10.0)]
_L1 = [
    (name, {"loss": loss, "C": C, "penalty": "l1", "method": "working-set"})
    for name, (loss, C) in zip(_SETS, _OPTIONS, strict=True)
]

_TRAIN_L1 = [sys.executable, "-m", "streamcd", "train", "--loss", "log_loss", "--penalty", "l1"]
_TRAIN_L1 += ["--method", "working-set", "--bias", "-1", "--tol", "1e-3"]

BARS = [
    Bar(
        "combinations",
        "every loss, method, penalty and bias on ten small problems (`tests/test_combinations.py`)",
        "1e-8 relative (linear programs 1e-4), certificates true in 50 digits",
        combinations,
    ),
    counts(
        "regression",
        "`-s 12`, a9a C = 1, 10; ijcnn1 C = 10: passes to 1e-3",
        (17, 20, 11),
        [(name, {"loss": "squared_epsilon_insensitive", "C": C}) for name, C in _TUBE],
        targets=True,
    ),
    counts(
        "regression",
        "`-s 13`, a9a C = 1, 10: passes to 1e-3",
        (46, 55),
        [(name, {"loss": "epsilon_insensitive", "C": C}) for name, C in _TUBE[:2]],
        targets=True,
    ),
    counts("l1", "L1 by working sets, imdb, squared hinge, logistic: full reads to 1e-3", (13, 9), _L1[:2]),
    counts(
        "l1",
        "L1 by working sets, kdd99; a9a C = 1, 10, squared hinge: full reads to 1e-3",
        (10, 14, 20),
        _L1[2:],
    ),
    text_l1("800MB", "full reads", 12),
    text_l1("400MB", "bytes read, of the data's", 30),
    Bar(
        "text",
        "the same within 800 MB against LIBLINEAR -s 6 in memory, to the same objective",
        "½ ×",
        text_liblinear,
    ),
    l1_peers("imdb.bigram.tfidf"),
    l1_peers("a9a"),
    *multinomial("dna.scale", peer=True),
    *multinomial("letter.scale", peer=True),
    *multinomial("news20", peer=False),
    newton_reads("a9a", (6, 8)),
    newton_reads("ijcnn1", (6, 8)),
    newton_reads("kdd99_10pct", (9, 12)),
    newton_reads("dna.scale", (9, 10)),
    elastic_net("a9a"),
    elastic_net("clicks"),
    Bar("table", "newton, a made table of 30 columns, within 400 MB: reads to 1e-6", "5", table_reads),
    table_time(loads=False),
    table_time(loads=True),
    table_threads(2),
    table_threads(4),
    faults("every solver, penalty and bias, killed or without power, and resumed", "trainings", 132),
    faults("commands killed at a file operation, on a full and on a failing disk", "operations", 80),
    faults("commands without power", "power", 80),
    faults("files damaged", "damage", 57),
    faults("files of other runs", "swaps", 57),
    faults("crafted metadata", "metadata", 60),
    faults("certificates against 60 digits", "certificates", 91),
    faults(
        "peak memory against the budget, by columns, newton, numbers, one class, softmax",
        "budgets",
        5,
        first=8,
    ),
    Bar(
        "tenth loss",
        "a tenth loss, quantile, as a commit of its own",
        "60 lines, 4 files",
        tenth_loss,
    ),
]


@click.command()
@bar_options(BARS)
@click.option(
    "--large",
    is_flag=True,
    help="The made table has 20 million rows, and text of 65 million entries is made.",
)
def main(only: tuple[str, ...], large: bool, work: Path | None, docs: Path | None) -> None:
    """Measure and print the table of bars; on a page, a part replaces its own lines."""
    with tempfile.TemporaryDirectory() as folder:
        show(BARS, Sets(work or Path(folder), large=large), COMMAND, only, docs)


if __name__ == "__main__":
    main()
