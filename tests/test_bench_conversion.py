"""The measurement of conversions: a short run, and the table that it is made for."""

from __future__ import annotations

import json
from pathlib import Path

import forking
import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

import streamcd

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


@pytest.mark.slow
def test_the_auc_of_a_table_is_that_of_a_pipeline_of_scikit_learn_with_its_encoding_to_a_thousandth(
    tmp_path: Path,
) -> None:
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder

    run("make_table", "--rows", 130_000, tmp_path / "t.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet").drop_columns(["key", "weight"])
    train, held_out = table.slice(0, 100_000), table.slice(100_000)
    streamcd.convert(train, tmp_path / "data", label="outcome", scale="maxabs")
    model = streamcd.load_model(
        streamcd.train(tmp_path / "data", tmp_path / "run", loss="log_loss", tol=1e-3).run
    )
    times = ["day", "moment"]
    frame = table.to_pandas()
    for name in times:  # seconds since the first row's
        moments = frame[name].astype("datetime64[s]")
        frame[name] = (moments - moments.iloc[0]).dt.total_seconds()
    numbers = [name for name in frame if name.startswith(("decimal", "integer", "count"))]
    frame["member"] = frame["member"].astype(float)
    zero = SimpleImputer(strategy="constant", fill_value=0.0, add_indicator=True)
    encoder = ColumnTransformer(
        [
            ("numbers", zero, [*numbers, "member", *times]),
            ("categories", OneHotEncoder(handle_unknown="ignore"), [f"category{k}" for k in range(4)]),
        ]
    )
    frame[numbers] = frame[numbers].astype(float)
    pipeline = make_pipeline(encoder, MaxAbsScaler(), LogisticRegression(C=1.0, max_iter=3000))
    pipeline.fit(frame[:100_000], frame["outcome"][:100_000])
    truth = np.array(held_out["outcome"].to_pylist()) == "yes"
    with pytest.warns(UserWarning, match="ignored"):  # categories of the held-out rows alone
        found = roc_auc_score(truth, model.decision_function(held_out))
    expected = roc_auc_score(truth, pipeline.decision_function(frame[100_000:]))
    assert 0.75 < expected < 0.85
    assert abs(found - expected) < 1e-3
