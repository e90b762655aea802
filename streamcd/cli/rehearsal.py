"""``streamcd compile``: conversions, trainings and predictions of a few rows, by which all usual kernels are compiled."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

from ..conversion.convert import convert
from ..core.errors import EnvironmentFailure
from ..core.options import Listener, listening
from ..kernels import compile as kernels
from ..kernels.loss_table import LOSSES
from ..prediction.evaluate import evaluate
from ..prediction.predict import predict
from ..runs.run import train, tune

_TABLE = "y,size,place,target\n" + "a,1.5,x,0.5\nb,-2,y,1\na,,z,2\nb,3,x,-1\n" * 5


def compile_all(listener: Listener) -> dict[str, Any]:
    """Have the kernels compiled, and return the folder and how many were compiled and were there."""
    folder = kernels.folders()[1]
    if folder is None:
        raise EnvironmentFailure(
            "no folder for compiled kernels can be written to; set NUMBA_CACHE_DIR to one that can"
        )
    logging.disable()  # of what is told of so few rows
    with listening(listener), tempfile.TemporaryDirectory() as work:
        _rehearse(Path(work))
    logging.disable(logging.NOTSET)
    compiled = sum(kernels.used.values())
    return {"folder": folder, "compiled": compiled, "cached": len(kernels.used) - compiled}


def _rehearse(work: Path) -> None:
    data = dict[int, Any]()
    for n_classes in (2, 3):
        text = work / f"{n_classes}.txt"
        text.write_text("".join(f"{row % n_classes} 1:1 {2 + row % 7}:0.25\n" for row in range(30)))
        data[n_classes] = convert(text, work / f"data{n_classes}")
    (work / "table.csv").write_text(_TABLE)
    table = convert(work / "table.csv", work / "table", label="y")
    targets = convert(work / "table.csv", work / "targets", label="target", target=True)
    losses = [loss for loss, entry in LOSSES.items() if not entry.has_targets]
    trainings = [(data[3], loss, "dual") for loss in losses]
    for dataset, loss in ((targets, "squared_error"), (table, "squared_hinge"), (data[2], "log_loss")):
        trainings += [(dataset, loss, "newton"), (dataset, loss, "dual")]
    for number, (dataset, loss, method) in enumerate(trainings):
        run = train(dataset, work / f"run{number}", loss=loss, method=method)
    tune(data[2], work / "tuned", C=[0.1, 1.0], cv=2)
    for source in (work / "2.txt", data[2]):
        evaluate(source, run)
        predict(source, run, work / "predictions.csv", force=True)
