"""Over-relaxation of the dual steps: the same optimum, bounds on omega, and its choice by trial, stopped and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heard import Heard
from reference import augmented, exact_optimum
from small_datasets import label_sorted, multiclass, random_rows, repeated, windows_of, write_dataset

from streamcd import Listener, Result, resume, train
from streamcd.box_qp.solve import young
from streamcd.core.errors import UsageError
from streamcd.runs.config import versions
from streamcd.solvers import over_relaxation

LOSSES = ["hinge", "squared_hinge"]


def fit(dataset: Any, run: Path, **options: Any) -> Result:
    options = {"tol": 1e-6, "max_passes": 5000, "plan": windows_of(dataset, 4, resident=True)} | options
    return train(dataset, run, **options)


@pytest.mark.parametrize("omega", [0.5, 1.5, 1.8, "auto"])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_omega_ends_at_the_optimum(tmp_path: Path, loss: str, omega: float | str) -> None:
    rows = multiclass()
    result = fit(
        write_dataset(tmp_path / "data", rows), tmp_path / "run", loss=loss, omega=omega, bias=1.0, C=0.1
    )
    assert result.converged
    best = exact_optimum(loss, augmented(rows[0], 1.0), rows[1], 0.1)[1]
    for lane, least in zip(result.lanes, best, strict=True):
        assert least * (1 - 1e-8) <= lane["primal_objective"] <= least * (1 + 1e-6)


def test_omega_1_is_coordinate_descent_bit_for_bit(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows())
    plain, one, other = (
        fit(dataset, tmp_path / f"run{number}", max_passes=5, **options)
        for number, options in enumerate(({}, {"omega": 1.0}, {"omega": 1.1}))
    )
    np.testing.assert_array_equal(plain.model.weights, one.model.weights)
    assert (plain.model.weights != other.model.weights).any()
    assert "omega" not in plain.lanes[0]
    assert other.lanes[0]["omega"] == 1.1


@pytest.mark.parametrize("omega", [0.0, 2.0, -1.0, np.nan, np.inf, "fast"])
def test_omega_outside_0_and_2_is_refused(tmp_path: Path, omega: float | str) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows())
    with pytest.raises(UsageError, match="omega: expected auto or a number above 0 and below 2, found"):
        train(dataset, tmp_path / "run", omega=omega)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("omega", [1.2, "auto"])
@pytest.mark.parametrize("loss", ["log_loss", "crammer_singer"])
def test_losses_without_a_closed_form_refuse_omega(tmp_path: Path, loss: str, omega: float | str) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows())
    with pytest.raises(UsageError, match=f"{loss} by method dual has none"):
        train(dataset, tmp_path / "run", loss=loss, omega=omega)
    assert train(dataset, tmp_path / "run", loss=loss, omega=1.0, max_passes=2).passes == 2


# ---------------------------------------------------------------------------------------------------------------------
# By trial


def test_the_omega_of_a_trial_is_told(tmp_path: Path) -> None:
    dataset, heard = write_dataset(tmp_path / "data", random_rows()), Heard()
    result = fit(dataset, tmp_path / "run", omega="auto", tol=0.0, max_passes=30, listener=heard)
    (lane,) = result.lanes
    assert lane["omega"] in (1.0, over_relaxation.CANDIDATE)
    assert any("omega at C = 1" in text for text in heard.messages)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["options"]["omega"] == "auto"
    early = fit(dataset, tmp_path / "early", omega="auto", tol=0.0, max_passes=3)
    assert early.lanes[0]["omega"] == 1.0


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("problem", ["random", "label_sorted", "repeated"])
def test_auto_costs_hardly_more_passes_than_its_trials(tmp_path: Path, problem: str, loss: str) -> None:
    rows = {"random": random_rows, "label_sorted": label_sorted}.get(
        problem, lambda: repeated(random_rows(60, 40, seed=3, density=0.8), [2] * 60)
    )()
    dataset = write_dataset(tmp_path / "data", rows, n_chunks=4)
    plain, chosen = (
        fit(dataset, tmp_path / f"run-{omega}", loss=loss, omega=omega, tol=1e-4, acceleration="none")
        for omega in (1.0, "auto")
    )
    assert plain.converged
    assert chosen.converged
    trial_passes = sum(
        max(5, begin // 5) for begin in (5, 50, 500) if begin < chosen.passes
    )  # those with the other omega
    assert chosen.passes <= 1.2 * plain.passes + trial_passes


def test_youngs_formula() -> None:
    assert young(0.0) == 1.0
    assert young(np.sqrt(0.75)) == pytest.approx(4 / 3)
    assert young(1 - 1e-12) == pytest.approx(2.0, abs=1e-5)


def test_a_run_begun_with_another_version_is_told_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", random_rows(30, 4))
    train(dataset, tmp_path / "run", tol=0.0, max_passes=1, memory="8GB")
    said: list[str] = []
    monkeypatch.setattr(Listener, "warning", lambda _, text: said.append(text))
    resume(tmp_path / "run", max_passes=2)
    assert not said
    monkeypatch.setattr("streamcd.runs.run.versions", lambda: {**versions(), "numba": "0.1"})
    resume(tmp_path / "run", max_passes=3)
    assert "last digits may differ" in " ".join(said)
