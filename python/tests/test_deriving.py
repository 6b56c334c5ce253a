"""``with_column`` and ``rename``: values as pandas computes them, pickles, states, workers, bad input."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from served import worker

import feedstock as fs

pd = pytest.importorskip("pandas")

ROWS = 230
PAGE = Path(__file__).parents[2] / "docs" / "python" / "selecting.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentences")
    words = ["ein", "Haus", "über", "dem", "kleinen", "See"]
    sentences = [" ".join(words[(row * word) % 6] for word in range(row % 5)) for row in range(ROWS)]
    table = pa.table(
        {
            "sentence": [None if row % 17 == 3 else text for row, text in enumerate(sentences)],
            "seconds": pa.array([row * 0.37 % 20 for row in range(ROWS)], pa.float64()),
            "speaker": [f"speaker-{row % 13}" for row in range(ROWS)],
        }
    )
    pq.write_table(table, folder / "a.parquet", row_group_size=40)
    return folder


@pytest.fixture(scope="module")
def data(folder: Path) -> fs.Dataset:
    return fs.Dataset(folder, catalog="memory")


def frame(dataset: fs.Dataset) -> pd.DataFrame:
    """Returns the selected samples as stored, with missing values as None."""
    return pa.table(dataset.head(len(dataset))).drop_columns(["sample_id"]).to_pandas()


EXPRESSIONS: list[tuple[str, Callable[[pd.DataFrame], pd.Series]]] = [
    ("length(sentence)", lambda rows: rows["sentence"].str.len()),
    ("upper(substr(speaker, 9))", lambda rows: rows["speaker"].str[8:].str.upper()),
    ("floor(seconds * 2)", lambda rows: np.floor(rows["seconds"] * 2)),
    ("seconds > 10 and sentence is not null", lambda rows: (rows["seconds"] > 10) & rows["sentence"].notna()),
    (
        "case when seconds > 10 then 'long' else 'short' end",
        lambda rows: rows["seconds"].gt(10).map({True: "long", False: "short"}),
    ),
    ("coalesce(sentence, speaker)", lambda rows: rows["sentence"].fillna(rows["speaker"])),
]


@pytest.mark.parametrize(("sql", "expected"), EXPRESSIONS)
def test_a_column_has_the_values_that_pandas_computes(data, sql, expected) -> None:
    made = frame(data.with_column("made", sql))["made"]
    wanted = expected(frame(data))
    pd.testing.assert_series_equal(made, wanted, check_names=False, check_dtype=False)


def test_columns_are_in_batches_filters_and_queries(data: fs.Dataset) -> None:
    with_length = data.filter("sentence is not null").with_column("characters", "length(sentence)")
    some = with_length.filter("characters > 10").shuffle(seed=3).batch(16, tail="pad").epochs(1)
    rows = frame(data)
    kept = rows[rows["sentence"].str.len() > 10]
    seen = {}
    for batch in some.loader():
        lengths = batch["characters"].numpy()
        seen.update(zip(batch.sample_ids[batch.valid].tolist(), lengths[batch.valid].tolist(), strict=True))
    assert seen == dict(
        zip(kept.index.tolist(), kept["sentence"].str.len().astype(int).tolist(), strict=True)
    )
    longest = with_length.sql("select max(characters) as most from catalog").rows()
    assert longest == [{"most": int(rows["sentence"].str.len().max())}]


def test_renamed_images_are_decoded_and_pickles_keep_the_steps(imagenet: Path) -> None:
    plain = fs.Dataset(imagenet, catalog="memory")
    names = {"image": "photo", "label": "target"}
    renamed = plain.filter("label % 2 = 0").rename(names).with_column("twice", "2 * target")
    assert "photo" in renamed.schema
    assert "image" not in renamed.schema
    assert len(renamed) == len(plain.filter("label % 2 = 0"))
    again = pickle.loads(pickle.dumps(renamed))

    def batches(data: fs.Dataset, column: str, workers: str | None = None) -> list[tuple[list[int], bytes]]:
        pipeline = data.map(column, fs.decode_image(), fs.random_resized_crop(8)).shuffle(seed=2).batch(8)
        made = pipeline.loader(workers=workers) if workers else pipeline.loader()
        return [(batch.sample_ids.tolist(), bytes(batch[column].numpy())) for batch in made]

    expected = batches(renamed, "photo")
    assert [ids for ids, _ in batches(again, "photo")] == [ids for ids, _ in expected]
    serving = worker(imagenet)
    assert batches(again, "photo", serving.address) == expected
    serving.stop()
    batch = next(iter(again.columns(["target", "twice"]).batch(8).loader()))
    assert (batch["twice"].numpy() == 2 * batch["target"].numpy()).all()


def test_states_fit_the_same_columns_only(data: fs.Dataset) -> None:
    def loader(chosen: fs.Dataset) -> fs.Loader:
        return chosen.shuffle(seed=3).batch(4).loader()

    made = data.with_column("half", "seconds / 2").filter("half < 5")
    with loader(made) as one:
        first = next(iter(one)).sample_ids.tolist()
        state = one.state_dict()
    rest = loader(pickle.loads(pickle.dumps(made)))
    rest.load_state_dict(state)
    ids = first + [sample for batch in rest for sample in batch.sample_ids.tolist()]
    assert len(ids) == len(set(ids)) == len(made) // 4 * 4
    other = data.with_column("half", "seconds / 2.0").filter("half < 5")
    with pytest.raises(fs.ConfigError, match=r"its selection is with_column\(half, seconds / 2\)\.filter"):
        loader(other).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.with_column("n", "avg(seconds)"), r"avg\(\) is computed from many samples"),
        (
            lambda data: data.with_column("n", "lag(seconds) over (order by speaker)"),
            r"lag\(\) is computed from many samples",
        ),
        (lambda data: data.with_column("n", "random()"), r"random\(\) returns other values at other times"),
        (lambda data: data.with_column("n", "now()"), r"now\(\) returns other values at other times"),
        (lambda data: data.with_column("n", "(select 1)"), "it has a query"),
        (
            lambda data: data.with_column("n", "second + 1"),
            "there is no column `second`; the columns are: sentence",
        ),
        (lambda data: data.with_column("speaker", "1"), "there is a column named speaker already"),
        (lambda data: data.with_column("sample_id", "1"), "sample_id is the catalog's"),
        (lambda data: data.with_column(3, "1"), "name must be a string; got 3"),
        (lambda data: data.with_column("n", None), "sql must be a string; got None"),
        (lambda data: data.rename({"speeker": "who"}), "no column named speeker; the columns are: sentence"),
        (lambda data: data.rename({"speaker": "seconds"}), "two columns would be named seconds"),
        (lambda data: data.rename({"speaker": 3}), "the name of 'speaker' must be a string; got 3"),
        (lambda data: data.rename({}), "rename: there must be at least 1 column"),
        (
            lambda data: data.rename("speaker"),
            "names must be a dict of new names by old names; got 'speaker'",
        ),
    ],
)
def test_bad_columns_are_refused(data, change, message) -> None:
    with pytest.raises(fs.ConfigError, match=message):
        change(data)


def test_the_code_of_the_page_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text().split("## Columns\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 1
    table = pa.table(
        {"speaker": [f"speaker-{number}" for number in range(10)], "age": pa.array(range(20, 30), pa.int64())}
    )
    pq.write_table(table, tmp_path / "speakers.parquet")
    monkeypatch.setenv("FEEDSTOCK_CACHE", str(tmp_path / "cache"))
    code = blocks[0].replace("s3://corpus/sentences", str(folder)).replace("s3://corpus/", f"{tmp_path}/")
    names: dict[str, object] = {}
    exec(code, names)
    speech = names["speech"]
    assert isinstance(speech, fs.Dataset)
    rows = frame(speech)
    assert list(rows.columns) == ["text", "seconds", "speaker", "age", "characters"]
    assert (rows["characters"] > 10).all()
    assert len(rows) > 20
    ages = [None if number >= 10 else 20 + number for number in rows["speaker"].str[8:].astype(int)]
    assert [None if pd.isna(age) else age for age in rows["age"]] == ages
