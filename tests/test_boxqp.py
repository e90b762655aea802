"""Box-constrained quadratic programs against a QP solver of others, in every storage, and what is refused."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quadprog
import scipy.sparse as sp
from conftest import SUBPROCESS_ENVIRONMENT

from streamcd import solve_box_qp
from streamcd.core.errors import UsageError

Program = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def program(n: int, seed: int = 0, *, rank: int | None = None, ridge: float = 0.1) -> Program:
    """A random one: some variables are free, some have one bound, some are fixed."""
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((n, rank or max(2, n // 2))) / np.sqrt(n)
    Q = factor @ factor.T + ridge * np.eye(n)
    h = rng.standard_normal(n)
    lo, hi = np.full(n, -0.5), rng.uniform(0.0, 1.5, n)
    lo[: n // 5], hi[n // 10 : n // 3] = -np.inf, np.inf
    hi[-1] = lo[-1] = 0.25
    return Q, h, lo, hi


def dual_of_svm(n: int, seed: int = 0) -> Program:
    """The dual of squared hinge on random rows: all variables are correlated, most end at 0."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 30)) + 0.5
    signed = x * np.where(x[:, 0] + rng.standard_normal(n) > 0.5, 1.0, -1.0)[:, None]
    return signed @ signed.T + 0.5 * np.eye(n), -np.ones(n), np.zeros(n), np.full(n, np.inf)


def chain(n: int) -> Program:
    """A consistently ordered matrix, on which over-relaxation is at its best."""
    Q = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)).toarray()
    return Q + 1e-3 * np.eye(n), np.sin(np.arange(n)), np.full(n, -np.inf), np.full(n, np.inf)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "random_10": lambda: program(10),
    "random_60": lambda: program(60, 1),
    "random_120": lambda: program(120, 2, ridge=0.02),
    "svm_100": lambda: dual_of_svm(100),
    "svm_250": lambda: dual_of_svm(250, 1),
    "chain_80": lambda: chain(80),
}


def reference(Q: np.ndarray, h: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> float:
    """Objective at the optimum by quadprog, an active-set method; Q positive definite."""
    eye = np.eye(h.size)
    below, above = np.isfinite(lo) & (lo < hi), np.isfinite(hi) & (lo < hi)
    fixed = lo == hi
    rows = np.vstack([eye[fixed], eye[below], -eye[above]])
    limits = np.concatenate([lo[fixed], lo[below], -hi[above]])
    if not limits.size:
        return float(quadprog.solve_qp(Q, -h)[1])
    solution = quadprog.solve_qp(Q, -h, np.ascontiguousarray(rows.T), limits, int(fixed.sum()))
    return float(solution[1])


@functools.cache
def best_of(name: str) -> float:
    """`reference` of a named program."""
    return reference(*PROGRAMS[name]())


def objective(Q: np.ndarray, h: np.ndarray, alpha: np.ndarray) -> float:
    return float(0.5 * alpha @ Q @ alpha + h @ alpha)


def assert_optimal(result: Any, problem: Program, best: float) -> None:
    Q, h, lo, hi = problem
    assert result.converged
    assert (result.alpha >= lo).all()
    assert (result.alpha <= hi).all()
    assert result.objective == pytest.approx(objective(Q, h, result.alpha), rel=1e-10, abs=1e-12)
    assert result.objective == pytest.approx(best, rel=1e-8, abs=1e-10)


# ---------------------------------------------------------------------------------------------------------------------
# The optimum


@pytest.mark.parametrize("omega", [1.0, 1.9, "auto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_a_qp_solver(name: str, omega: float | str) -> None:
    problem = PROGRAMS[name]()
    result = solve_box_qp(*problem, omega=omega, tol=1e-9, max_passes=20_000)
    assert_optimal(result, problem, best_of(name))
    assert result.violation <= 1e-9


@pytest.mark.parametrize("name", PROGRAMS)
def test_auto_needs_hardly_more_passes_than_coordinate_descent(name: str) -> None:
    problem = PROGRAMS[name]()
    plain = solve_box_qp(*problem, tol=1e-8)
    chosen = solve_box_qp(*problem, tol=1e-8, omega="auto")
    assert plain.trial_passes == 0
    assert plain.trials == ()
    assert chosen.passes <= 1.2 * plain.passes + chosen.trial_passes
    for trial in chosen.trials:
        assert len(trial["change"]) == 2
    assert chosen.omega in {1.0} | {omega for trial in chosen.trials for omega in trial["change"]}


def test_over_relaxation_pays_on_a_chain() -> None:
    problem = chain(200)
    plain, chosen = (solve_box_qp(*problem, tol=1e-8, omega=omega) for omega in (1.0, "auto"))
    assert chosen.omega > 1.2
    assert chosen.passes < 0.7 * plain.passes


# ---------------------------------------------------------------------------------------------------------------------
# Storage


def stored(kind: str, Q: np.ndarray, folder: Path) -> tuple[Any, dict[str, Any]]:
    n = len(Q)
    doubled = np.empty((2 * n, 2 * n))
    doubled[::2, ::2] = Q
    if kind == "fortran":
        return np.asfortranarray(Q), {}
    if kind == "view":
        return doubled[::2, ::2], {}
    if kind == "list":
        return Q.tolist(), {}
    if kind == "big_endian":
        return Q.astype(">f8"), {}
    if kind.startswith("csr"):
        return sp.csr_array(Q) if kind == "csr" else sp.csr_matrix(Q), {}
    if kind == "coo_twice":
        rows, columns = (np.tile(places.reshape(-1), 2) for places in np.indices(Q.shape))
        return sp.coo_array((np.tile(0.5 * Q.reshape(-1), 2), (rows, columns)), shape=Q.shape), {}
    if kind in ("csc", "coo"):
        return getattr(sp, f"{kind}_array")(Q), {}
    # on disk
    np.save(folder / "q.npy", np.asfortranarray(Q) if kind.endswith("fortran") else Q)
    mapped = np.load(folder / "q.npy", mmap_mode="c" if kind == "private" else "r")
    return mapped, {"memory": "1GB" if kind == "mapped" else Q.nbytes // 3}


IN_MEMORY = ["fortran", "view", "list", "big_endian", "csr", "csr_matrix", "csc", "coo", "coo_twice"]
ON_DISK = ["mapped", "streamed", "streamed_fortran", "private"]


@pytest.mark.parametrize("kind", IN_MEMORY + ON_DISK)
def test_every_storage_gives_the_same(tmp_path: Path, kind: str) -> None:
    """Streamed ones too: blocks of neighbours, visited together, took up to six times as many passes."""
    for problem, omega in ((program(120, 5), 1.0), (dual_of_svm(90, 2), "auto")):
        Q, options = stored(kind, problem[0], tmp_path)
        options |= {"omega": omega, "tol": 1e-9, "max_passes": 100}
        result = solve_box_qp(Q, *problem[1:], **options)
        plain = solve_box_qp(*problem, omega=omega, tol=1e-9, max_passes=100)
        np.testing.assert_allclose(result.alpha, plain.alpha, rtol=1e-8, atol=1e-9)
        assert result.passes == plain.passes
        assert result.objective == pytest.approx(objective(*problem[:2], result.alpha), rel=1e-10)


def test_streaming_leaves_the_bits_of_a_matrix_in_memory_alone(tmp_path: Path) -> None:
    """From alpha = 0, whose gradient needs no sum, and before the first that is computed afresh."""
    problem = program(120, 5)
    Q, options = stored("streamed", problem[0], tmp_path)
    streamed = solve_box_qp(Q, *problem[1:], max_passes=7, **options)
    resident = solve_box_qp(*problem, max_passes=7)
    np.testing.assert_array_equal(streamed.alpha, resident.alpha)


@pytest.mark.parametrize("kind", ["integers", "streamed_integers", "booleans", "half"])
def test_numbers_of_other_types_are_taken(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(1)
    Q = np.eye(40, dtype=bool) if kind == "booleans" else 50 * np.eye(40, dtype=np.int16)
    if kind != "booleans":
        noise = rng.integers(-1, 2, (40, 40))
        Q = Q + (noise + noise.T).astype(np.int16)
    h, whole = -rng.uniform(1, 9, 40), Q.astype(np.float64)
    options: dict[str, Any] = {}
    if kind == "streamed_integers":
        np.save(tmp_path / "q.npy", Q)
        Q, options = np.load(tmp_path / "q.npy", mmap_mode="r"), {"memory": 2000}
    found = solve_box_qp(Q.astype(np.float16) if kind == "half" else Q, h, **options)
    assert found.objective == pytest.approx(solve_box_qp(whole, h).objective, rel=1e-12)


def test_a_mapped_matrix_is_not_written_to(tmp_path: Path) -> None:
    problem = program(50)
    np.save(tmp_path / "q.npy", problem[0])
    solve_box_qp(np.load(tmp_path / "q.npy", mmap_mode="r+"), *problem[1:], memory=10_000)
    np.testing.assert_array_equal(np.load(tmp_path / "q.npy"), problem[0])


def test_single_precision() -> None:
    Q, h, lo, hi = program(80, 3)
    single = Q.astype(np.float32)
    problem = single.astype(np.float64), h, lo, hi
    assert_optimal(solve_box_qp(single, h, lo, hi, tol=1e-9), problem, reference(*problem))


MEMORY_SCRIPT = """
import sys
import numpy as np
from streamcd import solve_box_qp
from streamcd.core.memory_budget import peak_memory_bytes
path, n = sys.argv[1], 5000
Q = np.lib.format.open_memmap(path, mode="r")
small = np.lib.format.open_memmap(path + ".small", mode="r")
solve_box_qp(small, -np.ones(40), memory=1000)  # compiles what is needed
before = peak_memory_bytes()
result = solve_box_qp(Q, -np.ones(n), 0.0, 1.0, memory="30MB", max_passes=3)
print(peak_memory_bytes() - before, result.passes)
"""


@pytest.mark.slow
def test_a_matrix_larger_than_memory_is_streamed(tmp_path: Path) -> None:
    """200 MB in 30 MB beside a few vectors."""
    n = 5000
    x = np.random.default_rng(0).standard_normal((n, 10))
    for name, size in ("whole", n), ("whole.small", 40):
        mapped = np.lib.format.open_memmap(tmp_path / name, mode="w+", dtype=np.float64, shape=(size, size))
        for i in range(size):
            mapped[i] = x[:size] @ x[i]
            mapped[i, i] += 1.0
        mapped.flush()
    command = [sys.executable, "-c", MEMORY_SCRIPT, str(tmp_path / "whole")]
    done = subprocess.run(command, capture_output=True, text=True, env=SUBPROCESS_ENVIRONMENT, check=True)
    grown, passes = done.stdout.split()
    assert int(grown) < 35_000_000
    assert int(passes) == 3


# ---------------------------------------------------------------------------------------------------------------------
# Shrinking, stopping, beginning


@pytest.mark.parametrize("omega", [1.0, 1.5])
def test_shrinking_does_not_move_the_optimum(omega: float) -> None:
    problem = dual_of_svm(300, 3)
    shrunk, whole = (
        solve_box_qp(*problem, omega=omega, tol=1e-10, shrinking=shrinking) for shrinking in (True, False)
    )
    assert shrunk.converged
    assert whole.converged
    np.testing.assert_allclose(shrunk.alpha, whole.alpha, atol=1e-8)


def test_violation_is_that_of_the_result() -> None:
    Q, h, lo, hi = program(60, 4)
    result = solve_box_qp(Q, h, lo, hi, max_passes=3)
    gradient = Q @ result.alpha + h
    gradient = np.where(result.alpha <= lo, np.minimum(gradient, 0), gradient)
    gradient = np.where(result.alpha >= hi, np.maximum(gradient, 0), gradient)
    assert not result.converged
    assert result.passes == 3
    assert result.violation == pytest.approx(np.abs(gradient).max(), rel=1e-9)


def test_begins_where_it_is_told() -> None:
    problem = program(60, 4)
    solved = solve_box_qp(*problem, tol=1e-10)
    again = solve_box_qp(*problem, tol=1e-9, alpha=solved.alpha)
    assert again.passes <= 2
    outside = solve_box_qp(*problem, tol=1e-10, alpha=np.full(60, 1e3))
    np.testing.assert_allclose(outside.alpha, solved.alpha, atol=1e-8)


def test_same_seed_same_bits() -> None:
    problem = program(60, 4)
    first, again, other = (solve_box_qp(*problem, seed=seed, max_passes=5).alpha for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_bounds_may_be_numbers() -> None:
    Q, h, *_ = program(20)
    result = solve_box_qp(Q, h, -1, 1)
    same = solve_box_qp(Q, h, np.full(20, -1.0), np.full(20, 1.0))
    np.testing.assert_array_equal(result.alpha, same.alpha)


@pytest.mark.parametrize("Q", [np.zeros((0, 0)), sp.csr_array((0, 0))])
@pytest.mark.parametrize("omega", [1.0, "auto"])
def test_no_variables(Q: Any, omega: float | str) -> None:
    result = solve_box_qp(Q, np.zeros(0), omega=omega)
    assert result.converged
    assert result.objective == 0.0


@pytest.mark.parametrize("Q", [np.full((1, 1), 2.0), sp.csr_array([[2.0]])])
def test_one_variable(Q: Any) -> None:
    for lo, hi, best in ((0.0, np.inf, 0.5), (0.0, 0.25, 0.25), (-np.inf, -1.0, -1.0), (0.75, 0.75, 0.75)):
        assert solve_box_qp(Q, [-1.0], lo, hi).alpha == pytest.approx([best])


# ---------------------------------------------------------------------------------------------------------------------
# Zero diagonals, infinite bounds, indefinite matrices, and what else is refused


def test_a_variable_without_curvature_goes_to_its_better_bound() -> None:
    Q = np.diag([1.0, 0.0, 0.0, 0.0])
    result = solve_box_qp(Q, np.array([1.0, 1.0, -1.0, 0.0]), -2.0, 3.0)
    np.testing.assert_allclose(result.alpha, [-1.0, -2.0, 3.0, 0.0])
    assert result.converged


def test_falling_for_ever_is_refused() -> None:
    Q = np.diag([1.0, 0.0])
    with pytest.raises(UsageError, match="is unbounded below along variable 1"):
        solve_box_qp(Q, np.array([1.0, -1.0]), -np.inf, np.inf)
    assert solve_box_qp(Q, np.array([1.0, 1.0]), 0.0, np.inf).alpha[1] == 0.0


def test_infinite_bounds_are_none() -> None:
    Q, h, *_ = program(40, 6)
    result = solve_box_qp(Q, h, -np.inf, np.inf, tol=1e-10)
    np.testing.assert_allclose(result.alpha, np.linalg.solve(Q, -h), atol=1e-8)


@pytest.mark.parametrize(
    ("Q", "proof"),
    [
        (np.diag([1.0, -1.0]), r"Q\[1, 1\] = -1 is negative"),
        (np.array([[0.0, 1.0], [1.0, 2.0]]), r"Q\[0, 0\] = 0 while its row is not zero"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), r"dᵀQd"),
    ],
)
def test_an_indefinite_matrix_is_an_error_or_a_local_result(Q: np.ndarray, proof: str) -> None:
    h = np.array([-1.0, -0.9])
    with pytest.raises(UsageError, match=proof):
        solve_box_qp(Q, h, -10.0, 10.0, alpha=np.array([0.0, 0.5]))
    result = solve_box_qp(Q, h, -10.0, 10.0, alpha=np.array([0.0, 0.5]), indefinite="local")
    assert result.converged
    grid = np.linspace(-10, 10, 201)
    for i in range(2):  # no single variable improves
        for value in grid:
            other = result.alpha.copy()
            other[i] = value
            assert objective(Q, h, other) >= result.objective - 1e-9
    with pytest.raises(UsageError, match="is unbounded below"):
        solve_box_qp(Q, h, -np.inf, np.inf, alpha=np.array([0.0, 0.5]), indefinite="local", max_passes=10_000)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"lo": 1.0, "hi": 0.0}, "variable 0: expected lo <= hi, found lo = 1, hi = 0"),
    ({"lo": np.array([0.0, 2.0, 0.0]), "hi": 1.0}, "variable 1"),
    ({"lo": np.nan}, "lo <= hi"),
    ({"lo": np.inf, "hi": np.inf}, "lo = inf"),
    ({"lo": np.zeros(2)}, "lo: expected a number or 3"),
    ({"h": np.ones(2)}, r"shape \(2, 2\)"),
    ({"h": np.array([1.0, np.nan, 0.0])}, r"h\[1\]"),
    ({"Q": np.full((3, 3), np.nan)}, "Q"),
    ({"Q": np.arange(9.0).reshape(3, 3)}, "symmetric"),
    ({"Q": sp.csr_array(np.triu(np.ones((3, 3))))}, "symmetric"),
    ({"Q": sp.eye_array(3) * np.nan}, "Q: row 0 has numbers that are not finite"),
    ({"Q": sp.eye_array(3) * 1j}, "real numbers"),
    ({"Q": np.diag([1.0, np.inf, 1.0])}, "Q: row 1 has numbers that are not finite"),
    ({"Q": np.eye(3)[:2]}, r"expected shape \(3, 3\)"),
    ({"Q": np.ones((3, 3, 3))}, r"expected shape \(3, 3\)"),
    ({"Q": np.eye(3).astype(str)}, "real numbers"),
    ({"Q": np.ones(6)}, r"expected shape \(3, 3\)"),
    ({"Q": np.eye(3) * 1j}, "real numbers"),
    ({"omega": 0.0}, "above 0 and below 2"),
    ({"omega": 2.0}, "above 0 and below 2"),
    ({"omega": "fast"}, "above 0 and below 2"),
    ({"omega": np.nan}, "above 0 and below 2"),
    ({"h": ["a", "b", "c"]}, "h: expected real numbers"),
    ({"h": 1j * np.ones(3)}, "h: expected real numbers"),
    ({"h": [1.0, [2.0], 3.0]}, "h: expected real numbers"),
    ({"lo": "none"}, "lo: expected real numbers"),
    ({"alpha": ["a"] * 3}, "alpha: expected real numbers"),
    ({"Q": [[1.0, 2.0], [3.0], [1.0]]}, "Q: expected a square matrix"),
    ({"Q": None}, "Q: expected real numbers"),
    ({"tol": None}, "tol"),
    ({"tol": np.nan}, "tol"),
    ({"max_passes": None}, "max_passes"),
    ({"tol": -1.0}, "tol"),
    ({"max_passes": 0}, "max_passes"),
    ({"indefinite": "maybe"}, "indefinite"),
    ({"seed": 1.5}, "seed"),
    ({"seed": None}, "seed"),
    ({"alpha": np.zeros(4)}, "alpha"),
    ({"alpha": np.full(3, np.nan)}, "alpha"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_what_is_wrong_is_refused(wrong: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"Q": np.eye(3), "h": -np.ones(3), "lo": 0.0, "hi": 1.0} | wrong
    with pytest.raises(UsageError, match=message):
        solve_box_qp(**options)


@pytest.mark.parametrize("streamed", [False, True])
def test_one_entry_without_its_mirror_image_is_found(tmp_path: Path, streamed: bool) -> None:
    Q = dual_of_svm(130)[0]
    Q[17, 101] += 1.0
    options: dict[str, Any] = {}
    if streamed:
        np.save(tmp_path / "q.npy", Q)
        Q, options = np.load(tmp_path / "q.npy", mmap_mode="r"), {"memory": 20_000}
    with pytest.raises(UsageError, match=r"symmetric matrix, found that row (17|101) "):
        solve_box_qp(Q, np.ones(130), **options)


def test_rounding_far_from_the_diagonal_is_not_asymmetry() -> None:
    """Products of rows that are orthogonal but for rounding are small, and differ from their mirror images as much."""
    Q = np.eye(1100)
    Q[:500, 600:] = 1e-16 * np.random.default_rng(0).standard_normal((500, 500))
    assert solve_box_qp(Q, -np.ones(1100)).objective == pytest.approx(-550.0)


def test_a_row_that_does_not_fit_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    np.save(tmp_path / "q.npy", np.eye(100))
    with pytest.raises(UsageError, match=r"two rows of Q take 1\.6 kB"):
        solve_box_qp(np.load(tmp_path / "q.npy", mmap_mode="r"), np.ones(100), memory=1000)


def test_trials_of_omega_count_in_max_passes() -> None:
    factor = np.random.default_rng(0).standard_normal((60, 60))
    Q = factor @ factor.T + 0.01 * np.eye(60)
    for max_passes in (1, 5, 6, 8, 16, 20, 40, 115):
        found = solve_box_qp(Q, -np.ones(60), omega="auto", max_passes=max_passes, seed=-1)
        assert found.passes <= max_passes
        whole = solve_box_qp(Q, -np.ones(60), omega="auto", max_passes=1000, seed=-1)
        assert found.trials == whole.trials[: len(found.trials)]  # none was cut short


@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("shrinking", [False, True])
def test_a_local_result_is_better_than_both_bounds(storage: str, shrinking: bool) -> None:
    """Of a variable with negative curvature no gradient tells that the other bound is lower."""

    def solve(Q: np.ndarray, h: list[float], **options: Any) -> Any:
        stored: Any = Q if storage == "dense" else sp.csr_array(Q)
        return solve_box_qp(
            stored, np.array(h), -1.0, 1.0, indefinite="local", shrinking=shrinking, **options
        )

    held = solve(np.array([[-1.0]]), [0.1], alpha=np.array([1.0]))
    assert held.converged
    assert held.alpha == [-1.0]
    assert held.objective == pytest.approx(-0.6)
    at_the_top = solve(np.diag([-1.0, 1.0]), [0.0, 0.0])
    assert at_the_top.converged
    assert abs(at_the_top.alpha[0]) == 1.0
    rng = np.random.default_rng(3)
    half = rng.standard_normal((12, 12))
    Q, h = half + half.T, rng.standard_normal(12)
    found = solve(Q, h.tolist(), max_passes=1000)
    assert found.converged
    for i in range(12):
        for value in np.linspace(-1, 1, 41):
            other = found.alpha.copy()
            other[i] = value
            assert objective(Q, h, other) >= found.objective - 1e-7


def test_an_open_side_of_a_variable_with_negative_curvature_is_refused_though_a_bound_holds_it() -> None:
    with pytest.raises(UsageError, match="is unbounded below along variable 0"):
        solve_box_qp(np.array([[-1.0]]), [-1.0], -np.inf, 1.0, alpha=np.array([1.0]), indefinite="local")
