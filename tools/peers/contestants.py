"""Contestants: streamcd and its peers, each as a loader and a training for one setting of its own stopping rule.

All minimise ``½‖w‖² + C Σ loss`` without a bias; a peer's own regularisation parameter is set accordingly. A setting is the
number that controls accuracy: a tolerance, or the number of epochs for methods without one.
"""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .arrays import load_arrays

_TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
_EPOCHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MANY_ITERATIONS = 100_000


@dataclass(frozen=True)
class Task:
    """Problem and data."""

    dataset: Path
    arrays: Path  # the same rows, as `arrays.write_arrays` writes them
    loss: str
    C: float
    memory: str = "8GB"  # of streamcd
    threads: int = 1


class Contestant(ABC):
    """One solver, with its data loaded."""

    losses: ClassVar[tuple[str, ...]]
    settings: ClassVar[tuple[float, ...]] = _TOLERANCES  # loosest first
    several_classes: ClassVar[bool] = True
    most_features: ClassVar[int] = 10**9

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    def load(self) -> None:
        """Load the data into what the solver takes."""

    @abstractmethod
    def fit(self, setting: float) -> None:
        """Train from the beginning."""

    @abstractmethod
    def weights(self) -> np.ndarray:
        """The trained weights, shape (1 or classes, features); of two classes those of the larger label."""

    def figures(self) -> dict[str, Any]:
        """Return further figures of the last training."""
        return {}


class _Streamcd(Contestant):
    """Trains from the dataset, whose reading is part of the training; the second training of a process counts."""

    losses = ("squared_hinge", "hinge", "log_loss")
    acceleration = "auto"

    def load(self) -> None:
        import streamcd

        self._package = streamcd
        self._scratch, self._n_runs = tempfile.TemporaryDirectory(dir=self.task.dataset.parent), 0
        self.fit(0.5)

    def fit(self, setting: float) -> None:
        task = self.task
        options: dict[str, Any] = {"acceleration": self.acceleration, "memory": task.memory}
        options["threads"] = task.threads
        self._n_runs += 1  # the others do not remove their last result either
        self._run = Path(self._scratch.name) / f"run-{self._n_runs}"
        self._result = self._package.train(
            task.dataset, self._run, loss=task.loss, C=task.C, tol=setting, **options
        )

    def weights(self) -> np.ndarray:
        return np.atleast_2d(self._result.model.weights.T)

    def figures(self) -> dict[str, Any]:
        log = [json.loads(line) for line in (self._run / "log.jsonl").read_text().splitlines()]
        stages = {
            name: sum(line["seconds"][name] for line in log) for name in ("read", "train", "wait", "state")
        }
        result = self._result
        return {
            "passes": result.passes,
            "certificates": sum(line["kind"] == "certify" for line in log),
            "bytes_read": result.bytes_read,
            "stages": {**stages, "kernels": result.kernel_seconds},
        }


class _StreamcdPlain(_Streamcd):
    acceleration = "none"


class _Peer(Contestant):
    """Loads arrays."""

    def load(self) -> None:
        self.rows, self.label = load_arrays(self.task.arrays)


class _Liblinear(_Peer):
    """LIBLINEAR by its Python interface."""

    solvers: ClassVar[dict[str, int]] = {"squared_hinge": 1, "hinge": 3, "log_loss": 7}
    losses: ClassVar[tuple[str, ...]] = ("squared_hinge", "hinge", "log_loss")

    def load(self) -> None:
        from liblinear.liblinearutil import problem

        super().load()
        self._problem = problem(self.label, self.rows)
        del self.rows

    def fit(self, setting: float) -> None:
        from liblinear.liblinearutil import parameter, train

        options = f"-s {self.solvers[self.task.loss]} -c {self.task.C} -e {setting} -q"
        self._model = train(self._problem, parameter(options))

    def weights(self) -> np.ndarray:
        model = self._model
        vectors = 1 if model.nr_class == 2 else model.nr_class
        found = np.ctypeslib.as_array(model.w, (model.nr_feature, vectors)).T.copy()
        labels = np.array(model.label[: model.nr_class])
        if vectors == 1:  # positive for the label that came first
            return found if labels[0] > labels[1] else -found
        return found[np.argsort(labels)]


class _LiblinearPrimal(_Liblinear):
    """LIBLINEAR's trust region Newton method."""

    solvers: ClassVar[dict[str, int]] = {"squared_hinge": 2, "log_loss": 0}
    losses = ("squared_hinge", "log_loss")


class _Estimator(_Peer):
    """Anything with scikit-learn's ``fit`` and ``coef_``."""

    def fit(self, setting: float) -> None:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a loose tolerance is what was asked for
            self._model = self.make(setting).fit(self.rows, self.label)

    @abstractmethod
    def make(self, setting: float) -> Any:
        """The estimator."""

    def weights(self) -> np.ndarray:
        return np.atleast_2d(np.asarray(self._model.coef_, dtype=np.float64))


class _LinearSVC(_Estimator):
    losses = ("squared_hinge", "hinge")

    def make(self, setting: float) -> Any:
        from sklearn.svm import LinearSVC

        options = {"C": self.task.C, "tol": setting, "fit_intercept": False, "dual": True}
        return LinearSVC(loss=self.task.loss, max_iter=_MANY_ITERATIONS, random_state=0, **options)


class _Lbfgs(_Estimator):
    losses = ("log_loss",)
    several_classes = False  # one problem of all classes, not one-vs-rest
    solver = "lbfgs"

    def make(self, setting: float) -> Any:
        from sklearn.linear_model import LogisticRegression

        options = {"C": self.task.C, "tol": setting, "fit_intercept": False, "solver": self.solver}
        return LogisticRegression(max_iter=_MANY_ITERATIONS, **options)


class _NewtonCholesky(_Lbfgs):
    solver = "newton-cholesky"
    most_features = 5_000  # a matrix of features × features


class _StochasticGradient(_Estimator):
    """SGDClassifier by chunks, as for data that do not fit: its rows come in blocks, epoch after epoch."""

    losses = ("squared_hinge", "hinge", "log_loss")
    settings = _EPOCHS
    block_rows = 10_000

    def make(self, setting: float) -> Any:
        from sklearn.linear_model import SGDClassifier

        alpha = 1 / (self.task.C * len(self.label))
        return SGDClassifier(
            loss=self.task.loss, alpha=alpha, fit_intercept=False, average=True, random_state=0
        )

    def fit(self, setting: float) -> None:
        self._model = self.make(setting)
        classes = np.unique(self.label)
        for _ in range(int(setting)):
            for start in range(0, len(self.label), self.block_rows):
                rows = slice(start, start + self.block_rows)
                self._model.partial_fit(self.rows[rows], self.label[rows], classes=classes)


class _SnapML(_Estimator):
    losses = ("squared_hinge", "hinge", "log_loss")

    def load(self) -> None:
        super().load()
        self.rows = self.rows.astype(np.float32)

    def make(self, setting: float) -> Any:
        import snapml

        options: dict[str, Any] = {
            "regularizer": 1 / self.task.C,
            "tol": setting,
            "max_iter": _MANY_ITERATIONS,
        }
        options |= {"n_jobs": self.task.threads, "random_state": 0}
        if self.task.loss == "log_loss":
            return snapml.LogisticRegression(dual=True, **options)
        return snapml.SupportVectorMachine(loss=self.task.loss, **options)

    def weights(self) -> np.ndarray:
        found = super().weights()
        return found if found.shape[1] == self.rows.shape[1] else found.T


class _Cyanure(_Peer):
    losses = ("squared_hinge", "log_loss")
    several_classes = False

    def load(self) -> None:
        super().load()
        self.label = np.where(self.label == self.label.max(), 1.0, -1.0)

    def fit(self, setting: float) -> None:
        from cyanure.estimators import Classifier

        scale = self.task.C * len(self.label)  # its losses are means, and its squared hinge is halved
        loss, strength = {"squared_hinge": ("sqhinge", 0.5 / scale), "log_loss": ("logistic", 1 / scale)}[
            self.task.loss
        ]
        self._model = Classifier(
            loss=loss,
            penalty="l2",
            lambda_1=strength,
            fit_intercept=False,
            tol=setting,
            max_iter=_MANY_ITERATIONS,
            n_threads=self.task.threads,
            verbose=False,
            safe=False,
        )
        self._model.fit(self.rows, self.label)

    def weights(self) -> np.ndarray:
        return np.asarray(self._model.coef_, dtype=np.float64).reshape(1, -1)


class _VowpalWabbit(_Peer):
    """Vowpal Wabbit's L-BFGS over its cache file, without hash collisions: the method of it that reaches an optimum."""

    losses = ("log_loss",)
    settings = _EPOCHS[1:]  # it refuses a single one
    several_classes = False

    def load(self) -> None:
        super().load()
        self._scratch = tempfile.TemporaryDirectory(dir=self.task.dataset.parent)
        self._folder = Path(self._scratch.name)
        positive = self.label == self.label.max()
        indptr, index, value = self.rows.indptr, self.rows.indices, self.rows.data
        with open(self._folder / "rows.vw", "w") as stream:
            for row in range(len(positive)):
                span = slice(indptr[row], indptr[row + 1])
                entries = " ".join(f"{i}:{x:.7g}" for i, x in zip(index[span], value[span], strict=True))
                stream.write(f"{1 if positive[row] else -1} | {entries}\n")
        self._width, self._rows = self.rows.shape[1], len(positive)
        self._run(["--passes", "2"])  # makes the cache
        del self.rows

    def _run(self, more: list[str]) -> None:
        import vowpalwabbit

        bits = max(18, int(np.ceil(np.log2(self._width))))
        options = [
            "-d",
            str(self._folder / "rows.vw"),
            "--cache_file",
            str(self._folder / "cache"),
            "--quiet",
        ]
        options += ["-b", str(bits), "--noconstant", "--holdout_off", "--loss_function", "logistic"]
        options += ["--bfgs", "--l2", str(1 / self.task.C), "--termination", "0", "--predict_only_model"]
        vowpalwabbit.Workspace(arg_list=[*options, *more]).finish()

    def fit(self, setting: float) -> None:
        self._run(["--passes", str(int(setting)), "--readable_model", str(self._folder / "model.txt")])

    def weights(self) -> np.ndarray:
        found = np.zeros((1, self._width))
        _, _, lines = (self._folder / "model.txt").read_text().partition("\n:0\n")
        for line in lines.splitlines():
            place, weight = line.split(":")
            found[0, int(place)] = float(weight)
        return found


CONTESTANTS: dict[str, type[Contestant]] = {
    "streamcd": _Streamcd,
    "streamcd-plain": _StreamcdPlain,
    "liblinear": _Liblinear,
    "liblinear-primal": _LiblinearPrimal,
    "sklearn-linearsvc": _LinearSVC,
    "sklearn-lbfgs": _Lbfgs,
    "sklearn-newton-cholesky": _NewtonCholesky,
    "sklearn-sgd": _StochasticGradient,
    "snapml": _SnapML,
    "cyanure": _Cyanure,
    "vowpalwabbit": _VowpalWabbit,
}
