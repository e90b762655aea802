"""History of a run: the lines of its logs as one table. The fields are described in ``docs/log.md``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.errors import CheckpointError
from ..dataset.parquet import make_table


def read_history(run: Path) -> Any:
    """Read the logs of a run, of its groups of lanes, and of the folds and the last training of a search.

    Returns
    -------
    pyarrow.Table
        A row for each line, oldest first within a part; ``part`` is the folder inside the run, empty for the run itself.
    """
    records = [record for path in sorted(run.rglob("log.jsonl")) for record in _records(path, run)]
    if not records and not (run / "config.json").exists():
        raise CheckpointError(f"{run}: expected a run, found no config.json in it")
    names = dict.fromkeys(name for record in records for name in record)
    return make_table({name: [record.get(name) for record in records] for name in names})


def _records(path: Path, run: Path) -> Iterator[dict[str, Any]]:
    part = path.parent.relative_to(run).as_posix()
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return  # being written
            try:
                record = json.loads(line)
            except ValueError:
                raise CheckpointError(
                    f"{path}, line {number}: damaged; restore it from a copy, or remove it"
                ) from None
            record.pop("identity", None)
            yield {"part": "" if part == "." else part, **_flat(record)}


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Put ``seconds``, an object in the log, into a column for each kind; those of workers by name."""
    for kind, seconds in record.pop("seconds", {}).items():
        record[f"seconds_{kind}"] = sorted(seconds.items()) if isinstance(seconds, dict) else seconds
    return record
