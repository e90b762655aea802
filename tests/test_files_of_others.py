"""Files of others: an output replaces no input, and an existing file only by --force and only one of its own kind."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import command_line
import pytest
from conftest import libsvm_text

import streamcd
from streamcd import StreamcdError


@pytest.fixture(scope="module")
def made(small_problem, tmp_path_factory) -> Path:
    """A directory with text, data, a run on it, its model as text, and a file of somebody else."""
    folder = tmp_path_factory.mktemp("made")
    with contextlib.chdir(folder):
        Path("text").write_text(libsvm_text(*small_problem("random")))
        for line in (
            "convert text data",
            "train data run",
            "export run model.txt",
            "predict text run -o p.parquet",
        ):
            assert succeeds(line)
        Path("letter").write_text("Dear all\n")
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    """A copy of it, to work in."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def succeeds(line: str) -> bool:
    return command_line.run(*line.split()).returncode == 0


def refused(line: str) -> str:
    found = command_line.run(*line.split())
    assert found.returncode == 2, found.stderr
    assert "Traceback" not in found.stderr
    assert found.stderr.splitlines()[-1].startswith("streamcd: error: ")
    return found.stderr.splitlines()[-1]


WRITERS = {
    "predict": ("predict text run -o {}", "p.parquet"),
    "export a model": ("export run {}", "model.txt"),
    "export a dataset": ("export data {}", "back.txt"),
}


@pytest.mark.parametrize("force", ["", " --force"])
@pytest.mark.parametrize(
    "target", ["letter", "data/manifest.json", "run/config.json", "run/state.npz", "data"]
)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_of_another_kind_is_not_replaced(here, writer, target, force):
    before = Path(target).read_bytes() if Path(target).is_file() else None
    message = refused(WRITERS[writer][0].format(target) + force)
    assert "--force" not in message  # it would not help
    assert before is None or Path(target).read_bytes() == before


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_of_the_same_kind_is_replaced_by_force_only(here, writer):
    line, target = WRITERS[writer]
    if writer == "export a dataset":
        assert succeeds(line.format(target))
    before = Path(target).read_bytes()
    assert "--force" in refused(line.format(target))
    assert Path(target).read_bytes() == before
    Path(target).write_bytes(before + b"")
    assert succeeds(line.format(target) + " --force")


def test_predictions_do_not_replace_the_text_they_are_of(here):
    Path("text.txt").write_bytes(before := Path("text").read_bytes())
    Path("link.txt").symlink_to("text.txt")
    for out in ("text.txt", "link.txt", "./text.txt"):
        for force in ("", " --force"):
            assert "input" in refused(f"predict text.txt run -o {out}{force}")
    with pytest.raises(StreamcdError, match="input"):
        streamcd.predict("text.txt", "run", "text.txt", force=True)
    assert Path("text.txt").read_bytes() == before


def test_a_device_is_not_replaced(here):
    refused("predict text run -o /dev/null --force")
    assert Path("/dev/null").is_char_device()


def test_a_model_is_imported_over_a_model_by_force_only(here):
    assert succeeds("import model.txt model")
    assert "--force" in refused("import model.txt model")
    assert succeeds("import model.txt model --force")
    for other in ("data", "run", "letter", "model.txt"):
        for force in ("", " --force"):
            assert "give --force" not in refused(f"import model.txt {other}{force}")
    assert Path("letter").read_text() == "Dear all\n"


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_written_through_a_symbolic_link(here, writer):
    Path("new.txt.partial").symlink_to("letter")
    assert "symbolic link" in refused(WRITERS[writer][0].format("new.txt"))
    assert Path("letter").read_text() == "Dear all\n"
    assert Path("new.txt.partial").is_symlink()
    assert not Path("new.txt").exists()


def test_a_link_to_predictions_is_replaced_not_written_through(here):
    before = Path("p.parquet").read_bytes()
    Path("link.parquet").symlink_to("p.parquet")
    assert (
        succeeds("predict text run -o link.parquet --force --proba") is False
    )  # no probabilities: refused before
    assert succeeds("predict text run -o link.parquet --force")
    assert not Path("link.parquet").is_symlink()
    assert Path("p.parquet").read_bytes() == before


@pytest.mark.parametrize(
    "line",
    ["convert text text", "convert text folder", "train data text", "train data data", "train data folder"],
)
def test_advice_about_force_is_not_taken_back(here, line):
    Path("folder").mkdir()
    Path("folder/letter").write_text("Dear all\n")
    assert "--force" not in refused(line)
    assert "--force" not in refused(f"{line} --force")


@pytest.mark.parametrize("line", ["convert text data", "train data run -C 2", "tune data run -C 1"])
def test_advice_about_force_helps(here, line):
    assert "--force" in refused(line)
    assert succeeds(f"{line} --force")


def test_a_run_does_not_empty_what_it_reads(here):
    assert succeeds("convert text run/own")
    assert "reads" in refused("train run/own run -C 2 --force")
    assert "reads" in refused("train data run -C 2 --start-from run --force")
    assert Path("run/own/manifest.json").exists()
    assert Path("run/state.npz").exists()


def test_a_dataset_does_not_replace_the_text_in_it(here):
    Path("data/text").write_bytes(Path("text").read_bytes())
    assert "input" in refused("convert data/text data --force")
    assert Path("data/text").exists()


def test_what_a_killed_import_left_is_no_obstacle(here):
    assert succeeds("export run killed.model --format liblinear")
    Path("imported").mkdir()
    (Path("imported") / "weights.npy.partial").write_bytes(b"half")
    assert succeeds("import killed.model imported")
    assert not (Path("imported") / "weights.npy.partial").exists()
