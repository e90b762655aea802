"""Training in a run directory: options, groups of lanes that fit in memory, and the models at the end."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import checkpoint
from .advice import chosen_method
from .columns import open_columns
from .conditioning import advice
from .dataset import Dataset, open_dataset
from .errors import CheckpointError, UsageError
from .loop import Loop, StopRequested, Task
from .memory import RESERVED_BYTES, format_size, parse_size
from .model import Model, path_directory, stored_certificate
from .parallel import memory_per_worker
from .partition import DASK_BYTES, model_bytes, paired_layout
from .primal import PRIMAL_METHODS, PRIMAL_SOLVERS, PrimalSolver
from .problems import Problem, make_problem
from .progress import Listener
from .relaxation import check_omega
from .result import Outcome, Result, join_outcomes, make_result
from .roundloop import ROUND_SOLVERS, WORKER_TIMEOUT, RoundLoop, make_round_loop
from .solvers import SOLVERS, Solver
from .stopping import StopRule
from .stream import Plan, describe_plan, make_plan
from .warmstart import WarmStart, combination

_LEAST_MIXED_CHUNKS = 8  # lanes are grouped so that windows mix so many chunks; fewer converge slowly
_BLOCK_BYTES = 1 << 23  # of weights at a time, where a model is written
_SAVE_BYTES = 1 << 24  # numpy writes arrays to a file through a buffer of 16 MiB


def train(
    dataset: Dataset | str | Path,
    run: str | Path,
    *,
    loss: str = "squared_hinge",
    method: str = "auto",
    C: float | Sequence[float] = 1.0,
    bias: float = -1.0,
    unpenalized_bias: bool = False,
    tol: float | None = None,
    eps: float | None = None,
    max_passes: int = 1000,
    class_weight: Mapping[float, float] | str | None = None,
    code: np.ndarray | Sequence[Sequence[int]] | None = None,
    omega: float | str = 1.0,
    ridge: float | None = None,
    slack: str | None = None,
    start_from: str | Path | None = None,
    memory: int | str = "1GB",
    seed: int = 0,
    checkpoint_every: float = 60.0,
    force: bool = False,
    plan: Plan | None = None,
    client: Any = None,
    local_passes: int | None = None,
    worker_timeout: float | None = None,
    local_workers: int = 0,
    listener: Listener | None = None,
    stop_requested: StopRequested | None = None,
) -> Result:
    """Train a model on a dataset, in a run directory that can be resumed.

    Parameters
    ----------
    dataset : Dataset or path
    run : path
        Directory to be made.
    loss : {"squared_hinge", "hinge", "log_loss", "crammer_singer", "twin"}
    method : {"auto", "dual", "primal", "online", "sor"}
        ``"primal"`` and ``"online"`` read the column layout (see `transpose.make_columns`); ``"sor"`` is the classic twin
        SVM, with an inverse of features × features for each plane; ``"auto"`` chooses by `advice.choose_method`.
    C : float or sequence of float
        Factor of the sum of losses. Several are trained in the same passes, and each keeps its model.
    bias : float
        Value of a constant feature appended to every row; its weight is penalised as the others'. Negative for none.
    unpenalized_bias : bool
        Leave the bias's weight out of ``½‖w‖²``; by primal methods only.
    tol : float, optional
        Relative duality gap at which to stop; 1e-3 where neither this nor `eps` is given.
    eps : float, optional
        Stop by LIBLINEAR's rule on violations instead.
    max_passes : int
    class_weight : mapping of label to factor, or ``"balanced"``, optional
    code : array of -1, 0, +1, shape (classes, vectors), optional
        How several classes are told apart; one-vs-rest by default.
    omega : float or "auto"
        Over-relaxation in (0, 2) of hinge, squared_hinge and twin; 1 is plain coordinate descent, ``"auto"`` tries.
    ridge : float, optional
        Of twin: r in ``r/2 ‖w‖²``, 1 by default.
    slack : {"hinge", "squared_hinge"}, optional
        Of twin: loss of the rows that a plane keeps at a distance.
    start_from : path, optional
        An ended run on the same dataset that differs in C (or is a search over C): its dual variables are the beginning,
        or, of a primal method, its weights. Method sor can start from a run of sor or dual, dual from its own.
    memory : int or str
        Bound on the process's peak resident memory. Lanes that do not fit together are trained in groups.
    seed : int
    checkpoint_every : float
        Seconds between checkpoints.
    force : bool
        Replace an existing run.
    plan : Plan, optional
        How memory is used; follows from `memory` by default.
    client : distributed.Client, optional
        Train on its workers, of which `memory` then bounds each; they must see `dataset` and `run` under these paths.
        Every round is a checkpoint. `engines.Simulation` in its place does the same in this process.
    local_passes : int, optional
        Passes of every worker over its own shards in a round; 3 by default, 1 where there are more features than rows. Needs
        `client`.
    worker_timeout : float, optional
        Seconds without a sign of a worker, after which others take over its shards; needs `client`.
    local_workers : int
        So many workers of `client` are on this machine and share `memory` with this process; 0: it bounds each of them.
    listener : Listener, optional
    stop_requested : callable, optional
        See `loop.StopRequested`.

    Returns
    -------
    Result

    Raises
    ------
    UsageError, DatasetError, CheckpointError, LockError
    Interrupted
        Where `stop_requested` said so; a checkpoint was saved.
    """
    listener = listener or Listener()
    dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if method == "auto":
        method = (
            "dual"
            if start_from is not None or client is not None
            else chosen_method(dataset, loss, C, unpenalized_bias, listener)
        )
    options = make_options(
        loss, method, C, bias, class_weight, code, seed, omega=omega, ridge=ridge, slack=slack
    )
    options["unpenalized_bias"] = bool(unpenalized_bias)
    warn_of_ridge(options, listener)
    rounds = round_options(client, options, local_passes, worker_timeout, plan)
    if rounds is not None and local_workers:
        rounds["shared_memory"] = parse_size(memory)
    config = make_config(
        dataset,
        options,
        stop_rule(tol, eps, max_passes),
        memory,
        checkpoint_every,
        plan,
        listener,
        rounds,
        local_workers,
    )
    if start_from is not None:
        config["start_from"] = str(Path(start_from).resolve())
        _EndedRun(dataset, make_lanes(dataset, options), config)  # refused before anything is made
    path = Path(run)
    refuse_existing(path, config, force)
    with checkpoint.create_run(path, force=force) as directory:
        directory.write_config(config)
        return carry_out(directory, config, dataset, listener, stop_requested, client=client)


# ---------------------------------------------------------------------------------------------------------------------
# Options and configuration


def stop_rule(tol: float | None, eps: float | None, max_passes: int) -> StopRule:
    """Check the options of stopping; a relative gap of 1e-3 where no rule is given."""
    if tol is not None and eps is not None:
        raise UsageError(
            "expected one stopping rule, found both: give the relative gap (tol) or LIBLINEAR's eps"
        )
    if tol is None and eps is None:
        tol = 1e-3
    for name, number in (("tol", tol), ("eps", eps)):
        if number is not None and not (np.isfinite(number) and number >= 0):
            raise UsageError(f"{name}: expected a number >= 0, found {number}")
    if max_passes < 1:
        raise UsageError(f"max_passes: expected at least 1, found {max_passes}")
    return StopRule(tol, eps, int(max_passes))


def make_options(
    loss: str,
    method: str,
    C: float | Sequence[float],
    bias: float,
    class_weight: Mapping[float, float] | str | None,
    code: Any,
    seed: int,
    folds: int = 0,
    *,
    omega: float | str = 1.0,
    ridge: float | None = None,
    slack: str | None = None,
) -> dict[str, Any]:
    """What decides the problem and the order of visits, as JSON keeps it."""
    if loss != "twin" and (ridge is not None or slack is not None):
        raise UsageError(f"ridge and slack are of the loss twin; they do not apply to {loss}")
    method = "dual" if method == "auto" else method
    if class_weight is not None and not isinstance(class_weight, str):
        class_weight = [[float(label), float(weight)] for label, weight in class_weight.items()]  # type: ignore[assignment]
    return {
        "loss": loss,
        "method": method,
        "C": [float(c) for c in np.atleast_1d(np.asarray(C, dtype=np.float64))],
        "bias": float(bias),
        "class_weight": class_weight,
        "code": None if code is None else np.asarray(code).tolist(),
        "seed": int(seed),
        "folds": int(folds),
        "omega": check_omega(omega, loss, method),
        "ridge": 1.0 if ridge is None else float(ridge),
        "slack": slack or "hinge",
    }


def warn_of_ridge(options: Mapping[str, Any], listener: Listener) -> None:
    """Small ridges make twin planes by coordinate descent slow."""
    if options["loss"] == "twin" and options["method"] == "dual" and options["ridge"] < 1:
        listener.warning(
            f"ridge {options['ridge']:g}: below 1 twin planes converge slowly (0.01: not within 1,000 passes on real sets); "
            "--method sor does not, where a matrix of features x features fits in memory"
        )


def make_lanes(dataset: Dataset, options: Mapping[str, Any]) -> Problem:
    """All lanes that the options ask for."""
    if dataset.classes is None or dataset.class_counts is None:
        raise UsageError(
            f"{dataset.path}: the labels take too many values to be classes; nothing to train on"
        )
    weights = options["class_weight"]
    return make_problem(
        loss=options["loss"],
        classes=dataset.classes,
        class_counts=dataset.class_counts,
        n_features=dataset.n_features,
        C=options["C"],
        bias=options["bias"],
        class_weight=dict(weights) if isinstance(weights, list) else weights,
        code=None if options["code"] is None else np.array(options["code"], dtype=np.int8),
        folds=options["folds"],
        free_bias=options.get("unpenalized_bias", False),
        ridge=options.get("ridge", 1.0),
        slack=options.get("slack", "hinge"),
    )


def make_solver(problem: Problem, options: Mapping[str, Any], dataset: Dataset) -> Solver:
    """The solver of a problem."""
    method = options["method"]
    if problem.free_bias and method not in PRIMAL_METHODS:
        raise UsageError(
            f"--unpenalized-bias is for --method {' and '.join(PRIMAL_METHODS)}, found {method}; "
            "or give --bias a larger value, which is penalised less"
        )
    if (problem.loss, method) in PRIMAL_SOLVERS:
        return PRIMAL_SOLVERS[problem.loss, method](problem, dataset, options["seed"])
    try:
        make = SOLVERS[problem.loss, method]
    except KeyError:
        known = ", ".join(f"{loss} by {way}" for loss, way in {**SOLVERS, **PRIMAL_SOLVERS})
        raise UsageError(f"no solver for {problem.loss} by method {method}; there are: {known}") from None
    omega = options.get("omega", 1.0)
    return make(problem) if omega == 1.0 else make(problem, omega=omega)


def make_config(
    dataset: Dataset,
    options: dict[str, Any],
    rule: StopRule,
    memory: int | str,
    checkpoint_every: float,
    plan: Plan | None,
    listener: Listener,
    rounds: Mapping[str, Any] | None = None,
    local_workers: int = 0,
) -> dict[str, Any]:
    """The configuration of a run: everything that decides its bits, and the memory plan."""
    check_positive(checkpoint_every=checkpoint_every)
    problem, budget = make_lanes(dataset, options), parse_size(memory)
    n_groups, plan, budget = _group_lanes(
        dataset,
        problem,
        options,
        budget,
        plan,
        on_workers=rounds is not None,
        local_workers=local_workers,
    )
    if rounds is None:
        listener.message(describe_plan(plan, dataset, budget))
    else:
        listener.message(f"every worker streams its own shards within {format_size(budget)}")
    if n_groups > 1:
        listener.message(
            f"{problem.n_lanes} lanes of {problem.n_features} features do not fit in {format_size(budget)}: "
            f"they are trained in {n_groups} groups, one after another, each reading the data by itself"
        )
    return {
        "dataset": str(dataset.path.resolve()),
        "fingerprint": dataset.fingerprint,
        "options": options,
        "memory": budget,
        "plan": asdict(plan),
        "n_groups": n_groups,
        "rule": asdict(rule),
        "checkpoint_every": float(checkpoint_every),
        "versions": versions(),
        **({} if rounds is None else {"rounds": dict(rounds)}),
        **({"columns": open_columns(dataset).fingerprint} if options["method"] in PRIMAL_METHODS else {}),
    }


def round_options(
    client: Any,
    options: Mapping[str, Any],
    local_passes: int | None,
    worker_timeout: float | None,
    plan: Plan | None,
) -> dict[str, Any] | None:
    """What the configuration says of training in rounds on workers; None for a training in this process."""
    if client is None:
        for name, value in (("local_passes", local_passes), ("worker_timeout", worker_timeout)):
            if value is not None:
                raise UsageError(
                    f"{name} is for training on workers; give a client (--scheduler or --workers)"
                )
        return None
    loss, method = options["loss"], options["method"]
    if options.get("omega", 1.0) != 1.0:
        raise UsageError("omega is for one process: on workers a line search decides how far a step goes")
    if (loss, method) not in ROUND_SOLVERS:
        known = ", ".join(f"{loss} by {way}" for loss, way in ROUND_SOLVERS)
        raise UsageError(
            f"{loss} by method {method} is not for several workers: rounds are steps of block-diagonal dual coordinate "
            f"descent with a line search along the dual; there are: {known}"
        )
    if plan is not None:
        raise UsageError("plan: workers make their own plans from their memory and their shards")
    if local_passes is not None and local_passes < 1:
        raise UsageError(f"local_passes: expected at least 1, found {local_passes}")
    timeout = WORKER_TIMEOUT if worker_timeout is None else float(worker_timeout)
    check_positive(worker_timeout=timeout)
    return {"local_passes": local_passes, "worker_timeout": timeout}


def worker_memory(
    shared: int,
    n_workers: int,
    weights_bytes: int,
    advice: str = "give a larger --memory or fewer --workers",
) -> int:
    """What each of some workers on this machine may take of a budget that they share with this process.

    Parameters
    ----------
    shared : int
        The budget.
    n_workers : int
    weights_bytes : int
        Of w and its copies, which this process holds like each of them; see `partition.model_bytes`.
    advice : str

    Raises
    ------
    UsageError
        With the arithmetic, where it is too small.
    """
    weights = {"weights": weights_bytes}
    more = memory_per_worker(shared, n_workers, {"dask": DASK_BYTES, **weights}, weights, advice)
    return RESERVED_BYTES + DASK_BYTES + weights_bytes + more


def shared_out_anew(config: Mapping[str, Any], dataset: Dataset, n_workers: int) -> int:
    """What each of other workers on this machine may take of the budget that a run was begun with."""
    problem = make_lanes(dataset, config["options"])
    largest = problem.subset(lane_groups(problem, config)[0].lanes)
    return worker_memory(
        config["rounds"]["shared_memory"],
        n_workers,
        model_bytes(make_solver(largest, config["options"], dataset)),
        "the run was begun with it: resume with fewer --workers, or with --scheduler on other machines",
    )


def check_workers(path: Path, config: Mapping[str, Any], client: Any) -> None:
    """Refuse to go on with a run on workers in one process, and the other way round."""
    if client is None and "rounds" in config:
        raise UsageError(
            f"{path} was begun on workers, which keep dual variables in another way: resume it with --scheduler ADDRESS "
            "or --workers N, N >= 1"
        )
    if client is not None and "rounds" not in config:
        raise UsageError(
            f"{path} was begun in one process, which keeps dual variables in another way: resume it without workers, or "
            f"begin a new run on workers with --start-from {path}"
        )


def _group_lanes(
    dataset: Dataset,
    problem: Problem,
    options: Mapping[str, Any],
    budget: int,
    plan: Plan | None,
    *,
    on_workers: bool = False,
    local_workers: int = 0,
) -> tuple[int, Plan, int]:
    """As few groups of lanes as fit in the budget, the plan for the largest, and the budget that it is for.

    On workers that is a worker's, as if it had all shards.
    """
    # the lanes of a fold are scored together, so they stay together
    block = problem.block_lanes if options["folds"] else 1
    n_blocks = problem.n_lanes // block
    if plan is not None:
        make_solver(problem, options, dataset)  # refuses what does not go together
        return 1, plan, budget
    refusal: UsageError | None = None
    # where scores of all rows fit for no group, not for a lane alone, they are paged, of all lanes together if possible
    for paged in (False, True):
        for n_groups, size in _group_sizes(n_blocks):
            solver = make_solver(problem.subset(range(size * block)), options, dataset)
            if paged and not isinstance(solver, PrimalSolver):
                break
            try:
                found, share = _plan_group(
                    dataset, solver, budget, on_workers=on_workers, local_workers=local_workers, paged=paged
                )
            except UsageError as error:
                refusal = error
                continue
            mixed = found.window_entries // max(1, int(np.diff(dataset.entry_start).max(initial=1)))
            if found.resident or mixed >= _LEAST_MIXED_CHUNKS or size == 1:
                return n_groups, found, share
    assert refusal is not None
    raise refusal


def _group_sizes(n_blocks: int) -> Iterator[tuple[int, int]]:
    """Numbers of groups, ascending, and the blocks of lanes of the largest of each."""
    tried = 0
    for n_groups in range(1, n_blocks + 1):
        size = -(-n_blocks // n_groups)
        if size != tried:
            tried = size
            yield n_groups, size


def _plan_group(
    dataset: Dataset, solver: Solver, budget: int, *, on_workers: bool, local_workers: int, paged: bool
) -> tuple[Plan, int]:
    """The plan for a group of lanes, and the budget that it is for."""
    if on_workers:
        if local_workers:
            budget = worker_memory(budget, local_workers, model_bytes(solver))
        return make_plan(
            dataset, budget - DASK_BYTES, model_bytes(solver), paired_layout(solver.layout)
        ), budget
    plan = make_plan(
        dataset,
        budget,
        solver.state_bytes + _SAVE_BYTES,
        solver.layout,
        **getattr(solver, "more_memory", {}),
        rows_bytes=solver.rows_bytes,
        paging=solver.paging if paged and isinstance(solver, PrimalSolver) else None,
    )
    return plan, budget


def check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise UsageError(f"{name}: expected a number > 0, found {number}")


def versions() -> dict[str, str]:
    """Versions and processor, on which the last digits depend."""
    import llvmlite
    import numba
    import pyarrow

    from . import __version__

    return {
        "streamcd": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "pyarrow": pyarrow.__version__,
        "processor": llvmlite.binding.get_host_cpu_name(),
    }


def refuse_existing(path: Path, config: Mapping[str, Any], force: bool) -> None:
    """Point to `resume` where the directory holds the same training."""
    if force or not (path / "config.json").exists():
        return
    found = checkpoint.read_config(path)
    if all(found.get(key) == config.get(key) for key in ("fingerprint", "options", "tune")):
        raise CheckpointError(
            f"{path} holds a run of the same training: 'streamcd resume {path}' goes on with it, --force starts it anew"
        )
    raise CheckpointError(f"{path} holds another run; name another directory, or give --force to replace it")


def same_dataset(config: Mapping[str, Any]) -> Dataset:
    """Open the dataset of a run; refuse it where it has changed."""
    dataset = open_dataset(config["dataset"])
    if dataset.fingerprint != config["fingerprint"]:
        raise CheckpointError(
            f"{dataset.path}: not the dataset that the run was begun with (fingerprint {dataset.fingerprint}, "
            f"the run has {config['fingerprint']}); restore that one, or train again"
        )
    if "columns" in config and open_columns(dataset).fingerprint != config["columns"]:
        raise CheckpointError(
            f"{dataset.path}: its column layout was made with other options than that which the run was begun with; "
            "make it with the same ones, or train again"
        )
    return dataset


# ---------------------------------------------------------------------------------------------------------------------
# Groups of lanes


@dataclass(frozen=True)
class Group:
    """Lanes that are trained together.

    Attributes
    ----------
    directory : str
        Where, inside the run; empty for the run itself.
    lanes : range
        Among all lanes of the run.
    """

    directory: str
    lanes: range


def lane_groups(problem: Problem, config: Mapping[str, Any]) -> list[Group]:
    """The groups of a run, as its configuration decided."""
    n_groups = config["n_groups"]
    if n_groups == 1:
        return [Group("", range(problem.n_lanes))]
    block = problem.block_lanes if config["options"]["folds"] else 1
    size = -(-(problem.n_lanes // block) // n_groups) * block
    starts = range(0, problem.n_lanes, size)
    return [
        Group(f"group-{number:02d}", range(start, min(start + size, problem.n_lanes)))
        for number, start in enumerate(starts)
    ]


def train_groups(
    directory: checkpoint.Run,
    config: Mapping[str, Any],
    dataset: Dataset,
    listener: Listener,
    stop_requested: StopRequested | None,
    *,
    run: str | None = None,
    stage: str = "",
    client: Any = None,
) -> Outcome:
    """Train all lanes of a configuration in a directory, group after group, from where each stands."""
    problem = make_lanes(dataset, config["options"])
    start = _EndedRun(dataset, problem, config) if "start_from" in config else None
    outcomes = []
    for group in lane_groups(problem, config):
        part = directory.part(group.directory) if group.directory else directory
        lanes = problem.subset(group.lanes)
        name = (
            f"lanes {group.lanes.start + 1}-{group.lanes.stop} of {problem.n_lanes}, "
            if group.directory
            else ""
        )
        task = Task(
            dataset=dataset,
            problem=lanes,
            solver=make_solver(lanes, config["options"], dataset),
            plan=Plan(**config["plan"]),
            rule=StopRule(**config["rule"]),
            seed=config["options"]["seed"],
            checkpoint_every=config["checkpoint_every"],
            run=run or str(directory.path),
            name=stage + name,
            warm_start=None if start is None else start(lanes, group.lanes),
        )
        if client is None:
            loop: Loop | RoundLoop = Loop(part, task, listener, stop_requested)
        else:
            memory = config["memory"] - DASK_BYTES
            loop = make_round_loop(
                part,
                task,
                client,
                config["rounds"],
                config["options"]["method"],
                memory,
                listener,
                stop_requested,
            )
        outcomes.append(loop.run())
    return join_outcomes(outcomes)


def carry_out(
    directory: checkpoint.Run,
    config: Mapping[str, Any],
    dataset: Dataset,
    listener: Listener,
    stop_requested: StopRequested | None,
    *,
    model_path: Path | None = None,
    client: Any = None,
) -> Result:
    """Train, write the models (into the run, or to `model_path`), and say how it ended."""
    model_path = model_path or directory.model_path
    problem = make_lanes(dataset, config["options"])
    before = _trained_passes(directory.path, problem, config)
    outcome = train_groups(directory, config, dataset, listener, stop_requested, client=client)
    result = make_result(
        str(directory.path), outcome, problem.lanes, dataset.n_features, dataset.n_rows, problem.scale
    )
    if config["options"].get("omega") == "auto":
        _tell_omegas(result, listener)
    models = _planned_models(model_path, problem, result)
    # a kill may have come after the last checkpoint and before its models: then those on disk are of an older state
    if any(stored_certificate(path) != certificate for path, _, certificate in models):
        for path, lanes, certificate in models:
            _save_model(path, directory.path, config, dataset, problem, lanes, certificate)
    elif before == outcome.lanes["passes"].tolist():
        listener.message(f"this run had ended by {result.stop_reason} and is left alone")
    if not result.converged:
        for line in advice(dataset, max(config["options"]["C"])):
            listener.warning(line)
    return result


def _tell_omegas(result: Result, listener: Listener) -> None:
    """Which omega every lane was trained with, and why."""
    for lane in result.lanes[:20]:
        name = f"omega of the lane {'' if lane['label'] is None else format(lane['label'], 'g') + ', '}C = {lane['C']:g}"
        trial = lane["omega_trial"]
        gains = "too few passes for a trial"
        if trial:
            gains = "the dual's gain per pass was " + ", ".join(f"{trial[o]:.3g} with {o}" for o in trial)
        listener.message(f"{name}: {lane['omega']:g} ({gains})")


def _trained_passes(path: Path, problem: Problem, config: Mapping[str, Any]) -> list[int] | None:
    """Passes of every lane at the last checkpoint; None where a group has none."""
    passes: list[int] = []
    for group in lane_groups(problem, config):
        arrays = checkpoint.read_arrays(path / group.directory / "state.npz", ("lane_passes", "lane_phase"))
        if arrays is None:
            return None
        passes += arrays["lane_passes"].tolist()
    return passes


# ---------------------------------------------------------------------------------------------------------------------
# Warm starts


class _EndedRun:
    """The lanes of an ended run, from which groups of new lanes begin."""

    def __init__(self, dataset: Dataset, problem: Problem, asked: Mapping[str, Any]) -> None:
        source = str(asked["start_from"])
        path = Path(source)
        config = checkpoint.read_config(path)
        if "tune" in config:
            path = path / "best" if (path / "best" / "state.npz").exists() else path / "folds"
            config = checkpoint.read_config(path)
        if config["fingerprint"] != dataset.fingerprint:
            raise UsageError(
                f"{source} was trained on another dataset (fingerprint {config['fingerprint']}, this one has "
                f"{dataset.fingerprint}); dual variables belong to rows, so a warm start needs the same dataset"
            )
        if "rounds" in config:
            raise UsageError(
                f"{source} was trained on workers, which keep dual variables in another way; start from a run of one process"
            )
        method, wanted = config["options"]["method"], asked["options"]["method"]
        dual = wanted not in PRIMAL_METHODS
        if dual and method not in ("dual", "sor"):
            raise UsageError(
                f"{source} was not trained by a dual method; there are no dual variables to start from"
            )
        if method == "sor" and wanted == "dual":
            raise UsageError(
                f"{source} was trained by --method sor, which keeps no dual variables of a plane's own rows: only "
                f"--method sor can start from it, found {wanted}"
            )
        self._dataset, self._path, self._config = dataset, path, config
        self._old = make_lanes(dataset, config["options"])
        self._matrix = combination(self._old, problem, dual=dual)

    def __call__(self, lanes: Problem, numbers: range) -> WarmStart:
        parts = []
        for group in lane_groups(self._old, self._config):
            solver = make_solver(self._old.subset(group.lanes), self._config["options"], self._dataset)
            parts.append((self._path / group.directory, solver, list(group.lanes)))
        return WarmStart(self._dataset, lanes, self._matrix[:, list(numbers)], parts)


# ---------------------------------------------------------------------------------------------------------------------
# Models


def _planned_models(
    model_path: Path, problem: Problem, result: Result
) -> list[tuple[Path, range, dict[str, Any]]]:
    """Directory, lanes and certificate of the model of every C; one C alone is the run's model."""
    per_model = problem.block_lanes
    blocks = [range(first, first + per_model) for first in range(0, problem.n_lanes, per_model)]
    single = len(blocks) == 1
    return [
        (
            model_path if single else path_directory(model_path, problem.lanes[lanes.start].C),
            lanes,
            _certificate(result, lanes),
        )
        for lanes in blocks
    ]


def _save_model(
    path: Path,
    run: Path,
    config: Mapping[str, Any],
    dataset: Dataset,
    problem: Problem,
    lanes: range,
    certificate: dict[str, Any],
) -> None:
    """Write the model of some lanes from the groups' states, block by block."""
    path.parent.mkdir(exist_ok=True)
    bias, C = config["options"]["bias"], problem.lanes[lanes.start].C
    factors = problem.class_factors(lanes)
    intercept = np.concatenate(
        [block[-1:] for block in _weight_rows(run, config, problem, lanes, last=True)]
    )[0]
    Model(
        weights=np.zeros(
            (problem.n_features, intercept.size)
        ),  # never touched: the rows are written from the state
        intercept=intercept * problem.bias,
        classes=problem.classes,
        code=problem.code,
        loss=problem.loss,
        C=C,
        method=config["options"]["method"],
        ridge=problem.ridge,
        slack=problem.slack,
        bias=bias if bias >= 0 else -1.0,
        free_bias=problem.free_bias,
        index_base=dataset.index_base,
        label_kind=dataset.label_kind,
        class_weight={float(c): float(f) for c, f in zip(problem.classes, factors, strict=True) if f != 1.0},
        fingerprint=dataset.fingerprint,
        versions=versions(),
        certificate=certificate,
        scaling=dataset.read_scaling(),
    ).save(path, rows=_weight_rows(run, config, problem, lanes, last=False))


def _certificate(result: Result, lanes: range) -> dict[str, Any]:
    mine = [result.lanes[lane] for lane in lanes]
    return {
        "primal_objective": sum(lane["primal_objective"] for lane in mine),
        "dual_objective": sum(lane["dual_objective"] for lane in mine),
        "gap": max(lane["gap"] for lane in mine),
        "converged": all(lane["converged"] for lane in mine),
        "passes": [lane["passes"] for lane in mine],
    }


def _weight_rows(
    run: Path, config: Mapping[str, Any], problem: Problem, lanes: range, *, last: bool
) -> Iterator[np.ndarray]:
    """Rows of w of some lanes, gathered from the groups' states: those of the features, or the last one, the bias's."""
    vectors = problem.lane_vectors
    block_rows = max(1, _BLOCK_BYTES // (8 * problem.n_lanes * vectors))
    sources, columns = [], []
    for group in lane_groups(problem, config):
        mine = [lane - group.lanes.start for lane in group.lanes if lane in lanes]
        if mine:
            columns.append(np.concatenate([np.arange(lane * vectors, (lane + 1) * vectors) for lane in mine]))
            sources.append(checkpoint.read_array_rows(run / group.directory / "state.npz", "w", block_rows))
    start = 0
    for blocks in zip(*sources, strict=True):
        rows = np.hstack([block[:, chosen] for block, chosen in zip(blocks, columns, strict=True)])
        start += rows.shape[0]
        if last and start > problem.n_features:
            yield rows
        elif not last:
            yield rows[: problem.n_features - start + rows.shape[0]]


def read_code(path: str | Path, n_classes: int) -> np.ndarray:
    """Read a code matrix: a line per class (ascending labels) of -1, 0 and +1, separated by blanks or commas.

    Raises
    ------
    UsageError
        Where it is not one; names the line.
    """
    lines = [line for line in Path(path).read_text().replace(",", " ").splitlines() if line.strip()]
    rows: list[list[int]] = []
    for number, line in enumerate(lines, start=1):
        tokens = line.split()
        if any(token not in ("-1", "0", "1", "+1") for token in tokens) or len(tokens) != len(
            lines[0].split()
        ):
            raise UsageError(
                f"{path}, line {number}: expected {len(lines[0].split())} entries of -1, 0, +1, found {line!r}"
            )
        rows.append([int(token) for token in tokens])
    code = np.array(rows, dtype=np.int8)
    if code.shape[0] != n_classes:
        raise UsageError(
            f"{path}: expected a line for each of the {n_classes} classes, found {code.shape[0]}"
        )
    return code


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small JSON file, whole or not at all."""
    from .parquet import write_file_atomically

    write_file_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
