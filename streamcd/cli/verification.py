"""The command ``verify``: checks of a dataset, a run or a model."""

from __future__ import annotations

import os

from ..core.errors import DatasetError
from ..core.storage import location
from . import console


def find_problems(
    path: str, listener: console.Console, *, memory: str, workers: int
) -> tuple[list[str], str]:
    """Verify a directory according to its kind: a run, a model, or else a dataset; returns the advice on problems too."""
    from ..core.process_pool import checked_workers
    from ..dataset.dataset import open_dataset
    from ..models.stored import is_model, verify_model

    checked_workers(workers)
    if os.path.exists(os.path.join(path, "config.json")):
        from ..runs.verify import verify_run

        return verify_run(path, listener, memory=memory), "or train again with --force"
    if is_model(path):
        return verify_model(path, memory=memory), "or train, or import, the model again"
    advice = (
        "convert the data again, or make the column layout again ('streamcd columns --force') where only its files are "
        "named"
    )
    try:
        # files that are missing are problems to list, not a reason to stop
        return open_dataset(path, check_files=False).verify(listener, workers=workers, memory=memory), advice
    except DatasetError as error:
        if not location(path).exists():
            raise
        return [str(error)], advice
