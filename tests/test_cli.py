"""The command line: its outputs, its exit statuses, its errors of one line, and how little it loads."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import forking
import pytest
from click.testing import CliRunner
from command_line import run, run_json
from conftest import SUBPROCESS_ENVIRONMENT, libsvm_text

from streamcd import Listener, load_model
from streamcd.cli.commands import cli
from streamcd.cli.console import Console, describe_progress, explain
from streamcd.core.errors import DataError, Interrupted, LockError
from streamcd.core.options import Progress
from streamcd.kernels.loss_table import LOSSES, METHODS


def refused(*arguments: object, status: int = 2) -> str:
    """The one line that the command ends with."""
    result = run(*arguments)
    assert result.returncode == status, result.stderr
    errors = [line for line in result.stderr.splitlines() if "error:" in line]
    assert len(errors) == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert errors[0].startswith("streamcd: error: ")
    return errors[0]


@pytest.fixture(scope="module")
def made(small_problem, tmp_path_factory) -> Path:
    """A directory with text, its dataset and a run, for commands that change nothing."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "data.libsvm").write_text(libsvm_text(*small_problem("random")))
    assert run("convert", folder / "data.libsvm", folder / "data").returncode == 0
    assert run("train", folder / "data", folder / "run", "--tol", "1e-6").returncode == 0
    return folder


@pytest.fixture
def text(made) -> Path:
    return made / "data.libsvm"


@pytest.fixture
def data(made) -> Path:
    return made / "data"


@pytest.fixture
def trained(made) -> Path:
    return made / "run"


# ---------------------------------------------------------------------------------------------------------------------
# Help


@pytest.mark.parametrize(
    ("words", "expected"), [("streamcd tr", "plain,train"), ("streamcd train --los", "plain,--loss")]
)
def test_the_shell_completes_commands_and_options(words, expected):
    environment = {
        **SUBPROCESS_ENVIRONMENT,
        "_STREAMCD_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    command = [sys.executable, "-c", "from streamcd.cli.commands import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.splitlines() == [expected]


def test_losses_methods_and_liblinear_numbers_are_those_of_the_registry():
    assert METHODS == ("dual", "primal", "online", "sor", "newton", "working-set")
    text = " ".join(run("train", "--help-all").stdout.split())
    listed = text.split("LIBLINEAR's number for a loss and a method: ")[1].split(".")[0]
    numbers = [int(item.split()[0]) for item in listed.split(", ")]
    assert numbers == [0, 1, 2, 3, 4, 7, 11, 12, 13, 5, 6]


@pytest.mark.parametrize("command", ["", *cli.commands])
def test_the_help_of_a_command_is_one_screen_and_help_all_has_every_option(command):
    short, whole = (
        CliRunner().invoke(cli, [*command.split(), flag], terminal_width=80).stdout
        for flag in ("--help", "--help-all")
    )
    lines = short.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80
    for option in cli.commands[command].params if command else []:
        assert not isinstance(option, click.Option) or option.opts[-1] in whole
    for loss in LOSSES if command in ("train", "tune") else ():
        assert loss in short


def test_help_loads_neither_numpy_nor_numba():
    code = (
        "import sys\nfrom streamcd.cli.commands import cli\n"
        "try: cli.main(['train', '--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'numpy', 'numba', 'pyarrow', 'rich', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=SUBPROCESS_ENVIRONMENT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_training_does_not_load_what_costs_the_users_memory(data, tmp_path):
    # numba loads scipy.linalg by itself
    code = (
        "import sys\nfrom streamcd.cli.commands import cli\n"
        f"try: cli.main(['train', {str(data)!r}, {str(tmp_path / 'run')!r}, '--json'])\nexcept SystemExit: pass\n"
        "names = {'scipy.sparse', 'scipy.optimize', 'dask', 'distributed', 'sklearn', 'pandas', 'matplotlib', 'rich',"
        " 'streamcd.conversion.libsvm', 'streamcd.conversion.convert', 'streamcd.prediction.predict'}\n"
        "print(sorted(names & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=SUBPROCESS_ENVIRONMENT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert json.loads(done.stdout.splitlines()[0])["converged"]


# ---------------------------------------------------------------------------------------------------------------------
# From text to predictions


WRONG = """
train data out --memory 50MB
train data out -C 0
train data out --loss huber
train data out --method primal
train data out --penalty l1 --method dual
train data out --class-weight 7=2
train data out -w 7 2
train data out -s 2 --memory 50MB
train data out --acceleration 2 -e 0.1
train data out --start-from nowhere
train data out --workers 40
train data out --worker-timeout 3
train data run
train data run --resume -C 3
tune data out -C 1,2 --memory 50MB
tune data out -C 1,2 --scoring r2
tune data out -C 1,2 --cv 1000
tune data run -C 1,2
resume run --tol -1
resume run --max-passes 0
resume run --workers 2
evaluate data run --memory 50MB
predict data run -o out.csv --proba
convert data.libsvm out --memory 50MB
convert data.libsvm out --n-features 1 --weights nowhere
columns data --memory 50MB
weights run --class nothing
export run out.other
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_where_an_option_is_wrong_nothing_is_printed_but_the_error(line, made, tmp_path, monkeypatch):
    """The choice of a bias and a method, the plan of the memory and notes on LIBLINEAR's flags came first."""
    monkeypatch.chdir(made)
    found = run(*(tmp_path / word if word.startswith("out") else word for word in line.split()))
    assert found.returncode == 2
    assert found.stdout == ""
    (error,) = found.stderr.splitlines()
    assert error.startswith("streamcd: error: ")


def test_train_prints_what_was_chosen_in_a_line_and_the_result_in_seven(data, tmp_path):
    found = forking.run(["-m", "streamcd", "train", data, tmp_path / "run", "--memory", "4GB"])
    assert found.stderr == (
        "streamcd: method dual: the fewest passes on nearly all data; bias none: made from libsvm text; "
        "--bias 1 adds an intercept\n"
    )
    title, *rows = found.stdout.splitlines()
    assert re.fullmatch(r"run .*: [\d,]+ rows, [\d,]+ features", title)
    assert [row.split()[0] for row in rows] == [
        "converged",
        "passes",
        "objective",
        "time",
        "memory",
        "model",
    ]
    assert re.search(r"yes: gap [\d.e-]+, wanted 0.001$", rows[0])
    shown = run("info", tmp_path / "run").stdout
    for name in ("violation", "dual objective", "read"):
        assert re.search(rf"^  {name}  +\S", shown, re.MULTILINE)
    limited = run("train", data, tmp_path / "limited", "--max-passes", 1, "--tol", "1e-9", "-C", "1,2").stdout
    assert re.search(
        r"no: largest gap of 2 problems [\d.e-]+, wanted 1e-09; stopped by max passes\n", limited
    )
    by_eps = run("train", data, tmp_path / "eps", "-e", 0.1).stdout
    assert re.search(r"yes: violation [\d.e-]+, wanted 0.1\n", by_eps)


def test_merge_prints_what_convert_prints(data, text, tmp_path):
    converted = run("convert", text, tmp_path / "other", "--like", data)
    assert converted.returncode == 0
    merged = run("merge", data, tmp_path / "other", tmp_path / "all").stdout
    expected = run("convert", text, text, tmp_path / "twice").stdout
    names = [[row.split()[0] for row in out.splitlines()[1:]] for out in (merged, expected)]
    assert names[0] == names[1]
    assert f"streamcd train {tmp_path / 'all'} RUN" in merged


def test_names_of_features_are_in_quotes(tmp_path):
    rows = [f"{number % 7},{'New York, NY' if number % 3 else 'Rome'},{number % 2}" for number in range(50)]
    table = "\n".join(
        ["age,city,y", *[row.replace("New York, NY", '"New York, NY"') for row in rows], ",Rome,1"]
    )
    (tmp_path / "t.csv").write_text(table)
    of_data = run("convert", tmp_path / "t.csv", tmp_path / "data", "--label", "y").stdout
    assert "('age', 'age is missing', 'city=New York, NY', 'city=Rome')" in of_data
    run("train", tmp_path / "data", tmp_path / "run")
    of_model = run("weights", tmp_path / "run").stdout
    assert "'age is missing'" in of_model
    assert "'city=New York, NY'" in of_model
    assert "('age" in run("info", tmp_path / "data").stdout.split("feature values")[1]


def test_quiet_says_nothing_but_the_result(data, tmp_path):
    # a process of its own: that of the tests may hold more than the budget, which is warned of
    found = forking.run(["-m", "streamcd", "train", data, tmp_path / "run", "--quiet"])
    assert found.stderr == ""
    assert "gap" in found.stdout


def test_class_weights_reach_the_model(data, tmp_path):
    run_json("train", data, tmp_path / "a", "--class-weight", "-1=2,1=0.5")
    assert load_model(tmp_path / "a").class_weight == {-1.0: 2.0, 1.0: 0.5}
    run_json("train", data, tmp_path / "b", "--class-weight", "balanced")
    evaluated = run_json("evaluate", data, tmp_path / "b")
    assert evaluated["primal_objective"] == pytest.approx(
        run_json("resume", tmp_path / "b")["primal_objective"]
    )


def test_a_code_matrix_comes_from_a_file(small_problem, tmp_path):
    (tmp_path / "text").write_text(libsvm_text(*small_problem("multiclass")))
    assert run("convert", tmp_path / "text", tmp_path / "data").returncode == 0
    (tmp_path / "code").write_text("1 1 0\n-1, 0, 1\n\n0 -1 -1\n0 1 -1\n")
    trained = run_json("train", tmp_path / "data", tmp_path / "run", "--code", tmp_path / "code")
    assert trained["n_lanes"] == 3
    assert load_model(tmp_path / "run").code.tolist() == [[1, 1, 0], [-1, 0, 1], [0, -1, -1], [0, 1, -1]]
    for content, message in (
        ("1 2\n", "row 1: expected 2 entries of -1, 0, +1"),
        ("1 1\n-1\n", "row 2: expected 2 entries"),
        ("x\n", "row 1: expected 1 entries of -1, 0, +1 (a row per class), found 'x'"),
        ("", "code, row 1: expected"),
    ):
        (tmp_path / "code").write_text(content)
        assert message in refused("train", tmp_path / "data", tmp_path / "run2", "--code", tmp_path / "code")


def test_not_converged_is_a_warning_that_names_resume(data, tmp_path):
    found = run("train", data, tmp_path / "run", "--tol", "1e-12", "--max-passes", 1, "--json")
    assert found.returncode == 0
    assert json.loads(found.stdout)["converged"] is False
    assert f"'streamcd resume {tmp_path / 'run'} --max-passes 2'" in found.stderr
    assert run_json("resume", tmp_path / "run", "--max-passes", 1000, "--tol", "1e-6")["converged"] is True


# ---------------------------------------------------------------------------------------------------------------------
# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "DATA"], "expected DATASET RUN, found fewer arguments. See"),
        (["train", "DATA", "RUN", "--no-such-option"], "No such option"),
        (["frobnicate"], "No such command"),
        (["train", "DATA", "RUN", "-s", "8"], "unknown to LIBLINEAR"),
        (["train", "DATA", "RUN", "-s", "99"], "unknown to LIBLINEAR"),
        (["train", "DATA", "RUN", "-s", "1", "--loss", "hinge"], "not both"),
        (["train", "DATA", "RUN", "-e", "0.1", "--tol", "0.1"], "exclude each other"),
        (["train", "DATA", "RUN", "-C", "0"], "C: expected"),
        (["train", "DATA", "RUN", "-C", "x"], "expected a number"),
        (["train", "DATA", "RUN", "--class-weight", "7=1"], "no such label"),
        (["train", "DATA", "RUN", "--class-weight", "one"], "LABEL=WEIGHT"),
        (["train", "DATA", "RUN", "--class-weight", "1=1,1=2"], "each label once"),
        (["train", "DATA", "RUN", "--checkpoint-every", "soon"], "expected a time"),
        (["train", "DATA", "RUN", "--code", "nowhere"], "no such file"),
        (["tune", "DATA", "RUN", "-C", "1,2", "--cv", "1"], "folds"),
        (["train", "DATA", "RUN", "--memory", "much"], "400MB"),
        (["train", "DATA", "RUN", "--memory", "50MB"], "needed"),
        (["train", "nowhere", "RUN"], "nowhere"),
        (["resume", "nowhere"], "nowhere"),
        (["info", "nowhere"], "streamcd convert"),
        (["verify", "nowhere"], "nowhere"),
        (["evaluate", "DATA", "nowhere"], "expected a run or a model"),
        (["evaluate", "nowhere", "TRAINED"], "nowhere"),
        (["evaluate", "DATA", "TRAINED", "--memory", "10MB"], "needed"),
        (["predict", "DATA", "TRAINED"], "Missing option '-o'"),
        (["train", "DATA", "RUN", "-w1", "2", "--class-weight", "1=2"], "give one of them"),
        (["train", "DATA", "RUN", "-w1", "2", "-w1", "3"], "each label once"),
        (["train", "DATA", "RUN", "-p0.1"], "error: -p is for epsilon_insensitive"),
        (
            ["train", "DATA", "RUN", "--loss", "twin", "--penalty", "l1"],
            "no method trains twin with --penalty l1; expected squared_hinge",
        ),
        (
            ["train", "DATA", "RUN", "--loss", "twin", "--l2", "3"],
            "--l2 is not for twin, found 3; --ridge is",
        ),
        (["train", "-s", "2", "-C", "DATA", "RUN"], "-C 0.01,0.1,1,10 --cv 5' chooses C"),
        (["train", "DATA", "RUN", "-C", "-v", "5"], "-C 0.01,0.1,1,10 --cv 5' chooses C"),
        (["predict", "DATA", "TRAINED", "-o", "no/such/p.csv"], "make it first"),
        (["export", "TRAINED", "no/such/m.txt"], "make it first"),
        (["predict", "DATA", "TRAINED", "-o", "p.json"], "expected a name in .parquet, .csv or .txt"),
        (["predict", "DATA", "TRAINED", "-o", "-", "--json"], "name a file"),
        (["predict", "DATA", "TRAINED", "-o", "p.parquet", "--proba"], "log_loss"),
        (["export", "DATA", "m.txt", "--format", "liblinear"], "expected a run or a model"),
        (["export", "TRAINED", "out", "--format", "libsvm"], "is a run, expected a dataset"),
        (["export", "DATA", "out", "-C", "1"], "leave one of them out"),
        (["import", "TEXT", "model"], "expected LIBLINEAR's model text"),
        (["import", "TEXT", "TRAINED"], "exists"),
        (["convert", "TEXT", "DATA"], "--force"),
        (["convert", "nowhere", "OUT"], "nowhere"),
        (["train", "DATA", "TRAINED", "--tol", "1e-6"], "streamcd resume"),
        (["train", "DATA", "TRAINED", "-C", "7"], "--force"),
    ],
)
def test_a_users_mistake_is_one_line_and_status_2(arguments, message, made, monkeypatch):
    monkeypatch.chdir(made)
    names = {"TEXT": "data.libsvm", "DATA": "data", "TRAINED": "run", "RUN": "new", "OUT": "out"}
    before = sorted(made.rglob("*"))
    assert message in refused(*(made / names[it] if it in names else it for it in arguments))
    assert sorted(made.rglob("*")) == before


def test_an_error_under_json_is_one_object_too(tmp_path):
    found = run("info", tmp_path / "nowhere", "--json")
    assert found.returncode == 2
    assert json.loads(found.stdout)["exit_status"] == 2


def test_a_directory_without_permission_is_named_in_place_of_a_temporary_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "model.txt.partial"))
    assert explain(error) == (
        f"{tmp_path}: Permission denied; make this directory writable, or name another place",
        1,
    )
    (tmp_path / "there").touch()
    error = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "there"))
    assert explain(error) == (f"{tmp_path / 'there'}: Permission denied", 1)


def test_a_run_is_neither_made_nor_replaced_where_no_scheduler_answers(data, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("streamcd.cluster.dask_engine._ANSWER_SECONDS", 0.2)
    config = (trained / "config.json").read_bytes()
    for options in ([data, tmp_path / "new"], [data, trained, "-C", "7", "--force"]):
        line = refused("train", *options, "--scheduler", "tcp://127.0.0.1:9", status=1)
        assert "no dask scheduler answers at tcp://127.0.0.1:9" in line
    assert not (tmp_path / "new").exists()
    assert (trained / "config.json").read_bytes() == config
    assert load_model(trained).weights.any()


def test_what_the_machine_did_is_status_1():
    assert explain(OSError(28, "No space left on device", "/data/x")) == (
        "/data/x: No space left on device; free some space there, or name another disk",
        1,
    )
    assert explain(PermissionError(13, "Permission denied", "/data")) == ("/data: Permission denied", 1)
    text, status = explain(MemoryError())
    assert status == 1
    assert "--memory" in text
    assert explain(LockError("held"))[1] == 1
    assert explain(DataError("bad"))[1] == 2
    assert explain(Interrupted("stopped", signal.SIGTERM))[1] == 143
    assert explain(KeyboardInterrupt())[1] == 130
    assert explain(ZeroDivisionError()) is None


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch):
    def fail(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("streamcd.cli.session.Console", fail)
    assert isinstance(CliRunner().invoke(cli, ["verify", "x"]).exception, ZeroDivisionError)


def test_a_full_disk_while_exporting_is_one_line_and_status_1(trained):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    with open("/dev/full", "w") as full:
        found = forking.run(
            ["-m", "streamcd", "predict", trained.parent / "data", trained, "-o", "-"], stdout=full
        )
    assert found.returncode == 1
    assert "No space left" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_reader_that_leaves_early_makes_no_noise(trained):
    command = ["-m", "streamcd", "predict", trained.parent / "data", trained, "-o", "-", "--quiet"]
    out, into = os.pipe()
    os.close(out)
    try:
        assert forking.run(command, stdout=into).stderr == ""
    finally:
        os.close(into)


# ---------------------------------------------------------------------------------------------------------------------
# Progress


class Terminal:
    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal, self.text = is_terminal, ""

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def tell(listener: Listener, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    for second in range(41):
        clock[0] = second
        listener.progress(Progress("parse", second * 10**6, 40 * 10**6, "B", "note"))


def test_without_a_terminal_there_is_a_line_now_and_then(clock, monkeypatch):
    stream = Terminal(False)
    tell(Console(stream=stream), clock, monkeypatch)
    lines = stream.text.splitlines()
    assert len(lines) == 4
    assert lines[0] == "streamcd: parse: 25 % of 40 MB, 1 MB/s, 30 s left, note"


def test_on_a_terminal_there_is_a_bar_which_messages_do_not_break(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal(True)
    with Console(stream=stream) as listener:
        tell(listener, clock, monkeypatch)
        listener.warning("[look] here")
    assert "parse" in stream.text
    assert "1 MB/s" in stream.text
    assert "streamcd: warning: [look] here\n" in stream.text


def test_quiet_keeps_warnings(clock, monkeypatch):
    stream = Terminal(False)
    listener = Console(quiet=True, stream=stream)
    tell(listener, clock, monkeypatch)
    listener.message("nothing")
    listener.warning("something")
    assert stream.text == "streamcd: warning: something\n"


def test_progress_without_a_total_gives_amount_and_rate():
    assert describe_progress(Progress("parse", 3_000_000, None, "rows"), 1.5e6) == "3 M rows, 1.5 M rows/s"


def test_an_end_of_file_is_not_told_as_ctrl_c(monkeypatch):
    def fail(*arguments: object, **options: object) -> None:
        raise EOFError("of some file")

    monkeypatch.setattr("streamcd.cli.session.Console", fail)
    assert isinstance(CliRunner().invoke(cli, ["verify", "x"]).exception, EOFError)


# ---------------------------------------------------------------------------------------------------------------------
# LIBLINEAR's options


def test_options_of_liblinear_mean_what_they_mean_there(data, tmp_path):
    theirs = run_json(
        "train", "-s", 1, "-c", 0.5, "-B", 1, "-w1", 3, "-w-1", 0.5, "-m", 2, "-q", data, tmp_path / "a"
    )
    ours = run_json("train", data, tmp_path / "b", "-C", 0.5, "--bias", 1, "--class-weight", "1=3,-1=0.5")
    assert theirs["primal_objective"] == pytest.approx(ours["primal_objective"], rel=1e-3)
    assert load_model(tmp_path / "a").class_weight == {-1.0: 0.5, 1.0: 3.0}
    found = run("train", "-w1", 3, data, tmp_path / "c")
    assert "positive side only" in found.stderr
    tuned = run_json("tune", data, tmp_path / "d", "-c", "0.1,1", "-v", 3)
    assert len(tuned["scores"]["1"]["folds"]) == 3
    by_number = run_json("train", data, tmp_path / "e", "-s", 3, "-C", 0.3)
    by_name = run_json("train", data, tmp_path / "f", "--loss", "hinge", "--method", "dual", "--C", 0.3)
    assert by_number["primal_objective"] == by_name["primal_objective"]
    assert load_model(tmp_path / "e").loss == "hinge"


@pytest.mark.parametrize(("number", "dual"), [(0, 7), (2, 1), (11, 12)])
def test_liblinears_primal_numbers_train_with_and_without_a_column_layout(text, tmp_path, number, dual):
    data = tmp_path / "data"
    run_json("convert", text, data, *(["--target"] if number == 11 else []))
    asked = ("-C", 0.3, "--tol", "1e-8")
    same = run_json("train", data, tmp_path / "dual", "-s", dual, *asked)["primal_objective"]
    for name, told in (("rows", 1), ("columns", 0)):
        if name == "columns":
            run_json("columns", data)
        found = run("train", data, tmp_path / name, "-s", number, *asked, "--json")
        assert json.loads(found.stdout)["primal_objective"] == pytest.approx(same, rel=1e-7)
        assert found.stderr.count(f"-s {number} without a column layout: the same problem") == told
        assert (load_model(tmp_path / name).method == "primal") == (name == "columns")


def test_the_method_primal_needs_a_column_layout(data, tmp_path):
    said = refused("train", data, tmp_path / "run", "--method", "primal")
    assert f"has no column layout; 'streamcd columns {data}' makes it" in said


def test_losses_have_the_names_of_other_libraries_too(data, tmp_path):
    for loss in ("log", "logistic", "log_loss"):
        run_json("train", data, tmp_path / loss, "--loss", loss)
        assert load_model(tmp_path / loss).loss == "log_loss"


def test_a_run_given_for_a_dataset_is_called_one(data, trained, tmp_path):
    assert "is a run, expected a dataset" in refused("columns", trained)
    tuned = run("tune", data, tmp_path / "tuned", "-C", "1,100", "--max-passes", 2, "--tol", 1e-9)
    (said,) = [line for line in tuned.stderr.splitlines() if "models of folds" in line]
    assert "10 of 10 models of folds are not converged after 2 passes: the relative gap is" in said
    assert said.endswith("their scores may change with a larger --max-passes")


def test_info_describes_runs_and_models(data, trained, tmp_path):
    run("train", data, tmp_path / "short", "--max-passes", 1, "--tol", 1e-9, "--loss", "hinge")
    done, short = run_json("info", trained), run_json("info", tmp_path / "short")
    assert (done["state"], short["state"], short["stop_reason"]) == (
        "converged",
        "not converged",
        "max_passes",
    )
    assert done["gap"] <= 1e-6
    assert done["passes"] == run_json("resume", trained)["passes"]
    assert (short["options"]["loss"], short["passes"]) == ("hinge", 1)
    assert short["next"] == f"streamcd resume {tmp_path / 'short'} --max-passes 2"
    model = run_json("info", trained / "model")
    assert model == done["model"]
    (tmp_path / "short" / "state.npz").unlink()
    (tmp_path / "short" / "log.jsonl").unlink()
    (tmp_path / "short" / "model" / "model.json").unlink()
    begun = run_json("info", tmp_path / "short")
    assert (begun["state"], begun["next"]) == ("interrupted", f"streamcd resume {tmp_path / 'short'}")
    text = run("info", trained).stdout
    assert f"streamcd evaluate FILE {trained}" in text
    path = run_json("info", data)
    assert path["n_rows"] == 80


def test_a_search_scores_each_c_and_trains_the_best_and_info_tells_it(data, tmp_path):
    tuned = run_json("tune", data, tmp_path / "search", "-C", "0.001,1", "--cv", 4)
    assert set(tuned["scores"]) == {"0.001", "1"}
    assert tuned["best_C"] in (0.001, 1)
    assert tuned["best_C"] == load_model(tmp_path / "search").C
    assert "best C" in run("tune", data, tmp_path / "again", "-C", "0.001,1").stdout
    found = run_json("info", tmp_path / "search")
    assert (found["kind"], found["state"], found["lanes"]) == ("search", "converged", 1)
    assert found["best_C"] == tuned["best_C"]
    assert found["scores"] == tuned["scores"]
    text = re.sub(" +", " ", run("info", tmp_path / "search").stdout)
    assert f"best C {found['best_C']:g}\n" in text
    assert re.search(r"\n C mean.* fold 1 fold 2 .*\n 0.001 ", text)


def test_info_tells_the_intercept(data, tmp_path):
    run("train", data, tmp_path / "run", "--bias", 2)
    intercept = load_model(tmp_path / "run").intercept[0]
    for path in (tmp_path / "run", tmp_path / "run" / "model"):
        described = run_json("info", path)
        described = described.get("model", described)
        assert described["intercept"] == [{"vector": 1, "weight": intercept}]
        assert f"intercept {intercept:.6g}" in re.sub(" +", " ", run("info", path).stdout)
