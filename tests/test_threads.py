"""Threads of one process: no bit of a result depends on their number."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_datasets import multiclass, random_rows, write_dataset

import streamcd
from streamcd.core.errors import UsageError
from streamcd.core.parallel import AHEAD, Threads, ahead
from streamcd.runs.config import problem_of
from streamcd.runs.options import ProblemOptions
from streamcd.runs.resolve import training_memory
from streamcd.solvers.classes import ClassSolver
from streamcd.stream.slot_store import SlotStore


@pytest.fixture(autouse=True)
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamcd.core.parallel._LEAST_OPERATIONS", 1)
    monkeypatch.setattr("streamcd.solvers.dual._FEW_FEATURES", 0)  # so that a few lanes are divided, too


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_rows_certified_by_several_threads_have_the_certificate_of_one(
    tmp_path: Path, loss: str, n_classes: int
) -> None:
    data = write_dataset(tmp_path / "data", multiclass(n_classes, 300), n_chunks=3)
    asked: dict[str, Any] = {"loss": loss, "tol": 1e-6, "acceleration": "none"}
    found = [streamcd.train(data, tmp_path / f"{n}", threads=n, **asked) for n in (1, 4, 7)]
    for result in found[1:]:
        assert result.passes == found[0].passes
        assert result.primal_objective == pytest.approx(found[0].primal_objective, rel=1e-12)
        assert result.gap == pytest.approx(found[0].gap, rel=1e-5)


def test_threads_save_and_load_chunks(
    tmp_path: Path,
) -> None:
    n_chunks, n_rows = 200, 50
    row_start = n_rows * np.arange(n_chunks + 1)
    dataset = SimpleNamespace(
        n_chunks=n_chunks, n_shards=n_chunks // 2, chunk_part=np.arange(n_chunks) // 2, row_start=row_start
    )
    store = SlotStore(tmp_path / "dual", dataset, 17)
    records = np.zeros((n_chunks, n_rows), dtype=[("alpha", "f8", (2,)), ("active", "u1", (1,))])
    records["alpha"] = np.arange(n_chunks * n_rows * 2).reshape(n_chunks, n_rows, 2)
    found = np.zeros_like(records)

    def pieces(of: np.ndarray, chunk: int) -> list[np.ndarray]:
        return [of["alpha"][chunk], of["active"][chunk]]

    threads = Threads(4)
    for _ in range(3):
        threads.run([partial(store.save, chunk, pieces(records, chunk)) for chunk in range(n_chunks)])
        threads.run([partial(store.load, chunk, pieces(found, chunk)) for chunk in range(n_chunks)])
        assert (found == records).all()
    assert store.bytes_read == 3 * n_chunks * (16 + 17 * n_rows)
    threads.close()


def test_lanes_of_crammer_singer_are_trained_by_threads_that_have_their_orders_in_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset(tmp_path / "data", multiclass(3, 200), n_chunks=3)
    n_rows = Counter[int]()
    draw = ClassSolver.shuffled_rows

    def counted(*arguments: Any) -> np.ndarray:
        n_rows[threading.get_ident()] += 1
        return draw(*arguments)

    monkeypatch.setattr(ClassSolver, "shuffled_rows", counted)
    streamcd.train(data, tmp_path / "run", loss="crammer_singer", C=[0.1, 0.2, 0.4, 0.8, 1.6], threads=8)
    assert len(n_rows) > 1
    options = ProblemOptions(
        loss="crammer_singer", method="dual", acceleration="none", C=(0.1, 0.2, 0.4, 0.8, 1.6), bias="none"
    )
    problem = problem_of(options, data)
    assert training_memory(options, problem, problem, data).layout.n_orders == 4


def test_results_are_in_order_and_calls_no_further_ahead_than_the_threads() -> None:
    made: list[int] = []

    def calls() -> Iterator[Callable[[], int]]:
        for number in range(20):
            made.append(number)
            yield lambda number=number: number * number  # type: ignore[misc]

    threads = Threads(3)
    for number, found in enumerate(threads.in_order(calls())):
        assert found == number * number
        assert len(made) <= number + 1 + 3
    threads.close()


def test_a_number_of_threads_below_one_is_refused(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", random_rows(20, 5))
    with pytest.raises(UsageError, match="threads: expected 1 or more, found 0"):
        streamcd.train(data, tmp_path / "run", threads=0)


def test_all_calls_end_before_an_error_is_raised() -> None:
    done: list[int] = []

    def fail() -> None:
        raise UsageError("one of them")

    threads = Threads(2)
    with pytest.raises(UsageError, match="one of them"):
        threads.run([fail, *(lambda number=number: done.append(number) for number in range(4))])  # type: ignore[misc]
    assert sorted(done) == [0, 1, 2, 3]
    threads.close()


def test_a_thread_makes_a_few_items_ahead_and_no_more() -> None:
    made: list[int] = []

    def items() -> Generator[int, None, None]:
        for number in range(9):
            made.append(number)
            yield number

    most = [(item, made[-1]) for item in ahead(items())]
    assert [item for item, _ in most] == list(range(9))
    assert all(last <= item + AHEAD for item, last in most)


def test_an_error_ahead_is_raised_after_the_items_before_it() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise UsageError("no second item")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(UsageError, match="no second item"):
        next(found)


def test_a_generator_read_ahead_is_closed_with_its_reader() -> None:
    closed = threading.Event()

    def items() -> Generator[int, None, None]:
        try:
            yield from range(100)
        finally:
            closed.set()

    found = ahead(items())
    next(found)
    found.close()
    assert closed.wait(10)


def test_the_callers_thread_takes_calls_as_long_as_there_are_any() -> None:
    """It made the first call, then waited for the others."""
    by_thread = Counter[int]()

    def call() -> None:
        by_thread[threading.get_ident()] += 1
        time.sleep(0.002)

    threads = Threads(2)
    threads.run([call] * 20)
    threads.close()
    assert sum(by_thread.values()) == 20
    assert by_thread[threading.get_ident()] > 1
