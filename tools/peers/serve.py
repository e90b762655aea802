"""A contestant in a process of its own: one line of standard input is a setting, one line of standard output the answer.

python -m tools.peers.serve NAME TASK-AS-JSON OUT

The weights of a training go to the file OUT, and another process evaluates them, so that peak memory is the contestant's
own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from streamcd.core.memory_budget import peak_memory_bytes

from .contestants import CONTESTANTS, Task


def main() -> None:
    name, description, out = sys.argv[1:]
    fields = json.loads(description)
    task = Task(**{**fields, "dataset": Path(fields["dataset"]), "arrays": Path(fields["arrays"])})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep solvers' prints out of the answers
    contestant = CONTESTANTS[name](task)
    _answer(answers, _timed(contestant.load))
    for line in sys.stdin:
        figures = _timed(contestant.fit, float(line))
        peak = peak_memory_bytes()
        np.save(out, contestant.weights())
        _answer(answers, {**figures, "peak_memory_bytes": peak, **contestant.figures()})


def _timed(call: Any, *arguments: float) -> dict[str, float]:
    started, used = time.perf_counter(), time.process_time()
    call(*arguments)
    return {"seconds": time.perf_counter() - started, "processor_seconds": time.process_time() - used}


def _answer(stream: Any, figures: dict[str, Any]) -> None:
    stream.write(json.dumps(figures) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
