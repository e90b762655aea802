"""Certificates against exact arithmetic: problems of one feature, whose optimum mpmath finds to 60 digits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamcd.kernels.loss_table import CLASSES, LOSSES, MARGINS, SOLVERS, SolverEntry

from .commands import run_command
from .trials import Finding
from .workspace import load_kernels

TOLS = (1e-3, 1e-6, 1e-9, 1e-12)
ROUNDING = 1e-11
"""Relative to the primal objective: a claim may be wrong by this, a tenth of the tolerance, and the rounding reported."""

_SMOOTH = {loss for loss, entry in LOSSES.items() if entry.smooth}


@dataclass(frozen=True)
class Run:
    """A training: a solver, and a penalty and a bias that it takes."""

    entry: SolverEntry
    penalty: str = ""  # of ½‖w‖²
    free_bias: bool = False

    def options(self, C: float, strength: float) -> list[Any]:
        """Return the options of the command."""
        given: list[Any] = ["--loss", self.entry.loss, "--method", self.entry.method]
        given += ["-C", C]
        if self.penalty:
            given += ["--penalty", self.penalty]
            given += ["--l1", strength] * bool(self.strengths(strength)[0])
        return given + ["--bias", 1, "--unpenalized-bias"] * self.free_bias

    def strengths(self, strength: float) -> tuple[float, float]:
        """Return λ and r."""
        return (strength if self.penalty else 0.0), (0.0 if self.penalty == "l1" else 1.0)

    def __str__(self) -> str:
        return " ".join(filter(None, (str(self.entry), self.penalty, "free bias" * self.free_bias)))


def _runs() -> list[Run]:
    """List every solver, with each penalty that it takes, and with a free bias where the loss is smooth."""
    made = []
    for entry in SOLVERS.values():
        made.append(Run(entry))
        if entry.takes_l1:
            made += [Run(entry, name) for name in ("l1", "elasticnet")]
        if entry.loss in _SMOOTH and LOSSES[entry.loss].form == MARGINS:
            made.append(Run(entry, free_bias=True))
    return made


RUNS = _runs()


class Certificates:
    """Trial k trains run k modulo their number on rows of one feature, of a drawn magnitude."""

    default_count = 4 * len(RUNS)

    def prepare(self, place: Path) -> None:
        load_kernels()

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        run = RUNS[number % len(RUNS)]
        size, C, tol = 10.0 ** rng.randint(-6, 7), 10.0 ** rng.randint(-6, 6), rng.choice(TOLS)
        strength = 10.0 ** rng.randint(-3, 3)
        rows = drawn_rows(run, rng, size)
        (place / "data.txt").write_text("".join(f"{label!r} 1:{value!r}\n" for label, value in rows))
        targets = ["--target"] if run.entry.has_targets else []
        converted = run_command(place, "convert", "data.txt", "data", "--dtype", "float64", *targets)
        if converted.status == 0 and run.entry.layout == "columns":
            run_command(place, "columns", "data")
        options = [*run.options(C, strength), "--tol", tol, "--max-passes", 300, "--json"]
        ended = run_command(place, "train", "data", "run", *options)
        what = f"{run}, C {C:g}, l1 {strength:g}, tol {tol:g}, {json.dumps(rows)}"
        if converted.is_ugly or ended.is_ugly:
            return [Finding("ugly", f"{what}: {ended}")]
        if ended.status != 0:
            return []
        return [
            Finding("wrong", f"{what}: {claim}")
            for claim in false_claims(ended.answer, run, C, rows, weights_of(place / "run"), tol, strength)
        ]


def drawn_rows(run: Run, rng: random.Random, size: float) -> list[tuple[float, float]]:
    """Draw labels or targets, and values; a single class lies to one side of the origin."""
    count = rng.randint(2, 8)
    values = [size * rng.choice((1.0, rng.random(), rng.gauss(0, 1))) for _ in range(count)]
    if run.entry.has_targets:
        scale = 10.0 ** rng.randint(-3, 4)
        return [(scale * rng.choice((1.0, 0.0, rng.gauss(0, 1))), value) for value in values]
    labels = [1, -1, *(rng.choice((-1, 1)) for _ in range(count - 2))]
    return list(zip(labels, values, strict=True))


def weights_of(run: Path) -> list[list[float]]:
    """Return each vector's weight and intercept."""
    from streamcd import load_model

    model = load_model(run)
    return [[float(w), float(b)] for w, b in zip(model.weights[0], model.intercept, strict=True)]


def false_claims(
    answer: dict[str, Any],
    run: Run,
    C: float,
    rows: Sequence[tuple[float, float]],
    w: list[list[float]],
    tol: float,
    strength: float = 1.0,
) -> list[str]:
    """Compare the numbers of a training with exact ones; returns the false ones."""
    import mpmath

    with mpmath.workdps(60):
        exact, best = _of_weights(run, C, rows, w, strength)
        size = max(
            abs(exact), mpmath.mpf("1e-9") * _at_zero(run, C, rows, strength)
        )  # which gaps are relative to
        slack = (ROUNDING + tol / 10 + answer.get("rounding", 0.0)) * size
        claims = []
        if abs(mpmath.mpf(answer["primal_objective"]) - exact) > slack:
            claims.append(f"primal {answer['primal_objective']!r}, exact {mpmath.nstr(exact, 17)}")
        if mpmath.mpf(answer["dual_objective"]) > best + slack:
            claims.append(f"dual {answer['dual_objective']!r} above the optimum {mpmath.nstr(best, 17)}")
        if answer["converged"] and exact - best > mpmath.mpf(tol) * size + slack:
            claims.append(
                f"converged, and its exact suboptimality is {mpmath.nstr((exact - best) / size, 3)}"
            )
        return claims


def _of_weights(
    run: Run, C: float, rows: Sequence[tuple[float, float]], w: list[list[float]], strength: float
) -> tuple[Any, Any]:
    """Compute the objective of the weights, and the least one."""
    import mpmath

    problems = _problems(run, C, rows, strength)
    weights = [[mpmath.mpf(number) for number in vector] for vector in w]
    if LOSSES[run.entry.loss].form == CLASSES:  # a weight for each class; the best ones are -u and u
        u = (weights[1][0] - weights[0][0]) / 2
        b = (weights[1][1] - weights[0][1]) / 2
        l1, l2 = run.strengths(strength)
        exact = problems[0].value(u, b) + l2 * (
            mpmath.fsum(value * value for value, _ in weights) / 2 - u * u
        )
        exact += mpmath.mpf(l1) * (mpmath.fsum(abs(value) for value, _ in weights) - 2 * abs(u))
    else:
        exact = mpmath.fsum(problem.value(*at) for problem, at in zip(problems, weights, strict=True))
    least = [problem.value(*problem.minimiser()) for problem in problems]
    return exact, mpmath.fsum(least)


def _at_zero(run: Run, C: float, rows: Sequence[tuple[float, float]], strength: float) -> Any:
    """Compute the objective of no weights."""
    import mpmath

    return mpmath.fsum(problem.value(mpmath.mpf(0)) for problem in _problems(run, C, rows, strength))


def _parameter(loss: str) -> float:
    found = LOSSES[loss].parameter
    return 0.0 if found is None else found.default


def _problems(run: Run, C: float, rows: Sequence[tuple[float, float]], strength: float) -> list[Problem]:
    """One problem of one weight, or for twin planes one for each class."""
    import mpmath

    loss, cost = run.entry.loss, mpmath.mpf(C)
    exact = [(mpmath.mpf(label), mpmath.mpf(value)) for label, value in rows]
    if loss == "twin":
        return [
            Problem(
                "hinge",
                cost,
                [(mpmath.mpf(1), x) for y, x in exact if y != own],
                [x for y, x in exact if y == own],
            )
            for own in (-1, 1)
        ]
    l1, l2 = run.strengths(strength)
    if LOSSES[loss].form == CLASSES:
        of_two = "hinge" if loss == "crammer_singer" else "log_loss"
        return [Problem(of_two, cost, [(y, 2 * x) for y, x in exact], [], 2 * l2, 2 * mpmath.mpf(l1))]
    return [Problem(loss, cost, exact, [], l2, mpmath.mpf(l1), run.free_bias)]


@dataclass(frozen=True)
class Problem:
    """``l2/2 w² + l1 |w| + C Σ loss(y, w x + b) + ½ Σ (own w)²`` of one weight, and a bias where it is free."""

    loss: str
    C: Any
    rows: list[tuple[Any, Any]]
    own: Sequence[Any] = ()
    l2: float = 1
    l1: Any = 0
    free: bool = False

    def value(self, w: Any, b: Any = 0) -> Any:
        import mpmath

        squares = self.l2 + mpmath.fsum(x * x for x in self.own)
        losses = mpmath.fsum(_loss(self.loss, y, w * x + b) for y, x in self.rows)
        return squares * w * w / 2 + self.l1 * abs(w) + self.C * losses

    def minimiser(self) -> tuple[Any, Any]:
        """Bisect the derivative, which grows, between bounds of the minimiser; the bias is the best of each weight."""
        import mpmath

        squares, start = self.l2 + mpmath.fsum(x * x for x in self.own), self.value(mpmath.mpf(0))

        def slope(w: Any) -> Any:
            b = self._bias(w)
            losses = mpmath.fsum(x * _slope(self.loss, y, w * x + b) for y, x in self.rows)
            return squares * w + self.l1 * mpmath.sign(w) + self.C * losses

        bound = mpmath.sqrt(2 * start / squares) if squares else start / self.l1
        w = _root(slope, bound + 1, 100 if self.free else 320)
        if self.l1 and self.value(mpmath.mpf(0), self._bias(mpmath.mpf(0))) < self.value(w, self._bias(w)):
            w = mpmath.mpf(0)
        return w, self._bias(w)

    def _bias(self, w: Any) -> Any:
        if not self.free:
            return 0
        bound = 60 + sum(abs(y) + abs(w * x) for y, x in self.rows)
        import mpmath

        return _root(lambda b: mpmath.fsum(_slope(self.loss, y, w * x + b) for y, x in self.rows), bound, 110)


def _root(slope: Callable[[Any], Any], bound: Any, halvings: int) -> Any:
    """Bisect a growing function between the bound's negative and the bound."""
    low, high = -bound, bound
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return (low + high) / 2


def _loss(loss: str, y: Any, z: Any) -> Any:
    import mpmath

    parameter, e = mpmath.mpf(_parameter(loss)), y - z
    if loss == "log_loss":
        t = y * z
        return mpmath.log1p(mpmath.exp(-t)) if t > 0 else -t + mpmath.log1p(mpmath.exp(t))
    if loss in ("hinge", "squared_hinge"):
        hinge = max(mpmath.mpf(0), 1 - y * z)
        return hinge if loss == "hinge" else hinge * hinge
    if loss == "huber":
        return e * e / 2 if abs(e) <= parameter else parameter * (abs(e) - parameter / 2)
    if loss == "quantile":
        return max(parameter * e, (parameter - 1) * e)
    beyond = max(abs(e) - parameter, mpmath.mpf(0))
    return beyond if loss == "epsilon_insensitive" else beyond * beyond


def _slope(loss: str, y: Any, z: Any) -> Any:
    """Compute the derivative of the loss in z."""
    import mpmath

    parameter, e = mpmath.mpf(_parameter(loss)), y - z
    if loss == "log_loss":
        return -y / (1 + mpmath.exp(y * z))
    if loss in ("hinge", "squared_hinge"):
        hinge = max(mpmath.mpf(0), 1 - y * z)
        return -2 * y * hinge if loss == "squared_hinge" else -y * mpmath.sign(hinge)
    if loss == "huber":
        return -min(max(e, -parameter), parameter)
    if loss == "quantile":
        return -parameter if e > 0 else 1 - parameter
    beyond = max(abs(e) - parameter, mpmath.mpf(0))
    return -mpmath.sign(e) * (mpmath.sign(beyond) if loss == "epsilon_insensitive" else 2 * beyond)
