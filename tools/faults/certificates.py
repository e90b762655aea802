"""Certificates against exact arithmetic: problems of one feature, whose optimum mpmath finds to 60 digits."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .commands import files_of, run_command
from .trials import Finding
from .workspace import load_kernels

RUNS = (
    ("squared_hinge", "dual"),
    ("hinge", "dual"),
    ("log_loss", "dual"),
    ("squared_hinge", "primal"),
    ("log_loss", "primal"),
    ("crammer_singer", "dual"),
    ("twin", "dual"),
    ("twin", "sor"),
)
TOLS = (1e-3, 1e-6, 1e-9, 1e-12)
ROUNDING = 1e-11
"""Relative to the primal objective: a claim may be wrong by this, a tenth of the tolerance, and the rounding reported."""


class Certificates:
    """Trial k trains loss and method k modulo their number on rows of one feature, of a drawn magnitude."""

    default_count = 200

    def prepare(self, place: Path) -> None:
        load_kernels()

    def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
        import numpy as np

        loss, method = RUNS[number % len(RUNS)]
        size, C, tol = 10.0 ** rng.randint(-6, 7), 10.0 ** rng.randint(-6, 6), rng.choice(TOLS)
        rows = [
            (rng.choice((-1, 1)), size * rng.choice((1.0, rng.random(), rng.gauss(0, 1))))
            for _ in range(rng.randint(2, 8))
        ]
        rows[:2] = [(1, rows[0][1]), (-1, rows[1][1])]
        (place / "data.txt").write_text("".join(f"{label} 1:{value!r}\n" for label, value in rows))
        converted = run_command(place, "convert", "data.txt", "data", "--dtype", "float64")
        options = ("--loss", loss, "--method", method, "-C", C, "--tol", tol, "--max-passes", 300, "--json")
        if converted.status == 0 and method == "primal":
            run_command(place, "columns", "data")
        ended = run_command(place, "train", "data", "run", *options)
        what = f"{loss} {method}, C {C:g}, tol {tol:g}, {json.dumps(rows)}"
        if converted.is_ugly or ended.is_ugly:
            return [Finding("ugly", f"{what}: {ended}")]
        if ended.status != 0:
            return []
        weights = [file for file in files_of(place / "run") if file.name == "weights.npy"]
        w = np.load(weights[0]).ravel().tolist()
        return [
            Finding("wrong", f"{what}: {claim}")
            for claim in false_claims(ended.answer, loss, C, rows, w, tol)
        ]


def false_claims(
    answer: dict[str, Any], loss: str, C: float, rows: list[tuple[int, float]], w: list[float], tol: float
) -> list[str]:
    """Compare the numbers of a training with exact ones; returns the false ones."""
    import mpmath

    with mpmath.workdps(60):
        problems = _problems(loss, mpmath.mpf(C), rows)
        weights = [mpmath.mpf(value) for value in w]
        if loss == "crammer_singer":  # a weight for each class; the best ones are -u and u
            u = (weights[1] - weights[0]) / 2
            exact = problems[0].value(u) + sum(value * value for value in weights) / 2 - u * u
        else:
            exact = mpmath.fsum(problem.value(at) for problem, at in zip(problems, weights, strict=True))
        best = mpmath.fsum(problem.value(problem.minimiser()) for problem in problems)
        slack = (ROUNDING + tol / 10 + answer.get("rounding", 0.0)) * exact
        claims = []
        if abs(mpmath.mpf(answer["primal_objective"]) - exact) > slack:
            claims.append(f"primal {answer['primal_objective']!r}, exact {mpmath.nstr(exact, 17)}")
        if mpmath.mpf(answer["dual_objective"]) > best + slack:
            claims.append(f"dual {answer['dual_objective']!r} above the optimum {mpmath.nstr(best, 17)}")
        if answer["converged"] and exact - best > mpmath.mpf(tol) * exact + slack:
            claims.append(
                f"converged, and its exact suboptimality is {mpmath.nstr((exact - best) / exact, 3)}"
            )
        return claims


def _problems(loss: str, C: Any, rows: list[tuple[int, float]]) -> list[Problem]:
    """One problem of one weight, or for twin planes one for each class."""
    import mpmath

    signed = [(label, mpmath.mpf(value)) for label, value in rows]
    if loss == "twin":
        return [
            Problem("hinge", C, [x for y, x in signed if y != own], [x for y, x in signed if y == own])
            for own in (-1, 1)
        ]
    margins = [y * x for y, x in signed]
    if loss == "crammer_singer":
        return [Problem("hinge", C, [2 * margin for margin in margins], [], 2)]
    return [Problem(loss, C, margins, [])]


@dataclass(frozen=True)
class Problem:
    """``½ ridge w² + C Σ loss(margin w) + ½ Σ (own w)²`` of one weight, in mpmath's numbers."""

    loss: str
    C: Any
    margins: list[Any]
    own: list[Any]
    ridge: int = 1

    def value(self, w: Any) -> Any:
        import mpmath

        squares = self.ridge + mpmath.fsum(x * x for x in self.own)
        return squares * w * w / 2 + self.C * mpmath.fsum(_loss(self.loss, m * w) for m in self.margins)

    def minimiser(self) -> Any:
        """Bisect the derivative, which grows strictly, between bounds of the minimiser."""
        import mpmath

        squares = self.ridge + mpmath.fsum(x * x for x in self.own)
        bound = self.C * mpmath.fsum(abs(margin) for margin in self.margins) * 2 + 1
        low, high = -bound, bound
        for _ in range(320):
            middle = (low + high) / 2
            slope = squares * middle
            slope += self.C * mpmath.fsum(m * _slope(self.loss, m * middle) for m in self.margins)
            low, high = (low, middle) if slope > 0 else (middle, high)
        return (low + high) / 2


def _loss(loss: str, z: Any) -> Any:
    import mpmath

    if loss == "log_loss":
        return mpmath.log1p(mpmath.exp(-z)) if z > 0 else -z + mpmath.log1p(mpmath.exp(z))
    hinge = max(mpmath.mpf(0), 1 - z)
    return hinge if loss == "hinge" else hinge * hinge


def _slope(loss: str, z: Any) -> Any:
    import mpmath

    if loss == "log_loss":
        return -1 / (1 + mpmath.exp(z))
    hinge = max(mpmath.mpf(0), 1 - z)
    return -2 * hinge if loss == "squared_hinge" else -mpmath.sign(hinge)
