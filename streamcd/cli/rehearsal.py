"""``streamcd compile``: conversions, trainings and predictions of a few rows, by which all usual kernels are compiled."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

from ..conversion.convert import convert
from ..core.errors import ConvergenceWarning, EnvironmentFailure
from ..core.options import Listener, telling_of_compilation
from ..kernels import compile as kernels
from ..kernels import compiler
from ..kernels.loss_table import LOSSES
from ..prediction.evaluate import evaluate
from ..prediction.predict import predict
from ..runs.train import train, tune

_TABLE = "y,size,place,target\n" + "a,1.5,x,0.5\nb,-2,y,1\na,,z,2\nb,3,x,-1\n" * 5


class _Silent(Listener):
    def message(self, text: str) -> None:
        """Drop it."""

    def warning(self, text: str) -> None:
        """Drop it."""


def compile_all(listener: Listener) -> dict[str, Any]:
    """Have the kernels compiled, and return the folder and how many were compiled and were there."""
    folder = kernels.folders()[1]
    if folder is None:
        raise EnvironmentFailure(
            "no folder for compiled kernels can be written to; set NUMBA_CACHE_DIR to one that can"
        )
    loaded, compiled = len(kernels.loaded), compiler.n_compiled
    with telling_of_compilation(listener), tempfile.TemporaryDirectory() as work, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        _rehearse(Path(work))
    compiled = compiler.n_compiled - compiled
    return {"folder": folder, "compiled": compiled, "cached": len(kernels.loaded) - loaded - compiled}


def _rehearse(work: Path) -> None:
    silent, numbers = _Silent(), iter(range(1000))
    texts = {n_classes: work / f"{n_classes}.txt" for n_classes in (2, 3)}
    for n_classes, path in texts.items():
        path.write_text("".join(f"{row % n_classes} 1:1 {2 + row % 7}:0.25\n" for row in range(30)))
    (work / "table.csv").write_text(_TABLE)
    data = {
        n_classes: convert(path, work / f"data{n_classes}", listener=silent)
        for n_classes, path in texts.items()
    }
    table = convert(work / "table.csv", work / "table", label="y", listener=silent)
    targets = convert(work / "table.csv", work / "targets", label="target", target=True, listener=silent)

    def fit(dataset: Any, loss: str, method: str = "dual") -> Any:
        run = work / f"run{next(numbers)}"
        return train(dataset, run, loss=loss, method=method, max_passes=2, listener=silent)

    for loss, entry in LOSSES.items():
        if not entry.has_targets:
            fit(data[3], loss)
    for dataset, loss in ((data[2], "log_loss"), (table, "squared_hinge"), (targets, "squared_error")):
        fit(dataset, loss, "newton")
    fit(targets, "squared_error")
    run = fit(data[2], "log_loss").model
    fit(table, "squared_hinge")
    tune(data[2], work / "tuned", C=[0.1, 1.0], cv=2, max_passes=2, listener=silent)
    for source in (texts[2], data[2]):
        evaluate(source, run, listener=silent)
        predict(source, run, work / f"{next(numbers)}.csv", listener=silent)
