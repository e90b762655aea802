"""Real data sets, small made problems, and processes."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quick_processes  # noqa: F401
import scipy.sparse as sp
from small_datasets import (
    Rows,
    duplicate_rows,
    empty_columns,
    empty_rows,
    multiclass,
    random_rows,
    separable,
    unscaled,
    windows_of,
    write_dataset,
)
from threadpoolctl import threadpool_limits

from streamcd import Dataset, Listener, Result, train
from streamcd.conversion import byte_sources
from streamcd.core.memory_budget import available_memory
from streamcd.core.parallel import Pool

ROOT = Path(__file__).resolve().parent.parent

# Bytecode is kept beside the sources, as compiled kernels are: otherwise every process of the tests compiles it again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Every process that a test starts finds the source tree and this folder's `sitecustomize`.
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
# Test processes have a processor each, and what the tests compare with is small: more threads of BLAS would only wait.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
threadpool_limits(1, user_api="blas")
SUBPROCESS_ENVIRONMENT = dict(os.environ)

# A small file takes a tenth of the time in memory, where there is room for those of all tests.
IN_MEMORY = "/dev/shm"
if "TMPDIR" not in os.environ and available_memory() > 10e9 and os.path.isdir(IN_MEMORY):
    tempfile.tempdir = os.environ["TMPDIR"] = IN_MEMORY

# A shell starts what it puts in the background with Ctrl-C ignored, which processes hand down: those that tests interrupt
# would not notice.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A worker for each processor that the tests may use, as far as there is work for them."""
    return min(len(os.sched_getaffinity(0)), 8)


def _own_core() -> set[int]:
    """Give the processors of this process: one, where each of pytest's workers can have one of its own."""
    cores, worker = sorted(ALL_CORES), os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or int(os.environ["PYTEST_XDIST_WORKER_COUNT"]) != len(cores):
        return set(cores)
    return {cores[int(worker.removeprefix("gw"))]}


ALL_CORES = os.sched_getaffinity(0)
OWN_CORE = _own_core()
PARALLEL = {
    f"test_{name}.py"
    for name in (
        "threads",
        "parallel",
        "cluster",
        "stream",
        "read_ahead",
        "active_rows",
        "compile",
    )
}
"""Modules about threads or processes that run in parallel, which may use all processors, as those of `lent_workers` do."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep the threads of a test on one processor: between two, small pieces of work cost an eighth more."""
    several = item.path.name in PARALLEL or "lent_workers" in getattr(item, "fixturenames", ())
    os.sched_setaffinity(0, ALL_CORES if several else OWN_CORE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules whose tests share processes come one after the other, so that one worker of pytest has them all."""
    first = {item.path for item in items if "lent_workers" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path not in first)


def pytest_collection_finish() -> None:
    gc.freeze()  # half of the objects of a test process are modules and tests, which are no garbage
    gc.set_threshold(20_000, 50, 50)  # and of what tests make little is


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """``real_data("a9a")`` is the path of a real set, from STREAMCD_DATA or a `shared/data` beside the repository."""
    folder = Path(os.environ.get("STREAMCD_DATA", ROOT.parent / "shared" / "data"))

    def find(name: str) -> Path:
        path = folder / f"{name}.xz"
        if not path.exists():
            pytest.skip(f"no {name}.xz in {folder}; STREAMCD_DATA names the folder with the real data sets")
        return path

    return find


# ---------------------------------------------------------------------------------------------------------------------
# Small problems, named by what is special about them

SMALL_PROBLEMS: dict[str, Callable[[], Rows]] = {
    "random": lambda: random_rows(80, 10),
    "empty_row": empty_rows,
    "empty_column": empty_columns,
    "duplicate_rows": duplicate_rows,
    "one_class": lambda: (random_rows(20, 5, seed=4)[0], np.ones(20)),
    "separable": separable,
    "unscaled": unscaled,
    "multiclass": lambda: multiclass(n_rows=90),
}


@pytest.fixture(scope="session")
def small_problem() -> Callable[[str], Rows]:
    """``small_problem("empty_row")`` gives rows (CSR) and labels of one of `SMALL_PROBLEMS`."""
    return lambda name: SMALL_PROBLEMS[name]()


def libsvm_text(x: sp.csr_array, y: np.ndarray, index_base: int = 1) -> str:
    """Rows as libsvm text, with all digits."""
    lines = []
    for row, label in enumerate(y):
        entries = range(x.indptr[row], x.indptr[row + 1])
        tokens = [f"{x.indices[k] + index_base}:{float(x.data[k])!r}" for k in entries]
        lines.append(" ".join([f"{label:g}", *tokens]))
    return "\n".join(lines) + "\n"


@pytest.fixture
def libsvm_file(tmp_path: Path) -> Callable[..., Path]:
    """``libsvm_file(x, y)`` writes libsvm text and gives its path."""

    def write(x: sp.csr_array, y: np.ndarray, name: str = "data.libsvm", index_base: int = 1) -> Path:
        path = tmp_path / name
        path.write_text(libsvm_text(x, y, index_base))
        return path

    return write


@pytest.fixture
def made_dataset(tmp_path: Path) -> Callable[..., Dataset]:
    """``made_dataset(x, y)`` writes a shuffled dataset straight from arrays, without `convert`."""

    def make(
        x: sp.csr_array, y: np.ndarray, *, name: str = "made", chunk_rows: int = 16, weight: np.ndarray | None = None,
        value_dtype: type = np.float64, seed: int = 0, **manifest: Any,
    ) -> Dataset:  # fmt: skip
        source = np.random.default_rng(seed).permutation(y.size)
        return write_dataset(
            tmp_path / name,
            (sp.csr_array(x[source]), y[source]),
            n_chunks=-(-y.size // chunk_rows),
            n_shards=1 + x.nnz * (np.dtype(value_dtype).itemsize + 4) // 2000,
            weight=None if weight is None else weight[source],
            value_dtype=value_dtype,
            source=source,
            seed=seed,
            **manifest,
        )

    return make


@pytest.fixture
def fit(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Result]:
    """``fit(dataset, windows=2)`` trains in a fresh run directory by the module's `FIT`, in windows of so many chunks."""
    numbers = itertools.count()

    def run(dataset: Dataset, *, windows: int | None = 2, resident: bool = True, **options: Any) -> Result:
        asked = {"memory": "2GB"} | request.module.FIT | options
        if "eps" in options:
            del asked["tol"]
        plan = windows_of(dataset, windows, resident=resident)
        return train(dataset, tmp_path / f"run{next(numbers)}", plan=plan, **asked)

    return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the console's clock shows, in seconds."""
    now = [0.0]
    monkeypatch.setattr("streamcd.cli.console.time.monotonic", lambda: now[0])
    return now


# ---------------------------------------------------------------------------------------------------------------------
# Processes, which take longer to start than all of a test


def eventually(condition: Callable[[], Any]) -> Any:
    """Return what a condition finds once it does."""
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


class LentWorkers:
    """Worker processes that several calls use one after the other; the first call starts them."""

    def __init__(self) -> None:
        self._workers: Pool | None = None

    def __call__(self, n_workers: int, listener: Listener, module: str = "") -> AbstractContextManager[Pool]:
        """Two processes do the work that is divided among `n_workers`, where that is more than one."""
        if n_workers == 1:
            return Pool(1, listener)
        if self._workers is None:
            self._workers = Pool(2, listener, "streamcd.conversion.pipeline")
        self._workers.n_workers, self._workers.listener = n_workers, listener
        return nullcontext(self._workers)

    def end(self) -> None:
        if self._workers is not None:
            self._workers.__exit__()


@pytest.fixture(scope="session")
def lent_workers() -> Iterator[LentWorkers]:
    """Processes in place of those that a call with ``workers=2`` would start."""
    workers = LentWorkers()
    yield workers
    workers.end()


@pytest.fixture
def lend(lent_workers: LentWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that have been started do the work of all calls with several workers; small files are cut as well."""
    monkeypatch.setattr(byte_sources, "LEAST_RANGE_BYTES", 1 << 14)
    for module in ("conversion.convert", "conversion.transpose", "dataset.verify", "prediction.scorer"):
        monkeypatch.setattr(f"streamcd.{module}.Pool", lent_workers)
