"""Trainings in a process of its own: a line of standard input has one's options, a line of standard output its figures.

    python -m tools.training_server [SCHEDULER WORKERS]

The answer to an empty line says that this process, and so many workers of a dask scheduler, have started.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from typing import Any

import streamcd
from streamcd.stream.memory_plan import Plan

_START_SECONDS = 60.0  # for the workers


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed is no answer
    with ExitStack() as stack:
        client: Any = None
        if sys.argv[1:]:
            from streamcd.cluster.dask_engine import open_client

            client = stack.enter_context(open_client(sys.argv[1], 0))
            client.wait_for_workers(int(sys.argv[2]), timeout=_START_SECONDS)
        for line in sys.stdin:
            asked = json.loads(line)
            answers.write(json.dumps(_train(client, **asked) if asked else {}) + "\n")
            answers.flush()


def _train(
    client: Any, data: str, run: str, plan: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    if plan is not None:
        options["plan"] = Plan(**plan)
    result = streamcd.train(data, run, client=client, force=True, **options)
    return {"seconds": result.seconds - result.kernel_seconds, "converged": result.converged}


if __name__ == "__main__":
    main()
