"""More features than newton's matrix has room for: what is chosen, and named in its place, trains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.linear_model

import streamcd
from streamcd import ElasticNet, Lasso, LogisticRegression
from streamcd.core.errors import UsageError
from streamcd.runs.describe import describe


def rows() -> tuple[sp.csr_array, np.ndarray]:
    rng = np.random.default_rng(0)
    x = sp.random_array((200, 20_000), density=0.002, rng=rng, format="csr")
    return x, x[:, :2000].sum(axis=1) + 0.01 * rng.normal(size=200)


def classes(y: np.ndarray) -> np.ndarray:
    return np.digitize(y, np.quantile(y, [0.33, 0.66]))


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    streamcd.convert(rows(), tmp_path / "data", target=True)
    return tmp_path / "data"


@pytest.mark.parametrize("loss", ["squared_error", "huber", "squared_epsilon_insensitive"])
def test_l1_that_no_method_trains_by_rows_names_the_column_layout_and_takes_it(
    numbers: Path, loss: str, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"loss": loss, "penalty": "l1", "l1": 0.1}
    with pytest.raises(UsageError, match='take method="working-set" with the column layout'):
        streamcd.train(numbers, tmp_path / "run", method="newton", **asked)
    refused = command_line.run("train", numbers, tmp_path / "run", "--loss", loss, "--penalty", "l1")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    command = re.search(r"'streamcd (columns \S+)' makes it", refused.stderr)
    assert command is not None
    assert command_line.run(*command[1].split()).returncode == 0
    assert streamcd.train(numbers, tmp_path / "run", **asked).converged


def test_info_says_that_l1_takes_the_column_layout_until_there_is_one(numbers: Path) -> None:
    line = (
        f"--penalty l1 takes the column layout for this many features: 'streamcd columns {numbers}' makes it"
    )
    assert line in describe(str(numbers))["advice"]
    streamcd.make_columns(numbers)
    assert line not in describe(str(numbers))["advice"]


@pytest.mark.parametrize("estimator", [Lasso(alpha=1e-3), ElasticNet(alpha=1e-3, l1_ratio=1.0)])
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_the_lasso_needs_nobody_to_make_columns(estimator: Any, kind: str, numbers: Path) -> None:
    x, y = rows()
    data = streamcd.open(numbers)
    given = {"arrays": (x, y), "dataset": (data,)}[kind]
    ours = estimator.set_params(tol=1e-7).fit(*given)
    theirs = sklearn.linear_model.Lasso(alpha=1e-3, tol=1e-9, max_iter=100_000).fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)


def test_estimators_name_parameters_where_the_matrix_does_not_fit() -> None:
    x, y = rows()
    with pytest.raises(UsageError, match=r"^memory 1 GB .* give a larger memory, .*w"):
        LogisticRegression(l1_ratio=1.0, method="newton").fit(x, classes(y))
