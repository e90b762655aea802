"""Files from outside: in a bucket, and damaged; by the command line, public names and files."""

from __future__ import annotations

import gzip
import logging
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_line
import forking
import pyarrow.parquet as pq
import pytest

import streamcd

pytestmark = pytest.mark.filterwarnings("ignore:not converged")


def write_text(path: str, n_rows: int = 80, seed: int = 0) -> None:
    """Write rows of two noisy classes, the entries with indices 1 to 12."""
    rng = random.Random(seed)
    with open(path, "w") as file:
        for _ in range(n_rows):
            row = [(k, rng.gauss(0, 1)) for k in sorted(rng.sample(range(1, 13), 5))]
            label = 1 if sum(value for _, value in row) + rng.gauss(0, 0.5) > 0 else -1
            file.write(" ".join([f"{label}", *(f"{k}:{value:.4g}" for k, value in row)]) + "\n")


def write_table(path: str) -> None:
    lines = [f"{i},{i % 7},{'pqr'[i % 3]},{('no', 'yes')[i * i % 5 > 2]}\n" for i in range(60)]
    Path(path).write_text("".join(["id,a,b,y\n", *lines]))


MADE = (
    "convert t.txt data --chunk-size 400B --shard-size 2kB --columns",
    "convert t.txt compact --compact --chunk-size 400B --shard-size 2kB",
    "convert t.csv table --label y --scale standard --id id --chunk-size 400B",
    "train data dual --method dual --max-passes 3 --tol 1e-12",
    "train data primal --method primal --max-passes 2 --tol 1e-12",
    "train data newton --method newton --max-passes 1 --tol 1e-12",
    "train data sets --method working-set --penalty l1 --max-passes 2 --tol 1e-12",
    "tune data search -C 0.1,1 --cv 2 --max-passes 2 --tol 1e-12",
    "train table of-table --loss log_loss --tol 1e-3",
    "train compact of-compact --tol 1e-3",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Text, a table, datasets and runs of them; the working directory of all tests here."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_text("t.txt")
        write_table("t.csv")
        for words in MADE:
            command_line.run_json(*words.split())
        yield folder


def weights(run: str | Path) -> bytes:
    model = streamcd.load_model(run)
    return model.weights.tobytes() + bytes(str(model.intercept), "ascii")


def error_of(done: Any) -> str:
    """The one line of a command that fails for its arguments or data."""
    assert done.returncode == 2, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "error:" in line]
    assert "Traceback" not in done.stderr
    return str(line)


# ---------------------------------------------------------------------------------------------------------------------
# Damage


TRAIN = "--max-passes 2 --tol 1e-12"
USES: dict[str, tuple[str, ...]] = {
    "data": (f"train copy out --method dual {TRAIN}", f"train copy out --method primal {TRAIN}"),
    "compact": (f"train copy out {TRAIN}",),
    "table": (f"train copy out {TRAIN}", "predict copy of-table -o out.csv"),
    "dual": (f"train data out --start-from copy -C 2 {TRAIN}", "resume copy --max-passes 6"),
    "primal": ("resume copy --max-passes 4",),
    "newton": ("resume copy --max-passes 3",),
    "sets": ("resume copy --max-passes 4",),
    "search": ("resume copy --max-passes 4",),
    "of-table": ("predict t.csv copy -o out.csv", "evaluate t.csv copy --json"),
    "of-compact": ("predict t.txt copy -o out.csv",),
}
"""What has a damaged file, and commands that use a copy of it."""


def copy_of(target: str) -> list[Path]:
    """Copy a dataset or run; the names of its files."""
    shutil.rmtree("copy", ignore_errors=True)
    shutil.copytree(target, "copy")
    return sorted(
        path.relative_to("copy") for path in Path("copy").rglob("*") if path.is_file() and path.name != "lock"
    )


def used(words: str) -> tuple[Any, Any]:
    """Run a command; what it said, and its result where it succeeds."""
    shutil.rmtree("out", ignore_errors=True)
    Path("out.csv").unlink(missing_ok=True)
    done = command_line.run(*words.split())
    if done.returncode:
        return done, None
    if words.startswith("predict"):
        return done, Path("out.csv").read_bytes()
    return done, done.stdout if words.startswith("evaluate") else weights(
        "copy" if "resume" in words else "out"
    )


def attack(target: str, name: Path, expected: dict[str, Any], places: int = 3) -> None:
    """Damage a file at so many places: ``verify`` names it, and commands do, or have the result that they had."""
    whole = (Path(target) / name).read_bytes()
    changed = [
        (at, whole[:at] + bytes([whole[at] ^ 18]) + whole[at + 1 :])
        for at in range(2, len(whole), len(whole) // places)
    ]
    n_found = 0
    for at, content in [*changed, (len(whole) - 2, whole[:-2])]:
        copy_of(target)
        (Path("copy") / name).write_bytes(content)
        problems = command_line.problems(Path("copy"))
        assert all(str(name) in problem for problem in problems), problems
        n_found += bool(problems)
        for words in USES[target]:
            done, result = used(words)
            if done.returncode:
                assert name.name in error_of(done)
            else:
                assert result == expected[words], f"{name}, byte {at}: {words}"
    least = (
        1 if (Path(target) / "config.json").exists() else len(changed) + 1
    )  # slots have bytes that nobody reads
    assert n_found >= least, name


@pytest.fixture(scope="module")
def results(made: Path) -> dict[str, dict[str, Any]]:
    """Results of the commands on what is not damaged."""
    found: dict[str, dict[str, Any]] = {}
    for target, commands in USES.items():
        copy_of(target)
        found[target] = {words: used(words)[1] for words in commands}
        assert None not in found[target].values()
    return found


@pytest.mark.parametrize("target", USES)
def test_a_damaged_byte_in_any_file_is_named_and_never_used(
    target: str, results: dict[str, dict[str, Any]]
) -> None:
    for name in copy_of(target):
        attack(target, name, results[target])


@pytest.mark.parametrize(
    ("target", "name"),
    [("compact", "indices.parquet"), ("table", "kept.parquet"), ("search", "scores.json")],
)
def test_damage_anywhere_in_small_files_is_noticed(
    target: str, name: str, results: dict[str, dict[str, Any]]
) -> None:
    attack(target, Path(name), results[target], places=20)


# ---------------------------------------------------------------------------------------------------------------------
# In a bucket


@pytest.fixture(scope="module")
def bucket(made: Path) -> Iterator[Any]:
    """An S3 server with a bucket, and what was made in it; its client."""
    boto3 = pytest.importorskip("boto3")
    s3fs = pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    settings = {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "name",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()  # of a server that ran here before
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        for path in made.rglob("*"):
            if path.is_file() and path.parts[len(made.parts)] in ("t.txt", "t.csv", "data", "table"):
                client.upload_file(str(path), "bucket", str(path.relative_to(made)))
        yield client
    server.stop()


def same_rows(one: str, other: str) -> bool:
    """Compare datasets as they are stored: places in the source, labels, entries."""
    found, expected = (streamcd.open(path) for path in (one, other))
    return bool(found.head(found.n_rows).equals(expected.head(expected.n_rows)))


def test_sources_in_a_bucket_give_the_rows_of_files(bucket: Any, made: Path) -> None:
    lines = Path("t.txt").read_bytes().splitlines(keepends=True)
    bucket.put_object(Bucket="bucket", Key="days/1.gz", Body=gzip.compress(b"".join(lines[:30])))
    bucket.put_object(Bucket="bucket", Key="days/2.txt", Body=b"".join(lines[30:]))
    options = "--chunk-size 400B --shard-size 2kB"
    for number, source in enumerate(("t.txt", "days/", "days/1.gz s3://bucket/days/2.txt")):
        command_line.run_json("convert", *f"s3://bucket/{source} far{number} {options}".split())
        assert same_rows(f"far{number}", "data")
    table = "far-table --label y --scale standard --id id --chunk-size 400B --workers 2"
    done = forking.run(["-m", "streamcd", "convert", "s3://bucket/t.csv", *table.split()])
    assert done.returncode == 0, done.stderr
    assert same_rows("far-table", "table")


@pytest.mark.parametrize(
    "words",
    [
        "convert s3://bucket/none out",
        "convert s3://none/t.txt out",
        "train s3://bucket/none out",
        "info s3://bucket/days",
        "predict s3://bucket/none of-table -o out.csv",
        "predict t.csv of-table -o s3://bucket/out.csv",
        "convert ftp://host/t.txt out",
    ],
)
def test_what_is_not_there_and_what_is_not_written_to_a_url_is_one_line(words: str, bucket: Any) -> None:
    done = command_line.run(*words.split())
    assert done.returncode in (1, 2)
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
    assert not Path("out").exists()


def test_a_dataset_in_a_bucket_is_used_where_it_is(bucket: Any, made: Path) -> None:
    facts = [command_line.run_json("info", path) for path in ("s3://bucket/data", "data")]
    keys = ("n_rows", "n_features", "n_entries", "classes", "n_shards", "n_chunks", "fingerprint")
    assert [facts[0][key] for key in keys] == [facts[1][key] for key in keys]
    assert same_rows("s3://bucket/data", "data")
    assert command_line.run_json("verify", "s3://bucket/data")["ok"]
    for source in ("table", "t.csv"):
        near, far = (
            command_line.run_json("evaluate", place + source, "of-table") for place in ("", "s3://bucket/")
        )
        assert near == far
        for number, place in enumerate(("", "s3://bucket/")):
            command_line.run_json("predict", place + source, "of-table", "-o", f"{number}.parquet", "--force")
        assert pq.read_table("0.parquet").equals(pq.read_table("1.parquet"))


def test_a_training_from_a_bucket_has_the_weights_of_the_disk_and_resumes_after_a_kill(
    bucket: Any, made: Path
) -> None:
    """Straight and by a cache, whose files it takes a second time."""
    options = ["-C", "10", "--tol", "1e-12", "--max-passes", "60", "--checkpoint-every", "0.01s"]
    command_line.run_json("train", "data", "near", *options)
    for number, cache in enumerate(("", "--cache cache", "--cache cache")):
        command_line.run_json("train", "s3://bucket/data", f"far-{number}", *options, *cache.split())
        assert weights(f"far-{number}") == weights("near")
    assert sum(path.stat().st_size for path in Path("cache").rglob("*") if path.is_file()) > 5_000
    words = ["-m", "streamcd", "train", "s3://bucket/data", "killed", "--cache", "cache", *options]
    process = forking.Forked(words, stderr=forking.DEVNULL, stdout=forking.DEVNULL)
    while process.poll() is None and not Path("killed/state.npz").exists():
        time.sleep(0.005)
    process.kill()
    process.wait()
    command_line.run_json("resume", "killed")
    assert weights("killed") == weights("near")


@pytest.mark.parametrize("part", ["rows", "entries"])
def test_a_damaged_part_in_a_bucket_is_named(part: str, bucket: Any, made: Path) -> None:
    name = f"{part}/part-00001.parquet"
    whole = (Path("data") / name).read_bytes()
    half = len(whole) // 2
    contents = (whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :], whole[:-5], b"")
    for content in contents:
        bucket.put_object(Bucket="bucket", Key=f"data/{name}", Body=content)
        try:
            done = command_line.run("verify", "s3://bucket/data")
            assert (done.returncode, name in done.stdout + done.stderr) == (2, True)
            assert name in error_of(command_line.run("train", "s3://bucket/data", "damaged", "--force"))
        finally:
            bucket.put_object(Bucket="bucket", Key=f"data/{name}", Body=whole)
