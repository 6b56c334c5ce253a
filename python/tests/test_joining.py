"""``join``: compared with ``pandas.merge(how="left")``, pickles, states, workers, bad input."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from served import worker

import feedstock as fs

pd = pytest.importorskip("pandas")

ROWS = 210


def write(folder: Path, table: pa.Table) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "a.parquet", row_group_size=50)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with ``clips`` and ``people``; some keys are null, some are in one of them only."""
    root = tmp_path_factory.mktemp("joined")
    clips = {
        "speaker": pa.array([None if row % 29 == 0 else row * 7 % 45 for row in range(ROWS)], pa.int32()),
        "take": pa.array([row % 2 == 0 for row in range(ROWS)]),
        "seconds": pa.array([row * 0.37 % 20 for row in range(ROWS)], pa.float64()),
    }
    write(root / "clips", pa.table(clips))
    numbers = [number for number in range(3, 60) if number % 4 != 1]
    people = {
        "id": pa.array([*numbers, None, None], pa.uint64()),
        "name": [*(f"the person with number {number}" for number in numbers), "nobody", None],
        "age": pa.array(
            [*(None if number % 5 == 0 else 20 + number for number in numbers), 1, 2], pa.int16()
        ),
    }
    write(root / "people", pa.table(people))
    return root


def opened(root: Path, part: str) -> fs.Dataset:
    return fs.Dataset(root / part, catalog="memory")


def frame(dataset: fs.Dataset) -> pd.DataFrame:
    table = pa.table(dataset.head(len(dataset))).drop_columns(["sample_id"])
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def people_of(root: Path) -> pd.DataFrame:
    """Returns the people with a key: pandas would match null keys, SQL and feedstock do not."""
    people = frame(opened(root, "people")).dropna(subset=["id"])
    return people.astype({"id": "int32[pyarrow]"})


def assert_equal(made: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(made[expected.columns.tolist()], expected, check_dtype=False)


def test_a_join_is_a_left_merge(root: Path) -> None:
    clips, people = opened(root, "clips"), opened(root, "people")
    joined = clips.join(people, {"speaker": "id"})
    assert list(joined.schema) == ["speaker", "take", "seconds", "name", "age"]
    expected = frame(clips).merge(
        people_of(root), how="left", left_on="speaker", right_on="id", validate="many_to_one"
    )
    assert_equal(frame(joined), expected.drop(columns=["id"]))
    assert 20 < expected["name"].isna().sum() < ROWS - 20
    assert_equal(frame(pickle.loads(pickle.dumps(joined))), expected.drop(columns=["id"]))
    old = frame(joined.filter("age >= 50").rename({"age": "years"}))["years"]
    assert sorted(old) == sorted(age for age in expected["age"].dropna() if age >= 50)


def test_selections_and_columns_of_the_other_side_apply(root: Path) -> None:
    people = (
        opened(root, "people").filter("age > 40").with_column("double", "2 * age").rename({"id": "speaker"})
    )
    joined = opened(root, "clips").join(people.columns(["speaker", "double"]), on="speaker")
    right = people_of(root)
    right = right[right["age"].fillna(0) > 40].assign(double=lambda rows: 2 * rows["age"])[["id", "double"]]
    expected = frame(opened(root, "clips")).merge(right, how="left", left_on="speaker", right_on="id")
    assert_equal(frame(joined), expected.drop(columns=["id"]))


def test_several_keys_are_compared_together(root: Path) -> None:
    clips = opened(root, "clips")
    means = pa.table(
        clips.sql("select speaker as who, take as odd, avg(seconds) as mean from catalog group by 1, 2")
    )
    write(root / "means", means)
    joined = clips.join(opened(root, "means"), {"speaker": "who", "take": "odd"})
    right = means.to_pandas(types_mapper=pd.ArrowDtype).dropna(subset=["who"])
    left = frame(clips)
    expected = left.merge(right, how="left", left_on=["speaker", "take"], right_on=["who", "odd"])
    assert_equal(frame(joined), expected.drop(columns=["who", "odd"]))
    assert expected["mean"].notna().sum() == left["speaker"].notna().sum()


def test_batches_states_and_workers_have_joined_columns(root: Path) -> None:
    joined = opened(root, "clips").join(opened(root, "people"), {"speaker": "id"}).filter("age is not null")
    rows = frame(joined)
    ages = dict(zip(rows.index.tolist(), rows["age"].tolist(), strict=True))
    numbers = [int(number) for batch in joined.batch(len(joined)).loader() for number in batch.sample_ids]
    expected = {sample: ages[row] for row, sample in enumerate(numbers)}

    def pipeline(data: fs.Dataset) -> fs.Pipeline:
        return data.shuffle(seed=5).batch(global_batch_size=8, tail="pad").epochs(1)

    def values(batch: fs.Batch) -> dict[int, int]:
        ids, found = batch.sample_ids[batch.valid].tolist(), batch["age"].numpy()[batch.valid].tolist()
        return dict(zip(ids, found, strict=True))

    with pipeline(joined).loader() as loader:
        seen = values(next(iter(loader)))
        state = loader.state_dict()
    serving = worker(root)
    for rank in range(2):
        rest = pipeline(pickle.loads(pickle.dumps(joined))).loader(rank, 2, workers=serving.address)
        rest.load_state_dict(state)
        for batch in rest:
            assert not seen.keys() & values(batch).keys()
            seen |= values(batch)
    serving.stop()
    assert seen == expected


def test_another_version_of_the_other_side_is_another_order(root: Path, tmp_path: Path) -> None:
    def joined(factor: int) -> fs.Dataset:
        facts = pa.table({"id": list(range(40)), "fact": [factor * number for number in range(40)]})
        return opened(root, "clips").join(
            fs.Dataset(write(tmp_path / "facts", facts), catalog="memory"), {"speaker": "id"}
        )

    state = joined(1).shuffle(seed=3).batch(4).loader().state_dict()
    joined(1).shuffle(seed=3).batch(4).loader().load_state_dict(state)
    with pytest.raises(fs.ConfigError, match=r"its selection is join\(speaker, [0-9a-f]{32}\)"):
        joined(2).shuffle(seed=3).batch(4).loader().load_state_dict(state)


@pytest.mark.parametrize(
    ("other", "on", "message"),
    [
        (
            "twice",
            {"speaker": "id"},
            "the key id = 7 occurs twice in .*: in a.parquet row 1 and in a.parquet row 3",
        ),
        ("people", {"speaker": "name"}, "the key speaker is Int32 and name is Utf8"),
        ("people", {"seconds": "age"}, "the key seconds is Float64 and age is Int16"),
        ("people", "speaker", "no column named speaker; the columns are: id, name, age"),
        ("people", {"speeker": "id"}, "no column named speeker"),
        ("people", {}, "there must be at least 1 column of keys"),
        ("people", 3, "on must be the name of a column or a dict of names; got 3"),
        ("people", {"speaker": 3}, "the key for 'speaker' must be a string; got 3"),
        ("clips", "speaker", "both data sets have columns named take, seconds; rename them"),
        (None, "speaker", "other must be a data set; got NoneType"),
    ],
)
def test_bad_joins_are_refused(root: Path, other, on, message) -> None:
    write(root / "twice", pa.table({"id": [4, 7, 9, 7], "x": [1, 2, 3, 4]}))
    with pytest.raises(fs.ConfigError, match=message):
        opened(root, "clips").join(None if other is None else opened(root, other), on)
