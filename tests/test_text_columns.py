"""Columns of text: the features of scikit-learn's vectorizers, in bounded memory, and the same ones in prediction."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from heard import Heard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize
from test_tables import write_table

import streamcd
from streamcd import StreamcdError
from streamcd.conversion.vocabulary import TaskVocabulary, merge_vocabularies
from streamcd.core.mapped_arrays import forget, take_mapped
from streamcd.dataset.arrow_columns import arrow_strings, strings_of
from streamcd.dataset.text_tokens import words_of
from streamcd.models.encoding import Column, Encoding, encoding_of
from streamcd.models.text_encoder import TextEncoder, Vocabulary

DOCUMENTS = [
    "The cat, the dog; and İstanbul's CAFÉ.",
    "",
    "ΟΔΥΣΣΕΥΣ und die STRASSE … straße",
    "the dog of 2020 was dog_1 — 'quoted' “words”",
    None,
    "a b c",
    "naïve café cat the THE",
]


def made_documents(n_rows: int, seed: int = 3) -> tuple[list[str], list[str]]:
    """Documents of Zipf's words, and classes that some of these tell."""
    rng = np.random.default_rng(seed)
    words = np.array([f"word{k}" for k in range(5000)])
    classes = rng.integers(0, 3, n_rows)
    texts = []
    for label in classes.tolist():
        drawn = np.minimum(rng.zipf(1.3, rng.integers(5, 60)), 5000) - 1
        own = (drawn * 3 + label) % 5000
        texts.append(" ".join(words[np.where(rng.random(drawn.size) < 0.2, own, drawn)]))
    return texts, [f"class {label}" for label in classes.tolist()]


def words(texts: Sequence[str | None]) -> list[list[str]]:
    found = words_of(*strings_of(arrow_strings(texts)))
    tokens = [found.data[a:b].tobytes().decode() for a, b in zip(found.starts, found.ends, strict=True)]
    return [tokens[a:b] for a, b in zip(found.indptr, found.indptr[1:], strict=False)]


def python_words(text: str) -> list[str]:
    return re.findall(r"(?u)\b\w\w+\b", text.lower())


def block(dataset: streamcd.Dataset, name: str) -> tuple[list[str], np.ndarray]:
    """The tokens of a column of text, and its part of the matrix, in the order of the source."""
    encoding = encoding_of(dataset)
    assert encoding is not None
    names = list(encoding.feature_names(np.arange(dataset.n_features)))
    features = [k for k, given in enumerate(names) if given.startswith(f"{name}:")]
    matrix = dataset.to_scipy()[0][:, features].toarray()
    return [names[k].removeprefix(f"{name}:") for k in features], matrix


def converted(path: Path, texts: Sequence[str | None], **options: Any) -> streamcd.Dataset:
    numbers = np.arange(len(texts), dtype=np.float64) + 1
    table = pa.table(
        {
            "y": ["a", "b"] * (len(texts) // 2) + ["a"] * (len(texts) % 2),
            "body": pa.array(texts, pa.string()),
            "n": numbers,
        }
    )
    given = {"label": "y", "text": "body", "shuffle": False, "dtype": "float64", "force": True} | options
    return streamcd.convert(table, path, **given)


# ---------------------------------------------------------------------------------------------------------------------
# Words


def test_every_character_is_lowered_and_taken_for_a_word_as_by_python() -> None:
    texts = [f"x{chr(point)}y {chr(point)}{chr(point)}" for point in range(sys.maxunicode + 1)]
    texts = [text for text in texts if not 0xD800 <= ord(text[1]) <= 0xDFFF]
    sample = [text for k, text in enumerate(texts) if k % 7 == 0 or ord(text[1]) < 0x3000]
    assert words(sample) == [python_words(text) for text in sample]


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=6))
@example(["ΑΣ", "ΑΣ.", "ΑΣ'Α", "Σ", "ΑΣ Σ", "ΑΣ\u0301Σ"])
@example(["İİ", "Iİx", "\u0307\u0307", "ǅungla", "ﬁ ﬀ", "ab"])
@settings(deadline=None, max_examples=60)
def test_words_are_those_of_python_in_any_text(texts: list[str]) -> None:
    assert words(texts) == [python_words(text) for text in texts]


def test_damaged_utf_8_is_cut_without_harm() -> None:
    data = np.frombuffer(b"ok \xf0\x9f word\xc3 \xff\xfe \x80\x80 end\xe2\x82", np.uint8)
    strings = strings_of(pa.array([b"x" * data.size], pa.large_binary()).view(pa.large_string()))[0]
    found = words_of(strings._replace(data=data), np.empty(0, np.bool_))
    tokens = [found.data[a:b].tobytes() for a, b in zip(found.starts, found.ends, strict=True)]
    assert tokens[0] == b"ok"
    assert b"end" in tokens


# ---------------------------------------------------------------------------------------------------------------------
# Features


texts_of_few_words = st.lists(
    st.one_of(
        st.none(),
        st.lists(st.sampled_from(["aa", "Bb", "éÉ", "ÇA", "x", "dd dd", "ΑΣ", "-", "İs"]), max_size=9).map(
            " ".join
        ),
        st.text(max_size=12),
    ),
    min_size=2,
    max_size=12,
)


@given(
    texts_of_few_words, st.sampled_from([(1, 1), (1, 2), (2, 3), (1, 3)]), st.booleans(), st.integers(1, 3)
)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_features_and_values_are_those_of_scikit_learns_vectorizers(
    tmp_path: Path, texts: list[str | None], ngrams: tuple[int, int], tf_idf: bool, min_count: int
) -> None:
    texts = [None if text is None else text.encode(errors="replace").decode() for text in texts]
    kind = TfidfVectorizer if tf_idf else CountVectorizer
    vectorizer = kind(ngram_range=ngrams, min_df=min_count)
    dataset = converted(
        tmp_path / "data", texts, ngrams="-".join(map(str, ngrams)), tf_idf=tf_idf, min_count=min_count
    )
    tokens, found = block(dataset, "body")
    try:
        expected = vectorizer.fit_transform([text or "" for text in texts]).toarray()
    except ValueError:  # no token is left
        assert not tokens
        return
    assert tokens == sorted(vectorizer.vocabulary_, key=str.encode)
    order = [vectorizer.vocabulary_[token] for token in tokens]
    np.testing.assert_allclose(found, expected[:, order], rtol=1e-12, atol=0)


@pytest.mark.parametrize("tf_idf", [False, True])
def test_hashed_text_is_that_of_scikit_learns_hashing_vectorizer(tmp_path: Path, tf_idf: bool) -> None:
    dataset = converted(tmp_path / "data", DOCUMENTS, hash=5, ngrams="1-2", tf_idf=tf_idf)
    tokens, found = block(dataset, "body")
    assert tokens == [f"hash {k}" for k in range(32)]
    expected = HashingVectorizer(n_features=32, norm=None, ngram_range=(1, 2)).transform(
        [text or "" for text in DOCUMENTS]
    )
    if tf_idf:
        expected = TfidfTransformer().fit_transform(expected)
    np.testing.assert_allclose(found, expected.toarray(), rtol=1e-12)
    assert dataset.verify() == []


OPTIONS: list[dict[str, Any]] = [
    {"ngrams": "1-2", "tf_idf": True, "min_count": 2},
    {},
    {"hash": 8, "tf_idf": True},
    {"hash": 8},
    {"tf_idf": True, "normalize": "l2", "scale": "maxabs"},
]


def mixed_table(n_rows: int = 400) -> pa.Table:
    rng = np.random.default_rng(4)
    texts, classes = made_documents(n_rows)
    other = [None if k % 5 == 0 else text[:20] for k, text in enumerate(reversed(texts))]
    numbers = [None if k % 7 == 0 else value for k, value in enumerate(rng.normal(size=n_rows).tolist())]
    city = rng.choice(["Oslo", "Rome"], n_rows)
    columns = {"class": classes, "body": texts, "x": numbers, "city": city, "title": other}
    return pa.table(columns)


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_text_is_the_same_dataset_from_all_formats_and_workers_and_repeated_by_its_columns(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    table = mixed_table()
    sources = [write_table(table, tmp_path / name) for name in ("t.csv", "t.parquet", "t.arrow")]
    options = {"label": "class", "text": "body,title", **options}
    made = [
        streamcd.convert(source, tmp_path / f"data{number}", **options)
        for number, source in enumerate([*sources, table, table.to_pandas()])
    ]
    assert len({dataset.fingerprint for dataset in made}) == 1
    assert made[0].verify() == []
    assert made[0].info()["table"] == made[1].info()["table"]
    rest = {key: options[key] for key in ("normalize", "scale") if key in options}
    again = streamcd.convert(table, tmp_path / "again", columns_from=tmp_path / "data0", **rest)
    assert again.fingerprint == made[0].fingerprint
    workers = streamcd.convert(sources[0], tmp_path / "workers", workers=2, **options)
    assert workers.fingerprint == made[0].fingerprint
    like = streamcd.convert(sources[1], tmp_path / "like", like=tmp_path / "data0")
    assert (like.to_scipy()[0] != made[0].to_scipy()[0]).nnz == 0


def onnx_model(model: Any, path: Path) -> Callable[[dict[str, Sequence[Any]]], np.ndarray]:
    """The decisions of onnxruntime for named columns, of a model exported to `path`."""
    pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime, of the extra 'test', is not installed")
    streamcd.export(model, path, force=True)
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(
        ["decision"], {name: np.array(values)[:, None] for name, values in inputs.items()}
    )[0]


def test_accuracy_is_that_of_a_scikit_learn_pipeline(tmp_path: Path) -> None:
    texts, classes = made_documents(3000)
    table = pa.table({"class": classes, "body": texts})
    streamcd.convert(table.slice(0, 2000), tmp_path / "data", label="class", text="body", tf_idf=True)
    streamcd.train(tmp_path / "data", tmp_path / "run", loss="log_loss", C=10, tol=1e-6, bias="none")
    found = streamcd.load_model(tmp_path / "run").predict(table.slice(2000).select(["body"]))
    vectorizer = TfidfVectorizer()
    fitted = LogisticRegression(C=10, fit_intercept=False, tol=1e-8, max_iter=2000)
    expected = []
    matrix, new = vectorizer.fit_transform(texts[:2000]), vectorizer.transform(texts[2000:])
    for label in sorted(set(classes)):
        expected.append(fitted.fit(matrix, np.array(classes[:2000]) == label).decision_function(new))
    best = np.array(sorted(set(classes)))[np.argmax(expected, axis=0)]
    assert abs(np.mean(found == classes[2000:]) - np.mean(best == classes[2000:])) < 0.002
    assert np.mean(found == best) > 0.998


@pytest.mark.parametrize("tf_idf", [False, True])
def test_words_of_rare_buckets_are_left_out_as_by_the_model_alone(tmp_path: Path, tf_idf: bool) -> None:
    texts, _ = made_documents(300, seed=4)
    given = {"hash": 10, "min_count": 4, "tf_idf": tf_idf, "ngrams": "1-2", "normalize": "l2"}
    heard = Heard()
    data = converted(tmp_path / "data", texts, features="body", listener=heard, **given)
    hashed = HashingVectorizer(n_features=1 << 10, ngram_range=(1, 2), norm=None).transform(texts)
    kept = np.bincount(hashed.indices, minlength=1 << 10) >= 4  # of two tokens that cancel each other, too
    assert 10 < kept.sum() < kept.size - 10
    n_rare = np.unique(hashed.indices[~kept[hashed.indices]]).size
    assert (
        f"{n_rare} buckets of hashed text left out, each in fewer documents than --min-count"
        in heard.messages
    )
    counts = hashed @ sp.diags_array(kept.astype(float))
    expected = normalize(TfidfTransformer().fit(hashed).transform(counts) if tf_idf else counts)
    np.testing.assert_allclose(data.to_scipy()[0].toarray(), expected.toarray(), atol=1e-7)
    workers = converted(tmp_path / "workers", texts, features="body", workers=2, **given)
    assert workers.fingerprint == data.fingerprint
    streamcd.train(data, tmp_path / "run", loss="log_loss")
    model = streamcd.load_model(tmp_path / "run")
    streamcd.predict(data, tmp_path / "run", tmp_path / "known.parquet")
    frame = pa.table({"body": texts})
    found = pd.read_parquet(tmp_path / "known.parquet")["decision"]
    np.testing.assert_allclose(model.decision_function(frame), found, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Bounded memory


def encoded_in(vocabulary: Vocabulary, texts: Sequence[str], column: Column) -> list[tuple[np.ndarray, ...]]:
    encoder = TextEncoder(Encoding((column,), label="y"), np.float64, vocabulary)
    array = arrow_strings(texts)
    return [
        encoder.rows(lambda _, start=start: array.slice(start, 10), np.zeros(1, np.int64), lambda *_: "")
        for start in range(0, len(texts), 10)
    ]


def test_a_vocabulary_beyond_its_memory_is_counted_exactly_in_parts_within_it(tmp_path: Path) -> None:
    texts, _ = made_documents(1500, seed=8)
    column = Column("body", "text", ngrams=(1, 2), tf_idf=True, min_count=2)
    budget, most = 400_000, 0

    class Watched(TaskVocabulary):
        def prepare(self, n_tokens: int, n_bytes: int, n_rows: int) -> None:
            nonlocal most
            most = max(most, self.nbytes)
            super().prepare(n_tokens, n_bytes, n_rows)

    vocabulary = Watched(budget, tmp_path, 0)
    encoded_in(vocabulary, texts, column)
    vocabulary.end()
    n_parts = len(list(tmp_path.glob("tokens-*.data")))
    assert n_parts > 5
    assert most <= budget
    (tmp_path / "data.bin").touch()
    np.zeros(1, np.int64).tofile(tmp_path / "offsets.bin")
    counts = [0]
    n_rare = merge_vocabularies(tmp_path, Encoding((column,), label="y"), counts, 100_000)
    vectorizer = CountVectorizer(ngram_range=(1, 2), min_df=2)
    expected = np.asarray((vectorizer.fit_transform(texts) > 0).sum(axis=0)).ravel()
    tokens = sorted(vectorizer.vocabulary_, key=str.encode)
    assert counts == [len(tokens)]
    assert (tmp_path / "data.bin").read_bytes() == "".join(tokens).encode()
    documents = np.fromfile(tmp_path / "documents.bin", np.int64)
    assert documents.tolist() == [expected[vectorizer.vocabulary_[token]] for token in tokens]
    assert n_rare == len(CountVectorizer(ngram_range=(1, 2)).fit(texts).vocabulary_) - len(tokens)


def test_a_conversion_in_little_memory_is_the_one_in_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = mixed_table()
    options = {"label": "class", "text": "body,title", "tf_idf": True, "ngrams": "1-2", "min_count": 2}
    usual = streamcd.convert(table, tmp_path / "usual", **options)
    parts = []
    saves = TaskVocabulary._save_part
    monkeypatch.setattr(TaskVocabulary, "_fits", lambda self, *_: False)
    monkeypatch.setattr(TaskVocabulary, "_save_part", lambda self: (parts.append(1), saves(self)))
    monkeypatch.setattr("streamcd.models.text_encoder._BLOCK_BYTES", 5000)
    found = streamcd.convert(table, tmp_path / "parts", **options)
    assert len(parts) > 5
    assert found.fingerprint == usual.fingerprint
    assert (tmp_path / "parts/categories.parquet").read_bytes() == (
        tmp_path / "usual/categories.parquet"
    ).read_bytes()


def test_elements_of_a_mapped_file_are_taken_a_window_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamcd.core.mapped_arrays._WINDOW_BYTES", 4096)
    rng = np.random.default_rng(2)
    values = rng.integers(0, 1 << 30, 10_000).astype(np.int32)
    values.tofile(tmp_path / "values")
    places = rng.integers(0, values.size, 5000)
    mapped = np.memmap(tmp_path / "values", np.int32, "r")
    np.testing.assert_array_equal(take_mapped(mapped, places), values[places])
    assert take_mapped(mapped, places[:0]).size == 0


def test_pages_of_a_mapped_file_are_let_go(tmp_path: Path) -> None:
    def resident() -> int:
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        assert any(str(tmp_path / "values") in line for line in lines)
        return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

    if sys.platform != "linux":
        pytest.skip("the resident pages of a mapping are told by Linux")
    np.ones(1 << 20).tofile(tmp_path / "values")
    view = np.asarray(np.memmap(tmp_path / "values", np.float64, "r"))[10:]
    assert view.sum() == view.size
    assert resident() > 4000  # kB
    forget(view)
    assert resident() == 0
    assert view[0] == 1.0


MEASURE = """
import sys, streamcd
from streamcd.core.memory_budget import peak_memory_bytes
found = streamcd.convert(sys.argv[1], sys.argv[2], label="y", text="body", tf_idf=True, ngrams="1-2", memory=sys.argv[3])
print(found.n_features, peak_memory_bytes())
"""


@pytest.mark.slow
@pytest.mark.parametrize("memory", [276_000_000, 300_000_000])
def test_a_conversion_with_a_million_tokens_stays_within_its_budget(tmp_path: Path, memory: int) -> None:
    rng, n_rows = np.random.default_rng(0), 30_000
    drawn = (400_000 * rng.random((n_rows, 30)) ** 2).astype(np.int64)
    with open(tmp_path / "text.csv", "w") as file:
        file.write("y,body\n")
        for k, numbers in enumerate(drawn.tolist()):
            file.write(f"{'ab'[k % 2]},{' '.join(f'w{n * 2654435761 % (1 << 32):x}' for n in numbers)}\n")
    arguments = [str(tmp_path / "text.csv"), str(tmp_path / "data"), str(memory)]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, timeout=300
    )
    n_features, peak = map(int, done.stdout.split())
    assert n_features > 1_000_000
    assert peak < memory


# ---------------------------------------------------------------------------------------------------------------------
# Refusals and advice


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "none"}, "expected a column 'none' \\(--text\\)"),
        ({"text": None, "tf_idf": True}, "--tf-idf: expected columns of text"),
        ({"ngrams": "3-2"}, "--ngrams: expected numbers of words such as 1-2"),
        ({"ngrams": "0-1"}, "--ngrams"),
        ({"min_count": 0}, "--min-count from 1"),
        ({"missing": "error"}, "row 5: column 'body': expected a value, found none"),
        ({"text": "n"}, "row 1: column 'n': expected strings"),
    ],
)
def test_what_cannot_be_text_is_refused_in_one_line(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StreamcdError, match=message) as caught:
        converted(tmp_path / "data", DOCUMENTS, **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_text_is_named_where_strings_overflow_or_nearly_all_differ(tmp_path: Path) -> None:
    texts = [f"row {k} is long " + "word " * 40 + str(k) for k in range(3000)]
    table = pa.table({"y": [0, 1] * 1500, "x": np.arange(3000.0), "body": texts})
    heard: list[str] = []

    class Listener(streamcd.Listener):
        def message(self, text: str) -> None:
            heard.append(text)

    data = streamcd.convert(table, tmp_path / "data", label="y", listener=Listener())
    (said,) = [text for text in heard if "'body'" in text]  # not once as left out and once as text
    assert "'body' is not used" in said
    assert 0 < said.find("--text body") < said.find("--id body")
    (note,) = [fact["note"] for fact in data.info()["table"] if fact["column"] == "body"]
    assert note.endswith("strings are different: --text body")
    from streamcd.models.string_table import StringTable

    with pytest.raises(StreamcdError, match=r"--text body .*--hash"):
        StringTable(50_000).number(0, *strings_of(arrow_strings(texts)), True, "body")


@pytest.mark.parametrize("options", [{}, {"hash": 6}], ids=str)
def test_text_that_is_taken_for_categories_is_named(tmp_path: Path, options: dict[str, Any]) -> None:
    subjects = [f"about the {'big' if k % 3 else 'small'} thing {k // 2}" for k in range(60)]
    table = pa.table(
        {
            "y": [0, 1] * 30,
            "subject": subjects,
            "place": ["the city of Oslo", "a small town", "out in the woods"] * 20,
            "name": [f"Ann O{k}" for k in range(60)],
            "chosen": subjects,
            "words": subjects,
        }
    )
    heard = Heard()
    data = streamcd.convert(
        table, tmp_path / "data", label="y", category="chosen", text="words", listener=heard, **options
    )
    (said,) = [text for text in heard.messages if "looks like text" in text]
    assert "column 'subject'" in said
    assert "--text subject" in said
    notes = {use["column"]: use["note"] for use in data.info()["table"] if use["note"]}
    assert notes == {"subject": "looks like text, of 4 words in the mean: --text subject"}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_short_free_text_is_named_also_where_some_of_it_is_frequent(tmp_path: Path, form: str) -> None:
    things = [f"{colour} {thing}" for colour in ("red", "big", "old") for thing in ("chair", "lamp", "shelf")]
    frequent, rare = ["no remark", "all fine"] * 120, [f"{k} {thing}" for k in range(5) for thing in things]
    cities = ["New York", "San Juan", *(f"Town{k}" for k in range(28))]
    table = pa.table(
        {
            "y": ["a", "b", "c"] * 95,
            "remark": frequent + rare,
            "moment": [f"{k % 28 + 1}. {k % 12 + 1}. 2020 {k % 24} h" for k in range(285)],
            "city": [cities[min(k, 284 - k) % 30] for k in range(285)],
        }
    )
    path = write_table(table, tmp_path / f"t.{form}")
    data = streamcd.convert(path, tmp_path / "data", label="y")
    notes = {use["column"]: use["note"] for use in data.info()["table"] if use["note"]}
    assert notes == {"remark": "looks like text, of 2 words in the mean: --text remark"}


def test_one_command_converts_mail(tmp_path: Path) -> None:
    texts, classes = made_documents(200)
    write_table(pa.table({"class": classes, "body": texts}), tmp_path / "mail.csv")
    arguments = ["convert", str(tmp_path / "mail.csv"), str(tmp_path / "mail.data")]
    result = command_line.run(*arguments, "--label", "class", "--text", "body", "--tf-idf")
    assert result.returncode == 0, result.stderr
    assert "text, tf-idf" in result.stdout
    trained = command_line.run("train", tmp_path / "mail.data", tmp_path / "run")
    assert trained.returncode == 0, trained.stderr


# ---------------------------------------------------------------------------------------------------------------------
# Documents


def written_documents(directory: Path, n_rows: int = 240) -> tuple[Path, Path]:
    """A file of labels and texts, and the same as a folder for each class."""
    texts, classes = made_documents(n_rows)
    lines, folder = directory / "documents.txt", directory / "folder"
    lines.write_text(
        "".join(f"{label}\t{text}, É“x”\r\n" for label, text in zip(classes, texts, strict=True))
    )
    for number, (label, text) in enumerate(zip(classes, texts, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{number:04}.txt").write_text(f"{text}, É“x”\n")
    return lines, folder


@pytest.mark.usefixtures("lend")
@pytest.mark.parametrize("text", ["notes\n", "# Title\n\nWhat this is.\n", "\ufeffÜber alles\n"])
def test_a_directory_of_notes_alone_is_refused_with_what_one_of_documents_is(
    tmp_path: Path, text: str
) -> None:
    """It ended in the message that a line of libsvm text begins with a number."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README").write_text(text)
    expected = (
        r"expected .* a folder for each class with its documents, found text in README; .* put each document"
    )
    with pytest.raises(StreamcdError, match=expected):
        streamcd.convert(tmp_path / "docs", tmp_path / "data")
    (tmp_path / "docs" / "README").write_text("# rows\n+1 1:2\n-1 2:1\n")
    assert streamcd.convert(tmp_path / "docs", tmp_path / "data").n_rows == 2


def test_documents_with_labels_and_a_folder_for_each_class_convert_and_are_predicted(tmp_path: Path) -> None:
    lines, folder = written_documents(tmp_path)
    texts, classes = made_documents(240)
    table = pa.table({"label": classes, "text": [f"{text}, É“x”" for text in texts]})
    usual = streamcd.convert(table, tmp_path / "table", label="label", text="text", tf_idf=True)
    found = streamcd.convert(lines, tmp_path / "lines", tf_idf=True)
    assert found.fingerprint == usual.fingerprint
    workers = streamcd.convert(lines, tmp_path / "workers", tf_idf=True, workers=2, format="documents")
    assert workers.fingerprint == usual.fingerprint
    classed = streamcd.convert(folder, tmp_path / "classed", tf_idf=True, id="file", shuffle=False)
    order = np.argsort([f"{label}/{number:04}" for number, label in enumerate(classes)], kind="stable")
    expected = streamcd.convert(lines, tmp_path / "ordered", tf_idf=True, shuffle=False).to_scipy()[0]
    assert (classed.to_scipy()[0] != expected[order]).nnz == 0
    several = streamcd.convert(folder, tmp_path / "several", tf_idf=True, id="file", shuffle=False, workers=2)
    assert several.fingerprint == classed.fingerprint
    streamcd.train(found, tmp_path / "run", loss="log_loss")
    accuracy = streamcd.evaluate(lines, tmp_path / "run")["accuracy"]
    assert accuracy > 0.9
    assert streamcd.evaluate(folder, tmp_path / "run")["accuracy"] == accuracy
    streamcd.train(classed, tmp_path / "of-folder")
    streamcd.predict(folder, tmp_path / "of-folder", tmp_path / "out.parquet")
    assert pd.read_parquet(tmp_path / "out.parquet")["file"][0] == f"class 0/{order[0]:04}.txt"
    (tmp_path / "new.txt").write_text("".join(f"{text}\n" for text in texts[:20]))
    streamcd.predict(tmp_path / "new.txt", tmp_path / "run", tmp_path / "new.csv")
    again = pd.read_csv(tmp_path / "new.csv")["prediction"]
    assert list(again) == list(
        streamcd.load_model(tmp_path / "run").predict(table.slice(0, 20).select(["text"]))
    )


def test_documents_are_identified_by_their_files_also_where_new_ones_are_in_no_folder_of_a_class(
    tmp_path: Path,
) -> None:
    _, folder = written_documents(tmp_path, 40)
    plain = streamcd.convert(folder, tmp_path / "plain")
    notes = {fact["column"]: fact["note"] for fact in plain.manifest["table"] if fact["use"] == "not used"}
    assert notes == {"file": "--id file keeps it"}
    with pytest.raises(StreamcdError, match=r"expected a column 'path' \(--id\), found label, text, file"):
        streamcd.convert(folder, tmp_path / "data", id="path")
    streamcd.train(streamcd.convert(folder, tmp_path / "data", id="file"), tmp_path / "run")
    # the same documents without their classes, several lines each
    new = tmp_path / "new"
    new.mkdir()
    for path in folder.rglob("*.txt"):
        (new / path.name).write_text(path.read_text().replace(" ", "\n"))
    predicted = {}
    for place in (folder, new):
        streamcd.predict(place, tmp_path / "run", tmp_path / "out.csv", force=True)
        table = pd.read_csv(tmp_path / "out.csv")
        files = [name.rpartition("/")[2] for name in table["file"]]
        predicted[place] = dict(zip(files, table["prediction"], strict=True))
    assert len(predicted[new]) == 40
    assert predicted[new] == predicted[folder]


@pytest.mark.parametrize("option", ["--id", "--keep"])
def test_lines_of_documents_are_identified_by_their_numbers_alone_which_is_said(
    tmp_path: Path, option: str
) -> None:
    lines, _ = written_documents(tmp_path, 40)
    refused = command_line.run("convert", lines, tmp_path / "data", option, "file")
    assert refused.returncode == 2
    (said,) = refused.stderr.splitlines()
    assert f"{option}: expected a table, or a folder of texts, found lines" in said
    assert said.endswith("predictions tell each row's number")
    streamcd.train(streamcd.convert(lines, tmp_path / "data"), tmp_path / "run")
    streamcd.predict(lines, tmp_path / "run", tmp_path / "out.csv")
    assert list(pd.read_csv(tmp_path / "out.csv")["source"]) == list(range(40))


def test_notes_beside_the_folders_of_classes_are_left_out_and_named(tmp_path: Path) -> None:
    _, folder = written_documents(tmp_path, 40)
    usual = streamcd.convert(folder, tmp_path / "usual", id="file")
    (folder / "README").write_text("These are documents, of two classes\n\nfrom 2019 to 2021\n")
    (folder / "index.html").write_text("<html></html>\n")
    (folder / ".hidden").write_text("x\n")
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text("x\n")
    for place in (folder, f"{folder}{os.sep}"):
        heard = Heard()
        made = streamcd.convert(place, tmp_path / "data", id="file", listener=heard, force=True)
        assert made.fingerprint == usual.fingerprint
        told = [text.replace(f"{folder}{os.sep}", "") for text in heard.messages if "left out" in text]
        assert told == ["left out, being in no folder: README, index.html"]
    streamcd.train(made, tmp_path / "run")
    told = command_line.run("predict", folder, tmp_path / "run", "-o", tmp_path / "out.csv").stderr
    assert told.count("left out, being in no folder") == 1
    assert len(pd.read_csv(tmp_path / "out.csv")) == 40


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.txt", "+1 1:1 3:2\n-1 2:1\n"),
        ("table.csv", '"a, b",label\n"1, 2",x\n3,y\n'),
        ("lines.txt", "a\tone two three\nb\tfour five six\n" * 2),
    ],
)
def test_data_beside_folders_are_taken_in_place_of_what_the_folders_hold(
    tmp_path: Path, name: str, content: str
) -> None:
    _, folder = written_documents(tmp_path, 40)
    (folder / name).write_text(content)
    options = {"label": "label"} if name.endswith(".csv") else {}
    for place in (folder, f"{folder}{os.sep}"):
        heard = Heard()
        made = streamcd.convert(place, tmp_path / "data", listener=heard, force=True, **options)
        assert made.n_rows == content.count("\n") - bool(options)
        assert not [text for text in heard.messages if "left out" in text]
    assert streamcd.convert(folder, tmp_path / "folders", format="folder").n_rows == 40


def test_labels_of_documents_may_be_numbers_and_names_of_columns_make_a_table(tmp_path: Path) -> None:
    (tmp_path / "numbers.txt").write_text("1\tgood and fine day\n-1\tbad and poor day\n" * 20)
    dataset = streamcd.convert(tmp_path / "numbers.txt", tmp_path / "numbers")
    assert dataset.classes.tolist() == [-1, 1]
    assert dataset.class_names is None
    targets = streamcd.convert(tmp_path / "numbers.txt", tmp_path / "targets", target=True)
    assert targets.has_targets
    (tmp_path / "named.tsv").write_text(
        "kind\tbody\n" + "spam\twin a big prize\nham\tnotes of the meeting\n" * 20
    )
    named = streamcd.convert(tmp_path / "named.tsv", tmp_path / "named", label="kind", text="body")
    assert named.class_names == ["ham", "spam"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tone two three\n\nb one two\n", r"d\.txt:3: expected a label, a tab and a text, found no tab"),
        (b"a\tone two\nb\t\xff\xfe one\n", r"d\.txt:2: expected text in UTF-8"),
        (b"1\tone two\n" * 2100 + b"x\tone two\n", r"d\.txt:2101: expected a number as the label.*'x'"),
    ],
)
def test_a_line_that_is_no_document_is_refused_by_its_place(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "d.txt").write_bytes(content)
    if b"x\tone" in content:
        (tmp_path / "d.txt").write_bytes(
            content.replace(b"one two", b"one two " * 80)
        )  # beyond the first megabyte
    with pytest.raises(StreamcdError, match=message):
        streamcd.convert(tmp_path / "d.txt", tmp_path / "data", format="documents")
    assert not (tmp_path / "data").exists()


def test_folders_of_tables_and_files_for_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tables/a").mkdir(parents=True)
    write_table(pa.table({"x": [1.0]}), tmp_path / "tables/a/t.parquet")
    with pytest.raises(
        StreamcdError, match=r"expected files of text in a folder for each class.*found parquet"
    ):
        streamcd.convert(tmp_path / "tables", tmp_path / "data")
    lines, _ = written_documents(tmp_path, 20)
    with pytest.raises(
        StreamcdError, match="expected a folder with a folder of texts for each class, found a file"
    ):
        streamcd.convert(lines, tmp_path / "data", format="folder")
