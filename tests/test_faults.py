"""A short run of the attacks in tools/faults, and that they would notice what they look for."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from streamcd.core.files import replacing
from streamcd.dataset import staging
from streamcd.kernels.loss_table import SOLVERS
from tools.faults import damage as damage_kind
from tools.faults import file_operations, power
from tools.faults.__main__ import KINDS, main
from tools.faults.budgets import least_memory
from tools.faults.certificates import Run, false_claims
from tools.faults.commands import contents, run_command
from tools.faults.damage import DAMAGES, damage
from tools.faults.disk import Disk, Tree
from tools.faults.injection import HOWS, FaultyFiles
from tools.faults.mutants import Mutants, SafetyLine, mutated, safety_lines
from tools.faults.recording import Event, Recorder, tree_of
from tools.faults.trainings import Trainings
from tools.faults.trials import Finding, Row, run_attack, table
from tools.faults.workspace import Workspace, make_workspace

SHORT = {"operations": 9, "power": 10, "damage": 8, "metadata": 4, "trainings": 8}
"""Kinds with nothing lost or wrong, and trials of each: operations of every fourth scenario, damage for each use, every
sixteenth training."""
CUT = ("convert over another", "columns over others", "train in rounds", "append", "drop rows")
"""Scenarios of the short run of power cuts."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """What all begin with, made once."""
    return make_workspace(tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize("kind", SHORT)
def test_a_short_run_loses_nothing_and_gives_no_wrong_result(
    kind: str, made: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("file_operations", "power", "damage", "metadata"):
        monkeypatch.setattr(f"tools.faults.{module}.make_workspace", lambda place: made)
    some = [begun for begun in file_operations.SCENARIOS if begun.name == "append"]
    monkeypatch.setattr(file_operations, "SCENARIOS", [*some, *file_operations.SCENARIOS[::4]])
    monkeypatch.setattr(damage_kind, "USES", (*damage_kind.USES[:6], *damage_kind.USES[-2:]))
    monkeypatch.setattr(power, "SCENARIOS", [cut for cut in power.SCENARIOS if cut.name in CUT])
    attack = Trainings(Trainings().scenarios[::16]) if kind == "trainings" else KINDS[kind]()
    row = run_attack(attack, kind, seed=1, first=0, count=SHORT[kind], jobs=1)
    assert row.tried == SHORT[kind]
    assert [failure for failure in row.failures if failure[1].column in ("lost", "wrong", "ugly")] == []


@pytest.mark.slow
def test_every_solver_penalty_and_bias_resumes_to_the_same_bits_after_a_kill_or_a_cut() -> None:
    attack = Trainings()
    row = run_attack(attack, "trainings", seed=2, first=0, count=len(attack.scenarios), jobs=2)
    assert row.failures == []


def test_trainings_are_of_every_solver_and_of_two_workers() -> None:
    names = [scenario.name for scenario in Trainings().scenarios]
    assert {str(entry) for entry in SOLVERS.values()} <= set(names)
    for own in ("huber by working-set elasticnet", "log_loss by newton in rounds"):
        assert own in names


def _in_child(place: Path, at: int, how: str) -> tuple[int, int]:
    """Write a file whole or not at all with a fault; exit status, and operations counted."""
    faults = FaultyFiles(at, how)
    child = os.fork()
    if child == 0:
        faults.install()
        try:
            with replacing(place / "file") as (partial,):
                partial.write_bytes(b"new and longer")
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), faults.count


@pytest.mark.parametrize("how", HOWS)
def test_each_operation_of_an_atomic_write_is_reached_and_leaves_the_old_file_or_the_new(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "file"
    n_operations = _in_child(tmp_path, 0, how)[1]
    assert n_operations >= 5  # made, written, synced, renamed, its directory synced
    ends = set()
    for at in range(1, n_operations + 1):
        path.write_bytes(b"old")
        ends.add(_in_child(tmp_path, at, how)[0])
        assert path.read_bytes() in (b"old", b"new and longer")
    assert ends & {-9, 28, 5} or how == "short"


def test_a_cut_leaves_what_was_synced_and_of_the_rest_what_the_policies_say() -> None:
    disk = Disk({"old": b"old"})
    events = [Event("create", "new"), Event("content", "new", data=b"new"), Event("rename", "new", "old")]
    lost, rng = {"old": b"old"}, random.Random(0)
    for event in events:
        disk.apply(event)
        assert disk.cut(rng, "lost", "kept") == lost
    assert disk.now == {"old": b"new"}
    assert [disk.cut(rng, "kept", how)["old"] for how in ("kept", "lost", "zeroed")] == [
        b"new",
        b"",
        b"\0\0\0",
    ]
    assert {disk.cut(rng, "mixed", "mixed").get("old") for _ in range(300)} == {
        b"old",
        b"new",
        b"",
        b"\0\0\0",
    }
    disk.apply(Event("sync", "."))
    assert disk.cut(rng, "lost", "lost") == {"old": b""}
    disk.apply(Event("sync", "old"))
    assert disk.cut(rng, "lost", "lost") == {"old": b"new"}


def _promises_without_what_they_promise(tree: Tree, begun: Tree) -> list[str]:
    """List names that a cut must not leave alone: of a state its files."""
    found = []
    if "out/state.npz" in tree and "out/state.npz" not in begun:
        found += [name for name in ("out/dual", "out/dual/part-00000.bin") if name not in tree]
        found += ["out/log.jsonl"] * (not {"out/log.jsonl", "out/log.jsonl.partial"} & tree.keys())
    if "out/weights.npy" in tree and "out/model.json" in tree:
        digest = "sha256:" + hashlib.sha256(tree["out/weights.npy"] or b"").hexdigest()
        found += ["out/weights.npy"] * (
            json.loads(tree["out/model.json"] or b"")["checksums"]["weights.npy"] != digest
        )
    if tree.keys() & {"out/state.npz", "out/dual", "out/model"}:
        found += ["out/config.json"] * ("out/config.json" not in tree)
    return found


@pytest.mark.parametrize(
    "name", ["columns, two workers", "train over another", "train dual", "import over another"]
)
def test_no_name_survives_a_cut_without_those_that_it_promises(
    name: str, made: Workspace, tmp_path: Path
) -> None:
    """Of names in one directory, a disk may keep the later one and lose the earlier, as long as neither is synced."""
    (scenario,) = (found for found in power.SCENARIOS if found.name == name)
    recorded = power.record(made, scenario, tmp_path)
    disk, rng = Disk(recorded.begun), random.Random(0)
    for event in recorded.events:
        disk.apply(event)
        for _ in range(8):
            assert _promises_without_what_they_promise(disk.cut(rng, "one", "kept"), recorded.begun) == []


def test_the_mark_of_a_directory_for_work_is_durable_before_anything_else_is_in_it(
    made: Workspace, tmp_path: Path
) -> None:
    """It was never synced: after a power cut, what a conversion had left there was taken for another's."""
    (scenario,) = (found for found in power.SCENARIOS if found.name == "convert")
    recorded = power.record(made, scenario, tmp_path)
    disk = Disk(recorded.begun)
    for event in recorded.events:
        disk.apply(event)
        if any(name.startswith(".out.partial/") for name in set(disk.now) - {".out.partial/lock"}):
            break
    disk.apply(Event("sync", "."))  # its own name; nothing else is certain
    assert disk.cut(random.Random(0), "lost", "lost")[".out.partial/lock"] == staging._MARK


def test_what_c_code_and_forked_processes_write_is_recorded(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    recorder = Recorder(place, tmp_path / "log")
    child = os.fork()
    if child == 0:
        recorder.install()
        with open(place / "by C code", "wb") as file:
            np.arange(100).tofile(file)
            file.flush()
            os.fsync(file.fileno())
        if os.fork() == 0:
            (place / "forked").write_bytes(b"bytes")
            os.mkdir(place / "folder")
            os._exit(0)
        os.wait()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    disk = Disk({})
    for event in recorder.events():
        disk.apply(event)
    assert disk.now == tree_of(place)
    durable = disk.cut(random.Random(0), "kept", "lost")
    assert [name for name, content in durable.items() if content] == ["by C code"]


def test_a_failure_is_printed_with_its_seed_and_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Failing:
        default_count = 1

        def prepare(self, place: Path) -> None:
            pass

        def attempt(self, number: int, rng: random.Random, place: Path) -> list[Finding]:
            return [Finding("lost", f"drew {rng.random()}")] if number == 2 else []

    row = run_attack(Failing(), "failing", seed=7, first=0, count=4, jobs=1)
    assert (row.tried, row.count("lost"), row.count("wrong")) == (4, 1, 0)
    said = capsys.readouterr().err
    assert "seed 7; again: python -m tools.faults --kind failing --seed 7 --first 2 --count 1" in said
    run_attack(Failing(), "failing", seed=7, first=2, count=1, jobs=1)
    assert capsys.readouterr().err == said


def test_every_line_of_safety_has_its_guard_and_can_be_removed() -> None:
    lines = safety_lines()
    assert len(lines) >= 30
    for line in lines:
        text = Path("streamcd", line.file).read_text(encoding="utf-8")
        compile(mutated(text, line.number), line.file, "exec")


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("some", "expected file::name"),
        ("some::a_claim, twice", "expected file::name"),
        ("some::claim", "expected one test, found 2"),
        ("some::no_claim", "expected one test, found 0"),
        ("no_such_file::a_claim", "expected one test, found 0"),
    ],
)
def test_a_mark_that_is_not_of_one_test_is_an_error(tmp_path: Path, mark: str, message: str) -> None:
    (tmp_path / "streamcd").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(
        "def test_a_claim():\n    pass\ndef test_b_claim():\n    pass\n"
    )
    module = tmp_path / "streamcd" / "module.py"
    module.write_text("x = 1  # safety: some::a_claim some::b_claim[x y]\n")
    assert [line.guard for line in safety_lines(tmp_path)] == [
        "test_some.py::test_a_claim",
        "test_some.py::test_b_claim[x y]",
    ]
    module.write_text(f"x = 1  # safety: {mark}\n")
    with pytest.raises(ValueError, match=message):
        safety_lines(tmp_path)


def test_a_statement_does_nothing_a_condition_is_never_true_and_an_argument_is_gone_in_a_mutant() -> None:
    text = "if a:\n    sync(\n        b,\n        c,\n    )\nelif (\n    d\n    and e\n):\n    f = 1\n"
    assert mutated(text, 1) == text.replace("if a:", "if False:", 1)
    assert mutated(text, 2) == text.replace("sync(\n        b,\n        c,\n    )", "pass")
    assert mutated(text, 4) == text.replace("        c,\n", "")
    assert mutated(text, 8) == text.replace("    and e\n", "")
    assert mutated(text, 9) == text.replace("elif (\n    d\n    and e\n):", "elif False:")
    assert mutated(text, 10) == text.replace("f = 1", "pass")


def test_a_line_of_safety_is_missed_by_its_guard_when_it_is_gone() -> None:
    """A sample of those whose guard takes a moment."""
    quick = [
        line for line in safety_lines() if line.guard.startswith("test_durability") and "[" not in line.guard
    ]
    row = run_attack(Mutants(quick), "mutants", seed=1, first=0, count=1, jobs=1)
    assert (row.tried, row.failures) == (1, [])


@pytest.mark.parametrize(
    ("statuses", "column", "message"),
    [
        ((0, 0), "unnoticed", "removed, and test_x.py::test_y passed"),
        ((1, 1), "unnoticed", "its guard fails without the mutation"),
        ((0, 4), "ugly", "its guard could not run"),
    ],
)
def test_a_line_that_nobody_misses_is_told_with_its_guard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, statuses: tuple[int, int], column: str, message: str
) -> None:
    ended = iter(statuses)
    monkeypatch.setattr("tools.faults.mutants._run_guard", lambda *_: (next(ended), "said"))
    (number,) = (line.number for line in safety_lines() if line.text == "os.fsync(descriptor)")
    line = SafetyLine("core/files.py", number, "os.fsync(descriptor)", "test_x.py::test_y")
    (finding,) = Mutants([line]).attempt(0, random.Random(0), tmp_path)
    assert (finding.column, finding.what.startswith(f"{line}: {message}")) == (column, True)


def test_the_table_is_markdown_and_counts_trials_not_findings() -> None:
    row = Row("damage", 5, 2.0, [(1, Finding("wrong", "a")), (1, Finding("wrong", "b"))])
    assert table([row]).splitlines()[-1] == "| damage | 5 | 0 | 1 | 0 | 0 | 0 | 0 | 2 |"


def test_false_certificates_are_noticed() -> None:
    rows, hinge = (
        [(1.0, 1.0), (-1.0, -1.0)],
        Run(next(entry for entry in SOLVERS.values() if entry.loss == "hinge")),
    )
    fine = {"primal_objective": 0.5, "dual_objective": 0.5, "converged": True}
    assert false_claims(fine, hinge, 1.0, rows, [[1.0, 0.0]], 1e-9) == []
    assert len(false_claims({**fine, "dual_objective": 0.51}, hinge, 1.0, rows, [[1.0, 0.0]], 1e-9)) == 1
    assert len(false_claims({**fine, "primal_objective": 0.6}, hinge, 1.0, rows, [[1.0, 0.0]], 1e-9)) == 1
    far = {"primal_objective": 1.125, "dual_objective": 0.5, "converged": True}
    assert len(false_claims(far, hinge, 1.0, rows, [[0.5, 0.0]], 1e-9)) == 1


def test_a_command_in_a_child_ends_with_status_output_and_operations(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("1 1:1\n-1 2:1\n")
    faults = FaultyFiles(whole_group=True)
    ended = run_command(tmp_path, "convert", "data", "out", "--json", faults=faults)
    assert (ended.status, ended.answer["n_rows"], ended.operations > 5) == (0, 2, True)
    assert contents(tmp_path / "out") == (ended.answer["fingerprint"],)
    assert run_command(tmp_path, "info", "nothing").status == 2


def test_damage_always_changes_the_file(tmp_path: Path) -> None:
    for how in DAMAGES:
        (tmp_path / "file").write_bytes(bytes(100))
        damage(tmp_path / "file", how, random.Random(1))
        assert how == "gone" or (tmp_path / "file").read_bytes() != bytes(100)


def test_the_command_writes_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "table.md"
    assert main(["--kind", "tables", "--count", "1", "--jobs", "1", "--output", str(output)]) == 0
    assert "| tables | 1 | 0 | 0 | 0 | 0 | 0 | 0 |" in output.read_text()


def test_the_least_memory_is_read_from_a_refusal() -> None:
    assert least_memory("300 MB interpreter and libraries + 26 MB blocks = 326 MB needed; give more") == 328
    assert least_memory("= 1.2 GB needed; give a larger --memory") == 1206
    assert least_memory("9 MB of --memory are left for them; give about 540 MB, or less") == 543
    assert least_memory("done") == 0
