"""History of a run: the lines of its logs, as `Run.append_log` wrote them, and as one table (``docs/runs.md``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.errors import CheckpointError
from ..dataset.arrow_columns import make_table
from .checkpoint import LINE_BYTES, read_config


def read_history(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the logs of a run: its own, or those of its groups of lanes, of folds and of the best C.

    Returns
    -------
    dict
        The records of each log, oldest first, by directory inside the run ("" for the run itself), in the order of training.
        In addition to the fields of ``log.jsonl`` each has ``elapsed``, the seconds of all reads up to the end of its own.

    Raises
    ------
    CheckpointError
        If `run` is not a run, or a line of a log is damaged. An incomplete last line is ignored.
    """
    read_config(run)
    logs = sorted(run.rglob("log.jsonl"), key=_training_order)
    return {log.parent.relative_to(run).as_posix().lstrip("."): list(_records(log)) for log in logs}


def history_table(run: Path) -> Any:
    """Read the logs of a run into one `pyarrow.Table`; ``part`` is the directory inside the run."""
    records = [{"part": part, **_flat(record)} for part, log in read_history(run).items() for record in log]
    names = dict.fromkeys(name for record in records for name in record)
    return make_table({name: [record.get(name) for record in records] for name in names})


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Put ``seconds``, an object in the log, into a column for each kind; those of workers by name."""
    flat = {name: value for name, value in record.items() if name != "seconds"}
    for kind, seconds in record["seconds"].items():
        flat[f"seconds_{kind}"] = sorted(seconds.items()) if isinstance(seconds, dict) else seconds
    return flat


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
