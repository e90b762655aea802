"""Cost of paging the primal methods' scores: seconds a pass with scores in memory and in pages, in the same windows.

python tools/bench_paging.py DATASET [--windows 10] [--passes 5] [--method primal]

The dataset needs its column layout. Both trainings end at the same bits, or the tool fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from streamcd.dataset.dataset import Dataset, open_dataset
from streamcd.runs.train import train
from streamcd.solvers import row_scores
from streamcd.stream.memory_plan import Plan


def seconds_a_pass(dataset: Dataset, plan: Plan, method: str, n_passes: int) -> tuple[float, bytes]:
    """Median over the passes after the first, and the final weights."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        train(dataset, run, method=method, bias=1.0, tol=0.0, max_passes=n_passes, plan=plan)
        log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        passes = [line["seconds"]["total"] for line in log if line["kind"] == "train"]
        return statistics.median(passes[1:]), (run / "model" / "weights.npy").read_bytes()


def main() -> None:
    """Print the seconds and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--windows", type=int, default=10, help="windows of a pass")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--method", default="primal", choices=("primal", "online"))
    arguments = parser.parse_args()
    dataset = open_dataset(arguments.dataset)
    entries = max(dataset.n_entries // arguments.windows, 1)
    found = {}
    for name, page_rows in (("memory", 0), ("pages", row_scores.PAGE_BYTES // 8)):
        plan = Plan(entries, dataset.n_features, resident=False, page_rows=page_rows)
        found[name] = seconds_a_pass(dataset, plan, arguments.method, arguments.passes)
    assert found["memory"][1] == found["pages"][1], "not the same bits"
    print(
        f"{dataset.n_rows:,} rows, {dataset.n_entries:,} entries, windows of {entries:,}: "
        f"scores in memory {found['memory'][0]:.2f} s a pass, in pages {found['pages'][0]:.2f} s, "
        f"ratio {found['pages'][0] / found['memory'][0]:.2f}"
    )


if __name__ == "__main__":
    main()
