"""History of a run: the lines of its logs, as `Run.append_log` wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.errors import CheckpointError
from .checkpoint import LINE_BYTES, read_config


def read_history(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the logs of a run: its own, or those of its groups of lanes, of folds and of the best C.

    Returns
    -------
    dict
        By the directory inside the run ("" for the run itself), in the order of training: a log's records, oldest first.
        Beside the fields of ``log.jsonl`` each has ``elapsed``, the seconds of all reads until its own ended.

    Raises
    ------
    CheckpointError
        Where `run` is not a run, or a line of a log is damaged. The last one may be half-written: it is left out.
    """
    read_config(run)
    logs = sorted(run.rglob("log.jsonl"), key=_training_order)
    return {log.parent.relative_to(run).as_posix().lstrip("."): list(_records(log)) for log in logs}


def _training_order(log: Path) -> tuple[bool, str]:
    return "best" in log.parent.parts, log.as_posix()  # a search trains its folds first


def _records(log: Path) -> Iterator[dict[str, Any]]:
    elapsed = 0.0
    with open(log, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES), b""), start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                elapsed += record["seconds"]["total"]
            except (ValueError, TypeError, KeyError):
                raise CheckpointError(f"{log}: line {number} is damaged") from None
            yield {**record, "elapsed": elapsed}
