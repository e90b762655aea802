"""Result of a training, which ``--json`` prints."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import CheckpointError, counted, escaped
from ..core.memory_budget import peak_memory_bytes
from ..solvers.acceleration import TOLD
from ..solvers.problem import Problem
from .checkpoint import LINE_BYTES, read_config
from .stopping import REASONS, StopRule, relative


@dataclass(repr=False)
class Result:
    """Result of a training; its fields are those of ``train --json``.

    An item of `lanes` is ``{label, C, l1, fold, n_nonzero, n_weights, primal_objective, dual_objective, gap, passes,
    converged}``, ``n_nonzero`` being the number of its ``n_weights`` that are not 0; also ``omega`` if it is not a fixed 1,
    and with acceleration the last ``kappa``, or for primal methods the last ``extrapolation``.

    Examples
    --------
    >>> result = streamcd.train("data", "another-run")
    >>> result.converged, result.gap <= 1e-3, result.stop_reason
    (True, True, 'gap')
    >>> result.history["passes"].to_pylist()[-1] == result.passes
    True
    """

    run: str  # the run directory
    primal_objective: float  # sum over all problems: classes, values of C
    dual_objective: float  # likewise
    # largest (primal - dual) / max(|primal|, 1e-9 P(0)) of a problem, with what rounding may add to it; P(0) is the primal
    # objective with all weights 0
    gap: float
    rounding: float  # largest bound on the rounding error of a gap, relative likewise
    violation: float  # largest violation of optimality at the certified weights (LIBLINEAR's measure)
    converged: bool  # all problems are
    # of the problem that ended worst: "gap", "violation", "max_passes", "rounding" or "time"
    stop_reason: str
    passes: int  # training passes of the slowest problem
    seconds: float  # of all sessions of the run, of those before without loading kernels
    kernel_seconds: float  # of these, loading kernels in this session: once in a process, and longer where they are compiled
    bytes_read: int  # from the files of the dataset and of the dual variables, in all sessions of the run
    peak_memory_bytes: int  # resident, of this process
    n_features: int
    n_rows: int
    n_lanes: int
    lanes: list[dict[str, Any]]
    tol: float | None  # the relative gap that was wanted; None where `eps` is the rule
    eps: float | None  # the violation that was
    # if it has not converged: changes that would take fewer passes
    advice: list[str] = field(default_factory=list)
    # it has not converged, and more passes are the way on; where they would change little, `advice` says what would
    more_passes_help: bool = False

    def __repr__(self) -> str:
        ended = self.describe_shortfall()
        if self.converged:
            ended = f"converged after {counted(self.passes, 'pass', 'passes')}"
        return f"<streamcd.{type(self).__name__} {escaped(self.run)}: {ended}; relative gap {self.gap:.2g}>"

    def __fspath__(self) -> str:
        """Return the run directory: a result may stand where its run is meant."""
        return self.run

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        return asdict(self)

    def describe_shortfall(self) -> str:
        """Describe how the training fell short of its rule."""
        shortfall = {reason.name: reason.shortfall for reason in REASONS}[self.stop_reason]
        slowly = "" if self.more_passes_help else ", which more passes change slowly"
        after = f"after {counted(self.passes, 'pass', 'passes')}"
        return shortfall.format(after=after, gap=self.gap, slowly=slowly)

    @property
    def model(self) -> Any:
        """The trained model, loaded from the run."""
        from ..models.stored import load_model

        return load_model(self.run)

    @property
    def history(self) -> Any:
        """The log of the run as a `pyarrow.Table`, a row for each read of the data or round of workers.

        ``part`` is the directory inside the run.
        """
        from ..dataset.arrow_columns import make_table  # pyarrow

        records = [
            {"part": part, **_flat(record)}
            for part, log in read_history(Path(self.run)).items()
            for record in log
        ]
        names = dict.fromkeys(name for record in records for name in record)
        return make_table({name: [record.get(name) for record in records] for name in names})


@dataclass(repr=False)
class TuneResult(Result):
    """Result of a search over C and λ: the fields of `Result` for the training on all rows, and the scores."""

    _: KW_ONLY
    # by C, as given, or with several λ by both, as in C=0.1,l1=2.0: {"folds": [score of each], "mean": their mean},
    # and of two classes the mean "auc" with "auc_error", a bound on its error, or beside it "accuracy"
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    best_C: float = (
        math.nan
    )  # the C of the best mean, the smallest of equal ones; nan where the time was up before
    best_l1: float = math.nan  # λ of it, the largest of equal ones; 0 where the penalty has no L1
    folds: dict[str, Any]  # of training them: passes, bytes_read, seconds, converged, gap, n_lanes
    scored_by: str = (
        "accuracy"  # or r2, of numbers to predict; or loss, their mean loss, which is best where it is least
    )


@dataclass(frozen=True)
class Outcome:
    """Final state of the lanes of a training loop."""

    lanes: dict[str, np.ndarray]  # the per-lane arrays of the last state, and n_nonzero
    seconds: float
    bytes_read: int
    kernel_seconds: float  # of `seconds`, in this session


def sum_up(
    run: str,
    outcomes: Sequence[Outcome],
    problem: Problem,
    rule: StopRule,
    n_rows: int,
    class_names: Sequence[str] | None,
) -> Result:
    """Sum up the outcomes of a run's groups of lanes, with objectives as the user's (`Problem.scale`)."""
    lanes = {name: np.concatenate([one.lanes[name] for one in outcomes]) for name in outcomes[0].lanes}
    gaps = relative(lanes)
    primal = problem.scale * lanes["primal"]
    dual = problem.scale * lanes["dual"]
    reason = REASONS[lanes["reason"].max()].name  # of the lane that ended worst
    omegas = lanes.get("kept_omega", np.ones(problem.n_lanes))
    tells_omega = (omegas != 1.0) | (lanes.get("trial_begin", omegas) > 1)
    return Result(
        run=run,
        primal_objective=float(primal.sum()),
        dual_objective=float(dual.sum()),
        gap=float(gaps.max()),
        rounding=float(relative(lanes, "rounding").max()),
        violation=float(lanes["violation"].max()),
        converged=bool(lanes["converged"].all()),
        stop_reason=reason,
        passes=int(lanes["passes"].max()),
        seconds=sum(one.seconds for one in outcomes),
        kernel_seconds=sum(one.kernel_seconds for one in outcomes),
        bytes_read=sum(one.bytes_read for one in outcomes),
        peak_memory_bytes=peak_memory_bytes(),
        n_features=problem.n_features,
        n_rows=n_rows,
        n_lanes=problem.n_lanes,
        more_passes_help=reason == "time",
        lanes=[
            {
                "label": lane.label
                if class_names is None or lane.label is None
                else class_names[int(lane.label)],
                "C": lane.C,
                "l1": lane.l1,
                "fold": None if lane.fold < 0 else lane.fold,
                "n_nonzero": int(lanes["n_nonzero"][number]),
                "n_weights": problem.lane_vectors * problem.n_features,
                "primal_objective": float(primal[number]),
                "dual_objective": float(dual[number]),
                "gap": float(gaps[number]),
                "passes": int(lanes["passes"][number]),
                "converged": bool(lanes["converged"][number]),
                **({"omega": float(omegas[number])} if tells_omega[number] else {}),
                **{name: float(lanes[name][number]) for name in TOLD if name in lanes},
            }
            for number, lane in enumerate(problem.lanes)
        ],
        tol=rule.tol,
        eps=rule.eps,
    )


# ---------------------------------------------------------------------------------------------------------------------
# The history of a run: the lines of its logs, as one table


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
    # a search trains its folds first
    logs = sorted(run.rglob("log.jsonl"), key=lambda log: ("best" in log.parent.parts, log.as_posix()))
    return {log.parent.relative_to(run).as_posix().lstrip("."): list(_records(log)) for log in logs}


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Put ``seconds``, an object in the log, into a column for each kind; those of workers by name."""
    flat = {name: value for name, value in record.items() if name != "seconds"}
    for kind, seconds in record["seconds"].items():
        flat[f"seconds_{kind}"] = sorted(seconds.items()) if isinstance(seconds, dict) else seconds
    return flat


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
