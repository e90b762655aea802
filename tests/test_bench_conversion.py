"""The measurement of conversions: a short run, and the table that it is made for."""

from __future__ import annotations

import json
from pathlib import Path

import forking
import pyarrow.csv
import pyarrow.parquet
import pytest

ROOT = Path(__file__).parent.parent


def run(module: str, *arguments: object) -> str:
    done = forking.run(["-m", f"tools.{module}", *arguments], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_made_table_is_the_same_in_every_format_and_conversions_of_it_are_compared(tmp_path: Path) -> None:
    sources = [tmp_path / "t.csv", tmp_path / "t.parquet"]
    run("make_table", "--rows", 500, *sources)
    text = pyarrow.csv.read_csv(
        sources[0], convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    )
    table = pyarrow.parquet.read_table(sources[1]).cast(text.schema)  # Parquet has no times in whole seconds
    assert table.equals(text)
    assert table["decimal0"].null_count
    assert table["category1"].null_count
    libsvm = tmp_path / "t.txt"
    libsvm.write_text("1 1:2 3:4\n0 2:1\n" * 100)
    options = ["--label", "outcome", "--missing", "zero", "--workers", 1, "--rounds", 1]
    shown = run("bench_conversion", *sources, libsvm, *options)
    for other in ("open_csv with 1 threads", "libsvm text with 1 workers", "load_svmlight_file"):
        assert f"times the rate of {other}" in shown


@pytest.mark.slow
def test_tables_many_times_the_sorted_rows_stay_under_400_mb(tmp_path: Path) -> None:
    sources = [tmp_path / "t.csv", tmp_path / "t.parquet"]
    run("make_table", "--rows", 1_500_000, *sources)
    options = ["--label", "outcome", "--missing", "indicator", "--workers", 1, "--rounds", 1]
    run("bench_conversion", *sources, *options, "--records", tmp_path / "records")
    records = [json.loads(line) for line in (tmp_path / "records").read_text().splitlines()]
    peaks = {source: peak for kind, source, _, _, _, peak, *_ in records if kind == "convert"}
    assert set(peaks) == set(map(str, sources))
    assert max(peaks.values()) < 400e6
